//! Sequential readers of an object, and how far to read ahead of each. Linux: mm/readahead.c.

use crate::parts::REQUEST_PARTS;
use std::ops::Range;

/// Parts ahead of all readers, at most: more than the requests in flight, which thus continue while
/// the readers use what has arrived. Readers share them, so that all fit into memory.
const WINDOW_PARTS_MAX: u64 = 12 * REQUEST_PARTS;
/// Growth of the window with each read: a wait for the store costs more than some surplus parts.
const GROWTH: u64 = 4;
/// Parts by which a read may come late.
const DELAY_PARTS_MAX: u64 = 2 * REQUEST_PARTS;
/// Readers that are followed at a time.
const STREAMS_MAX: usize = 8;
/// Reads of the object without one of a reader, after which it has no share.
const IDLE_READS_MAX: u64 = 64;

struct Stream {
    /// The part after the last one that was read.
    next: u64,
    /// Parts to read ahead.
    window: u64,
    /// The part after the last one that was requested ahead.
    ahead: u64,
    /// The number of its last read.
    last_read: u64,
}

impl Stream {
    /// Whether a read belongs to this reader, whose threads may overtake one another.
    fn has(&self, read: &Range<u64>) -> bool {
        read.start <= self.ahead && self.next <= read.end + DELAY_PARTS_MAX
    }
}

/// The sequential readers of one object, most recent last.
#[derive(Default)]
pub(crate) struct ReadAhead {
    streams: Vec<Stream>,
    /// Counts reads.
    reads: u64,
}

impl ReadAhead {
    /// Notes a read of some parts; returns the parts to request ahead. Reading ahead begins with a
    /// read that has to wait for the store, so a reader of cached parts makes no requests.
    pub(crate) fn note(&mut self, read: &Range<u64>, is_miss: bool) -> Range<u64> {
        self.reads += 1;
        let found = self.streams.iter().position(|stream| stream.has(read));
        let Some(at) = found else {
            // The reader that was idle longest makes room.
            if self.streams.len() == STREAMS_MAX {
                self.streams.remove(0);
            }
            self.streams.push(Stream {
                next: read.end,
                window: 0,
                ahead: read.end,
                last_read: self.reads,
            });
            return read.end..read.end;
        };
        let mut stream = self.streams.remove(at);
        stream.last_read = self.reads;
        let share = self.share();
        if stream.next < read.end {
            stream.next = read.end;
            if is_miss || stream.window > 0 {
                let base = stream.window.max(read.end - read.start);
                stream.window = base * GROWTH;
            }
        }
        stream.window = stream.window.min(share);
        stream.ahead = stream.ahead.max(read.end);
        // In whole requests, as soon as there is room for one.
        let room = (stream.next + stream.window).saturating_sub(stream.ahead);
        let start = stream.ahead;
        stream.ahead += if stream.window < REQUEST_PARTS {
            room
        } else {
            room - room % REQUEST_PARTS
        };
        let due = start..stream.ahead;
        self.streams.push(stream);
        due
    }

    /// Returns the window of one more reader beside those that read ahead now.
    fn share(&self) -> u64 {
        let is_active =
            |stream: &&Stream| stream.window > 0 && self.reads - stream.last_read <= IDLE_READS_MAX;
        WINDOW_PARTS_MAX / (1 + self.streams.iter().filter(is_active).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_for_sequential_reads_only() {
        let mut ahead = ReadAhead::default();
        assert!(ahead.note(&(100..101), true).is_empty());
        assert!(ahead.note(&(7..8), true).is_empty());
        assert_eq!(ahead.note(&(101..102), true), 102..106);
        assert_eq!(ahead.note(&(102..103), false), 106..106);
        assert!(ahead.note(&(900..901), true).is_empty());
        let mut end = 106;
        for part in 103..400 {
            let due = ahead.note(&(part..part + 1), false);
            assert!(due.start == end && due.end <= part + 1 + WINDOW_PARTS_MAX);
            end = due.end;
        }
        assert!(end > 400 + WINDOW_PARTS_MAX / 2);
    }

    #[test]
    fn readers_share_the_window() {
        let mut ahead = ReadAhead::default();
        let windows = |ahead: &ReadAhead| -> Vec<u64> {
            ahead.streams.iter().map(|stream| stream.window).collect()
        };
        for part in 0..32 {
            for reader in 0..3 {
                let start = reader * 10_000 + part;
                ahead.note(&(start..start + 1), true);
            }
        }
        assert_eq!(windows(&ahead), [WINDOW_PARTS_MAX / 3; 3]);
        // Two readers have ended.
        for part in 32..32 + IDLE_READS_MAX + 8 {
            ahead.note(&(part..part + 1), true);
        }
        assert_eq!(windows(&ahead).last(), Some(&WINDOW_PARTS_MAX));
    }

    #[test]
    fn reads_of_one_part_in_pieces_do_not_grow_the_window() {
        let mut ahead = ReadAhead::default();
        for _ in 0..16 {
            assert!(ahead.note(&(5..6), true).is_empty());
        }
    }

    #[test]
    fn reader_of_cached_parts_requests_nothing() {
        let mut ahead = ReadAhead::default();
        for part in 0..16 {
            assert!(ahead.note(&(part..part + 1), false).is_empty());
        }
        assert_eq!(ahead.note(&(16..17), true), 17..21);
    }

    #[test]
    fn reads_that_overtake_are_one_stream() {
        let mut ahead = ReadAhead::default();
        ahead.note(&(0..16), true);
        assert_eq!(ahead.note(&(16..32), true), 32..96);
        assert_eq!(ahead.note(&(48..64), false), 96..256);
        assert!(ahead.note(&(32..48), false).is_empty());
        assert_eq!(ahead.note(&(64..80), false), 256..272);
        assert_eq!(ahead.streams.len(), 1);
    }
}
