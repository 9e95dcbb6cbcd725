//! Direct fills: a file of any mount into frames, by several threads with two staging buffers each.

use crate::device::Device;
use folio::ramfs::{Frame, FrameFiles, FramePages};
use folio::syscall::Fd;
use folio::vfs::FallocateMode;
use folio::{Errno, Error, Process, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Size of a staging buffer in bytes.
const STAGING_BYTES: u64 = 4 << 20;

/// Replaces the content of `target`, a file of `files` open for writing, by that of `source`, a
/// file of any mount of the same kernel. Returns the number of bytes. `threads` threads read while
/// the device copies. Other calls must not change either file meanwhile.
///
/// # Errors
/// EXDEV if `target` is not on this gpufs, and then it keeps its content. ENOSPC if the file does
/// not fit, and those of reading; the content of `target` is undefined then.
pub fn fill(
    process: &Process,
    device: &dyn Device,
    files: &FrameFiles,
    source: Fd,
    target: Fd,
    threads: usize,
) -> Result<u64> {
    let held = process.hold(target)?;
    files.check(&held)?;
    let size_bytes = process.fstat(source)?.size_bytes;
    process.ftruncate(target, size_bytes)?;
    if size_bytes == 0 {
        return Ok(0);
    }
    process.fallocate(target, FallocateMode::Allocate, 0, size_bytes)?;
    let pages = files.pages(&held)?;
    let next = AtomicU64::new(0);
    let is_failed = AtomicBool::new(false);
    let work = || {
        let copied = copy(process, device, source, &pages, files.page_bytes(), &|| {
            let start = next.fetch_add(STAGING_BYTES, Ordering::Relaxed);
            let is_left = start < size_bytes && !is_failed.load(Ordering::Relaxed);
            is_left.then(|| start..(start + STAGING_BYTES).min(size_bytes))
        });
        copied.inspect_err(|_| is_failed.store(true, Ordering::Relaxed))
    };
    let most = size_bytes.div_ceil(STAGING_BYTES) as usize;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads.clamp(1, most))
            .map(|_| scope.spawn(work))
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended
            .map(|result| {
                result.unwrap_or_else(|_| Err(Error::new(Errno::IO, "a copier panicked")))
            })
            .collect::<Result<Vec<()>>>()
    })?;
    Ok(size_bytes)
}

/// Copies the ranges that `next` returns: one buffer is read into while the device copies from the
/// other.
fn copy(
    process: &Process,
    device: &dyn Device,
    source: Fd,
    pages: &FramePages,
    page_bytes: u64,
    next: &dyn Fn() -> Option<Range<u64>>,
) -> Result<()> {
    let mut buffers = [
        device.staging(STAGING_BYTES as usize)?,
        device.staging(STAGING_BYTES as usize)?,
    ];
    for at in (0..2).cycle() {
        let Some(range) = next() else { break };
        let buffer = &mut buffers[at];
        let len = (range.end - range.start) as usize;
        let bytes = &mut buffer.bytes()?[..len];
        let mut done = 0;
        while done < len {
            match process.pread(source, &mut bytes[done..], range.start + done as u64)? {
                0 => return Err(Error::new(Errno::IO, "the source became shorter")),
                count => done += count,
            }
        }
        buffer.submit(&parts(pages, page_bytes, range)?)?;
    }
    // The last copies end.
    buffers
        .iter_mut()
        .try_for_each(|buffer| buffer.bytes().map(drop))
}

/// Returns the frames of a range of the file: address, and the bytes relative to its start.
fn parts(
    pages: &FramePages,
    page_bytes: u64,
    range: Range<u64>,
) -> Result<Vec<(u64, Range<usize>)>> {
    let mut parts: Vec<(u64, Range<usize>)> = Vec::new();
    let mut before: Option<&Frame> = None;
    for index in range.start / page_bytes..range.end.div_ceil(page_bytes) {
        let frame = pages.frame(index).ok_or(Errno::IO)?;
        let start = range.start.max(index * page_bytes);
        let end = range.end.min((index + 1) * page_bytes);
        let address = frame.address() + start % page_bytes;
        let bytes = (start - range.start) as usize..(end - range.start) as usize;
        let is_adjacent = before.is_some_and(|before| before.shares_allocation(frame));
        before = Some(frame);
        match parts.last_mut() {
            // One copy takes adjacent frames of one allocation.
            Some((first, last)) if is_adjacent && *first + last.len() as u64 == address => {
                last.end = bytes.end;
            }
            _ => parts.push((address, bytes)),
        }
    }
    Ok(parts)
}
