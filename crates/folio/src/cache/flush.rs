//! Dirty pages of one mapping: marking them, and writing them in runs as long as they come.

use super::Store;
use super::folio::Hold;
use super::index::Word;
use super::locked::{PageReadGuard, slices};
use super::mapping::{Inner, Mapping, PAGE, Table};
use super::pool::Frame;
use crate::base::Result;
use crate::base::rcu::{self, Pin};
use crate::base::sync::atomic::Ordering;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages in one call to the store.
const RUN_MAX: u64 = 1024;

impl Mapping {
    /// Writes the dirty pages that touch `range` (in bytes) to the store, in runs as long as they
    /// come, and waits. On error the pages stay dirty and the error is remembered for
    /// [`Mapping::check_error`].
    pub fn write_back(&self, range: Range<u64>) -> Result<()> {
        self.0.write_back(range)
    }

    /// Writes the dirty pages that touch `range` (in bytes), but for those that somebody else is
    /// writing. Errors are remembered, too.
    pub fn write_dirty(&self, range: Range<u64>) -> Result<()> {
        self.0.write_dirty(range)
    }

    /// Holds back who is about to make pages dirty by their handles while too much is dirty
    /// already, as [`Mapping::write`] does by itself. With no page's bytes locked.
    pub fn throttle(&self) -> Result<()> {
        self.0.writeback.throttle()
    }

    /// Waits for the writes that are under way.
    pub fn wait_written(&self) {
        self.0.wait_written();
    }

    /// How many pages are dirty.
    pub fn dirty_pages(&self) -> u64 {
        self.0.table.lock().dirty_count
    }

    /// Whether any page is dirty or being written.
    pub fn is_dirty(&self) -> bool {
        let table = self.0.table.lock();
        table.dirty_count > 0 || table.runs_in_flight > 0
    }
}

impl Inner {
    /// The page is dirty from now on, if it still is the one at `index`. The caller has its bytes
    /// locked.
    pub(super) fn mark_dirty(self: &Arc<Self>, index: u64, frame: Frame) {
        if self.store.is_none() {
            return;
        }
        let pin = rcu::pin();
        let word = self.index.word(index, &pin);
        if word.frame() != Some(frame) || word.has(Word::DIRTY) {
            return;
        }
        let mut table = self.table.lock();
        // A page that was truncated away meanwhile belongs to nobody.
        if self.index.word(index, &pin).frame() == Some(frame) {
            self.mark_dirty_locked(&mut table, index, &pin);
        }
    }

    pub(super) fn mark_dirty_locked(self: &Arc<Self>, table: &mut Table, index: u64, pin: &Pin) {
        let Some(store) = &self.store else { return };
        if self
            .index
            .change(index, Word::DIRTY, 0, pin)
            .has(Word::DIRTY)
        {
            return;
        }
        if table.dirty_count == 0 {
            table.dirty_since = Some(Instant::now());
        }
        table.dirty_count += 1;
        self.writeback.count_dirty(1);
        self.count(|tally| &tally.dirtied_pages, 1);
        self.count(|tally| &tally.dirty_pages, 1);
        if table.held_store.is_none() {
            table.held_store = store.upgrade();
        }
        if !table.is_listed {
            table.is_listed = true;
            self.writeback.list(self.clone());
        }
    }

    /// `count` pages are no longer dirty.
    pub(super) fn uncount_dirty(&self, table: &mut Table, count: u64) {
        table.dirty_count -= count;
        self.writeback.count_dirty(-(count as i64));
        self.count(|tally| &tally.dirty_pages, count.wrapping_neg());
    }

    /// Whether the first dirty page has been so for this long.
    pub(super) fn is_dirty_since(&self, now: Instant, age: Duration) -> bool {
        let table = self.table.lock();
        let since = table.dirty_since.filter(|_| table.dirty_count > 0);
        since.is_some_and(|since| now.saturating_duration_since(since) >= age)
    }

    /// Whether the device's list must keep this mapping. If not, the next dirty page lists it anew.
    pub(super) fn stays_listed(&self) -> bool {
        let mut table = self.table.lock();
        table.is_listed = table.dirty_count > 0 || table.runs_in_flight > 0;
        table.is_listed
    }

    pub(super) fn write_back(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let result = self.write_dirty(range);
        self.wait_written();
        self.writeback.unlist(self);
        result
    }

    fn wait_written(&self) {
        let mut table = self.table.lock();
        while table.runs_in_flight > 0 {
            self.written.wait(&mut table);
        }
    }

    /// Writes what is dirty now and not being written by somebody else, without waiting for those.
    pub(super) fn write_dirty(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let indexes = range.start / PAGE..range.end.div_ceil(PAGE);
        let mut result = Ok(());
        let mut at = indexes.start;
        while let Some(run) = self.begin_run(at..indexes.end) {
            let (end, written) = self.write_run(&run);
            at = end;
            result = result.and(written);
            // Whoever waits for the end of the run shall find that nobody holds its pages.
            drop(run);
            self.leave_run();
        }
        result
    }

    /// The next run of dirty pages, held; counted as in flight from now on.
    fn begin_run(&self, indexes: Range<u64>) -> Option<Run<'_>> {
        if indexes.is_empty() {
            return None;
        }
        let pin = rcu::pin();
        let mut table = self.table.lock();
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
            let Some(hold) = Hold::try_new(&self.pool, frame) else {
                break;
            };
            holds.push(hold);
        }
        table.runs_in_flight += 1;
        Some(Run { first, holds })
    }

    /// Writes the pages at the start of `run`, as far as their bytes can be locked without waiting
    /// for a second lock. Returns the index to go on from.
    fn write_run(self: &Arc<Self>, run: &Run<'_>) -> (u64, Result<()>) {
        let mut guards: SmallVec<[PageReadGuard<'_>; 8]> = SmallVec::new();
        for hold in &run.holds {
            // Waiting with bytes locked could meet somebody who holds those and wants these.
            let guard = match guards.is_empty() {
                true => Some(PageReadGuard::lock(&self.pool, hold.frame())),
                false => PageReadGuard::try_lock(&self.pool, hold.frame()),
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
            result = store.write_pages((run.first + taken.start as u64) * PAGE, &bufs);
        }
        self.end_run(run, taken.clone(), &result);
        // Past what was written, or past what stood in the way.
        (run.first + taken.end.max(1) as u64, result)
    }

    /// Makes the first run of dirty pages among the first `locked` clean, to be written.
    fn take_dirty(&self, run: &Run<'_>, locked: usize) -> (Range<usize>, Option<Arc<dyn Store>>) {
        let pin = rcu::pin();
        let mut table = self.table.lock();
        let is_dirty = |place: usize| {
            let word = self.index.word(run.first + place as u64, &pin);
            word.has(Word::DIRTY) && word.frame() == Some(run.holds[place].frame())
        };
        let start = (0..locked).find(|place| is_dirty(*place)).unwrap_or(locked);
        let end = (start..locked)
            .find(|place| !is_dirty(*place))
            .unwrap_or(locked);
        for place in start..end {
            self.index
                .change(run.first + place as u64, 0, Word::DIRTY, &pin);
        }
        let count = (end - start) as u64;
        self.uncount_dirty(&mut table, count);
        self.count(|tally| &tally.writeback_pages, count);
        (start..end, table.held_store.clone())
    }

    /// After the store was called: failed pages are dirty again.
    fn end_run(self: &Arc<Self>, run: &Run<'_>, taken: Range<usize>, result: &Result<()>) {
        let pin = rcu::pin();
        let mut table = self.table.lock();
        self.count(
            |tally| &tally.writeback_pages,
            (taken.len() as u64).wrapping_neg(),
        );
        match result {
            Ok(()) => self.count(|tally| &tally.written_pages, taken.len() as u64),
            Err(error) => {
                table.last_error = Some(error.errno());
                self.errors.fetch_add(1, Ordering::AcqRel);
                for place in taken {
                    let index = run.first + place as u64;
                    if self.index.word(index, &pin).frame() == Some(run.holds[place].frame()) {
                        self.mark_dirty_locked(&mut table, index, &pin);
                    }
                }
            }
        }
    }

    /// A run is no longer in flight; the store is let go of if nothing needs it.
    fn leave_run(&self) {
        let mut table = self.table.lock();
        table.runs_in_flight -= 1;
        let store = table.release_store();
        drop(table);
        self.written.notify_all();
        drop(store);
    }
}

/// Pages that follow one another and were dirty when they were found.
struct Run<'a> {
    first: u64,
    holds: SmallVec<[Hold<'a>; 8]>,
}

impl Table {
    /// The store, to be dropped once the table is unlocked, if nothing needs it any more.
    pub(super) fn release_store(&mut self) -> Option<Arc<dyn Store>> {
        match self.dirty_count == 0 && self.runs_in_flight == 0 {
            true => self.held_store.take(),
            false => None,
        }
    }
}
