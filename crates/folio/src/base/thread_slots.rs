//! Memory of each thread's own that other threads read: a registry of slots.
//!
//! A slot is never freed. When its thread ends, another thread takes the slot over, with its
//! contents. A child of fork(2) has a registry of its own, in which it claims new slots.

use super::fork;
use super::per_process::PerProcess;
use super::sync::atomic::{AtomicBool, Ordering};
use super::sync::thread::LocalKey;
use super::sync::{Mutex, MutexGuard};
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic;

/// The slots of all threads of the process that ever claimed one.
pub(crate) struct ThreadSlots<T: Send + Sync + 'static> {
    slots: PerProcess<Mutex<Vec<&'static ThreadSlot<T>>>>,
    /// Runs in a child of fork(2): the calling thread has no slot.
    forget: extern "C" fn(),
    is_forgotten: atomic::AtomicBool,
}

/// One thread's slot. It has cache lines of its own, in pairs, which the processor fetches
/// together.
#[repr(align(128))]
pub(crate) struct ThreadSlot<T> {
    value: T,
    is_taken: AtomicBool,
}

/// The calling thread's slot. It has no destructor, which makes access cheap; [`SlotRelease`] has.
pub(crate) type CurrentSlot<T> = LocalKey<Cell<Option<&'static ThreadSlot<T>>>>;

impl<T: Send + Sync> ThreadSlots<T> {
    /// Creates an empty registry. `forget` sets the calling thread's [`CurrentSlot`] to none.
    pub(crate) const fn new(forget: extern "C" fn()) -> Self {
        Self {
            slots: PerProcess::new(|| Mutex::new(Vec::new())),
            forget,
            is_forgotten: atomic::AtomicBool::new(false),
        }
    }

    /// Locks the registry, to read all slots.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<&'static ThreadSlot<T>>> {
        self.slots.get().lock()
    }

    /// Locks the registry, to claim a slot.
    pub(crate) fn lock_to_claim(&self) -> MutexGuard<'_, Vec<&'static ThreadSlot<T>>> {
        // The handler first: a thread that finds it registered may fork.
        if !self.is_forgotten.load(Ordering::Acquire) {
            fork::run_in_children(self.forget);
            self.is_forgotten.store(true, Ordering::Release);
        }
        self.lock()
    }
}

impl<T> ThreadSlot<T> {
    /// Returns whether a thread owns the slot.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }
}

impl<T> Deref for ThreadSlot<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Claims a slot for the calling thread: a released one, or else a new one with a `new` value.
pub(crate) fn claim<T>(
    slots: &mut Vec<&'static ThreadSlot<T>>,
    current: &'static CurrentSlot<T>,
    new: impl FnOnce() -> T,
) -> &'static ThreadSlot<T> {
    let is_free = |slot: &&&'static ThreadSlot<T>| !slot.is_taken.load(Ordering::Acquire);
    let slot = slots.iter().find(is_free).copied().unwrap_or_else(|| {
        let slot: &'static ThreadSlot<T> = Box::leak(Box::new(ThreadSlot {
            value: new(),
            is_taken: AtomicBool::new(true),
        }));
        slots.push(slot);
        slot
    });
    slot.is_taken.store(true, Ordering::Relaxed);
    current.with(|own| own.set(Some(slot)));
    slot
}

/// A thread-local value that releases the thread's slot when the thread ends. A thread that claims
/// a slot while it ends keeps it forever: a few bytes, and no thread waits for it.
pub(crate) struct SlotRelease<T: 'static>(pub(crate) &'static CurrentSlot<T>);

impl<T> Drop for SlotRelease<T> {
    fn drop(&mut self) {
        if let Ok(Some(slot)) = self.0.try_with(Cell::take) {
            slot.is_taken.store(false, Ordering::Release);
        }
    }
}
