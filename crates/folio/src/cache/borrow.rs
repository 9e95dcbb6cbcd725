//! Reading without a copy: pages held in memory, and what a write takes its bytes from.

use super::folio::Hold;
use super::locked::{PageReadGuard, PageWriteGuard, pieces};
use super::mapping::{Inner, Mapping, PAGE};
use super::pool::Frame;
use crate::base::{PAGE_SIZE, Result};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Pages that one borrow holds at most: 2 MiB.
const BORROW_MAX: u64 = 512;

/// Bytes of a file, held in memory: neither reclaim nor truncation gives the pages to anybody else
/// meanwhile.
///
/// The bytes are those of the file, not a copy: a write to the file changes them, unless they are
/// being looked at.
pub struct Borrowed {
    owner: Arc<Inner>,
    /// In order; a hole has none.
    frames: SmallVec<[Option<Frame>; 16]>,
    /// The part that was asked for, from the first page's beginning.
    range: Range<usize>,
}

impl Mapping {
    /// Holds the pages of up to `len_bytes` bytes from `offset` on, reading those that are not in
    /// memory. Fewer at the end of the file, and after 2 MiB; none at or past the end.
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
                Ok(hold) => borrowed.frames.push(hold.map(Hold::keep)),
                Err(error) if borrowed.frames.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        // The file may have become shorter meanwhile.
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

impl Inner {
    /// The page at `index`, brought in if need be, with `wanted` pages being asked for; none for a
    /// hole.
    fn hold(self: &Arc<Self>, index: u64, wanted: u64) -> Result<Option<Hold<'_>>> {
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
    /// Bytes held.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether none are: the end of the file.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Locks the bytes, to be looked at. Who writes to these pages waits as long as that lives, so
    /// a thread that has it must neither write there itself nor look at the same pages by a second
    /// borrow.
    pub fn read(&self) -> BorrowedRead<'_> {
        let lock = |frame: &Option<Frame>| {
            frame.map(|frame| PageReadGuard::lock(self.owner.pool(), frame))
        };
        BorrowedRead {
            guards: self.frames.iter().map(lock).collect(),
            range: self.range.clone(),
        }
    }

    /// The bytes as what a write takes: they go from page to page without a buffer between.
    pub fn source(&self) -> Source<'_> {
        Source {
            from: From::Pages(self),
            range: self.range.clone(),
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        for frame in self.frames.iter().flatten() {
            drop(Hold::adopt(self.owner.pool(), *frame));
        }
    }
}

/// Bytes of a file that stand still while they are looked at.
pub struct BorrowedRead<'a> {
    guards: SmallVec<[Option<PageReadGuard<'a>>; 16]>,
    range: Range<usize>,
}

impl BorrowedRead<'_> {
    /// The bytes in order, in as few pieces as they lie in.
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

/// What a write takes its bytes from.
#[derive(Clone)]
pub struct Source<'a> {
    from: From<'a>,
    range: Range<usize>,
}

#[derive(Clone, Copy)]
enum From<'a> {
    Bytes(&'a [u8]),
    Pages(&'a Borrowed),
}

impl<'a> std::convert::From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            from: From::Bytes(bytes),
            range: 0..bytes.len(),
        }
    }
}

impl Source<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Shows the bytes to `take`, in as few pieces as they lie in; nobody changes them meanwhile.
    pub fn with_slices<T>(&self, take: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        match self.from {
            From::Bytes(bytes) => take(&[IoSlice::new(&bytes[self.range.clone()])]),
            From::Pages(borrowed) => {
                let read = BorrowedRead {
                    range: self.range.clone(),
                    ..borrowed.read()
                };
                let slices: SmallVec<[IoSlice<'_>; 8]> = read.slices().map(IoSlice::new).collect();
                take(&slices)
            }
        }
    }

    /// At most `len` bytes from `start` on.
    pub fn part(&self, start: usize, len: usize) -> Self {
        let start = (self.range.start + start).min(self.range.end);
        Self {
            from: self.from,
            range: start..start.saturating_add(len).min(self.range.end),
        }
    }

    /// Copies all bytes into a page, `start` bytes from its beginning.
    #[inline]
    pub(super) fn put(&self, page: &mut PageWriteGuard<'_>, start: usize) {
        match self.from {
            From::Bytes(bytes) => page.copy_in(start, &bytes[self.range.clone()]),
            From::Pages(borrowed) => self.put_pages(borrowed, page, start),
        }
    }

    fn put_pages(&self, borrowed: &Borrowed, page: &mut PageWriteGuard<'_>, start: usize) {
        let mut done = 0;
        while done < self.len() {
            let at = self.range.start + done;
            let count = (PAGE_SIZE - at % PAGE_SIZE).min(self.len() - done);
            match borrowed.frames[at / PAGE_SIZE] {
                Some(frame) => page.copy_from_page(
                    start + done,
                    borrowed.owner.pool(),
                    frame,
                    at % PAGE_SIZE,
                    count,
                ),
                None => page.zero(start + done..start + done + count),
            }
            done += count;
        }
    }
}
