//! Compares two devices on all cores, without reading ranges that are holes in both.

use super::copy::{PIECE_BYTES, on_threads, thread_count};
use super::zeros;
use crate::base::lock::Mutex;
use crate::base::{AlignedBuffer, Errno, Error, Result};
use crate::block::{Allocation, Device};
use std::sync::atomic::{AtomicBool, Ordering};

/// Differences are reported by sector, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Largest skip in bytes, so that a canceled comparison ends soon.
const SKIP_BYTES: u64 = 1 << 30;

/// Options of [`compare`].
pub struct CompareOptions<'a> {
    /// Number of threads, at most 16; 0 for as many as the machine has cores.
    pub threads: usize,
    /// Size and allocation must be the same as well (`qemu-img compare -s`).
    pub is_strict: bool,
    /// Called before each piece; if it returns true, the comparison fails with EINTR.
    pub is_canceled: &'a (dyn Fn() -> bool + Sync),
    /// Called after each piece, from any thread, with its size in bytes.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Default for CompareOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 0,
            is_strict: false,
            is_canceled: &|| false,
            progress: &|_| {},
        }
    }
}

/// The first difference of two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The sizes differ; strict comparisons only.
    Size,
    /// The allocation differs at this offset in bytes; strict comparisons only.
    Allocation(u64),
    /// The bytes differ in the sector at this offset in bytes.
    Content(u64),
}

/// The result of [`compare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// The first difference.
    pub difference: Option<Difference>,
    /// The sizes differ.
    pub is_size_different: bool,
}

/// Compares `first` with `second`. A shorter device counts as followed by zeros.
///
/// # Errors
///
/// EINTR if the comparison was canceled, else the devices' errors.
///
/// qemu-img: `compare`.
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
        position: Mutex::default(),
        options,
    };
    let found: Mutex<Option<Difference>> = Mutex::new(None);
    let is_found = AtomicBool::new(false);
    on_threads(thread_count(options.threads), |stop| {
        let mut bufs = [(); 2].map(|()| AlignedBuffer::new(PIECE_BYTES as usize));
        // Pieces are handed out in order: once a difference is found, only pieces before it are
        // still compared.
        while !stop.load(Ordering::Relaxed) && !is_found.load(Ordering::Relaxed) {
            if (options.is_canceled)() {
                return Err(Error::new(Errno::INTR, "canceled"));
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

/// Both devices, and the position of the comparison.
struct DevicePair<'a> {
    sides: [&'a dyn Device; 2],
    /// The size of the longer one.
    len_bytes: u64,
    position: Mutex<PairPosition>,
    options: &'a CompareOptions<'a>,
}

#[derive(Default)]
struct PairPosition {
    next: u64,
    /// Up to this offset each device is all data, or all hole.
    end: u64,
    has_data: [bool; 2],
    /// Their allocations differ.
    is_mismatch: bool,
}

struct PairPiece {
    offset: u64,
    len_bytes: u64,
    has_data: [bool; 2],
    difference: Option<Difference>,
}

impl DevicePair<'_> {
    /// Returns the next piece; none at the end.
    fn next(&self) -> Result<Option<PairPiece>> {
        let mut position = self.position.lock();
        let offset = position.next;
        if offset >= self.len_bytes {
            return Ok(None);
        }
        if offset >= position.end {
            *position = self.look(offset)?;
        }
        let limit = match position.has_data {
            [false, false] => SKIP_BYTES,
            _ => PIECE_BYTES - offset % PIECE_BYTES,
        };
        position.next = position.end.min(offset + limit);
        let difference = position
            .is_mismatch
            .then_some(Difference::Allocation(offset));
        Ok(Some(PairPiece {
            offset,
            len_bytes: position.next - offset,
            has_data: position.has_data,
            difference,
        }))
    }

    /// Looks up the allocation of both at `offset`.
    fn look(&self, offset: u64) -> Result<PairPosition> {
        let left = self.len_bytes - offset;
        let mut position = PairPosition {
            next: offset,
            end: self.len_bytes,
            ..PairPosition::default()
        };
        let mut kinds = [(true, Allocation::Hole); 2];
        for (index, side) in self.sides.iter().enumerate() {
            let available = side.len_bytes().saturating_sub(offset).min(left);
            let (kind, count) = match available {
                0 => ((false, Allocation::Hole), left),
                _ if self.options.is_strict => {
                    let (entry, count) = side.map_entry(offset, available)?;
                    ((entry.is_present, entry.kind), count)
                }
                _ => {
                    let (kind, count) = side.allocation(offset, available)?;
                    ((true, kind), count)
                }
            };
            kinds[index] = kind;
            position.has_data[index] = kind.1 == Allocation::Data;
            // A count of zero would loop forever.
            position.end = position.end.min(offset + count.max(1));
        }
        let is_data = |kind: Allocation| kind == Allocation::Data;
        position.is_mismatch = self.options.is_strict
            && (kinds[0].0 != kinds[1].0 || is_data(kinds[0].1) != is_data(kinds[1].1));
        Ok(position)
    }

    /// Returns the first sector of a piece in which they differ.
    fn compare(
        &self,
        piece: &PairPiece,
        bufs: &mut [AlignedBuffer; 2],
    ) -> Result<Option<Difference>> {
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
    fn first_difference_is_reported_by_sector() {
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
