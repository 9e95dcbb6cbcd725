//! Memory for pages: frames carved from large arenas, recycled last-in first-out so that they stay warm.
//!
//! Arenas come from the host as they are needed and go back all at once, with the cache. Frames above the budget
//! exist only while somebody must not wait for memory; they are the price of never deadlocking in writeback.

use crate::base::PAGE_SIZE;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes taken from the host at once: one huge page.
const ARENA_BYTES: usize = 2 << 20;

type Bytes = [u8; PAGE_SIZE];

/// All frames of one cache.
pub(super) struct Pool {
    budget_frames: u64,
    in_use: AtomicU64,
    free: Mutex<Free>,
}

/// Frames nobody uses, and the arenas they lie in.
struct Free {
    frames: Vec<NonNull<Bytes>>,
    arenas: Vec<NonNull<u8>>,
}

// SAFETY: the pointers are owned by the pool and handed out one owner at a time; nothing is tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Free {}

impl Pool {
    pub(super) fn new(budget_bytes: u64) -> Arc<Self> {
        let free = Mutex::new(Free { frames: Vec::new(), arenas: Vec::new() });
        Arc::new(Self {
            budget_frames: (budget_bytes / PAGE_SIZE as u64).max(1),
            in_use: AtomicU64::new(0),
            free,
        })
    }

    /// Frames in use.
    pub(super) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Frames in use beyond what leaves room for `more` within the budget.
    pub(super) fn excess(&self, more: u64) -> u64 {
        (self.in_use() + more).saturating_sub(self.budget_frames)
    }

    /// A frame with arbitrary old contents, whatever the budget says.
    pub(super) fn take(self: &Arc<Self>) -> Frame {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        let mut free = self.free.lock();
        if free.frames.is_empty() {
            free.grow();
        }
        match free.frames.pop() {
            Some(bytes) => Frame { bytes, pool: self.clone() },
            // `grow` added frames or the process is out of memory, which Rust treats as fatal everywhere.
            None => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Bytes>()),
        }
    }
}

impl Free {
    #[allow(unsafe_code)]
    fn grow(&mut self) {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Twice the size, so that an aligned arena lies inside wherever the mapping falls.
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                2 * ARENA_BYTES,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let Ok(mapped) = mapped else { return };
        let start = mapped.cast::<u8>();
        let skip = start.align_offset(ARENA_BYTES);
        // SAFETY: `skip` is below ARENA_BYTES, so the aligned arena lies within the mapping.
        let arena = unsafe { start.add(skip) };
        if skip > 0 {
            // SAFETY: the part of the fresh mapping before the arena, which nobody uses.
            let _ = unsafe { munmap(start.cast(), skip) };
        }
        if skip < ARENA_BYTES {
            let behind = arena.wrapping_add(ARENA_BYTES);
            // SAFETY: the part of the fresh mapping behind the arena, which nobody uses.
            let _ = unsafe { munmap(behind.cast(), ARENA_BYTES - skip) };
        }
        // Huge pages are a wish: a host without them serves small ones.
        // SAFETY: the range is our own fresh mapping; the advice does not change its contents.
        let _ = unsafe { madvise(arena.cast(), ARENA_BYTES, Advice::LinuxHugepage) };
        let Some(arena) = NonNull::new(arena) else { return };
        self.arenas.push(arena);
        // Pushed from the back, so that frames are handed out from the front.
        for index in (0..ARENA_BYTES / PAGE_SIZE).rev() {
            // SAFETY: the frame lies within the arena.
            let frame = unsafe { arena.add(index * PAGE_SIZE) };
            self.frames.push(frame.cast());
        }
    }
}

impl Drop for Free {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for arena in &self.arenas {
            // SAFETY: every frame holds the pool alive, so none is left that points into the arena.
            let _ = unsafe { munmap(arena.as_ptr().cast(), ARENA_BYTES) };
        }
    }
}

/// One page of memory, exclusively owned; goes back to its pool when dropped.
pub(super) struct Frame {
    bytes: NonNull<Bytes>,
    pool: Arc<Pool>,
}

// SAFETY: a frame is plain bytes with one owner; the pool behind it is shared safely.
#[allow(unsafe_code)]
unsafe impl Send for Frame {}
// SAFETY: shared access to a frame only reads its bytes.
#[allow(unsafe_code)]
unsafe impl Sync for Frame {}

impl Deref for Frame {
    type Target = Bytes;

    #[allow(unsafe_code)]
    fn deref(&self) -> &Bytes {
        // SAFETY: the frame lies in a live arena, is initialised (anonymous memory is zeros at first) and is ours.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for Frame {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut Bytes {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.pool.free.lock().frames.push(self.bytes);
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}
