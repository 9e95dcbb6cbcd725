//! Writing into the cache.

use super::borrow::Source;
use super::folio::Hold;
use super::index::{BLOCK, Word};
use super::locked::PageWriteGuard;
use super::mapping::{BLOCK_BYTES, Inner, Mapping, PAGE};
use super::pool::Frame;
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use crate::base::sync::thread;
use crate::base::{PAGE_SIZE, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

impl Mapping {
    /// Copies `bytes` into the cache at `offset`, marks the pages dirty and grows the size where
    /// needed. Pages overwritten only in part are read first. May write back other pages to stay
    /// within limits. Returns the count copied, short only after an error on a later page.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_from(offset, &bytes.into())
    }

    /// Like [`Mapping::write`], from whatever has the bytes.
    pub fn write_from(&self, offset: u64, source: &Source<'_>) -> Result<usize> {
        self.0.writeback.throttle()?;
        let mut done = 0;
        while done < source.len() {
            match self
                .0
                .write_some(offset + done as u64, &source.part(done, usize::MAX))
            {
                // Somebody takes the page out, or brings it in, and must get on with it.
                Ok(0) => thread::yield_now(),
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies bytes that the store has already over pages in memory, which stay as clean as they
    /// were, and grows the size where needed. Pages that are absent stay so.
    pub fn update(&self, offset: u64, source: &Source<'_>) {
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

    /// Zeroes a byte range in the cache and marks it dirty, reading pages that are covered only in
    /// part. The size stays.
    pub fn zero_range(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let start = (at % PAGE) as usize;
            let count = (PAGE - at % PAGE).min(range.end - at);
            let page = match count == PAGE {
                true => self.page_for_overwrite(at / PAGE)?,
                false => self.page(at / PAGE)?,
            };
            page.write().zero(start..start + count as usize);
            at += count;
        }
        Ok(())
    }
}

impl Inner {
    /// Writes the part of `source` that goes into the page, or the block, at `offset`. Returns how
    /// much that was; 0 if things changed meanwhile.
    fn write_some(self: &Arc<Self>, offset: u64, source: &Source<'_>) -> Result<usize> {
        let index = offset / PAGE;
        let start = (offset % PAGE) as usize;
        let part = &source.part(0, PAGE_SIZE - start);
        let pin = rcu::pin();
        let slot = self.index.find(index, &pin);
        let word = slot.as_ref().map_or(Word::ABSENT, |slot| slot.word());
        if let Some(frame) = word.frame() {
            if !word.has(Word::REFERENCED)
                && let Some(slot) = slot
            {
                self.note_use(&slot, word, index, false);
            }
            if let Some(guard) = PageWriteGuard::try_lock(&self.pool, frame) {
                return Ok(self.write_locked(guard, index, start, part));
            }
            let hold = Hold::try_new(&self.pool, frame);
            drop(pin);
            let Some(hold) = hold else { return Ok(0) };
            let guard = PageWriteGuard::lock(&self.pool, hold.frame());
            return Ok(self.write_locked(guard, index, start, part));
        }
        drop(pin);
        if self.swap_in(index)? {
            return Ok(0);
        }
        if offset.is_multiple_of(BLOCK_BYTES)
            && source.len() as u64 >= BLOCK_BYTES
            && self.write_new_block(index, source)
        {
            return Ok(BLOCK_BYTES as usize);
        }
        let is_new =
            self.store.is_none() || index * PAGE >= self.size_bytes.load(Ordering::Acquire);
        if is_new || part.len() == PAGE_SIZE {
            return self.write_new(index, start, part);
        }
        self.fault(index, 1)?;
        Ok(0)
    }

    /// Writes into a page whose bytes are locked, if it still is the one at `index`.
    #[inline]
    fn write_locked(
        self: &Arc<Self>,
        mut guard: PageWriteGuard<'_>,
        index: u64,
        start: usize,
        part: &Source<'_>,
    ) -> usize {
        let word = self.index.word(index, &rcu::pin());
        // A page whose read failed is taken out; one that is being read is locked.
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

    /// Copies `part` into the page at `index`, if there is one. A read of it that is under way,
    /// which may have missed what the store has by now, ends first.
    fn update_page(&self, index: u64, start: usize, part: &Source<'_>) {
        loop {
            let pin = rcu::pin();
            let Some(frame) = self.index.word(index, &pin).frame() else {
                return;
            };
            let hold = Hold::try_new(&self.pool, frame);
            drop(pin);
            let Some(hold) = hold else { continue };
            let mut guard = PageWriteGuard::lock(&self.pool, hold.frame());
            if self.index.word(index, &rcu::pin()).frame() == Some(frame) {
                part.put(&mut guard, start);
                return;
            }
        }
    }

    /// The file reaches to `end` at least. To be called before the page can be written back, whose
    /// bytes past the end of the file a store may leave out: with its bytes locked.
    #[inline]
    fn grow(&self, end: u64) {
        if end > self.size_bytes.load(Ordering::Relaxed) {
            self.size_bytes.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Writes a page that is not in memory and need not be read.
    fn write_new(self: &Arc<Self>, index: u64, start: usize, part: &Source<'_>) -> Result<usize> {
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

    /// Writes a block none of whose pages is in memory, in one piece; false if there is no such
    /// memory, if so many pages are beyond the limit, or if a page is there.
    fn write_new_block(self: &Arc<Self>, index: u64, source: &Source<'_>) -> bool {
        let pin = rcu::pin();
        let is_free =
            || (index..index + BLOCK).all(|index| self.index.word(index, &pin) == Word::ABSENT);
        let Some(first) = is_free().then(|| self.cache().group()).flatten() else {
            return false;
        };
        let frames = first..first + BLOCK as Frame;
        let mut guards: SmallVec<[PageWriteGuard<'_>; BLOCK as usize]> = SmallVec::new();
        for (place, frame) in frames.clone().enumerate() {
            self.pool
                .folio(frame)
                .begin(self.number, index + place as u64);
            let mut guard = PageWriteGuard::lock(&self.pool, frame);
            source.part(place * PAGE_SIZE, PAGE_SIZE).put(&mut guard, 0);
            guards.push(guard);
        }
        let mut table = self.table.lock();
        // Others may have come since the first look, which took no lock.
        let is_free = is_free() && table.swapped.range(index..index + BLOCK).next().is_none();
        if !is_free || self.take_from_limit(BLOCK).is_err() {
            drop(table);
            drop(guards);
            self.release(frames.collect());
            return false;
        }
        for (index, frame) in (index..).zip(frames.clone()) {
            self.index.insert(index, Word::new(frame, 0), &pin);
            self.mark_dirty_locked(&mut table, index, &pin);
        }
        self.page_count.fetch_add(BLOCK, Ordering::Relaxed);
        self.index.try_join(index, &pin);
        drop(table);
        self.grow(index * PAGE + BLOCK_BYTES);
        drop(guards);
        drop(pin);
        self.add_candidates(&frames.collect::<SmallVec<[Frame; BLOCK as usize]>>());
        true
    }
}
