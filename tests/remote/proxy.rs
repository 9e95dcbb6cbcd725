//! Somebody between client and server who cuts connections, in the middle of frames too.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Passes bytes on, of each connection only so many.
pub(crate) struct Proxy {
    path: PathBuf,
    pub(crate) cuts: Arc<AtomicUsize>,
    is_calm: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    /// Listens at `path` for who wants to `server`; the connections after the first are cut after
    /// numbers of bytes that come from `seed`.
    pub(crate) fn new(path: &Path, server: &Path, seed: u64) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (cuts, is_calm) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let open = Arc::<Mutex<Vec<UnixStream>>>::default();
        let this = Self {
            path: path.to_owned(),
            cuts: cuts.clone(),
            is_calm: is_calm.clone(),
            open: open.clone(),
        };
        let server = server.to_owned();
        std::thread::spawn(move || {
            let mut chance = seed;
            while let Ok((client, _)) = listener.accept() {
                // xorshift64 (Marsaglia, 2003).
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                // Short ones, that end in the handshake, and long ones.
                let most = if chance.is_multiple_of(5) {
                    300
                } else {
                    200_000
                };
                let bytes = (chance >> 20) % most;
                let Ok(there) = UnixStream::connect(&server) else {
                    continue;
                };
                let (cuts, is_calm) = (cuts.clone(), is_calm.clone());
                open.lock().unwrap().push(client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let left = Arc::new(AtomicUsize::new(bytes as usize));
                    std::thread::scope(|scope| {
                        for (from, to) in [(&client, &there), (&there, &client)] {
                            let (left, is_calm) = (left.clone(), is_calm.clone());
                            scope.spawn(move || pass(from, to, &left, &is_calm));
                        }
                    });
                    cuts.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        this
    }

    /// Cuts nothing any more.
    pub(crate) fn calm(&self) {
        self.is_calm.store(true, Ordering::SeqCst);
    }

    /// Cuts the connections that there are.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }
}

fn pass(mut from: &UnixStream, mut to: &UnixStream, left: &AtomicUsize, is_calm: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        let mut kept = count;
        if !is_calm.load(Ordering::SeqCst) {
            let take = |left: usize| Some(left.saturating_sub(count));
            kept = count.min(
                left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                    .unwrap(),
            );
        }
        if kept == 0 || to.write_all(&buffer[..kept]).is_err() || kept < count {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
