//! State of the process that is safe across fork(2). A child has a copy of its parent's memory, but
//! of its threads only the one that called fork. A lock that another thread held stays locked in
//! the child, and a slot that it owned stays taken.
//!
//! The child therefore uses none of its parent's state. Each process has instances of its own,
//! created by their first use, and those of the parent leak. So no handler takes locks before a
//! fork, which would need one order of all locks of the process, and a thread may call fork from
//! anywhere.

use super::owner_process::OwnerProcess;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value of which each process has its own instance.
pub(crate) struct PerProcess<T: Send + Sync + 'static> {
    /// From `Box::into_raw` and never freed; or null. Set without a lock, so a fork between any two
    /// steps leaves either value.
    instance: AtomicPtr<Instance<T>>,
    new: fn() -> T,
}

struct Instance<T> {
    owner: OwnerProcess,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new(new: fn() -> T) -> Self {
        Self {
            instance: AtomicPtr::new(std::ptr::null_mut()),
            new,
        }
    }

    /// Returns the instance of the calling process.
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> &T {
        let mut pointer = self.instance.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from `Box::into_raw` and never freed.
            match unsafe { pointer.as_ref() } {
                Some(instance) if instance.owner.is_current() => return &instance.value,
                _ => pointer = self.renew(pointer),
            }
        }
    }

    /// Replaces the parent's instance, or none.
    #[cold]
    #[allow(unsafe_code)]
    fn renew(&self, old: *mut Instance<T>) -> *mut Instance<T> {
        let new = Box::into_raw(Box::new(Instance {
            owner: OwnerProcess::current(),
            value: (self.new)(),
        }));
        let exchanged =
            self.instance
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        exchanged.map_or_else(
            |faster| {
                // SAFETY: from `Box::into_raw` above, and not published.
                drop(unsafe { Box::from_raw(new) });
                faster
            },
            |_| new,
        )
    }
}
