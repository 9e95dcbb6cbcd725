//! One file's pages in memory.

use super::{Store, Writeback};
use crate::base::{PAGE_SIZE, Result};
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Weak};

/// The cached pages of one inode (or of one device, for metadata), by page index. Linux: `struct address_space`.
///
/// Owns the file's size. Dirty pages keep the store alive: the mapping holds it strongly while any page is dirty.
/// Callers order writers, truncation and hole punching among themselves (the inode lock); readers need no lock.
pub struct Mapping {}

impl Mapping {
    /// A mapping whose pages come from and go to `store`. `size_bytes` is the file's size.
    pub fn new(_writeback: &Arc<Writeback>, _store: Weak<dyn Store>, _size_bytes: u64) -> Self {
        todo!()
    }

    /// A mapping with nothing behind it: absent pages are zeros, pages are never written back or reclaimed (ramfs).
    pub fn without_store(_writeback: &Arc<Writeback>, _size_bytes: u64) -> Self {
        todo!()
    }

    /// The file's size in bytes (`i_size`).
    pub fn size_bytes(&self) -> u64 {
        todo!()
    }

    /// Sets the size without touching pages: growth of a file, or the size read from disk.
    pub fn set_size_bytes(&self, _size_bytes: u64) {
        todo!()
    }

    /// Copies bytes from `offset` into `buf`, up to the end of the file; reads ahead where access is sequential.
    /// Returns the number of bytes copied; 0 at or past the end of the file.
    pub fn read(&self, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        todo!()
    }

    /// Copies `bytes` into the cache at `offset`, marks the pages dirty and grows the size where needed. Pages
    /// overwritten only in part are read first. May write back other pages to stay within limits. Returns the
    /// count copied, short only after an error on a later page.
    pub fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<usize> {
        todo!()
    }

    /// Zeroes a byte range in the cache and marks it dirty, reading pages that are covered only in part.
    /// The size stays.
    pub fn zero_range(&self, _range: Range<u64>) -> Result<()> {
        todo!()
    }

    /// Sets the size and, when it shrinks, drops every page past the new end, dirty or not, zeroing the cached
    /// tail of the last page. When it returns, no writeback beyond the new end is under way.
    pub fn truncate(&self, _size_bytes: u64) {
        todo!()
    }

    /// Drops the pages that lie wholly inside `range` (in bytes), dirty or not, after writeback on them has ended.
    pub fn punch(&self, _range: Range<u64>) {
        todo!()
    }

    /// Drops clean, unpinned pages inside `range`; dirty ones stay. Returns the count dropped.
    pub fn invalidate(&self, _range: Range<u64>) -> u64 {
        todo!()
    }

    /// Writes the dirty pages that touch `range` to the store, in runs as long as they come, and waits.
    /// On error the pages stay dirty and the error is remembered for [`Mapping::check_error`].
    pub fn write_back(&self, _range: Range<u64>) -> Result<()> {
        todo!()
    }

    /// Reports a writeback error once per observer: `seen` is the observer's cursor, 0 for a new one made before
    /// any error; it moves to the newest error. Linux: lib/errseq.c.
    pub fn check_error(&self, _seen: &mut u64) -> Result<()> {
        todo!()
    }

    /// The cursor an observer that opens the file now starts with.
    pub fn error_cursor(&self) -> u64 {
        todo!()
    }

    /// Whether any page is dirty.
    pub fn is_dirty(&self) -> bool {
        todo!()
    }

    /// The first cached page at or after byte `offset`, as a byte offset; `None` when there is none before the end
    /// of the file. For files that live in the cache alone, this is SEEK_DATA.
    pub fn next_cached(&self, _offset: u64) -> Option<u64> {
        todo!()
    }

    /// The first byte at or after `offset` whose page is not cached; SEEK_HOLE for files in the cache alone.
    pub fn next_absent(&self, _offset: u64) -> u64 {
        todo!()
    }

    /// Pages held.
    pub fn page_count(&self) -> u64 {
        todo!()
    }

    /// The page at `index` (in pages), read from the store if absent, pinned while the handle lives.
    pub fn page(&self, _index: u64) -> Result<Page> {
        todo!()
    }

    /// The page at `index` without reading it: zeros if it was absent. For pages about to be filled whole.
    pub fn page_for_overwrite(&self, _index: u64) -> Result<Page> {
        todo!()
    }

    /// Brings the pages `first..first+count` in with few large reads; absent memory or errors are no failure.
    pub fn read_ahead(&self, _first: u64, _count: u64) {
        todo!()
    }
}

/// A pinned page: stays in memory while this handle lives. Cheap to clone.
#[derive(Clone)]
pub struct Page {}

impl Page {
    /// The bytes, shared with other readers.
    pub fn read(&self) -> PageReadGuard<'_> {
        todo!()
    }

    /// The bytes, exclusively; the page is dirty from now on.
    pub fn write(&self) -> PageWriteGuard<'_> {
        todo!()
    }
}

/// Shared access to a page's bytes.
pub struct PageReadGuard<'a> {
    bytes: &'a [u8; PAGE_SIZE],
}

impl Deref for PageReadGuard<'_> {
    type Target = [u8; PAGE_SIZE];

    fn deref(&self) -> &Self::Target {
        self.bytes
    }
}

/// Exclusive access to a page's bytes.
pub struct PageWriteGuard<'a> {
    bytes: &'a mut [u8; PAGE_SIZE],
}

impl Deref for PageWriteGuard<'_> {
    type Target = [u8; PAGE_SIZE];

    fn deref(&self) -> &Self::Target {
        self.bytes
    }
}

impl DerefMut for PageWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.bytes
    }
}
