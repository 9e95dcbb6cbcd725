//! The owners of locks: a process for fcntl(2), an open file for flock(2) and locks of open file
//! descriptions.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The address of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerId(pub(super) usize);

/// The owner of the locks of one process. Linux: `files_struct` as `fl_owner_t`.
#[derive(Debug, Default)]
pub(crate) struct LockOwner {
    pid: AtomicU32,
    has_locks: AtomicBool,
}

impl LockOwner {
    /// Returns the identity, which no other owner has as long as this one exists.
    pub(crate) fn id(&self) -> OwnerId {
        OwnerId(std::ptr::from_ref(self).addr())
    }

    /// Returns the process number that F_GETLK reports.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(crate) fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// Returns whether the process has ever locked a file: then each close releases locks.
    #[inline]
    pub(crate) fn has_locks(&self) -> bool {
        self.has_locks.load(Ordering::Acquire)
    }

    /// Notes that the process is about to lock a file.
    pub(crate) fn set_has_locks(&self) {
        self.has_locks.store(true, Ordering::Release);
    }
}
