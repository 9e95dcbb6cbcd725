//! One thread of a parallel test: random operations on the device and on the shared model.

use super::model::{BLOCK, SharedModel};
use crate::support::random::Random;
use folio::block::{Allocation, Device};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest operation apart from those on whole clusters, in blocks.
const BLOCKS_MAX: usize = 64;

/// How zeros are stored.
#[derive(Clone, Copy)]
enum Zeros {
    /// As the device likes.
    Any,
    /// With space for later writes.
    Allocated,
}

/// A thread with its random numbers.
pub(crate) struct Worker<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) model: &'a SharedModel,
    /// A cluster that many threads use at the moment, often just after it was discarded.
    pub(crate) hot: &'a AtomicUsize,
    /// Blocks in a cluster.
    pub(crate) cluster: usize,
    pub(crate) random: Random,
    pub(crate) buf: Vec<u8>,
}

impl Worker<'_> {
    /// Makes `count` random operations.
    pub(crate) fn run(&mut self, count: usize) {
        for _ in 0..count {
            match self.random.below(1000) {
                0..8 => self.heat(),
                8..18 => self.device.flush().unwrap(),
                18..19 => self.device.mark_closed().unwrap(),
                19..34 => self.ask_allocation(),
                34..470 => self.write(),
                470..760 => self.read(),
                760..840 => self.read_beside_writers(),
                840..900 => self.zero(Zeros::Any),
                900..950 => self.zero(Zeros::Allocated),
                _ => self.discard(),
            }
        }
    }

    /// Returns the blocks of the next operation.
    fn place(&mut self) -> Range<usize> {
        let len = self.model.count();
        let (count, align) = match self.random.below(100) {
            0..65 => (8, 8),
            65..80 => (1 + self.random.below(8), 1),
            _ => (1 + self.random.below(BLOCKS_MAX), 1),
        };
        let at = match self.random.below(3) {
            0 => {
                let start = self.hot.load(Ordering::Relaxed) * self.cluster;
                // Also across its borders.
                (start + self.random.below(self.cluster + 8)).saturating_sub(8)
            }
            1 => self.random.below(len.div_ceil(8)),
            _ => self.random.below(len),
        };
        let start = at.min(len - 1) / align * align;
        start..(start + count).min(len)
    }

    /// Returns the blocks of one or two whole clusters; the end of the disk may cut the last.
    fn clusters(&mut self) -> Range<usize> {
        let len = self.model.count();
        let start = self.random.below(len.div_ceil(self.cluster)) * self.cluster;
        let count = 1 + self.random.below(2);
        start..(start + count * self.cluster).min(len)
    }

    /// Returns the blocks of a zero or a discard: often whole clusters, if they are not too large
    /// to be checked often.
    fn cleared_place(&mut self) -> Range<usize> {
        if self.random.below(self.cluster.max(BLOCKS_MAX)) < BLOCKS_MAX / 2 {
            self.clusters()
        } else {
            self.place()
        }
    }

    fn offset(range: &Range<usize>) -> (u64, u64) {
        let (start, len) = (range.start * BLOCK, range.len() * BLOCK);
        (start as u64, len as u64)
    }

    /// Chooses another cluster for all threads, and empties it.
    fn heat(&mut self) {
        let range = self.clusters();
        let start = range.start / self.cluster;
        if self.random.percent(50) {
            self.discard_range(range);
        } else {
            self.zero_range(range, Zeros::Any);
        }
        self.hot.store(start, Ordering::Relaxed);
    }

    fn write(&mut self) {
        let range = self.place();
        let version = self.model.new_version();
        self.buf.resize(range.len() * BLOCK, 0);
        self.model.fill(&mut self.buf, range.start, version);
        let cut = self.random.below(self.buf.len() + 1);
        let parts = [&self.buf[..cut], &self.buf[cut..]].map(IoSlice::new);
        let mut locked = self.model.lock(range.clone());
        self.device
            .write_vectored_at(&parts, Self::offset(&range).0)
            .unwrap();
        locked.set(version);
    }

    fn fill_from(&mut self, range: &Range<usize>) {
        self.buf.resize(range.len() * BLOCK, 0);
        let cut = self.random.below(self.buf.len() + 1);
        let (a, b) = self.buf.split_at_mut(cut);
        self.device
            .read_vectored_at(&mut [a, b].map(IoSliceMut::new), Self::offset(range).0)
            .unwrap();
    }

    fn read(&mut self) {
        let range = self.place();
        let model = self.model;
        let locked = model.lock(range.clone());
        self.fill_from(&range);
        locked.assert_equal(model, &self.buf);
    }

    /// Reads without locks: other threads may write the same blocks.
    fn read_beside_writers(&mut self) {
        let range = self.place();
        self.fill_from(&range);
        self.model.assert_not_foreign(&self.buf, range.start);
    }

    fn zero(&mut self, zeros: Zeros) {
        let range = self.cleared_place();
        self.zero_range(range, zeros);
    }

    fn zero_range(&mut self, range: Range<usize>, zeros: Zeros) {
        let (offset, len_bytes) = Self::offset(&range);
        let mut locked = self.model.lock(range);
        let done = match zeros {
            Zeros::Any => self.device.write_zeroes(offset, len_bytes),
            Zeros::Allocated => self.device.write_allocated_zeroes(offset, len_bytes),
        };
        done.unwrap();
        locked.set(0);
    }

    fn discard(&mut self) {
        let range = self.cleared_place();
        self.discard_range(range);
    }

    fn discard_range(&mut self, range: Range<usize>) {
        let (offset, len_bytes) = Self::offset(&range);
        let model = self.model;
        let mut locked = model.lock(range.clone());
        self.device.discard(offset, len_bytes).unwrap();
        self.fill_from(&range);
        locked.discarded(model, &self.buf);
    }

    /// Asserts that what the device does not store as data reads as zeros.
    fn ask_allocation(&mut self) {
        let range = self.place();
        let (offset, len_bytes) = Self::offset(&range);
        let model = self.model;
        let locked = model.lock(range);
        let (kind, count) = self.device.allocation(offset, len_bytes).unwrap();
        assert!((1..=len_bytes).contains(&count));
        if kind != Allocation::Data {
            locked.assert_zeros(count as usize / BLOCK);
        }
        let (_, count) = self.device.map_entry(offset, len_bytes).unwrap();
        assert!((1..=len_bytes).contains(&count));
    }
}
