//! Handles of pages that stay in memory. Linux: `filemap_get_folio`, `folio_put`.

use super::counters;
use super::folio::Frame;
use super::folio_ref::FolioRef;
use super::index::Word;
use super::locked::{PageReadGuard, PageWriteGuard};
use super::mapping::{AddressSpace, Mapping};
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use crate::base::{PAGE_SIZE, Result};
use std::sync::Arc;

/// A page that stays in memory while this handle exists. Linux: a reference of a `struct folio`.
pub struct Page {
    owner: Arc<AddressSpace>,
    index: u64,
    frame: Frame,
}

impl Page {
    pub(super) fn new(owner: &Arc<AddressSpace>, index: u64, hold: FolioRef<'_>) -> Self {
        Self {
            owner: owner.clone(),
            index,
            frame: hold.into_frame(),
        }
    }

    /// Locks the bytes, shared with other readers; writers wait.
    pub fn read(&self) -> PageReadGuard<'_> {
        PageReadGuard::lock(self.owner.pool(), self.frame)
    }

    /// Locks the bytes exclusively, and marks the page dirty. Waits while the page is being written
    /// to its store. Linux: `folio_lock`, `folio_mark_dirty`.
    pub fn write(&self) -> PageWriteGuard<'_> {
        let guard = PageWriteGuard::lock(self.owner.pool(), self.frame);
        // With the bytes locked: writeback either has these changes, or finds the page dirty again.
        self.owner.mark_dirty(self.index, self.frame);
        guard
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        // The reference of `self` keeps the count above zero.
        self.owner
            .pool()
            .folio(self.frame)
            .refs
            .fetch_add(1, Ordering::Relaxed);
        Self {
            owner: self.owner.clone(),
            index: self.index,
            frame: self.frame,
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(FolioRef::from_frame(self.owner.pool(), self.frame));
    }
}

impl Mapping {
    /// Returns the page at `index` (in pages), and reads it from the store if it is absent.
    ///
    /// # Errors
    /// The store's; ENOMEM or ENOSPC if there is no memory. Linux: `read_mapping_folio`.
    pub fn page(&self, index: u64) -> Result<Page> {
        loop {
            if let Some(page) = self.0.cached_page(index) {
                counters::count_hits(self.0.number, 1);
                return Ok(page);
            }
            if self.0.store.is_none() {
                return self.page_for_overwrite(index);
            }
            self.0.fault(index, 1)?;
        }
    }

    /// Returns the page at `index` (in pages) without reading it: zeros if it was absent. For a
    /// caller that overwrites the whole page.
    ///
    /// # Errors
    /// ENOMEM or ENOSPC if there is no memory. Linux: `filemap_grab_folio`.
    pub fn page_for_overwrite(&self, index: u64) -> Result<Page> {
        let inner = &self.0;
        loop {
            if let Some(page) = inner.cached_page(index) {
                return Ok(page);
            }
            if inner.index.word(index, &rcu::pin()).has(Word::BUSY) {
                // Another thread is reading it; a failed read removes the page.
                inner.fault(index, 1).or_else(|error| {
                    if inner.is_absent(index) {
                        Ok(0)
                    } else {
                        Err(error)
                    }
                })?;
                continue;
            }
            let hold = inner.new_page(index)?;
            let mut guard = PageWriteGuard::lock(&inner.pool, hold.frame());
            guard.zero(0..PAGE_SIZE);
            // Zeros before the insertion: a reader copies from the page without its lock.
            if inner.insert(&guard, index, 0)? {
                drop(guard);
                inner.add_candidates(&[hold.frame()]);
                return Ok(Page::new(inner, index, hold));
            }
        }
    }
}

impl AddressSpace {
    /// Returns the page at `index` if it is in memory and up to date.
    fn cached_page(self: &Arc<Self>, index: u64) -> Option<Page> {
        self.hold_cached(index)
            .map(|hold| Page::new(self, index, hold))
    }
}
