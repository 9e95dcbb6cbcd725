//! The mapping as a [`PageOwner`].

use super::folio::Frame;
use super::mapping::AddressSpace;
use super::page_owner::{PageOwner, ReclaimOutcome};
use super::readahead::ReadaheadPlan;
use crate::base::Result;
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl PageOwner for AddressSpace {
    fn number(&self) -> u64 {
        self.number
    }

    fn is_counted_in(&self, cache_tally: *const ()) -> bool {
        std::ptr::eq(std::ptr::from_ref(&self.cache().tally).cast(), cache_tally)
    }

    fn add_hits(&self, count: u64) {
        self.count(|tally| &tally.hits, count);
    }

    fn try_reclaim(&self, index: u64, frame: Frame, generation: u32) -> ReclaimOutcome {
        if self.index.take_referenced(index, &rcu::pin()) {
            return ReclaimOutcome::Referenced;
        }
        let folio = self.pool.folio(frame);
        if self.try_evict(index, frame) {
            let was_ahead = folio.is_ahead.load(Ordering::Relaxed);
            self.count(|tally| &tally.reclaimed_pages, 1);
            self.count(|tally| &tally.readahead_unused_pages, u64::from(was_ahead));
            return ReclaimOutcome::Reclaimed;
        }
        let is_same = folio.generation() == generation
            && self.index.word(index, &rcu::pin()).frame() == Some(frame);
        if is_same {
            ReclaimOutcome::Busy
        } else {
            ReclaimOutcome::Stale
        }
    }

    fn fill_ahead(self: Arc<Self>, plan: &ReadaheadPlan) {
        Self::fill_ahead(&self, plan);
    }

    fn write_back(self: Arc<Self>, range: Range<u64>) -> Result<()> {
        Self::write_back(&self, range)
    }

    fn write_dirty(self: Arc<Self>, range: Range<u64>) -> Result<()> {
        Self::write_dirty(&self, range)
    }

    fn is_dirty_since(&self, now: Instant, age: Duration) -> bool {
        Self::is_dirty_since(self, now, age)
    }

    fn stays_listed(&self) -> bool {
        Self::stays_listed(self)
    }
}
