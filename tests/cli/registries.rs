//! Pulls from registries that are busy, lose connections or stall.

use super::TestDir;
use super::container::{PLATFORM, file, layer, layout};
use crate::support::tools::text;
use folio_tree::Compression;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::channel;

/// Bytes of the large file.
const LARGE_BYTES: usize = 600_000;

/// A request: its path, the start of its range, and how many requests for that path precede it.
struct Request<'a> {
    path: &'a str,
    start: usize,
    number: usize,
}

impl Request<'_> {
    /// Whether this is the first request for the large layer, of which `body` is the content.
    fn is_first_of_large(&self, body: &[u8]) -> bool {
        self.number == 0 && body.len() > LARGE_BYTES
    }
}

/// Serves a layout. `answer` writes the answer to a request, whose whole content is given, and
/// returns true; else the content is sent, from the start of the range on.
fn serve(
    folder: PathBuf,
    mut answer: impl FnMut(&Request<'_>, &[u8], &mut TcpStream) -> bool + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut paths: Vec<String> = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            let line = lines.next().unwrap().unwrap();
            let headers = lines.map_while(Result::ok);
            let headers: Vec<_> = headers.take_while(|line| !line.is_empty()).collect();
            let range = headers.iter().find_map(|line| {
                let line = line.to_ascii_lowercase();
                let range = line.strip_prefix("range: bytes=")?;
                range.trim_end_matches('-').parse().ok()
            });
            let path = line.split(' ').nth(1).unwrap();
            let request = Request {
                path,
                start: range.unwrap_or(0),
                number: paths.iter().filter(|known| *known == path).count(),
            };
            let digest = match path.rsplit('/').next().unwrap() {
                "app" => {
                    let index = std::fs::read(folder.join("index.json")).unwrap();
                    let index: Value = serde_json::from_slice(&index).unwrap();
                    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
                }
                digest => digest.to_owned(),
            };
            let body = std::fs::read(folder.join(digest.replace("sha256:", "blobs/sha256/")));
            let body = body.unwrap();
            if !answer(&request, &body, &mut client) {
                let start = request.start;
                let (status, len) = (if start > 0 { "206 Rest" } else { "200 OK" }, body.len());
                let range = format!("Content-Range: bytes {start}-{}/{len}\r\n", len - 1);
                send(&mut client, status, &range, len - start, &body[start..]);
            }
            paths.push(path.to_owned());
        }
    });
    host
}

/// Sends an answer that states `len` bytes.
fn send(client: &mut TcpStream, status: &str, headers: &str, len: usize, body: &[u8]) {
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n{headers}\r\n");
    // A client that has seen enough may close its end.
    let sent = client.write_all(head.as_bytes());
    let _ = sent.and_then(|()| client.write_all(body));
}

/// Writes a layout with a small and a large file.
fn large_layout(dir: &TestDir) {
    let large = "x".repeat(LARGE_BYTES);
    let layers = [
        layer(&[file("small", "s")]),
        layer(&[file("large", &large)]),
    ];
    layout(&dir.path("lay"), &layers, &[Compression::None]);
}

fn pull(dir: &TestDir, host: &str) -> Child {
    let source = format!("registry:{host}/team/image:app");
    let words = ["cp", "-a", &source, "a.img:/", "--create", "8M"];
    let mut command = dir.command(&[&words[..], &PLATFORM[..]].concat());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[track_caller]
fn assert_pulled(dir: &TestDir, output: &Output) {
    assert!(output.status.success(), "{}", text(output));
    assert_eq!(dir.ok(&["cat", "a.img:/small"]), "s");
    assert_eq!(dir.ok(&["cat", "a.img:/large"]).len(), LARGE_BYTES);
}

#[test]
fn busy_registry_is_asked_again() {
    let dir = TestDir::new();
    large_layout(&dir);
    let host = serve(dir.path("lay"), |request, _, client| {
        let status = match request.number {
            // Not even an answer.
            0 if request.path.ends_with("app") => return true,
            0 | 1 => "429 Too Many Requests",
            2 => "503 Service Unavailable",
            _ => return false,
        };
        send(client, status, "Retry-After: 0\r\n", 0, b"");
        true
    });
    assert_pulled(&dir, &pull(&dir, &host).wait_with_output().unwrap());
    // One that asks for patience is not waited for.
    let host = serve(dir.path("lay"), |_, _, client| {
        send(client, "429 Too Many", "Retry-After: 3600\r\n", 0, b"");
        true
    });
    let output = pull(&dir, &host).wait_with_output().unwrap();
    let printed = text(&output);
    assert!(
        printed.contains("HTTP status 429; try again in 3600 seconds"),
        "{printed}"
    );
}

#[test]
fn lost_connection_continues_by_range() {
    let dir = TestDir::new();
    large_layout(&dir);
    let (sender, starts) = channel();
    let host = serve(dir.path("lay"), move |request, body, client| {
        if body.len() > LARGE_BYTES {
            sender.send(request.start).unwrap();
        }
        if request.is_first_of_large(body) {
            let half = &body[..body.len() / 2];
            send(client, "200 OK", "", body.len(), half);
            return true;
        }
        false
    });
    assert_pulled(&dir, &pull(&dir, &host).wait_with_output().unwrap());
    let starts: Vec<_> = starts.try_iter().collect();
    assert!(
        starts.len() == 2 && starts[0] == 0 && starts[1] > 0,
        "{starts:?}"
    );
}

#[test]
fn lost_connection_without_ranges_is_named() {
    let dir = TestDir::new();
    large_layout(&dir);
    let host = serve(dir.path("lay"), |_, body, client| {
        let sent = if body.len() > LARGE_BYTES {
            100_000
        } else {
            body.len()
        };
        send(client, "200 OK", "", body.len(), &body[..sent]);
        true
    });
    let output = pull(&dir, &host).wait_with_output().unwrap();
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let said = ["connection lost after", "the registry cannot continue it"];
    assert!(
        said.iter().all(|words| printed.contains(words)),
        "{printed}"
    );
    assert!(!printed.contains("truncated"), "{printed}");
    assert!(!dir.path("a.img").exists());
}

#[test]
fn layer_longer_than_its_descriptor_is_refused() {
    let dir = TestDir::new();
    large_layout(&dir);
    let host = serve(dir.path("lay"), |_, body, client| {
        if body.len() < LARGE_BYTES {
            return false;
        }
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = [b"10000\r\n", &[0; 0x10000][..], b"\r\n"].concat();
        let mut sent = client.write_all(chunked.as_bytes());
        // Without end, until the client hangs up.
        while sent.is_ok() {
            sent = client.write_all(&chunk);
        }
        true
    });
    let output = pull(&dir, &host).wait_with_output().unwrap();
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("that its manifest states"), "{printed}");
}

#[test]
fn stalled_registry_ends_at_the_first_signal() {
    let dir = TestDir::new();
    large_layout(&dir);
    let (sender, stalled) = channel();
    let host = serve(dir.path("lay"), move |request, body, client| {
        if request.is_first_of_large(body) {
            let half = &body[..body.len() / 2];
            send(client, "200 OK", "", body.len(), half);
            sender.send(client.try_clone().unwrap()).unwrap();
            return true;
        }
        false
    });
    let child = pull(&dir, &host);
    // The connection stays open.
    let _open = stalled.recv().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(!dir.path("a.img").exists());
}
