//! Copies one device to another on all cores: holes stay holes, and zeros become holes.
//!
//! ```text
//!   cursor (lock)   what comes next, in the source's order: a piece of data, or a hole
//!     v
//!   each thread     read the piece -> (one at a time) find runs of zeros in it, write the rest
//! ```
//!
//! Every thread reads and writes in turn, so that reading, unpacking and writing go on at once. A
//! thread has one buffer of [`PIECE_BYTES`]: that is all the memory there is.

use super::zeros;
use crate::base::{Errno, Error, Result};
use crate::block::{Allocation, Device};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes of data copied at once: large enough for few calls, small enough for a processor's
/// cache.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Most bytes of a hole handed out at once, so that a cancelled copy ends soon.
const HOLE_BYTES: u64 = 1 << 30;
/// Most threads: more only wait for the host's page cache.
const THREADS_MAX: usize = 16;
/// Zeros are looked for in runs of a multiple of this many bytes.
const GRAIN_BYTES: u64 = 512;

/// What a copy is like.
pub struct CopyOptions<'a> {
    /// Threads; as many as the machine has cores if zero.
    pub threads: usize,
    /// Shortest run of zeros that is not written, in bytes; rounded up to a multiple of 512. Zero:
    /// all is written, also what the source does not store.
    pub zero_run_bytes: u64,
    /// The target reads as zeros already, so zeros need not be written.
    pub is_target_zero: bool,
    /// Asked before each piece; the copy then ends with EINTR.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Told after each piece how many bytes of the source it was, from any thread.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Default for CopyOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 0,
            zero_run_bytes: 4096,
            is_target_zero: true,
            is_cancelled: &|| false,
            progress: &|_| {},
        }
    }
}

/// How many threads to start.
pub(super) fn thread_count(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
    .clamp(1, THREADS_MAX)
}

/// Copies all of `source` to the start of `target`. Nothing is flushed.
///
/// Errors: ENOSPC if the target is smaller, EINTR if it was cancelled, else the devices'.
pub fn copy(source: &dyn Device, target: &dyn Device, options: &CopyOptions<'_>) -> Result<()> {
    let len_bytes = source.len_bytes();
    if target.len_bytes() < len_bytes {
        let why = format!(
            "the target has {} bytes, the source {len_bytes}",
            target.len_bytes()
        );
        return Err(Error::new(Errno::NOSPC, why));
    }
    let cursor = SourceCursor::new(source, options.zero_run_bytes == 0);
    // A host lets one writer into a file at a time, and those that wait for it spin; others read
    // meanwhile.
    let writing = Mutex::new(());
    on_threads(thread_count(options.threads), |stop| {
        let mut buf = vec![0; PIECE_BYTES as usize];
        while !stop.load(Ordering::Relaxed) {
            if (options.is_cancelled)() {
                return Err(Error::new(Errno::INTR, "cancelled"));
            }
            let Some(piece) = cursor.next()? else { break };
            match piece.is_data {
                true => {
                    let buf = &mut buf[..piece.len_bytes as usize];
                    source.read_at(buf, piece.offset)?;
                    let _writing = writing.lock();
                    write_piece(target, buf, piece.offset, options)?;
                }
                false if options.is_target_zero => {}
                false => target.write_zeroes(piece.offset, piece.len_bytes)?,
            }
            (options.progress)(piece.len_bytes);
        }
        Ok(())
    })
}

/// Runs `work` on several threads; the first failure stops all and is the result.
pub(super) fn on_threads(
    count: usize,
    work: impl Fn(&AtomicBool) -> Result<()> + Sync,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        let run = || {
            if let Err(error) = work(&stop) {
                stop.store(true, Ordering::Relaxed);
                failure.lock().get_or_insert(error);
            }
        };
        for _ in 1..count {
            scope.spawn(run);
        }
        run();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

/// A part of the source.
pub(super) struct SourcePiece {
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// Else it reads as zeros.
    pub(super) is_data: bool,
}

/// Where in the source the copy is.
pub(super) struct SourceCursor<'a> {
    source: &'a dyn Device,
    /// Everything counts as data.
    is_all_data: bool,
    place: Mutex<CursorPosition>,
}

#[derive(Default)]
struct CursorPosition {
    next: u64,
    /// Up to here the source is of one kind.
    end: u64,
    is_data: bool,
}

impl<'a> SourceCursor<'a> {
    pub(super) fn new(source: &'a dyn Device, is_all_data: bool) -> Self {
        Self {
            source,
            is_all_data,
            place: Mutex::default(),
        }
    }

    /// The next piece; none at the end. Data ends at multiples of [`PIECE_BYTES`].
    pub(super) fn next(&self) -> Result<Option<SourcePiece>> {
        let len_bytes = self.source.len_bytes();
        let mut place = self.place.lock();
        let offset = place.next;
        if offset >= len_bytes {
            return Ok(None);
        }
        if offset >= place.end {
            let (kind, count) = match self.is_all_data {
                true => (Allocation::Data, len_bytes),
                false => self.source.allocation(offset, len_bytes - offset)?,
            };
            // A device that answers with nothing would keep us here forever.
            place.end = offset + count.clamp(1, len_bytes - offset);
            place.is_data = kind == Allocation::Data;
        }
        let end = match place.is_data {
            true => (offset / PIECE_BYTES + 1) * PIECE_BYTES,
            false => offset + HOLE_BYTES,
        };
        place.next = end.min(place.end);
        Ok(Some(SourcePiece {
            offset,
            len_bytes: place.next - offset,
            is_data: place.is_data,
        }))
    }
}

/// Writes what was read, but for runs of zeros that are long enough.
fn write_piece(
    target: &dyn Device,
    buf: &[u8],
    offset: u64,
    options: &CopyOptions<'_>,
) -> Result<()> {
    if options.zero_run_bytes == 0 {
        return target.write_at(buf, offset);
    }
    let grain = options
        .zero_run_bytes
        .next_multiple_of(GRAIN_BYTES)
        .min(PIECE_BYTES);
    for (is_zero, range) in zeros::Runs::new(buf, offset, grain as usize) {
        let at = offset + range.start as u64;
        match is_zero {
            false => target.write_at(&buf[range], at)?,
            true if options.is_target_zero => {}
            true => target.write_zeroes(at, range.len() as u64)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;
    use std::sync::atomic::AtomicU64;

    fn device(bytes: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write_at(bytes, 0).unwrap();
        device
    }

    fn content(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; device.len_bytes() as usize];
        device.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn all_of_it_arrives_whatever_the_target_held() {
        let mut bytes = vec![0; (3 << 20) + 512];
        bytes[1000] = 1;
        bytes[(1 << 20) - 1..(1 << 20) + 70_000].fill(2);
        *bytes.last_mut().unwrap() = 3;
        let source = device(&bytes);
        for (zero_run_bytes, is_target_zero) in
            [(0, false), (4096, true), (4096, false), (1, false)]
        {
            let target = device(&vec![if is_target_zero { 0 } else { 9 }; bytes.len()]);
            let done = AtomicU64::new(0);
            let options = CopyOptions {
                zero_run_bytes,
                is_target_zero,
                progress: &|count| {
                    done.fetch_add(count, Ordering::Relaxed);
                },
                ..CopyOptions::default()
            };
            copy(&source, &target, &options).unwrap();
            assert!(content(&target) == bytes);
            assert_eq!(done.into_inner(), bytes.len() as u64);
        }
    }

    #[test]
    fn ends_when_told_and_where_it_does_not_fit() {
        let (source, target) = (device(&[1; 8192]), device(&[0; 8191]));
        let refused = copy(&source, &target, &CopyOptions::default()).unwrap_err();
        assert_eq!(refused.errno(), Errno::NOSPC);
        let options = CopyOptions {
            is_cancelled: &|| true,
            ..CopyOptions::default()
        };
        assert_eq!(
            copy(&source, &source, &options).unwrap_err().errno(),
            Errno::INTR
        );
    }
}
