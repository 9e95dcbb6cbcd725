//! The memory budget: who holds pages, and which are taken back. Linux: mm/vmscan.c.
//!
//! Candidates stand in one queue in the order they came. Reclaim looks at the front: a folio that was used since
//! the last look goes to the back once more, a clean one that nobody holds goes, the others wait (CLOCK).

use super::folio::Folio;
use super::pool::{Frame, Pool};
use super::writeback::Writeback;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Folios taken back at once, when there is need of any.
const BATCH: u64 = 64;

/// Candidates looked at in one attempt, so that nobody waits long when everything is in use.
const LOOKS_MAX: usize = 1024;
/// Queue entries without a folio that are put up with.
const CANDIDATES_SPARE: usize = 4096;

/// Limits of a [`PageCache`].
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Memory for pages, in bytes; exceeded only by pages in use at this instant.
    pub budget_bytes: u64,
    /// Dirty bytes from which background writeback starts (`dirty_background_bytes`).
    pub dirty_background_bytes: u64,
    /// Dirty bytes from which a writer must wait or itself write back before it goes on (`dirty_bytes`).
    pub dirty_bytes: u64,
    /// Whether each [`Writeback`] has a thread that writes in the background.
    pub background_writeback: bool,
}

/// What the cache has done so far, in the words of /proc/vmstat. Pages are 4096 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages held (`nr_file_pages`).
    pub file_pages: u64,
    /// Pages dirty now (`nr_dirty`).
    pub dirty_pages: u64,
    /// Page lookups answered from memory.
    pub hits: u64,
    /// Page lookups that had to ask the store.
    pub misses: u64,
    /// Pages brought in ahead of a request.
    pub readahead_pages: u64,
    /// Pages written to their store (`nr_written`).
    pub written_pages: u64,
    /// Pages taken back for other use (`pgsteal`).
    pub reclaimed_pages: u64,
}

/// The running form of [`Counters`].
#[derive(Default)]
pub(super) struct Tally {
    pub(super) dirty: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) readahead: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) reclaimed: AtomicU64,
}

/// One budget of memory for pages, shared by all mappings of a kernel.
pub struct PageCache {
    pub(super) options: CacheOptions,
    pub(super) pool: Arc<Pool>,
    pub(super) tally: Tally,
    candidates: Mutex<VecDeque<Weak<Folio>>>,
}

impl PageCache {
    /// A cache with the given limits.
    pub fn new(options: CacheOptions) -> Arc<Self> {
        let pool = Pool::new(options.budget_bytes);
        Arc::new(Self { options, pool, tally: Tally::default(), candidates: Mutex::default() })
    }

    /// The dirty state of a new backing device (one per mounted file system). Linux: `struct bdi_writeback`.
    pub fn writeback(self: &Arc<Self>) -> Arc<Writeback> {
        Writeback::new(self)
    }

    /// What the cache has done so far.
    pub fn counters(&self) -> Counters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            file_pages: self.pool.in_use(),
            dirty_pages: of(&self.tally.dirty),
            hits: of(&self.tally.hits),
            misses: of(&self.tally.misses),
            readahead_pages: of(&self.tally.readahead),
            written_pages: of(&self.tally.written),
            reclaimed_pages: of(&self.tally.reclaimed),
        }
    }

    /// A frame, after an attempt to stay within the budget; never waits for writeback.
    pub(super) fn frame(&self) -> Frame {
        if self.pool.excess(1) > 0 {
            self.reclaim(BATCH);
        }
        self.pool.take()
    }

    /// A frame within the budget, or none.
    pub(super) fn frame_within_budget(&self) -> Option<Frame> {
        if self.pool.excess(1) > 0 {
            self.reclaim(BATCH);
        }
        (self.pool.excess(1) == 0).then(|| self.pool.take())
    }

    /// Lets reclaim know of a folio that has a store to come back from.
    pub(super) fn add_candidate(&self, folio: &Arc<Folio>) {
        let mut candidates = self.candidates.lock();
        candidates.push_back(Arc::downgrade(folio));
        // Folios that were dropped by truncation leave their entries behind.
        if candidates.len() > CANDIDATES_SPARE + 4 * self.pool.in_use() as usize {
            candidates.retain(|weak| weak.strong_count() > 0);
        }
    }

    /// Takes up to `count` folios back. Returns how many it got.
    pub(super) fn reclaim(&self, count: u64) -> u64 {
        let mut taken = 0;
        let mut looks = self.candidates.lock().len().min(LOOKS_MAX);
        while taken < count && looks > 0 {
            looks -= 1;
            let Some(weak) = self.candidates.lock().pop_front() else { break };
            let Some(folio) = weak.upgrade() else { continue };
            let Some(owner) = folio.owner.upgrade() else { continue };
            let was_used = folio.is_referenced.swap(false, Ordering::Relaxed);
            match !was_used && owner.try_evict(&folio) {
                true => taken += 1,
                false => self.candidates.lock().push_back(weak),
            }
        }
        self.tally.reclaimed.fetch_add(taken, Ordering::Relaxed);
        taken
    }
}
