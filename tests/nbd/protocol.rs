//! Replies byte by byte, by a client of our own: what libraries hide.

use super::wire::*;
use super::{Served, bytes, image};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

#[test]
fn options_are_answered_in_turn() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.qcow2"), &["--export", "x"]);
    let mut wire = Wire::greet(&served.socket);
    assert_eq!(
        wire.option(LIST, &[]),
        [(2, b"\0\0\0\x01x".to_vec()), (1, vec![])]
    );
    assert_eq!(
        wire.option(STARTTLS, &[]),
        [((1 << 31) + 1, b"no TLS here".to_vec())]
    );
    assert_eq!(wire.option(0xffff, b"what")[0].0, (1 << 31) + 1);
    // No export of this name; structured replies were not agreed upon; data that contradict
    // themselves.
    assert_eq!(wire.option(INFO, &[0; 6])[0].0, (1 << 31) + 6);
    assert_eq!(wire.option(SET_META_CONTEXT, &[0; 8])[0].0, (1 << 31) + 3);
    assert_eq!(wire.option(GO, b"\0\0\0\x09x\0\0")[0].0, (1 << 31) + 3);
    assert_eq!(wire.option(GO, b"\0\0\0\x01x\xff\xff")[0].0, (1 << 31) + 3);
    // Name and description, when asked; sizes of blocks in any case, the export last.
    let replies = wire.option(INFO, b"\0\0\0\x01x\0\x02\0\x01\0\x02");
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
    // Flags: flush, FUA, trim, zeroes, several connections, cache, fast zero; not yet DF.
    assert_eq!(replies[3].1[2..10], (64 * MIB).to_be_bytes());
    assert_eq!(replies[3].1[10..], 0b1101_0110_1101u16.to_be_bytes());
    assert_eq!(wire.option(ABORT, &[]), [(1, vec![])]);
    wire.ends();
    served.stop();
}

#[test]
fn the_old_way_in_gets_simple_replies() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let mut wire = Wire::simple(&served.socket);
    wire.request((READ, 0), 1, MIB - 4, 8);
    assert_eq!(
        (wire.simple_reply(), wire.take(8)),
        ((0, 1), b"\0\0\0\0\x11\x11\x11\x11".to_vec())
    );
    // Longer than a piece, in one reply.
    wire.request((READ, 0), 2, 0, 8 << 20);
    assert_eq!(wire.simple_reply(), (0, 2));
    assert!(wire.take(8 << 20) == bytes_of_disk(0, 8 << 20));
    wire.request((READ, 0), 3, 64 * MIB - 1, 2);
    assert_eq!(wire.simple_reply(), (22, 3));
    wire.request((BLOCK_STATUS, 0), 4, 0, 4096);
    assert_eq!(wire.simple_reply(), (22, 4));
    wire.request((READ, DF), 5, 0, 4096);
    assert_eq!(wire.simple_reply(), (22, 5));
    wire.request((WRITE, FUA), 6, 5, 3);
    wire.send(b"abc");
    assert_eq!(wire.simple_reply(), (0, 6));
    wire.request((DISCONNECT, 0), 0, 0, 0);
    wire.ends();
    served.stop();
    assert_eq!(bytes(&disk, 4, 5), b"\0abc\0");
}

/// What [`image`] holds.
fn bytes_of_disk(offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| match at / MIB {
        1 | 2 => 0x11,
        63 => 0x22,
        _ => 0,
    };
    (offset..offset + len as u64).map(byte).collect()
}

#[test]
fn clients_that_want_padding_get_it() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.raw"), &["--read-only"]);
    let mut wire = Wire(std::os::unix::net::UnixStream::connect(&served.socket).unwrap());
    wire.take(18);
    wire.send(&[0, 0, 0, 0]);
    wire.send_option(EXPORT_NAME, &[]);
    assert_eq!(wire.number(8), 64 * MIB);
    assert_eq!(wire.number(2), 0b101_0000_1111);
    assert!(wire.take(124).iter().all(|byte| *byte == 0));
    for (cookie, command) in [(1, WRITE), (2, TRIM), (3, WRITE_ZEROES)] {
        wire.request((command, 0), cookie, 0, 4096);
        if command == WRITE {
            wire.send(&[7; 4096]);
        }
        assert_eq!(wire.simple_reply(), (1, cookie), "EPERM");
    }
    wire.request((FLUSH, 0), 4, 0, 0);
    assert_eq!(wire.simple_reply(), (0, 4));
    served.stop();
}

#[test]
fn reads_come_in_chunks_with_holes_and_in_one_if_asked() {
    let folder = TempDir::new().unwrap();
    let served = Served::new(&image(&folder, "disk.qcow2"), &[]);
    let mut wire = Wire::structured(&served.socket);
    for flags in [0, DF] {
        wire.request((READ, flags), 9, MIB / 2, 32 << 20);
        let mut got = vec![0xee; 32 << 20];
        let mut content = 0;
        loop {
            let chunk = wire.chunk();
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
    wire.request((READ, 0), 10, 0, 0);
    let chunk = wire.chunk();
    assert_eq!((chunk.kind, chunk.is_last), (0, true));
    served.stop();
}

#[test]
fn extents_are_told_many_or_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let device = folio::block::create(&path, folio::block::ImageFormat::Qcow2, 64 << 20).unwrap();
    for cluster in (0..1000u64).step_by(2) {
        device.write_at(&[1; 65536], cluster * 65536).unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let served = Served::new(&path, &[]);
    let mut wire = Wire::structured(&served.socket);
    wire.request((BLOCK_STATUS, 0), 1, 1000, (64 << 20) - 1000);
    let chunk = wire.chunk();
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
    wire.request((BLOCK_STATUS, REQ_ONE), 2, 65536, 64 << 20 >> 1);
    let chunk = wire.chunk();
    assert_eq!(
        (chunk.payload.len(), chunk.number(4, 8)),
        (12, 65536 << 32 | 3)
    );
    wire.request((BLOCK_STATUS, 0), 3, 0, 0);
    assert_eq!(wire.error(3), 22);
    served.stop();
}

#[test]
fn changes_longer_than_a_piece_arrive_whole() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let mut wire = Wire::structured(&served.socket);
    let payload: Vec<u8> = (0..32u32 << 20)
        .map(|number| (number ^ (number >> 11)) as u8)
        .collect();
    wire.request((WRITE, FUA), 1, 777, 32 << 20);
    wire.send(&payload);
    assert_eq!(wire.simple_reply(), (0, 1));
    wire.request((WRITE_ZEROES, NO_HOLE), 2, 40 * MIB, 3 << 20);
    assert_eq!(wire.simple_reply(), (0, 2));
    wire.request((WRITE_ZEROES, 0), 3, 63 * MIB, 1 << 20);
    assert_eq!(wire.simple_reply(), (0, 3));
    wire.request((WRITE_ZEROES, FAST_ZERO), 4, 63 * MIB, 1 << 20);
    assert_eq!(wire.simple_reply(), (0, 4), "zero already");
    wire.request((CACHE, 0), 5, 0, 64 << 20);
    assert_eq!(wire.simple_reply(), (0, 5));
    served.stop();
    assert!(bytes(&disk, 777, 32 << 20) == payload);
    assert!(
        bytes(&disk, 63 << 20, 1 << 20)
            .iter()
            .all(|byte| *byte == 0)
    );
}
