//! The node table: maps the client's node ids to handles, and its file ids to open files.
//!
//! ```text
//!   server/ --- node id, file id ---> table.rs ---> Handle, OpenHandle
//!                                        |  sharded_map.rs     id -> object, a lock per shard
//!                                        |  implicit_files.rs  open files of nodes without FUSE_OPEN
//!                                        |  prune.rs           requests to forget nodes
//! ```
//!
//! Neighbors: the operations of `server/` and the change queue above; folio's public API below.
//!
//! Locks: one shard of a map, or the queue of implicit files; never two of them.
//!
//! Invariants:
//! - N1: a node is in the table as long as the client may name it: its lookup count is that of the
//!   entries sent, less those forgotten. Its handle keeps the inode alive, so no other inode gets
//!   its id meanwhile. One exception: an external writer unlinked the inode and its number was
//!   reused; then the generation differs.
//! - N2: a node id is the inode number, except that the root and inode 1 are exchanged: FUSE calls
//!   the root 1.
//! - N3: no lock of a table is held while a call is made or a handle is dropped.
//! - N4: a node's memory, and that of the inode it holds, is charged to the kernel's cache. Over
//!   the limit, the client is asked to forget nodes; none is removed before it does (N1).

mod implicit_files;
mod prune;
mod sharded_map;
mod table;

pub use table::ROOT;
pub(crate) use table::{ContentVersion, NodeEntry, NodeTable, node_id};
