//! The pool of frames: one reserved range of addresses. Frames are allocated from its start and
//! recycled last-in first-out. Linux: mm/page_alloc.c.
//!
//! ```text
//!   frame    4 KiB, one page of some file             0 1 2 ... 15 | 16 17 ... 31 | ...
//!   group    16 frames, aligned: the memory of        group 0        group 1
//!            a large folio, 64 KiB in one run
//! ```
//!
//! A released frame may still have readers, which have a pin and no reference. It waits in limbo
//! for the end of a grace period. Frames above the budget exist only while a caller must not wait
//! for memory; they are the price of never deadlocking in writeback.

use super::copy;
use super::folio::{FRAMES_MAX, Folio, Frame, GROUP};
use super::huge_pages::HugePages;
use super::object_memory::ObjectMemory;
use crate::base::rcu::{self, Grace, Pin};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{IS_MODEL_CHECKED, Mutex, spin_loop, thread};
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Frames whose [`Folio`]s are allocated together: those of a huge page.
const ARENA: u32 = if IS_MODEL_CHECKED { 32 } else { 512 };
/// Bytes of a huge page.
const HUGE_BYTES: usize = ARENA as usize * PAGE_SIZE;
/// Frames reserved beyond the budget, at least.
const SPARE_MIN: u64 = 16 << 10;
/// Frames in limbo from which on a grace period is started for them.
const LIMBO_MAX: usize = 64;
/// Pauses between two checks for readers, and checks before the thread yields.
const SPINS: u32 = if IS_MODEL_CHECKED { 0 } else { 64 };
const PATIENCE: u32 = if IS_MODEL_CHECKED { 0 } else { 32 };

/// All frames of one cache.
pub(super) struct Pool {
    start: NonNull<u8>,
    mapped: MappedRange,
    huge_pages: HugePages,
    frame_count: u32,
    budget_frames: u64,
    /// Objects whose memory is part of the budget.
    objects: Arc<ObjectMemory>,
    in_use: AtomicU64,
    folios: Box<[OnceLock<Box<[Folio]>>]>,
    free: Mutex<FreeFrames>,
}

/// The range that the host mapped.
struct MappedRange {
    start: *mut u8,
    len: usize,
}

/// Unused frames.
#[derive(Default)]
struct FreeFrames {
    /// The free frames of each group that was ever used.
    masks: Vec<FrameGroup>,
    /// Groups with free frames. Some may have none: an allocation checks.
    some: Vec<u32>,
    /// Groups whose frames are all free. Some may not be: an allocation checks.
    whole: Vec<u32>,
    /// Groups whose memory the host has back.
    released: Vec<u32>,
    /// Released frames, perhaps still being read.
    limbo: Vec<Frame>,
    /// Frames that are recycled when the grace period is over.
    waiting: Option<(Grace, Vec<Frame>)>,
    /// Batches recycled so far.
    batches: u64,
}

#[derive(Clone, Copy, Default)]
struct FrameGroup {
    free: u16,
    is_in_some: bool,
    is_in_whole: bool,
}

// SAFETY: the pointers are to memory that the pool owns; nothing is tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Pool {}
// SAFETY: as above; shared state is behind locks or atomic.
#[allow(unsafe_code)]
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool of `budget_bytes`, of which `objects` may take a part. If the host refuses
    /// the range of addresses, the pool is empty and allocations fail with ENOMEM.
    pub(super) fn new(budget_bytes: u64, objects: Arc<ObjectMemory>) -> Arc<Self> {
        let budget_frames = (budget_bytes / PAGE_SIZE as u64).clamp(1, FRAMES_MAX / 2);
        let spare = (budget_frames / 2).max(SPARE_MIN);
        let wanted = (budget_frames + spare)
            .min(FRAMES_MAX)
            .next_multiple_of(ARENA.into());
        let huge_pages = HugePages::of_this_machine();
        let (start, mapped) = reserve(wanted as usize * PAGE_SIZE, huge_pages);
        let frame_count = if mapped.len == 0 { 0 } else { wanted as u32 };
        Arc::new(Self {
            start,
            mapped,
            huge_pages,
            frame_count,
            budget_frames,
            objects,
            in_use: AtomicU64::new(0),
            folios: (0..frame_count.div_ceil(ARENA))
                .map(|_| OnceLock::new())
                .collect(),
            free: Mutex::default(),
        })
    }

    /// Returns the number of frames in use, including those in limbo.
    pub(super) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Returns the budget, in frames.
    pub(super) fn budget(&self) -> u64 {
        self.budget_frames
    }

    /// Returns the part of the budget that objects leave to pages, in frames: a half at least.
    pub(super) fn page_budget(&self) -> u64 {
        let objects = self.objects.used_bytes().div_ceil(PAGE_SIZE as u64);
        let rest = self.budget_frames.saturating_sub(objects);
        rest.max(self.budget_frames.div_ceil(2))
    }

    /// Returns how many frames must be reclaimed to have `more` within `budget`. Frames in limbo
    /// count as free: they will be, and reclaiming more would not free them sooner.
    pub(super) fn excess(&self, more: u64, budget: u64) -> u64 {
        let excess = |limbo: u64| (self.in_use() + more).saturating_sub(budget + limbo);
        if excess(0) == 0 {
            return 0;
        }
        // Only now: within the budget, allocations do not contend for the free list.
        let mut free = self.free.lock();
        self.leave_limbo(&mut free);
        excess(free.in_limbo())
    }

    /// Waits for readers that keep frames in limbo, until `count` more frames are within `budget`.
    /// Does not wait if the caller itself is pinned. Returns whether there are as many. A
    /// pinned reader never waits for a caller of this function.
    pub(super) fn settle(&self, count: u64, budget: u64) -> bool {
        let is_room = || self.in_use() + count <= budget;
        let mut enough = None;
        let mut spent = 0;
        while !is_room() {
            let mut free = self.free.lock();
            self.leave_limbo(&mut free);
            // Frames that are in limbo now leave it within two batches. Frames released later are
            // not waited for.
            let enough = *enough.get_or_insert(free.batches + 2);
            if free.in_limbo() == 0 || free.batches >= enough || rcu::is_pinned() {
                return is_room();
            }
            drop(free);
            // A running reader ends its pin in less time than a switch of threads takes.
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

    /// Returns the address of a frame, valid as long as the pool.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn address(&self, frame: Frame) -> *mut u8 {
        debug_assert!(frame < self.frame_count);
        // SAFETY: frame numbers come from this pool and are within the reserved range.
        unsafe { self.start.as_ptr().add(frame as usize * PAGE_SIZE) }
    }

    /// Copies bytes to `to`, from byte `start` of `frame` and the frames after it. Other threads
    /// may write them meanwhile.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn copy_out(&self, frame: Frame, start: usize, to: &mut [u8], _pin: &Pin) {
        let end = frame as usize * PAGE_SIZE + start + to.len();
        assert!(
            end <= self.frame_count as usize * PAGE_SIZE,
            "within the pool"
        );
        // SAFETY: the bytes are within the pool, as just checked, and mapped as long as it exists.
        let from = unsafe { self.address(frame).add(start) };
        // SAFETY: as above.
        unsafe { copy::from_page(from, to) }
    }

    /// Starts to load `len` bytes into the processor's caches, from byte `start` of `frame` on.
    #[inline]
    pub(super) fn prefetch(&self, frame: Frame, start: usize, len: usize) {
        copy::prefetch(self.address(frame).wrapping_add(start), len);
    }

    /// Returns the folio of an allocated frame.
    #[inline]
    pub(super) fn folio(&self, frame: Frame) -> &Folio {
        let arena = self.folios[(frame / ARENA) as usize]
            .get_or_init(|| (0..ARENA).map(|_| Folio::new()).collect());
        &arena[(frame % ARENA) as usize]
    }

    /// Allocates a frame with arbitrary contents, even beyond the budget.
    ///
    /// # Errors
    /// ENOMEM if the reserved range is exhausted.
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

    /// Allocates a whole group, and returns its first frame; `None` if that would exceed the
    /// budget.
    pub(super) fn take_group(&self) -> Option<Frame> {
        let mut free = self.free.lock();
        let group = free.take_whole().or_else(|| {
            if free.resident() + u64::from(GROUP) > self.page_budget() {
                return None;
            }
            self.open_group(&mut free).ok()?;
            free.take_whole()
        })?;
        self.in_use.fetch_add(GROUP.into(), Ordering::Relaxed);
        Some(group * GROUP)
    }

    /// Releases frames without references; pinned readers may still read them.
    pub(super) fn put(&self, frames: impl IntoIterator<Item = Frame>) {
        let mut free = self.free.lock();
        free.limbo.extend(frames);
        if free.limbo.len() >= LIMBO_MAX {
            self.leave_limbo(&mut free);
        }
    }

    /// Recycles the frames that no reader can read any more. Never waits.
    fn leave_limbo(&self, free: &mut FreeFrames) -> Option<()> {
        let mut recycled = 0;
        // Twice: the second batch may have no reader to wait for.
        for _ in 0..2 {
            if let Some((_, frames)) = free.waiting.take_if(|(grace, _)| grace.is_over()) {
                recycled += frames.len();
                free.batches += 1;
                frames.into_iter().for_each(|frame| free.add(frame));
            }
            if free.waiting.is_none() && !free.limbo.is_empty() {
                let limbo = std::mem::take(&mut free.limbo);
                // No word names these frames any more, so only readers before this moment can use
                // them (C4).
                free.waiting = Some((Grace::start(), limbo));
            }
        }
        self.in_use.fetch_sub(recycled as u64, Ordering::Relaxed);
        (recycled > 0).then_some(())
    }

    /// Returns the memory of unused groups to the host while more frames have memory than `budget`.
    pub(super) fn release_unused(&self, budget: u64) {
        let mut free = self.free.lock();
        while free.resident() > budget
            && let Some(group) = free.take_whole()
        {
            self.release_group(group);
            free.released.push(group);
        }
    }

    /// Returns the memory of a group to the host; its frames read as zeros from now on.
    #[allow(unsafe_code)]
    fn release_group(&self, group: u32) {
        let start = self.address(group * GROUP).cast();
        let len = GROUP as usize * PAGE_SIZE;
        // After a failure the memory is still there, and used again.
        // SAFETY: the frames of the group are within the pool, and free: no reader and no handle
        // is left.
        let _ = unsafe { madvise(start, len, Advice::LinuxDontNeed) };
    }

    /// Adds a group whose frames have no memory yet.
    fn open_group(&self, free: &mut FreeFrames) -> Result<()> {
        if let Some(group) = free.released.pop() {
            (0..GROUP).for_each(|frame| free.add(group * GROUP + frame));
            return Ok(());
        }
        let group = free.masks.len() as u32;
        if (group + 1) * GROUP > self.frame_count {
            return Err(Error::new(
                Errno::NOMEM,
                "no memory left for the page cache",
            ));
        }
        let first = group * GROUP;
        if self.huge_pages == HugePages::Later && first.is_multiple_of(ARENA) && first >= ARENA {
            // The frames of the arena before were allocated, and most were touched.
            advise_huge(self.address(first - ARENA), HUGE_BYTES);
        }
        free.masks.push(FrameGroup {
            free: u16::MAX,
            is_in_some: true,
            is_in_whole: true,
        });
        free.some.push(group);
        free.whole.push(group);
        Ok(())
    }
}

impl FreeFrames {
    fn in_limbo(&self) -> u64 {
        (self.limbo.len() + self.waiting.as_ref().map_or(0, |(_, frames)| frames.len())) as u64
    }

    /// Returns the number of frames that may have memory of the host.
    fn resident(&self) -> u64 {
        (self.masks.len() - self.released.len()) as u64 * u64::from(GROUP)
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

/// Advises the kernel to use huge pages for a part of the pool. A host without them ignores it.
#[allow(unsafe_code)]
fn advise_huge(start: *mut u8, len: usize) {
    // SAFETY: the range is part of the pool's own mapping; the advice does not change its contents.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
}

/// Reserves addresses for `len` bytes, aligned for huge pages. The host allocates memory at the
/// first access of each page.
#[allow(unsafe_code)]
fn reserve(len: usize, huge_pages: HugePages) -> (NonNull<u8>, MappedRange) {
    let nothing = (
        NonNull::dangling(),
        MappedRange {
            start: std::ptr::null_mut(),
            len: 0,
        },
    );
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let mapped_len = len + HUGE_BYTES;
    // SAFETY: an anonymous mapping at an address of the host's choice overlaps no other memory.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_len, protection, flags) };
    let Ok(mapped) = mapped else { return nothing };
    let mapped = mapped.cast::<u8>();
    // SAFETY: less than a huge page further, the range has room for `len` bytes.
    let start = unsafe { mapped.add(mapped.align_offset(HUGE_BYTES)) };
    if huge_pages == HugePages::AtFirstTouch {
        advise_huge(start, len);
    }
    match NonNull::new(start) {
        Some(start) => (
            start,
            MappedRange {
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
            // SAFETY: every reader and every page handle holds the pool, so none is left.
            let _ = unsafe { munmap(self.mapped.start.cast(), self.mapped.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pool(budget_bytes: u64) -> Arc<Pool> {
        Pool::new(budget_bytes, ObjectMemory::new(budget_bytes))
    }

    #[test]
    fn objects_leave_less_memory_to_pages() {
        let pool = pool(16 << 20);
        let page_budget = pool.page_budget();
        assert_eq!(page_budget, 4096);
        let objects = pool.objects.charge(4 << 20);
        assert_eq!(pool.page_budget(), 3071);
        let more = pool.objects.charge(64 << 20);
        assert_eq!(pool.page_budget(), 2048, "at least a half");
        drop((objects, more));
        assert_eq!(pool.page_budget(), page_budget);
    }

    #[test]
    fn unused_groups_return_to_the_host() {
        let pool = pool(1 << 20);
        let frames: Vec<Frame> = (0..200).map(|_| pool.take().unwrap()).collect();
        let resident = || pool.free.lock().resident();
        assert_eq!(resident(), 208);
        pool.release_unused(0);
        assert_eq!(resident(), 208, "each group has a frame in use");
        pool.put(frames);
        while pool.in_use() > 0 {
            pool.excess(256, 256);
            std::thread::yield_now();
        }
        pool.release_unused(100);
        assert_eq!(resident(), 96);
        let again: BTreeSet<Frame> = (0..208).map(|_| pool.take().unwrap()).collect();
        assert_eq!((again.len(), resident()), (208, 208));
        assert!(again.iter().all(|frame| *frame < 208));
    }

    #[test]
    fn group_is_whole_again_once_all_frames_return() {
        let pool = pool(1 << 20);
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
            pool.excess(256, 256);
            std::thread::yield_now();
        }
        let again: BTreeSet<Frame> = (0..3).map(|_| pool.take_group().unwrap()).collect();
        assert!(
            again.iter().all(|first| *first < 48),
            "recycled rather than new: {again:?}"
        );
    }

    #[test]
    fn frame_is_not_recycled_under_a_reader() {
        let pool = pool(16 * PAGE_SIZE as u64);
        let frames: Vec<Frame> = (0..16).map(|_| pool.take().unwrap()).collect();
        let pin = rcu::pin();
        pool.put(frames);
        assert_eq!(pool.excess(1, 16), 0, "frames in limbo count as free");
        assert!(!pool.settle(1, 16), "they are not free under a pin");
        assert!(pool.take().unwrap() >= 16);
        drop(pin);
        assert!(pool.settle(1, 16));
        assert!(pool.take().unwrap() < 16);
    }
}
