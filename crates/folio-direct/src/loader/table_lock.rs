//! The lock of the descriptors: many calls change them at a time, or one call copies them.
//!
//! A descriptor of the image is in three places: the table of the host, that of the server, and the
//! bits of this process. A change makes one step in each; fork(2) and execve(2) copy them one by
//! one. A copy between two steps would have a number in one place and not in another.

use crate::client::Slot;
use crate::layout::ArenaHeader;
use crate::system::{SCHED_YIELD, host};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A change in progress, until it is dropped.
#[must_use]
pub(crate) struct Change(());

/// Begins a change of descriptors, when no copy is in progress. Its caller waits for the server and
/// for nothing else: copies wait for it.
pub(crate) fn change() -> Change {
    let lock = ArenaHeader::of_client();
    loop {
        // First the count, then the look at copies, which does both in the other order: one of the
        // two sides sees the other.
        lock.changes.fetch_add(1, SeqCst);
        if lock.copier.load(SeqCst) == 0 {
            return Change(());
        }
        lock.changes.fetch_sub(1, SeqCst);
        let _ = host!(SCHED_YIELD);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        ArenaHeader::of_client().changes.fetch_sub(1, SeqCst);
    }
}

/// A copy in progress, until it is dropped.
#[must_use]
pub(crate) struct Copy {
    /// The number of the slot of the call that copies, and one.
    copier: u32,
}

/// Begins a copy of the descriptors, when no change and no other copy is in progress.
pub(crate) fn copy(slot: Slot) -> Copy {
    let lock = ArenaHeader::of_client();
    let copier = slot.number() + 1;
    while lock.copier.compare_exchange(0, copier, SeqCst, Relaxed).is_err() {
        let _ = host!(SCHED_YIELD);
    }
    while lock.changes.load(SeqCst) != 0 {
        let _ = host!(SCHED_YIELD);
    }
    Copy { copier }
}

impl Drop for Copy {
    /// Ends the copy, unless a child has done so: nothing happens in an arena of another process.
    fn drop(&mut self) {
        let lock = ArenaHeader::of_client();
        let _ = lock.copier.compare_exchange(self.copier, 0, SeqCst, Relaxed);
    }
}
