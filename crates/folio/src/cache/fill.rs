//! Misses: bringing pages in from the store, for a reader who waits and for one who will come.

use super::folio::Hold;
use super::index::{BLOCK, Word};
use super::locked::{PageReadGuard, PageWriteGuard, slices_mut};
use super::mapping::{Inner, Mapping, PAGE};
use super::pool::Frame;
use super::readahead::{Plan, ReadPattern};
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use crate::base::{Errno, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Pages brought in ahead, as 1 / this of all.
const AHEAD_SHARE: u64 = 8;
/// Pages looked at to find where the next window starts; the table is locked meanwhile.
const LOOKS_MAX: u64 = 4096;
/// Pages brought in by one call to the store.
const FILL_MAX: u64 = 512;

/// How a page comes in.
#[derive(Clone, Copy)]
struct Purpose {
    /// Pages from the first on that somebody waits for.
    wanted: u64,
    /// The page to mark.
    mark: Option<u64>,
}

impl Mapping {
    /// Brings the pages `first..first+count` in with few large reads, in the background where there
    /// is a thread; of more pages than the cache has, the first. Absent memory or errors are no
    /// failure.
    pub fn read_ahead(&self, first: u64, count: u64) {
        let end = first.saturating_add(count.min(self.0.pool.budget()));
        self.0.start_readahead(Plan {
            pages: first..end,
            mark: None,
        });
    }

    /// How the file will be read. Linux: posix_fadvise(2), which says it for one open file.
    pub fn set_read_pattern(&self, pattern: ReadPattern) {
        self.0.table.lock().readahead.pattern = pattern;
        self.0.is_no_reuse.store(false, Ordering::Relaxed);
    }

    /// Reads from now on leave no trace that would keep pages in memory. Linux:
    /// `POSIX_FADV_NOREUSE`.
    pub fn set_no_reuse(&self) {
        self.0.is_no_reuse.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    /// Does what a reader needs who found no page at `index` that can be read at once: `wanted`
    /// pages are asked for from there on. The reader looks again afterwards. Returns the pages that
    /// had to be read for it.
    pub(super) fn fault(self: &Arc<Self>, index: u64, wanted: u64) -> Result<u64> {
        let pin = rcu::pin();
        let mut table = self.table.lock();
        let word = self.index.word(index, &pin);
        if let Some(frame) = word.frame() {
            if word.has(Word::BUSY) {
                let hold = Hold::try_new(&self.pool, frame);
                drop((table, pin));
                // Somebody reads it; when the bytes are unlocked, it is there or gone.
                if let Some(hold) = hold {
                    drop(PageReadGuard::lock(&self.pool, hold.frame()));
                }
            } else if word.has(Word::MARK) {
                self.index.change(index, 0, Word::MARK, &pin);
                self.index.try_join(index, &pin);
                let mut missing = index + 1;
                while missing - index < LOOKS_MAX && self.index.word(missing, &pin) != Word::ABSENT
                {
                    missing += 1;
                }
                let plan = table.readahead.on_mark(missing);
                drop((table, pin));
                self.start_readahead(plan);
            }
            return Ok(0);
        }
        if self.store.is_none() {
            drop((table, pin));
            return self.swap_in(index).map(u64::from);
        }
        let is_there = |back: &u64| {
            index
                .checked_sub(*back)
                .is_some_and(|i| self.index.word(i, &pin) != Word::ABSENT)
        };
        let history = (1..=BLOCK).take_while(is_there).count() as u64;
        let mut plan = table.readahead.on_miss(index, wanted, history);
        drop((table, pin));
        // In a small cache, pages far ahead would go again before anybody comes for them.
        let len_max = (self.pool.budget() / AHEAD_SHARE).max(wanted);
        plan.pages.end = plan.pages.end.min(index.saturating_add(len_max));
        let is_more = plan.pages.end - plan.pages.start > wanted;
        let filled = self.fill(
            plan.pages,
            Purpose {
                wanted,
                mark: plan.mark,
            },
        );
        match filled {
            // Only what was asked for may fail the caller; what comes ahead is a guess.
            Err(_) if is_more => self.fill(index..index + wanted, Purpose { wanted, mark: None }),
            filled => filled,
        }
        .map(|count| count.min(wanted))
    }

    /// Has a thread bring pages in, or does it itself where there is none.
    fn start_readahead(self: &Arc<Self>, plan: Plan) {
        if plan.pages.start * PAGE >= self.size_bytes.load(Ordering::Acquire) {
            return;
        }
        if let Some(plan) = self
            .cache()
            .readahead_thread
            .submit(Arc::downgrade(self), plan)
        {
            self.fill_ahead(&plan);
        }
    }

    /// Brings pages in that nobody waits for; absent memory or errors are no failure.
    pub(super) fn fill_ahead(self: &Arc<Self>, plan: &Plan) {
        let mut at = plan.pages.start;
        let end = plan
            .pages
            .end
            .min(self.size_bytes.load(Ordering::Acquire).div_ceil(PAGE));
        while at < end {
            match self.fill(
                at..end,
                Purpose {
                    wanted: 0,
                    mark: plan.mark,
                },
            ) {
                Ok(filled) => at += filled.max(1),
                Err(_) => return,
            }
        }
    }

    /// Reads pages from the first on with one call to the store; stops at a page that is present,
    /// and at the end of the file. Returns how many came in.
    fn fill(self: &Arc<Self>, pages: Range<u64>, purpose: Purpose) -> Result<u64> {
        let Some(store) = self.store.as_ref().and_then(Weak::upgrade) else {
            return Err(Errno::IO.into());
        };
        let file_pages = self.size_bytes.load(Ordering::Acquire).div_ceil(PAGE);
        let at_least = pages.start.saturating_add(purpose.wanted.min(1));
        let end = pages
            .end
            .min(file_pages.max(at_least))
            .min(pages.start.saturating_add(FILL_MAX));
        let frames = self.frames_for(pages.start..end, purpose.wanted)?;
        let mut holds: Vec<Hold<'_>> = Vec::with_capacity(frames.len());
        for (index, frame) in (pages.start..).zip(&frames) {
            self.pool.folio(*frame).begin(self.number, index);
            holds.push(Hold::adopt(&self.pool, *frame));
        }
        let mut guards: Vec<_> = holds
            .iter()
            .map(|hold| PageWriteGuard::lock(&self.pool, hold.frame()))
            .collect();
        let taken = self.insert_busy(pages.start, &holds);
        guards.truncate(taken);
        holds.truncate(taken);
        if taken == 0 {
            return Ok(0);
        }
        let result = store.read_pages(pages.start * PAGE, &mut slices_mut(&mut guards));
        self.end_fill(pages.start, &holds, purpose, result.is_ok());
        drop(guards);
        if result.is_ok() {
            self.add_candidates(&frames[..taken]);
        }
        let taken = taken as u64;
        self.count(|tally| &tally.misses, purpose.wanted.min(taken));
        self.count(
            |tally| &tally.readahead_pages,
            taken.saturating_sub(purpose.wanted),
        );
        result.map(|()| taken)
    }

    /// Frames for pages that are absent, up to the first that is not; whole blocks in one piece
    /// where possible. At least one if any is wanted, fewer than there are pages if memory is
    /// short.
    fn frames_for(&self, pages: Range<u64>, wanted: u64) -> Result<Vec<Frame>> {
        let pin = rcu::pin();
        let absent = pages
            .clone()
            .take_while(|index| self.index.word(*index, &pin) == Word::ABSENT)
            .count() as u64;
        drop(pin);
        let end = pages.start + absent;
        let mut frames = Vec::with_capacity(absent as usize);
        let mut index = pages.start;
        self.cache().make_room(absent);
        while index < end {
            if index.is_multiple_of(BLOCK)
                && end - index >= BLOCK
                && let Some(first) = self.cache().group()
            {
                frames.extend(first..first + BLOCK as Frame);
                index += BLOCK;
                continue;
            }
            // Nobody waits for what comes ahead: it must not push the budget.
            let is_ahead = index >= pages.start + wanted;
            let frame = if is_ahead {
                self.cache().frame_within_budget()
            } else {
                self.cache().frame()
            };
            match frame {
                Ok(frame) => frames.push(frame),
                Err(error) if frames.is_empty() => return Err(error),
                Err(_) => break,
            }
            index += 1;
        }
        Ok(frames)
    }

    /// Puts pages in that are being read, up to the first that is there already.
    fn insert_busy(&self, first: u64, holds: &[Hold<'_>]) -> usize {
        let pin = rcu::pin();
        let _table = self.table.lock();
        let mut taken = 0;
        for (index, hold) in (first..).zip(holds) {
            if self.index.word(index, &pin) != Word::ABSENT {
                break;
            }
            let Some(counted) = Hold::try_new(&self.pool, hold.frame()) else {
                break;
            };
            self.index
                .insert(index, Word::new(counted.keep(), Word::BUSY), &pin);
            taken += 1;
        }
        self.page_count.fetch_add(taken as u64, Ordering::Relaxed);
        taken
    }

    /// Pages are read: they are up to date now, or gone if that failed.
    fn end_fill(&self, first: u64, holds: &[Hold<'_>], purpose: Purpose, is_ok: bool) {
        let pin = rcu::pin();
        let mut gone = Vec::new();
        let table = self.table.lock();
        for (index, hold) in (first..).zip(holds) {
            // Truncation may have taken it out.
            if self.index.word(index, &pin).frame() != Some(hold.frame()) {
                continue;
            }
            if !is_ok {
                gone.extend(self.take_out(index, &pin));
                continue;
            }
            if index >= first + purpose.wanted {
                hold.folio().is_ahead.store(true, Ordering::Relaxed);
            }
            let mark = if purpose.mark == Some(index) {
                Word::MARK
            } else {
                0
            };
            self.index.change(index, mark, Word::BUSY, &pin);
            if index % BLOCK == BLOCK - 1 {
                self.index.try_join(index, &pin);
            }
        }
        drop(table);
        self.release(gone);
    }

    /// Lets reclaim know of pages that just came in, if they have a place to come back from.
    pub(super) fn add_candidates(&self, frames: &[Frame]) {
        if self.store.is_some() || self.swap().is_some() {
            self.cache().add_candidates(self, frames);
        }
    }

    /// Lets go of the index's count of frames that were taken out. Nobody may hold the table.
    pub(super) fn release(&self, frames: Vec<Frame>) {
        frames
            .into_iter()
            .for_each(|frame| drop(Hold::adopt(&self.pool, frame)));
    }
}
