//! What a name means: paths, dentries, inodes, mounts, open files.
//!
//! ```text
//!   syscall/
//!      v
//!   quick_walk.rs   path -> LocationRef under a pin       open.rs names.rs rename.rs   change names
//!      | anything out of the ordinary                     attributes.rs xattr.rs       change inodes
//!   walk.rs         path -> Location (mount + dentry)     permission.rs acl.rs         who may
//!      v                                                  table.rs         descriptor -> open file
//!   dentry_cache.rs names in memory                       file.rs          open files: data
//!   dentry.rs       the tree of names                       |
//!   coherence.rs    what others may change, and until when it is believed
//!   mount.rs        what covers what                        |
//!   mount_options.rs  how; reserve.rs                       |
//!      |  names, attributes (attribute_cell.rs)             |
//!      v                                                    v
//!   [file system seam: filesystem.rs]                     cache/
//! ```
//!
//! Neighbours: `syscall` above calls [`Context`](walk::Context) and [`OpenFile`](file::OpenFile);
//! below are `cache` and the file systems behind the seam.
//!
//! Two ways lead along a path. The quick one takes no lock and no reference: it reads the dentry
//! cache, the mounts and the inodes' attributes under a pin (base/rcu.rs) and knows plain names
//! alone. Whatever it does not know, and every change, goes the other way, with locks and
//! references.
//!
//! Lock order:
//! ```text
//!   OpenFile::position
//!     Mount::rename_lock               names that move between directories
//!       inode lock of a directory      ancestor first, unrelated ones by address; where others move directories (hostfs)
//!                                      nobody knows which is which: two only with rename_lock held
//!         inode lock of a directory that moves or goes
//!           inode lock of a file       by address
//!             table of mounts; DentryCache::moving; a shard of the dentry cache; Dentry::place;
//!             AclCache::present
//!             whatever the file system locks
//!   list of descriptor tables          with no other lock held
//!     one table
//! ```
//!
//! Invariants:
//! - V1: a dentry that is not deleted is in the cache as long as anybody uses it; so a directory
//!   has one dentry.
//! - V2: what the cache says of a directory's names changes only under that directory's inode lock.
//! - V3: no reference to an inode is dropped while a lock of the dentry cache is held.
//! - V4: a closed file that waits for a grace period has a name: who takes a name away lets go of
//!   all closed files afterwards (`Vfs::let_go`), and a file without a name is let go of when it is
//!   closed. So an inode without names is freed before the call that takes the last reference
//!   returns.
//! - V5: whoever is pinned takes none of these locks but a shard's, and waits for nothing;
//!   dentries, mounts and open files that were reached by a pin are dropped by who unpublished
//!   them, after a grace period (never by way of `rcu::defer`: they own inodes).
//! - V6: a file system publishes an inode's attributes before it unlocks what guards their change.

mod acl;
mod advice;
mod attribute_cell;
mod attributes;
mod birth;
mod coherence;
mod dentry;
mod dentry_cache;
mod file;
mod filesystem;
mod mount;
mod mount_options;
mod names;
mod open;
mod permission;
mod quick_walk;
mod rename;
mod reserve;
mod table;
#[cfg(test)]
mod tests;
mod walk;
mod xattr;

pub use crate::base::InodeNumber;
pub(crate) use crate::cache::Counters;
pub use crate::cache::{Borrowed, BorrowedRead};
pub use acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, Tag as AclTag, set_access_acl};
pub use advice::{Advice, SyncFileRange};
pub use attribute_cell::AttributeCell;
pub use coherence::{Change, ChangeListener, Coherence, FOREVER_NS, Question};
pub(crate) use coherence::{attributes, known_attributes};
pub(crate) use file::{OpenFile, Seek, Start, copy, copy_range, read_directory, touch_accessed};
pub use filesystem::{
    AttributeChange, Attributes, DirectoryEntry, ExtentPlace, FallocateMode, FileExtent,
    FileSystem, FileSystemStatistics, FileType, Inode, InodeCommon, NewInode, Opened, RenameFlags,
    SeekKind, SetTime, WriteAt, XattrFlags,
};
pub(crate) use mount::{Location, LocationRef, Vfs};
pub use mount_options::{AccessTime, MountOptions};
pub use open::OpenFlags;
pub use permission::Credentials;
pub(crate) use quick_walk::Quick;
pub use reserve::{ReserveOwners, may_use_reserve};
pub(crate) use table::FileTable;
pub(crate) use walk::{Context, LastLink};
