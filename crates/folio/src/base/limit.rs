//! A shared count with an upper limit.

use super::sync::atomic::{AtomicU64, Ordering};
use super::{Errno, Result};

/// A count that never exceeds its limit, even if several threads add at a time. Linux:
/// `percpu_counter_limited_add`.
#[derive(Debug)]
pub struct Limit {
    used: AtomicU64,
    max: u64,
}

impl Limit {
    /// Creates a limit of `max`, of which nothing is used.
    pub fn new(max: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            max,
        }
    }

    /// Takes `count`.
    ///
    /// # Errors
    /// ENOSPC if less than `count` is free; nothing is taken then.
    pub fn take(&self, count: u64) -> Result<()> {
        let add = |used: u64| used.checked_add(count).filter(|used| *used <= self.max);
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.map(drop).map_err(|_| Errno::NOSPC.into())
    }

    /// Returns `count` that was taken.
    pub fn give_back(&self, count: u64) {
        self.used.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the limit.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns how much can still be taken.
    pub fn free(&self) -> u64 {
        self.max - self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_beyond_the_limit_takes_nothing() {
        let limit = Limit::new(3);
        assert!(limit.take(4).is_err());
        assert!(limit.take(u64::MAX).is_err());
        limit.take(2).unwrap();
        assert!(limit.take(2).is_err());
        assert_eq!(limit.free(), 1);
        limit.take(1).unwrap();
        assert!(limit.take(u64::MAX).is_err());
        limit.give_back(3);
        assert_eq!((limit.free(), limit.max()), (3, 3));
    }
}
