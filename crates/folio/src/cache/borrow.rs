//! Reads without a copy: pages of a file that stay in memory. Linux: `filemap_splice_read`.

use super::folio::{Frame, PAGE};
use super::folio_ref::FolioRef;
use super::locked::{PageReadGuard, pieces};
use super::mapping::{AddressSpace, Mapping};
use crate::base::{PAGE_SIZE, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Most pages of one borrow: 2 MiB.
const BORROW_MAX: u64 = 512;

/// Bytes of a file that stay in memory: neither reclaim nor truncation reuses the pages meanwhile.
///
/// The bytes are those of the file, not a copy: a write to the file changes them, unless they are
/// locked by [`Borrowed::read`].
pub struct Borrowed {
    pub(super) owner: Arc<AddressSpace>,
    /// The frames in order; `None` is a hole.
    pub(super) frames: SmallVec<[Option<Frame>; 16]>,
    /// The requested bytes, relative to the start of the first page.
    pub(super) range: Range<usize>,
}

impl Mapping {
    /// Borrows up to `len_bytes` bytes from byte `offset`, and reads absent pages. Returns fewer at
    /// the end of the file and beyond 2 MiB; none at or past the end.
    ///
    /// # Errors
    /// The store's, or ENOMEM, if not a single page could be read. Linux: `filemap_splice_read`.
    pub fn borrow(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        let start = (offset % PAGE) as usize;
        let most = (BORROW_MAX * PAGE) as usize - start;
        let len = self
            .size_bytes()
            .saturating_sub(offset)
            .min(len_bytes.min(most) as u64) as usize;
        let mut borrowed = Borrowed {
            owner: self.0.clone(),
            frames: SmallVec::new(),
            range: start..start + len,
        };
        let pages = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
        for index in if len == 0 { 0..0 } else { pages.clone() } {
            match self.0.hold(index, pages.end - index) {
                Ok(hold) => borrowed.frames.push(hold.map(FolioRef::into_frame)),
                Err(error) if borrowed.frames.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        // The file may have been truncated meanwhile.
        let len = len.min(
            self.size_bytes()
                .saturating_sub(offset)
                .try_into()
                .unwrap_or(usize::MAX),
        );
        borrowed.range.end = (start + len)
            .min(borrowed.frames.len() * PAGE_SIZE)
            .max(start);
        Ok(borrowed)
    }
}

impl AddressSpace {
    /// Returns a reference of the page at `index`, read if absent as the first of `wanted` pages;
    /// `None` for a hole.
    fn hold(self: &Arc<Self>, index: u64, wanted: u64) -> Result<Option<FolioRef<'_>>> {
        loop {
            if let Some(hold) = self.hold_cached(index) {
                return Ok(Some(hold));
            }
            if self.is_hole(index) {
                return Ok(None);
            }
            self.fault(index, wanted)?;
        }
    }
}

impl Borrowed {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether there are no bytes: the end of the file.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Locks the bytes for reading. Writers of these pages wait while the result exists. So the
    /// thread that has it must neither write to the pages nor lock them by a second borrow.
    pub fn read(&self) -> BorrowedRead<'_> {
        let lock = |frame: &Option<Frame>| {
            frame.map(|frame| PageReadGuard::lock(self.owner.pool(), frame))
        };
        BorrowedRead {
            guards: self.frames.iter().map(lock).collect(),
            range: self.range.clone(),
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        for frame in self.frames.iter().flatten() {
            drop(FolioRef::from_frame(self.owner.pool(), *frame));
        }
    }
}

/// Locked bytes of a file: they do not change while this exists.
pub struct BorrowedRead<'a> {
    pub(super) guards: SmallVec<[Option<PageReadGuard<'a>>; 16]>,
    pub(super) range: Range<usize>,
}

impl BorrowedRead<'_> {
    /// Returns the bytes in order, in as few slices as their memory allows.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = 0;
        pieces(&self.guards).into_iter().filter_map(move |piece| {
            let start = at;
            at += piece.len();
            let end = self.range.end.min(at);
            let start = self.range.start.max(start);
            (start < end).then(|| &piece[start + piece.len() - at..end + piece.len() - at])
        })
    }
}
