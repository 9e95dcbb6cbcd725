//! What others have changed, on its way to a kernel that keeps what it was told.

use super::own_changes::OwnChanges;
use super::{Adapter, Node, ROOT, Table, Version};
use folio::vfs::{Change, ChangeListener};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Changes that wait at most; with more, everything is forgotten.
const QUEUE_MAX: usize = 8192;
/// When a kernel is asked again to forget what it did not know yet.
const RETRY: Duration = Duration::from_millis(1);
/// How often at most.
const TRIES_MAX: u32 = 8;
/// How long at most the replies under way are waited for.
const REPLIES: Duration = Duration::from_millis(100);

/// How a carrier makes its kernel forget. Called by a thread that holds nothing a request might
/// wait for.
pub trait Invalidator {
    /// Attributes, pages and the listing of a node; false if the kernel does not know the node.
    fn invalidate_node(&self, node: u64) -> io::Result<bool>;

    /// What a name in a directory leads to, or that it leads nowhere.
    fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()>;

    /// Where all names lead; an error if the carrier cannot say so, and they are told one by one.
    fn invalidate_all_names(&self) -> io::Result<()>;
}

/// Something that a kernel must not believe any longer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stale {
    /// What it was told of a node.
    Node(u64),
    /// What it was told of a name in a directory.
    Name(u64, Box<[u8]>),
    Everything,
}

/// A queue that the file system fills and one thread of a carrier empties.
pub(super) struct Changes {
    /// The root's inode number.
    root: u64,
    pub(super) own: OwnChanges,
    queue: Mutex<Queue>,
    more: Condvar,
    replies: Mutex<Replies>,
    replied: Condvar,
}

#[derive(Default)]
struct Queue {
    stale: VecDeque<Stale>,
    /// The same, so that nothing is in it twice.
    known: HashSet<Stale>,
    is_over: bool,
    /// Whoever waits shall look around.
    wake_requested: bool,
}

/// Replies under way that tell attributes or names, those begun in even periods and those begun in
/// odd ones.
#[derive(Default)]
struct Replies {
    period: usize,
    under_way: [usize; 2],
}

/// A reply under way, from before the file system is asked until the reply is sent.
pub struct ReplyGuard<'a> {
    changes: &'a Changes,
    period: usize,
}

enum Next {
    Stale(Stale),
    /// Nothing for a while, or a nudge.
    Quiet,
    Over,
}

impl Changes {
    pub(super) fn new(root: u64) -> Self {
        Self {
            root,
            own: OwnChanges::default(),
            queue: Mutex::default(),
            more: Condvar::new(),
            replies: Mutex::default(),
            replied: Condvar::new(),
        }
    }

    fn add(&self, stale: Stale) {
        let mut queue = self.queue.lock();
        if queue.known.contains(&stale) || queue.known.contains(&Stale::Everything) {
            return;
        }
        let is_full = queue.stale.len() >= QUEUE_MAX;
        if is_full || stale == Stale::Everything {
            queue.stale.clear();
            queue.known.clear();
        }
        let stale = if is_full { Stale::Everything } else { stale };
        queue.known.insert(stale.clone());
        queue.stale.push_back(stale);
        drop(queue);
        self.more.notify_one();
    }

    /// The next change; waits for one, with `patience` only so long.
    fn next(&self, patience: Option<Duration>) -> Next {
        let mut queue = self.queue.lock();
        let is_quiet =
            |queue: &Queue| queue.stale.is_empty() && !queue.is_over && !queue.wake_requested;
        match patience {
            None => self.more.wait_while(&mut queue, |queue| is_quiet(queue)),
            Some(patience) => {
                let _ = self
                    .more
                    .wait_while_for(&mut queue, |queue| is_quiet(queue), patience);
            }
        }
        queue.wake_requested = false;
        match queue.stale.pop_front() {
            _ if queue.is_over => Next::Over,
            Some(stale) => {
                queue.known.remove(&stale);
                Next::Stale(stale)
            }
            None => Next::Quiet,
        }
    }

    /// Has whoever waits for a change look around.
    pub(super) fn request_wake(&self) {
        self.queue.lock().wake_requested = true;
        self.more.notify_all();
    }

    fn end(&self) {
        self.queue.lock().is_over = true;
        self.more.notify_all();
    }

    fn begin_reply(&self) -> ReplyGuard<'_> {
        let mut replies = self.replies.lock();
        let period = replies.period;
        replies.under_way[period] += 1;
        ReplyGuard {
            changes: self,
            period,
        }
    }

    fn is_telling(&self) -> bool {
        self.replies.lock().under_way != [0, 0]
    }

    /// Waits until every reply that is under way has been sent, but not for ever; replies that
    /// begin meanwhile are not waited for.
    fn wait_for_replies(&self) {
        let mut replies = self.replies.lock();
        for _ in 0..2 {
            let period = replies.period;
            replies.period = 1 - period;
            while replies.under_way[period] != 0 {
                if self.replied.wait_for(&mut replies, REPLIES).timed_out() {
                    return;
                }
            }
        }
    }
}

impl Drop for ReplyGuard<'_> {
    fn drop(&mut self) {
        let mut replies = self.changes.replies.lock();
        replies.under_way[self.period] -= 1;
        let is_last = replies.under_way[self.period] == 0;
        drop(replies);
        if is_last {
            self.changes.replied.notify_all();
        }
    }
}

impl ChangeListener for Changes {
    fn changed(&self, change: Change<'_>) {
        let id = |number| node_id(self.root, number);
        self.add(match change {
            Change::Inode(number) => Stale::Node(id(number.0)),
            Change::Name(directory, name) => Stale::Name(id(directory.0), name.into()),
            Change::Everything => Stale::Everything,
        });
    }
}

/// A2.
pub(super) fn node_id(root: u64, number: u64) -> u64 {
    match number {
        _ if number == root => ROOT,
        ROOT => root,
        _ => number,
    }
}

/// Pushes changes to one kernel.
///
/// A kernel that is told to forget what it does not know yet, because a reply is still on its way
/// to it, would remember afterwards what is not true any more. So what it did not know is told
/// again, once the replies that were under way have been sent, until it knows it or has forgotten
/// it.
struct Push<'a> {
    changes: &'a Changes,
    nodes: &'a Table<Node>,
    notify: &'a dyn Invalidator,
    /// Nodes to tell again, and how often that was done.
    unknown: Vec<(u64, u32)>,
}

impl Push<'_> {
    fn run(mut self) {
        loop {
            let retry = (!self.unknown.is_empty()).then_some(RETRY);
            let patience = self.changes.own.due_in().into_iter().chain(retry).min();
            match self.changes.next(patience) {
                Next::Stale(stale) => self.tell(&stale),
                Next::Quiet if retry.is_some() => self.tell_again(),
                Next::Quiet => {}
                Next::Over => return,
            }
            self.tell_hidden();
        }
    }

    /// Errors mean that the kernel has gone, which the session notices.
    fn tell(&mut self, stale: &Stale) {
        match stale {
            Stale::Node(node) => self.tell_node(*node),
            Stale::Name(parent, name) => {
                if *parent == ROOT || self.nodes.get(*parent, |_| ()).is_some() {
                    let _ = self.notify.invalidate_name(*parent, name);
                }
                self.tell_node(*parent);
            }
            Stale::Everything => {
                let is_told = self.notify.invalidate_all_names().is_ok();
                for node in self.nodes.ids() {
                    let place = self.nodes.get(node, |node| node.handle.place()).flatten();
                    if let (false, Some((parent, name))) = (is_told, place) {
                        let _ = self
                            .notify
                            .invalidate_name(node_id(self.changes.root, parent), &name);
                    }
                    self.tell_node(node);
                }
                self.tell_node(ROOT);
            }
        }
    }

    fn tell_node(&mut self, node: u64) {
        let is_told = node == ROOT || self.nodes.get(node, |_| ()).is_some();
        let is_unknown = match is_told {
            true => matches!(self.notify.invalidate_node(node), Ok(false)),
            false => self.changes.is_telling(),
        };
        if is_unknown && !self.unknown.iter().any(|(unknown, _)| *unknown == node) {
            self.unknown.push((node, 0));
        }
    }

    /// Looks whether others have changed what the kernel changed as well.
    fn tell_hidden(&mut self) {
        for (node, left) in self.changes.own.take_due() {
            let Some(handle) = self.nodes.get(node, |node| node.handle.clone()) else {
                continue;
            };
            handle.invalidate();
            if handle.stat().is_ok_and(|now| Version::of(&now) != left) {
                self.tell_node(node);
            }
        }
    }

    fn tell_again(&mut self) {
        self.changes.wait_for_replies();
        let (nodes, notify) = (self.nodes, self.notify);
        self.unknown.retain_mut(|(node, tries)| {
            *tries += 1;
            let is_told = nodes.get(*node, |_| ()).is_some();
            is_told && matches!(notify.invalidate_node(*node), Ok(false)) && *tries < TRIES_MAX
        });
    }
}

impl Adapter {
    /// Has the file system tell what others change; false if nothing can be told. [`Adapter::push_changes`]
    /// passes it on.
    pub fn watch_changes(&self) -> bool {
        let changes: Arc<dyn ChangeListener> = self.changes.clone();
        let is_told = self.root.listen(Arc::downgrade(&changes));
        if is_told {
            self.watch_own();
        }
        is_told
    }

    /// Whether others may change the file system.
    pub fn is_shared(&self) -> bool {
        self.root.has_external_writers()
    }

    /// Whether changes of the node's attributes and data by others are told of.
    pub fn is_told_of(&self, node: u64) -> bool {
        // It is known only of what was asked for.
        self.attributes(node).is_ok()
            && self
                .handle(node)
                .is_ok_and(|handle| handle.has_change_notifications())
    }

    /// Makes the kernel forget what others change, until [`Adapter::stop_pushing`] is called.
    pub fn push_changes(&self, notify: &dyn Invalidator) {
        Push {
            changes: &self.changes,
            nodes: &self.nodes,
            notify,
            unknown: Vec::new(),
        }
        .run();
    }

    /// Ends [`Adapter::push_changes`].
    pub fn stop_pushing(&self) {
        self.changes.end();
    }

    /// To be held from before attributes or names are asked for until the reply that tells them is
    /// sent.
    pub fn begin_reply(&self) -> ReplyGuard<'_> {
        self.changes.begin_reply()
    }

    /// The client of another adapter of the same kernel has changed a node: attributes, contents or
    /// both.
    pub fn report_node_change(&self, node: u64) {
        self.stale(node);
    }

    /// The same of what a name in a directory leads to.
    pub fn report_name_change(&self, parent: u64, name: &[u8]) {
        self.changes.add(Stale::Name(parent, name.into()));
    }

    /// The kernel has changed a node without the file system's knowledge: neither believes what it
    /// knows of it.
    pub(super) fn stale(&self, node: u64) {
        self.changes.add(Stale::Node(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::vfs::InodeNumber;

    fn drain(changes: &Changes) -> Vec<Stale> {
        std::iter::from_fn(|| match changes.next(Some(Duration::ZERO)) {
            Next::Stale(stale) => Some(stale),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn changes_wait_once_and_too_many_are_everything() {
        let changes = Changes::new(2);
        for _ in 0..3 {
            changes.changed(Change::Inode(InodeNumber(7)));
            changes.changed(Change::Name(InodeNumber(2), b"name"));
        }
        changes.changed(Change::Inode(InodeNumber(1)));
        // The root is 1 to the kernel, and inode 1 has the root's number.
        assert_eq!(
            drain(&changes),
            [
                Stale::Node(7),
                Stale::Name(1, (*b"name").into()),
                Stale::Node(2)
            ]
        );
        for number in 0..2 * QUEUE_MAX as u64 {
            changes.changed(Change::Inode(InodeNumber(number)));
        }
        assert_eq!(drain(&changes)[0], Stale::Everything);
        changes.end();
        assert!(matches!(changes.next(None), Next::Over));
    }

    #[test]
    fn replies_under_way_are_waited_for_and_later_ones_not() {
        let changes = Changes::new(2);
        changes.wait_for_replies();
        let first = changes.begin_reply();
        assert!(changes.is_telling());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| changes.wait_for_replies());
            while changes.replies.lock().period == 0 {
                std::thread::yield_now();
            }
            let _later = changes.begin_reply();
            drop(first);
            // It would wait for its limit else, which is an end too; what is tested is that it
            // ends.
            waiting.join().unwrap();
        });
        assert!(!changes.is_telling());
    }

    /// A kernel that writes down what it is told.
    #[derive(Default)]
    struct Listening {
        told: Mutex<Vec<String>>,
        /// How often it does not know a node yet.
        unknown: Mutex<u32>,
    }

    impl Invalidator for Listening {
        fn invalidate_node(&self, node: u64) -> io::Result<bool> {
            self.told.lock().push(format!("node {node}"));
            let mut unknown = self.unknown.lock();
            *unknown = unknown.saturating_sub(1);
            Ok(*unknown == 0)
        }

        fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
            self.told
                .lock()
                .push(format!("name {} in {parent}", name.escape_ascii()));
            Ok(())
        }

        fn invalidate_all_names(&self) -> io::Result<()> {
            self.told.lock().push("names".to_owned());
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn push_all(adapter: &Adapter, kernel: &Listening) -> Vec<String> {
        std::thread::scope(|scope| {
            scope.spawn(|| adapter.push_changes(kernel));
            while !adapter.changes.queue.lock().stale.is_empty() || *kernel.unknown.lock() > 0 {
                std::thread::yield_now();
            }
            adapter.stop_pushing();
        });
        adapter.changes.queue.lock().is_over = false;
        std::mem::take(&mut *kernel.told.lock())
    }

    #[test]
    fn a_kernel_is_told_of_what_it_knows_until_it_knows_it() {
        let kernel = folio::Kernel::new(folio::KernelOptions::default());
        let adapter = Adapter::new(kernel, crate::adapter::PermissionChecks::Off);
        let client = crate::adapter::Client { uid: 0, gid: 0 };
        let node = adapter.mkdir(client, ROOT, b"d", 0o755, 0).unwrap().id;
        let listening = Listening::default();
        let root = InodeNumber(adapter.root.number());
        adapter.changes.changed(Change::Inode(InodeNumber(node)));
        adapter
            .changes
            .changed(Change::Inode(InodeNumber(node + 1)));
        adapter.changes.changed(Change::Name(root, b"d"));
        adapter
            .changes
            .changed(Change::Name(InodeNumber(node + 1), b"x"));
        let told = push_all(&adapter, &listening);
        assert_eq!(
            told,
            [
                format!("node {node}"),
                "name d in 1".to_owned(),
                "node 1".to_owned()
            ]
        );
        adapter.changes.changed(Change::Everything);
        let told = push_all(&adapter, &listening);
        // This one cannot forget all names at once.
        assert_eq!(
            told,
            ["names", "name d in 1", &format!("node {node}"), "node 1"]
        );
        *listening.unknown.lock() = 4;
        adapter.changes.changed(Change::Inode(InodeNumber(node)));
        let told = push_all(&adapter, &listening);
        assert_eq!(told, vec![format!("node {node}"); 4]);
    }
}
