//! Requests to prune: the table's memory is over its limit, so the client has to forget nodes.
//!
//! A node holds its inode until the client forgets it, and a client with much memory forgets by
//! itself only what it unlinked. So a thread asks it to drop names that it does not use
//! (`FUSE_NOTIFY_PRUNE`); the client then forgets their nodes.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nodes added over the limit before the thread wakes.
const BATCH: usize = 64;
/// Nodes that the client is asked to forget for each one added over the limit: some are in use.
const NODES_PER_REQUEST: usize = 2;

/// Counts nodes that were added over the limit, and wakes the prune thread.
#[derive(Default)]
pub(super) struct PruneRequests {
    count: AtomicUsize,
    is_closed: Mutex<bool>,
    changed: Condvar,
}

impl PruneRequests {
    /// Requests the pruning of one more node.
    pub(super) fn add(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == BATCH {
            let _closed = self.is_closed.lock();
            self.changed.notify_all();
        }
    }

    /// Waits for requests; returns how many nodes to prune, or `None` after
    /// [`PruneRequests::close`].
    pub(super) fn next(&self) -> Option<usize> {
        let mut is_closed = self.is_closed.lock();
        self.changed.wait_while(&mut is_closed, |is_closed| {
            !*is_closed && self.count.load(Ordering::Relaxed) < BATCH
        });
        (!*is_closed).then(|| self.count.swap(0, Ordering::Relaxed) * NODES_PER_REQUEST)
    }

    /// Ends [`PruneRequests::next`].
    pub(super) fn close(&self) {
        *self.is_closed.lock() = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_wakes_for_a_batch_and_for_the_end() {
        let requests = PruneRequests::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| requests.next());
            (0..BATCH).for_each(|_| requests.add());
            assert_eq!(waiting.join().unwrap(), Some(BATCH * NODES_PER_REQUEST));
            let waiting = scope.spawn(|| requests.next());
            requests.add();
            requests.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
