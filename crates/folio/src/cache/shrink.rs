//! Taking pages out: truncation, hole punching, invalidation, eviction.

use super::index::Word;
use super::locked::PageWriteGuard;
use super::mapping::{Inner, Mapping, PAGE, Table};
use super::pool::Frame;
use super::swap::Swapped;
use crate::base::PAGE_SIZE;
use crate::base::rcu::{self, Pin};
use crate::base::sync::MutexGuard;
use crate::base::sync::atomic::Ordering;
use std::ops::Range;

impl Mapping {
    /// Sets the size and, when it shrinks, drops every page past the new end, dirty or not, zeroing
    /// the cached tail of the last page. When it returns, no writeback beyond the new end is under
    /// way.
    pub fn truncate(&self, size_bytes: u64) {
        let old = self.0.size_bytes.swap(size_bytes, Ordering::AcqRel);
        if size_bytes >= old {
            return;
        }
        self.0.drop_pages(size_bytes.div_ceil(PAGE)..u64::MAX);
        let start = (size_bytes % PAGE) as usize;
        if start > 0 {
            self.0.zero_tail(size_bytes / PAGE, start);
        }
    }

    /// Drops the pages that lie wholly inside `range` (in bytes), dirty or not, after writeback on
    /// them has ended.
    pub fn punch(&self, range: Range<u64>) {
        self.0
            .drop_pages(range.start.div_ceil(PAGE)..range.end / PAGE);
    }

    /// Drops every page but the dirty ones, also pages that somebody holds or reads in: what the
    /// store has is not what it was. Waits for writes that are under way, so that nobody finds
    /// there what was before them.
    pub fn drop_clean(&self) {
        let inner = &*self.0;
        let mut table = inner.table.lock();
        while table.runs_in_flight > 0 {
            inner.written.wait(&mut table);
        }
        inner.drop_where(table, 0..u64::MAX, |word| !word.has(Word::DIRTY));
    }

    /// Drops clean, unpinned pages inside `range` (in bytes); dirty ones stay. Returns the count
    /// dropped.
    pub fn invalidate(&self, range: Range<u64>) -> u64 {
        let indexes = range.start.div_ceil(PAGE)..range.end / PAGE;
        let mut at = indexes.start;
        let mut dropped = 0;
        loop {
            let found = self.0.index.next(at, false, &rcu::pin());
            let Some((index, word)) = found.filter(|(index, _)| *index < indexes.end) else {
                return dropped;
            };
            let is_gone = word
                .frame()
                .is_some_and(|frame| self.0.try_evict(index, frame));
            dropped += u64::from(is_gone);
            at = index + 1;
        }
    }
}

impl Inner {
    /// Takes a page out of the index, whose table is locked. Returns its frame: the index's count
    /// of it is the caller's now.
    pub(super) fn take_out(&self, index: u64, pin: &Pin) -> Option<Frame> {
        let word = self.index.remove(index, pin);
        let frame = word.frame()?;
        self.page_count.fetch_sub(1, Ordering::Relaxed);
        if let Some(limit) = &self.limit {
            limit.give_back(1);
        }
        Some(frame)
    }

    /// Takes a clean page that nobody holds out of memory, if it still is the one in `frame`.
    pub(super) fn try_evict(&self, index: u64, frame: Frame) -> bool {
        if self.store.is_none() {
            return false;
        }
        let pin = rcu::pin();
        let Some(table) = self.table.try_lock() else {
            return false;
        };
        let word = self.index.word(index, &pin);
        let is_ours = word.frame() == Some(frame);
        if !is_ours || word.has(Word::DIRTY | Word::BUSY) {
            return false;
        }
        // Whoever has just locked the bytes to write them will look whether the page is still
        // there.
        let Some(guard) = PageWriteGuard::try_lock(&self.pool, frame) else {
            return false;
        };
        if !self.pool.folio(frame).try_freeze(1) {
            return false;
        }
        let taken = self.take_out(index, &pin);
        drop((guard, table));
        self.pool.put(taken);
        true
    }

    /// Takes the pages of `indexes` out, then waits until nobody writes any of them to the store.
    pub(super) fn drop_pages(&self, indexes: Range<u64>) {
        if !indexes.is_empty() {
            self.drop_where(self.table.lock(), indexes, |_| true);
        }
    }

    /// The same for those of which `is_going` says so.
    fn drop_where(
        &self,
        mut table: MutexGuard<'_, Table>,
        indexes: Range<u64>,
        is_going: impl Fn(Word) -> bool,
    ) {
        let pin = rcu::pin();
        let mut gone: Vec<Frame> = Vec::new();
        let mut cleaned = 0;
        let mut at = indexes.start;
        while let Some((index, word)) = self
            .index
            .next(at, false, &pin)
            .filter(|(index, _)| *index < indexes.end)
        {
            at = index + 1;
            if is_going(word) {
                cleaned += u64::from(word.has(Word::DIRTY));
                gone.extend(self.take_out(index, &pin));
            }
        }
        self.uncount_dirty(&mut table, cleaned);
        let store = table.release_store();
        let reserved = table.reserved.take();
        let mut swapped: Vec<Swapped> = Vec::new();
        while let Some((index, _)) = table.swapped.range(indexes.clone()).next() {
            let index = *index;
            swapped.extend(table.swapped.remove(&index));
        }
        let may_be_written = table.runs_in_flight > 0;
        drop((table, pin));
        drop(store);
        self.forget_swapped(swapped);
        self.put_reserved(reserved);
        if may_be_written {
            gone.iter()
                .for_each(|frame| drop(PageWriteGuard::lock(&self.pool, *frame)));
        }
        self.release(gone);
    }

    /// Pages that were swapped are gone.
    fn forget_swapped(&self, swapped: Vec<Swapped>) {
        let Some(swap) = self.swap().filter(|_| !swapped.is_empty()) else {
            return;
        };
        let count = swapped.len() as u64;
        swap.give_back(swapped);
        self.page_count.fetch_sub(count, Ordering::Relaxed);
        if let Some(limit) = &self.limit {
            limit.give_back(count);
        }
    }

    /// Zeroes a page from `start` on, if there is one.
    fn zero_tail(&self, index: u64, start: usize) {
        loop {
            let pin = rcu::pin();
            let word = self.index.word(index, &pin);
            if word == Word::ABSENT {
                let mut table = self.table.lock();
                if self.index.word(index, &pin) != Word::ABSENT {
                    continue;
                }
                if let Some(swapped) = table.swapped.get_mut(&index) {
                    swapped.cut(start);
                }
                return;
            }
            let hold = word
                .frame()
                .and_then(|frame| super::folio::Hold::try_new(&self.pool, frame));
            drop(pin);
            let Some(hold) = hold else { continue };
            // A read of it that is under way has the bytes locked, and ends first.
            let mut guard = PageWriteGuard::lock(&self.pool, hold.frame());
            if self.index.word(index, &rcu::pin()).frame() == Some(hold.frame()) {
                guard.zero(start..PAGE_SIZE);
                return;
            }
        }
    }
}
