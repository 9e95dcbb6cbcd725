//! How far to read ahead of a sequential reader. Linux: mm/readahead.c.
//!
//! ```text
//!   reads:      |---|  |---|  |---|
//!   brought in: [ 32     ][ 64            ][ 128 ...           up to 512 pages
//!                          ^ a miss where the last window ended: sequential, so the window doubles
//! ```

/// Pages of the first window: 128 KiB.
const WINDOW_MIN: u64 = 32;
/// Pages of the longest window: 2 MiB.
const WINDOW_MAX: u64 = 512;

/// Where the last read ended and what was brought in then.
#[derive(Debug, Default)]
pub(super) struct Readahead {
    next: u64,
    window: u64,
}

impl Readahead {
    /// How many pages to bring in for a miss at `first` by a read of `count` pages.
    pub(super) fn on_miss(&mut self, first: u64, count: u64) -> u64 {
        let is_sequential = first == self.next;
        self.window = match is_sequential {
            true => (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX),
            false => 0,
        };
        let total = count.max(self.window);
        self.next = first + total;
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_misses_double_and_random_ones_stop() {
        let mut state = Readahead::default();
        assert_eq!(state.on_miss(0, 1), 32);
        assert_eq!(state.on_miss(32, 1), 64);
        assert_eq!(state.on_miss(96, 1), 128);
        assert_eq!(state.on_miss(5000, 2), 2);
        assert_eq!(state.on_miss(5002, 1), 32);
        assert_eq!(state.on_miss(5034, 4000), 4000);
    }
}
