//! Pages whose bytes are locked, as slices.

use super::copy;
use super::pool::{Frame, Pool};
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

    /// Without waiting.
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
        // SAFETY: the frame's memory is mapped and initialised (by the host, with zeros, at first);
        // whoever changes it holds the lock exclusively, and we hold it shared.
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

    /// Without waiting.
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

    /// Copies `bytes` into the page, `start` bytes from its beginning; readers may be looking.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn copy_in(&mut self, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= PAGE_SIZE, "within the page");
        // SAFETY: within the frame, as just checked.
        let to = unsafe { self.pool.address(self.frame).add(start) };
        // SAFETY: the lock makes us the only writer.
        unsafe { copy::to_page(to, bytes) }
    }

    /// Copies `len` bytes from another page, or this one; others may be writing and reading there.
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
        // SAFETY: within the frame, as just checked, whose pool lives.
        let from = unsafe { pool.address(frame).add(from) };
        // SAFETY: the lock makes us the only writer of `to`.
        unsafe { copy::between_pages(from, to, len) }
    }

    /// Zeroes a part of the page; readers may be looking.
    #[allow(unsafe_code)]
    pub(super) fn zero(&mut self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= PAGE_SIZE,
            "within the page"
        );
        // SAFETY: within the frame, as just checked.
        let to = unsafe { self.pool.address(self.frame).add(range.start) };
        // SAFETY: the lock makes us the only writer.
        unsafe { copy::zero(to, range.end - range.start) }
    }
}

impl Deref for PageWriteGuard<'_> {
    type Target = Bytes;

    #[allow(unsafe_code)]
    fn deref(&self) -> &Bytes {
        // SAFETY: mapped and initialised, and the lock is ours.
        unsafe { &*self.pool.address(self.frame).cast() }
    }
}

impl DerefMut for PageWriteGuard<'_> {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut Bytes {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive. Readers that take no
        // lock look at the bytes with copies the compiler does not see (copy.rs).
        unsafe { &mut *self.pool.address(self.frame).cast() }
    }
}

/// Pieces of memory that follow one another are one piece for the store.
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

/// The bytes of locked pages, in as few pieces as they lie in.
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
        // SAFETY: frames with consecutive numbers lie one behind the other in the pool's range;
        // each is locked by one of the guards, for as long as the slice lives.
        IoSlice::new(unsafe { std::slice::from_raw_parts(pool.address(first), count * PAGE_SIZE) })
    };
    runs.into_iter().map(slice).collect()
}

/// The bytes of exclusively locked pages, in as few pieces as they lie in.
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

/// What a hole is made of.
static ZEROES: Bytes = [0; PAGE_SIZE];

/// The bytes of locked pages in order, in as few pieces as they lie in; `None` is a page of zeros.
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
