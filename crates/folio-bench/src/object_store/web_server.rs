//! A web server with the latency of a remote store: GET and HEAD with ranges, of the files in one
//! folder. It answers `s3://` as well, since a GET names bucket and key in its path.

use super::requests::{GET, RequestMeter};
use crate::outcome::{Context, Outcome};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Bytes that are sent at a time.
const PIECE_BYTES: usize = 256 << 10;

struct Shared {
    folder: PathBuf,
    meter: RequestMeter,
    is_stopped: AtomicBool,
}

/// The server; it stops when dropped.
pub(crate) struct WebServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// The first lines of a request.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    is_head: bool,
    name: String,
    /// First byte, and the last one if it is given.
    range: Option<(u64, Option<u64>)>,
}

impl WebServer {
    /// Serves the files in `folder` on loopback.
    pub(crate) fn start(folder: &Path, meter: &RequestMeter) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").at("listen")?;
        let address = listener.local_addr().at("listen")?;
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            meter: meter.clone(),
            is_stopped: AtomicBool::new(false),
        });
        let serving = shared.clone();
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.is_stopped.load(Ordering::Acquire) {
                    return;
                }
                let shared = serving.clone();
                // Ends when the client closes the connection.
                thread::spawn(move || shared.serve(&stream));
            }
        });
        Ok(Self {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Returns the URL of a file.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        // Wakes the acceptor.
        if TcpStream::connect(self.address).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    // The latency is what is modeled.
    #[allow(clippy::disallowed_methods)]
    fn serve(&self, stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut lines = BufReader::new(stream);
        while let Ok(Some(request)) = Request::read(&mut lines) {
            let running = self.meter.begin();
            thread::sleep(GET);
            let answered = self.answer(&request, stream);
            drop(running);
            if answered.is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn answer(&self, request: &Request, mut stream: &TcpStream) -> io::Result<()> {
        let Ok(file) = File::open(self.folder.join(&request.name)) else {
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        };
        let len_bytes = file.metadata()?.len();
        let (status, start, end) = match request.range {
            Some((start, last)) if start < len_bytes => {
                let end = last.map_or(len_bytes, |last| len_bytes.min(last.saturating_add(1)));
                ("206 Partial Content", start, end.max(start))
            }
            Some(_) => ("416 Range Not Satisfiable", 0, 0),
            None => ("200 OK", 0, len_bytes),
        };
        let mut head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\naccept-ranges: bytes\r\netag: \"1\"\r\n\
             last-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
            end - start
        );
        if request.range.is_some() {
            let last = end.saturating_sub(1);
            head += &format!("content-range: bytes {start}-{last}/{len_bytes}\r\n");
        }
        head += "\r\n";
        stream.write_all(head.as_bytes())?;
        if request.is_head {
            return Ok(());
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = start;
        while at < end {
            let count = (PIECE_BYTES as u64).min(end - at) as usize;
            file.read_exact_at(&mut piece[..count], at)?;
            stream.write_all(&piece[..count])?;
            self.meter.sent(count as u64);
            at += count as u64;
        }
        Ok(())
    }
}

impl Request {
    /// Reads the next request; none at the end of the connection.
    fn read(lines: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let mut words = line.split_ascii_whitespace();
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Ok(None);
        };
        let path = path.split('?').next().unwrap_or_default();
        let mut request = Self {
            is_head: method == "HEAD",
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            range: None,
        };
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            let line = line.trim();
            if line.is_empty() {
                return Ok(Some(request));
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("range")
            {
                request.range = range(value.trim());
            }
        }
    }
}

fn range(value: &str) -> Option<(u64, Option<u64>)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_file_and_range() {
        let mut text = &b"GET /bucket/disk?x=1 HTTP/1.1\r\nRange: bytes=5-9\r\n\r\n"[..];
        let expected = Request {
            is_head: false,
            name: "disk".to_owned(),
            range: Some((5, Some(9))),
        };
        assert_eq!(Request::read(&mut text).unwrap(), Some(expected));
        assert_eq!(Request::read(&mut text).unwrap(), None);
        assert_eq!(range("bytes=7-"), Some((7, None)));
    }
}
