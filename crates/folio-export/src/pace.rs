//! Whether a disk answers small requests so quickly that a thread of their own would cost more.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest time that a request may take to count as quick.
const QUICK: Duration = Duration::from_micros(100);
/// Requests that run in threads of their own after a slow one.
const PARALLEL_COUNT: u32 = 128;

/// The pace of the recent requests of one client.
#[derive(Default)]
pub(crate) struct Pace {
    /// Requests that still run in threads of their own, although they might be quick.
    parallel_left: AtomicU32,
}

impl Pace {
    /// Returns whether recent requests were quick.
    pub(crate) fn is_quick(&self) -> bool {
        self.parallel_left.load(Ordering::Relaxed) == 0
    }

    /// Records how long a request took.
    pub(crate) fn record(&self, took: Duration) {
        // Two threads may count as one here; only speed depends on it.
        let parallel_left = if took > QUICK {
            PARALLEL_COUNT
        } else {
            match self.parallel_left.load(Ordering::Relaxed) {
                0 => return,
                count => count - 1,
            }
        };
        self.parallel_left.store(parallel_left, Ordering::Relaxed);
    }
}
