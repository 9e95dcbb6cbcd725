//! What a name means: paths, dentries, inodes, mounts, open files.
//!
//! ```text
//!   syscall/
//!      v
//!   walk.rs   path -> Location (mount + dentry)         open.rs names.rs rename.rs   change names
//!      |                                                attributes.rs xattr.rs       change inodes
//!   table.rs  descriptor -> open file
//!   dentry.rs names in memory    mount.rs what covers what    permission.rs who may
//!      |  names, attributes                                   file.rs   open files: data
//!      v                                                         v
//!   [file system seam: filesystem.rs]                          cache/
//! ```
//!
//! Neighbours: `syscall` above calls [`Context`](walk::Context) and [`OpenFile`](file::OpenFile); below are
//! `cache` and the file systems behind the seam.
//!
//! Lock order:
//! ```text
//!   OpenFile::position
//!     Mount::rename_lock               names that move between directories
//!       inode lock of a directory      ancestor first, unrelated ones by address
//!         inode lock of a directory that moves or goes
//!           inode lock of a file       by address
//!             table of mounts; DentryCache::moving; a shard of the dentry cache; Dentry::place
//!             whatever the file system locks
//! ```
//!
//! The list of descriptor tables is locked before a table, and both with no other lock held or taken.
//!
//! Invariants:
//! - V1: a dentry that is not deleted is in the cache as long as anybody uses it; so a directory has one dentry.
//! - V2: what the cache says of a directory's names changes only under that directory's inode lock.
//! - V3: no reference to an inode is dropped while a lock of the dentry cache is held.
//! - V4: a closed file that waits for a grace period has a name: who takes a name away lets go of all closed files
//!   afterwards (`Vfs::drop_closed_files`), and a file without a name is let go of when it is closed. So an inode
//!   without names is freed before the call that takes the last reference returns.

mod attribute_cell;
mod attributes;
mod dentry;
mod file;
mod filesystem;
mod mount;
mod names;
mod open;
mod permission;
mod rename;
mod table;
mod walk;
mod xattr;

pub use attribute_cell::AttributeCell;
pub(crate) use file::{OpenFile, Start, copy};
pub use filesystem::{
    AttributeChange, Attributes, DirectoryEntry, FallocateMode, FileSystem, FileSystemStatistics, FileType,
    Inode, InodeCommon, MountOptions, NewInode, RenameFlags, SeekKind, SetTime, XattrFlags,
};
pub(crate) use mount::{Location, Vfs};
pub use open::OpenFlags;
pub use permission::Credentials;
pub(crate) use table::FileTable;
pub(crate) use walk::{Context, LastLink};
