//! Removal of pages: truncation, hole punching, invalidation, eviction. Linux: mm/truncate.c.

use super::folio::{Frame, PAGE};
use super::folio_ref::FolioRef;
use super::index::Word;
use super::locked::PageWriteGuard;
use super::mapping::{AddressSpace, AddressSpaceState, Mapping};
use crate::base::PAGE_SIZE;
use crate::base::rcu::{self, Pin};
use crate::base::sync::MutexGuard;
use crate::base::sync::atomic::Ordering;
use std::ops::Range;

impl Mapping {
    /// Sets the file's size in bytes. If it shrinks, drops all pages past the new end, dirty or
    /// not, and zeroes the cached tail of the last page. When it returns, no writeback beyond the
    /// new end is under way. Linux: `truncate_setsize`.
    pub fn truncate(&self, size_bytes: u64) {
        let old = self.0.size_bytes.swap(size_bytes, Ordering::AcqRel);
        if size_bytes >= old {
            return;
        }
        // After the new size: a fill that begins now reads zeros past it.
        self.0.drop_pages(size_bytes.div_ceil(PAGE)..u64::MAX);
        let start = (size_bytes % PAGE) as usize;
        if start > 0 {
            self.0.zero_tail(size_bytes / PAGE, start);
        }
    }

    /// Drops the pages that are wholly inside `range` (in bytes), dirty or not, and waits until
    /// writeback of them has ended. Linux: `truncate_pagecache_range`.
    pub fn punch(&self, range: Range<u64>) {
        self.0
            .drop_pages(range.start.div_ceil(PAGE)..range.end / PAGE);
    }

    /// Drops all pages but the dirty ones, also pages in use or being read: the contents of the
    /// store have changed. First waits for writeback under way, so that a later read gets its data.
    /// Linux: `invalidate_inode_pages2`.
    pub fn drop_clean(&self) {
        let inner = &*self.0;
        let mut state = inner.state.lock();
        while state.runs_in_flight > 0 {
            inner.written.wait(&mut state);
        }
        inner.drop_where(state, 0..u64::MAX, |word| !word.has(Word::DIRTY));
    }

    /// Drops clean, unused pages inside `range` (in bytes); dirty ones stay. Returns the number of
    /// dropped pages. Linux: `invalidate_mapping_pages`.
    pub fn invalidate(&self, range: Range<u64>) -> u64 {
        let indexes = range.start.div_ceil(PAGE)..range.end / PAGE;
        let mut at = indexes.start;
        let mut dropped = 0;
        loop {
            let found = self.0.index.next(at, false, &rcu::pin());
            let Some((index, word)) = found.filter(|(index, _)| *index < indexes.end) else {
                return dropped;
            };
            let is_evicted = word
                .frame()
                .is_some_and(|frame| self.0.try_evict(index, frame));
            dropped += u64::from(is_evicted);
            at = index + 1;
        }
    }
}

impl AddressSpace {
    /// Removes a page from the index; the caller has the state locked. Returns its frame, with the
    /// reference of the index.
    pub(super) fn take_out(&self, index: u64, pin: &Pin) -> Option<Frame> {
        let word = self.index.remove(index, pin);
        let frame = word.frame()?;
        self.page_count.fetch_sub(1, Ordering::Relaxed);
        if let Some(limit) = &self.limit {
            limit.give_back(1);
        }
        Some(frame)
    }

    /// Evicts a clean, unused page, if it is still the one in `frame`. Linux: `remove_mapping`.
    pub(super) fn try_evict(&self, index: u64, frame: Frame) -> bool {
        if self.store.is_none() {
            return false;
        }
        let pin = rcu::pin();
        let Some(state) = self.state.try_lock() else {
            return false;
        };
        let word = self.index.word(index, &pin);
        let is_ours = word.frame() == Some(frame);
        if !is_ours || word.has(Word::DIRTY | Word::BUSY) {
            return false;
        }
        // A writer that locks the bytes after this checks whether the page is still in the index.
        let Some(guard) = PageWriteGuard::try_lock(&self.pool, frame) else {
            return false;
        };
        // The last check: a reader may take a reference without any lock until here.
        if !self.pool.folio(frame).try_freeze(1) {
            return false;
        }
        let taken = self.take_out(index, &pin);
        drop((guard, state));
        self.pool.put(taken);
        true
    }

    /// Drops the pages of `indexes`, then waits until writeback of them has ended.
    pub(super) fn drop_pages(&self, indexes: Range<u64>) {
        if !indexes.is_empty() {
            self.drop_where(self.state.lock(), indexes, |_| true);
        }
    }

    /// Drops the pages of `indexes` for which `is_dropped` returns true, then waits until writeback
    /// of them has ended.
    fn drop_where(
        &self,
        mut state: MutexGuard<'_, AddressSpaceState>,
        indexes: Range<u64>,
        is_dropped: impl Fn(Word) -> bool,
    ) {
        let pin = rcu::pin();
        let mut removed: Vec<Frame> = Vec::new();
        let mut cleaned = 0;
        let mut at = indexes.start;
        while let Some((index, word)) = self
            .index
            .next(at, false, &pin)
            .filter(|(index, _)| *index < indexes.end)
        {
            at = index + 1;
            if is_dropped(word) {
                cleaned += u64::from(word.has(Word::DIRTY));
                removed.extend(self.take_out(index, &pin));
            }
        }
        self.uncount_dirty(&mut state, cleaned);
        let store = state.release_store();
        let reserved = state.reserved.take();
        let may_be_written = state.runs_in_flight > 0;
        // Unlocked before the wait below: writeback locks bytes first, then the state.
        drop((state, pin));
        drop(store);
        self.put_reserved(reserved);
        if may_be_written {
            removed
                .iter()
                .for_each(|frame| drop(PageWriteGuard::lock(&self.pool, *frame)));
        }
        self.release(removed);
    }

    /// Zeroes the page at `index` from byte `start`, if there is one.
    fn zero_tail(&self, index: u64, start: usize) {
        loop {
            let pin = rcu::pin();
            let word = self.index.word(index, &pin);
            if word == Word::ABSENT {
                return;
            }
            let hold = word
                .frame()
                .and_then(|frame| FolioRef::try_new(&self.pool, frame));
            drop(pin);
            let Some(hold) = hold else { continue };
            // A thread that is reading the page has the bytes locked, and ends first.
            let mut guard = PageWriteGuard::lock(&self.pool, hold.frame());
            if self.index.word(index, &rcu::pin()).frame() == Some(hold.frame()) {
                guard.zero(start..PAGE_SIZE);
                return;
            }
        }
    }
}
