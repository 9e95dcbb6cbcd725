//! Read-copy-update (RCU): readers take no lock and write to no shared memory. Linux: kernel/rcu.
//!
//! ```text
//!   reader   pin ......... load a pointer, use what it points to ......... unpin
//!   writer        replace the pointer -> Grace::start ..... is_over -> only the writer has the old value
//! ```
//!
//! A pin is two plain stores to memory of the reader's own thread: at its start and at its end. The
//! writer orders them by a barrier in all threads at once (membarrier(2)). On hosts without it,
//! each pin has a fence.
//!
//! Invariants:
//! - R1: a pointer loaded under a pin stays valid until that pin ends.
//! - R2: a grace period is over when every pin that began before it started has ended.
//! - R3: no thread waits for a grace period while pinned.
//! - R4: a value dropped by [`defer`] is plain memory: its drop takes no lock and does no I/O.

use super::per_process::PerProcess;
use super::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};
use super::sync::{self, Mutex, process_wide, thread_local};
use super::thread_slots::{self, SlotRelease, ThreadSlot, ThreadSlots};
use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Deferred values from which on a grace period is started for them.
const DEFERRED_MAX: usize = 64;

process_wide! {
    /// The number of grace periods started, plus one: never 0, which means "not pinned".
    static EPOCH: AtomicU64 = AtomicU64::new(1);
    /// Whether writers use membarrier(2); set before the first pin and constant from then on.
    static IS_ASYMMETRIC: AtomicBool = AtomicBool::new(false);
    /// The pins of all threads.
    static SLOTS: ThreadSlots<PinState> = ThreadSlots::new(forget_slot);
    static DEFERRED: PerProcess<Mutex<Deferred>> = PerProcess::new(Mutex::default);
}

/// One thread's pins.
struct PinState {
    /// The epoch in which the first pin began; 0 while not pinned.
    epoch: AtomicU64,
    /// The number of pins besides one; only the owner reads it.
    more: AtomicU32,
}

thread_local! {
    static SLOT: Cell<Option<&'static ThreadSlot<PinState>>> = const { Cell::new(None) };
    static RELEASE: SlotRelease<PinState> = const { SlotRelease(&SLOT) };
}

extern "C" fn forget_slot() {
    let _ = SLOT.try_with(Cell::take);
}

#[cold]
fn register() -> &'static ThreadSlot<PinState> {
    let mut slots = SLOTS.lock_to_claim();
    if slots.is_empty() {
        let is_there = !sync::IS_MODEL_CHECKED
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        IS_ASYMMETRIC.store(is_there, Ordering::Relaxed);
    }
    let slot = thread_slots::claim(&mut slots, &SLOT, || PinState {
        epoch: AtomicU64::new(0),
        more: AtomicU32::new(0),
    });
    let _ = RELEASE.try_with(|_| ());
    slot
}

/// A pin: pointers loaded under it stay valid while it exists. Pins nest, and never leave their
/// thread.
pub(crate) struct Pin {
    slot: &'static ThreadSlot<PinState>,
    not_send: PhantomData<*const ()>,
}

/// Starts a read-side critical section. Linux: `rcu_read_lock`.
#[inline]
pub(crate) fn pin() -> Pin {
    let slot = SLOT.with(Cell::get).unwrap_or_else(register);
    if slot.epoch.load(Ordering::Relaxed) != 0 {
        let more = slot.more.load(Ordering::Relaxed);
        slot.more.store(more + 1, Ordering::Relaxed);
    } else {
        // Acquire: protected pointers are loaded after the epoch. Release: a thread that sees this
        // store also sees the last unpin.
        slot.epoch
            .store(EPOCH.load(Ordering::Acquire), Ordering::Release);
        if IS_ASYMMETRIC.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
    Pin {
        slot,
        not_send: PhantomData,
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        let more = self.slot.more.load(Ordering::Relaxed);
        if more > 0 {
            self.slot.more.store(more - 1, Ordering::Relaxed);
        } else {
            self.slot.epoch.store(0, Ordering::Release);
        }
    }
}

/// A grace period: over when no reader is left that may have loaded a pointer that was replaced
/// before its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grace {
    target: u64,
}

impl Grace {
    /// Starts a grace period for all pointers replaced so far. Linux: `start_poll_synchronize_rcu`.
    pub(crate) fn start() -> Self {
        let slots = SLOTS.lock();
        fence(Ordering::SeqCst);
        let target = EPOCH.fetch_add(1, Ordering::SeqCst) + 1;
        let own = SLOT.with(Cell::get).map(std::ptr::from_ref);
        let is_other = |slot: &&'static ThreadSlot<PinState>| {
            slot.is_taken() && own != Some(std::ptr::from_ref(*slot))
        };
        // A thread that registers later takes the lock after this one, so it sees the new pointers.
        if slots.iter().any(is_other) && IS_ASYMMETRIC.load(Ordering::Relaxed) {
            // Cannot fail once registered; a failure would leave the readers unordered.
            assert!(
                membarrier(MembarrierCommand::PrivateExpedited).is_ok(),
                "membarrier works once registered"
            );
        }
        Self { target }
    }

    /// Returns whether the grace period is over; never waits. It is not over while an earlier pin
    /// of the caller exists. Linux: `poll_state_synchronize_rcu`.
    pub(crate) fn is_over(self) -> bool {
        let is_past = |slot: &&'static ThreadSlot<PinState>| {
            let epoch = slot.epoch.load(Ordering::Acquire);
            epoch == 0 || epoch >= self.target
        };
        SLOTS.lock().iter().all(is_past)
    }

    /// Like [`Grace::is_over`], with a proof.
    pub(crate) fn over(self) -> Option<Over> {
        self.is_over().then_some(Over(()))
    }

    /// Waits until the grace period is over (R3). Linux: `synchronize_rcu`.
    pub(crate) fn wait(self) -> Over {
        debug_assert!(!is_pinned(), "a thread would wait for its own pin");
        while !self.is_over() {
            sync::thread::yield_now();
        }
        Over(())
    }
}

/// A proof that a grace period is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Over(());

/// Returns whether the calling thread is pinned.
pub(crate) fn is_pinned() -> bool {
    SLOT.with(Cell::get)
        .is_some_and(|slot| slot.epoch.load(Ordering::Relaxed) != 0)
}

/// A replaced value, plain memory that may have readers.
type Garbage = Arc<dyn Send + Sync>;

#[derive(Default)]
struct Deferred {
    fresh: Vec<Garbage>,
    /// Dropped when `grace` is over.
    waiting: Vec<Garbage>,
    grace: Option<Grace>,
}

/// Drops plain memory (R4) after every current reader has ended. Linux: `kfree_rcu`.
pub(crate) fn defer(garbage: Garbage) {
    let mut deferred = DEFERRED.get().lock();
    deferred.fresh.push(garbage);
    if deferred.fresh.len() < DEFERRED_MAX || deferred.grace.is_some_and(|grace| !grace.is_over()) {
        return;
    }
    let fresh = std::mem::take(&mut deferred.fresh);
    let unread = std::mem::replace(&mut deferred.waiting, fresh);
    deferred.grace = Some(Grace::start());
    drop(deferred);
    drop(unread);
}

/// Waits until all values deferred so far are dropped (R3). Linux: `rcu_barrier`.
pub(crate) fn barrier() {
    let unread = {
        let mut deferred = DEFERRED.get().lock();
        let mut unread = std::mem::take(&mut deferred.waiting);
        unread.append(&mut deferred.fresh);
        deferred.grace = None;
        unread
    };
    Grace::start().wait();
    drop(unread);
}

/// A shared pointer that readers follow without a lock. Linux: `rcu_dereference`,
/// `rcu_assign_pointer`.
///
/// Writers exclude one another by a lock of their own.
pub(crate) struct RcuCell<T> {
    /// From `Arc::into_raw`, or null.
    pointer: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// Creates an empty cell.
    pub(crate) fn empty() -> Self {
        Self {
            pointer: AtomicPtr::new(std::ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// Creates a cell with `value`.
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self {
            pointer: AtomicPtr::new(Arc::into_raw(value).cast_mut()),
            owns: PhantomData,
        }
    }

    /// Returns whether the cell is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pointer.load(Ordering::Acquire).is_null()
    }

    /// Returns the current value, valid as long as the pin.
    #[inline]
    pub(crate) fn load<'p>(&self, pin: &'p Pin) -> Option<&'p T> {
        self.borrow(pin).map(Ref::value)
    }

    /// Like [`RcuCell::load`], for a caller that may need a counted reference later.
    #[inline]
    pub(crate) fn borrow<'p>(&self, _pin: &'p Pin) -> Option<Ref<'p, T>> {
        // From `Arc::into_raw`. A writer that replaces it keeps that reference until every pin that
        // may have loaded it has ended (`Replaced`, R1).
        let pointer = NonNull::new(self.pointer.load(Ordering::Acquire))?;
        Some(Ref {
            pointer,
            borrows: PhantomData,
        })
    }

    /// Returns a counted reference to the current value.
    pub(crate) fn get(&self, pin: &Pin) -> Option<Arc<T>> {
        Some(self.borrow(pin)?.to_arc())
    }

    /// Publishes `value` and returns the old value.
    #[allow(unsafe_code)]
    pub(crate) fn replace(&self, value: Option<Arc<T>>) -> Option<Replaced<T>> {
        let new = value.map_or(std::ptr::null_mut(), |value| {
            Arc::into_raw(value).cast_mut()
        });
        // No exchange: there is one writer at a time.
        let old = self.pointer.load(Ordering::Relaxed);
        self.pointer.store(new, Ordering::Release);
        (!old.is_null()).then(|| {
            // SAFETY: the reference that the cell held is the caller's now.
            let value = unsafe { Arc::from_raw(old) };
            Replaced { value: Some(value) }
        })
    }
}

/// A value with a reference count, borrowed without touching the count.
pub(crate) struct Ref<'p, T> {
    /// From `Arc::into_raw` or `Arc::as_ptr`; that reference exists for `'p` at least.
    pointer: NonNull<T>,
    borrows: PhantomData<&'p T>,
}

impl<T> Clone for Ref<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ref<'_, T> {}

impl<'p, T> Ref<'p, T> {
    /// Borrows the value of `arc`.
    #[inline]
    pub(crate) fn new(arc: &'p Arc<T>) -> Self {
        let pointer = Arc::as_ptr(arc).cast_mut();
        Self {
            pointer: NonNull::new(pointer).unwrap_or_else(|| unreachable!("points to a value")),
            borrows: PhantomData,
        }
    }

    /// Returns the value.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn value(self) -> &'p T {
        // SAFETY: it points to the value of an `Arc` that lives for `'p`.
        unsafe { self.pointer.as_ref() }
    }

    /// Returns the number of strong references.
    #[allow(unsafe_code)]
    pub(crate) fn strong_count(self) -> usize {
        // SAFETY: the pointer is that of an `Arc`, one reference of which is alive for `'p`; none
        // is given up here.
        let arc = ManuallyDrop::new(unsafe { Arc::from_raw(self.pointer.as_ptr().cast_const()) });
        Arc::strong_count(&arc)
    }

    /// Returns a counted reference.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn to_arc(self) -> Arc<T> {
        let pointer = self.pointer.as_ptr().cast_const();
        // SAFETY: the pointer is that of an `Arc`, one reference of which is alive for `'p`.
        unsafe { Arc::increment_strong_count(pointer) };
        // SAFETY: as above; the reference just counted is the new one's.
        unsafe { Arc::from_raw(pointer) }
    }
}

impl<T> Drop for RcuCell<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let pointer = self.pointer.load(Ordering::Relaxed);
        if !pointer.is_null() {
            // SAFETY: `&mut self` is the only access to the cell, whose reference is released here.
            drop(unsafe { Arc::from_raw(pointer) });
        }
    }
}

/// A value that an [`RcuCell`] no longer holds, but that may still have readers. Dropping it defers
/// the drop of the value, which must be plain memory then (R4).
pub(crate) struct Replaced<T: Send + Sync + 'static> {
    value: Option<Arc<T>>,
}

impl<T: Send + Sync + 'static> Replaced<T> {
    /// Returns the value.
    pub(crate) fn value(&self) -> &Arc<T> {
        // Taken only by `after`, which consumes the handle, and by drop.
        self.value
            .as_ref()
            .unwrap_or_else(|| unreachable!("held until the end"))
    }

    /// Takes the value, after a grace period that started after the replacement.
    pub(crate) fn after(mut self, _over: Over) -> Arc<T> {
        // As in `value`.
        self.value
            .take()
            .unwrap_or_else(|| unreachable!("held until the end"))
    }
}

impl<T: Send + Sync + 'static> Drop for Replaced<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            defer(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn grace_period_waits_for_earlier_readers_only() {
        let (release, released) = channel::<()>();
        let (pinned, is_pinned) = channel();
        let reader = std::thread::spawn(move || {
            let pin = pin();
            pinned.send(()).unwrap();
            released.recv().unwrap();
            drop(pin);
        });
        is_pinned.recv().unwrap();
        let grace = Grace::start();
        assert!(!grace.is_over());
        let later = pin();
        release.send(()).unwrap();
        reader.join().unwrap();
        // Threads of other tests may be earlier readers; this one has a later pin only.
        while !grace.is_over() {
            std::thread::yield_now();
        }
        drop(later);
    }

    #[test]
    fn barrier_drops_deferred_values() {
        let value = Arc::new(Canary(AtomicU64::new(1)));
        let cell = RcuCell::new(value.clone());
        drop(cell.replace(None));
        // Another test's thread may have taken the value, and drops it soon.
        while Arc::strong_count(&value) > 1 {
            barrier();
            std::thread::yield_now();
        }
    }

    #[test]
    fn nested_pin_ends_with_the_outer_one() {
        let outer = pin();
        let inner = pin();
        let grace = Grace::start();
        drop(inner);
        assert!(!grace.is_over());
        drop(outer);
        // Threads of other tests may still be pinned.
        grace.wait();
    }

    /// A value that records its drop; readers must never see a dropped one.
    struct Canary(AtomicU64);

    impl Drop for Canary {
        fn drop(&mut self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }

    #[test]
    fn readers_never_see_a_dropped_value() {
        const ALIVE: u64 = 0x600d_600d;
        let canary = || Arc::new(Canary(AtomicU64::new(ALIVE)));
        let cell = Arc::new(RcuCell::new(canary()));
        let is_done = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (cell, is_done) = (cell.clone(), is_done.clone());
                std::thread::spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        let pin = pin();
                        let canary = cell.load(&pin).unwrap();
                        for _ in 0..10 {
                            assert_eq!(canary.0.load(Ordering::SeqCst), ALIVE);
                        }
                        assert_eq!(cell.get(&pin).unwrap().0.load(Ordering::SeqCst), ALIVE);
                    }
                })
            })
            .collect();
        for round in 0..4_000 {
            let old = cell.replace(Some(canary())).unwrap();
            if round % 16 == 0 {
                let over = Grace::start().wait();
                assert_eq!(Arc::strong_count(&old.after(over)), 1);
            }
        }
        is_done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    }
}
