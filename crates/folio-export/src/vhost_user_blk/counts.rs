//! The number of requests by kind, counted for each queue.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests of a disk since its server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Requests for zeros.
    pub zeroes: u64,
    /// Requests that failed, of all kinds.
    pub failures: u64,
}

impl fmt::Display for RequestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reads {} ({} bytes), writes {} ({} bytes), flushes {}, discards {}, zeroes {}, \
             failures {}",
            self.reads,
            self.read_bytes,
            self.writes,
            self.written_bytes,
            self.flushes,
            self.discards,
            self.zeroes,
            self.failures,
        )
    }
}

/// The counters of one queue, in cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct QueueCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
    failures: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl QueueCounters {
    pub(super) fn count_read(&self, len_bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, len_bytes);
    }

    pub(super) fn count_write(&self, len_bytes: u64) {
        add(&self.writes, 1);
        add(&self.written_bytes, len_bytes);
    }

    pub(super) fn count_flush(&self) {
        add(&self.flushes, 1);
    }

    pub(super) fn count_discard(&self) {
        add(&self.discards, 1);
    }

    pub(super) fn count_zeroes(&self) {
        add(&self.zeroes, 1);
    }

    pub(super) fn count_failure(&self) {
        add(&self.failures, 1);
    }

    /// Adds the counters to a sum.
    pub(super) fn add_to(&self, sum: &mut RequestCounts) {
        let pairs = [
            (&mut sum.reads, &self.reads),
            (&mut sum.read_bytes, &self.read_bytes),
            (&mut sum.writes, &self.writes),
            (&mut sum.written_bytes, &self.written_bytes),
            (&mut sum.flushes, &self.flushes),
            (&mut sum.discards, &self.discards),
            (&mut sum.zeroes, &self.zeroes),
            (&mut sum.failures, &self.failures),
        ];
        for (sum, counter) in pairs {
            *sum += counter.load(Ordering::Relaxed);
        }
    }
}
