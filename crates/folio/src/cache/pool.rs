//! Memory for pages: one reserved range of addresses, frames handed out from its start, recycled
//! last-in first-out.
//!
//! ```text
//!   frame    4 KiB, one page of some file             0 1 2 ... 15 | 16 17 ... 31 | ...
//!   group    16 frames, aligned: what a block of      group 0        group 1
//!            a large file gets, so that 64 KiB are one run of memory
//! ```
//!
//! A frame that is let go of may still have readers, who hold a pin and no count. It waits in limbo
//! for the end of a grace period. Frames above the budget exist only while somebody must not wait
//! for memory; they are the price of never deadlocking in writeback.

use super::copy;
use super::folio::Folio;
use crate::base::rcu::{self, Grace, Pin};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{IS_MODEL_CHECKED, Mutex, spin_loop, thread};
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Frames of one group, and pages of one block of a file.
pub(super) const GROUP: u32 = 16;
/// Frames whose [`Folio`]s are made together: those of a huge page.
const ARENA: u32 = if IS_MODEL_CHECKED { 32 } else { 512 };
/// Bytes of a huge page.
const HUGE_BYTES: usize = ARENA as usize * PAGE_SIZE;
/// Frames reserved beyond the budget, at least.
const SPARE_MIN: u64 = 16 << 10;
/// Frames in limbo from which on a grace period is started for them.
const LIMBO_MAX: usize = 64;
/// Pauses between two looks whether readers have gone, and looks before the processor is given
/// away.
const SPINS: u32 = if IS_MODEL_CHECKED { 0 } else { 64 };
const PATIENCE: u32 = if IS_MODEL_CHECKED { 0 } else { 32 };
/// What a frame number has room for (index.rs).
pub(super) const FRAMES_MAX: u64 = (1 << 28) - 2;

/// The number of a frame in its pool.
pub(super) type Frame = u32;

/// All frames of one cache.
pub(super) struct Pool {
    start: NonNull<u8>,
    mapped: Mapped,
    frame_count: u32,
    budget_frames: u64,
    in_use: AtomicU64,
    folios: Box<[OnceLock<Box<[Folio]>>]>,
    free: Mutex<Free>,
}

/// The range as the host gave it.
struct Mapped {
    start: *mut u8,
    len: usize,
}

/// Frames nobody uses.
#[derive(Default)]
struct Free {
    /// One bit per frame of each group that was ever used.
    masks: Vec<Group>,
    /// Groups with free frames, and such without: whoever takes one looks.
    some: Vec<u32>,
    /// Groups all of whose frames are free, or were.
    whole: Vec<u32>,
    /// Let go of, and perhaps still being read.
    limbo: Vec<Frame>,
    /// Recycled when the grace period is over.
    waiting: Option<(Grace, Vec<Frame>)>,
    /// Batches recycled so far.
    batches: u64,
}

#[derive(Clone, Copy, Default)]
struct Group {
    free: u16,
    is_in_some: bool,
    is_in_whole: bool,
}

// SAFETY: the pointers are to memory that the pool owns and hands out; nothing is tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Pool {}
// SAFETY: as above; what is shared is behind locks or atomic.
#[allow(unsafe_code)]
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of `budget_bytes`, of which none is used yet. If the host refuses even the addresses,
    /// the pool is empty and whoever asks it for a frame is told ENOMEM.
    pub(super) fn new(budget_bytes: u64) -> Arc<Self> {
        let budget_frames = (budget_bytes / PAGE_SIZE as u64).clamp(1, FRAMES_MAX / 2);
        let spare = (budget_frames / 2).max(SPARE_MIN);
        let wanted = (budget_frames + spare)
            .min(FRAMES_MAX)
            .next_multiple_of(ARENA.into());
        let (start, mapped) = reserve(wanted as usize * PAGE_SIZE);
        let frame_count = if mapped.len == 0 { 0 } else { wanted as u32 };
        Arc::new(Self {
            start,
            mapped,
            frame_count,
            budget_frames,
            in_use: AtomicU64::new(0),
            folios: (0..frame_count.div_ceil(ARENA))
                .map(|_| OnceLock::new())
                .collect(),
            free: Mutex::default(),
        })
    }

    /// Frames in use, those in limbo included.
    pub(super) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Frames that may be in use.
    pub(super) fn budget(&self) -> u64 {
        self.budget_frames
    }

    /// Frames in use beyond what leaves room for `more` within the budget. What is in limbo counts
    /// as free: it will be, and more would not come of asking for more.
    pub(super) fn excess(&self, more: u64) -> u64 {
        let excess = |limbo: u64| (self.in_use() + more).saturating_sub(self.budget_frames + limbo);
        if excess(0) == 0 {
            return 0;
        }
        let mut free = self.free.lock();
        self.leave_limbo(&mut free);
        excess(free.in_limbo())
    }

    /// Waits for readers who keep frames in limbo, as far as that is needed to have `count` more
    /// within the budget, and unless the caller is such a reader. Returns whether there are so
    /// many. Readers with a pin wait for nobody who calls this.
    pub(super) fn settle(&self, count: u64) -> bool {
        let is_room = || self.in_use() + count <= self.budget_frames;
        let mut enough = None;
        let mut spent = 0;
        while !is_room() {
            let mut free = self.free.lock();
            self.leave_limbo(&mut free);
            // What is in limbo now has left it after two batches; what others let go of later is
            // not waited for.
            let enough = *enough.get_or_insert(free.batches + 2);
            if free.in_limbo() == 0 || free.batches >= enough || rcu::is_pinned() {
                return is_room();
            }
            drop(free);
            // A reader is gone in less time than it takes to give the processor away, if it is
            // running at all.
            for _ in 0..SPINS {
                spin_loop();
            }
            spent += 1;
            if spent > PATIENCE {
                thread::yield_now();
            }
        }
        true
    }

    /// The bytes of a frame. Valid as long as the pool.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn address(&self, frame: Frame) -> *mut u8 {
        debug_assert!(frame < self.frame_count);
        // SAFETY: frame numbers come from this pool alone and lie within the reserved range.
        unsafe { self.start.as_ptr().add(frame as usize * PAGE_SIZE) }
    }

    /// Copies what lies in frames from `frame` on, `start` bytes further, to `to`. Others may be
    /// changing it.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn copy_out(&self, frame: Frame, start: usize, to: &mut [u8], _pin: &Pin) {
        let end = frame as usize * PAGE_SIZE + start + to.len();
        assert!(
            end <= self.frame_count as usize * PAGE_SIZE,
            "within the pool"
        );
        // SAFETY: the bytes lie within the pool, as just checked, and are mapped as long as it
        // lives.
        let from = unsafe { self.address(frame).add(start) };
        // SAFETY: as above.
        unsafe { copy::from_page(from, to) }
    }

    /// What is known of a frame that was handed out.
    #[inline]
    pub(super) fn folio(&self, frame: Frame) -> &Folio {
        let arena = self.folios[(frame / ARENA) as usize]
            .get_or_init(|| (0..ARENA).map(|_| Folio::new()).collect());
        &arena[(frame % ARENA) as usize]
    }

    /// A frame with arbitrary old contents, whatever the budget says; ENOMEM if there is no more
    /// memory at all.
    pub(super) fn take(&self) -> Result<Frame> {
        let mut free = self.free.lock();
        if let Some(frame) = free
            .take_one()
            .or_else(|| self.leave_limbo(&mut free).and_then(|()| free.take_one()))
        {
            self.in_use.fetch_add(1, Ordering::Relaxed);
            return Ok(frame);
        }
        self.open_group(&mut free)?;
        let frame = free.take_one().ok_or(Errno::NOMEM)?;
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(frame)
    }

    /// The first of sixteen frames of one group; none if that would take memory beyond the budget.
    pub(super) fn take_group(&self) -> Option<Frame> {
        let mut free = self.free.lock();
        let group = free.take_whole().or_else(|| {
            let touched = free.masks.len() as u64 * u64::from(GROUP);
            if touched + u64::from(GROUP) > self.budget_frames {
                return None;
            }
            self.open_group(&mut free).ok()?;
            free.take_whole()
        })?;
        self.in_use.fetch_add(GROUP.into(), Ordering::Relaxed);
        Some(group * GROUP)
    }

    /// Takes frames back that nobody counts any more; readers with a pin may still be there.
    pub(super) fn put(&self, frames: impl IntoIterator<Item = Frame>) {
        let mut free = self.free.lock();
        free.limbo.extend(frames);
        if free.limbo.len() >= LIMBO_MAX {
            self.leave_limbo(&mut free);
        }
    }

    /// Recycles what no reader can see any more. Never waits.
    fn leave_limbo(&self, free: &mut Free) -> Option<()> {
        let mut recycled = 0;
        // Twice, for what has just begun to wait may have no reader to wait for.
        for _ in 0..2 {
            if let Some((_, frames)) = free.waiting.take_if(|(grace, _)| grace.is_over()) {
                recycled += frames.len();
                free.batches += 1;
                frames.into_iter().for_each(|frame| free.add(frame));
            }
            if free.waiting.is_none() && !free.limbo.is_empty() {
                let limbo = std::mem::take(&mut free.limbo);
                free.waiting = Some((Grace::start(), limbo));
            }
        }
        self.in_use.fetch_sub(recycled as u64, Ordering::Relaxed);
        (recycled > 0).then_some(())
    }

    /// Adds a group that was never used.
    fn open_group(&self, free: &mut Free) -> Result<()> {
        let group = free.masks.len() as u32;
        if (group + 1) * GROUP > self.frame_count {
            return Err(Error::new(
                Errno::NOMEM,
                "no memory left for the page cache",
            ));
        }
        free.masks.push(Group {
            free: u16::MAX,
            is_in_some: true,
            is_in_whole: true,
        });
        free.some.push(group);
        free.whole.push(group);
        Ok(())
    }
}

impl Free {
    fn in_limbo(&self) -> u64 {
        (self.limbo.len() + self.waiting.as_ref().map_or(0, |(_, frames)| frames.len())) as u64
    }

    fn take_one(&mut self) -> Option<Frame> {
        while let Some(group) = self.some.last().copied() {
            let state = &mut self.masks[group as usize];
            if state.free == 0 {
                state.is_in_some = false;
                self.some.pop();
                continue;
            }
            let bit = state.free.trailing_zeros();
            state.free &= state.free - 1;
            return Some(group * GROUP + bit);
        }
        None
    }

    fn take_whole(&mut self) -> Option<u32> {
        while let Some(group) = self.whole.pop() {
            let state = &mut self.masks[group as usize];
            state.is_in_whole = false;
            if state.free == u16::MAX {
                state.free = 0;
                return Some(group);
            }
        }
        None
    }

    fn add(&mut self, frame: Frame) {
        let group = frame / GROUP;
        let state = &mut self.masks[group as usize];
        state.free |= 1 << (frame % GROUP);
        if !state.is_in_some {
            state.is_in_some = true;
            self.some.push(group);
        }
        if state.free == u16::MAX && !state.is_in_whole {
            state.is_in_whole = true;
            self.whole.push(group);
        }
    }
}

/// Addresses for `len` bytes, aligned for huge pages; memory comes when a page is first touched.
#[allow(unsafe_code)]
fn reserve(len: usize) -> (NonNull<u8>, Mapped) {
    let nothing = (
        NonNull::dangling(),
        Mapped {
            start: std::ptr::null_mut(),
            len: 0,
        },
    );
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let mapped_len = len + HUGE_BYTES;
    // SAFETY: an anonymous mapping at an address of the host's choice touches no memory of ours.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_len, protection, flags) };
    let Ok(mapped) = mapped else { return nothing };
    let mapped = mapped.cast::<u8>();
    // SAFETY: less than a huge page further, the range has room for `len` bytes.
    let start = unsafe { mapped.add(mapped.align_offset(HUGE_BYTES)) };
    // Huge pages are a wish: a host without them serves small ones.
    // SAFETY: the range is our own fresh mapping; the advice does not change its contents.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
    match NonNull::new(start) {
        Some(start) => (
            start,
            Mapped {
                start: mapped,
                len: mapped_len,
            },
        ),
        None => nothing,
    }
}

impl Drop for Pool {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.mapped.len > 0 {
            // SAFETY: whoever reads or holds a page holds the pool, so nobody is left.
            let _ = unsafe { munmap(self.mapped.start.cast(), self.mapped.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn groups_come_whole_again_once_all_their_frames_are_back() {
        let pool = Pool::new(1 << 20);
        let singles: Vec<Frame> = (0..20).map(|_| pool.take().unwrap()).collect();
        let group = pool.take_group().unwrap();
        assert_eq!(group % GROUP, 0);
        let all: BTreeSet<Frame> = singles
            .iter()
            .copied()
            .chain(group..group + GROUP)
            .collect();
        assert_eq!(all.len(), 36, "no frame twice");
        assert_eq!(pool.in_use(), 36);
        pool.put(all);
        // Threads of other tests may be pinned for a moment.
        while pool.in_use() > 0 {
            pool.excess(256);
            std::thread::yield_now();
        }
        let again: BTreeSet<Frame> = (0..3).map(|_| pool.take_group().unwrap()).collect();
        assert!(
            again.iter().all(|first| *first < 48),
            "recycled rather than new: {again:?}"
        );
    }

    #[test]
    fn a_frame_is_not_recycled_under_a_reader() {
        let pool = Pool::new(16 * PAGE_SIZE as u64);
        let frames: Vec<Frame> = (0..16).map(|_| pool.take().unwrap()).collect();
        let pin = rcu::pin();
        pool.put(frames);
        assert_eq!(pool.excess(1), 0, "what is in limbo will be free");
        assert!(!pool.settle(1), "but is not while a reader is there");
        assert!(pool.take().unwrap() >= 16);
        drop(pin);
        assert!(pool.settle(1));
        assert!(pool.take().unwrap() < 16);
    }
}
