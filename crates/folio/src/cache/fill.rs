//! Misses: reads of pages from the store, for a waiting reader or ahead of one. Linux:
//! `filemap_get_pages`, mm/readahead.c.

use super::folio::{Frame, LARGE_FOLIO_PAGES, PAGE};
use super::folio_ref::FolioRef;
use super::index::Word;
use super::locked::{PageReadGuard, PageWriteGuard, slices_mut};
use super::mapping::{AddressSpace, Mapping};
use super::readahead::{ReadPattern, ReadaheadPlan};
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use crate::base::{Errno, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Most pages read ahead at a time, as 1 / this of all.
const AHEAD_SHARE: u64 = 8;
/// Most pages examined to find the start of the next window, with the state locked.
const LOOKS_MAX: u64 = 4096;
/// Most pages of one call to the store.
const FILL_MAX: u64 = 512;

/// The purpose of a read from the store.
#[derive(Clone, Copy)]
struct FillPurpose {
    /// The number of pages, from the first one, that a reader waits for.
    wanted: u64,
    /// The page to mark for the next readahead.
    mark: Option<u64>,
}

impl Mapping {
    /// Reads the pages `first..first+count` ahead with few large reads, in the background if there
    /// is a thread; at most as many as the cache has. Ignores errors and lack of memory. Linux:
    /// `force_page_cache_readahead`.
    pub fn read_ahead(&self, first: u64, count: u64) {
        let end = first.saturating_add(count.min(self.0.pool.budget()));
        self.0.start_readahead(ReadaheadPlan {
            pages: first..end,
            mark: None,
        });
    }

    /// Sets the expected pattern of reads. Linux: posix_fadvise(2), for one open file.
    pub fn set_read_pattern(&self, pattern: ReadPattern) {
        self.0.state.lock().readahead.pattern = pattern;
        self.0.has_noreuse_advice.store(false, Ordering::Relaxed);
    }

    /// Lets later reads not mark pages as accessed. Linux: `POSIX_FADV_NOREUSE`.
    pub fn set_no_reuse(&self) {
        self.0.has_noreuse_advice.store(true, Ordering::Relaxed);
    }
}

impl AddressSpace {
    /// Handles a miss of a reader at `index`, which wants `wanted` pages from there: reads pages,
    /// waits for a read under way, or starts readahead. The reader looks again afterwards. Returns
    /// the number of pages read for the reader.
    ///
    /// # Errors
    /// The store's, or ENOMEM. Linux: `filemap_get_pages`.
    pub(super) fn fault(self: &Arc<Self>, index: u64, wanted: u64) -> Result<u64> {
        let pin = rcu::pin();
        let mut state = self.state.lock();
        let word = self.index.word(index, &pin);
        if let Some(frame) = word.frame() {
            if word.has(Word::BUSY) {
                let hold = FolioRef::try_new(&self.pool, frame);
                drop((state, pin));
                // Another thread reads it; when the bytes are unlocked, it is present or removed.
                if let Some(hold) = hold {
                    drop(PageReadGuard::lock(&self.pool, hold.frame()));
                }
            } else if word.has(Word::MARK) {
                self.index.change(index, 0, Word::MARK, &pin);
                self.index.try_form_large(index, &pin);
                let mut missing = index + 1;
                while missing - index < LOOKS_MAX && self.index.word(missing, &pin) != Word::ABSENT
                {
                    missing += 1;
                }
                let mut plan = state.readahead.on_mark(missing);
                drop((state, pin));
                plan.pages.end = plan.pages.end.min(missing.saturating_add(self.ahead_max()));
                self.start_readahead(plan);
            }
            return Ok(0);
        }
        if self.store.is_none() {
            return Ok(0);
        }
        let is_present = |back: &u64| {
            index
                .checked_sub(*back)
                .is_some_and(|i| self.index.word(i, &pin) != Word::ABSENT)
        };
        let history = (1..=LARGE_FOLIO_PAGES).take_while(is_present).count() as u64;
        let mut plan = state.readahead.on_miss(index, wanted, history);
        drop((state, pin));
        let len_max = self.ahead_max().max(wanted);
        plan.pages.end = plan.pages.end.min(index.saturating_add(len_max));
        let is_more = plan.pages.end - plan.pages.start > wanted;
        let filled = self.fill(
            plan.pages,
            FillPurpose {
                wanted,
                mark: plan.mark,
            },
        );
        match filled {
            // Only the wanted pages may fail the reader; pages ahead are a guess.
            Err(_) if is_more => {
                self.fill(index..index + wanted, FillPurpose { wanted, mark: None })
            }
            filled => filled,
        }
        .map(|count| count.min(wanted))
    }

    /// Returns the most pages to read ahead: in a small cache, pages far ahead would be evicted
    /// before their use.
    fn ahead_max(&self) -> u64 {
        self.pool.budget() / AHEAD_SHARE
    }

    /// Passes a plan to the readahead threads, or reads the pages itself if there are none.
    fn start_readahead(self: &Arc<Self>, plan: ReadaheadPlan) {
        if plan.pages.start * PAGE >= self.size_bytes.load(Ordering::Acquire) {
            return;
        }
        if let Some(plan) = self
            .cache()
            .readahead_threads
            .submit(Arc::<Self>::downgrade(self), plan)
        {
            self.fill_ahead(&plan);
        }
    }

    /// Reads pages that no reader waits for. Ignores errors and lack of memory.
    pub(super) fn fill_ahead(self: &Arc<Self>, plan: &ReadaheadPlan) {
        let mut at = plan.pages.start;
        let end = plan
            .pages
            .end
            .min(self.size_bytes.load(Ordering::Acquire).div_ceil(PAGE));
        while at < end {
            match self.fill(
                at..end,
                FillPurpose {
                    wanted: 0,
                    mark: plan.mark,
                },
            ) {
                Ok(filled) => at += filled.max(1),
                Err(_) => return,
            }
        }
    }

    /// Reads pages from the first one with one call to the store; stops at a present page and at
    /// the end of the file. Returns the number of pages read.
    fn fill(self: &Arc<Self>, pages: Range<u64>, purpose: FillPurpose) -> Result<u64> {
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
        let mut holds: Vec<FolioRef<'_>> = Vec::with_capacity(frames.len());
        for (index, frame) in (pages.start..).zip(&frames) {
            self.pool.folio(*frame).begin(self.number, index);
            holds.push(FolioRef::from_frame(&self.pool, *frame));
        }
        // Locked before the index has them: a reader that finds BUSY waits for the lock.
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
        let result = self
            .cache()
            .call_store(|| store.read_pages(pages.start * PAGE, &mut slices_mut(&mut guards)));
        // Before the unlock: a waiter then finds the page present, or removed.
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

    /// Allocates frames for absent pages, up to the first present one; large folios where possible.
    /// At least one frame if any page is wanted, and fewer than pages if memory is short.
    fn frames_for(&self, pages: Range<u64>, wanted: u64) -> Result<Vec<Frame>> {
        let pin = rcu::pin();
        let absent = pages
            .clone()
            .take_while(|index| self.index.word(*index, &pin) == Word::ABSENT)
            .count() as u64;
        // A thread that waits for memory must not hold off a grace period (C9).
        drop(pin);
        let end = pages.start + absent;
        let mut frames = Vec::with_capacity(absent as usize);
        let mut index = pages.start;
        self.cache().make_room(absent);
        while index < end {
            if index.is_multiple_of(LARGE_FOLIO_PAGES)
                && end - index >= LARGE_FOLIO_PAGES
                && let Some(first) = self.cache().group()
            {
                frames.extend(first..first + LARGE_FOLIO_PAGES as Frame);
                index += LARGE_FOLIO_PAGES;
                continue;
            }
            // No reader waits for pages ahead: they must not exceed the budget.
            let is_ahead = index >= pages.start + wanted;
            let frame = if is_ahead {
                self.cache().frame_ahead()
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

    /// Inserts busy pages into the index, up to the first present one. Returns their number.
    fn insert_busy(&self, first: u64, holds: &[FolioRef<'_>]) -> usize {
        let pin = rcu::pin();
        let _table = self.state.lock();
        let mut taken = 0;
        for (index, hold) in (first..).zip(holds) {
            if self.index.word(index, &pin) != Word::ABSENT {
                break;
            }
            let Some(counted) = FolioRef::try_new(&self.pool, hold.frame()) else {
                break;
            };
            self.index
                .insert(index, Word::new(counted.into_frame(), Word::BUSY), &pin);
            taken += 1;
        }
        self.page_count.fetch_add(taken as u64, Ordering::Relaxed);
        taken
    }

    /// Ends a read: the pages are up to date, or removed if it failed.
    fn end_fill(&self, first: u64, holds: &[FolioRef<'_>], purpose: FillPurpose, is_ok: bool) {
        let pin = rcu::pin();
        let mut removed = Vec::new();
        let state = self.state.lock();
        for (index, hold) in (first..).zip(holds) {
            // Truncation may have removed it.
            if self.index.word(index, &pin).frame() != Some(hold.frame()) {
                continue;
            }
            if !is_ok {
                removed.extend(self.take_out(index, &pin));
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
            if index % LARGE_FOLIO_PAGES == LARGE_FOLIO_PAGES - 1 {
                self.index.try_form_large(index, &pin);
            }
        }
        drop(state);
        self.release(removed);
    }

    /// Adds new pages to the queues of reclaim, if they can be evicted.
    pub(super) fn add_candidates(&self, frames: &[Frame]) {
        if self.store.is_some() {
            let refaulted = self.cache().add_candidates(self.number, frames);
            self.count(|tally| &tally.refaulted_pages, refaulted);
        }
    }

    /// Releases the index's references of removed frames. The caller has the state unlocked.
    pub(super) fn release(&self, frames: Vec<Frame>) {
        frames
            .into_iter()
            .for_each(|frame| drop(FolioRef::from_frame(&self.pool, frame)));
    }
}
