//! The virtual file system: paths, dentries, inodes, mounts, open files.
//!
//! ```text
//!   syscall/
//!      v
//!   rcu_walk.rs  path -> LocationRef under a pin    open.rs directory_ops.rs rename.rs  change names
//!      | fallback                                   setattr.rs xattr.rs inode_init.rs   change inodes
//!   walk.rs host_names.rs  path -> Location         permission.rs acl.rs credentials.rs access
//!      v                                            file.rs held_file.rs vectored.rs read_batch.rs copy.rs advice.rs open_file_locks.rs  open files
//!   vfs.rs          mount table                     file_table.rs  descriptor -> open file
//!   dentry_cache.rs names in memory                   |
//!   dentry.rs       dentry, mount, location           |
//!   validity.rs revalidate.rs change.rs   external writers
//!      |  names, attributes (attribute_cell.rs)       |  cache hit: no call below
//!      v                                              v
//!   [traits: filesystem.rs, inode.rs (Inode, FileOperations)]  --- default data path ---> cache/
//! ```
//!
//! Neighbors: `syscall` above calls `Context` (walk.rs) and `OpenFile` (file.rs);
//! below are `cache`, and the file systems behind the traits.
//!
//! There are two path walks. The RCU walk takes no lock and no reference: under a pin
//! (base/rcu.rs), it reads the dentry cache, the mounts and the inodes' attributes, and handles
//! plain cached names only. Everything else, and every change, uses the walk with locks and
//! references.
//!
//! Lock order:
//! ```text
//!   OpenFile::position
//!     Mount::rename_lock               names that move between directories
//!       inode lock of a directory      ancestor first, unrelated ones by address; where external
//!                                      writers move directories (hostfs), their order is unknown:
//!                                      two only with rename_lock held
//!         inode lock of a directory that moves or is removed
//!           inode lock of a file       by address
//!             mount table; DentryCache::moving; a shard of the dentry cache; Dentry::position;
//!             AclCache::present
//!             locks of the file system
//!   list of file tables                with no other lock held
//!     one file table
//!   LockTable::state                   with the list of file tables at most
//! ```
//!
//! Invariants:
//! - V1: a dentry that is not deleted is in the cache as long as it is in use; so a directory has
//!   one dentry.
//! - V2: the cached names of a directory change only under that directory's inode lock.
//! - V3: no reference to an inode is dropped while a lock of the dentry cache is held.
//! - V4: a closed file that waits for a grace period has a name. After removing a name, the caller
//!   drops all cached closed files (`Vfs::drop_removed`), and a file without a name is dropped when
//!   it is closed. So an inode without names is freed before the call that drops the last reference
//!   returns.
//! - V5: a pinned thread takes none of these locks except a shard's, and never waits. The thread
//!   that unpublishes a dentry, mount or open file drops it after a grace period (never through
//!   `rcu::defer`, as they own inodes).
//! - V6: a file system publishes an inode's attributes before it unlocks the lock that guards their
//!   change.

mod access_time;
mod acl;
mod advice;
mod attribute_cell;
mod attributes;
mod by_number;
mod change;
mod copy;
mod credentials;
mod dentry;
mod dentry_cache;
mod directory_ops;
mod file;
mod file_locks;
mod file_table;
mod filesystem;
mod held_file;
mod host_names;
mod inode;
mod inode_init;
mod inode_ref;
mod mount_options;
mod open;
mod open_file_locks;
mod open_flags;
mod permission;
mod rcu_walk;
mod read_batch;
mod rename;
mod revalidate;
mod setattr;
#[cfg(test)]
mod tests;
mod validity;
mod vectored;
#[expect(
    clippy::module_inception,
    reason = "the VFS object, as Linux has fs/fs_context.c in fs/"
)]
mod vfs;
mod walk;
mod xattr;

pub use crate::base::{DeviceNumber, InodeNumber};
pub(crate) use crate::cache::Counters;
pub use crate::cache::{Borrowed, BorrowedRead, WriteSource};
pub(crate) use access_time::touch_accessed;
pub use acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, Tag as AclTag, set_access_acl};
pub use advice::{Advice, SyncFileRange};
pub use attribute_cell::AttributeCell;
pub use attributes::{AttributeChange, Attributes, FileType, InodeFlags, NewInode, SetTime};
pub use change::{Change, ChangeListener, EventName, FileEvent};
pub(crate) use copy::{CopySide, copy, copy_range};
pub use credentials::Credentials;
pub(crate) use dentry::{Location, LocationRef, Mount};
pub(crate) use file::{OpenFile, Seek, Start, read_directory, trim};
pub use file_locks::FlockOperation;
pub(crate) use file_locks::{LockOwner, LockTable, Record};
pub(crate) use file_table::FileTable;
pub use filesystem::{FileSystem, FileSystemStatistics};
pub use held_file::HeldFile;
pub use host_names::HostNames;
pub use inode::{
    DirectoryEntry, ExtentPlace, FallocateMode, FileExtent, FileOperations, Inode, InodeCommon,
    InodeLock, NameFolding, Opened, RenameFlags, RenameRequest, SeekKind, WriteAt, XattrFlags,
    buffered_borrow, buffered_read, buffered_write,
};
pub use mount_options::{AccessTime, MountOptions};
pub(crate) use open_file_locks::LockBase;
pub use open_file_locks::LockMode;
pub(crate) use open_flags::LastLink;
pub use open_flags::OpenFlags;
pub(crate) use rcu_walk::RcuWalk;
pub use read_batch::ReadAt;
pub(crate) use revalidate::attributes;
pub use validity::{AttrValidity, FOREVER_NS, RevalidateTicket};
pub(crate) use vfs::Vfs;
pub(crate) use walk::Context;
