//! A proxy between client and server that cuts connections, also within frames.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards a limited number of bytes of each connection.
pub(crate) struct Proxy {
    path: PathBuf,
    pub(crate) cuts: Arc<AtomicUsize>,
    has_stopped_cutting: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    /// Listens at `path` and forwards connections to `server`. Cuts each after a number of bytes
    /// derived from `seed`.
    pub(crate) fn new(path: &Path, server: &Path, seed: u64) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (cuts, has_stopped_cutting) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let open = Arc::<Mutex<Vec<UnixStream>>>::default();
        let this = Self {
            path: path.to_owned(),
            cuts: cuts.clone(),
            has_stopped_cutting: has_stopped_cutting.clone(),
            open: open.clone(),
        };
        let server = server.to_owned();
        std::thread::spawn(move || {
            let mut random = seed;
            while let Ok((client, _)) = listener.accept() {
                // xorshift64 (Marsaglia, 2003).
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Some connections end within the handshake.
                let most = if random.is_multiple_of(5) {
                    300
                } else {
                    200_000
                };
                let bytes = (random >> 20) % most;
                let Ok(upstream) = UnixStream::connect(&server) else {
                    continue;
                };
                let (cuts, has_stopped_cutting) = (cuts.clone(), has_stopped_cutting.clone());
                open.lock().unwrap().push(client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let left = Arc::new(AtomicUsize::new(bytes as usize));
                    std::thread::scope(|scope| {
                        for (from, to) in [(&client, &upstream), (&upstream, &client)] {
                            let (left, has_stopped_cutting) =
                                (left.clone(), has_stopped_cutting.clone());
                            scope.spawn(move || pass(from, to, &left, &has_stopped_cutting));
                        }
                    });
                    cuts.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        this
    }

    /// Stops cutting connections.
    pub(crate) fn stop_cutting(&self) {
        self.has_stopped_cutting.store(true, Ordering::SeqCst);
    }

    /// Cuts all open connections.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }
}

fn pass(
    mut from: &UnixStream,
    mut to: &UnixStream,
    left: &AtomicUsize,
    has_stopped_cutting: &AtomicBool,
) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        let mut kept = count;
        if !has_stopped_cutting.load(Ordering::SeqCst) {
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
