//! The folio: the state of one frame, and of the page in it. Linux: `struct folio`.

use crate::base::PAGE_SIZE;
use crate::base::sync::RwLock;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Bytes of a page.
pub(super) const PAGE: u64 = PAGE_SIZE as u64;
/// Frames of one group, and pages of one large folio.
pub(super) const GROUP: u32 = 16;
/// Pages of a large folio.
pub(super) const LARGE_FOLIO_PAGES: u64 = GROUP as u64;
/// Bytes of a large folio.
pub(super) const LARGE_FOLIO_BYTES: u64 = LARGE_FOLIO_PAGES * PAGE;
/// Most frames of a pool: a word of the index has 28 bits for the frame.
pub(super) const FRAMES_MAX: u64 = (1 << 28) - 2;

/// The number of a frame in its pool.
pub(super) type Frame = u32;

/// The state of one frame of the pool, and of the page in it.
pub(super) struct Folio {
    /// Locks the bytes: shared by writeback and borrowers, exclusive for a fill or a write. Readers
    /// that copy take no lock.
    pub(super) lock: RwLock<()>,
    /// The reference count: one of the index, and one of each handle. At 0 the frame returns to the
    /// pool.
    pub(super) refs: AtomicU32,
    /// Counts the pages that this frame has held, so that a stale queue entry is detected.
    generation: AtomicU32,
    /// The number of the mapping, and the page index, that the frame was last used for.
    owner: AtomicU64,
    index: AtomicU64,
    /// Read ahead, and not used yet.
    pub(super) is_ahead: AtomicBool,
    /// Used at most once, by the access that it was read for.
    pub(super) is_new: AtomicBool,
}

impl Folio {
    pub(super) fn new() -> Self {
        Self {
            lock: RwLock::new(()),
            refs: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            owner: AtomicU64::new(0),
            index: AtomicU64::new(0),
            is_ahead: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
        }
    }

    /// Starts the use of the frame as page `index` of a mapping, with one reference, the caller's.
    pub(super) fn begin(&self, owner: u64, index: u64) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.owner.store(owner, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.is_ahead.store(false, Ordering::Relaxed);
        self.is_new.store(true, Ordering::Relaxed);
        debug_assert_eq!(
            self.refs.load(Ordering::Relaxed),
            0,
            "the frame still has references"
        );
        // The count last: a thread that takes a reference finds the new owner and index.
        self.refs.store(1, Ordering::Release);
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns whether the frame still holds the page of that generation.
    pub(super) fn is_alive(&self, generation: u32) -> bool {
        self.generation() == generation && self.refs.load(Ordering::Relaxed) > 0
    }

    pub(super) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    pub(super) fn index(&self) -> u64 {
        self.index.load(Ordering::Relaxed)
    }

    /// Sets the reference count to 0 if it is `expected`: the index's reference and the caller's.
    /// Then no thread can take a reference any more. A mere test of the count would race with a
    /// thread that has found the page in the index. Linux: `folio_ref_freeze`.
    pub(super) fn try_freeze(&self, expected: u32) -> bool {
        self.refs
            .compare_exchange(expected, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes a reference unless the count is 0. Under a pin the frame is not recycled meanwhile;
    /// the caller must check that it still holds the same page. Linux: `folio_try_get`.
    pub(super) fn try_get(&self) -> bool {
        let mut refs = self.refs.load(Ordering::Relaxed);
        while refs > 0 {
            match self.refs.compare_exchange_weak(
                refs,
                refs + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => refs = now,
            }
        }
        false
    }

    /// Drops a reference; true if it was the last one and the frame must return to the pool. Linux:
    /// `folio_put`.
    pub(super) fn put(&self) -> bool {
        let before = self.refs.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "the frame has no reference");
        before == 1
    }
}
