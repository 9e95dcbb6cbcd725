//! Writes into the cache. Linux: `generic_perform_write`.

use super::folio::{Frame, LARGE_FOLIO_BYTES, LARGE_FOLIO_PAGES, PAGE};
use super::folio_ref::FolioRef;
use super::index::Word;
use super::locked::PageWriteGuard;
use super::mapping::{AddressSpace, Mapping};
use super::write_source::WriteSource;
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use crate::base::sync::thread;
use crate::base::{PAGE_SIZE, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

impl Mapping {
    /// Copies `bytes` into the cache at byte `offset`, marks the pages dirty, and grows the file if
    /// needed. Pages that are overwritten only in part are read first. May write back other pages
    /// to stay within the limits. Returns the number of bytes copied, short only after an error on
    /// a later page.
    ///
    /// # Errors
    /// The store's, ENOMEM, or ENOSPC beyond the limit or budget of a mapping without a store; if
    /// not a single byte was copied. Linux: `generic_perform_write`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_from(offset, &bytes.into())
    }

    /// Like [`Mapping::write`], from any source.
    ///
    /// # Errors
    /// As for [`Mapping::write`].
    pub fn write_from(&self, offset: u64, source: &WriteSource<'_>) -> Result<usize> {
        // Before a page is locked: the throttled writer may have to write back (C10).
        self.0.writeback.throttle()?;
        let mut done = 0;
        while done < source.len() {
            match self
                .0
                .write_some(offset + done as u64, &source.part(done, usize::MAX))
            {
                // Another thread is removing or reading the page, and needs the processor.
                Ok(0) => thread::yield_now(),
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies bytes that the store has already over cached pages, whose dirtiness does not change,
    /// and grows the file if needed. Absent pages stay absent. For writes past the cache.
    pub fn update(&self, offset: u64, source: &WriteSource<'_>) {
        let mut done = 0;
        while done < source.len() {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let part = source.part(done, PAGE_SIZE - start);
            self.0.update_page(at / PAGE, start, &part);
            done += part.len();
        }
        self.0.grow(offset + source.len() as u64);
    }

    /// Zeroes a byte range in the cache and marks its pages dirty. Reads pages that are covered
    /// only in part. The size does not change.
    ///
    /// # Errors
    /// The store's, or ENOMEM. Linux: `iomap_zero_range`.
    pub fn zero_range(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let start = (at % PAGE) as usize;
            let count = (PAGE - at % PAGE).min(range.end - at);
            let page = if count == PAGE {
                self.page_for_overwrite(at / PAGE)?
            } else {
                self.page(at / PAGE)?
            };
            page.write().zero(start..start + count as usize);
            at += count;
        }
        Ok(())
    }
}

impl AddressSpace {
    /// Writes the part of `source` that belongs to the page, or the large folio, at `offset`.
    /// Returns its length; 0 if the page changed meanwhile.
    fn write_some(self: &Arc<Self>, offset: u64, source: &WriteSource<'_>) -> Result<usize> {
        let index = offset / PAGE;
        let start = (offset % PAGE) as usize;
        let part = &source.part(0, PAGE_SIZE - start);
        let pin = rcu::pin();
        let word = self.index.word(index, &pin);
        if let Some(frame) = word.frame() {
            if !word.has(Word::REFERENCED) {
                self.mark_accessed(word, index, false, &pin);
            }
            if let Some(guard) = PageWriteGuard::try_lock(&self.pool, frame) {
                return Ok(self.write_locked(guard, index, start, part));
            }
            let hold = FolioRef::try_new(&self.pool, frame);
            drop(pin);
            let Some(hold) = hold else { return Ok(0) };
            let guard = PageWriteGuard::lock(&self.pool, hold.frame());
            return Ok(self.write_locked(guard, index, start, part));
        }
        drop(pin);
        if offset.is_multiple_of(LARGE_FOLIO_BYTES)
            && source.len() as u64 >= LARGE_FOLIO_BYTES
            && self.write_new_large_folio(index, source)
        {
            return Ok(LARGE_FOLIO_BYTES as usize);
        }
        let is_new =
            self.store.is_none() || index * PAGE >= self.size_bytes.load(Ordering::Acquire);
        if is_new || part.len() == PAGE_SIZE {
            return self.write_new(index, start, part);
        }
        self.fault(index, 1)?;
        Ok(0)
    }

    /// Writes into a page whose bytes are locked, if it is still the one at `index`.
    #[inline]
    fn write_locked(
        self: &Arc<Self>,
        mut guard: PageWriteGuard<'_>,
        index: u64,
        start: usize,
        part: &WriteSource<'_>,
    ) -> usize {
        let word = self.index.word(index, &rcu::pin());
        // A page whose read failed is removed; one that is being read is locked.
        if word.frame() != Some(guard.frame()) || word.has(Word::BUSY) {
            return 0;
        }
        if !word.has(Word::DIRTY) {
            self.mark_dirty(index, guard.frame());
        }
        part.put(&mut guard, start);
        self.grow(index * PAGE + (start + part.len()) as u64);
        part.len()
    }

    /// Copies `part` into the page at `index`, if there is one. A read of the page under way, which
    /// may have missed the new bytes of the store, ends first.
    fn update_page(&self, index: u64, start: usize, part: &WriteSource<'_>) {
        loop {
            let pin = rcu::pin();
            let Some(frame) = self.index.word(index, &pin).frame() else {
                return;
            };
            let hold = FolioRef::try_new(&self.pool, frame);
            drop(pin);
            let Some(hold) = hold else { continue };
            let mut guard = PageWriteGuard::lock(&self.pool, hold.frame());
            if self.index.word(index, &rcu::pin()).frame() == Some(frame) {
                part.put(&mut guard, start);
                return;
            }
        }
    }

    /// Grows the file to at least `end`. The caller has the page's bytes locked: the size must grow
    /// before writeback of the page, since a store may omit bytes past the end of the file.
    #[inline]
    fn grow(&self, end: u64) {
        if end > self.size_bytes.load(Ordering::Relaxed) {
            self.size_bytes.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Writes a page that is not cached and need not be read.
    fn write_new(
        self: &Arc<Self>,
        index: u64,
        start: usize,
        part: &WriteSource<'_>,
    ) -> Result<usize> {
        let hold = self.new_page(index)?;
        let mut guard = PageWriteGuard::lock(&self.pool, hold.frame());
        let end = start + part.len();
        guard.zero(0..start);
        part.put(&mut guard, start);
        guard.zero(end..PAGE_SIZE);
        if !self.insert(&guard, index, Word::DIRTY)? {
            return Ok(0);
        }
        self.grow(index * PAGE + end as u64);
        drop(guard);
        self.add_candidates(&[hold.frame()]);
        Ok(part.len())
    }

    /// Writes a large folio none of whose pages is cached. Returns false if there is no group of
    /// frames, if its pages exceed the limit, or if a page is present.
    fn write_new_large_folio(self: &Arc<Self>, index: u64, source: &WriteSource<'_>) -> bool {
        let pin = rcu::pin();
        let is_free = || {
            (index..index + LARGE_FOLIO_PAGES)
                .all(|index| self.index.word(index, &pin) == Word::ABSENT)
        };
        let Some(first) = is_free().then(|| self.cache().group()).flatten() else {
            return false;
        };
        let frames = first..first + LARGE_FOLIO_PAGES as Frame;
        let mut guards: SmallVec<[PageWriteGuard<'_>; LARGE_FOLIO_PAGES as usize]> =
            SmallVec::new();
        for (offset, frame) in frames.clone().enumerate() {
            self.pool
                .folio(frame)
                .begin(self.number, index + offset as u64);
            let mut guard = PageWriteGuard::lock(&self.pool, frame);
            source
                .part(offset * PAGE_SIZE, PAGE_SIZE)
                .put(&mut guard, 0);
            guards.push(guard);
        }
        let mut state = self.state.lock();
        // The first check took no lock, so another thread may have inserted a page since.
        if !is_free() || self.charge_limit(LARGE_FOLIO_PAGES).is_err() {
            drop(state);
            drop(guards);
            self.release(frames.collect());
            return false;
        }
        for (index, frame) in (index..).zip(frames.clone()) {
            self.index.insert(index, Word::new(frame, 0), &pin);
            self.mark_dirty_locked(&mut state, index, &pin);
        }
        self.page_count
            .fetch_add(LARGE_FOLIO_PAGES, Ordering::Relaxed);
        self.index.try_form_large(index, &pin);
        drop(state);
        self.grow(index * PAGE + LARGE_FOLIO_BYTES);
        drop(guards);
        drop(pin);
        self.add_candidates(&frames.collect::<SmallVec<[Frame; LARGE_FOLIO_PAGES as usize]>>());
        true
    }
}
