//! Inspection of an unmounted ext4, read-only: the superblock's fields, inodes with their blocks,
//! directory blocks, owners of blocks, bitmaps and the log. Counterparts: dumpe2fs(8), debugfs(8).
//!
//! ```text
//!   summary.rs     fields of superblock and journal, by the names of dumpe2fs
//!   owners.rs      blocks -> inodes, inodes -> paths        log.rs   the journal's log
//!      v
//!   directory.rs   entries in the order of their blocks, paths
//!      v
//!   inode.rs       one inode, decoded
//!      v
//!   mapping.rs     the blocks of an inode, tree nodes included
//!      v
//!   inspector.rs   an open file system: inode tables, bitmaps
//! ```
//!
//! Neighbors: a device below, and the readers of `fs/ext4` beside it. The device is read as it is:
//! the journal is not replayed, as in debugfs.
//!
//! Invariant: damage gives an error that names the structure, or values as they are on disk. No
//! loop is longer than the file system.

mod directory;
mod inode;
mod inspector;
mod log;
mod mapping;
mod owners;
mod summary;

pub use super::journal::{JournalDump, JournalFields, LogRecord, LogRecordKind, LoggedBlock};
pub use directory::RawDirectoryEntry;
pub use inode::{InodeContent, InodeFields, InodeTime};
pub use inspector::{Ext4Inspector, UsedBlocks};
pub use mapping::{BlockRun, RunKind};
pub use summary::{FieldValue, SuperblockField, SuperblockSummary, summarize};
