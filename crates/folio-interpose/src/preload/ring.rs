//! The ring of this process: mapped once, and written by all of its threads.

use crate::layout::{MAGIC, RING_BYTES, Record};
use crate::system;
use crate::writer::RingWriter;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Address of the ring in this process; 0 without one.
static RING: AtomicUsize = AtomicUsize::new(0);

/// Whether calls are recorded.
#[inline]
pub(crate) fn is_open() -> bool {
    RING.load(Ordering::Relaxed) != 0
}

/// What is left out, on which device; 0 for nothing.
#[inline]
pub(crate) fn omitted() -> u64 {
    if is_open() { writer().header().omitted.load(Ordering::Relaxed) } else { 0 }
}

/// Maps the ring. `path` ends with a zero byte.
pub(crate) fn open(path: *const u8) {
    const AT_FDCWD: usize = -100_isize as usize;
    const READ_WRITE_CLOEXEC: usize = 0o2_000_002;
    // SAFETY: the path ends with a zero byte.
    let fd = unsafe {
        system::call(system::OPENAT, [AT_FDCWD, path as usize, READ_WRITE_CLOEXEC, 0, 0, 0])
    };
    if fd < 0 {
        return;
    }
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe {
        system::call(system::MMAP, [0, RING_BYTES as usize, 3, 1, fd as usize, 0])
    };
    // SAFETY: this function opened it.
    unsafe { system::call(system::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
    if address > 0 {
        RING.store(address as usize, Ordering::Release);
        if writer().header().magic.load(Ordering::Acquire) != MAGIC {
            RING.store(0, Ordering::Release);
        }
    }
}

fn writer() -> RingWriter {
    // SAFETY: only called while the ring is open; the mapping stays as long as the process.
    unsafe { RingWriter::new(RING.load(Ordering::Relaxed)) }
}

/// Appends a record, or counts it as dropped if the ring is full.
pub(crate) fn push(record: &Record) {
    writer().push(record);
}

/// The place of a path in the ring: found, or added; 0 if there is no room.
pub(crate) fn path(path: &[u8]) -> u32 {
    writer().path(path)
}
