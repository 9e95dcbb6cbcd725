//! The locks, atomics and threads of shuttle, with the interface of native.rs.
//!
//! Shuttle makes every atomic operation sequentially consistent: it checks the order of steps, not
//! the effects of weak memory.

pub(crate) use shuttle::hint::spin_loop;
pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};
pub(crate) use shuttle::{thread, thread_local};
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) const IS_MODEL_CHECKED: bool = true;

/// Lets the checker switch to another thread where the code has no operation on shared data.
pub(crate) fn step() {
    atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
}

/// Defines statics that live for one execution.
macro_rules! process_wide {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        shuttle::lazy_static! { $($(#[$attribute])* static ref $name: $type = $value;)* }
    };
}
pub(crate) use process_wide;

/// A mutex without poisoning, as Folio's.
#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Empty only while its owner waits for a condition.
pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        attempt(self.0.try_lock()).map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

#[derive(Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let waited = self.0.wait(guard.0.take().unwrap());
        guard.0 = Some(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits without a timeout: time does not pass under the checker, only a notification ends it.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) {
        self.wait(guard);
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        attempt(self.0.try_read())
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        attempt(self.0.try_write())
    }
}

fn attempt<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
