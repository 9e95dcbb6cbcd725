//! How far to read ahead of a sequential reader. Linux: mm/readahead.c.
//!
//! ```text
//!        |<---- window: brought in together ---->|
//!        |  asked for  |M                        |
//!                       ^ mark: whoever reads this page makes a thread bring the next window in, which is
//!                         twice as large, while the reader still has this one to read
//! ```
//!
//! A read that neither starts the file, nor goes on where a window ended, nor follows pages that
//! are in memory already, is random: it gets what it asks for and no more.

use std::ops::Range;

/// Pages of the first window: 64 KiB.
const WINDOW_MIN: u64 = 16;
/// Pages of the longest window: 2 MiB; less where the whole cache is small.
const WINDOW_MAX: u64 = 512;

/// What a program says about how it will read. Linux: posix_fadvise(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadPattern {
    /// Find out by watching.
    #[default]
    Normal,
    /// From front to end: windows grow twice as large.
    Sequential,
    /// Here and there: nothing is read ahead.
    Random,
}

/// What to bring in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Pages, from the first that is missing.
    pub(super) pages: Range<u64>,
    /// The page to mark, if any.
    pub(super) mark: Option<u64>,
}

impl Plan {
    /// The first `count` pages, and the rest if there is any.
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

/// The window of the last stream that was seen.
#[derive(Debug, Default)]
pub(super) struct Readahead {
    pub(super) pattern: ReadPattern,
    window: Range<u64>,
}

impl Readahead {
    /// For a page that is missing and asked for with `wanted` pages from there on; `history` pages
    /// before it are in memory.
    pub(super) fn on_miss(&mut self, index: u64, wanted: u64, history: u64) -> Plan {
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
            return Plan {
                pages: index..index.saturating_add(wanted),
                mark: None,
            };
        }
        let len = match index == self.window.end && !self.window.is_empty() {
            // Whoever takes more than a window at once, and again, shall find the next one begun.
            true => self.grown().max(wanted.saturating_add(WINDOW_MAX)),
            false => (2 * wanted.min(max) + 2 * history)
                .next_power_of_two()
                .clamp(WINDOW_MIN, max)
                .max(wanted),
        };
        let end = index.saturating_add(len);
        self.window = index..end;
        Plan {
            pages: index..end,
            mark: (wanted < len).then(|| index + wanted),
        }
    }

    /// For a reader who came to the marked page; `missing` is the first page after it that is not
    /// in memory.
    pub(super) fn on_mark(&mut self, missing: u64) -> Plan {
        let len = if missing == self.window.end {
            self.grown()
        } else {
            2 * WINDOW_MIN
        };
        self.window = missing..missing.saturating_add(len);
        Plan {
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
    fn a_sequential_reader_gets_growing_windows_ahead_of_it() {
        let mut state = Readahead::default();
        assert_eq!(
            state.on_miss(0, 1, 0),
            Plan {
                pages: 0..16,
                mark: Some(1)
            }
        );
        assert_eq!(
            state.on_mark(16),
            Plan {
                pages: 16..48,
                mark: Some(16)
            }
        );
        assert_eq!(
            state.on_mark(48),
            Plan {
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
    fn random_reads_get_what_they_ask_for() {
        let mut state = Readahead::default();
        assert_eq!(
            state.on_miss(5000, 2, 0),
            Plan {
                pages: 5000..5002,
                mark: None
            }
        );
        assert_eq!(
            state.on_miss(70, 1, 0),
            Plan {
                pages: 70..71,
                mark: None
            }
        );
        state.pattern = ReadPattern::Random;
        assert_eq!(
            state.on_miss(0, 1, 0),
            Plan {
                pages: 0..1,
                mark: None
            }
        );
        assert_eq!(
            state.on_miss(1, 1, 1),
            Plan {
                pages: 1..2,
                mark: None
            }
        );
    }

    #[test]
    fn pages_in_memory_before_a_miss_are_a_history() {
        let mut state = Readahead::default();
        assert_eq!(state.on_miss(500, 1, 3).pages, 500..516);
        assert_eq!(state.on_miss(900, 4, 4).pages, 900..904);
    }

    #[test]
    fn a_large_read_is_one_window() {
        let mut state = Readahead::default();
        assert_eq!(
            state.on_miss(0, 4000, 0),
            Plan {
                pages: 0..4000,
                mark: None
            }
        );
        assert_eq!(
            state.on_miss(4000, 4000, 16),
            Plan {
                pages: 4000..8512,
                mark: Some(8000)
            }
        );
    }

    #[test]
    fn another_stream_goes_on_from_its_own_mark() {
        let mut state = Readahead::default();
        state.on_miss(0, 1, 0);
        assert_eq!(state.on_mark(9000).pages, 9000..9032);
    }
}
