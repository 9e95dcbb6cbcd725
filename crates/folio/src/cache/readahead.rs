//! The readahead window of a sequential reader. Linux: mm/readahead.c.
//!
//! ```text
//!        |<------- window: read together ------->|
//!        |   wanted    |M                        |
//!                       ^ mark: a read of this page lets a thread read the next window, twice as large,
//!                         while the reader still has this one to read
//! ```
//!
//! A read is random if it neither starts the file, nor continues at the end of a window, nor
//! follows cached pages. It reads only the wanted pages.

use std::ops::Range;

/// Pages of the first window: 64 KiB.
const WINDOW_MIN: u64 = 16;
/// Pages of the longest window: 4 MiB, so that the threads still have work when the reader asks for
/// the next window; less where the whole cache is small.
const WINDOW_MAX: u64 = 1024;

/// The read pattern that a program announces. Linux: posix_fadvise(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadPattern {
    /// Detected from the reads.
    #[default]
    Normal,
    /// From start to end: the longest window is doubled.
    Sequential,
    /// At random: no readahead.
    Random,
}

/// The pages to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadaheadPlan {
    /// Page indexes, from the first absent page.
    pub(super) pages: Range<u64>,
    /// The page to mark, if any.
    pub(super) mark: Option<u64>,
}

impl ReadaheadPlan {
    /// Splits the plan after `count` pages; the second part is `None` if it would be empty.
    pub(super) fn split(self, count: u64) -> (Self, Option<Self>) {
        let Range { start, end } = self.pages;
        let middle = end.min(start.saturating_add(count));
        let later = (middle < end).then_some(Self {
            pages: middle..end,
            mark: self.mark,
        });
        (
            Self {
                pages: start..middle,
                mark: self.mark,
            },
            later,
        )
    }
}

/// The window of the last sequential stream. Linux: `struct file_ra_state`.
#[derive(Debug, Default)]
pub(super) struct ReadaheadState {
    pub(super) pattern: ReadPattern,
    window: Range<u64>,
}

impl ReadaheadState {
    /// Returns the plan for a miss at `index` by a reader that wants `wanted` pages from there;
    /// `history` pages before it are cached. Linux: `page_cache_sync_ra`.
    pub(super) fn on_miss(&mut self, index: u64, wanted: u64, history: u64) -> ReadaheadPlan {
        let max = self.max();
        let wanted = wanted.max(1);
        let is_sequential = match self.pattern {
            ReadPattern::Random => false,
            ReadPattern::Sequential => true,
            ReadPattern::Normal => {
                index == 0 || index == self.window.end || history > wanted.min(WINDOW_MIN - 1)
            }
        };
        if !is_sequential {
            return ReadaheadPlan {
                pages: index..index.saturating_add(wanted),
                mark: None,
            };
        }
        let len = if index == self.window.end && !self.window.is_empty() {
            // For a reader of more than a window at once, the next window starts early.
            self.grown().max(wanted.saturating_add(WINDOW_MAX))
        } else {
            (2 * wanted.min(max) + 2 * history)
                .next_power_of_two()
                .clamp(WINDOW_MIN, max)
                .max(wanted)
        };
        let end = index.saturating_add(len);
        self.window = index..end;
        ReadaheadPlan {
            pages: index..end,
            mark: (wanted < len).then(|| index + wanted),
        }
    }

    /// Returns the plan for a read of the marked page; `missing` is the first absent page after it.
    /// Linux: `page_cache_async_ra`.
    pub(super) fn on_mark(&mut self, missing: u64) -> ReadaheadPlan {
        let len = if missing == self.window.end {
            self.grown()
        } else {
            2 * WINDOW_MIN
        };
        self.window = missing..missing.saturating_add(len);
        ReadaheadPlan {
            pages: self.window.clone(),
            mark: Some(missing),
        }
    }

    fn grown(&self) -> u64 {
        (2 * (self.window.end - self.window.start))
            .next_power_of_two()
            .clamp(WINDOW_MIN, self.max())
    }

    fn max(&self) -> u64 {
        if self.pattern == ReadPattern::Sequential {
            2 * WINDOW_MAX
        } else {
            WINDOW_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_reads_get_growing_windows() {
        let mut state = ReadaheadState::default();
        assert_eq!(
            state.on_miss(0, 1, 0),
            ReadaheadPlan {
                pages: 0..16,
                mark: Some(1)
            }
        );
        assert_eq!(
            state.on_mark(16),
            ReadaheadPlan {
                pages: 16..48,
                mark: Some(16)
            }
        );
        assert_eq!(
            state.on_mark(48),
            ReadaheadPlan {
                pages: 48..112,
                mark: Some(48)
            }
        );
        let mut end = 112;
        for _ in 0..10 {
            end = state.on_mark(end).pages.end;
        }
        assert_eq!(state.on_mark(end).pages, end..end + WINDOW_MAX);
    }

    #[test]
    fn random_reads_have_no_readahead() {
        let mut state = ReadaheadState::default();
        assert_eq!(
            state.on_miss(5000, 2, 0),
            ReadaheadPlan {
                pages: 5000..5002,
                mark: None
            }
        );
        assert_eq!(
            state.on_miss(70, 1, 0),
            ReadaheadPlan {
                pages: 70..71,
                mark: None
            }
        );
        state.pattern = ReadPattern::Random;
        assert_eq!(
            state.on_miss(0, 1, 0),
            ReadaheadPlan {
                pages: 0..1,
                mark: None
            }
        );
        assert_eq!(
            state.on_miss(1, 1, 1),
            ReadaheadPlan {
                pages: 1..2,
                mark: None
            }
        );
    }

    #[test]
    fn cached_pages_before_a_miss_make_it_sequential() {
        let mut state = ReadaheadState::default();
        assert_eq!(state.on_miss(500, 1, 3).pages, 500..516);
        assert_eq!(state.on_miss(900, 4, 4).pages, 900..904);
    }

    #[test]
    fn large_read_is_one_window() {
        let mut state = ReadaheadState::default();
        assert_eq!(
            state.on_miss(0, 4000, 0),
            ReadaheadPlan {
                pages: 0..4000,
                mark: None
            }
        );
        assert_eq!(
            state.on_miss(4000, 4000, 16),
            ReadaheadPlan {
                pages: 4000..9024,
                mark: Some(8000)
            }
        );
    }

    #[test]
    fn second_stream_continues_at_its_own_mark() {
        let mut state = ReadaheadState::default();
        state.on_miss(0, 1, 0);
        assert_eq!(state.on_mark(9000).pages, 9000..9032);
    }
}
