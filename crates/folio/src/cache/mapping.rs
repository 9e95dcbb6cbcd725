//! One file's pages in memory.

use super::Store;
use super::folio::{Folio, Page};
use super::pool::Frame;
use super::readahead::Readahead;
use super::reclaim::PageCache;
use super::writeback::{Shared, Writeback};
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use parking_lot::{Condvar, Mutex, RwLockReadGuard};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

const PAGE: u64 = PAGE_SIZE as u64;

/// Folios in one call to the store: the host's limit for one vectored transfer.
const RUN_MAX: usize = 1024;
/// Folios brought in by one call to the store.
const FILL_MAX: u64 = 512;

/// The cached pages of one inode (or of one device, for metadata), by page index. Linux: `struct address_space`.
///
/// Owns the file's size. Dirty pages keep the store alive: the mapping holds it strongly while any page is dirty.
/// Callers order writers, truncation and hole punching among themselves (the inode lock); readers need no lock.
/// Cloning gives another handle of the same mapping.
#[derive(Clone)]
pub struct Mapping(Arc<Inner>);

pub(super) struct Inner {
    writeback: Arc<Shared>,
    store: Option<Weak<dyn Store>>,
    size_bytes: AtomicU64,
    table: Mutex<Table>,
    /// Signalled when a run of writeback ends.
    written: Condvar,
}

#[derive(Default)]
struct Table {
    folios: BTreeMap<u64, Arc<Folio>>,
    dirty: BTreeSet<u64>,
    /// The store, while anything is dirty or being written.
    held_store: Option<Arc<dyn Store>>,
    /// Whether the device's list has this mapping.
    is_listed: bool,
    /// Runs being written now.
    runs_in_flight: u32,
    readahead: Readahead,
    errors: u64,
    last_error: Option<Errno>,
}

impl Mapping {
    /// A mapping whose pages come from and go to `store`. `size_bytes` is the file's size.
    pub fn new(writeback: &Arc<Writeback>, store: Weak<dyn Store>, size_bytes: u64) -> Self {
        Self::build(writeback, Some(store), size_bytes)
    }

    /// A mapping with nothing behind it: absent pages are zeros, pages are never written back or reclaimed (ramfs).
    pub fn without_store(writeback: &Arc<Writeback>, size_bytes: u64) -> Self {
        Self::build(writeback, None, size_bytes)
    }

    fn build(writeback: &Arc<Writeback>, store: Option<Weak<dyn Store>>, size_bytes: u64) -> Self {
        Self(Arc::new(Inner {
            writeback: writeback.shared().clone(),
            store,
            size_bytes: AtomicU64::new(size_bytes),
            table: Mutex::default(),
            written: Condvar::new(),
        }))
    }

    /// The file's size in bytes (`i_size`).
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes.load(Ordering::Acquire)
    }

    /// Sets the size without touching pages: growth of a file, or the size read from disk.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.0.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Copies bytes from `offset` into `buf`, up to the end of the file; reads ahead where access is sequential.
    /// Returns the number of bytes copied; 0 at or past the end of the file.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = self.size_bytes().saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let count = (PAGE_SIZE - start).min(len - done);
            let part = &mut buf[done..done + count];
            let wanted = (offset + len as u64).div_ceil(PAGE) - at / PAGE;
            match self.0.get(at / PAGE, wanted) {
                Ok(Some(folio)) => part.copy_from_slice(&folio.bytes.read()[start..start + count]),
                Ok(None) => part.fill(0),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += count;
        }
        Ok(done)
    }

    /// Copies `bytes` into the cache at `offset`, marks the pages dirty and grows the size where needed. Pages
    /// overwritten only in part are read first. May write back other pages to stay within limits. Returns the
    /// count copied, short only after an error on a later page.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.0.writeback.throttle()?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let count = (PAGE_SIZE - start).min(bytes.len() - done);
            match self.write_page(at / PAGE, start, &bytes[done..done + count]) {
                Ok(()) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies `bytes` into one page. The size grows before the page can be written back, whose bytes past the end
    /// of the file a store may leave out.
    fn write_page(&self, index: u64, start: usize, bytes: &[u8]) -> Result<()> {
        let inner = &self.0;
        let is_whole = bytes.len() == PAGE_SIZE;
        let end = index * PAGE + (start + bytes.len()) as u64;
        if inner.store.is_some() && !is_whole && index * PAGE < self.size_bytes() {
            let page = self.page(index)?;
            let mut guard = page.write();
            guard[start..start + bytes.len()].copy_from_slice(bytes);
            inner.size_bytes.fetch_max(end, Ordering::AcqRel);
            return Ok(());
        }
        loop {
            let mut table = inner.table.lock();
            if let Some(folio) = table.folios.get(&index).cloned() {
                drop(table);
                let mut guard = folio.bytes.write();
                if !folio.is_uptodate.load(Ordering::Acquire) {
                    if !is_whole {
                        drop(guard);
                        inner.discard(&folio);
                        continue;
                    }
                    folio.is_uptodate.store(true, Ordering::Release);
                }
                inner.mark_dirty(&folio);
                guard[start..start + bytes.len()].copy_from_slice(bytes);
                inner.size_bytes.fetch_max(end, Ordering::AcqRel);
                return Ok(());
            }
            drop(table);
            let folio = inner.new_folio(index)?;
            let mut guard = folio.bytes.write();
            table = inner.table.lock();
            if table.folios.contains_key(&index) {
                continue;
            }
            table.folios.insert(index, folio.clone());
            inner.mark_dirty_locked(&mut table, &folio);
            drop(table);
            inner.add_candidate(&folio);
            guard[..start].fill(0);
            guard[start..start + bytes.len()].copy_from_slice(bytes);
            guard[start + bytes.len()..].fill(0);
            inner.size_bytes.fetch_max(end, Ordering::AcqRel);
            return Ok(());
        }
    }

    /// Zeroes a byte range in the cache and marks it dirty, reading pages that are covered only in part.
    /// The size stays.
    pub fn zero_range(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let start = (at % PAGE) as usize;
            let count = (PAGE - at % PAGE).min(range.end - at);
            let page = match count == PAGE {
                true => self.page_for_overwrite(at / PAGE)?,
                false => self.page(at / PAGE)?,
            };
            page.write()[start..start + count as usize].fill(0);
            at += count;
        }
        Ok(())
    }

    /// Sets the size and, when it shrinks, drops every page past the new end, dirty or not, zeroing the cached
    /// tail of the last page. When it returns, no writeback beyond the new end is under way.
    pub fn truncate(&self, size_bytes: u64) {
        let old = self.0.size_bytes.swap(size_bytes, Ordering::AcqRel);
        if size_bytes >= old {
            return;
        }
        self.0.drop_folios(size_bytes.div_ceil(PAGE)..u64::MAX);
        let tail = self.0.table.lock().folios.get(&(size_bytes / PAGE)).cloned();
        if let Some(folio) = tail.filter(|_| !size_bytes.is_multiple_of(PAGE)) {
            folio.bytes.write()[(size_bytes % PAGE) as usize..].fill(0);
        }
    }

    /// Drops the pages that lie wholly inside `range` (in bytes), dirty or not, after writeback on them has ended.
    pub fn punch(&self, range: Range<u64>) {
        self.0.drop_folios(range.start.div_ceil(PAGE)..range.end / PAGE);
    }

    /// Drops clean, unpinned pages inside `range`; dirty ones stay. Returns the count dropped.
    pub fn invalidate(&self, range: Range<u64>) -> u64 {
        let indexes = range.start.div_ceil(PAGE)..range.end / PAGE;
        if indexes.is_empty() {
            return 0;
        }
        let found: Vec<Arc<Folio>> =
            self.0.table.lock().folios.range(indexes).map(|(_, f)| f.clone()).collect();
        found.into_iter().filter(|folio| self.0.try_evict(folio)).count() as u64
    }

    /// Writes the dirty pages that touch `range` to the store, in runs as long as they come, and waits.
    /// On error the pages stay dirty and the error is remembered for [`Mapping::check_error`].
    pub fn write_back(&self, range: Range<u64>) -> Result<()> {
        self.0.write_back(range)
    }

    /// Reports a writeback error once per observer: `seen` is the observer's cursor, 0 for a new one made before
    /// any error; it moves to the newest error. Linux: lib/errseq.c.
    pub fn check_error(&self, seen: &mut u64) -> Result<()> {
        let table = self.0.table.lock();
        if *seen == table.errors {
            return Ok(());
        }
        *seen = table.errors;
        table.last_error.map_or(Ok(()), |errno| Err(Error::new(errno, "earlier writeback failed")))
    }

    /// The cursor an observer that opens the file now starts with.
    pub fn error_cursor(&self) -> u64 {
        self.0.table.lock().errors
    }

    /// Whether any page is dirty or being written.
    pub fn is_dirty(&self) -> bool {
        let table = self.0.table.lock();
        !table.dirty.is_empty() || table.runs_in_flight > 0
    }

    /// The first cached page at or after byte `offset`, as a byte offset; `None` when there is none before the end
    /// of the file. For files that live in the cache alone, this is SEEK_DATA.
    pub fn next_cached(&self, offset: u64) -> Option<u64> {
        let table = self.0.table.lock();
        let (index, _) = table.folios.range(offset / PAGE..).next()?;
        let at = (index * PAGE).max(offset);
        (at < self.size_bytes()).then_some(at)
    }

    /// The first byte at or after `offset` whose page is not cached; SEEK_HOLE for files in the cache alone.
    pub fn next_absent(&self, offset: u64) -> u64 {
        let table = self.0.table.lock();
        let mut index = offset / PAGE;
        for (present, _) in table.folios.range(index..) {
            if *present != index {
                break;
            }
            index += 1;
        }
        (index * PAGE).max(offset)
    }

    /// Pages held.
    pub fn page_count(&self) -> u64 {
        self.0.table.lock().folios.len() as u64
    }

    /// The page at `index` (in pages), read from the store if absent, pinned while the handle lives.
    pub fn page(&self, index: u64) -> Result<Page> {
        match self.0.get(index, 1)? {
            Some(folio) => Ok(Page { folio }),
            None => self.page_for_overwrite(index),
        }
    }

    /// The page at `index` without reading it: zeros if it was absent. For pages about to be filled whole.
    pub fn page_for_overwrite(&self, index: u64) -> Result<Page> {
        loop {
            let known = self.0.table.lock().folios.get(&index).cloned();
            if let Some(folio) = known {
                // Locked to wait for a read under way; one that failed leaves bytes nobody may see.
                let guard = folio.bytes.read();
                let is_uptodate = folio.is_uptodate.load(Ordering::Acquire);
                drop(guard);
                if is_uptodate {
                    return Ok(Page { folio });
                }
                self.0.discard(&folio);
                continue;
            }
            let folio = self.0.new_folio(index)?;
            folio.bytes.write().fill(0);
            let mut table = self.0.table.lock();
            if let Entry::Vacant(vacant) = table.folios.entry(index) {
                vacant.insert(folio.clone());
                drop(table);
                self.0.add_candidate(&folio);
                return Ok(Page { folio });
            }
        }
    }

    /// Brings the pages `first..first+count` in with few large reads; absent memory or errors are no failure.
    pub fn read_ahead(&self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        let mut at = first;
        while at < end {
            match self.0.fill(at, (end - at).min(FILL_MAX), 0) {
                Ok(filled) => at += filled.max(1),
                Err(_) => return,
            }
        }
    }
}

impl Inner {
    fn cache(&self) -> &Arc<PageCache> {
        &self.writeback.cache
    }

    /// Lets reclaim know of a folio that just came into the table, if it has a store to come back from.
    fn add_candidate(&self, folio: &Arc<Folio>) {
        if self.store.is_some() {
            self.cache().add_candidate(folio);
        }
    }

    /// A folio that is not in the table yet, with arbitrary bytes, called up to date.
    fn new_folio(self: &Arc<Self>, index: u64) -> Result<Arc<Folio>> {
        let frame = match self.store.is_some() {
            true => self.cache().frame(),
            // Pages without a store cannot be taken back, so the budget is a hard limit for them.
            false => self.cache().frame_within_budget().ok_or(Errno::NOSPC)?,
        };
        Ok(Folio::new(self, index, frame, true))
    }

    /// The folio at `index`, brought in if absent, for a read of `wanted` pages from there on. `None` is a hole in
    /// a mapping without a store.
    fn get(self: &Arc<Self>, index: u64, wanted: u64) -> Result<Option<Arc<Folio>>> {
        loop {
            let known = self.table.lock().folios.get(&index).cloned();
            let Some(folio) = known else {
                if self.store.is_none() {
                    return Ok(None);
                }
                let total = self.table.lock().readahead.on_miss(index, wanted);
                // Only what was asked for may fail the caller; what comes ahead is a guess.
                self.fill(index, total.min(FILL_MAX), wanted)?;
                continue;
            };
            folio.touch();
            if !folio.is_uptodate.load(Ordering::Acquire) {
                drop(folio.bytes.read());
                if !folio.is_uptodate.load(Ordering::Acquire) {
                    self.discard(&folio);
                    continue;
                }
            }
            self.cache().tally.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(folio));
        }
    }

    /// Reads up to `count` pages from `first` on with one call to the store; stops at a page that is present, and
    /// at the end of the file. Returns how many pages it passed.
    fn fill(self: &Arc<Self>, first: u64, count: u64, wanted: u64) -> Result<u64> {
        let Some(store) = self.store.as_ref().and_then(Weak::upgrade) else { return Err(Errno::IO.into()) };
        let file_pages = self.size_bytes.load(Ordering::Acquire).div_ceil(PAGE);
        let end = first.saturating_add(count).min(file_pages.max(first.saturating_add(wanted.min(1))));
        let mut fresh: Vec<Arc<Folio>> = Vec::with_capacity((end - first) as usize);
        for index in first..end {
            fresh.push(Folio::new(self, index, self.cache().frame(), false));
        }
        let mut guards: Vec<_> = fresh.iter().map(|folio| folio.bytes.write()).collect();
        let mut taken = 0;
        {
            let mut table = self.table.lock();
            for folio in &fresh {
                if table.folios.contains_key(&folio.index) {
                    break;
                }
                table.folios.insert(folio.index, folio.clone());
                taken += 1;
            }
        }
        guards.truncate(taken);
        if taken == 0 {
            return Ok(0);
        }
        let mut bufs: Vec<IoSliceMut<'_>> = guards.iter_mut().map(|g| IoSliceMut::new(&mut g[..])).collect();
        let result = store.read_pages(first * PAGE, &mut bufs);
        drop(bufs);
        for folio in &fresh[..taken] {
            folio.is_uptodate.store(result.is_ok(), Ordering::Release);
        }
        drop(guards);
        for folio in &fresh[..taken] {
            match result.is_ok() {
                true => self.add_candidate(folio),
                false => self.discard(folio),
            }
        }
        let tally = &self.cache().tally;
        tally.misses.fetch_add(wanted.min(taken as u64), Ordering::Relaxed);
        tally.readahead.fetch_add((taken as u64).saturating_sub(wanted), Ordering::Relaxed);
        result.map(|()| taken as u64)
    }

    /// Takes a folio whose read failed out of the table, if it is still there.
    fn discard(&self, folio: &Arc<Folio>) {
        let mut table = self.table.lock();
        if table.folios.get(&folio.index).is_some_and(|f| Arc::ptr_eq(f, folio)) {
            table.folios.remove(&folio.index);
        }
    }

    pub(super) fn mark_dirty(self: &Arc<Self>, folio: &Arc<Folio>) {
        if folio.is_dirty.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table.lock();
        // A folio that was truncated away meanwhile belongs to nobody.
        if table.folios.get(&folio.index).is_some_and(|f| Arc::ptr_eq(f, folio)) {
            self.mark_dirty_locked(&mut table, folio);
        }
    }

    fn mark_dirty_locked(self: &Arc<Self>, table: &mut Table, folio: &Folio) {
        let Some(store) = &self.store else { return };
        if folio.is_dirty.swap(true, Ordering::AcqRel) {
            return;
        }
        table.dirty.insert(folio.index);
        self.writeback.count_dirty(1);
        if table.held_store.is_none() {
            table.held_store = store.upgrade();
        }
        if !table.is_listed {
            table.is_listed = true;
            self.writeback.list(self.clone());
        }
    }

    /// Whether the device's list must keep this mapping. If not, the next dirty folio lists it anew.
    pub(super) fn stays_listed(&self) -> bool {
        let mut table = self.table.lock();
        table.is_listed = !table.dirty.is_empty() || table.runs_in_flight > 0;
        table.is_listed
    }

    /// Takes a clean folio that nobody holds out of memory. The caller holds one reference beside the table's.
    pub(super) fn try_evict(&self, folio: &Arc<Folio>) -> bool {
        if self.store.is_none() {
            return false;
        }
        let Some(mut table) = self.table.try_lock() else { return false };
        let is_ours = table.folios.get(&folio.index).is_some_and(|f| Arc::ptr_eq(f, folio));
        let is_idle = Arc::strong_count(folio) == 2 && folio.bytes.try_write().is_some();
        if !is_ours || !is_idle || folio.is_dirty.load(Ordering::Acquire) {
            return false;
        }
        table.folios.remove(&folio.index);
        true
    }

    /// Takes the folios of `indexes` out of the table, then waits until nobody writes any of them.
    fn drop_folios(&self, indexes: Range<u64>) {
        if indexes.is_empty() {
            return;
        }
        let mut gone: Vec<Arc<Folio>> = Vec::new();
        let mut table = self.table.lock();
        match indexes.end == u64::MAX {
            true => gone.extend(table.folios.split_off(&indexes.start).into_values()),
            false => {
                let present: Vec<u64> = table.folios.range(indexes).map(|(index, _)| *index).collect();
                gone.extend(present.iter().filter_map(|index| table.folios.remove(index)));
            }
        }
        let mut cleaned = 0;
        for folio in &gone {
            if folio.is_dirty.swap(false, Ordering::AcqRel) {
                table.dirty.remove(&folio.index);
                cleaned += 1;
            }
        }
        self.writeback.count_dirty(-cleaned);
        let store = table.release_store();
        let may_be_written = table.runs_in_flight > 0;
        drop(table);
        drop(store);
        if may_be_written {
            gone.iter().for_each(|folio| drop(folio.bytes.write()));
        }
    }

    pub(super) fn write_back(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let result = self.write_dirty(range);
        let mut table = self.table.lock();
        while table.runs_in_flight > 0 {
            self.written.wait(&mut table);
        }
        result
    }

    /// Writes what is dirty now and not being written by somebody else, without waiting for those.
    pub(super) fn write_dirty(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let indexes = range.start / PAGE..range.end.div_ceil(PAGE);
        let mut result = Ok(());
        let mut at = indexes.start;
        while let Some(run) = self.next_dirty_run(at..indexes.end) {
            let (end, written) = self.write_run(run);
            at = end;
            result = result.and(written);
        }
        result
    }

    fn next_dirty_run(&self, indexes: Range<u64>) -> Option<Range<u64>> {
        if indexes.is_empty() {
            return None;
        }
        let table = self.table.lock();
        let mut dirty = table.dirty.range(indexes);
        let first = *dirty.next()?;
        let mut end = first + 1;
        for index in dirty.take(RUN_MAX - 1) {
            if *index != end {
                break;
            }
            end += 1;
        }
        Some(first..end)
    }

    /// Writes the dirty folios at the start of `run`, as far as their bytes can be locked without waiting for a
    /// second lock. Returns the index to go on from.
    fn write_run(self: &Arc<Self>, run: Range<u64>) -> (u64, Result<()>) {
        let folios: SmallVec<[Arc<Folio>; 8]> = {
            let mut table = self.table.lock();
            table.runs_in_flight += 1;
            table.folios.range(run.clone()).map(|(_, folio)| folio.clone()).collect()
        };
        let mut guards: SmallVec<[RwLockReadGuard<'_, Frame>; 8]> = SmallVec::new();
        for folio in &folios {
            // Waiting with bytes locked could meet somebody who holds those and wants these.
            let guard = match guards.is_empty() {
                true => Some(folio.bytes.read()),
                false => folio.bytes.try_read(),
            };
            match guard {
                Some(guard) => guards.push(guard),
                None => break,
            }
        }
        let (taken, store) = self.take_dirty(&folios[..guards.len()]);
        let end = taken.last().or(folios.first()).map_or(run.end, |folio| folio.index + 1);
        let mut result = Ok(());
        if let (Some(first), Some(store)) = (taken.first(), store) {
            // What is taken is one run of the locked folios.
            let skipped = folios.iter().take_while(|folio| folio.index < first.index).count();
            let locked = &guards[skipped..skipped + taken.len()];
            let bufs: SmallVec<[IoSlice<'_>; 8]> =
                locked.iter().map(|guard| IoSlice::new(&guard[..])).collect();
            result = store.write_pages(first.index * PAGE, &bufs);
            self.cache().tally.written.fetch_add(taken.len() as u64, Ordering::Relaxed);
        }
        self.end_run(taken, &result);
        (end, result)
    }

    /// Makes the first run of dirty folios among `folios`, whose bytes are locked, clean, to be written.
    fn take_dirty<'a>(&self, folios: &'a [Arc<Folio>]) -> (&'a [Arc<Folio>], Option<Arc<dyn Store>>) {
        let mut table = self.table.lock();
        let is_takable = |table: &Table, folio: &Arc<Folio>| {
            let is_ours = table.folios.get(&folio.index).is_some_and(|f| Arc::ptr_eq(f, folio));
            is_ours && folio.is_dirty.load(Ordering::Acquire)
        };
        let start = folios.iter().position(|folio| is_takable(&table, folio)).unwrap_or(folios.len());
        let mut end = start;
        while end < folios.len()
            && is_takable(&table, &folios[end])
            && folios[end].index == folios[start].index + (end - start) as u64
        {
            folios[end].is_dirty.store(false, Ordering::Release);
            table.dirty.remove(&folios[end].index);
            end += 1;
        }
        self.writeback.count_dirty(-((end - start) as i64));
        (&folios[start..end], table.held_store.clone())
    }

    /// After a run: failed folios are dirty again, the store is let go of if nothing is.
    fn end_run(self: &Arc<Self>, taken: &[Arc<Folio>], result: &Result<()>) {
        let mut table = self.table.lock();
        table.runs_in_flight -= 1;
        if let Err(error) = result {
            table.errors += 1;
            table.last_error = Some(error.errno());
            for folio in taken {
                if table.folios.get(&folio.index).is_some_and(|f| Arc::ptr_eq(f, folio)) {
                    self.mark_dirty_locked(&mut table, folio);
                }
            }
        }
        let store = table.release_store();
        drop(table);
        self.written.notify_all();
        drop(store);
    }
}

impl Table {
    /// The store, to be dropped once the table is unlocked, if nothing needs it any more.
    fn release_store(&mut self) -> Option<Arc<dyn Store>> {
        match self.dirty.is_empty() && self.runs_in_flight == 0 {
            true => self.held_store.take(),
            false => None,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let table = self.table.get_mut();
        self.writeback.count_dirty(-(table.dirty.len() as i64));
    }
}
