//! Dirty pages of one mapping: marking them, and writing them in long runs. Linux:
//! `filemap_fdatawrite`, `write_cache_pages` (mm/page-writeback.c).

use super::folio::{Frame, PAGE};
use super::folio_ref::FolioRef;
use super::index::Word;
use super::locked::{PageReadGuard, slices};
use super::mapping::{AddressSpace, AddressSpaceState, Mapping};
use super::store::Store;
use crate::base::rcu::{self, Pin};
use crate::base::sync::atomic::Ordering;
use crate::base::{Detail, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most pages of one call to the store.
const RUN_MAX: u64 = 1024;

impl Mapping {
    /// Writes the dirty pages that touch `range` (in bytes) to the store, in runs as long as
    /// possible, and waits.
    ///
    /// # Errors
    /// The first error of the store. The pages stay dirty, and [`Mapping::check_error`] reports the
    /// error again. Linux: `filemap_write_and_wait_range`.
    pub fn write_back(&self, range: Range<u64>) -> Result<()> {
        self.0.write_back(range)
    }

    /// Writes the dirty pages that touch `range` (in bytes), except those that another thread is
    /// writing.
    ///
    /// # Errors
    /// As for [`Mapping::write_back`]. Linux: `filemap_fdatawrite_range`.
    pub fn write_dirty(&self, range: Range<u64>) -> Result<()> {
        self.0.write_dirty(range)
    }

    /// Throttles a caller that is about to dirty pages by their handles while too many pages are
    /// dirty; [`Mapping::write`] throttles by itself. The caller has no page locked.
    ///
    /// # Errors
    /// The store's, if too many pages stay dirty. Linux: `balance_dirty_pages_ratelimited`.
    pub fn throttle(&self) -> Result<()> {
        self.0.writeback.throttle()
    }

    /// Waits for writeback under way. Linux: `filemap_fdatawait`.
    pub fn wait_written(&self) {
        self.0.wait_written();
    }

    /// Returns the number of dirty pages.
    pub fn dirty_pages(&self) -> u64 {
        self.0.state.lock().dirty_count
    }

    /// Returns whether any page is dirty or being written.
    pub fn is_dirty(&self) -> bool {
        let state = self.0.state.lock();
        state.dirty_count > 0 || state.runs_in_flight > 0
    }
}

impl AddressSpace {
    /// Marks a page dirty, if it is still the one at `index`. The caller has its bytes locked.
    /// Linux: `filemap_dirty_folio`.
    pub(super) fn mark_dirty(self: &Arc<Self>, index: u64, frame: Frame) {
        if self.store.is_none() {
            return;
        }
        let pin = rcu::pin();
        let word = self.index.word(index, &pin);
        if word.frame() != Some(frame) || word.has(Word::DIRTY) {
            return;
        }
        let mut state = self.state.lock();
        // A page that was truncated meanwhile has no file any more.
        if self.index.word(index, &pin).frame() == Some(frame) {
            self.mark_dirty_locked(&mut state, index, &pin);
        }
    }

    pub(super) fn mark_dirty_locked(
        self: &Arc<Self>,
        state: &mut AddressSpaceState,
        index: u64,
        pin: &Pin,
    ) {
        let Some(store) = &self.store else { return };
        if self
            .index
            .change(index, Word::DIRTY, 0, pin)
            .has(Word::DIRTY)
        {
            return;
        }
        if state.dirty_count == 0 {
            state.dirty_since = Some(Instant::now());
        }
        state.dirty_count += 1;
        self.writeback.count_dirty(1);
        self.count(|tally| &tally.dirtied_pages, 1);
        self.count(|tally| &tally.dirty_pages, 1);
        // C2: the pages could not be written if the file system dropped the store meanwhile.
        if state.held_store.is_none() {
            state.held_store = store.upgrade();
        }
        // The mapping is unlisted, so no cleaner of the list wants the state that is locked here.
        if !state.is_listed {
            state.is_listed = true;
            self.writeback.list(self.clone());
        }
    }

    /// Counts `count` dirty pages less.
    pub(super) fn uncount_dirty(&self, state: &mut AddressSpaceState, count: u64) {
        state.dirty_count -= count;
        self.writeback.count_dirty(-(count as i64));
        self.count(|tally| &tally.dirty_pages, count.wrapping_neg());
    }

    /// Returns whether the oldest dirty page has been dirty for `age`.
    pub(super) fn is_dirty_since(&self, now: Instant, age: Duration) -> bool {
        let state = self.state.lock();
        let since = state.dirty_since.filter(|_| state.dirty_count > 0);
        since.is_some_and(|since| now.saturating_duration_since(since) >= age)
    }

    /// Returns whether the device's list must keep this mapping. If not, the next dirty page adds
    /// it again.
    pub(super) fn stays_listed(&self) -> bool {
        let mut state = self.state.lock();
        state.is_listed = state.dirty_count > 0 || state.runs_in_flight > 0;
        state.is_listed
    }

    pub(super) fn write_back(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let result = self.write_dirty(range);
        self.wait_written();
        self.writeback.unlist(self.number);
        result
    }

    fn wait_written(&self) {
        let mut state = self.state.lock();
        while state.runs_in_flight > 0 {
            self.written.wait(&mut state);
        }
    }

    /// Writes the pages that are dirty now, without waiting for other threads' writeback.
    pub(super) fn write_dirty(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        // Not beyond the end of the file as it is now: a writer that appends all the time would
        // keep this from ending.
        let file_end = self.size_bytes.load(Ordering::Acquire);
        let indexes = range.start / PAGE..range.end.min(file_end).div_ceil(PAGE);
        let mut result = Ok(());
        let mut at = indexes.start;
        while let Some(run) = self.begin_run(at..indexes.end) {
            let (end, written) = self.write_run(&run);
            at = end;
            result = result.and(written);
            // Before the waiters of the run are notified, its pages must have no references left.
            drop(run);
            self.leave_run();
        }
        result
    }

    /// Finds the next run of dirty pages, takes references, and counts the run as in flight.
    fn begin_run(&self, indexes: Range<u64>) -> Option<DirtyRun<'_>> {
        if indexes.is_empty() {
            return None;
        }
        let pin = rcu::pin();
        let mut state = self.state.lock();
        let (first, _) = self
            .index
            .next(indexes.start, true, &pin)
            .filter(|(index, _)| *index < indexes.end)?;
        let mut holds = SmallVec::new();
        for index in first..indexes.end.min(first + RUN_MAX) {
            let word = self.index.word(index, &pin);
            let Some(frame) = word.frame().filter(|_| word.has(Word::DIRTY)) else {
                break;
            };
            let Some(hold) = FolioRef::try_new(&self.pool, frame) else {
                break;
            };
            holds.push(hold);
        }
        // Under the lock of the search: a sync that comes now waits for this run.
        state.runs_in_flight += 1;
        Some(DirtyRun { first, holds })
    }

    /// Writes the pages at the start of `run`, as far as their bytes can be locked without waiting
    /// for a second lock. Returns the index to continue from.
    fn write_run(self: &Arc<Self>, run: &DirtyRun<'_>) -> (u64, Result<()>) {
        let mut guards: SmallVec<[PageReadGuard<'_>; 8]> = SmallVec::new();
        for hold in &run.holds {
            // Waiting with bytes locked could deadlock with a thread that locks them in another
            // order.
            let guard = if guards.is_empty() {
                Some(PageReadGuard::lock(&self.pool, hold.frame()))
            } else {
                PageReadGuard::try_lock(&self.pool, hold.frame())
            };
            match guard {
                Some(guard) => guards.push(guard),
                None => break,
            }
        }
        let (taken, store) = self.take_dirty(run, guards.len());
        let mut result = Ok(());
        if let Some(store) = store.filter(|_| !taken.is_empty()) {
            let bufs = slices(&guards, taken.clone());
            let offset = (run.first + taken.start as u64) * PAGE;
            result = self.cache().call_store(|| store.write_pages(offset, &bufs));
        }
        self.end_run(run, taken.clone(), &result);
        // After the written pages, or after the page that could not be written.
        (run.first + taken.end.max(1) as u64, result)
    }

    /// Clears DIRTY of the first run of dirty pages among the first `locked` ones, to write them.
    fn take_dirty(
        &self,
        run: &DirtyRun<'_>,
        locked: usize,
    ) -> (Range<usize>, Option<Arc<dyn Store>>) {
        let pin = rcu::pin();
        let mut state = self.state.lock();
        let is_dirty = |offset: usize| {
            let word = self.index.word(run.first + offset as u64, &pin);
            word.has(Word::DIRTY) && word.frame() == Some(run.holds[offset].frame())
        };
        let start = (0..locked)
            .find(|offset| is_dirty(*offset))
            .unwrap_or(locked);
        let end = (start..locked)
            .find(|offset| !is_dirty(*offset))
            .unwrap_or(locked);
        // Before the write: the bytes are locked, so a later change marks the page again (C8).
        for offset in start..end {
            self.index
                .change(run.first + offset as u64, 0, Word::DIRTY, &pin);
        }
        let count = (end - start) as u64;
        self.uncount_dirty(&mut state, count);
        self.count(|tally| &tally.writeback_pages, count);
        (start..end, state.held_store.clone())
    }

    /// Records the result of the store: failed pages are dirty again, unless their data is lost.
    fn end_run(self: &Arc<Self>, run: &DirtyRun<'_>, taken: Range<usize>, result: &Result<()>) {
        let pin = rcu::pin();
        let mut state = self.state.lock();
        self.count(
            |tally| &tally.writeback_pages,
            (taken.len() as u64).wrapping_neg(),
        );
        match result {
            Ok(()) => self.count(|tally| &tally.written_pages, taken.len() as u64),
            Err(error) => {
                // Without space below, the pages are written later. A sync of the file tries that,
                // and reports its own error.
                if !error.is_out_of_space() {
                    state.last_error = Some(error.errno());
                    self.errors.fetch_add(1, Ordering::AcqRel);
                }
                // As in Linux, where the pages of any failed write count as written.
                let is_lost = error.detail() == Some(&Detail::WriteLost);
                for offset in taken.filter(|_| !is_lost) {
                    let index = run.first + offset as u64;
                    if self.index.word(index, &pin).frame() == Some(run.holds[offset].frame()) {
                        self.mark_dirty_locked(&mut state, index, &pin);
                    }
                }
            }
        }
    }

    /// Counts a run in flight less; releases the store if nothing needs it.
    fn leave_run(&self) {
        let mut state = self.state.lock();
        state.runs_in_flight -= 1;
        let store = state.release_store();
        drop(state);
        self.written.notify_all();
        drop(store);
    }
}

/// Consecutive pages that were dirty when they were found.
struct DirtyRun<'a> {
    first: u64,
    holds: SmallVec<[FolioRef<'a>; 8]>,
}

impl AddressSpaceState {
    /// Takes the store if nothing needs it any more; the caller drops it with the state unlocked.
    pub(super) fn release_store(&mut self) -> Option<Arc<dyn Store>> {
        if self.dirty_count == 0 && self.runs_in_flight == 0 {
            self.held_store.take()
        } else {
            None
        }
    }
}
