//! The change queue: filled by the file system and by other servers, emptied by one thread.

use super::delayed_nodes::DelayedNodes;
use crate::nodes::{ContentVersion, node_id};
use folio::vfs::{Change, ChangeListener};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most changes in the queue; beyond, one item invalidates everything.
pub(super) const QUEUE_MAX: usize = 8192;
/// Longest wait for the replies in progress.
const REPLIES_TIMEOUT: Duration = Duration::from_millis(100);

/// Delay from the client's last change of a node to its comparison. Longer than the moment during
/// which fs/hostfs ignores events, 50 ms.
const OWN_CHANGE_DELAY: Duration = Duration::from_millis(60);
/// How long the client keeps pages whose changes are not reported.
const UNREPORTED_TTL: Duration = Duration::from_millis(2);

/// A cached item that the client must drop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum StaleItem {
    /// Attributes, data and listing of a node.
    Node(u64),
    /// A name in a directory, with the directory's node.
    Name(u64, Box<[u8]>),
    Everything,
}

/// Changes on their way to one client.
pub(crate) struct ChangeQueue {
    /// The root's inode number.
    pub(super) root: u64,
    /// Whether the file system reports external changes.
    has_notifications: AtomicBool,
    /// Nodes that the client changed a moment ago, as it left them. The file system ignores events
    /// shortly after one of the client's own, so these may hide external changes.
    pub(super) own_changes: DelayedNodes<ContentVersion>,
    /// Nodes that the client has pages of, although their changes are not reported.
    pub(super) unreported: DelayedNodes<()>,
    items: Mutex<QueuedItems>,
    /// Signaled on a new item, a wake request, or the end.
    readable: Condvar,
    replies: Mutex<RepliesInProgress>,
    /// Signaled when a period has no replies in progress any more.
    replied: Condvar,
}

#[derive(Default)]
struct QueuedItems {
    order: VecDeque<StaleItem>,
    /// The same items, to detect duplicates.
    known: HashSet<StaleItem>,
    is_closed: bool,
    wake_requested: bool,
}

/// Counts of replies in progress that contain attributes or names: those begun in even periods and
/// those begun in odd ones.
#[derive(Default)]
struct RepliesInProgress {
    period: usize,
    counts: [usize; 2],
}

/// A reply in progress, from before the file system is asked until the reply is sent.
pub struct ReplyGuard<'a> {
    queue: &'a ChangeQueue,
    period: usize,
}

/// The result of waiting for a change.
pub(super) enum QueueEvent {
    Stale(StaleItem),
    /// The timeout, or a wake request.
    Idle,
    Closed,
}

impl ChangeQueue {
    pub(crate) fn new(root: u64) -> Self {
        Self {
            root,
            has_notifications: AtomicBool::new(false),
            own_changes: DelayedNodes::new(OWN_CHANGE_DELAY),
            unreported: DelayedNodes::new(UNREPORTED_TTL),
            items: Mutex::default(),
            readable: Condvar::new(),
            replies: Mutex::default(),
            replied: Condvar::new(),
        }
    }

    /// Adds an item unless it is queued already.
    pub(crate) fn add(&self, item: StaleItem) {
        let mut items = self.items.lock();
        if items.known.contains(&item) || items.known.contains(&StaleItem::Everything) {
            return;
        }
        let is_full = items.order.len() >= QUEUE_MAX;
        if is_full || item == StaleItem::Everything {
            items.order.clear();
            items.known.clear();
        }
        let item = if is_full { StaleItem::Everything } else { item };
        items.known.insert(item.clone());
        items.order.push_back(item);
        drop(items);
        self.readable.notify_one();
    }

    /// Waits for the next item, with a `timeout` no longer than that.
    pub(super) fn next(&self, timeout: Option<Duration>) -> QueueEvent {
        let mut items = self.items.lock();
        let is_idle = |items: &QueuedItems| {
            items.order.is_empty() && !items.is_closed && !items.wake_requested
        };
        match timeout {
            None => self.readable.wait_while(&mut items, |items| is_idle(items)),
            Some(timeout) => {
                let _ = self
                    .readable
                    .wait_while_for(&mut items, |items| is_idle(items), timeout);
            }
        }
        items.wake_requested = false;
        match items.order.pop_front() {
            _ if items.is_closed => QueueEvent::Closed,
            Some(item) => {
                // From here on a change of it is queued again.
                items.known.remove(&item);
                QueueEvent::Stale(item)
            }
            None => QueueEvent::Idle,
        }
    }

    /// Wakes the thread in [`ChangeQueue::next`] for good.
    pub(crate) fn close(&self) {
        self.items.lock().is_closed = true;
        self.readable.notify_all();
    }

    /// Enables [`ChangeQueue::note_own_change`], once the file system reports external changes.
    pub(crate) fn enable_own_changes(&self) {
        self.has_notifications.store(true, Ordering::Relaxed);
    }

    /// Returns whether the client's own changes must be noted.
    pub(crate) fn needs_own_changes(&self) -> bool {
        self.has_notifications.load(Ordering::Relaxed)
    }

    /// Notes that the client has changed a node, and its state now.
    pub(crate) fn note_own_change(&self, node: u64, version: ContentVersion) {
        if self.own_changes.add_or_postpone(node, version) {
            self.wake();
        }
    }

    /// Notes that the client gets pages of a node whose changes are not reported.
    pub(crate) fn note_unreported_pages(&self, node: u64) {
        if self.unreported.add(node, ()) {
            self.wake();
        }
    }

    /// Makes the thread in [`ChangeQueue::next`] compute a new timeout.
    fn wake(&self) {
        self.items.lock().wake_requested = true;
        self.readable.notify_all();
    }

    /// Counts a reply in progress until the guard is dropped.
    pub(crate) fn begin_reply(&self) -> ReplyGuard<'_> {
        let mut replies = self.replies.lock();
        let period = replies.period;
        replies.counts[period] += 1;
        ReplyGuard {
            queue: self,
            period,
        }
    }

    pub(super) fn has_replies_in_progress(&self) -> bool {
        self.replies.lock().counts != [0, 0]
    }

    /// Waits until every reply in progress has been sent, with a time limit. Replies that begin
    /// meanwhile are not waited for.
    pub(super) fn wait_for_replies(&self) {
        let mut replies = self.replies.lock();
        // Both periods: a reply of an earlier one may still be in progress.
        for _ in 0..2 {
            let period = replies.period;
            replies.period = 1 - period;
            while replies.counts[period] != 0 {
                let waited = self.replied.wait_for(&mut replies, REPLIES_TIMEOUT);
                if waited.timed_out() {
                    return;
                }
            }
        }
    }
}

impl Drop for ReplyGuard<'_> {
    fn drop(&mut self) {
        let mut replies = self.queue.replies.lock();
        replies.counts[self.period] -= 1;
        let is_last = replies.counts[self.period] == 0;
        drop(replies);
        if is_last {
            self.queue.replied.notify_all();
        }
    }
}

impl ChangeListener for ChangeQueue {
    fn changed(&self, change: Change<'_>) {
        let id = |number| node_id(self.root, number);
        self.add(match change {
            Change::Inode(number) => StaleItem::Node(id(number.0)),
            Change::Name(directory, name) => StaleItem::Name(id(directory.0), name.into()),
            Change::Everything => StaleItem::Everything,
        });
    }
}

#[cfg(test)]
impl ChangeQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.items.lock().order.is_empty()
    }

    pub(super) fn reopen(&self) {
        self.items.lock().is_closed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::vfs::InodeNumber;

    fn drain(queue: &ChangeQueue) -> Vec<StaleItem> {
        std::iter::from_fn(|| match queue.next(Some(Duration::ZERO)) {
            QueueEvent::Stale(item) => Some(item),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn overfull_queue_becomes_everything() {
        let queue = ChangeQueue::new(2);
        for _ in 0..3 {
            queue.changed(Change::Inode(InodeNumber(7)));
            queue.changed(Change::Name(InodeNumber(2), b"name"));
        }
        queue.changed(Change::Inode(InodeNumber(1)));
        // The root is 1 to the client, and inode 1 has the root's number.
        assert_eq!(
            drain(&queue),
            [
                StaleItem::Node(7),
                StaleItem::Name(1, (*b"name").into()),
                StaleItem::Node(2)
            ]
        );
        for number in 0..2 * QUEUE_MAX as u64 {
            queue.changed(Change::Inode(InodeNumber(number)));
        }
        assert_eq!(drain(&queue)[0], StaleItem::Everything);
        queue.close();
        assert!(matches!(queue.next(None), QueueEvent::Closed));
    }

    #[test]
    fn wait_for_replies_ignores_later_replies() {
        let queue = ChangeQueue::new(2);
        queue.wait_for_replies();
        let first = queue.begin_reply();
        assert!(queue.has_replies_in_progress());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.wait_for_replies());
            while queue.replies.lock().period == 0 {
                std::thread::yield_now();
            }
            let _later = queue.begin_reply();
            drop(first);
            // Without the drop it would end by its time limit; the test is that it ends.
            waiting.join().unwrap();
        });
        assert!(!queue.has_replies_in_progress());
    }
}
