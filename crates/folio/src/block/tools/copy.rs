//! Copies one device to another on all cores: holes stay holes, and zeros become holes.
//!
//! ```text
//!   cursor (lock)   the next piece in the source's order: data, a hole, or the backing file's
//!     v
//!   each thread     read the piece -> (in turn) find runs of zeros in it, write the rest
//! ```
//!
//! The pieces are written in the source's order, so the target's bytes are the same for any number
//! of threads, and its clusters are contiguous.
//!
//! Every thread reads and writes in turn, so that reading, decompressing and writing overlap. Each
//! thread has one buffer of [`PIECE_BYTES`], and there is no other memory.

use super::backed::{self, TargetBacking};
use super::throttle::Throttle;
use super::zeros;
use crate::base::condvar::Condvar;
use crate::base::lock::{Mutex, MutexGuard};
use crate::base::{AlignedBuffer, Errno, Error, Result};
use crate::block::{Allocation, Device};
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of a piece of data in bytes: large enough for few calls, small enough for a processor's
/// cache.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Largest piece of a hole in bytes, so that a canceled copy ends soon.
const HOLE_BYTES: u64 = 1 << 30;
/// Largest number of threads: more only wait for the host's page cache.
const THREADS_MAX: usize = 16;
/// Runs of zeros have a multiple of this many bytes.
const GRAIN_BYTES: u64 = 512;

/// Options of [`copy`] and [`crate::block::tools::copy_compressed`].
pub struct CopyOptions<'a> {
    /// Number of threads, at most 16; 0 for as many as the machine has cores.
    pub threads: usize,
    /// Shortest run of zeros that is not written, in bytes, rounded up to a multiple of 512. 0
    /// writes all bytes, also those of the source's holes (`qemu-img convert -S`).
    pub zero_run_bytes: u64,
    /// The target reads as zeros already, so zeros need no writes.
    pub is_target_zero: bool,
    /// The backing file of a new target: content that it has already is not copied. The target is
    /// not read, and `is_target_zero` is ignored.
    pub backing: Option<TargetBacking<'a>>,
    /// Largest number of bytes of data to copy in a second; 0 for any.
    pub bytes_per_sec: u64,
    /// Called before each piece; if it returns true, the copy fails with EINTR.
    pub is_canceled: &'a (dyn Fn() -> bool + Sync),
    /// Called after each piece, from any thread, with its size in bytes.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Default for CopyOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 0,
            zero_run_bytes: 4096,
            is_target_zero: true,
            backing: None,
            bytes_per_sec: 0,
            is_canceled: &|| false,
            progress: &|_| {},
        }
    }
}

/// Returns the number of threads to start.
pub(super) fn thread_count(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
    .clamp(1, THREADS_MAX)
}

/// Copies all of `source` to the start of `target`, without a flush.
///
/// # Errors
///
/// ENOSPC if the target is smaller, EINTR if the copy was canceled, else the devices' errors.
///
/// qemu-img: `convert`.
pub fn copy(source: &dyn Device, target: &dyn Device, options: &CopyOptions<'_>) -> Result<()> {
    let len_bytes = source.len_bytes();
    if target.len_bytes() < len_bytes {
        let why = format!(
            "the target has {} bytes, the source {len_bytes}",
            target.len_bytes()
        );
        return Err(Error::new(Errno::NOSPC, why));
    }
    let copy = OrderedCopy {
        source,
        target,
        options,
        cursor: SourceCursor::new(source, options),
        order: WriteOrder::default(),
        throttle: Throttle::new(options.bytes_per_sec),
    };
    on_threads(thread_count(options.threads), |stop| {
        let copied = copy.copy_pieces(stop);
        if copied.is_err() {
            // Wakes the threads that wait for a piece which will not come.
            stop.store(true, Ordering::Relaxed);
            copy.order.wake();
        }
        copied
    })
}

/// The state that all threads share.
struct OrderedCopy<'a> {
    source: &'a dyn Device,
    target: &'a dyn Device,
    options: &'a CopyOptions<'a>,
    cursor: SourceCursor<'a>,
    order: WriteOrder,
    throttle: Throttle,
}

impl OrderedCopy<'_> {
    /// The loop of one thread.
    fn copy_pieces(&self, stop: &AtomicBool) -> Result<()> {
        let mut buf = AlignedBuffer::new(PIECE_BYTES as usize);
        while !stop.load(Ordering::Relaxed) {
            if (self.options.is_canceled)() {
                return Err(Error::new(Errno::INTR, "canceled"));
            }
            let Some(piece) = self.cursor.next()? else {
                break;
            };
            let buf = &mut buf[..piece.len_bytes.min(PIECE_BYTES) as usize];
            if piece.kind == PieceKind::Data {
                self.throttle
                    .wait(piece.len_bytes, self.options.is_canceled);
                self.source.read_at(buf, piece.offset)?;
            }
            let Some(turn) = self.order.wait(piece.number, stop) else {
                break;
            };
            self.write(&piece, buf)?;
            self.order.end(turn);
            (self.options.progress)(piece.len_bytes);
        }
        Ok(())
    }

    fn write(&self, piece: &SourcePiece, buf: &[u8]) -> Result<()> {
        let (target, options) = (self.target, self.options);
        match (piece.kind, &options.backing) {
            (PieceKind::Inherited, _) => Ok(()),
            (PieceKind::Data, Some(backing)) => {
                backed::write(target, buf, piece.offset, backing, options.zero_run_bytes)
            }
            (PieceKind::Data, None) => write_piece(target, buf, piece.offset, options),
            (PieceKind::Hole, Some(backing)) => {
                backed::hide(target, piece.offset, piece.len_bytes, backing)
            }
            (PieceKind::Hole, None) if options.is_target_zero => Ok(()),
            (PieceKind::Hole, None) => target.write_zeroes(piece.offset, piece.len_bytes),
        }
    }
}

/// Lets the threads write their pieces one at a time, in order.
///
/// The host lets one writer into a file at a time, and waiting writers spin. Here the other threads
/// sleep or read meanwhile. The thread with the next piece never waits for another one.
#[derive(Default)]
struct WriteOrder {
    /// Number of the next piece.
    next: Mutex<u64>,
    advanced: Condvar,
}

impl WriteOrder {
    /// Waits until all pieces before `number` are written; none if the copy ends early.
    fn wait(&self, number: u64, stop: &AtomicBool) -> Option<MutexGuard<'_, u64>> {
        let mut next = self.next.lock();
        while *next != number {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            self.advanced.wait(&mut next);
        }
        Some(next)
    }

    /// Ends a turn.
    fn end(&self, mut turn: MutexGuard<'_, u64>) {
        *turn += 1;
        drop(turn);
        self.advanced.notify_all();
    }

    /// Wakes all waiting threads, which then see that the copy has ended.
    fn wake(&self) {
        let _next = self.next.lock();
        self.advanced.notify_all();
    }
}

/// Runs `work` on several threads. The first error stops all threads and is the result.
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

/// The content of a piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum PieceKind {
    /// Bytes to read.
    Data,
    /// Zeros.
    #[default]
    Hole,
    /// The content of the target's backing file.
    Inherited,
}

/// A part of the source.
struct SourcePiece {
    /// Its place in the order of all pieces.
    number: u64,
    offset: u64,
    len_bytes: u64,
    kind: PieceKind,
}

/// Hands out the pieces of the source in order.
struct SourceCursor<'a> {
    source: &'a dyn Device,
    /// Holes count as data.
    is_all_data: bool,
    /// The depth of the target's backing file in the source's chain.
    inherited_depth: Option<u32>,
    position: Mutex<CursorPosition>,
}

#[derive(Default)]
struct CursorPosition {
    number: u64,
    next: u64,
    /// Up to this offset the source has one kind.
    end: u64,
    kind: PieceKind,
}

impl<'a> SourceCursor<'a> {
    fn new(source: &'a dyn Device, options: &CopyOptions<'_>) -> Self {
        Self {
            source,
            is_all_data: options.zero_run_bytes == 0,
            inherited_depth: options.backing.as_ref().and_then(|backing| backing.depth),
            position: Mutex::default(),
        }
    }

    /// Returns the next piece; none at the end. Data ends at multiples of [`PIECE_BYTES`].
    fn next(&self) -> Result<Option<SourcePiece>> {
        let len_bytes = self.source.len_bytes();
        let mut position = self.position.lock();
        let offset = position.next;
        if offset >= len_bytes {
            return Ok(None);
        }
        if offset >= position.end {
            let (kind, count) = self.kind_at(offset, len_bytes - offset)?;
            // A count of zero would loop forever.
            position.end = offset + count.clamp(1, len_bytes - offset);
            position.kind = kind;
        }
        let end = if position.kind == PieceKind::Data {
            (offset / PIECE_BYTES + 1) * PIECE_BYTES
        } else {
            offset + HOLE_BYTES
        };
        position.next = end.min(position.end);
        let number = position.number;
        position.number += 1;
        Ok(Some(SourcePiece {
            number,
            offset,
            len_bytes: position.next - offset,
            kind: position.kind,
        }))
    }

    fn kind_at(&self, offset: u64, len_bytes: u64) -> Result<(PieceKind, u64)> {
        let (is_inherited, kind, count) = match self.inherited_depth {
            Some(depth) => {
                let (entry, count) = self.source.map_entry(offset, len_bytes)?;
                (entry.depth >= depth, entry.kind, count)
            }
            None if self.is_all_data => (false, Allocation::Data, len_bytes),
            None => {
                let (kind, count) = self.source.allocation(offset, len_bytes)?;
                (false, kind, count)
            }
        };
        let kind = if is_inherited {
            PieceKind::Inherited
        } else if self.is_all_data || kind == Allocation::Data {
            PieceKind::Data
        } else {
            PieceKind::Hole
        };
        Ok((kind, count))
    }
}

/// Writes a piece of data, except for runs of zeros that are long enough.
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
    for (is_zero, range) in zeros::ZeroRuns::new(buf, offset, grain as usize) {
        let at = offset + range.start as u64;
        if !is_zero {
            target.write_at(&buf[range], at)?;
        } else if !options.is_target_zero {
            target.write_zeroes(at, range.len() as u64)?;
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
    fn copy_overwrites_any_old_content() {
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
    fn canceled_and_too_large_copies_fail() {
        let (source, target) = (device(&[1; 8192]), device(&[0; 8191]));
        let refused = copy(&source, &target, &CopyOptions::default()).unwrap_err();
        assert_eq!(refused.errno(), Errno::NOSPC);
        let options = CopyOptions {
            is_canceled: &|| true,
            ..CopyOptions::default()
        };
        assert_eq!(
            copy(&source, &source, &options).unwrap_err().errno(),
            Errno::INTR
        );
    }
}
