//! The memory budget: who holds pages, and taking them back. Linux: mm/vmscan.c.
//!
//! Which page goes next is policy.rs; here it is taken, if it is clean and nobody holds it.

use super::counters::{self, Counters, Tally};
use super::mapping::Inner;
use super::policy::{Entry, Policy};
use super::pool::{FRAMES_MAX, Frame, GROUP, Pool};
use super::readahead_thread::ReadaheadThread;
use super::swap::Swap;
use super::writeback::Writeback;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, thread};
use crate::base::{Errno, Error, Result, rcu};
use std::sync::{Arc, OnceLock};

/// Pages taken back at once, when there is need of any; in a small cache, 1 / the share of it.
const BATCH: u64 = 64;
const BATCH_SHARE: u64 = 32;
/// Pages looked at in one attempt, per page that is wanted, so that nobody waits long when
/// everything is in use.
const LOOKS_MAX: u64 = 16;
/// How often everything is looked at before there is no memory at all.
const PASSES: u64 = 4;
/// Frames reserved for files that grow, as 1 / this of all: they cannot be taken back.
const RESERVED_SHARE: u64 = 16;
/// Queue entries without a page that are put up with.
const STALE_MAX: usize = 4096;

/// Limits of a [`PageCache`].
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Memory for pages, in bytes; exceeded only by pages in use at this instant. At most 512 GiB.
    pub budget_bytes: u64,
    /// Dirty bytes from which background writeback starts (`dirty_background_bytes`).
    pub dirty_background_bytes: u64,
    /// Dirty bytes from which a writer must wait or itself write back before it goes on
    /// (`dirty_bytes`).
    pub dirty_bytes: u64,
    /// Whether there are threads that write in the background (one per [`Writeback`]) and read
    /// ahead.
    pub background_writeback: bool,
    /// Age from which dirty pages are written however few they are, in milliseconds
    /// (`dirty_expire_centisecs`).
    pub dirty_expire_ms: u64,
    /// How often the writing thread looks for such pages, in milliseconds; 0 is never
    /// (`dirty_writeback_centisecs`).
    pub dirty_writeback_ms: u64,
}

impl Default for CacheOptions {
    /// 256 MiB; writes from an eighth on, holds writers back from a half on; ages as in Linux.
    fn default() -> Self {
        let budget_bytes = 256 << 20;
        Self {
            budget_bytes,
            dirty_background_bytes: budget_bytes / 8,
            dirty_bytes: budget_bytes / 2,
            background_writeback: true,
            dirty_expire_ms: 30_000,
            dirty_writeback_ms: 5_000,
        }
    }
}

/// One budget of memory for pages, shared by all mappings of a kernel.
pub struct PageCache {
    pub(super) options: CacheOptions,
    pub(super) pool: Arc<Pool>,
    pub(super) tally: Tally,
    pub(super) readahead_thread: ReadaheadThread,
    policy: Mutex<Policy>,
    swap: OnceLock<Swap>,
    /// Frames that wait for the next pages of files that grow.
    reserved: AtomicU64,
}

impl PageCache {
    /// A cache with the given limits.
    pub fn new(options: CacheOptions) -> Arc<Self> {
        let pool = Pool::new(options.budget_bytes);
        let policy = Mutex::new(Policy::new(pool.budget().min(FRAMES_MAX)));
        let readahead_thread = ReadaheadThread::new(options.background_writeback);
        Arc::new(Self {
            options,
            pool,
            tally: Tally::default(),
            readahead_thread,
            policy,
            swap: OnceLock::new(),
            reserved: AtomicU64::new(0),
        })
    }

    /// Memory for pages, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.options.budget_bytes
    }

    /// Whether work in the background is done by threads.
    pub fn has_threads(&self) -> bool {
        self.options.background_writeback
    }

    /// Puts pages of mappings that have a limit and no store (tmpfs) on `swap` from now on, when
    /// others need the memory; EBUSY if there is such a device already. Linux: swapon(2).
    pub fn swap_on(&self, swap: Swap) -> Result<()> {
        self.swap.set(swap).map_err(|_| Errno::BUSY.into())
    }

    /// Where pages without a store can go.
    pub fn swap(&self) -> Option<&Swap> {
        self.swap.get()
    }

    /// The dirty state of a new backing device (one per mounted file system). Linux:
    /// `struct bdi_writeback`.
    pub fn writeback(self: &Arc<Self>) -> Arc<Writeback> {
        Writeback::new(self)
    }

    /// What the cache has done so far.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            file_pages: self.pool.in_use(),
            ..Counters::default()
        };
        self.tally.add_to(&mut counters);
        counters.hits += counters::hits_in_all_tables(|mapping| {
            std::ptr::eq(Arc::as_ptr(mapping.cache()), self)
        });
        counters
    }

    /// Tries to make room for `count` more frames within the budget; says whether there is. Never
    /// waits for writeback, but for readers: the caller has no table locked and no pin.
    pub(super) fn make_room(&self, count: u64) -> bool {
        let excess = self.pool.excess(count);
        if excess > 0 {
            self.reclaim(excess.max(BATCH.min(self.pool.budget() / BATCH_SHARE)));
        }
        self.pool.settle(count)
    }

    /// A frame, after an attempt to stay within the budget.
    pub(super) fn frame(&self) -> Result<Frame> {
        self.make_room(1);
        self.pool.take()
    }

    /// A frame within the budget; ENOSPC if there is none. May wait for readers, but not for
    /// writeback.
    pub(super) fn frame_within_budget(&self) -> Result<Frame> {
        match self.make_room(1) {
            true => self.pool.take(),
            false => Err(Error::new(Errno::NOSPC, "the page cache is full")),
        }
    }

    /// Like [`PageCache::frame_within_budget`], but gives up only after everything was looked at
    /// more than once: who asks can go nowhere else.
    pub(super) fn frame_or_nospc(&self) -> Result<Frame> {
        let looks = LOOKS_MAX * BATCH.min(self.pool.budget() / BATCH_SHARE).max(1);
        let mut tries = 0;
        loop {
            let frame = self.frame_within_budget();
            if frame.is_ok() || tries >= PASSES * (1 + self.policy.lock().len() as u64 / looks) {
                return frame;
            }
            tries += 1;
            // Whoever has a page locked may be done by then.
            thread::yield_now();
        }
    }

    /// The first of sixteen frames in one piece, if there is such a piece within the budget.
    pub(super) fn group(&self) -> Option<Frame> {
        match self.pool.in_use() + u64::from(GROUP) <= self.pool.budget() {
            true => self.pool.take_group(),
            false => None,
        }
    }

    /// Like [`PageCache::group`], to be used page by page; none if many such frames wait already.
    /// Each that gets its page, or goes back, is told by [`PageCache::unreserve`].
    pub(super) fn reserve_group(&self) -> Option<Frame> {
        let group = u64::from(GROUP);
        if self.reserved.load(Ordering::Relaxed) + group > self.pool.budget() / RESERVED_SHARE {
            return None;
        }
        let first = self.group()?;
        counters::add(&self.reserved, group);
        Some(first)
    }

    /// `count` frames are not reserved any more.
    pub(super) fn unreserve(&self, count: u64) {
        self.reserved.fetch_sub(count, Ordering::Relaxed);
    }

    /// Lets reclaim know of pages that just came in and have a store to come back from.
    pub(super) fn add_candidates(&self, mapping: &Inner, frames: &[Frame]) {
        let mut refaulted = 0;
        let mut policy = self.policy.lock();
        for frame in frames {
            let folio = self.pool.folio(*frame);
            let entry = Entry {
                frame: *frame,
                generation: folio.generation(),
            };
            refaulted += u64::from(policy.insert(entry, key(mapping.number, folio.index())));
        }
        // Pages that were dropped by truncation leave their entries behind.
        if policy.len() > STALE_MAX + 2 * self.pool.in_use() as usize {
            policy.retain(|entry| self.pool.folio(entry.frame).is_alive(entry.generation));
        }
        drop(policy);
        mapping.count(|tally| &tally.refaulted_pages, refaulted);
    }

    /// How many pages reclaim knows of, those that are gone included.
    #[cfg(test)]
    pub(super) fn candidates_len(&self) -> usize {
        self.policy.lock().len()
    }

    /// Takes up to `count` pages back. Returns how many it got.
    pub(super) fn reclaim(&self, count: u64) -> u64 {
        let mut taken = 0;
        let mut scanned = 0;
        let mut owner: Option<Arc<Inner>> = None;
        let looks = (LOOKS_MAX * count).min(self.policy.lock().len() as u64);
        while taken < count && scanned < looks {
            scanned += 1;
            let Some((entry, queue)) = self.policy.lock().next() else {
                break;
            };
            let folio = self.pool.folio(entry.frame);
            let (number, index) = (folio.owner(), folio.index());
            if owner.as_ref().is_none_or(|owner| owner.number != number) {
                owner = counters::mapping(number);
            }
            let Some(owner) = &owner else { continue };
            if folio.generation() != entry.generation {
                continue;
            }
            if owner.index.take_referenced(index, &rcu::pin()) {
                self.policy.lock().keep(entry);
            } else if owner.try_evict(index, entry.frame) || owner.try_swap_out(index, entry.frame)
            {
                taken += 1;
                self.policy.lock().note_gone(key(number, index), queue);
                owner.count(|tally| &tally.reclaimed_pages, 1);
                let was_ahead = folio.is_ahead.load(Ordering::Relaxed);
                owner.count(|tally| &tally.readahead_unused_pages, u64::from(was_ahead));
            } else if folio.generation() == entry.generation
                && owner.index.word(index, &rcu::pin()).frame() == Some(entry.frame)
            {
                self.policy.lock().put_back(entry, queue);
            }
        }
        counters::add(&self.tally.scanned_pages, scanned);
        taken
    }
}

/// What a page is known by after it went.
fn key(mapping: u64, index: u64) -> u64 {
    // A multiplicative hash spreads neighbours well enough (Knuth, 6.4).
    let mixed =
        (mapping.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 32)
}
