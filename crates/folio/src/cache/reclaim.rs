//! The memory budget: allocation of frames, and reclaim of pages. Linux: mm/vmscan.c.
//!
//! policy.rs picks the next page; this file evicts it if it is clean and not in use.

use super::counters;
use super::folio::{Frame, GROUP};
use super::page_cache::PageCache;
use super::page_owner::{self, PageOwner, ReclaimOutcome};
use super::policy::QueueEntry;
use crate::base::sync::atomic::Ordering;
use crate::base::sync::thread;
use crate::base::{Errno, Error, Result};
use std::sync::Arc;

/// Pages reclaimed at once; in a small cache, 1 / `BATCH_SHARE` of it.
const BATCH: u64 = 64;
const BATCH_SHARE: u64 = 32;
/// Most pages scanned per wanted page in one attempt, so that no caller waits long when all pages
/// are in use.
const LOOKS_MAX: u64 = 16;
/// Full scans before an allocation fails.
const PASSES: u64 = 4;
/// Most frames reserved for growing files, as 1 / this of all: they cannot be reclaimed.
const RESERVED_SHARE: u64 = 16;
/// Queue entries without a page that are tolerated.
const STALE_MAX: usize = 4096;

impl PageCache {
    /// Tries to make room for `count` more frames within the part of the budget that objects leave;
    /// returns whether there is. Waits for pinned readers, but never for writeback: the caller has
    /// no mapping locked and no pin.
    pub(super) fn make_room(&self, count: u64) -> bool {
        let budget = self.pool.page_budget();
        let has_room = self.make_room_within(count, budget);
        if budget < self.pool.budget() {
            self.pool.release_unused(budget + count);
        }
        has_room
    }

    fn make_room_within(&self, count: u64, budget: u64) -> bool {
        self.reclaim_excess(count, budget);
        self.pool.settle(count, budget)
    }

    /// Reclaims pages in the way of `count` more frames within `budget`. Returns their number.
    fn reclaim_excess(&self, count: u64, budget: u64) -> u64 {
        let excess = self.pool.excess(count, budget);
        if excess == 0 {
            return 0;
        }
        self.reclaim(excess.max(BATCH.min(budget / BATCH_SHARE)))
    }

    /// Allocates a frame, after an attempt to stay within the budget.
    pub(super) fn frame(&self) -> Result<Frame> {
        self.make_room(1);
        self.pool.take()
    }

    /// Allocates a frame within the part of the budget that objects leave; ENOSPC if there is none:
    /// no reader waits for the page.
    pub(super) fn frame_ahead(&self) -> Result<Frame> {
        if !self.make_room(1) {
            return Err(full());
        }
        self.pool.take()
    }

    /// Allocates a frame within the whole budget: the caller's pages may be the only copy, and it
    /// has no alternative. ENOSPC after several scans of all pages that reclaim none. Waits for
    /// pinned readers, but not for writeback.
    pub(super) fn frame_or_nospc(&self) -> Result<Frame> {
        let budget = self.pool.budget();
        let looks = LOOKS_MAX * BATCH.min(budget / BATCH_SHARE).max(1);
        let mut vain_tries = 0;
        loop {
            let reclaimed = self.reclaim_excess(1, budget);
            if self.pool.settle(1, budget) {
                return self.pool.take();
            }
            // If pages were reclaimed, other threads took their frames, so the system makes
            // progress, and this thread has its turn later.
            if reclaimed == 0 {
                vain_tries += 1;
                if vain_tries > PASSES * (1 + self.policy.lock().len() as u64 / looks) {
                    return Err(full());
                }
            }
            // A thread that has a page locked may finish meanwhile.
            thread::yield_now();
        }
    }

    /// Allocates a frame group, for a large folio, and returns its first frame; `None` if there is
    /// none within the budget.
    pub(super) fn group(&self) -> Option<Frame> {
        let has_room = self.pool.in_use() + u64::from(GROUP) <= self.pool.page_budget();
        has_room.then(|| self.pool.take_group()).flatten()
    }

    /// Like [`PageCache::group`], to be used page by page; `None` if many frames are reserved
    /// already. The caller reports each used or returned frame by [`PageCache::unreserve`].
    pub(super) fn reserve_group(&self) -> Option<Frame> {
        let group = u64::from(GROUP);
        if self.reserved.load(Ordering::Relaxed) + group > self.pool.budget() / RESERVED_SHARE {
            return None;
        }
        let first = self.group()?;
        counters::add(&self.reserved, group);
        Some(first)
    }

    /// Ends the reservation of `count` frames.
    pub(super) fn unreserve(&self, count: u64) {
        self.reserved.fetch_sub(count, Ordering::Relaxed);
    }

    /// Adds pages that were just read or created to the queues of reclaim. Returns how many of them
    /// were evicted not long ago.
    pub(super) fn add_candidates(&self, owner: u64, frames: &[Frame]) -> u64 {
        let mut refaulted = 0;
        let mut policy = self.policy.lock();
        for frame in frames {
            let folio = self.pool.folio(*frame);
            let entry = QueueEntry {
                frame: *frame,
                generation: folio.generation(),
            };
            refaulted += u64::from(policy.insert(entry, key(owner, folio.index())));
        }
        // Truncated pages leave their entries behind.
        if policy.len() > STALE_MAX + 2 * self.pool.in_use() as usize {
            policy.retain(|entry| self.pool.folio(entry.frame).is_alive(entry.generation));
        }
        refaulted
    }

    /// Returns the number of queue entries, including stale ones.
    #[cfg(test)]
    pub(super) fn candidates_len(&self) -> usize {
        self.policy.lock().len()
    }

    /// Reclaims up to `count` pages. Returns their number. Linux: `shrink_folio_list`.
    pub(super) fn reclaim(&self, count: u64) -> u64 {
        let mut taken = 0;
        let mut scanned = 0;
        let mut owner: Option<Arc<dyn PageOwner>> = None;
        let looks = (LOOKS_MAX * count).min(self.policy.lock().len() as u64);
        while taken < count && scanned < looks {
            scanned += 1;
            let Some((entry, queue)) = self.policy.lock().next() else {
                break;
            };
            let folio = self.pool.folio(entry.frame);
            let (number, index) = (folio.owner(), folio.index());
            if owner.as_ref().is_none_or(|owner| owner.number() != number) {
                owner = page_owner::find(number);
            }
            let Some(owner) = &owner else { continue };
            if folio.generation() != entry.generation {
                continue;
            }
            match owner.try_reclaim(index, entry.frame, entry.generation) {
                ReclaimOutcome::Referenced => self.policy.lock().keep(entry),
                ReclaimOutcome::Reclaimed => {
                    taken += 1;
                    self.policy
                        .lock()
                        .record_eviction(key(number, index), queue);
                }
                ReclaimOutcome::Busy => self.policy.lock().put_back(entry, queue),
                ReclaimOutcome::Stale => {}
            }
        }
        counters::add(&self.tally.scanned_pages, scanned);
        taken
    }
}

fn full() -> Error {
    Error::new(Errno::NOSPC, "the page cache is full")
}

/// Returns the key by which a page is recognized after its eviction.
fn key(mapping: u64, index: u64) -> u64 {
    // A multiplicative hash spreads adjacent pages well enough (Knuth, 6.4).
    let mixed =
        (mapping.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 32)
}
