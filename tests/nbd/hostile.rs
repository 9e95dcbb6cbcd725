//! Clients that break the rules: each finds an error or a closed connection, and others are served
//! on.

use super::wire::*;
use super::{Served, bytes, image};
use std::os::unix::net::UnixStream;
use tempfile::TempDir;

#[test]
fn bytes_that_are_no_handshake_close_the_connection() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.qcow2"), &[]);
    // Flags that nobody knows.
    let mut wire = Wire(UnixStream::connect(&served.socket).unwrap());
    wire.take(18);
    wire.send(&[0, 0, 1, 3]);
    wire.ends();
    // No magic number.
    let mut wire = Wire::greet(&served.socket);
    wire.send(b"GET / HTTP/1.1\r\n\r\n");
    wire.ends();
    // An option longer than all: its bytes never come.
    let mut wire = Wire::greet(&served.socket);
    wire.send(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    wire.ends();
    // An export that is not there, by the option that cannot be refused; a long name, too.
    for name in [&b"other"[..], &[b'x'; 100_000]] {
        let mut wire = Wire::greet(&served.socket);
        wire.send_option(EXPORT_NAME, name);
        wire.ends();
    }
    // A long option that can be left out.
    let mut wire = Wire::greet(&served.socket);
    assert_eq!(wire.option(GO, &[0; 500_000])[0].0, (1 << 31) + 9);
    assert_eq!(wire.option(LIST, &[]).len(), 2);
    // Lengths inside an option that lie.
    assert_eq!(wire.option(GO, &[0xff; 6])[0].0, (1 << 31) + 3);
    assert_eq!(wire.option(STRUCTURED_REPLY, &[])[0].0, 1);
    assert_eq!(
        wire.option(SET_META_CONTEXT, b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0")[0].0,
        (1 << 31) + 3
    );
    // Options without end.
    let mut wire = Wire::greet(&served.socket);
    for _ in 0..64 {
        assert_eq!(wire.option(LIST, &[]).len(), 2);
    }
    wire.ends();
    Wire::structured(&served.socket).still_works();
    served.stop();
}

#[test]
fn requests_outside_the_rules_get_errors() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let before = std::fs::read(&disk).unwrap();
    let served = Served::new(&disk, &[]);
    let mut wire = Wire::structured(&served.socket);
    let end = 64 << 20;
    let invalid = 22;
    let no_space = 28;
    for (number, (command, offset, len, error)) in [
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
        wire.request(command, cookie, offset, len);
        assert_eq!(wire.error(cookie), error, "{command:?} {offset} {len}");
    }
    // The payload of a write that is refused is no request.
    for (cookie, flags, offset, len, error) in [
        (1, 0, end - 1, 4096, no_space),
        (2, DF, 0, 4096, invalid),
        (3, 0, 0, (32 << 20) + 512, invalid),
    ] {
        wire.request((WRITE, flags), cookie, offset, len);
        wire.send(&vec![0x66; len as usize]);
        assert_eq!(wire.error(cookie), error);
    }
    wire.still_works();
    served.stop();
    assert!(
        std::fs::read(&disk).unwrap() == before,
        "nothing was changed"
    );
}

#[test]
fn bytes_that_are_no_request_close_the_connection() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.qcow2"), &[]);
    let mut wire = Wire::structured(&served.socket);
    wire.send(&[0x66; 28]);
    wire.ends();
    // Behind requests that are fine, which are answered.
    let mut wire = Wire::structured(&served.socket);
    wire.send(&[request((READ, 0), 5, 0, 512), vec![0; 28]].concat());
    wire.ends();
    Wire::structured(&served.socket).still_works();
    served.stop();
}

#[test]
fn clients_that_go_midway_leave_the_others_alone() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let mut other = Wire::structured(&served.socket);
    let whole = [request((WRITE, 0), 1, 0, 4096), vec![0x66; 4096]].concat();
    for cut in [0, 1, 27, 28, 29, 4096, whole.len() - 1] {
        let mut wire = Wire::structured(&served.socket);
        wire.send(&whole[..cut]);
        drop(wire);
        let mut wire = Wire::greet(&served.socket);
        wire.send(&b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0"[..cut.min(21)]);
        drop(wire);
        other.still_works();
    }
    // A long read that nobody waits for.
    for flags in [0, DF] {
        let mut wire = Wire::structured(&served.socket);
        wire.request((READ, flags), 1, 48 << 20, 16 << 20);
        wire.take(10);
        drop(wire);
    }
    other.still_works();
    served.stop();
    assert!(
        bytes(&disk, 0, 4096).iter().all(|byte| *byte == 0),
        "a write that never came whole"
    );
}

#[test]
fn a_client_that_takes_no_replies_stops_nobody() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.qcow2"), &[]);
    let mut deaf = Wire::structured(&served.socket);
    deaf.0.set_nonblocking(true).unwrap();
    // As many long reads as the socket holds; no reply is read.
    let read = request((READ, DF), 1, 1 << 20, 1 << 20);
    while std::io::Write::write(&mut deaf.0, &read).is_ok_and(|count| count == read.len()) {}
    Wire::structured(&served.socket).still_works();
    drop(deaf);
    Wire::structured(&served.socket).still_works();
    served.stop();
}

#[test]
fn more_connections_than_there_may_be_are_turned_away() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.qcow2"), &[]);
    let mut wires: Vec<_> = (0..64).map(|_| Wire::structured(&served.socket)).collect();
    Wire(UnixStream::connect(&served.socket).unwrap()).ends();
    wires.iter_mut().for_each(Wire::still_works);
    served.stop();
}
