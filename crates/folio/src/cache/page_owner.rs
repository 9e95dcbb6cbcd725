//! The owner of cached pages, as reclaim, writeback and readahead see it, and the registry that
//! finds an owner by its number.
//!
//! The one implementation is the mapping (owner_glue.rs). The trait keeps the files below the
//! mapping free of it; no read or write of cached bytes goes through it.

use super::folio::Frame;
use super::readahead::ReadaheadPlan;
use crate::base::Result;
use crate::base::per_process::PerProcess;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, process_wide};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The result of an attempt to reclaim one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReclaimOutcome {
    /// The page was used since the last attempt.
    Referenced,
    /// The page is out of memory.
    Reclaimed,
    /// The page is in use, dirty or locked.
    Busy,
    /// The frame holds another page by now, or none.
    Stale,
}

/// The owner of cached pages: one file's mapping.
pub(super) trait PageOwner: Send + Sync {
    /// Returns the owner's number, which no other owner ever has.
    fn number(&self) -> u64;

    /// Returns whether the owner belongs to the cache whose counters are at `cache_tally`.
    fn is_counted_in(&self, cache_tally: *const ()) -> bool;

    /// Adds hits that a thread counted to the counters of the owner and of its cache.
    fn add_hits(&self, count: u64);

    /// Evicts the page at `index` if it is the one in `frame`, of this generation, and not in use.
    fn try_reclaim(&self, index: u64, frame: Frame, generation: u32) -> ReclaimOutcome;

    /// Reads pages that no reader waits for. Ignores errors.
    fn fill_ahead(self: Arc<Self>, plan: &ReadaheadPlan);

    /// Writes the dirty pages in `range` (in bytes), and waits for all writes under way.
    fn write_back(self: Arc<Self>, range: Range<u64>) -> Result<()>;

    /// Writes the dirty pages in `range` (in bytes) that no other thread is writing.
    fn write_dirty(self: Arc<Self>, range: Range<u64>) -> Result<()>;

    /// Returns whether the first dirty page has been dirty for `age`.
    fn is_dirty_since(&self, now: Instant, age: Duration) -> bool;

    /// Returns whether the owner must stay in its device's list of dirty mappings. If not, its next
    /// dirty page adds it again.
    fn stays_listed(&self) -> bool;
}

type Owners = HashMap<u64, Weak<dyn PageOwner>>;

process_wide! {
    /// The owners of all caches by their numbers.
    static OWNERS: PerProcess<Mutex<Owners>> = PerProcess::new(Mutex::default);
    static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
}

/// Bytes of an entry of the registry, which is two thirds full on average.
pub(super) const ENTRY_BYTES: usize = size_of::<(u64, Weak<dyn PageOwner>)>() * 3 / 2;

/// Returns the number of a new owner.
pub(super) fn new_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Adds an owner to the registry.
pub(super) fn register(number: u64, owner: Weak<dyn PageOwner>) {
    OWNERS.get().lock().insert(number, owner);
}

/// Removes an owner from the registry.
pub(super) fn unregister(number: u64) {
    OWNERS.get().lock().remove(&number);
}

/// Returns the owner with this number, if it still exists.
pub(super) fn find(number: u64) -> Option<Arc<dyn PageOwner>> {
    OWNERS.get().lock().get(&number)?.upgrade()
}
