//! The mapping: one file's pages in memory. Linux: `struct address_space`.

use super::counters::{self, Counters, Tally};
use super::folio::{Frame, LARGE_FOLIO_PAGES, PAGE};
use super::folio_ref::FolioRef;
use super::index::{Index, Word};
use super::locked::PageWriteGuard;
use super::object_memory::ObjectCharge;
use super::page_cache::PageCache;
use super::page_owner::{self, PageOwner};
use super::pool::Pool;
use super::readahead::ReadaheadState;
use super::store::Store;
use super::writeback::{Writeback, WritebackState};
use crate::base::rcu::{self, Pin};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Errno, Error, Limit, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The cached pages of one inode (or of one device, for metadata), by page index. Linux:
/// `struct address_space`.
///
/// Owns the file's size. The mapping holds a strong reference of the store while any page is dirty.
/// Callers serialize writes, truncation and hole punching (the inode lock); readers need no lock.
/// A clone is another handle of the same mapping.
#[derive(Clone)]
pub struct Mapping(pub(super) Arc<AddressSpace>);

pub(super) struct AddressSpace {
    pub(super) pool: Arc<Pool>,
    pub(super) store: Option<Weak<dyn Store>>,
    pub(super) size_bytes: AtomicU64,
    /// Never used by another mapping (page_owner.rs).
    pub(super) number: u64,
    pub(super) index: Index,
    pub(super) page_count: AtomicU64,
    /// The limit that each page is charged to; only without a store.
    pub(super) limit: Option<Arc<Limit>>,
    /// Reads do not mark pages as accessed (`POSIX_FADV_NOREUSE`).
    pub(super) has_noreuse_advice: AtomicBool,
    pub(super) writeback: Arc<WritebackState>,
    pub(super) tally: Tally,
    /// The number of failed writeback runs; changes with the state locked.
    pub(super) errors: AtomicU64,
    /// The number of them that were reported to an observer.
    pub(super) errors_reported: AtomicU64,
    pub(super) state: Mutex<AddressSpaceState>,
    /// Notified when a writeback run ends.
    pub(super) written: Condvar,
    /// The mapping's own memory, without pages.
    _charge: ObjectCharge,
}

/// The mutable state of a mapping. Its lock also guards changes of the index.
#[derive(Default)]
pub(super) struct AddressSpaceState {
    pub(super) dirty_count: u64,
    /// When the oldest dirty page became dirty.
    pub(super) dirty_since: Option<Instant>,
    /// The store, while any page is dirty or being written.
    pub(super) held_store: Option<Arc<dyn Store>>,
    /// Whether the mapping is in its device's list of dirty mappings.
    pub(super) is_listed: bool,
    /// Writeback runs in flight.
    pub(super) runs_in_flight: u32,
    pub(super) readahead: ReadaheadState,
    /// Frames reserved for the next pages of a growing file.
    pub(super) reserved: Option<ReservedFrames>,
    pub(super) last_error: Option<Errno>,
}

/// The frames of one large folio that have no page yet.
pub(super) struct ReservedFrames {
    /// The folio's number: the index of its first page divided by [`LARGE_FOLIO_PAGES`].
    pub(super) large_folio: u64,
    pub(super) frames: Range<Frame>,
}

impl Mapping {
    /// Creates a mapping whose pages are read from and written to `store`. `size_bytes` is the
    /// file's size.
    pub fn new(writeback: &Arc<Writeback>, store: Weak<dyn Store>, size_bytes: u64) -> Self {
        Self::build(writeback, Some(store), size_bytes, None)
    }

    /// Creates a mapping without a store: absent pages are zeros, pages are never written back or
    /// evicted (ramfs). With a `limit` (tmpfs), each page is charged to it while it exists, and a
    /// write beyond it fails with ENOSPC.
    pub fn without_store(
        writeback: &Arc<Writeback>,
        size_bytes: u64,
        limit: Option<Arc<Limit>>,
    ) -> Self {
        Self::build(writeback, None, size_bytes, limit)
    }

    fn build(
        writeback: &Arc<Writeback>,
        store: Option<Weak<dyn Store>>,
        size_bytes: u64,
        limit: Option<Arc<Limit>>,
    ) -> Self {
        let shared = writeback.shared().clone();
        let number = page_owner::new_number();
        let objects = shared.cache.objects();
        let len_bytes = size_of::<AddressSpace>() + page_owner::ENTRY_BYTES;
        let charge = if store.is_some() {
            objects.charge(len_bytes)
        } else {
            objects.charge_pinned(len_bytes)
        };
        let inner = Arc::new(AddressSpace {
            pool: shared.cache.pool.clone(),
            store,
            size_bytes: AtomicU64::new(size_bytes),
            number,
            index: Index::new(),
            page_count: AtomicU64::new(0),
            limit,
            has_noreuse_advice: AtomicBool::new(false),
            writeback: shared,
            tally: Tally::default(),
            errors: AtomicU64::new(0),
            errors_reported: AtomicU64::new(0),
            state: Mutex::default(),
            written: Condvar::new(),
            _charge: charge,
        });
        let owner: Weak<dyn PageOwner> = Arc::<AddressSpace>::downgrade(&inner);
        page_owner::register(number, owner);
        Self(inner)
    }

    /// Returns the file's size in bytes. Linux: `i_size_read`.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes.load(Ordering::Acquire)
    }

    /// Sets the file's size in bytes without a change of pages: for growth, or the size read from
    /// disk. Linux: `i_size_write`.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.0.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Returns whether pages are read from and written to a store.
    #[inline]
    pub fn has_store(&self) -> bool {
        self.0.store.is_some()
    }

    /// Returns the number of pages. Linux: `nrpages`.
    #[inline]
    pub fn page_count(&self) -> u64 {
        self.0.page_count.load(Ordering::Relaxed)
    }

    /// Returns the counters of this mapping.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            file_pages: self.page_count(),
            ..Counters::default()
        };
        self.0.tally.add_to(&mut counters);
        counters.hits += counters::hits_of_mapping(self.0.number);
        counters
    }

    /// Reports a writeback error once per observer. `seen` is the observer's cursor, at first from
    /// [`Mapping::error_cursor`]; it moves to the newest error.
    ///
    /// # Errors
    /// The errno of the newest writeback error after `seen`. Linux: `errseq_check_and_advance`.
    pub fn check_error(&self, seen: &mut u64) -> Result<()> {
        if *seen == self.0.errors.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = self.0.state.lock();
        *seen = self.0.errors.load(Ordering::Acquire);
        self.0.errors_reported.store(*seen, Ordering::Release);
        state.last_error.map_or(Ok(()), |errno| {
            Err(Error::new(errno, "earlier writeback failed"))
        })
    }

    /// Returns the first cursor of a new observer: an error that no observer has seen is still
    /// ahead of it. Linux: `errseq_sample`.
    pub fn error_cursor(&self) -> u64 {
        self.0.errors_reported.load(Ordering::Acquire)
    }
}

impl AddressSpace {
    pub(super) fn cache(&self) -> &Arc<PageCache> {
        &self.writeback.cache
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Adds `count` to a counter of this mapping and of the cache.
    pub(super) fn count(&self, which: impl Fn(&Tally) -> &AtomicU64, count: u64) {
        if count > 0 {
            counters::add(which(&self.tally), count);
            counters::add(which(&self.cache().tally), count);
        }
    }

    /// Marks the page at `index`, or the large folio that starts there, as accessed, for reclaim.
    ///
    /// The first access is the one that the page was read for. A scan makes it too, so only a later
    /// one shows that the page is worth keeping. Consecutive accesses of one page by the same
    /// reader count as one. Linux: `folio_mark_accessed`.
    #[cold]
    pub(super) fn mark_accessed(&self, word: Word, index: u64, is_large: bool, pin: &Pin) {
        let Some(first) = word.frame() else { return };
        let frames = if is_large {
            first..first + LARGE_FOLIO_PAGES as Frame
        } else {
            first..first + 1
        };
        let was_ahead = |frame: &Frame| {
            self.pool
                .folio(*frame)
                .is_ahead
                .swap(false, Ordering::Relaxed)
        };
        self.count(
            |tally| &tally.readahead_used_pages,
            frames.filter(was_ahead).count() as u64,
        );
        let is_repeated = counters::is_repeated(self.number, index);
        let was_new = self.pool.folio(first).is_new.swap(false, Ordering::Relaxed);
        if is_repeated || was_new || self.has_noreuse_advice.load(Ordering::Relaxed) {
            return;
        }
        // Found again: a caller that passed its own would have to keep all of it in memory.
        match self.index.find(index, pin) {
            Some(slot) if is_large => slot.touch_large(word),
            Some(slot) => slot.touch(word),
            None => {}
        }
    }

    pub(super) fn is_absent(&self, index: u64) -> bool {
        self.index.word(index, &rcu::pin()) == Word::ABSENT
    }

    /// Returns a reference of the page at `index` if it is in memory and up to date.
    pub(super) fn hold_cached(&self, index: u64) -> Option<FolioRef<'_>> {
        let pin = rcu::pin();
        let slot = self.index.find(index, &pin)?;
        let word = slot.word();
        let frame = word.frame().filter(|_| !word.has(Word::BUSY))?;
        let hold = FolioRef::try_new(&self.pool, frame)?;
        // Before the reference was taken, the frame may have been released.
        if slot.word().frame() != Some(frame) {
            return None;
        }
        if !word.has(Word::REFERENCED) {
            self.mark_accessed(word, index, false, &pin);
        }
        Some(hold)
    }

    /// Allocates a frame for the page `index`, which is not in the index yet, with arbitrary bytes.
    /// Only the caller has a reference.
    pub(super) fn new_page(&self, index: u64) -> Result<FolioRef<'_>> {
        let frame = match self.take_reserved(index) {
            Some(frame) => frame,
            None if self.store.is_some() => self.cache().frame()?,
            // Pages without a store may not be evictable, so the budget is a hard limit for them.
            None => self.cache().frame_or_nospc()?,
        };
        self.pool.folio(frame).begin(self.number, index);
        Ok(FolioRef::from_frame(&self.pool, frame))
    }

    /// Takes a reserved frame. A file that grows page by page reserves the frames of a large folio
    /// at once, so that its memory is contiguous.
    fn take_reserved(&self, index: u64) -> Option<Frame> {
        if index < LARGE_FOLIO_PAGES {
            return None;
        }
        let mut state = self.state.lock();
        if index.is_multiple_of(LARGE_FOLIO_PAGES)
            && index * PAGE == self.size_bytes.load(Ordering::Relaxed)
        {
            let first = self.cache().reserve_group()?;
            let frames = first..first + LARGE_FOLIO_PAGES as Frame;
            let unused = state.reserved.replace(ReservedFrames {
                large_folio: index / LARGE_FOLIO_PAGES,
                frames,
            });
            self.put_reserved(unused);
        }
        let reserved = state
            .reserved
            .as_mut()
            .filter(|reserved| reserved.large_folio == index / LARGE_FOLIO_PAGES)?;
        if u64::from(reserved.frames.start) % LARGE_FOLIO_PAGES != index % LARGE_FOLIO_PAGES {
            return None;
        }
        let frame = reserved.frames.next()?;
        self.cache().unreserve(1);
        Some(frame)
    }

    /// Returns reserved frames that were not used.
    pub(super) fn put_reserved(&self, reserved: Option<ReservedFrames>) {
        let Some(reserved) = reserved else { return };
        self.cache().unreserve(reserved.frames.len() as u64);
        self.pool.put(reserved.frames);
    }

    /// Inserts a page, whose bytes are locked and complete, unless there is one. The index takes
    /// its own reference. Returns whether it was inserted. Linux: `filemap_add_folio`.
    ///
    /// # Errors
    /// ENOSPC beyond the limit.
    pub(super) fn insert(
        self: &Arc<Self>,
        guard: &PageWriteGuard<'_>,
        index: u64,
        flags: u32,
    ) -> Result<bool> {
        let pin = rcu::pin();
        let mut state = self.state.lock();
        if self.index.word(index, &pin) != Word::ABSENT {
            return Ok(false);
        }
        let Some(hold) = FolioRef::try_new(&self.pool, guard.frame()) else {
            return Ok(false);
        };
        // Before the insertion: a page beyond the limit must not be found, not even for a moment.
        self.charge_limit(1)?;
        self.index.insert(
            index,
            Word::new(hold.into_frame(), flags & !Word::DIRTY),
            &pin,
        );
        self.page_count.fetch_add(1, Ordering::Relaxed);
        if flags & Word::DIRTY != 0 {
            self.mark_dirty_locked(&mut state, index, &pin);
        }
        if index % LARGE_FOLIO_PAGES == LARGE_FOLIO_PAGES - 1 {
            self.index.try_form_large(index, &pin);
        }
        Ok(true)
    }

    /// Charges `count` more pages to the limit; ENOSPC beyond it.
    pub(super) fn charge_limit(&self, count: u64) -> Result<()> {
        self.limit
            .as_ref()
            .map_or(Ok(()), |limit| limit.take(count))
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        page_owner::unregister(self.number);
        self.drop_pages(0..u64::MAX);
    }
}
