//! From FUSE's operations on inode ids to Folio's calls on handles, whatever carries them.
//!
//! ```text
//!   transport --- Client, ids ---> Adapter --- Caller, Handle ---> folio::syscall
//!                 <-- Entry ----     |
//!                        nodes: id -> handle, lookups      mod.rs, names.rs
//!                        files: id -> open file            data.rs, attributes.rs, node_files.rs
//! ```
//!
//! Neighbours: a transport above, which decodes requests and encodes replies; folio's public API below.
//!
//! Invariants:
//! - A1: a node is in the table as long as the kernel may name it: its count is that of the entries told, less those
//!   forgotten. Its handle keeps the inode alive, so no other inode gets its id meanwhile.
//! - A2: a node id is the inode number, but that the root and inode 1 change places: FUSE calls the root 1.
//! - A3: no lock of a table is held while a call is made or a handle is dropped.

mod attributes;
mod data;
mod names;
mod node_files;
mod table;
#[cfg(test)]
mod tests;

pub use attributes::Change;
pub use names::DirectoryEntry;

use folio::syscall::{Caller, Credentials, Handle, OpenHandle};
use folio::vfs::Attributes;
use folio::{Errno, Kernel, Result};
use node_files::OwnFiles;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use table::Table;

/// The root's node id (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

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
pub enum Judge {
    /// The asking kernel has checked permissions before it asks, with supplementary groups, capabilities and ACLs,
    /// which requests do not carry (`default_permissions`). What is made belongs to who asks.
    Kernel,
    /// Nobody's: everybody acts as the superuser, who owns what is made.
    Nobody,
}

/// An inode as a reply tells it; the kernel must forget it once.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Node id.
    pub id: u64,
    /// What stat(2) tells.
    pub attributes: Attributes,
}

struct Node {
    handle: Handle,
    lookups: u64,
    /// Open files of the node's own; node_files.rs.
    own_files: OwnFiles,
}

/// One file system, served to one kernel. Calls from any thread.
pub struct Adapter {
    nodes: Table<Node>,
    files: Table<OpenHandle>,
    next_file: AtomicU64,
    root: Handle,
    judge: Judge,
    // Last, so that handles are let go of before the kernel may unmount.
    kernel: Arc<Kernel>,
}

impl Adapter {
    /// Serves what is mounted as `/`.
    pub fn new(kernel: Arc<Kernel>, judge: Judge) -> Self {
        let root = Caller::new(&kernel, &Credentials::root(), 0).root();
        Self { nodes: Table::new(), files: Table::new(), next_file: AtomicU64::new(1), root, judge, kernel }
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

    /// Makes calls as `client`.
    fn act<T>(&self, client: Client, umask: u16, call: impl FnOnce(Caller<'_>) -> Result<T>) -> Result<T> {
        let credentials = match self.judge {
            Judge::Kernel => {
                Credentials { is_capable: true, ..Credentials::user(client.uid, client.gid, Vec::new()) }
            }
            Judge::Nobody => Credentials::root(),
        };
        call(Caller::new(&self.kernel, &credentials, umask))
    }

    /// The handle behind a node id; ESTALE for one that was never told or is forgotten.
    fn handle(&self, id: u64) -> Result<Handle> {
        if id == ROOT {
            return Ok(self.root.clone());
        }
        Ok(self.nodes.get(id, |node| node.handle.clone()).ok_or(Errno::STALE)?)
    }

    /// The open file behind a file id; EBADF if there is none.
    fn file(&self, id: u64) -> Result<OpenHandle> {
        Ok(self.files.get(id, OpenHandle::clone).ok_or(Errno::BADF)?)
    }

    /// Counts an entry that is going to be told.
    fn tell(&self, handle: Handle) -> Entry {
        let entry = Entry { id: self.id(handle.number()), attributes: handle.attributes() };
        if entry.id != ROOT {
            let spare = self.nodes.add(
                entry.id,
                Node { handle, lookups: 1, own_files: OwnFiles::default() },
                |node| node.lookups += 1,
            );
            drop(spare);
        }
        entry
    }

    fn keep(&self, file: OpenHandle) -> u64 {
        let id = self.next_file.fetch_add(1, Ordering::Relaxed);
        let spare = self.files.add(id, file, |_| unreachable!("numbers of open files are never used twice"));
        drop(spare);
        id
    }

    /// A2.
    fn id(&self, number: u64) -> u64 {
        let root = self.root.number();
        match number {
            _ if number == root => ROOT,
            ROOT => root,
            _ => number,
        }
    }
}
