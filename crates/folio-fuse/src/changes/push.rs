//! The push thread: sends queued changes to one client.
//!
//! A client that must drop an item it does not know yet, because the reply is still on its way,
//! would cache the outdated reply afterwards. So an unknown item is sent again once the replies in
//! progress have been sent, until the client knows it or has forgotten it.

use super::event_inbox::EventInbox;
use super::queue::{ChangeQueue, QueueEvent, StaleItem};
use crate::nodes::{ContentVersion, NodeTable, ROOT, node_id};
use folio::vfs::FileType;
use std::io;
use std::time::Duration;

/// Delay before an unknown node is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// The start of a listing: within the first page.
const LISTING_START_BYTES: i64 = 1;
/// Most repetitions for one node.
const TRIES_MAX: u32 = 8;

/// A transport's way to invalidate the client's caches. Called by a thread that holds nothing a
/// request might wait for.
pub trait Invalidator {
    /// Invalidates the attributes of a node, and the first `len_bytes` of its pages, or of its
    /// listing; 0 is all of them. Returns false if the client does not know the node.
    ///
    /// # Errors
    /// Those of the transport, as for the other two: the client has disconnected.
    fn invalidate_node(&self, node: u64, len_bytes: i64) -> io::Result<bool>;

    /// Invalidates a name in a directory, or its negative entry.
    fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()>;

    /// Invalidates all names. After an error, which means that the transport has no such message,
    /// they are invalidated one by one.
    fn invalidate_all_names(&self) -> io::Result<()>;

    /// Asks the client to drop the names of these nodes that it does not use, and to forget the
    /// nodes.
    ///
    /// # Errors
    /// `Unsupported` if the transport has no such message, as by default.
    fn prune_nodes(&self, nodes: &[u64]) -> io::Result<()> {
        let _ = nodes;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Sends changes from `queue` until it is closed.
pub(crate) fn push(queue: &ChangeQueue, nodes: &NodeTable, invalidator: &dyn Invalidator) {
    Pusher {
        queue,
        nodes,
        invalidator,
        unknown: Vec::new(),
    }
    .run();
}

struct Pusher<'a> {
    queue: &'a ChangeQueue,
    nodes: &'a NodeTable,
    invalidator: &'a dyn Invalidator,
    /// Nodes to send again, and how often that was done.
    unknown: Vec<(u64, u32)>,
}

impl Pusher<'_> {
    fn run(mut self) {
        loop {
            let retry = (!self.unknown.is_empty()).then_some(RETRY_DELAY);
            let own = self.queue.own_changes.due_in();
            let unreported = self.queue.unreported.due_in();
            let timeout = [own, unreported, retry].into_iter().flatten().min();
            match self.queue.next(timeout) {
                QueueEvent::Stale(item) => self.invalidate(&item),
                QueueEvent::Idle if retry.is_some() => self.retry_unknown(),
                QueueEvent::Passed | QueueEvent::Idle => {}
                QueueEvent::Closed => return,
            }
            self.check_own_changes();
            self.drop_unreported();
        }
    }

    /// Ignores errors: they mean that the client has disconnected, which the session notices.
    fn invalidate(&mut self, item: &StaleItem) {
        match item {
            StaleItem::Node(node) => self.invalidate_node(*node),
            StaleItem::Name(parent, name) => {
                // A client that does not know the directory has no names of it.
                if self.nodes.is_known(*parent) {
                    self.invalidate_name(*parent, name);
                }
                self.invalidate_node(*parent);
            }
            StaleItem::Everything => self.invalidate_everything(),
        }
    }

    fn invalidate_name(&self, parent: u64, name: &[u8]) {
        let _turn = self.queue.inbox().map(EventInbox::take_turn);
        let _ = self.invalidator.invalidate_name(parent, name);
    }

    fn invalidate_everything(&mut self) {
        let has_dropped_names = self.invalidator.invalidate_all_names().is_ok();
        for node in self.nodes.ids() {
            let place = self
                .nodes
                .handle(node)
                .ok()
                .and_then(|node| node.parent_and_name());
            if let (false, Some((parent, name))) = (has_dropped_names, place) {
                let parent = node_id(self.queue.root, parent);
                self.invalidate_name(parent, &name);
            }
            self.invalidate_node(node);
        }
        self.invalidate_node(ROOT);
    }

    fn invalidate_node(&mut self, node: u64) {
        let is_unknown = if self.nodes.is_known(node) {
            send_stale(self.nodes, self.invalidator, node)
        } else {
            self.queue.has_replies_in_progress()
        };
        if is_unknown && !self.unknown.iter().any(|(unknown, _)| *unknown == node) {
            self.unknown.push((node, 0));
        }
    }

    /// Invalidates nodes that both the client and external writers have changed.
    fn check_own_changes(&mut self) {
        for (node, left_as) in self.queue.own_changes.take_due() {
            let Ok(handle) = self.nodes.handle(node) else {
                continue;
            };
            // Folio has ignored the events of this moment, too: it asks the host again.
            handle.invalidate();
            if handle
                .stat()
                .is_ok_and(|now| ContentVersion::of(&now) != left_as)
            {
                self.invalidate_node(node);
            }
        }
    }

    /// Invalidates pages and listings that the client has had for their time to live.
    fn drop_unreported(&mut self) {
        for (node, ()) in self.queue.unreported.take_due() {
            self.invalidate_node(node);
        }
    }

    fn retry_unknown(&mut self) {
        self.queue.wait_for_replies();
        let (nodes, invalidator) = (self.nodes, self.invalidator);
        self.unknown.retain_mut(|(node, tries)| {
            *tries += 1;
            nodes.is_known(*node) && send_stale(nodes, invalidator, *node) && *tries < TRIES_MAX
        });
    }
}

/// Invalidates a node; returns whether the client does not know it. Without its first page the
/// kernel reads a listing anew from the beginning. A listing that is being stored must keep its
/// last page: else the kernel stores no page of it any more (fs/fuse/readdir.c,
/// `fuse_add_dirent_to_cache`).
fn send_stale(nodes: &NodeTable, invalidator: &dyn Invalidator, node: u64) -> bool {
    let handle = nodes.handle(node);
    let is_directory = handle.is_ok_and(|h| h.attributes().file_type == FileType::Directory);
    let len_bytes = if is_directory { LISTING_START_BYTES } else { 0 };
    matches!(invalidator.invalidate_node(node, len_bytes), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::syscall::Caller;
    use folio::vfs::{Change, ChangeListener, Credentials, InodeNumber};
    use parking_lot::Mutex;

    /// A client that records the notices it receives.
    #[derive(Default)]
    struct RecordingClient {
        notices: Mutex<Vec<String>>,
        /// How many more times it reports a node as unknown.
        unknown: Mutex<u32>,
    }

    impl Invalidator for RecordingClient {
        fn invalidate_node(&self, node: u64, _len_bytes: i64) -> io::Result<bool> {
            self.notices.lock().push(format!("node {node}"));
            let mut unknown = self.unknown.lock();
            *unknown = unknown.saturating_sub(1);
            Ok(*unknown == 0)
        }

        fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
            let name = name.escape_ascii();
            self.notices.lock().push(format!("name {name} in {parent}"));
            Ok(())
        }

        fn invalidate_all_names(&self) -> io::Result<()> {
            self.notices.lock().push("names".to_owned());
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn push_all(queue: &ChangeQueue, nodes: &NodeTable, client: &RecordingClient) -> Vec<String> {
        std::thread::scope(|scope| {
            scope.spawn(|| push(queue, nodes, client));
            while !queue.is_empty() || *client.unknown.lock() > 0 {
                std::thread::yield_now();
            }
            queue.close();
        });
        queue.reopen();
        std::mem::take(&mut *client.notices.lock())
    }

    #[test]
    fn push_repeats_until_client_knows_node() {
        let kernel = folio::Kernel::new(folio::KernelOptions::default());
        let credentials = Credentials::root();
        let caller = Caller::new(&kernel, &credentials, 0);
        let nodes = NodeTable::new(caller.root(), kernel.cache().objects().clone());
        let made = caller.mkdir(&caller.root(), b"d", 0o755).unwrap();
        let node = nodes.look_up(made).unwrap().id;
        let queue = ChangeQueue::new(caller.root().number());
        let client = RecordingClient::default();
        let root = InodeNumber(caller.root().number());
        queue.changed(Change::Inode(InodeNumber(node)));
        queue.changed(Change::Inode(InodeNumber(node + 1)));
        queue.changed(Change::Name(root, b"d"));
        queue.changed(Change::Name(InodeNumber(node + 1), b"x"));
        assert_eq!(
            push_all(&queue, &nodes, &client),
            [&format!("node {node}"), "name d in 1", "node 1"]
        );
        queue.changed(Change::Everything);
        // This client has no message that invalidates all names at once.
        assert_eq!(
            push_all(&queue, &nodes, &client),
            ["names", "name d in 1", &format!("node {node}"), "node 1"]
        );
        for (changed, id) in [(InodeNumber(node), node), (root, ROOT)] {
            *client.unknown.lock() = 4;
            queue.changed(Change::Inode(changed));
            assert_eq!(
                push_all(&queue, &nodes, &client),
                vec![format!("node {id}"); 4]
            );
        }
    }
}
