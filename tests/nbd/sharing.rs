//! Several connections on one device, many requests on one connection, signals and locks.

use super::support::requires;
use super::support::tools::{command, qemu_check, text};
use super::wire::*;
use super::{NbdServer, bytes, image, stderr_of_failure};
use std::collections::HashSet;
use std::process::Command;
use tempfile::TempDir;

#[test]
fn flush_on_one_connection_covers_all() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let mut clients: Vec<_> = (0..4)
        .map(|_| RawClient::structured(&server.socket))
        .collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for block in 0..16u64 {
            client.request(WRITE, 0, block, (number as u64 * 16 + block) << 16, 65536);
            client.send(&[number as u8 + 1; 65536]);
        }
    }
    for client in &mut clients {
        let cookies: HashSet<u64> = (0..16)
            .map(|_| client.simple_reply())
            .map(|(_, cookie)| cookie)
            .collect();
        assert_eq!(cookies.len(), 16);
    }
    // Each connection sees the writes of all connections.
    clients[0].request(READ, 0, 1, 3 << 20, 512);
    assert!(
        clients[0].chunk().payload[8..]
            .iter()
            .all(|byte| *byte == 4)
    );
    clients[3].request(FLUSH, 0, 2, 0, 0);
    assert_eq!(clients[3].simple_reply(), (0, 2));
    // The state after a power cut: the current bytes of the host's file. A copy, because the image
    // is locked.
    let copy = folder.path().join("copy.qcow2");
    std::fs::copy(&disk, &copy).unwrap();
    for number in 0..4 {
        assert!(
            bytes(&copy, number << 20, 1 << 20)
                .iter()
                .all(|byte| u64::from(*byte) == number + 1)
        );
    }
    server.stop();
    if super::support::Need::Tool("qemu-img").met().is_ok() {
        qemu_check(&disk);
    }
}

#[test]
fn all_requests_in_flight_are_answered() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let mut client = RawClient::structured(&server.socket);
    let count = 2000u64;
    let mut reader = RawClient(client.0.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for cookie in 0..count {
                // Quick writes and slower requests in one stream.
                match cookie % 5 {
                    0 => client.request(FLUSH, 0, cookie, 0, 0),
                    1 | 2 => {
                        client.request(WRITE, 0, cookie, (8 << 20) + cookie * 4096, 4096);
                        client.send(&[cookie as u8; 4096]);
                    }
                    3 => client.request(WRITE_ZEROES, 0, cookie, 4 << 20, 65536),
                    _ => client.request(WRITE_ZEROES, FUA, cookie, (8 << 20) + cookie * 4096, 4096),
                }
            }
        });
        let answered: HashSet<_> = (0..count).map(|_| reader.simple_reply()).collect();
        assert_eq!(answered.len(), count as usize);
        assert!(answered.iter().all(|(error, _)| *error == 0));
    });
    server.stop();
    for cookie in (0..count).filter(|cookie| matches!(cookie % 5, 1 | 2)) {
        let block = bytes(&disk, (8 << 20) + cookie * 4096, 4096);
        assert!(block.iter().all(|byte| *byte == cookie as u8), "{cookie}");
    }
}

#[test]
fn signal_stops_the_server_after_pending_requests() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let idle = RawClient::greet(&server.socket);
    let mut client = RawClient::structured(&server.socket);
    client.request(WRITE, 0, 1, 0, 4096);
    client.send(&[0x77; 4096]);
    assert_eq!(client.simple_reply(), (0, 1));
    server.stop();
    client.expect_close();
    idle.0.set_read_timeout(None).unwrap();
    idle.expect_close();
    assert!(bytes(&disk, 0, 4096).iter().all(|byte| *byte == 0x77));
}

#[test]
fn second_writer_is_refused() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let folio = || Command::new(env!("CARGO_BIN_EXE_folio"));
    let socket = folder.path().join("second.sock");
    let stderr = stderr_of_failure(
        folio()
            .args(["serve", "nbd"])
            .arg(&disk)
            .arg("--socket")
            .arg(&socket),
    );
    assert!(stderr.contains("in use by another process"), "{stderr}");
    assert!(!socket.exists());
    // The socket of a running server is not replaced.
    let other = image(&folder, "other.qcow2");
    let stderr = stderr_of_failure(
        folio()
            .args(["serve", "nbd"])
            .arg(&other)
            .arg("--socket")
            .arg(&server.socket),
    );
    assert!(stderr.contains("in use"), "{stderr}");
    RawClient::structured(&server.socket).still_works();
    server.stop();
}

#[test]
fn qemu_honors_the_image_lock() {
    requires!(tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let output = command("qemu-io")
        .args(["-c", "write 0 4k"])
        .arg(&disk)
        .output()
        .unwrap();
    assert!(text(&output).contains("lock"), "{}", text(&output));
    server.stop();
}

#[test]
fn partition_is_served_on_a_tcp_port() {
    requires!(tool("nbdinfo"), tool("sfdisk"));
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.raw");
    let mut sfdisk = command("sh");
    sfdisk
        .args([
            "-c",
            "printf 'label: gpt\\nsize=4MiB\\nsize=8MiB\\n' | sfdisk -q \"$0\"",
        ])
        .arg(&disk);
    super::support::tools::succeed(&mut sfdisk);
    let second = folder.path().join("disk.raw@2");
    let server = NbdServer::start(&second, &["--port", "0", "--read-only"]);
    assert!(server.uri.starts_with("nbd://127.0.0.1:"), "{}", server.uri);
    let stderr = super::support::tools::run("nbdinfo", ["--size", &server.uri]);
    assert_eq!(stderr.trim(), (8 << 20).to_string());
    server.signal();
    assert!(server.wait().success());
}

#[test]
fn invalid_command_lines_are_refused() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let folio = |words: &[&str]| {
        stderr_of_failure(
            Command::new(env!("CARGO_BIN_EXE_folio"))
                .args(["serve", "nbd"])
                .arg(&disk)
                .args(words),
        )
    };
    assert!(folio(&[]).contains("--socket"));
    assert!(folio(&["--socket", "x", "--port", "1"]).contains("cannot be used with"));
    assert!(folio(&["--socket", "x", "--bind", "::1"]).contains("cannot be used with"));
    assert!(folio(&["-o", "ro", "--port", "0"]).contains("nothing is mounted here"));
    assert!(
        folio(&["--socket", "/no/such/folder/x"])
            .contains("/no/such/folder/x: listen: No such file")
    );
    assert!(folio(&["--port", "0", "--export", &"x".repeat(5000)]).contains("4096"));
}
