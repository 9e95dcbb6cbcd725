//! The bytes of a write: slices, or borrowed pages. Linux: `struct iov_iter`.

use super::borrow::{Borrowed, BorrowedRead};
use super::locked::PageWriteGuard;
use crate::base::PAGE_SIZE;
use smallvec::SmallVec;
use std::io::IoSlice;
use std::ops::Range;

impl Borrowed {
    /// Returns the bytes as the source of a write: they are copied from page to page, without a
    /// buffer between.
    pub fn source(&self) -> WriteSource<'_> {
        WriteSource {
            from: SourceBytes::Pages(self),
            range: self.range.clone(),
        }
    }
}

/// The bytes of a write. Linux: `struct iov_iter`.
#[derive(Clone)]
pub struct WriteSource<'a> {
    from: SourceBytes<'a>,
    range: Range<usize>,
}

#[derive(Clone, Copy)]
enum SourceBytes<'a> {
    Bytes(&'a [u8]),
    Slices(&'a [IoSlice<'a>]),
    Pages(&'a Borrowed),
}

impl<'a> From<&'a [u8]> for WriteSource<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            from: SourceBytes::Bytes(bytes),
            range: 0..bytes.len(),
        }
    }
}

impl<'a> From<&'a [IoSlice<'a>]> for WriteSource<'a> {
    /// The bytes of all slices; the sum of their lengths is at most `isize::MAX`.
    fn from(slices: &'a [IoSlice<'a>]) -> Self {
        Self {
            from: SourceBytes::Slices(slices),
            range: 0..slices.iter().map(|slice| slice.len()).sum(),
        }
    }
}

/// Returns the parts of `slices` that the bytes `range` of their concatenation are in.
fn parts<'a>(slices: &'a [IoSlice<'a>], range: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
    let mut end = 0;
    slices.iter().filter_map(move |slice| {
        let start = end;
        end += slice.len();
        let (from, to) = (range.start.max(start), range.end.min(end));
        (from < to).then(|| &slice[from - start..to - start])
    })
}

impl WriteSource<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Calls `take` with the bytes, in as few slices as their memory allows. They do not change
    /// meanwhile.
    pub fn with_slices<T>(&self, take: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        match self.from {
            SourceBytes::Bytes(bytes) => take(&[IoSlice::new(&bytes[self.range.clone()])]),
            SourceBytes::Slices(slices) => {
                let parts = parts(slices, self.range.clone());
                let slices: SmallVec<[IoSlice<'_>; 8]> = parts.map(IoSlice::new).collect();
                take(&slices)
            }
            SourceBytes::Pages(borrowed) => {
                let read = BorrowedRead {
                    range: self.range.clone(),
                    ..borrowed.read()
                };
                let slices: SmallVec<[IoSlice<'_>; 8]> = read.slices().map(IoSlice::new).collect();
                take(&slices)
            }
        }
    }

    /// Returns at most `len` bytes from byte `start`.
    pub fn part(&self, start: usize, len: usize) -> Self {
        let start = (self.range.start + start).min(self.range.end);
        Self {
            from: self.from,
            range: start..start.saturating_add(len).min(self.range.end),
        }
    }

    /// Copies all bytes into a page, at byte `start`. Linux: `copy_folio_from_iter_atomic`.
    #[inline]
    pub(super) fn put(&self, page: &mut PageWriteGuard<'_>, start: usize) {
        match self.from {
            SourceBytes::Bytes(bytes) => page.copy_in(start, &bytes[self.range.clone()]),
            SourceBytes::Slices(slices) => {
                let mut at = start;
                for part in parts(slices, self.range.clone()) {
                    page.copy_in(at, part);
                    at += part.len();
                }
            }
            SourceBytes::Pages(borrowed) => self.put_pages(borrowed, page, start),
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
