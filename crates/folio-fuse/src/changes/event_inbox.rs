//! The event inbox: events whose invalidations have been sent, for the thread that raises them.

use folio::vfs::FileEvent;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;

/// Most events in the inbox; beyond, they are replaced by one overflow.
const EVENTS_MAX: usize = 16384;
/// Longest wait for a fence: the push thread may wait for the lock of a directory.
const FENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// An item of the inbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InboxItem {
    Event(FileEvent),
    /// Events were lost.
    Overflow,
}

/// Events on their way to the client's watchers.
#[derive(Default)]
pub(crate) struct EventInbox {
    state: Mutex<InboxState>,
    /// Signaled on a new item, a fence, or the end.
    changed: Condvar,
    turn: Mutex<()>,
}

#[derive(Default)]
struct InboxState {
    items: VecDeque<InboxItem>,
    /// The last fence that the push thread has reached.
    fence: u64,
    is_closed: bool,
}

impl EventInbox {
    /// Takes the turn to use the locks of directories in the kernel. A call that raises an event
    /// has such a lock while it waits for the server, and a notice about a name waits for it. A
    /// server that is killed during both would never end: the notice holds /dev/fuse open.
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Adds an event.
    pub(super) fn add(&self, event: FileEvent) {
        if self.state.lock().items.len() >= EVENTS_MAX {
            return self.overflow();
        }
        self.state.lock().items.push_back(InboxItem::Event(event));
        self.changed.notify_all();
    }

    /// Replaces all events by an overflow.
    pub(super) fn overflow(&self) {
        let mut state = self.state.lock();
        state.items.clear();
        state.items.push_back(InboxItem::Overflow);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that all items before a fence were sent.
    pub(super) fn reach(&self, fence: u64) {
        let mut state = self.state.lock();
        state.fence = state.fence.max(fence);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the push thread has reached a fence, with a time limit.
    pub(crate) fn wait_for(&self, fence: u64) {
        let mut state = self.state.lock();
        let is_before = |state: &mut InboxState| state.fence < fence && !state.is_closed;
        let _ = self
            .changed
            .wait_while_for(&mut state, is_before, FENCE_TIMEOUT);
    }

    /// Waits for an item, no longer than `timeout`. Returns false at the end.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let is_idle = |state: &mut InboxState| state.items.is_empty() && !state.is_closed;
        match timeout {
            None => self.changed.wait_while(&mut state, is_idle),
            Some(timeout) => {
                let _ = self.changed.wait_while_for(&mut state, is_idle, timeout);
            }
        }
        !state.is_closed
    }

    /// Takes the next item.
    pub(crate) fn take(&self) -> Option<InboxItem> {
        self.state.lock().items.pop_front()
    }

    /// Drops all items: no client has seen the state before them.
    pub(crate) fn clear(&self) {
        self.state.lock().items.clear();
    }

    /// Returns whether no item waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().items.is_empty()
    }

    /// Ends [`EventInbox::wait`].
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::vfs::{EventName, FileType, InodeNumber};

    fn event() -> FileEvent {
        FileEvent::Created(EventName {
            directory: InodeNumber(1),
            name: Box::default(),
            file_type: FileType::Regular,
            inode: None,
        })
    }

    #[test]
    fn overfull_inbox_becomes_overflow() {
        let inbox = EventInbox::default();
        inbox.add(event());
        assert!(inbox.wait(None));
        assert_eq!(inbox.take(), Some(InboxItem::Event(event())));
        for _ in 0..=EVENTS_MAX {
            inbox.add(event());
        }
        inbox.reach(3);
        inbox.wait_for(3);
        assert_eq!(inbox.take(), Some(InboxItem::Overflow));
        assert!(inbox.is_empty() && inbox.wait(Some(Duration::ZERO)));
        inbox.close();
        assert!(!inbox.wait(None));
    }
}
