//! A limit of bytes per second.

use crate::base::condvar::Condvar;
use crate::base::lock::Mutex;
use std::time::{Duration, Instant};

/// Longest wait between two looks at the cancellation.
const POLL: Duration = Duration::from_millis(50);

/// Delays its callers so that together they transfer no more than a number of bytes in a second.
pub(in crate::block) struct Throttle {
    bytes_per_sec: u64,
    start: Instant,
    done_bytes: Mutex<u64>,
    /// Never notified: only its timeout ends a wait.
    timer: Condvar,
}

impl Throttle {
    /// Creates a limit; 0 for none.
    pub(in crate::block) fn new(bytes_per_sec: u64) -> Self {
        Self {
            bytes_per_sec,
            start: Instant::now(),
            done_bytes: Mutex::new(0),
            timer: Condvar::new(),
        }
    }

    /// Waits until the bytes transferred before allow `len_bytes` more.
    pub(in crate::block) fn wait(&self, len_bytes: u64, is_canceled: &dyn Fn() -> bool) {
        if self.bytes_per_sec == 0 {
            return;
        }
        let mut done = self.done_bytes.lock();
        let due = *done as f64 / self.bytes_per_sec as f64;
        *done += len_bytes;
        loop {
            let left = due - self.start.elapsed().as_secs_f64();
            if left <= 0.0 || is_canceled() {
                return;
            }
            let left = Duration::try_from_secs_f64(left).unwrap_or(POLL);
            self.timer.wait_for(&mut done, left.min(POLL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canceled_wait_ends_and_no_limit_never_waits() {
        let none = Throttle::new(0);
        none.wait(u64::MAX, &|| false);
        none.wait(u64::MAX, &|| false);
        // The second wait would take longer than any test.
        let slow = Throttle::new(1);
        slow.wait(1 << 40, &|| false);
        slow.wait(1, &|| true);
        assert_eq!(*slow.done_bytes.lock(), (1 << 40) + 1);
    }
}
