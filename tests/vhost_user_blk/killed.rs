//! Servers that are killed under load, and started anew: no request is lost.

use super::BlockServer;
use crate::support::random::Random;
use crate::support::requires;
use crate::support::rounds::is_long;
use crate::support::tools::{qemu_check, run};
use folio_export::vhost_user_blk::client::Queue;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4096;
const QUEUES: usize = 4;
const DEPTH: u16 = 32;

/// The writes of one queue: those in progress, and the last one of each block.
struct Writer {
    index: usize,
    random: Random,
    version: u64,
    in_progress: HashMap<u16, (u64, u64)>,
    written: HashMap<u64, u64>,
}

impl Writer {
    fn bytes(block: u64, version: u64) -> Vec<u8> {
        (block << 40 | version)
            .to_le_bytes()
            .repeat(BLOCK as usize / 8)
    }

    /// Writes for a while. The server may be killed meanwhile: then nothing is answered any more.
    fn write(&mut self, queue: &mut Queue, end: Instant, answered: &AtomicU64) {
        while Instant::now() < end {
            while queue.free_slots() > 0 {
                let block = self.random.below(BLOCKS / QUEUES as u64);
                let block = block * QUEUES as u64 + self.index as u64;
                if self.in_progress.values().any(|(busy, _)| *busy == block) {
                    break;
                }
                self.version += 1;
                let bytes = Self::bytes(block, self.version);
                let slot = queue.write(block * BLOCK, &bytes).unwrap();
                self.in_progress.insert(slot, (block, self.version));
            }
            queue.submit().unwrap();
            answered.fetch_add(self.collect(queue), Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Takes the answers that have come; returns their number.
    fn collect(&mut self, queue: &mut Queue) -> u64 {
        let mut count = 0;
        while let Some(done) = queue.take_done().unwrap() {
            assert_eq!(done.status, 0);
            let (block, version) = self.in_progress.remove(&done.slot).unwrap();
            self.written.insert(block, version);
            count += 1;
        }
        count
    }

    /// Waits for all requests in progress, and reads what was written.
    fn check(&mut self, queue: &mut Queue) {
        while !self.in_progress.is_empty() {
            let done = queue.wait_done().unwrap();
            assert_eq!(done.status, 0);
            let (block, version) = self.in_progress.remove(&done.slot).unwrap();
            self.written.insert(block, version);
            self.collect(queue);
        }
        let mut found = vec![0; BLOCK as usize];
        for (block, version) in &self.written {
            let slot = queue.read(block * BLOCK, BLOCK as u32).unwrap();
            queue.submit().unwrap();
            assert_eq!(queue.wait_done().unwrap().status, 0);
            queue.copy_data(slot, &mut found).unwrap();
            assert!(found == Self::bytes(*block, *version), "block {block}");
        }
    }
}

fn new_qcow2(folder: &TempDir, name: &str) -> PathBuf {
    let image = folder.path().join(name);
    let path = image.to_str().unwrap();
    run("qemu-img", ["create", "-q", "-f", "qcow2", path, "16M"]);
    image
}

#[test]
fn killed_server_loses_no_request() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = new_qcow2(&folder, "disk.qcow2");
    let mut server = BlockServer::new(&[&image], &[]);
    let socket = server.sockets[0].clone();
    let mut client = server.connect(QUEUES, DEPTH);
    let mut writers: Vec<_> = (0..QUEUES)
        .map(|index| Writer {
            index,
            random: Random::new(index as u64),
            version: 0,
            in_progress: HashMap::new(),
            written: HashMap::new(),
        })
        .collect();
    let answered = AtomicU64::new(0);
    let rounds = if is_long() { 100 } else { 6 };
    for round in 0..rounds {
        let end = Instant::now() + Duration::from_millis(150);
        std::thread::scope(|scope| {
            for (writer, queue) in writers.iter_mut().zip(client.queues()) {
                scope.spawn(|| writer.write(queue, end, &answered));
            }
            // In the middle of the writes, another time in each round.
            let target = answered.load(Ordering::Relaxed) + 50 + round * 37;
            while answered.load(Ordering::Relaxed) < target && Instant::now() < end {
                std::thread::yield_now();
            }
            server.kill();
        });
        // Nothing is synced: what was acknowledged is in the host's memory, which survives.
        server = BlockServer::new(&[&image], &[]);
        client.reconnect(&socket).unwrap();
        for queue in client.queues() {
            queue.submit_always().unwrap();
        }
        std::thread::scope(|scope| {
            for (writer, queue) in writers.iter_mut().zip(client.queues()) {
                scope.spawn(move || writer.check(queue));
            }
        });
    }
    let unfinished: usize = writers.iter().map(|writer| writer.in_progress.len()).sum();
    assert_eq!(unfinished, 0);
    drop(client);
    server.stop();
    qemu_check(&image);
}

/// Writes a block with one byte everywhere, into a cluster of its own.
#[track_caller]
fn write_block(queue: &mut Queue, cluster: u64, byte: u8) {
    let done = queue.do_one(1, cluster << 16, &[byte; BLOCK as usize], 0);
    assert_eq!(done.unwrap().status, 0);
}

#[track_caller]
fn assert_block(queue: &mut Queue, cluster: u64, byte: u8) {
    let slot = queue.read(cluster << 16, BLOCK as u32).unwrap();
    queue.submit().unwrap();
    assert_eq!(queue.wait_done().unwrap().status, 0);
    let mut found = vec![0; BLOCK as usize];
    queue.copy_data(slot, &mut found).unwrap();
    assert!(found == vec![byte; BLOCK as usize], "cluster {cluster}");
}

#[test]
fn reset_guest_loses_nothing_with_its_server() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = new_qcow2(&folder, "disk.qcow2");
    let server = BlockServer::new(&[&image], &[]);
    let mut client = server.connect(1, 1);
    write_block(&mut client.queues()[0], 1, 1);
    client.set_write_cache(false).unwrap();
    client.set_write_cache(true).unwrap();
    // The record of requests is a new one from here on.
    client.reset().unwrap();
    write_block(&mut client.queues()[0], 2, 2);
    write_block(&mut client.queues()[0], 1, 3);
    server.kill();
    let server = BlockServer::new(&[&image], &[]);
    client.reconnect(&server.sockets[0]).unwrap();
    for (cluster, byte) in [(1, 3), (2, 2)] {
        assert_block(&mut client.queues()[0], cluster, byte);
    }
    drop(client);
    server.stop();
    qemu_check(&image);
}

#[test]
fn write_cache_stays_off_with_the_next_server() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = new_qcow2(&folder, "disk.qcow2");
    let server = BlockServer::new(&[&image], &[]);
    let mut client = server.connect(1, 1);
    assert!(client.has_write_cache().unwrap());
    client.set_write_cache(false).unwrap();
    write_block(&mut client.queues()[0], 1, 1);
    server.kill();
    let server = BlockServer::new(&[&image], &[]);
    client.reconnect(&server.sockets[0]).unwrap();
    assert!(!client.has_write_cache().unwrap());
    assert_block(&mut client.queues()[0], 1, 1);
    drop(client);
    server.stop();
}

#[test]
fn log_of_another_disk_is_refused() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let [image, other] = ["disk.qcow2", "other.qcow2"].map(|name| new_qcow2(&folder, name));
    let server = BlockServer::new(&[&image], &[]);
    let mut client = server.connect(1, 1);
    write_block(&mut client.queues()[0], 1, 1);
    server.kill();
    let server = BlockServer::new(&[&other], &[]);
    assert!(client.reconnect(&server.sockets[0]).is_err());
    server.stop();
    // Nothing was repeated on the other disk.
    let map = run("qemu-img", ["map", other.to_str().unwrap()]);
    assert_eq!(map.lines().count(), 1, "{map}");
    let server = BlockServer::new(&[&image], &[]);
    client.reconnect(&server.sockets[0]).unwrap();
    assert_block(&mut client.queues()[0], 1, 1);
    drop(client);
    server.stop();
}
