//! Guards of pages whose bytes are locked, and slices of those bytes.

use super::copy;
use super::folio::Frame;
use super::pool::Pool;
use crate::base::PAGE_SIZE;
use crate::base::sync::{RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut, Range};

type Bytes = [u8; PAGE_SIZE];

/// Shared access to a page's bytes.
pub struct PageReadGuard<'a> {
    pool: &'a Pool,
    frame: Frame,
    _lock: RwLockReadGuard<'a, ()>,
}

impl<'a> PageReadGuard<'a> {
    pub(super) fn lock(pool: &'a Pool, frame: Frame) -> Self {
        Self {
            pool,
            frame,
            _lock: pool.folio(frame).lock.read(),
        }
    }

    /// Locks without waiting; `None` if the page is locked.
    pub(super) fn try_lock(pool: &'a Pool, frame: Frame) -> Option<Self> {
        Some(Self {
            pool,
            frame,
            _lock: pool.folio(frame).lock.try_read()?,
        })
    }
}

impl Deref for PageReadGuard<'_> {
    type Target = Bytes;

    #[allow(unsafe_code)]
    fn deref(&self) -> &Bytes {
        // SAFETY: the frame's memory is mapped and initialized (by the host, with zeros, at first).
        // A writer holds the lock exclusively, and this guard holds it shared.
        unsafe { &*self.pool.address(self.frame).cast() }
    }
}

/// Exclusive access to a page's bytes.
pub struct PageWriteGuard<'a> {
    pool: &'a Pool,
    frame: Frame,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl<'a> PageWriteGuard<'a> {
    pub(super) fn lock(pool: &'a Pool, frame: Frame) -> Self {
        Self {
            pool,
            frame,
            _lock: pool.folio(frame).lock.write(),
        }
    }

    /// Locks without waiting; `None` if the page is locked.
    #[inline]
    pub(super) fn try_lock(pool: &'a Pool, frame: Frame) -> Option<Self> {
        Some(Self {
            pool,
            frame,
            _lock: pool.folio(frame).lock.try_write()?,
        })
    }

    pub(super) fn frame(&self) -> Frame {
        self.frame
    }

    /// Copies `bytes` into the page, at byte `start`. Readers may copy from the page meanwhile.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn copy_in(&mut self, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= PAGE_SIZE, "within the page");
        // SAFETY: within the frame, as just checked.
        let to = unsafe { self.pool.address(self.frame).add(start) };
        // SAFETY: the lock excludes other writers.
        unsafe { copy::to_page(to, bytes) }
    }

    /// Copies `len` bytes from another page, or this one. Other threads may read and write that
    /// page meanwhile.
    #[allow(unsafe_code)]
    pub(super) fn copy_from_page(
        &mut self,
        start: usize,
        pool: &Pool,
        frame: Frame,
        from: usize,
        len: usize,
    ) {
        assert!(
            start + len <= PAGE_SIZE && from + len <= PAGE_SIZE,
            "within the pages"
        );
        // SAFETY: within the frame, as just checked.
        let to = unsafe { self.pool.address(self.frame).add(start) };
        // SAFETY: within the frame, as just checked, and the pool is borrowed.
        let from = unsafe { pool.address(frame).add(from) };
        // SAFETY: the lock excludes other writers of `to`.
        unsafe { copy::between_pages(from, to, len) }
    }

    /// Zeroes a part of the page. Readers may copy from the page meanwhile.
    #[allow(unsafe_code)]
    pub(super) fn zero(&mut self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= PAGE_SIZE,
            "within the page"
        );
        // SAFETY: within the frame, as just checked.
        let to = unsafe { self.pool.address(self.frame).add(range.start) };
        // SAFETY: the lock excludes other writers.
        unsafe { copy::zero(to, range.end - range.start) }
    }
}

impl Deref for PageWriteGuard<'_> {
    type Target = Bytes;

    #[allow(unsafe_code)]
    fn deref(&self) -> &Bytes {
        // SAFETY: mapped and initialized, and this guard has the lock.
        unsafe { &*self.pool.address(self.frame).cast() }
    }
}

impl DerefMut for PageWriteGuard<'_> {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut Bytes {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive. Readers without a
        // lock use copies that the compiler cannot analyze (copy.rs).
        unsafe { &mut *self.pool.address(self.frame).cast() }
    }
}

/// Groups frames into runs of contiguous memory: first frame and count.
fn runs(frames: impl Iterator<Item = Frame>) -> SmallVec<[(Frame, usize); 8]> {
    let mut runs: SmallVec<[(Frame, usize); 8]> = SmallVec::new();
    for frame in frames {
        match runs.last_mut() {
            Some((first, count)) if *first as usize + *count == frame as usize => *count += 1,
            _ => runs.push((frame, 1)),
        }
    }
    runs
}

/// Returns the bytes of locked pages, one slice for each contiguous run.
#[allow(unsafe_code)]
pub(super) fn slices<'a>(
    guards: &'a [PageReadGuard<'_>],
    range: Range<usize>,
) -> SmallVec<[IoSlice<'a>; 8]> {
    let guards = &guards[range];
    let Some(pool) = guards.first().map(|guard| guard.pool) else {
        return SmallVec::new();
    };
    let runs = runs(guards.iter().map(|guard| guard.frame));
    let slice = |(first, count): (Frame, usize)| {
        // SAFETY: frames with consecutive numbers are contiguous in the pool's range. One of the
        // guards locks each of them, for as long as the slice exists.
        IoSlice::new(unsafe { std::slice::from_raw_parts(pool.address(first), count * PAGE_SIZE) })
    };
    runs.into_iter().map(slice).collect()
}

/// Returns the bytes of exclusively locked pages, one slice for each contiguous run.
#[allow(unsafe_code)]
pub(super) fn slices_mut<'a>(
    guards: &'a mut [PageWriteGuard<'_>],
) -> SmallVec<[IoSliceMut<'a>; 8]> {
    let Some(pool) = guards.first().map(|guard| guard.pool) else {
        return SmallVec::new();
    };
    let runs = runs(guards.iter().map(|guard| guard.frame));
    let slice = |(first, count): (Frame, usize)| {
        // SAFETY: as for `slices`; the locks are exclusive and no frame is in two runs.
        IoSliceMut::new(unsafe {
            std::slice::from_raw_parts_mut(pool.address(first), count * PAGE_SIZE)
        })
    };
    runs.into_iter().map(slice).collect()
}

/// The bytes of a hole's page.
static ZEROES: Bytes = [0; PAGE_SIZE];

/// Returns the bytes of locked pages in order, one slice for each contiguous run; `None` is a page
/// of zeros.
#[allow(unsafe_code)]
pub(super) fn pieces<'a>(guards: &'a [Option<PageReadGuard<'_>>]) -> SmallVec<[&'a [u8]; 8]> {
    let mut pieces: SmallVec<[&'a [u8]; 8]> = SmallVec::new();
    for part in guards.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let Some(pool) = part[0].as_ref().map(|guard| guard.pool) else {
            pieces.extend(part.iter().map(|_| &ZEROES[..]));
            continue;
        };
        pieces.extend(
            runs(part.iter().flatten().map(|guard| guard.frame))
                .into_iter()
                .map(|(first, count)| {
                    // SAFETY: as for `slices`.
                    unsafe { std::slice::from_raw_parts(pool.address(first), count * PAGE_SIZE) }
                }),
        );
    }
    pieces
}
