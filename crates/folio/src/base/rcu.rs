//! Read-copy-update: readers that take no lock and write to no shared memory. Linux: kernel/rcu.
//!
//! ```text
//!   reader   pin ......... load a pointer, use what it points to ......... unpin
//!   writer        replace the pointer -> Grace::start ..... is_over -> the old one is the writer's alone
//! ```
//!
//! A pin is two plain stores to memory of the reader's own thread. What orders them against a
//! writer is a barrier that the writer makes all threads pass at once (membarrier(2)); hosts
//! without it pay a fence in each pin.
//!
//! Invariants:
//! - R1: what was loaded under a pin stays valid until that pin ends.
//! - R2: a grace period is over when every pin that began before it started has ended.
//! - R3: nobody waits for a grace period while pinned.
//! - R4: what is dropped by way of [`defer`] is plain memory: its drop takes no lock and does no
//!   I/O.

use super::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};
use super::sync::{self, Mutex, process_wide, thread_local};
use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Deferred things from which on a grace period is started for them.
const DEFERRED_MAX: usize = 64;

process_wide! {
    /// The number of grace periods started, plus one: never 0, which means "not pinned".
    static EPOCH: AtomicU64 = AtomicU64::new(1);
    /// Whether writers use membarrier(2); set before the first pin and constant from then on.
    static IS_ASYMMETRIC: AtomicBool = AtomicBool::new(false);
    /// Every thread that ever pinned; slots of threads that ended are used again.
    static SLOTS: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
    static DEFERRED: Mutex<Deferred> =
        Mutex::new(Deferred { fresh: Vec::new(), waiting: Vec::new(), grace: None });
}

/// What one thread tells about itself; alone on its cache lines, two of which the processor fetches
/// at once.
#[repr(align(128))]
struct Slot {
    /// The epoch in which the outermost pin began; 0 while not pinned.
    epoch: AtomicU64,
    /// Nested pins; only the owner looks.
    depth: AtomicU32,
    is_taken: AtomicBool,
}

thread_local! {
    // Without a destructor, which makes access cheap; `RELEASE` has one for it.
    static SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static RELEASE: Release = const { Release };
}

/// Gives the thread's slot back when the thread ends.
struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        if let Ok(Some(slot)) = SLOT.try_with(Cell::take) {
            slot.is_taken.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn register() -> &'static Slot {
    let mut slots = SLOTS.lock();
    if slots.is_empty() {
        let is_there = !sync::IS_MODEL_CHECKED
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        IS_ASYMMETRIC.store(is_there, Ordering::Relaxed);
    }
    let is_free = |slot: &&&'static Slot| !slot.is_taken.load(Ordering::Acquire);
    let slot = slots.iter().find(is_free).copied().unwrap_or_else(|| {
        let slot: &'static Slot = Box::leak(Box::new(Slot {
            epoch: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            is_taken: AtomicBool::new(true),
        }));
        slots.push(slot);
        slot
    });
    slot.is_taken.store(true, Ordering::Relaxed);
    SLOT.with(|own| own.set(Some(slot)));
    // A thread that pins while it ends keeps its slot for ever: a few bytes, and nothing waits for
    // it.
    let _ = RELEASE.try_with(|_| ());
    slot
}

/// A pin: what is loaded under it stays valid while it lives. Nests; never leaves its thread.
pub(crate) struct Pin {
    slot: &'static Slot,
    not_send: PhantomData<*const ()>,
}

/// Begins to read.
#[inline]
pub(crate) fn pin() -> Pin {
    let slot = SLOT.with(Cell::get).unwrap_or_else(register);
    let depth = slot.depth.load(Ordering::Relaxed);
    slot.depth.store(depth + 1, Ordering::Relaxed);
    if depth == 0 {
        // Acquire: what the pin protects is loaded after the epoch. Release: whoever sees this sees
        // the last unpin.
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
        let depth = self.slot.depth.load(Ordering::Relaxed) - 1;
        self.slot.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            self.slot.epoch.store(0, Ordering::Release);
        }
    }
}

/// A grace period: over when nobody is left who may have loaded what was unpublished before it
/// started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grace {
    target: u64,
}

impl Grace {
    /// Starts one, for everything unpublished so far.
    pub(crate) fn start() -> Self {
        let slots = SLOTS.lock();
        fence(Ordering::SeqCst);
        let target = EPOCH.fetch_add(1, Ordering::SeqCst) + 1;
        let own = SLOT.with(Cell::get).map(std::ptr::from_ref);
        let is_other = |slot: &&'static Slot| {
            slot.is_taken.load(Ordering::Relaxed) && own != Some(std::ptr::from_ref(*slot))
        };
        // A thread that registers later takes the lock after us and so sees what was unpublished.
        if slots.iter().any(is_other) && IS_ASYMMETRIC.load(Ordering::Relaxed) {
            // Cannot fail once registered; if it did, nothing would order the readers.
            assert!(
                membarrier(MembarrierCommand::PrivateExpedited).is_ok(),
                "membarrier works once registered"
            );
        }
        Self { target }
    }

    /// Whether it is over; never waits. Never over while the caller's own pin from before lives.
    pub(crate) fn is_over(self) -> bool {
        let is_past = |slot: &&'static Slot| {
            let epoch = slot.epoch.load(Ordering::Acquire);
            epoch == 0 || epoch >= self.target
        };
        SLOTS.lock().iter().all(is_past)
    }

    /// Like [`Grace::is_over`], with something to show for it.
    pub(crate) fn over(self) -> Option<Over> {
        self.is_over().then_some(Over(()))
    }

    /// Waits until it is over (R3).
    pub(crate) fn wait(self) -> Over {
        debug_assert!(!is_pinned(), "waiting for oneself");
        while !self.is_over() {
            sync::thread::yield_now();
        }
        Over(())
    }
}

/// Shows that a grace period is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Over(());

/// Whether this thread is pinned.
pub(crate) fn is_pinned() -> bool {
    SLOT.with(Cell::get)
        .is_some_and(|slot| slot.depth.load(Ordering::Relaxed) > 0)
}

/// Plain memory that may have readers.
type Garbage = Arc<dyn Send + Sync>;

struct Deferred {
    fresh: Vec<Garbage>,
    /// Dropped when `grace` is over.
    waiting: Vec<Garbage>,
    grace: Option<Grace>,
}

/// Drops plain memory (R4) some time after every present reader has gone.
pub(crate) fn defer(garbage: Garbage) {
    let mut deferred = DEFERRED.lock();
    deferred.fresh.push(garbage);
    if deferred.fresh.len() < DEFERRED_MAX || deferred.grace.is_some_and(|grace| !grace.is_over()) {
        return;
    }
    let fresh = std::mem::take(&mut deferred.fresh);
    let gone = std::mem::replace(&mut deferred.waiting, fresh);
    deferred.grace = Some(Grace::start());
    drop(deferred);
    drop(gone);
}

/// A shared pointer that readers follow without a lock. Linux: `rcu_dereference`,
/// `rcu_assign_pointer`.
///
/// Writers order themselves among one another.
pub(crate) struct RcuCell<T> {
    /// From `Arc::into_raw`, or null.
    pointer: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// A cell that holds nothing.
    pub(crate) const fn empty() -> Self {
        Self {
            pointer: AtomicPtr::new(std::ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// A cell that holds `value`.
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self {
            pointer: AtomicPtr::new(Arc::into_raw(value).cast_mut()),
            owns: PhantomData,
        }
    }

    /// Whether it holds nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pointer.load(Ordering::Acquire).is_null()
    }

    /// What the cell holds now, valid as long as the pin.
    #[inline]
    pub(crate) fn load<'p>(&self, pin: &'p Pin) -> Option<&'p T> {
        self.borrow(pin).map(Ref::value)
    }

    /// Like [`RcuCell::load`], for a caller who may want a reference of its own later.
    #[inline]
    pub(crate) fn borrow<'p>(&self, _pin: &'p Pin) -> Option<Ref<'p, T>> {
        // From `Arc::into_raw`, and whoever replaces it keeps that reference until every pin that
        // could have seen it has ended (`Replaced`, R1).
        let pointer = NonNull::new(self.pointer.load(Ordering::Acquire))?;
        Some(Ref {
            pointer,
            borrows: PhantomData,
        })
    }

    /// Another reference to what the cell holds now.
    pub(crate) fn get(&self, pin: &Pin) -> Option<Arc<T>> {
        Some(self.borrow(pin)?.to_arc())
    }

    /// Publishes `value` and hands out what was there.
    #[allow(unsafe_code)]
    pub(crate) fn replace(&self, value: Option<Arc<T>>) -> Option<Replaced<T>> {
        let new = value.map_or(std::ptr::null_mut(), |value| {
            Arc::into_raw(value).cast_mut()
        });
        // No exchange: there is one writer at a time.
        let old = self.pointer.load(Ordering::Relaxed);
        self.pointer.store(new, Ordering::Release);
        // SAFETY: the reference that the cell held is ours now.
        (!old.is_null()).then(|| Replaced {
            value: Some(unsafe { Arc::from_raw(old) }),
        })
    }
}

/// A value with a reference count, borrowed without touching the count.
pub(crate) struct Ref<'p, T> {
    /// From `Arc::into_raw` or `Arc::as_ptr`; the reference behind it lives for `'p` at least.
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
    /// Borrows what `arc` refers to.
    #[inline]
    pub(crate) fn new(arc: &'p Arc<T>) -> Self {
        let pointer = Arc::as_ptr(arc).cast_mut();
        Self {
            pointer: NonNull::new(pointer).unwrap_or_else(|| unreachable!("points to a value")),
            borrows: PhantomData,
        }
    }

    /// The value.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn value(self) -> &'p T {
        // SAFETY: it points to the value of an `Arc` that lives for `'p`.
        unsafe { self.pointer.as_ref() }
    }

    /// How many references there are.
    #[allow(unsafe_code)]
    pub(crate) fn strong_count(self) -> usize {
        // SAFETY: the pointer is that of an `Arc`, one reference of which is alive for `'p`; none
        // is given up here.
        let arc = ManuallyDrop::new(unsafe { Arc::from_raw(self.pointer.as_ptr().cast_const()) });
        Arc::strong_count(&arc)
    }

    /// A reference of the caller's own.
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
        let pointer = *self.pointer.get_mut();
        if !pointer.is_null() {
            // SAFETY: nobody else has the cell, and the reference that it holds goes with it.
            drop(unsafe { Arc::from_raw(pointer) });
        }
    }
}

/// What an [`RcuCell`] no longer holds, but readers may still look at. Dropping it defers the drop
/// of the value, which must be plain memory then (R4).
pub(crate) struct Replaced<T: Send + Sync + 'static> {
    value: Option<Arc<T>>,
}

impl<T: Send + Sync + 'static> Replaced<T> {
    /// The value, to look at.
    pub(crate) fn value(&self) -> &Arc<T> {
        // Taken only by `after`, which consumes the handle, and by drop.
        self.value
            .as_ref()
            .unwrap_or_else(|| unreachable!("held until the end"))
    }

    /// The value; the grace period that is over started after the replacement.
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
    fn a_grace_period_waits_for_readers_of_before_alone() {
        let (go, gone) = channel::<()>();
        let (pinned, is_pinned) = channel();
        let reader = std::thread::spawn(move || {
            let pin = pin();
            pinned.send(()).unwrap();
            gone.recv().unwrap();
            drop(pin);
        });
        is_pinned.recv().unwrap();
        let grace = Grace::start();
        assert!(!grace.is_over());
        let later = pin();
        go.send(()).unwrap();
        reader.join().unwrap();
        // Other tests may have readers of before, this one has only a later one.
        while !grace.is_over() {
            std::thread::yield_now();
        }
        drop(later);
    }

    #[test]
    fn nested_pins_are_one() {
        let outer = pin();
        let inner = pin();
        let grace = Grace::start();
        drop(inner);
        assert!(!grace.is_over());
        drop(outer);
        // Readers of other tests may still be there.
        grace.wait();
    }

    /// Each value says whether it is alive; readers must never see a dead one.
    struct Canary(AtomicU64);

    impl Drop for Canary {
        fn drop(&mut self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }

    #[test]
    fn readers_never_see_what_was_dropped() {
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
