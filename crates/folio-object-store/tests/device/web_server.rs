//! Web servers whose answers are longer than what was asked for, or say that the object is.

use folio::{Errno, Error};
use folio_object_store::{ObjectDevice, PartCache, PartCacheOptions, Store, StoreOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const KIB: usize = 1 << 10;
/// A body that no test receives.
const ENDLESS: u64 = 3 << 30;

/// A server that gives the same answer to every request.
struct Server {
    address: SocketAddr,
    sent_bytes: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(head: &'static str, body_bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sent_bytes, is_stopped) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (sent, stopped) = (sent_bytes.clone(), is_stopped.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // The client hangs up when it has seen enough.
                let _ = answer(stream.unwrap(), head, body_bytes, &sent);
            }
        });
        Self {
            address,
            sent_bytes,
            is_stopped,
            thread: Some(thread),
        }
    }

    /// Opens the object with a part cache; returns the failure.
    fn open_fails(&self) -> Error {
        let url = format!("http://{}/disk.img", self.address).parse().unwrap();
        let store = Store::open(&url, &StoreOptions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = PartCacheOptions {
            folder: folder.path().to_owned(),
            size_bytes: 1 << 30,
        };
        let cache = |url: &str, tag: &str, len| PartCache::open(&options, url, tag, len).ok();
        let error = ObjectDevice::open(store, cache).err().unwrap();
        // What the host's buffers of the connections take counts as sent.
        let sent = self.sent_bytes.load(Ordering::SeqCst);
        assert!(sent <= 256 << 20, "{sent}");
        error
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn answer(stream: TcpStream, head: &str, body_bytes: u64, sent: &AtomicU64) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut stream = lines.into_inner();
    stream.write_all(head.replace('\n', "\r\n").as_bytes())?;
    let piece = [7; 64 * KIB];
    let mut left = body_bytes;
    while left > 0 {
        let count = left.min(piece.len() as u64);
        stream.write_all(&piece[..count as usize])?;
        sent.fetch_add(count, Ordering::SeqCst);
        left -= count;
    }
    Ok(())
}

#[test]
fn impossible_length_of_an_object_is_refused() {
    let server = Server::start(
        "HTTP/1.1 206 Partial Content\nETag: \"a\"\nConnection: close\n\
         Content-Range: bytes 0-262143/9223372036854775807\nContent-Length: 262144\n\n",
        256 << 10,
    );
    let error = server.open_fails();
    assert_eq!(error.errno(), Errno::FBIG, "{error}");
}

#[test]
fn body_beyond_its_range_is_not_collected() {
    let server = Server::start(
        "HTTP/1.1 206 Partial Content\nConnection: close\n\
         Content-Range: bytes 0-262143/10737418240\nContent-Length: 3221225472\n\n",
        ENDLESS,
    );
    let error = server.open_fails();
    assert_eq!(error.errno(), Errno::IO);
    let text = error.to_string();
    assert!(text.contains("more bytes than asked for"), "{text}");
}

#[test]
fn endless_reason_of_an_error_is_not_collected() {
    let server = Server::start(
        "HTTP/1.1 403 Forbidden\nConnection: close\nContent-Length: 3221225472\n\n",
        ENDLESS,
    );
    let text = server.open_fails().to_string();
    assert!(text.contains("more bytes than asked for"), "{text}");
}
