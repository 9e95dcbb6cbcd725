//! Threads that write to an image, and a model of it: each thread has blocks of its own and logs
//! each write before it makes it. A copy of the image is right if the content of each thread's
//! blocks is that after some number of its writes, not fewer than had returned before the copy.

use crate::support::random::Random;
use folio::block::Device;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock, RwLockWriteGuard};

pub(super) const LEN_BYTES: usize = BLOCKS * BLOCK_BYTES;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 1024;
const THREADS: usize = 4;

/// A write to a block: of this number, or of zeros.
#[derive(Clone, Copy)]
struct BlockWrite {
    block: usize,
    number: Option<u64>,
}

#[derive(Default)]
struct Log {
    started: Mutex<Vec<BlockWrite>>,
    returned: AtomicUsize,
}

/// Counts of each thread's writes.
pub(super) type Counts = [usize; THREADS];

/// The model.
pub(super) struct Writers {
    initial: Vec<u8>,
    logs: [Log; THREADS],
    /// A discarded block reads as zeros: it is a cluster over a backing file.
    has_discards: bool,
    is_stopped: AtomicBool,
    pause: RwLock<()>,
}

impl Writers {
    pub(super) fn new(initial: Vec<u8>, has_discards: bool) -> Self {
        assert_eq!(initial.len(), LEN_BYTES);
        Self {
            initial,
            logs: Default::default(),
            has_discards,
            is_stopped: AtomicBool::new(false),
            pause: RwLock::new(()),
        }
    }

    /// Writes on all threads while `work` runs.
    pub(super) fn run(&self, device: &dyn Device, work: impl FnOnce()) {
        self.is_stopped.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || self.write(device, thread));
            }
            // Also if `work` panics: the scope waits for the threads.
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _stop = Stop(&self.is_stopped);
            work();
        });
    }

    fn write(&self, device: &dyn Device, thread: usize) {
        let log = &self.logs[thread];
        let mut random = Random::new(thread as u64 + log.returned.load(Ordering::Relaxed) as u64);
        while !self.is_stopped.load(Ordering::Relaxed) {
            let _running = self.pause.read().unwrap();
            let block = random.below(BLOCKS / THREADS) * THREADS + thread;
            let offset = (block * BLOCK_BYTES) as u64;
            let number = {
                let mut started = log.started.lock().unwrap();
                let number = (started.len() as u64) << 8 | thread as u64;
                let number = (random.below(4) != 0).then_some(number);
                started.push(BlockWrite { block, number });
                number
            };
            match number {
                Some(number) => device.write_at(&block_of(number), offset).unwrap(),
                None if self.has_discards && random.below(2) == 0 => {
                    device.discard(offset, BLOCK_BYTES as u64).unwrap();
                }
                None => device.write_zeroes(offset, BLOCK_BYTES as u64).unwrap(),
            }
            log.returned.fetch_add(1, Ordering::Release);
            if random.below(200) == 0 {
                device.flush().unwrap();
            }
        }
    }

    /// Holds all threads between two writes.
    pub(super) fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.pause.write().unwrap()
    }

    /// Waits for this many more writes.
    pub(super) fn wait(&self, count: usize) {
        let sum = || self.returned().iter().sum::<usize>();
        let end = sum() + count;
        while sum() < end {
            std::thread::yield_now();
        }
    }

    /// Returns how many writes have returned.
    pub(super) fn returned(&self) -> Counts {
        [0, 1, 2, 3].map(|thread: usize| self.logs[thread].returned.load(Ordering::Acquire))
    }

    /// Returns how many writes have started.
    pub(super) fn started(&self) -> Counts {
        [0, 1, 2, 3].map(|thread: usize| self.logs[thread].started.lock().unwrap().len())
    }

    /// Asserts that `bytes` is the disk after a number of writes of each thread between these.
    #[track_caller]
    pub(super) fn check(&self, bytes: &[u8], returned: Counts, started: Counts) {
        for thread in 0..THREADS {
            let log = self.logs[thread].started.lock().unwrap();
            let own = (thread..BLOCKS).step_by(THREADS);
            let range = |block| block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            let mut expected: Vec<_> = self
                .initial
                .chunks(BLOCK_BYTES)
                .map(<[u8]>::to_vec)
                .collect();
            for write in &log[..returned[thread]] {
                expected[write.block] = write.content();
            }
            let is_equal =
                |expected: &Vec<Vec<u8>>, block: usize| expected[block] == bytes[range(block)];
            let mut differing: Vec<_> = own.filter(|block| !is_equal(&expected, *block)).collect();
            for write in &log[returned[thread]..started[thread]] {
                if differing.is_empty() {
                    break;
                }
                expected[write.block] = write.content();
                differing.retain(|block| *block != write.block);
                if !is_equal(&expected, write.block) {
                    differing.push(write.block);
                }
            }
            assert!(
                differing.is_empty(),
                "thread {thread}, writes {} to {}: blocks {differing:?}",
                returned[thread],
                started[thread]
            );
        }
    }

    /// Asserts that `bytes` is the disk after all writes.
    #[track_caller]
    pub(super) fn check_all(&self, bytes: &[u8]) {
        self.check(bytes, self.returned(), self.started());
        assert_eq!(self.returned(), self.started());
    }
}

impl BlockWrite {
    fn content(self) -> Vec<u8> {
        self.number.map_or_else(|| vec![0; BLOCK_BYTES], block_of)
    }
}

fn block_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES / 8)
}
