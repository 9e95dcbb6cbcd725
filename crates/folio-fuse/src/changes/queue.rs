//! The change queue: filled by the file system and by other servers, emptied by one thread.

use super::delayed_nodes::DelayedNodes;
use super::event_inbox::EventInbox;
use crate::nodes::{ContentVersion, node_id};
use folio::vfs::{Change, ChangeListener, FileEvent};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most changes in the queue; beyond, one item invalidates everything.
pub(super) const QUEUE_MAX: usize = 8192;
/// Longest wait for the replies in progress.
const REPLIES_TIMEOUT: Duration = Duration::from_millis(100);

/// Delay from the client's last change of a node to its comparison. Longer than the moment during
/// which fs/hostfs ignores events, 50 ms.
const OWN_CHANGE_DELAY: Duration = Duration::from_millis(60);
/// How long the client keeps pages and listings whose changes are not reported.
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

/// An item of the queue.
enum QueuedItem {
    Stale(StaleItem),
    Event(FileEvent),
    /// Events were lost.
    Overflow,
    /// Reported once the items before it are sent.
    Fence(u64),
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
    /// Nodes that the client has pages or a listing of, although their changes are not reported.
    pub(super) unreported: DelayedNodes<()>,
    items: Mutex<QueuedItems>,
    /// Events for the client's watchers, if it asks for them.
    inbox: OnceLock<EventInbox>,
    /// Signaled on a new item, a wake request, or the end.
    readable: Condvar,
    replies: Mutex<RepliesInProgress>,
    /// Signaled when a period has no replies in progress any more.
    replied: Condvar,
}

#[derive(Default)]
struct QueuedItems {
    order: VecDeque<QueuedItem>,
    /// The stale items, to detect duplicates.
    known: HashSet<StaleItem>,
    /// The number of events.
    event_count: usize,
    last_fence: u64,
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
    /// An event, an overflow or a fence, which has been passed on.
    Passed,
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
            inbox: OnceLock::new(),
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
        let is_full = items.known.len() >= QUEUE_MAX;
        let item = if is_full { StaleItem::Everything } else { item };
        let is_everything = item == StaleItem::Everything;
        if is_everything {
            items.known.clear();
            items.event_count = 0;
            items
                .order
                .retain(|item| matches!(item, QueuedItem::Fence(_)));
        }
        items.known.insert(item.clone());
        items.order.push_back(QueuedItem::Stale(item));
        if is_everything && self.inbox.get().is_some() {
            items.order.push_back(QueuedItem::Overflow);
        }
        drop(items);
        self.readable.notify_one();
    }

    /// Asks for events, before the listener is registered.
    pub(crate) fn ask_for_events(&self) {
        let _ = self.inbox.set(EventInbox::default());
    }

    /// Returns the events, if they are asked for.
    pub(crate) fn inbox(&self) -> Option<&EventInbox> {
        self.inbox.get()
    }

    /// Adds an event, to be passed on after the invalidations before it.
    fn add_event(&self, event: &FileEvent) {
        let mut items = self.items.lock();
        if items.event_count >= QUEUE_MAX {
            items.event_count = 0;
            items
                .order
                .retain(|item| !matches!(item, QueuedItem::Event(_)));
            items.order.push_back(QueuedItem::Overflow);
        } else {
            items.event_count += 1;
            items.order.push_back(QueuedItem::Event(event.clone()));
        }
        drop(items);
        self.readable.notify_one();
    }

    /// Waits until all items so far have been sent, with a time limit. Not for the thread that
    /// sends them.
    pub(crate) fn wait_until_sent(&self) {
        let Some(inbox) = self.inbox.get() else {
            return;
        };
        let mut items = self.items.lock();
        items.last_fence += 1;
        let fence = items.last_fence;
        items.order.push_back(QueuedItem::Fence(fence));
        drop(items);
        self.readable.notify_one();
        inbox.wait_for(fence);
    }

    /// Passes an item on that invalidates nothing.
    fn pass_on(&self, item: QueuedItem) {
        let Some(inbox) = self.inbox.get() else {
            return;
        };
        match item {
            QueuedItem::Event(event) => inbox.add(event),
            QueuedItem::Overflow => inbox.overflow(),
            QueuedItem::Fence(fence) => inbox.reach(fence),
            QueuedItem::Stale(_) => {}
        }
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
            Some(QueuedItem::Stale(item)) => {
                // From here on a change of it is queued again.
                items.known.remove(&item);
                QueueEvent::Stale(item)
            }
            Some(item) => {
                if matches!(item, QueuedItem::Event(_)) {
                    items.event_count -= 1;
                }
                drop(items);
                self.pass_on(item);
                QueueEvent::Passed
            }
            None => QueueEvent::Idle,
        }
    }

    /// Wakes the thread in [`ChangeQueue::next`] for good.
    pub(crate) fn close(&self) {
        self.items.lock().is_closed = true;
        self.readable.notify_all();
        if let Some(inbox) = self.inbox.get() {
            inbox.close();
        }
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

    /// Notes that the client gets pages or the listing of a node whose changes are not reported.
    pub(crate) fn note_unreported(&self, node: u64) {
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
            Change::Event(event) => return self.add_event(event),
            Change::Inode(number) => StaleItem::Node(id(number.0)),
            Change::Name(directory, name) => StaleItem::Name(id(directory.0), name.into()),
            Change::Everything => StaleItem::Everything,
        });
    }

    fn wants_events(&self) -> bool {
        self.inbox.get().is_some()
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
    use super::super::event_inbox::InboxItem;
    use super::*;
    use folio::vfs::{EventName, FileType, InodeNumber};

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
    fn events_pass_after_their_invalidations() {
        let queue = ChangeQueue::new(2);
        assert!(!queue.wants_events());
        queue.ask_for_events();
        assert!(queue.wants_events());
        let event = FileEvent::Created(EventName {
            directory: InodeNumber(2),
            name: (*b"name").into(),
            file_type: FileType::Regular,
            inode: None,
        });
        queue.changed(Change::Name(InodeNumber(2), b"name"));
        queue.changed(Change::Event(&event));
        let inbox = queue.inbox().unwrap();
        let next = || queue.next(Some(Duration::ZERO));
        assert!(matches!(next(), QueueEvent::Stale(StaleItem::Name(1, _))));
        assert!(inbox.is_empty());
        assert!(matches!(next(), QueueEvent::Passed));
        assert_eq!(inbox.take(), Some(InboxItem::Event(event.clone())));
        // Everything replaces events, too.
        queue.changed(Change::Event(&event));
        queue.changed(Change::Everything);
        assert!(matches!(next(), QueueEvent::Stale(StaleItem::Everything)));
        assert!(matches!(next(), QueueEvent::Passed));
        assert_eq!(inbox.take(), Some(InboxItem::Overflow));
        assert!(matches!(next(), QueueEvent::Idle));
        queue.close();
        assert!(!inbox.wait(None));
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
