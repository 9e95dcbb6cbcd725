//! Clients that violate the protocol: each gets an error or a closed connection, and other clients
//! are still served.

use super::wire::*;
use super::{NbdServer, bytes, image};
use std::io::Write;
use std::os::unix::net::UnixStream;
use tempfile::TempDir;

#[test]
fn invalid_handshake_closes_the_connection() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &[]);
    // Unknown flags.
    let mut client = RawClient(UnixStream::connect(&server.socket).unwrap());
    client.take(18);
    client.send(&[0, 0, 1, 3]);
    client.expect_close();
    // A wrong magic number.
    let mut client = RawClient::greet(&server.socket);
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    client.expect_close();
    // An option with an excessive length, whose bytes are never sent.
    let mut client = RawClient::greet(&server.socket);
    client.send(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    client.expect_close();
    // An unknown export, by the option without an error reply; also with a long name.
    for name in [&b"other"[..], &[b'x'; 100_000]] {
        let mut client = RawClient::greet(&server.socket);
        let len = (name.len() as u32).to_be_bytes();
        let option = [b"IHAVEOPT", &EXPORT_NAME.to_be_bytes()[..], &len, name].concat();
        // The server may close before it has read all.
        let _ = client.0.write_all(&option);
        client.expect_close();
    }
    // A long option that the server can skip.
    let mut client = RawClient::greet(&server.socket);
    assert_eq!(client.option(GO, &[0; 500_000])[0].0, (1 << 31) + 9);
    assert_eq!(client.option(LIST, &[]).len(), 2);
    // Wrong lengths inside an option.
    assert_eq!(client.option(GO, &[0xff; 6])[0].0, (1 << 31) + 3);
    assert_eq!(client.option(STRUCTURED_REPLY, &[])[0].0, 1);
    assert_eq!(
        client.option(SET_META_CONTEXT, b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0")[0].0,
        (1 << 31) + 3
    );
    // Too many options.
    let mut client = RawClient::greet(&server.socket);
    for _ in 0..64 {
        assert_eq!(client.option(LIST, &[]).len(), 2);
    }
    client.expect_close();
    RawClient::structured(&server.socket).still_works();
    server.stop();
}

#[test]
fn invalid_requests_get_errors() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let before = std::fs::read(&disk).unwrap();
    let server = NbdServer::new(&disk, &[]);
    let mut client = RawClient::structured(&server.socket);
    let end = 64 << 20;
    let invalid = 22;
    let no_space = 28;
    for (number, ((command, flags), offset, len, error)) in [
        ((READ, 0), end, 1, invalid),
        ((READ, 0), u64::MAX, 1, invalid),
        ((READ, 0), u64::MAX - 1, u32::MAX, invalid),
        ((READ, 0), 0, (32 << 20) + 1, invalid),
        ((READ, 0), 0, u32::MAX, invalid),
        ((READ, 0x8000), 0, 512, invalid),
        ((READ, NO_HOLE), 0, 512, invalid),
        ((TRIM, 0), end - 1, 2, invalid),
        ((TRIM, 0), u64::MAX, u32::MAX, invalid),
        ((WRITE_ZEROES, 0), 0, u32::MAX, no_space),
        ((WRITE_ZEROES, DF), 0, 512, invalid),
        ((BLOCK_STATUS, 0), end, 1, invalid),
        ((BLOCK_STATUS, 0), 0, u32::MAX, invalid),
        ((CACHE, 0), end, 1, invalid),
        ((FLUSH, REQ_ONE), 0, 0, invalid),
        ((99, 0), 0, 0, invalid),
        ((u16::MAX, 0), 0, u32::MAX, invalid),
    ]
    .into_iter()
    .enumerate()
    {
        let cookie = number as u64 + 100;
        client.request(command, flags, cookie, offset, len);
        assert_eq!(
            client.error(cookie),
            error,
            "{command} {flags} {offset} {len}"
        );
    }
    // The payload of a refused write is skipped.
    for (cookie, flags, offset, len, error) in [
        (1, 0, end - 1, 4096, no_space),
        (2, DF, 0, 4096, invalid),
        (3, 0, 0, (32 << 20) + 512, invalid),
    ] {
        client.request(WRITE, flags, cookie, offset, len);
        client.send(&vec![0x66; len as usize]);
        assert_eq!(client.error(cookie), error);
    }
    client.still_works();
    server.stop();
    assert!(
        std::fs::read(&disk).unwrap() == before,
        "the image has changed"
    );
}

#[test]
fn invalid_request_magic_closes_the_connection() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &[]);
    let mut client = RawClient::structured(&server.socket);
    client.send(&[0x66; 28]);
    client.expect_close();
    // After a valid request, which is answered.
    let mut client = RawClient::structured(&server.socket);
    client.send(&[request(READ, 0, 5, 0, 512), vec![0; 28]].concat());
    client.expect_close();
    RawClient::structured(&server.socket).still_works();
    server.stop();
}

#[test]
fn client_disconnect_midway_affects_no_other() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let mut other = RawClient::structured(&server.socket);
    let whole = [request(WRITE, 0, 1, 0, 4096), vec![0x66; 4096]].concat();
    for cut in [0, 1, 27, 28, 29, 4096, whole.len() - 1] {
        let mut client = RawClient::structured(&server.socket);
        client.send(&whole[..cut]);
        drop(client);
        let mut client = RawClient::greet(&server.socket);
        client.send(&b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0"[..cut.min(21)]);
        drop(client);
        other.still_works();
    }
    // A long read whose client disconnects.
    for flags in [0, DF] {
        let mut client = RawClient::structured(&server.socket);
        client.request(READ, flags, 1, 48 << 20, 16 << 20);
        client.take(10);
        drop(client);
    }
    other.still_works();
    server.stop();
    assert!(
        bytes(&disk, 0, 4096).iter().all(|byte| *byte == 0),
        "an incomplete write has changed the disk"
    );
}

#[test]
fn client_that_takes_no_replies_blocks_no_other() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &[]);
    let mut silent = RawClient::structured(&server.socket);
    silent.0.set_nonblocking(true).unwrap();
    // As many long reads as fit into the socket; no reply is read.
    let read = request(READ, DF, 1, 1 << 20, 1 << 20);
    while std::io::Write::write(&mut silent.0, &read).is_ok_and(|count| count == read.len()) {}
    RawClient::structured(&server.socket).still_works();
    drop(silent);
    RawClient::structured(&server.socket).still_works();
    server.stop();
}

#[test]
fn connections_over_the_limit_are_closed() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &[]);
    let mut clients: Vec<_> = (0..64)
        .map(|_| RawClient::structured(&server.socket))
        .collect();
    RawClient(UnixStream::connect(&server.socket).unwrap()).expect_close();
    clients.iter_mut().for_each(RawClient::still_works);
    server.stop();
}

/// Sends reads of 1 MiB, far more than fit into a socket, and receives nothing.
fn stick(socket: &std::path::Path) -> RawClient {
    let mut client = RawClient::structured(socket);
    for cookie in 0..48 {
        client.send(&request(READ, 0, cookie, 1 << 20, 1 << 20));
    }
    client
}

#[test]
fn stuck_clients_shut_no_client_out() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &[]);
    let mut stuck = Vec::new();
    for _ in 0..40 {
        stuck.push(stick(&server.socket));
        RawClient::structured(&server.socket).still_works();
    }
    drop(stuck);
    RawClient::structured(&server.socket).still_works();
    server.stop();
}

#[test]
fn client_that_takes_no_replies_is_disconnected() {
    use folio_export::nbd::{Export, Limits, Listener, Server};
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("sock");
    let options = folio::block::OpenOptions::default();
    let export = Export {
        device: folio::block::open(image(&folder, "disk.qcow2"), &options).unwrap(),
        name: String::new(),
        description: None,
        read_only: false,
    };
    let limits = Limits {
        send_timeout: std::time::Duration::from_millis(100),
        ..Limits::default()
    };
    let (sender, reports) = std::sync::mpsc::channel();
    let report = move |message: &str| sender.send(message.to_owned()).unwrap();
    let server = Server::new(Listener::unix(&socket).unwrap(), export, limits, report).unwrap();
    let stopper = server.stopper();
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve().unwrap());
        let mut client = stick(&socket);
        let report = reports.recv().unwrap();
        assert!(report.contains("client 1: takes no replies"), "{report}");
        // What was sent before is still in the socket.
        let mut received = Vec::new();
        let _ = std::io::Read::read_to_end(&mut client.0, &mut received);
        assert!(received.len() < 48 << 20);
        RawClient::structured(&socket).still_works();
        stopper.stop();
    });
}
