//! From FUSE's operations on inode ids to Folio's calls on handles, whatever carries them.
//!
//! ```text
//!   transport --- Client, ids ---> Adapter --- Caller, Handle ---> folio::syscall
//!                 <-- Entry ----     |
//!                        nodes: id -> handle, lookups      mod.rs, names.rs
//!                        files: id -> open file            data.rs, attributes.rs, node_files.rs
//!             <-- Invalidator ---- changes: what others did      changes.rs
//! ```
//!
//! Neighbours: a transport above, which decodes requests and encodes replies; folio's public API
//! below.
//!
//! Invariants:
//! - A1: a node is in the table as long as the kernel may name it: its count is that of the entries
//!   told, less those forgotten. Its handle keeps the inode alive, so no other inode gets its id
//!   meanwhile; unless others have removed it and its number was used again, of which the
//!   generation tells.
//! - A2: a node id is the inode number, but that the root and inode 1 change places: FUSE calls the
//!   root 1.
//! - A3: no lock of a table is held while a call is made or a handle is dropped.
//! - A4: what others change reaches the kernel by a thread that serves no request, and no request
//!   waits for it: the kernel answers a notice only when it has the lock of the directory, or the
//!   lock of the page, that it concerns, and whoever has that lock may be waiting for a reply.

mod attributes;
mod changes;
mod data;
mod names;
mod node_files;
mod own_changes;
mod table;
#[cfg(test)]
mod tests;

pub use attributes::Change;
pub use changes::{Invalidator, ReplyGuard};
pub use names::DirectoryEntry;

use changes::{Changes, node_id};
use folio::syscall::{Caller, Credentials, Handle, OpenHandle};
use folio::vfs::Attributes;
use folio::{Errno, Kernel, Result, Timespec};
use node_files::{Opened, OwnFiles};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use table::Table;

/// The root's node id (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;
/// For how long a kernel may believe at most: it knows what it changes itself, so only what nobody
/// asked for (blocks that writeback allocated) is ever told late.
const TTL_MAX: Duration = Duration::from_secs(3600);

/// Who asks, as a request tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Whose permissions count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionChecks {
    /// The asking kernel has checked permissions before it asks, with supplementary groups,
    /// capabilities and ACLs, which requests do not carry (`default_permissions`). What is made
    /// belongs to who asks.
    ByClient,
    /// Nobody's: everybody acts as the superuser, who owns what is made.
    Off,
}

/// An inode as a reply tells it; the kernel must forget it once.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Node id.
    pub id: u64,
    /// Which of the inodes that had this id one after the other.
    pub generation: u64,
    /// What stat(2) tells.
    pub attributes: Attributes,
    /// For how long it may be believed.
    pub attributes_ttl: Duration,
    /// For how long the name may be believed to lead here.
    pub name_ttl: Duration,
}

struct Node {
    handle: Handle,
    lookups: u64,
    generation: u64,
    /// Open files of the node's own; node_files.rs.
    own_files: OwnFiles,
    /// What it was when the kernel opened it last.
    opened_as: Option<Version>,
    /// The kernel has written it past its own pages.
    is_rewritten: bool,
}

/// What changes with the contents: size and times.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version(u64, Timespec, Timespec);

impl Version {
    fn of(attributes: &Attributes) -> Self {
        Self(
            attributes.size_bytes,
            attributes.modified,
            attributes.changed,
        )
    }
}

/// One file system, served to one kernel. Calls from any thread.
pub struct Adapter {
    nodes: Table<Node>,
    files: Table<OpenHandle>,
    /// Of the host, by nodes.
    opened: Opened,
    /// Nodes that the kernel may change past Folio's cache.
    direct: Table<()>,
    next_file: AtomicU64,
    root: Handle,
    judge: PermissionChecks,
    changes: Arc<Changes>,
    // Last, so that handles are let go of before the kernel may unmount.
    kernel: Arc<Kernel>,
}

impl Adapter {
    /// Serves what is mounted as `/`.
    pub fn new(kernel: Arc<Kernel>, judge: PermissionChecks) -> Self {
        let root = Caller::new(&kernel, &Credentials::root(), 0).root();
        Self {
            nodes: Table::new(),
            files: Table::new(),
            opened: Opened::default(),
            direct: Table::new(),
            next_file: AtomicU64::new(first_file()),
            changes: Arc::new(Changes::new(root.number())),
            root,
            judge,
            kernel,
        }
    }

    /// Forgets an inode as often as its entry was told (`FUSE_FORGET`).
    pub fn forget(&self, id: u64, lookups: u64) {
        let gone = self.nodes.remove_if(id, |node| {
            node.lookups = node.lookups.saturating_sub(lookups);
            node.lookups == 0
        });
        if let Some(node) = gone {
            self.release_own(&node.own_files);
        }
    }

    /// How many nodes the kernel knows, and how many files are open.
    pub fn load(&self) -> (usize, usize) {
        (self.nodes.len(), self.files.len())
    }

    /// Makes calls as `client`.
    fn act<T>(
        &self,
        client: Client,
        umask: u16,
        call: impl FnOnce(Caller<'_>) -> Result<T>,
    ) -> Result<T> {
        let credentials = match self.judge {
            PermissionChecks::ByClient => Credentials {
                is_capable: true,
                ..Credentials::user(client.uid, client.gid, Vec::new())
            },
            PermissionChecks::Off => Credentials::root(),
        };
        call(Caller::new(&self.kernel, &credentials, umask))
    }

    /// The handle behind a node id; ESTALE for one that was never told or is forgotten.
    fn handle(&self, id: u64) -> Result<Handle> {
        if id == ROOT {
            return Ok(self.root.clone());
        }
        Ok(self
            .nodes
            .get(id, |node| node.handle.clone())
            .ok_or(Errno::STALE)?)
    }

    /// The open file behind a file id; EBADF if there is none.
    fn file(&self, id: u64) -> Result<OpenHandle> {
        Ok(self.files.get(id, OpenHandle::clone).ok_or(Errno::BADF)?)
    }

    /// Counts an entry that is going to be told, by a name that may be believed for `name_ttl`.
    fn tell(&self, handle: Handle, name_ttl: Duration) -> Result<Entry> {
        let id = self.id(handle.number());
        let attributes = self.stat(id, &handle)?;
        let mut entry = Entry {
            id,
            generation: 0,
            attributes,
            attributes_ttl: handle.ttl().min(TTL_MAX),
            name_ttl,
        };
        if entry.id != ROOT {
            let own_files = OwnFiles::default();
            let node = Node {
                handle,
                lookups: 1,
                generation: 0,
                own_files,
                opened_as: None,
                is_rewritten: false,
            };
            let spare = self.nodes.add(entry.id, node, |node, newer| {
                // Others may have moved it: where it was found last is where it is.
                std::mem::swap(&mut node.handle, &mut newer.handle);
                if !node.handle.is_same(&newer.handle) {
                    node.generation += 1;
                    node.opened_as = None;
                    std::mem::swap(&mut node.own_files, &mut newer.own_files);
                }
                node.lookups += 1;
                entry.generation = node.generation;
            });
            if let Some(spare) = spare {
                self.release_own(&spare.own_files);
            }
        }
        Ok(entry)
    }

    /// Everything stat(2) tells. What the kernel may have changed by itself is asked for.
    fn stat(&self, id: u64, handle: &Handle) -> Result<Attributes> {
        if self.direct.get(id, |()| ()).is_some() {
            handle.invalidate();
        }
        handle.stat()
    }

    fn ttl_of(&self, parent: &Handle, name: &[u8]) -> Duration {
        Caller::new(&self.kernel, &Credentials::root(), 0)
            .name_ttl(parent, name)
            .min(TTL_MAX)
    }

    fn keep(&self, file: OpenHandle) -> u64 {
        let id = self.next_file.fetch_add(1, Ordering::Relaxed);
        let spare = self.files.add(id, file, |_, _| {
            unreachable!("numbers of open files are never used twice")
        });
        drop(spare);
        id
    }

    /// A2.
    fn id(&self, number: u64) -> u64 {
        node_id(self.root.number(), number)
    }
}

/// Where file ids begin: at a number by chance, so that a kernel that outlives its server, and
/// comes to another one with files that it has open, names none of that one's. At most half of all
/// numbers, so that they do not end.
fn first_file() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness they begin at 1, which serves every kernel that does not outlive its
    // server.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    (u64::from_le_bytes(bytes) >> 1).max(1)
}
