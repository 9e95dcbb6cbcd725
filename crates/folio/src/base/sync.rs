//! Locks and atomics, from one place so that a model checker can take their place.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::sync::atomic;
