//! Replies byte by byte, where libraries would hide details.

use super::wire::*;
use super::{NbdServer, bytes, image};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

#[test]
fn options_are_answered_in_order() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &["--export", "x"]);
    let mut client = RawClient::greet(&server.socket);
    assert_eq!(
        client.option(LIST, &[]),
        [(2, b"\0\0\0\x01x".to_vec()), (1, vec![])]
    );
    assert_eq!(
        client.option(STARTTLS, &[]),
        [((1 << 31) + 1, b"TLS is not supported".to_vec())]
    );
    assert_eq!(client.option(0xffff, b"what")[0].0, (1 << 31) + 1);
    // Unknown export name; no structured replies negotiated; data with wrong lengths.
    assert_eq!(client.option(INFO, &[0; 6])[0].0, (1 << 31) + 6);
    assert_eq!(client.option(SET_META_CONTEXT, &[0; 8])[0].0, (1 << 31) + 3);
    assert_eq!(client.option(GO, b"\0\0\0\x09x\0\0")[0].0, (1 << 31) + 3);
    assert_eq!(
        client.option(GO, b"\0\0\0\x01x\xff\xff")[0].0,
        (1 << 31) + 3
    );
    // Name and description on request; block sizes always; the export last.
    let replies = client.option(INFO, b"\0\0\0\x01x\0\x02\0\x01\0\x02");
    let kinds: Vec<_> = replies
        .iter()
        .map(|(kind, data)| (*kind, data.get(1).copied()))
        .collect();
    assert_eq!(
        kinds,
        [
            (3, Some(1)),
            (3, Some(2)),
            (3, Some(3)),
            (3, Some(0)),
            (1, None)
        ]
    );
    assert_eq!(replies[1].1[2..], *b"disk.qcow2");
    // Flags: flush, FUA, trim, zeroes, several connections, cache, fast zero; DF only with
    // structured replies.
    assert_eq!(replies[3].1[2..10], (64 * MIB).to_be_bytes());
    assert_eq!(replies[3].1[10..], 0b1101_0110_1101u16.to_be_bytes());
    assert_eq!(client.option(ABORT, &[]), [(1, vec![])]);
    client.expect_close();
    server.stop();
}

#[test]
fn export_name_option_gets_simple_replies() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let mut client = RawClient::simple(&server.socket);
    client.request(READ, 0, 1, MIB - 4, 8);
    assert_eq!(
        (client.simple_reply(), client.take(8)),
        ((0, 1), b"\0\0\0\0\x11\x11\x11\x11".to_vec())
    );
    // Longer than the server's buffer, in one reply.
    client.request(READ, 0, 2, 0, 8 << 20);
    assert_eq!(client.simple_reply(), (0, 2));
    assert!(client.take(8 << 20) == bytes_of_disk(0, 8 << 20));
    client.request(READ, 0, 3, 64 * MIB - 1, 2);
    assert_eq!(client.simple_reply(), (22, 3));
    client.request(BLOCK_STATUS, 0, 4, 0, 4096);
    assert_eq!(client.simple_reply(), (22, 4));
    client.request(READ, DF, 5, 0, 4096);
    assert_eq!(client.simple_reply(), (22, 5));
    client.request(WRITE, FUA, 6, 5, 3);
    client.send(b"abc");
    assert_eq!(client.simple_reply(), (0, 6));
    client.request(DISCONNECT, 0, 0, 0, 0);
    client.expect_close();
    server.stop();
    assert_eq!(bytes(&disk, 4, 5), b"\0abc\0");
}

/// The contents of [`image`].
fn bytes_of_disk(offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| match at / MIB {
        1 | 2 => 0x11,
        63 => 0x22,
        _ => 0,
    };
    (offset..offset + len as u64).map(byte).collect()
}

#[test]
fn client_without_no_zeroes_gets_padding() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.raw"), &["--read-only"]);
    let mut client = RawClient(std::os::unix::net::UnixStream::connect(&server.socket).unwrap());
    client.take(18);
    client.send(&[0, 0, 0, 0]);
    client.send_option(EXPORT_NAME, &[]);
    assert_eq!(client.number(8), 64 * MIB);
    assert_eq!(client.number(2), 0b101_0000_1111);
    assert!(client.take(124).iter().all(|byte| *byte == 0));
    for (cookie, command) in [(1, WRITE), (2, TRIM), (3, WRITE_ZEROES)] {
        client.request(command, 0, cookie, 0, 4096);
        if command == WRITE {
            client.send(&[7; 4096]);
        }
        assert_eq!(client.simple_reply(), (1, cookie), "EPERM");
    }
    client.request(FLUSH, 0, 4, 0, 0);
    assert_eq!(client.simple_reply(), (0, 4));
    server.stop();
}

#[test]
fn reads_have_holes_or_one_chunk_with_df() {
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &[]);
    let mut client = RawClient::structured(&server.socket);
    for flags in [0, DF] {
        client.request(READ, flags, 9, MIB / 2, 32 << 20);
        let mut got = vec![0xee; 32 << 20];
        let mut content = 0;
        loop {
            let chunk = client.chunk();
            assert_eq!(chunk.cookie, 9);
            let at = if chunk.kind == 0 {
                0
            } else {
                (chunk.number(0, 8) - MIB / 2) as usize
            };
            match chunk.kind {
                0 => {}
                1 => got[at..at + chunk.payload.len() - 8].copy_from_slice(&chunk.payload[8..]),
                2 => got[at..at + chunk.number(8, 4) as usize].fill(0),
                kind => panic!("{kind}"),
            }
            content += usize::from(chunk.kind != 0);
            if chunk.is_last {
                break;
            }
        }
        assert!(got == bytes_of_disk(MIB / 2, 32 << 20));
        assert!(
            if flags == DF {
                content == 1
            } else {
                content >= 3
            },
            "{content}"
        );
    }
    client.request(READ, 0, 10, 0, 0);
    let chunk = client.chunk();
    assert_eq!((chunk.kind, chunk.is_last), (0, true));
    server.stop();
}

#[test]
fn block_status_returns_all_extents_or_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let device = folio::block::create(&path, folio::block::ImageFormat::Qcow2, 64 << 20).unwrap();
    for cluster in (0..1000u64).step_by(2) {
        device.write_at(&[1; 65536], cluster * 65536).unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let server = NbdServer::new(&path, &[]);
    let mut client = RawClient::structured(&server.socket);
    client.request(BLOCK_STATUS, 0, 1, 1000, (64 << 20) - 1000);
    let chunk = client.chunk();
    assert_eq!(
        (chunk.kind, chunk.is_last, chunk.number(0, 4)),
        (5, true, 1)
    );
    let extents: Vec<_> = (4..chunk.payload.len())
        .step_by(8)
        .map(|at| (chunk.number(at, 4), chunk.number(at + 4, 4)))
        .collect();
    assert_eq!(extents[..3], [(64536, 0), (65536, 3), (65536, 0)]);
    assert_eq!(
        (extents.len(), extents[999]),
        (1000, ((64 << 20) - 999 * 65536, 3))
    );
    client.request(BLOCK_STATUS, REQ_ONE, 2, 65536, 64 << 20 >> 1);
    let chunk = client.chunk();
    assert_eq!(
        (chunk.payload.len(), chunk.number(4, 8)),
        (12, 65536 << 32 | 3)
    );
    client.request(BLOCK_STATUS, 0, 3, 0, 0);
    assert_eq!(client.error(3), 22);
    server.stop();
}

#[test]
fn long_writes_and_zeroes_are_complete() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    let mut client = RawClient::structured(&server.socket);
    let payload: Vec<u8> = (0..32u32 << 20)
        .map(|number| (number ^ (number >> 11)) as u8)
        .collect();
    client.request(WRITE, FUA, 1, 777, 32 << 20);
    client.send(&payload);
    assert_eq!(client.simple_reply(), (0, 1));
    client.request(WRITE_ZEROES, NO_HOLE, 2, 40 * MIB, 3 << 20);
    assert_eq!(client.simple_reply(), (0, 2));
    client.request(WRITE_ZEROES, 0, 3, 63 * MIB, 1 << 20);
    assert_eq!(client.simple_reply(), (0, 3));
    client.request(WRITE_ZEROES, FAST_ZERO, 4, 63 * MIB, 1 << 20);
    assert_eq!(client.simple_reply(), (0, 4), "zero already");
    client.request(CACHE, 0, 5, 0, 64 << 20);
    assert_eq!(client.simple_reply(), (0, 5));
    server.stop();
    assert!(bytes(&disk, 777, 32 << 20) == payload);
    assert!(
        bytes(&disk, 63 << 20, 1 << 20)
            .iter()
            .all(|byte| *byte == 0)
    );
}
