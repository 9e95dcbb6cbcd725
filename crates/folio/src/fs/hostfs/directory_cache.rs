//! Cached directory descriptors: one per directory, bounded in number, evicted by second chance.

use crate::base::lock::Mutex;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bounds on how long a directory's position is valid, in nanoseconds.
const POSITION_TTL_MIN_NS: u64 = 1_000_000;
const POSITION_TTL_MAX_NS: u64 = 1_000_000_000;

/// A directory's descriptor, and how long its position below the root is valid.
#[derive(Default)]
pub(super) struct DirectorySlot {
    fd: Mutex<Option<Arc<OwnedFd>>>,
    is_used: AtomicBool,
    /// In nanoseconds of the monotonic clock.
    position_valid_until_ns: AtomicU64,
}

impl DirectorySlot {
    pub(super) fn fd(&self) -> Option<Arc<OwnedFd>> {
        let fd = self.fd.lock().clone();
        self.is_used.store(true, Ordering::Relaxed);
        fd
    }

    /// Stores a descriptor; returns whether there was none.
    pub(super) fn set_if_empty(&self, fd: &Arc<OwnedFd>) -> bool {
        let mut slot = self.fd.lock();
        let is_empty = slot.is_none();
        if is_empty {
            *slot = Some(fd.clone());
        }
        is_empty
    }

    pub(super) fn is_position_valid(&self, now_ns: u64) -> bool {
        now_ns < self.position_valid_until_ns.load(Ordering::Acquire)
    }

    /// Makes the position valid for `ttl_ns`, within bounds.
    pub(super) fn validate_position(&self, now_ns: u64, ttl_ns: u64) {
        let ttl_ns = ttl_ns.clamp(POSITION_TTL_MIN_NS, POSITION_TTL_MAX_NS);
        self.position_valid_until_ns
            .store(now_ns.saturating_add(ttl_ns), Ordering::Release);
    }

    /// Invalidates the position: it is checked before the next use.
    pub(super) fn invalidate_position(&self) {
        self.position_valid_until_ns.store(0, Ordering::Release);
    }
}

/// An inode with a directory slot.
pub(super) trait HasDirectorySlot {
    fn slot(&self) -> &DirectorySlot;
}

/// The directories with open descriptors.
pub(super) struct DirectoryRing<I> {
    max: usize,
    state: Mutex<RingState<I>>,
}

struct RingState<I> {
    slots: Vec<Weak<I>>,
    hand: usize,
}

impl<I: HasDirectorySlot> DirectoryRing<I> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            state: Mutex::new(RingState {
                slots: Vec::new(),
                hand: 0,
            }),
        }
    }

    /// Adds a directory with a new descriptor; may close the descriptor of another one.
    pub(super) fn add(&self, directory: Weak<I>) {
        let mut state = self.state.lock();
        if state.slots.len() < self.max {
            state.slots.push(directory);
            return;
        }
        // At most two rounds: in the first, every directory may have been used.
        for _ in 0..2 * self.max {
            let hand = state.hand;
            state.hand = (hand + 1) % self.max;
            let evicted = state.slots[hand].upgrade();
            let is_used = evicted
                .as_ref()
                .is_some_and(|evicted| evicted.slot().is_used.swap(false, Ordering::Relaxed));
            if !is_used {
                state.slots[hand] = directory;
                drop(state);
                // Both may be last references: they are dropped without a lock.
                let fd = evicted
                    .as_ref()
                    .and_then(|evicted| evicted.slot().fd.lock().take());
                drop((fd, evicted));
                return;
            }
        }
    }
}
