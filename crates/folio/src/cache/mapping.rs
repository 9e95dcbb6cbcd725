//! One file's pages in memory, and the way to bytes that are there.

use super::Store;
use super::counters::{self, Counters, Tally};
use super::folio::{Hold, Page};
use super::index::{BLOCK, Index, Slot, Word};
use super::locked::PageWriteGuard;
use super::pool::{Frame, Pool};
use super::readahead::Readahead;
use super::reclaim::PageCache;
use super::swap::Swapped;
use super::writeback::{Shared, Writeback};
use crate::base::rcu::{self, Pin};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Errno, Error, Limit, PAGE_SIZE, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

pub(super) const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of a block: pages that lie in one run of memory where they can.
pub(super) const BLOCK_BYTES: u64 = BLOCK * PAGE;
/// Bytes copied under one pin, so that frames are not kept from their next use for long.
const PINNED_MAX: usize = 1 << 20;

/// The cached pages of one inode (or of one device, for metadata), by page index. Linux:
/// `struct address_space`.
///
/// Owns the file's size. Dirty pages keep the store alive: the mapping holds it strongly while any
/// page is dirty. Callers order writers, truncation and hole punching among themselves (the inode
/// lock); readers need no lock. Cloning gives another handle of the same mapping.
#[derive(Clone)]
pub struct Mapping(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) pool: Arc<Pool>,
    pub(super) store: Option<Weak<dyn Store>>,
    pub(super) size_bytes: AtomicU64,
    /// Never another mapping's.
    pub(super) number: u64,
    pub(super) index: Index,
    pub(super) page_count: AtomicU64,
    /// What each page is taken from; only where there is no store.
    pub(super) limit: Option<Arc<Limit>>,
    /// Whether a page was ever put on the swap device.
    pub(super) has_swapped: AtomicBool,
    /// Reads leave no trace that reclaim would see (`POSIX_FADV_NOREUSE`).
    pub(super) is_no_reuse: AtomicBool,
    pub(super) writeback: Arc<Shared>,
    pub(super) tally: Tally,
    /// Runs of writeback that failed so far; changes with the table locked.
    pub(super) errors: AtomicU64,
    /// How many of them somebody was told of.
    pub(super) errors_told: AtomicU64,
    pub(super) table: Mutex<Table>,
    /// Signalled when a run of writeback ends.
    pub(super) written: Condvar,
}

/// What changes with the table locked; the index does, too.
#[derive(Default)]
pub(super) struct Table {
    pub(super) dirty_count: u64,
    /// When the first of the dirty pages became so.
    pub(super) dirty_since: Option<Instant>,
    /// The store, while anything is dirty or being written.
    pub(super) held_store: Option<Arc<dyn Store>>,
    /// Whether the device's list has this mapping.
    pub(super) is_listed: bool,
    /// Runs being written now.
    pub(super) runs_in_flight: u32,
    pub(super) readahead: Readahead,
    /// Frames for the next pages of a file that grows.
    pub(super) reserved: Option<Reserved>,
    /// Pages on the swap device.
    pub(super) swapped: BTreeMap<u64, Swapped>,
    pub(super) last_error: Option<Errno>,
}

/// The frames of one block that have no page yet.
pub(super) struct Reserved {
    pub(super) block: u64,
    pub(super) frames: Range<Frame>,
}

impl Mapping {
    /// A mapping whose pages come from and go to `store`. `size_bytes` is the file's size.
    pub fn new(writeback: &Arc<Writeback>, store: Weak<dyn Store>, size_bytes: u64) -> Self {
        Self::build(writeback, Some(store), size_bytes, None)
    }

    /// A mapping with nothing behind it: absent pages are zeros, pages are never written back or
    /// reclaimed (ramfs). With a `limit` (tmpfs), each page is taken from it while it is there, and
    /// a write that needs one more fails with ENOSPC; pages may go to the swap device, if there is
    /// one.
    pub fn without_store(
        writeback: &Arc<Writeback>,
        size_bytes: u64,
        limit: Option<Arc<Limit>>,
    ) -> Self {
        Self::build(writeback, None, size_bytes, limit)
    }

    fn build(
        writeback: &Arc<Writeback>,
        store: Option<Weak<dyn Store>>,
        size_bytes: u64,
        limit: Option<Arc<Limit>>,
    ) -> Self {
        let shared = writeback.shared().clone();
        let number = counters::take_number();
        let inner = Arc::new(Inner {
            pool: shared.cache.pool.clone(),
            store,
            size_bytes: AtomicU64::new(size_bytes),
            number,
            index: Index::new(),
            page_count: AtomicU64::new(0),
            limit,
            has_swapped: AtomicBool::new(false),
            is_no_reuse: AtomicBool::new(false),
            writeback: shared,
            tally: Tally::default(),
            errors: AtomicU64::new(0),
            errors_told: AtomicU64::new(0),
            table: Mutex::default(),
            written: Condvar::new(),
        });
        counters::enter(number, &Arc::downgrade(&inner));
        Self(inner)
    }

    /// The file's size in bytes (`i_size`).
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes.load(Ordering::Acquire)
    }

    /// Sets the size without touching pages: growth of a file, or the size read from disk.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.0.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Copies bytes from `offset` into `buf`, up to the end of the file, if all of them are in
    /// memory; otherwise nothing counts as read. Takes no lock and never waits. Returns the number
    /// of bytes copied.
    #[inline]
    pub fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let inner = &*self.0;
        let len = inner.clip(offset, buf.len());
        if len > PINNED_MAX {
            return None;
        }
        let pin = rcu::pin();
        if inner.copy_out(offset, &mut buf[..len], &pin) < len {
            return None;
        }
        counters::count_hits(inner.number, pages_of(offset, len));
        Some(len.min(inner.clip(offset, len)))
    }

    /// Copies bytes from `offset` into `buf`, up to the end of the file; reads ahead where access
    /// is sequential. Returns the number of bytes copied; 0 at or past the end of the file. While
    /// others write, each byte is an old or a new one, as in Linux.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inner = &self.0;
        let len = inner.clip(offset, buf.len());
        let mut done = 0;
        let mut missed = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let chunk = (len - done).min(PINNED_MAX);
            let copied = inner.copy_out(
                offset + done as u64,
                &mut buf[done..done + chunk],
                &rcu::pin(),
            );
            done += copied;
            if copied < chunk {
                let at = offset + done as u64;
                let index = at / PAGE;
                if inner.is_hole(index) {
                    done += zeroes(&mut buf[done..len], at);
                    continue;
                }
                let wanted = (offset + len as u64).div_ceil(PAGE) - index;
                result = inner.fault(index, wanted).map(|count| missed += count);
            }
        }
        counters::count_hits(inner.number, pages_of(offset, done).saturating_sub(missed));
        match result {
            Err(error) if done == 0 => Err(error),
            // The file may have become shorter meanwhile.
            _ => Ok(done.min(inner.clip(offset, len))),
        }
    }

    /// The page at `index` (in pages), read from the store if absent, pinned while the handle
    /// lives.
    pub fn page(&self, index: u64) -> Result<Page> {
        loop {
            if let Some(page) = self.0.cached_page(index) {
                counters::count_hits(self.0.number, 1);
                return Ok(page);
            }
            match self.0.store.is_some() {
                true => drop(self.0.fault(index, 1)?),
                false => return self.page_for_overwrite(index),
            }
        }
    }

    /// The page at `index` without reading it: zeros if it was absent. For pages about to be filled
    /// whole.
    pub fn page_for_overwrite(&self, index: u64) -> Result<Page> {
        let inner = &self.0;
        loop {
            if let Some(page) = inner.cached_page(index) {
                return Ok(page);
            }
            if inner.index.word(index, &rcu::pin()).has(Word::BUSY) {
                // Being read; a read that fails takes the page away.
                inner.fault(index, 1).or_else(|error| {
                    if inner.is_absent(index) {
                        Ok(0)
                    } else {
                        Err(error)
                    }
                })?;
                continue;
            }
            if inner.swap_in(index)? {
                continue;
            }
            let hold = inner.new_page(index)?;
            let mut guard = PageWriteGuard::lock(&inner.pool, hold.frame());
            guard.zero(0..PAGE_SIZE);
            if inner.insert(&guard, index, 0)? {
                drop(guard);
                inner.add_candidates(&[hold.frame()]);
                return Ok(Page::new(inner, index, hold));
            }
        }
    }

    /// The first page at or after byte `offset`, as a byte offset; `None` when there is none before
    /// the end of the file. For files that live in the cache alone, this is SEEK_DATA.
    pub fn next_cached(&self, offset: u64) -> Option<u64> {
        let from = offset / PAGE;
        let cached = || {
            self.0
                .index
                .next(from, false, &rcu::pin())
                .map(|(index, _)| index)
        };
        let mut found = cached();
        if self.0.may_be_swapped() {
            let table = self.0.table.lock();
            let swapped = table.swapped.range(from..).next().map(|(index, _)| *index);
            found = cached().into_iter().chain(swapped).min();
        }
        let index = found?;
        let at = (index * PAGE).max(offset);
        (at < self.size_bytes()).then_some(at)
    }

    /// The first byte at or after `offset` that has no page; SEEK_HOLE for files in the cache
    /// alone.
    pub fn next_absent(&self, offset: u64) -> u64 {
        let mut index = offset / PAGE;
        while self.0.has_page(index) {
            index += 1;
        }
        (index * PAGE).max(offset)
    }

    /// Pages held.
    pub fn page_count(&self) -> u64 {
        self.0.page_count.load(Ordering::Relaxed)
    }

    /// What happened to this file's pages so far.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            file_pages: self.page_count(),
            ..Counters::default()
        };
        self.0.tally.add_to(&mut counters);
        counters.hits += counters::hits_in_tables(self.0.number);
        counters
    }

    /// Reports a writeback error once per observer: `seen` is the observer's cursor, 0 for a new
    /// one made before any error; it moves to the newest error. Linux: lib/errseq.c.
    pub fn check_error(&self, seen: &mut u64) -> Result<()> {
        if *seen == self.0.errors.load(Ordering::Acquire) {
            return Ok(());
        }
        let table = self.0.table.lock();
        *seen = self.0.errors.load(Ordering::Acquire);
        self.0.errors_told.store(*seen, Ordering::Release);
        table.last_error.map_or(Ok(()), |errno| {
            Err(Error::new(errno, "earlier writeback failed"))
        })
    }

    /// The cursor an observer that opens the file now starts with: an error that nobody was told of
    /// is still ahead.
    pub fn error_cursor(&self) -> u64 {
        self.0.errors_told.load(Ordering::Acquire)
    }
}

/// Pages that `len` bytes from `offset` on touch.
#[inline]
fn pages_of(offset: u64, len: usize) -> u64 {
    if len == 0 {
        0
    } else {
        (offset + len as u64 - 1) / PAGE - offset / PAGE + 1
    }
}

impl Inner {
    pub(super) fn cache(&self) -> &Arc<PageCache> {
        &self.writeback.cache
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Adds to a counter of this mapping and of the cache.
    pub(super) fn count(&self, which: impl Fn(&Tally) -> &AtomicU64, count: u64) {
        if count > 0 {
            counters::add(which(&self.tally), count);
            counters::add(which(&self.cache().tally), count);
        }
    }

    /// How many of `len` bytes from `offset` on the file has.
    #[inline]
    fn clip(&self, offset: u64, len: usize) -> usize {
        self.size_bytes
            .load(Ordering::Acquire)
            .saturating_sub(offset)
            .min(len as u64) as usize
    }

    /// Copies bytes from `offset` on as far as they are in memory; returns how many.
    #[inline]
    fn copy_out(&self, offset: u64, buf: &mut [u8], pin: &Pin) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let rest = buf.len() - done;
            let slot = self.index.find(at / PAGE, pin);
            let (frame, start, len) = match slot.as_ref().map(|slot| (slot, slot.whole())) {
                Some((slot, whole)) if let Some(first) = whole.frame() => {
                    if !whole.has(Word::REFERENCED) {
                        self.note_use(slot, whole, at / BLOCK_BYTES * BLOCK, true);
                    }
                    (first, at % BLOCK_BYTES, BLOCK_BYTES)
                }
                Some((slot, _)) => {
                    let word = slot.word();
                    match word.frame() {
                        Some(frame) if !word.has(Word::BUSY | Word::MARK) => {
                            if !word.has(Word::REFERENCED) {
                                self.note_use(slot, word, at / PAGE, false);
                            }
                            (frame, at % PAGE, PAGE)
                        }
                        None if self.store.is_none() && !self.may_be_swapped() => {
                            done += zeroes(&mut buf[done..], at);
                            continue;
                        }
                        _ => return done,
                    }
                }
                None if self.store.is_none() && !self.may_be_swapped() => {
                    done += zeroes(&mut buf[done..], at);
                    continue;
                }
                None => return done,
            };
            let count = ((len - start) as usize).min(rest);
            self.pool
                .copy_out(frame, start as usize, &mut buf[done..done + count], pin);
            done += count;
        }
        done
    }

    /// Notes a use of the page at `index`, or of the whole block that starts there, which reclaim
    /// does not know of.
    ///
    /// The first use is what the page came in for, and a scan makes it, too; only later ones say
    /// that it is worth keeping. Further uses by the same reader without one of another page in
    /// between are part of one.
    #[cold]
    pub(super) fn note_use(&self, slot: &Slot<'_>, word: Word, index: u64, is_whole: bool) {
        let Some(first) = word.frame() else { return };
        let frames = if is_whole {
            first..first + BLOCK as Frame
        } else {
            first..first + 1
        };
        let was_ahead = |frame: &Frame| {
            self.pool
                .folio(*frame)
                .is_ahead
                .swap(false, Ordering::Relaxed)
        };
        self.count(
            |tally| &tally.readahead_used_pages,
            frames.filter(was_ahead).count() as u64,
        );
        let is_repeated = counters::is_repeated(self.number, index);
        let was_new = self.pool.folio(first).is_new.swap(false, Ordering::Relaxed);
        if is_repeated || was_new || self.is_no_reuse.load(Ordering::Relaxed) {
            return;
        }
        match is_whole {
            true => slot.touch_whole(word),
            false => slot.touch(word),
        }
    }

    pub(super) fn is_absent(&self, index: u64) -> bool {
        self.index.word(index, &rcu::pin()) == Word::ABSENT
    }

    /// The page at `index` if it is in memory and up to date.
    fn cached_page(self: &Arc<Self>, index: u64) -> Option<Page> {
        self.hold_cached(index)
            .map(|hold| Page::new(self, index, hold))
    }

    /// A count of the page at `index` if it is in memory and up to date.
    pub(super) fn hold_cached(&self, index: u64) -> Option<Hold<'_>> {
        let pin = rcu::pin();
        let slot = self.index.find(index, &pin)?;
        let word = slot.word();
        let frame = word.frame().filter(|_| !word.has(Word::BUSY))?;
        let hold = Hold::try_new(&self.pool, frame)?;
        // Between the look and the hold the frame may have been let go of.
        if slot.word().frame() != Some(frame) {
            return None;
        }
        if !word.has(Word::REFERENCED) {
            self.note_use(&slot, word, index, false);
        }
        Some(hold)
    }

    /// A frame for the page `index`, which is not in the table yet, with arbitrary bytes; held by
    /// the caller alone.
    pub(super) fn new_page(&self, index: u64) -> Result<Hold<'_>> {
        let frame = match self.take_reserved(index) {
            Some(frame) => frame,
            None if self.store.is_some() => self.cache().frame()?,
            // Pages without a store may have nowhere to go, so the budget is a hard limit for them.
            None => self.cache().frame_or_nospc()?,
        };
        self.pool.folio(frame).begin(self.number, index);
        Ok(Hold::adopt(&self.pool, frame))
    }

    /// A file that grows page by page gets the frames of a whole block at once, so that it lies in
    /// one piece.
    fn take_reserved(&self, index: u64) -> Option<Frame> {
        if index < BLOCK {
            return None;
        }
        let mut table = self.table.lock();
        if index.is_multiple_of(BLOCK) && index * PAGE == self.size_bytes.load(Ordering::Relaxed) {
            let first = self.cache().reserve_group()?;
            let frames = first..first + BLOCK as Frame;
            let unused = table.reserved.replace(Reserved {
                block: index / BLOCK,
                frames,
            });
            self.put_reserved(unused);
        }
        let reserved = table
            .reserved
            .as_mut()
            .filter(|reserved| reserved.block == index / BLOCK)?;
        if u64::from(reserved.frames.start) % BLOCK != index % BLOCK {
            return None;
        }
        let frame = reserved.frames.next()?;
        self.cache().unreserve(1);
        Some(frame)
    }

    /// Gives frames back that were reserved for pages which never came.
    pub(super) fn put_reserved(&self, reserved: Option<Reserved>) {
        let Some(reserved) = reserved else { return };
        self.cache().unreserve(reserved.frames.len() as u64);
        self.pool.put(reserved.frames);
    }

    /// Puts a page in, whose bytes are locked and complete, if there is none. The index gets a
    /// count of its own. ENOSPC if there may be no more.
    pub(super) fn insert(
        self: &Arc<Self>,
        guard: &PageWriteGuard<'_>,
        index: u64,
        flags: u32,
    ) -> Result<bool> {
        let pin = rcu::pin();
        let mut table = self.table.lock();
        if self.index.word(index, &pin) != Word::ABSENT {
            return Ok(false);
        }
        if table.swapped.contains_key(&index) {
            return Ok(false);
        }
        let Some(hold) = Hold::try_new(&self.pool, guard.frame()) else {
            return Ok(false);
        };
        self.take_from_limit(1)?;
        self.index
            .insert(index, Word::new(hold.keep(), flags & !Word::DIRTY), &pin);
        self.page_count.fetch_add(1, Ordering::Relaxed);
        if flags & Word::DIRTY != 0 {
            self.mark_dirty_locked(&mut table, index, &pin);
        }
        if index % BLOCK == BLOCK - 1 {
            self.index.try_join(index, &pin);
        }
        Ok(true)
    }

    /// Takes what `count` more pages need; ENOSPC if that is beyond the limit.
    pub(super) fn take_from_limit(&self, count: u64) -> Result<()> {
        self.limit
            .as_ref()
            .map_or(Ok(()), |limit| limit.take(count))
    }
}

/// Zeroes what a hole gives of `buf`: at most the rest of its page.
fn zeroes(buf: &mut [u8], at: u64) -> usize {
    let count = ((PAGE - at % PAGE) as usize).min(buf.len());
    buf[..count].fill(0);
    count
}

impl Drop for Inner {
    fn drop(&mut self) {
        counters::leave(self.number);
        self.drop_pages(0..u64::MAX);
    }
}
