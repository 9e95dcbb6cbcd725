//! The real ones.

pub(crate) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic;
pub(crate) use std::{thread, thread_local};

/// Whether a model checker runs this: small numbers then, and nothing that it does not see.
pub(crate) const IS_MODEL_CHECKED: bool = false;

/// A place where the model checker may let another thread go on.
#[inline]
pub(crate) fn step() {}

/// Statics, which under the model checker live for one execution.
macro_rules! process_wide {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$attribute])* static $name: $type = $value;)*
    };
}
pub(crate) use process_wide;
