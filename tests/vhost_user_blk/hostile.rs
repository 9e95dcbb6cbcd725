//! Messages, rings, chains and memory that no driver may send. The server of other disks goes on.

use super::{BlockServer, connect};
use folio_export::vhost_user_blk::client::Client;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Two raw disks of a server, the first one for the hostile driver.
struct Scene {
    folder: TempDir,
    server: BlockServer,
}

impl Scene {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let images = ["bad.img", "good.img"].map(|name| folder.path().join(name));
        for image in &images {
            std::fs::write(image, vec![7; 1 << 20]).unwrap();
        }
        let server = BlockServer::new(&[&images[0], &images[1]], &["-f", "raw"]);
        Self { folder, server }
    }

    fn bad(&self) -> &Path {
        &self.server.sockets[0]
    }

    /// Both disks serve a driver that keeps the rules.
    #[track_caller]
    fn check(self) {
        for socket in &self.server.sockets {
            read_first_block(&mut connect(socket, 2, 4));
        }
        self.server.stop();
        drop(self.folder);
    }
}

#[track_caller]
fn read_first_block(client: &mut Client) {
    let queue = &mut client.queues()[0];
    let slot = queue.read(0, 4096).unwrap();
    queue.submit().unwrap();
    assert_eq!(queue.wait_done().unwrap().status, 0);
    let mut bytes = [0; 4096];
    queue.copy_data(slot, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
}

/// Sends a message; the connection must end, or an answer come.
fn send(socket: &Path, bytes: &[u8]) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
}

fn message(request: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [request, 1, payload.len() as u32]
        .map(u32::to_ne_bytes)
        .concat();
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn invalid_messages_end_the_connection_alone() {
    let scene = Scene::new();
    let whole = message(8, &[0; 8]);
    for len in 0..whole.len() {
        send(scene.bad(), &whole[..len]);
    }
    // Every number, with payloads of many lengths: zeros, and the largest numbers.
    for request in 0..45 {
        for len in [0, 1, 8, 12, 16, 24, 40, 264, 4108] {
            for byte in [0, 0xff] {
                send(scene.bad(), &message(request, &vec![byte; len]));
            }
        }
    }
    let mut long = message(24, &[]);
    long[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
    send(scene.bad(), &long);
    send(scene.bad(), &[0xff; 4096]);
    scene.check();
}

/// Changes the ring of the first queue, notifies the server, and expects no answer to what follows.
fn break_ring(change: impl FnOnce(&GuestMemoryMmap)) {
    let scene = Scene::new();
    let mut client = connect(scene.bad(), 2, 4);
    change(client.memory());
    let queue = &mut client.queues()[0];
    queue.submit_always().unwrap();
    // The other queue of this disk goes on.
    let other = &mut client.queues()[1];
    let slot = other.read(0, 512).unwrap();
    other.submit().unwrap();
    assert_eq!(other.wait_done().unwrap().slot, slot);
    drop(client);
    scene.check();
}

/// Offsets of the first queue's parts: 16 descriptors at 0, the rings behind them.
const AVAILABLE: u64 = 4096;
/// `VIRTQ_DESC_F_NEXT`, `VIRTQ_DESC_F_WRITE`, `VIRTQ_DESC_F_INDIRECT`.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn describe(
    memory: &GuestMemoryMmap,
    place: u64,
    [address, len_bytes]: [u64; 2],
    [flags, next]: [u16; 2],
) {
    let bits = u128::from(address)
        | u128::from(len_bytes as u32) << 64
        | u128::from(flags) << 96
        | u128::from(next) << 112;
    memory
        .write_slice(&bits.to_le_bytes(), GuestAddress(place))
        .unwrap();
}

/// Makes `count` requests available that start at descriptor `head`.
fn offer(memory: &GuestMemoryMmap, head: u16, count: u16) {
    for slot in 0..count.min(16) {
        let place = GuestAddress(AVAILABLE + 4 + 2 * u64::from(slot));
        memory.write_obj(head.to_le(), place).unwrap();
    }
    memory
        .write_obj(count.to_le(), GuestAddress(AVAILABLE + 2))
        .unwrap();
}

#[test]
fn index_far_ahead_stops_the_queue() {
    break_ring(|memory| offer(memory, 0, 1000));
}

#[test]
fn head_behind_the_table_stops_the_queue() {
    break_ring(|memory| offer(memory, 999, 1));
}

#[test]
fn looping_chain_gets_an_empty_reply() {
    break_ring(|memory| {
        for index in 0..16 {
            describe(
                memory,
                index * 16,
                [0, 512],
                [NEXT, (index as u16 + 1) % 16],
            );
        }
        offer(memory, 0, 4);
    });
}

#[test]
fn huge_indirect_table_gets_an_empty_reply() {
    break_ring(|memory| {
        // 65,535 entries would take a mebibyte: they leave guest memory. A table within it loops.
        describe(memory, 0, [0, 65_535 * 16], [INDIRECT, 0]);
        describe(memory, 16, [32, 16], [INDIRECT, 0]);
        describe(memory, 32, [32, 16], [INDIRECT, 0]);
        offer(memory, 0, 1);
        memory
            .write_obj(1_u16.to_le(), GuestAddress(AVAILABLE + 6))
            .unwrap();
        memory
            .write_obj(2_u16.to_le(), GuestAddress(AVAILABLE + 2))
            .unwrap();
    });
}

#[test]
fn buffers_outside_memory_get_an_error() {
    let scene = Scene::new();
    let mut client = connect(scene.bad(), 2, 4);
    for address in [1 << 40, u64::MAX - 100, u64::MAX] {
        for (data, status) in [(address, 16), (4096, address)] {
            let memory = client.memory();
            describe(memory, 0, [8192, 16], [NEXT, 1]);
            describe(memory, 16, [data, 512], [NEXT | WRITE, 2]);
            describe(memory, 32, [status, 1], [WRITE, 0]);
        }
    }
    let memory = client.memory();
    offer(memory, 0, 1);
    client.queues()[0].submit_always().unwrap();
    let other = &mut client.queues()[1];
    other.read(0, 512).unwrap();
    other.submit().unwrap();
    assert_eq!(other.wait_done().unwrap().status, 0);
    drop(client);
    scene.check();
}

#[test]
fn invalid_requests_get_a_status() {
    let scene = Scene::new();
    let mut client = connect(scene.bad(), 1, 4);
    let queue = &mut client.queues()[0];
    let segment = |sector: u64, sectors: u32, flags: u32| {
        let bits = u128::from(sector) | u128::from(sectors) << 64 | u128::from(flags) << 96;
        bits.to_le_bytes().to_vec()
    };
    let end = 1 << 20;
    let requests: [(u32, u64, Vec<u8>, u32, u8); 12] = [
        // Behind the end, and part of a sector.
        (0, end, vec![], 512, 1),
        (0, end - 512, vec![], 1024, 1),
        (0, u64::MAX / 512 * 512, vec![], 512, 1),
        (0, 0, vec![], 100, 1),
        (1, end, vec![1; 512], 0, 1),
        (1, 0, vec![1; 700], 0, 1),
        // Unknown kinds and flags.
        (77, 0, vec![], 0, 2),
        (2, 0, vec![], 0, 2),
        (11, 0, segment(0, 8, 1), 0, 2),
        // Segments behind the end, too long, incomplete.
        (13, 0, segment(2047, 2, 0), 0, 1),
        (11, 0, segment(0, u32::MAX, 0), 0, 1),
        (11, 0, vec![0; 15], 0, 1),
    ];
    for (kind, offset, sent, reply_len, expected) in requests {
        let done = queue.do_one(kind, offset, &sent, reply_len).unwrap();
        assert_eq!(done.status, expected, "{kind} {offset} {}", sent.len());
    }
    drop(client);
    scene.check();
}

#[test]
fn guest_memory_that_shrinks_ends_one_connection() {
    let scene = Scene::new();
    let mut client = connect(scene.bad(), 1, 4);
    read_first_block(&mut client);
    client.memory_file().set_len(0).unwrap();
    client.queues()[0].submit_always().unwrap();
    drop(client);
    scene.check();
}
