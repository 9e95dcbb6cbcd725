//! Compares two devices on all cores; what both do not store is not read.

use super::copy::{PIECE_BYTES, on_threads, thread_count};
use super::zeros;
use crate::base::{Errno, Error, Result};
use crate::block::{Allocation, Device};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Differences are told by the sector.
const SECTOR_BYTES: u64 = 512;
/// Most bytes skipped at once, so that a cancelled comparison ends soon.
const SKIP_BYTES: u64 = 1 << 30;

/// What a comparison is like.
pub struct CompareOptions<'a> {
    /// Threads; as many as the machine has cores if zero.
    pub threads: usize,
    /// Size and allocation have to be the same, too.
    pub is_strict: bool,
    /// Asked before each piece; the comparison then ends with EINTR.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Told after each piece how many bytes it was, from any thread.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Default for CompareOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 0,
            is_strict: false,
            is_cancelled: &|| false,
            progress: &|_| {},
        }
    }
}

/// What differs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The sizes, which count only if the comparison is strict.
    Size,
    /// What is stored at this offset and what is not, which counts only if the comparison is
    /// strict.
    Allocation(u64),
    /// The bytes in the sector at this offset.
    Content(u64),
}

/// What came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// The first difference that counts.
    pub difference: Option<Difference>,
    /// The sizes differ.
    pub is_size_different: bool,
}

/// Compares `first` with `second`. If one is shorter, it counts as followed by zeros.
///
/// Errors: EINTR if it was cancelled, else the devices'.
pub fn compare(
    first: &dyn Device,
    second: &dyn Device,
    options: &CompareOptions<'_>,
) -> Result<Comparison> {
    let is_size_different = first.len_bytes() != second.len_bytes();
    if is_size_different && options.is_strict {
        return Ok(Comparison {
            difference: Some(Difference::Size),
            is_size_different,
        });
    }
    let pair = DevicePair {
        sides: [first, second],
        len_bytes: first.len_bytes().max(second.len_bytes()),
        place: Mutex::default(),
        options,
    };
    let found: Mutex<Option<Difference>> = Mutex::new(None);
    let is_found = AtomicBool::new(false);
    on_threads(thread_count(options.threads), |stop| {
        let mut bufs = [vec![0; PIECE_BYTES as usize], vec![0; PIECE_BYTES as usize]];
        // Pieces are handed out in order: once a difference is known, only pieces before it are
        // still at work.
        while !stop.load(Ordering::Relaxed) && !is_found.load(Ordering::Relaxed) {
            if (options.is_cancelled)() {
                return Err(Error::new(Errno::INTR, "cancelled"));
            }
            let Some(piece) = pair.next()? else { break };
            let difference = match piece.difference {
                Some(difference) => Some(difference),
                None => pair.compare(&piece, &mut bufs)?,
            };
            if let Some(difference) = difference {
                is_found.store(true, Ordering::Relaxed);
                let mut found = found.lock();
                if found.is_none_or(|other| offset(difference) < offset(other)) {
                    *found = Some(difference);
                }
            }
            (options.progress)(piece.len_bytes);
        }
        Ok(())
    })?;
    Ok(Comparison {
        difference: found.into_inner(),
        is_size_different,
    })
}

fn offset(difference: Difference) -> u64 {
    match difference {
        Difference::Size => 0,
        Difference::Allocation(offset) | Difference::Content(offset) => offset,
    }
}

/// Both devices, and how far the comparison is.
struct DevicePair<'a> {
    sides: [&'a dyn Device; 2],
    /// The longer one's.
    len_bytes: u64,
    place: Mutex<PairPosition>,
    options: &'a CompareOptions<'a>,
}

#[derive(Default)]
struct PairPosition {
    next: u64,
    /// Up to here neither device changes its kind.
    end: u64,
    has_data: [bool; 2],
    /// They differ in what they store.
    is_mismatch: bool,
}

struct PairPiece {
    offset: u64,
    len_bytes: u64,
    has_data: [bool; 2],
    difference: Option<Difference>,
}

impl DevicePair<'_> {
    /// What comes next; nothing at the end.
    fn next(&self) -> Result<Option<PairPiece>> {
        let mut place = self.place.lock();
        let offset = place.next;
        if offset >= self.len_bytes {
            return Ok(None);
        }
        if offset >= place.end {
            *place = self.look(offset)?;
        }
        let limit = match place.has_data {
            [false, false] => SKIP_BYTES,
            _ => PIECE_BYTES - offset % PIECE_BYTES,
        };
        place.next = place.end.min(offset + limit);
        let difference = place.is_mismatch.then_some(Difference::Allocation(offset));
        Ok(Some(PairPiece {
            offset,
            len_bytes: place.next - offset,
            has_data: place.has_data,
            difference,
        }))
    }

    /// What both have at `offset`, and how far.
    fn look(&self, offset: u64) -> Result<PairPosition> {
        let left = self.len_bytes - offset;
        let mut place = PairPosition {
            next: offset,
            end: self.len_bytes,
            ..PairPosition::default()
        };
        let mut kinds = [(true, Allocation::Hole); 2];
        for (index, side) in self.sides.iter().enumerate() {
            let there = side.len_bytes().saturating_sub(offset).min(left);
            let (kind, count) = match there {
                0 => ((false, Allocation::Hole), left),
                _ if self.options.is_strict => {
                    let (entry, count) = side.map_entry(offset, there)?;
                    ((entry.is_present, entry.kind), count)
                }
                _ => {
                    let (kind, count) = side.allocation(offset, there)?;
                    ((true, kind), count)
                }
            };
            kinds[index] = kind;
            place.has_data[index] = kind.1 == Allocation::Data;
            // A device that answers with nothing would keep us here forever.
            place.end = place.end.min(offset + count.max(1));
        }
        let same = |kind: Allocation| kind == Allocation::Data;
        place.is_mismatch = self.options.is_strict
            && (kinds[0].0 != kinds[1].0 || same(kinds[0].1) != same(kinds[1].1));
        Ok(place)
    }

    /// The first sector of a piece in which they differ.
    fn compare(&self, piece: &PairPiece, bufs: &mut [Vec<u8>; 2]) -> Result<Option<Difference>> {
        if piece.has_data == [false, false] {
            return Ok(None);
        }
        let len = piece.len_bytes as usize;
        for ((side, buf), has_data) in self.sides.iter().zip(bufs.iter_mut()).zip(piece.has_data) {
            if has_data {
                side.read_at(&mut buf[..len], piece.offset)?;
            }
        }
        let [first, second] = bufs.each_ref().map(|buf| &buf[..len]);
        let sector = SECTOR_BYTES as usize;
        let at = match piece.has_data {
            [true, true] if first == second => None,
            [true, true] => first
                .chunks(sector)
                .zip(second.chunks(sector))
                .position(|(a, b)| a != b),
            [true, false] => first.chunks(sector).position(|part| !zeros::is_zero(part)),
            _ => second.chunks(sector).position(|part| !zeros::is_zero(part)),
        };
        Ok(at.map(|index| Difference::Content(piece.offset + index as u64 * SECTOR_BYTES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn the_first_difference_is_told_by_its_sector() {
        let (first, second) = (MemoryDevice::new(20 << 20), MemoryDevice::new(21 << 20));
        let run = |options: &CompareOptions<'_>| compare(&first, &second, options).unwrap();
        let lax = CompareOptions::default();
        assert_eq!(
            run(&lax),
            Comparison {
                difference: None,
                is_size_different: true
            }
        );
        let strict = CompareOptions {
            is_strict: true,
            ..CompareOptions::default()
        };
        assert_eq!(run(&strict).difference, Some(Difference::Size));
        second.write_at(&[1], (20 << 20) + 700).unwrap();
        assert_eq!(
            run(&lax).difference,
            Some(Difference::Content((20 << 20) + 512))
        );
        for at in [19 << 20, 5 << 20, (3 << 20) - 1] {
            first.write_at(&[7], at).unwrap();
            assert_eq!(
                run(&lax).difference,
                Some(Difference::Content(at / 512 * 512))
            );
        }
    }
}
