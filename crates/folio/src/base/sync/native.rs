//! Folio's locks and condition variable, and the atomics and threads of std.

pub(crate) use crate::base::condvar::Condvar;
pub(crate) use crate::base::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic;
pub(crate) use std::{thread, thread_local};

/// Whether a model checker runs the code. It needs small numbers, and no system call that it does
/// not see.
pub(crate) const IS_MODEL_CHECKED: bool = false;

/// Lets the model checker switch to another thread here.
#[inline]
pub(crate) fn step() {}

/// Defines statics, which under the model checker live for one execution.
macro_rules! process_wide {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$attribute])* static $name: $type = $value;)*
    };
}
pub(crate) use process_wide;
