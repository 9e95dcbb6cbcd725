//! A folio: one page of a file in memory, what is known of it, and the handles that hold it. Linux:
//! `struct folio`.

use super::locked::{PageReadGuard, PageWriteGuard};
use super::mapping::Inner;
use super::pool::{Frame, Pool};
use crate::base::sync::RwLock;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// What is known of one frame of the pool, and with that of the page that lies in it.
pub(super) struct Folio {
    /// The bytes: shared by writeback and borrowers, exclusive to whoever fills or changes them.
    /// Readers that copy take no lock.
    pub(super) lock: RwLock<()>,
    /// The index's count and one for each handle; at 0 the frame goes back to the pool.
    refs: AtomicU32,
    /// Counts the pages that have lain in this frame, so that an old note of one is known as such.
    generation: AtomicU32,
    /// The mapping (its number in the cache) and the page index that the frame was last put in for.
    owner: AtomicU64,
    index: AtomicU64,
    /// Brought in ahead of a reader who has not come yet.
    pub(super) is_ahead: AtomicBool,
    /// Nobody has used it yet but whoever it was brought in for, once.
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

    /// Starts a new life as page `index` of a mapping, with one count, which is the caller's.
    pub(super) fn begin(&self, owner: u64, index: u64) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.owner.store(owner, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.is_ahead.store(false, Ordering::Relaxed);
        self.is_new.store(true, Ordering::Relaxed);
        debug_assert_eq!(
            self.refs.load(Ordering::Relaxed),
            0,
            "still counted by somebody"
        );
        self.refs.store(1, Ordering::Release);
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether the page of that generation is still there: not in its frame's next life, nor
    /// waiting for that.
    pub(super) fn is_alive(&self, generation: u32) -> bool {
        self.generation() == generation && self.refs.load(Ordering::Relaxed) > 0
    }

    pub(super) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    pub(super) fn index(&self) -> u64 {
        self.index.load(Ordering::Relaxed)
    }

    /// Whether only the index counts it, at this instant.
    pub(super) fn is_idle(&self) -> bool {
        self.refs.load(Ordering::Relaxed) == 1
    }

    /// Takes all counts away if there are `expected`, the index's and the caller's, so that nobody
    /// can hold the page any more: a look at the count alone would leave room for somebody who
    /// found the page in the index. Linux: `folio_ref_freeze`.
    pub(super) fn try_freeze(&self, expected: u32) -> bool {
        self.refs
            .compare_exchange(expected, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// One more count, unless there is none any more. Under a pin, the frame is not recycled
    /// meanwhile; whether it still is the page it was found as, the caller must look.
    fn try_hold(&self) -> bool {
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

    /// One count less; true if it was the last and the frame must be put back.
    fn let_go(&self) -> bool {
        let before = self.refs.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a count that nobody had");
        before == 1
    }
}

/// A count of a folio: the frame stays what it is while this lives.
pub(super) struct Hold<'a> {
    pool: &'a Pool,
    frame: Frame,
}

impl<'a> Hold<'a> {
    /// Takes over a count that is there already.
    pub(super) fn adopt(pool: &'a Pool, frame: Frame) -> Self {
        Self { pool, frame }
    }

    /// Adds a count, unless the folio is about to go. Needs a pin or the lock of the table where it
    /// was found.
    pub(super) fn try_new(pool: &'a Pool, frame: Frame) -> Option<Self> {
        // Made only if there is a count: dropping it gives one back.
        pool.folio(frame).try_hold().then(|| Self { pool, frame })
    }

    pub(super) fn frame(&self) -> Frame {
        self.frame
    }

    pub(super) fn folio(&self) -> &'a Folio {
        self.pool.folio(self.frame)
    }

    /// Keeps the count for somebody else to adopt.
    pub(super) fn keep(self) -> Frame {
        std::mem::ManuallyDrop::new(self).frame
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.folio().let_go() {
            self.pool.put([self.frame]);
        }
    }
}

/// A pinned page: stays in memory while this handle lives.
pub struct Page {
    owner: Arc<Inner>,
    index: u64,
    frame: Frame,
}

impl Page {
    pub(super) fn new(owner: &Arc<Inner>, index: u64, hold: Hold<'_>) -> Self {
        Self {
            owner: owner.clone(),
            index,
            frame: hold.keep(),
        }
    }

    /// The bytes, shared with other readers; writers wait.
    pub fn read(&self) -> PageReadGuard<'_> {
        PageReadGuard::lock(self.owner.pool(), self.frame)
    }

    /// The bytes, exclusively; the page is dirty from now on. Waits while the page is being written
    /// to its store.
    pub fn write(&self) -> PageWriteGuard<'_> {
        let guard = PageWriteGuard::lock(self.owner.pool(), self.frame);
        self.owner.mark_dirty(self.index, self.frame);
        guard
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        // The count of `self` keeps it above zero.
        self.owner
            .pool()
            .folio(self.frame)
            .refs
            .fetch_add(1, Ordering::Relaxed);
        Self {
            owner: self.owner.clone(),
            index: self.index,
            frame: self.frame,
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(Hold::adopt(self.owner.pool(), self.frame));
    }
}
