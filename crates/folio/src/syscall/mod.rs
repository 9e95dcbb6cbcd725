//! What a program asks: system calls as functions.
//!
//! ```text
//!   Process   process.rs      file descriptors, working directory, credentials, umask
//!     |-- files.rs            open, read, write, seek, list, sync
//!     |-- names.rs            mkdir, mknod, link, unlink, rename, readlink
//!     |-- attributes.rs       stat, chmod, chown, utimes, truncate, statfs
//!     `-- xattrs.rs           extended attributes
//!     v
//!    vfs/
//! ```
//!
//! Neighbours: programs and faces above, `vfs` below. Here a path or a descriptor becomes a location or an open
//! file, and a failure gets the path it is about; what a call means is the VFS's.
//!
//! Locks: open and close lock the table of descriptors, which calls on a descriptor read under a pin (base/rcu.rs).
//! What may block takes a reference to the open file first and ends the pin; what cannot (fstat) goes without one.
//! The working directory has a lock, held only to copy a reference.

mod attributes;
mod files;
mod flags;
mod names;
mod process;
mod xattrs;

pub use crate::vfs::{Credentials, OpenFlags};
pub use files::Dirent;
pub use flags::{AtFlags, Whence};
pub use process::{AT_FDCWD, Fd, Process};
