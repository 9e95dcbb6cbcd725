//! The locks, atomics and threads of a model checker, with the interface of native.rs.
//!
//! Shuttle makes every atomic operation sequentially consistent: it checks the order of steps, not
//! the effects of weak memory. Loom checks both, of tests with few steps. A sequentially consistent
//! load or store of loom only acquires or releases; its fences are exact.

pub(crate) use checker::hint::spin_loop;
pub(crate) use checker::sync::{RwLockReadGuard, RwLockWriteGuard};
pub(crate) use checker::{lazy_static, thread};
#[cfg(folio_loom)]
use loom as checker;
#[cfg(not(folio_loom))]
use shuttle as checker;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) mod atomic {
    pub(crate) use super::checker::sync::atomic::*;
    #[cfg(folio_loom)]
    pub(crate) use std::sync::atomic::compiler_fence;
}

pub(crate) const IS_MODEL_CHECKED: bool = true;

/// Lets the checker switch to another thread where the code has no operation on shared data.
pub(crate) fn step() {
    atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
}

/// Defines statics that live for one execution.
macro_rules! process_wide {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $crate::base::sync::lazy_static! { $($(#[$attribute])* static ref $name: $type = $value;)* }
    };
}
pub(crate) use process_wide;

/// Defines variables of each thread. Loom's macro accepts no `const` block.
#[cfg(folio_loom)]
macro_rules! loom_thread_local {
    ($(static $name:ident: $type:ty = const $value:block;)*) => {
        loom::thread_local! { $(static $name: $type = $value;)* }
    };
}
#[cfg(folio_loom)]
pub(crate) use loom_thread_local as thread_local;
#[cfg(not(folio_loom))]
pub(crate) use shuttle::thread_local;

/// A mutex without poisoning, as Folio's.
#[derive(Default)]
pub(crate) struct Mutex<T>(checker::sync::Mutex<T>);

/// Empty only while its owner waits for a condition.
pub(crate) struct MutexGuard<'a, T>(Option<checker::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(checker::sync::Mutex::new(value))
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
pub(crate) struct Condvar(checker::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(checker::sync::Condvar::new())
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

pub(crate) struct RwLock<T>(checker::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(checker::sync::RwLock::new(value))
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
