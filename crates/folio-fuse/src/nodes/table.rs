//! The table itself: lookups counted, files numbered, contents compared between two opens.

use super::implicit_files::{ImplicitFiles, OpenOrder};
use super::prune::PruneRequests;
use super::sharded_map::{SHARDS, ShardedMap};
use folio::cache::{ObjectCharge, ObjectMemory};
use folio::syscall::{Handle, OpenHandle};
use folio::vfs::Attributes;
use folio::{Errno, Result, Timespec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The root's node id (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

/// Returns the node id of the inode `number` (N2).
pub(crate) fn node_id(root: u64, number: u64) -> u64 {
    match number {
        _ if number == root => ROOT,
        ROOT => root,
        _ => number,
    }
}

/// Attributes that change with the contents: size and times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentVersion(u64, Timespec, Timespec);

impl ContentVersion {
    pub(crate) fn of(attributes: &Attributes) -> Self {
        Self(
            attributes.size_bytes,
            attributes.modified,
            attributes.changed,
        )
    }
}

/// A node as a reply describes it; the client must forget it once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeEntry {
    pub(crate) id: u64,
    /// Distinguishes inodes that had this id one after the other.
    pub(crate) generation: u64,
    pub(crate) attributes: Attributes,
    /// Validity of the attributes.
    pub(crate) attributes_ttl: Duration,
}

struct Node {
    handle: Handle,
    lookups: u64,
    generation: u64,
    implicit_files: ImplicitFiles,
    /// The contents when the client opened it last.
    opened_as: Option<ContentVersion>,
    /// Whether the client has written it past its own page cache.
    is_rewritten: bool,
    _charge: ObjectCharge,
}

/// Bytes of a node's entry in a map that is two thirds full on average.
const NODE_BYTES: usize = size_of::<(u64, Node)>() * 3 / 2;

/// Nodes and open files of one client. Calls from any thread.
pub(crate) struct NodeTable {
    nodes: ShardedMap<Node>,
    /// By file id, with `FUSE_OPEN`.
    files: ShardedMap<OpenHandle>,
    next_file: AtomicU64,
    implicit_count: AtomicUsize,
    implicit_order: OpenOrder,
    /// Nodes that the client's kernel may change past Folio's cache, by passthrough.
    passed_through: ShardedMap<()>,
    root: Handle,
    /// The memory that nodes, and the inodes that they hold, are charged to.
    memory: Arc<ObjectMemory>,
    prune_requests: PruneRequests,
    /// The shard whose nodes are pruned next.
    prune_hand: AtomicUsize,
}

impl NodeTable {
    pub(crate) fn new(root: Handle, memory: Arc<ObjectMemory>) -> Self {
        Self {
            nodes: ShardedMap::new(),
            files: ShardedMap::new(),
            next_file: AtomicU64::new(first_file()),
            implicit_count: AtomicUsize::new(0),
            implicit_order: OpenOrder::default(),
            passed_through: ShardedMap::new(),
            root,
            memory,
            prune_requests: PruneRequests::default(),
            prune_hand: AtomicUsize::new(0),
        }
    }

    pub(crate) fn root(&self) -> &Handle {
        &self.root
    }

    /// Returns the node id of a handle.
    pub(crate) fn id(&self, handle: &Handle) -> u64 {
        node_id(self.root.number(), handle.number())
    }

    /// Returns the node id of an inode number.
    pub(crate) fn id_of(&self, number: u64) -> u64 {
        node_id(self.root.number(), number)
    }

    /// Returns the inode number of a node id.
    pub(crate) fn number(&self, node: u64) -> u64 {
        // The exchange of root and inode 1 is its own inverse (N2).
        node_id(self.root.number(), node)
    }

    /// Returns the handle of a node; ESTALE for an id that was never sent or is forgotten.
    pub(crate) fn handle(&self, node: u64) -> Result<Handle> {
        if node == ROOT {
            return Ok(self.root.clone());
        }
        let handle = self.nodes.get(node, |node| node.handle.clone());
        Ok(handle.ok_or(Errno::STALE)?)
    }

    /// Returns whether the client knows the node.
    pub(crate) fn is_known(&self, node: u64) -> bool {
        node == ROOT || self.nodes.contains(node)
    }

    /// Returns the ids of all nodes but the root.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.nodes.ids()
    }

    /// Returns the numbers of nodes and of open files.
    pub(crate) fn len(&self) -> (usize, usize) {
        let implicit = self.implicit_count.load(Ordering::Relaxed);
        (self.nodes.len(), self.files.len() + implicit)
    }

    /// Returns the attributes of a node.
    pub(crate) fn attributes(&self, node: u64) -> Result<Attributes> {
        self.stat(&self.handle(node)?)
    }

    /// Returns the attributes behind a handle, revalidated if the client may have changed them by
    /// passthrough.
    pub(crate) fn stat(&self, handle: &Handle) -> Result<Attributes> {
        self.invalidate_passed_through(handle);
        handle.stat()
    }

    /// Counts one lookup of the inode, whose entry is about to be sent.
    pub(crate) fn look_up(&self, handle: Handle) -> Result<NodeEntry> {
        // Before the lookup is counted: after a failure the client has nothing to forget (N1).
        let attributes = self.stat(&handle)?;
        Ok(self.look_up_as(handle, attributes))
    }

    /// Counts one lookup of the inode, whose entry with these attributes is about to be sent.
    pub(crate) fn look_up_as(&self, handle: Handle, attributes: Attributes) -> NodeEntry {
        let mut entry = NodeEntry {
            id: self.id(&handle),
            generation: 0,
            attributes,
            attributes_ttl: handle.ttl(),
        };
        if entry.id == ROOT {
            return entry;
        }
        let node = Node {
            handle,
            lookups: 1,
            generation: 0,
            implicit_files: ImplicitFiles::default(),
            opened_as: None,
            is_rewritten: false,
            _charge: self.memory.charge(NODE_BYTES),
        };
        let spare = self.nodes.insert_or_merge(entry.id, node, |node, newer| {
            // An external writer may have renamed it: the name found last is the valid one.
            std::mem::swap(&mut node.handle, &mut newer.handle);
            if !node.handle.is_same(&newer.handle) {
                node.generation += 1;
                node.opened_as = None;
                std::mem::swap(&mut node.implicit_files, &mut newer.implicit_files);
            }
            node.lookups += 1;
            entry.generation = node.generation;
        });
        // Without the lock of the shard: the last handle of an inode may evict it.
        match spare {
            Some(spare) => self.release(spare),
            None if self.memory.is_over_limit() => self.prune_requests.add(),
            None => {}
        }
        entry
    }

    /// Uncounts lookups (`FUSE_FORGET`); returns whether the node is forgotten.
    pub(crate) fn forget(&self, node: u64, lookups: u64) -> bool {
        let removed = self.nodes.remove_if(node, |node| {
            node.lookups = node.lookups.saturating_sub(lookups);
            node.lookups == 0
        });
        let is_forgotten = removed.is_some();
        removed.into_iter().for_each(|node| self.release(node));
        is_forgotten
    }

    /// Waits until the memory is over its limit; returns nodes that the client is to forget unless
    /// it uses them, or `None` after [`NodeTable::stop_pruning`].
    pub(crate) fn next_to_prune(&self) -> Option<Vec<u64>> {
        let count = self.prune_requests.next()?;
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..SHARDS {
            let shard = self.prune_hand.fetch_add(1, Ordering::Relaxed);
            nodes.extend(self.nodes.ids_of_shard(shard));
            if nodes.len() >= count {
                break;
            }
        }
        Some(nodes)
    }

    /// Ends [`NodeTable::next_to_prune`].
    pub(crate) fn stop_pruning(&self) {
        self.prune_requests.close();
    }

    /// Removes all nodes and files, as after an unmount.
    pub(crate) fn clear(&self) {
        self.implicit_order.clear();
        self.files.clear(drop);
        self.nodes.clear(|node| self.release(node));
    }

    /// Drops a node that has left the table.
    fn release(&self, node: Node) {
        let closed = node.implicit_files.count();
        self.implicit_count.fetch_sub(closed, Ordering::Relaxed);
    }

    /// Adds an open file; returns its id.
    pub(crate) fn add_file(&self, file: OpenHandle) -> u64 {
        let id = self.next_file.fetch_add(1, Ordering::Relaxed);
        let spare = self
            .files
            .insert_or_merge(id, file, |_, _| unreachable!("file ids are never reused"));
        drop(spare);
        id
    }

    /// Returns an open file; EBADF for an unknown id.
    pub(crate) fn file(&self, id: u64) -> Result<OpenHandle> {
        Ok(self.files.get(id, OpenHandle::clone).ok_or(Errno::BADF)?)
    }

    /// Closes an open file.
    pub(crate) fn remove_file(&self, id: u64) {
        drop(self.files.remove_if(id, |_| true));
    }

    /// Returns the node's implicit file, to write (and read) with `writes`, else to read; opens it
    /// by `open` if it is closed.
    pub(crate) fn implicit_file(
        &self,
        node: u64,
        writes: bool,
        open: impl FnOnce(&Handle) -> Result<OpenHandle>,
    ) -> Result<OpenHandle> {
        let file = self.nodes.get(node, |node| {
            let file = node.implicit_files.get(writes).cloned();
            file.ok_or_else(|| node.handle.clone())
        });
        match file {
            Some(Ok(file)) => Ok(file),
            Some(Err(handle)) => self.add_implicit_file(node, writes, open(&handle)?),
            None if node == ROOT => Err(Errno::ISDIR.into()),
            None => Err(Errno::STALE.into()),
        }
    }

    /// Makes `file` the node's implicit file unless it has one; returns the node's.
    pub(crate) fn add_implicit_file(
        &self,
        node: u64,
        writes: bool,
        file: OpenHandle,
    ) -> Result<OpenHandle> {
        let added = self.nodes.change(node, |node| {
            // Another thread may have opened it meanwhile: both use the first file.
            let slot = node.implicit_files.slot(writes);
            let is_new = slot.is_none();
            if is_new {
                self.implicit_count.fetch_add(1, Ordering::Relaxed);
            }
            (slot.get_or_insert_with(|| file.clone()).clone(), is_new)
        });
        let (kept, is_new) = added.ok_or(Errno::STALE)?;
        if is_new && self.root.has_external_writers() {
            self.limit_implicit_files(node, writes);
        }
        Ok(kept)
    }

    /// Closes the implicit file that was opened first, if too many files of the host are open. The
    /// host reports write errors at once, so none is lost.
    fn limit_implicit_files(&self, node: u64, writes: bool) {
        if let Some((oldest, writes)) = self.implicit_order.push(node, writes) {
            let take = |node: &mut Node| node.implicit_files.slot(writes).take();
            if let Some(Some(closed)) = self.nodes.change(oldest, take) {
                self.implicit_count.fetch_sub(1, Ordering::Relaxed);
                drop(closed);
            }
        }
    }

    /// Returns whether the node has an implicit file to write.
    pub(crate) fn has_implicit_writer(&self, node: u64) -> bool {
        let has_writer = |node: &Node| node.implicit_files.get(true).is_some();
        self.nodes.get(node, has_writer).unwrap_or(false)
    }

    /// Returns whether the node's contents are the same as at the previous call, which the previous
    /// open made.
    pub(crate) fn is_as_opened_before(&self, node: u64) -> bool {
        let Ok(attributes) = self.attributes(node) else {
            return false;
        };
        let version = ContentVersion::of(&attributes);
        let before = self
            .nodes
            .change(node, |node| node.opened_as.replace(version));
        before == Some(Some(version))
    }

    /// Like [`NodeTable::is_as_opened_before`], revalidated first: an open sees what external
    /// writers have written before it.
    pub(crate) fn is_unchanged_since_open(&self, node: u64) -> bool {
        if let Ok(handle) = self.handle(node) {
            handle.invalidate();
        }
        self.is_as_opened_before(node)
    }

    /// Returns whether the file system reports external changes of the node's attributes and data.
    pub(crate) fn has_change_notifications(&self, node: u64) -> bool {
        // Known only after a revalidation.
        self.attributes(node).is_ok()
            && self
                .handle(node)
                .is_ok_and(|handle| handle.has_change_notifications())
    }

    /// Marks a node that the client's kernel reads and writes by itself from now on.
    pub(crate) fn begin_passthrough(&self, node: u64) {
        let _ = self.passed_through.insert_or_merge(node, (), |(), ()| ());
    }

    /// Ends [`NodeTable::begin_passthrough`] when the node is closed; false if there was none. The
    /// client's cached pages may be older than what it wrote through a mapping.
    pub(crate) fn end_passthrough(&self, node: u64) -> bool {
        let was_marked = self.passed_through.remove_if(node, |()| true).is_some();
        if was_marked && let Ok(handle) = self.handle(node) {
            handle.invalidate();
            self.nodes.change(node, |node| node.is_rewritten = true);
            return true;
        }
        false
    }

    /// Invalidates what the client's kernel may have changed by itself.
    pub(crate) fn invalidate_passed_through(&self, handle: &Handle) {
        if self.passed_through.contains(self.id(handle)) {
            handle.invalidate();
        }
    }

    /// Returns whether the client has written the node past its own page cache since the last call.
    pub(crate) fn take_rewritten(&self, node: u64) -> bool {
        self.nodes
            .change(node, |node| std::mem::take(&mut node.is_rewritten))
            .unwrap_or(false)
    }
}

/// Returns the first file id: a random number, so that a client that outlives its server names no
/// file of the next server with its old ids. At most half of all numbers, so that ids do not run
/// out.
fn first_file() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness ids begin at 1, which only a client that outlives its server notices.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    (u64::from_le_bytes(bytes) >> 1).max(1)
}
