//! Requests of all kinds, many at a time on 16 queues, and a model of the disk.

use super::BlockServer;
use crate::support::random::Random;
use crate::support::requires;
use crate::support::rounds::is_long;
use crate::support::tools::{order, qemu_check, run};
use folio::block::{self, OpenOptions};
use folio_export::vhost_user_blk::client::{Done, Queue, Slot};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use tempfile::TempDir;

const QUEUES: usize = 16;
const DEPTH: u16 = 32;
const BLOCK: u64 = 4096;
/// Consecutive blocks of one owner, fewer than a cluster has: clusters have several owners.
const RUN: u64 = 4;

/// The content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Zeros,
    /// The block's number and this one make its bytes.
    Written(u32),
    /// A discard leaves any bytes.
    Undefined,
}

/// The blocks of one queue: every 16th run of the disk.
struct Owned {
    queue: usize,
    runs: u64,
    content: Vec<Content>,
    is_busy: Vec<bool>,
    version: u32,
}

/// What a slot's request does to which blocks.
#[derive(Debug, Clone, Copy)]
enum Task {
    Read { first: u64, count: u64 },
    Change { first: u64, count: u64, to: Content },
    Flush,
}

fn block_bytes(block: u64, version: u32, out: &mut [u8]) {
    let mut random = Random::new(block << 32 | u64::from(version));
    let (words, _) = out.as_chunks_mut::<8>();
    // Few numbers, repeated: as good as all, and quick.
    let parts = [random.next(), random.next(), random.next()];
    for (index, word) in words.iter_mut().enumerate() {
        *word = (parts[index % 3] ^ index as u64).to_le_bytes();
    }
    words[0] = (block << 32 | u64::from(version)).to_le_bytes();
}

impl Owned {
    fn new(queue: usize, disk_blocks: u64, initial: Content) -> Self {
        let runs = disk_blocks / RUN / QUEUES as u64;
        let count = (runs * RUN) as usize;
        Self {
            queue,
            runs,
            content: vec![initial; count],
            is_busy: vec![false; count],
            version: 0,
        }
    }

    /// Returns the disk's block for one of the owner's.
    fn block(&self, own: u64) -> u64 {
        (own / RUN * QUEUES as u64 + self.queue as u64) * RUN + own % RUN
    }

    fn range(first: u64, count: u64) -> std::ops::Range<usize> {
        first as usize..(first + count) as usize
    }

    /// Begins a random request; none if its blocks are in use.
    fn begin(&mut self, queue: &mut Queue, random: &mut Random) -> Option<(Slot, Task)> {
        if random.below(200) == 0 {
            return Some((queue.flush().unwrap(), Task::Flush));
        }
        let run = random.below(self.runs);
        let at = random.below(RUN);
        let (first, count) = (run * RUN + at, 1 + random.below(RUN - at));
        let range = Self::range(first, count);
        if self.is_busy[range.clone()].contains(&true) {
            return None;
        }
        self.is_busy[range].fill(true);
        let (offset, len) = (self.block(first) * BLOCK, (count * BLOCK) as u32);
        Some(match random.below(20) {
            0..8 => (
                queue.read(offset, len).unwrap(),
                Task::Read { first, count },
            ),
            8..17 => {
                self.version += 1;
                let mut bytes = vec![0; len as usize];
                for (index, block) in bytes.chunks_mut(BLOCK as usize).enumerate() {
                    block_bytes(self.block(first) + index as u64, self.version, block);
                }
                let to = Content::Written(self.version);
                let slot = queue.write(offset, &bytes).unwrap();
                (slot, Task::Change { first, count, to })
            }
            17..19 => {
                let may_unmap = random.percent(50);
                let slot = queue.write_zeroes(offset, len, may_unmap).unwrap();
                let to = Content::Zeros;
                (slot, Task::Change { first, count, to })
            }
            _ => {
                let slot = queue.discard(offset, len).unwrap();
                let to = Content::Undefined;
                (slot, Task::Change { first, count, to })
            }
        })
    }

    /// Ends a request; the bytes of a read must be those of the model.
    fn end(&mut self, queue: &Queue, slot: Slot, task: Task) {
        match task {
            Task::Flush => {}
            Task::Change { first, count, to } => {
                self.content[Self::range(first, count)].fill(to);
                self.is_busy[Self::range(first, count)].fill(false);
            }
            Task::Read { first, count } => {
                let mut bytes = vec![0; (count * BLOCK) as usize];
                queue.copy_data(slot, &mut bytes).unwrap();
                for (index, found) in bytes.chunks(BLOCK as usize).enumerate() {
                    self.check(first + index as u64, found);
                }
                self.is_busy[Self::range(first, count)].fill(false);
            }
        }
    }

    fn check(&self, own: u64, found: &[u8]) {
        let mut expected = vec![0; BLOCK as usize];
        let block = self.block(own);
        match self.content[own as usize] {
            Content::Undefined => return,
            Content::Zeros => {}
            Content::Written(version) => block_bytes(block, version, &mut expected),
        }
        assert!(
            found == expected,
            "block {block}: {:?}",
            self.content[own as usize]
        );
    }

    /// Makes `count` random requests, as many at a time as the queue takes, and counts them.
    fn work(&mut self, queue: &mut Queue, count: usize, random: &mut Random, made: &AtomicUsize) {
        let mut tasks: Vec<Option<Task>> = vec![None; usize::from(DEPTH)];
        let (mut begun, mut in_progress) = (0, 0);
        while begun < count || in_progress > 0 {
            while begun < count && queue.free_slots() > 0 {
                let Some((slot, task)) = self.begin(queue, random) else {
                    break;
                };
                tasks[usize::from(slot)] = Some(task);
                begun += 1;
                in_progress += 1;
            }
            queue.submit().unwrap();
            if in_progress == 0 {
                continue;
            }
            let mut done = Some(queue.wait_done().unwrap());
            while let Some(Done { slot, status }) = done {
                let task = tasks[usize::from(slot)].take().unwrap();
                assert_eq!(status, 0, "{task:?}");
                self.end(queue, slot, task);
                in_progress -= 1;
                made.fetch_add(1, Ordering::Relaxed);
                done = queue.take_done().unwrap();
            }
        }
    }

    /// Reads all blocks.
    fn check_all(&self, queue: &mut Queue) {
        let mut bytes = vec![0; (RUN * BLOCK) as usize];
        for run in 0..self.runs {
            let offset = self.block(run * RUN) * BLOCK;
            let slot = queue.read(offset, bytes.len() as u32).unwrap();
            queue.submit().unwrap();
            assert_eq!(queue.wait_done().unwrap(), Done { slot, status: 0 });
            queue.copy_data(slot, &mut bytes).unwrap();
            for (index, found) in bytes.chunks(BLOCK as usize).enumerate() {
                self.check(run * RUN + index as u64, found);
            }
        }
    }
}

/// Orders to the server in the middle of the requests.
struct Orders<'a> {
    image: &'a Path,
    control: PathBuf,
    round: u64,
}

impl Orders<'_> {
    fn give(&self, words: &[&str]) {
        order(env!("CARGO_BIN_EXE_folio"), &self.control, words).unwrap();
    }

    fn fork_path(&self) -> PathBuf {
        self.image.with_extension(format!("{}.qcow2", self.round))
    }

    /// Gives an order each time that a part of the `total` requests is made, or once the requests
    /// have ended, as after a crash of the server: the order then fails, and the test with it.
    fn run(&self, made: &AtomicUsize, total: usize, have_ended: impl Fn() -> bool) {
        let fork = self.fork_path();
        let snapshot = format!("round{}", self.round);
        let orders: [&[&str]; 4] = [
            &["snapshot", &snapshot],
            &["resize", "+1M"],
            &["fork", fork.to_str().unwrap()],
            &["compact"],
        ];
        for (index, words) in orders.iter().enumerate() {
            while made.load(Ordering::Relaxed) < total * (index + 1) / 6 && !have_ended() {
                std::thread::yield_now();
            }
            self.give(words);
        }
    }
}

/// Asserts that each block of a fork is one that its owner wrote, whole.
#[track_caller]
fn check_fork(fork: &Path, owned: &[Owned]) {
    qemu_check(fork);
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = block::open(fork, &options).unwrap();
    let [mut found, mut expected] = [[0; BLOCK as usize]; 2];
    for own in owned {
        for index in 0..own.content.len() as u64 {
            let block = own.block(index);
            device.read_at(&mut found, block * BLOCK).unwrap();
            expected.fill(0);
            let version = u32::from_le_bytes(found[..4].try_into().unwrap());
            if found != expected {
                assert!(version <= own.version, "block {block}: {version}");
                block_bytes(block, version, &mut expected);
            }
            assert!(found == expected, "block {block} of {}", fork.display());
        }
    }
}

/// Runs 16 queues against a served image, in rounds, with orders to the server meanwhile; QEMU
/// checks the image and its fork after each.
#[track_caller]
fn run_queues(image: &Path, initial: Content) {
    let (rounds, count) = if is_long() { (20, 100_000) } else { (2, 1_500) };
    let mut owned: Option<Vec<Owned>> = None;
    for round in 0..rounds {
        let orders = Orders {
            image,
            control: image.with_extension("control"),
            round,
        };
        let control = orders.control.to_str().unwrap();
        let server = BlockServer::new(&[image], &["--queues", "16", "--control", control]);
        let mut client = server.connect(QUEUES, DEPTH);
        let blocks = client.len_bytes() / BLOCK;
        let owned = owned.get_or_insert_with(|| {
            let new = |queue| Owned::new(queue, blocks, initial);
            (0..QUEUES).map(new).collect()
        });
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (own, queue) in owned.iter_mut().zip(client.queues()) {
                let made = &made;
                workers.push(scope.spawn(move || {
                    let mut random = Random::new(round << 8 | own.queue as u64);
                    own.work(queue, count, &mut random, made);
                    own.check_all(queue);
                }));
            }
            let have_ended = || workers.iter().all(ScopedJoinHandle::is_finished);
            orders.run(&made, QUEUES * count, have_ended);
        });
        drop(client);
        server.stop();
        qemu_check(image);
        check_fork(&orders.fork_path(), owned);
    }
}

/// Runs 16 queues on an image that qemu-img creates with these words.
#[track_caller]
fn run_created(options: &str) {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.qcow2");
    let name = image.to_str().unwrap();
    run(
        "qemu-img",
        ["create", "-q", "-f", "qcow2", "-o", options, name, "16M"],
    );
    run_queues(&image, Content::Zeros);
}

#[test]
fn queues_keep_their_blocks_in_large_clusters() {
    run_created("cluster_size=2M");
}

#[test]
fn queues_keep_their_blocks_in_subclusters() {
    run_created("cluster_size=128k,extended_l2=on,lazy_refcounts=on");
}

#[test]
fn queues_keep_their_blocks_in_small_clusters() {
    run_created("cluster_size=4k");
}

/// The shape of cloud-hypervisor's issue 8621: an overlay of which all is written, with several
/// queues.
#[test]
fn queues_keep_their_blocks_in_a_warm_overlay() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let [base, image] = ["base.qcow2", "disk.qcow2"].map(|name| folder.path().join(name));
    let names = [&base, &image].map(|path| path.to_str().unwrap());
    run("qemu-img", ["create", "-q", "-f", "qcow2", names[0], "16M"]);
    run("qemu-io", ["-c", "write -P 7 0 16M", names[0]]);
    run(
        "qemu-img",
        [
            "create", "-q", "-f", "qcow2", "-b", names[0], "-F", "qcow2", names[1],
        ],
    );
    run("qemu-io", ["-c", "write -z 0 16M", names[1]]);
    run_queues(&image, Content::Zeros);
    run("qemu-img", ["check", "-q", names[0]]);
}

#[test]
fn changes_are_thrown_away() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    let server = BlockServer::new(&[&image], &["-f", "raw", "--throw-away"]);
    let mut client = server.connect(1, 1);
    let queue = &mut client.queues()[0];
    queue.write(4096, &[9; 4096]).unwrap();
    queue.submit().unwrap();
    assert_eq!(queue.wait_done().unwrap().status, 0);
    let slot = queue.read(4096, 4096).unwrap();
    queue.submit().unwrap();
    queue.wait_done().unwrap();
    let mut bytes = [0; 4096];
    queue.copy_data(slot, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 4096]);
    drop(client);
    server.stop();
    assert_eq!(std::fs::read(&image).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn read_only_disk_refuses_changes() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    // A rest of a sector, which is not visible.
    std::fs::write(&image, vec![7; (1 << 20) + 100]).unwrap();
    let server = BlockServer::new(&[&image], &["-f", "raw", "--read-only"]);
    let mut client = server.connect(1, 1);
    assert_eq!(client.len_bytes(), 1 << 20);
    // VIRTIO_BLK_F_RO
    assert_eq!(client.features() >> 5 & 1, 1);
    let queue = &mut client.queues()[0];
    queue.write(0, &[9; 512]).unwrap();
    queue.submit().unwrap();
    assert_eq!(queue.wait_done().unwrap().status, 1);
    queue.discard(0, 512).unwrap();
    queue.submit().unwrap();
    assert_eq!(queue.wait_done().unwrap().status, 1);
    drop(client);
    server.stop();
}
