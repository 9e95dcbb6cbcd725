//! What a program asks: system calls as functions.
//!
//! ```text
//!   Process   process.rs      file descriptors, working directory, credentials, umask
//!     |-- files.rs            open, read, write, seek, list, sync
//!     |-- advice.rs           posix_fadvise, sync_file_range, counters of a file
//!     |-- names.rs            mkdir, mknod, link, unlink, rename, readlink
//!     |-- attributes.rs       stat, chmod, chown, utimes, truncate, statfs
//!     `-- xattrs.rs           extended attributes
//!   Caller    handles.rs      the same calls for servers, by handle, on behalf of anybody
//!     v
//!    vfs/
//! ```
//!
//! Neighbours: programs and faces above, `vfs` below. Here a path or a descriptor becomes a
//! location or an open file, and a failure gets the path it is about; what a call means is the
//! VFS's.
//!
//! Locks: descriptors, the working directory and paths in memory are read under a pin
//! (base/rcu.rs). What cannot block (stat, fstat) is done with that; what may takes a reference to
//! the open file or location first and ends the pin. Open and close lock the process's table of
//! descriptors.

mod advice;
mod attributes;
mod files;
mod flags;
mod handles;
mod names;
mod process;
mod xattrs;

pub use crate::vfs::{Advice, Borrowed, BorrowedRead, Credentials, OpenFlags, SyncFileRange};
pub use files::Dirent;
pub use flags::{AtFlags, Whence};
pub use handles::{Caller, Handle, OpenHandle};
pub use process::{AT_FDCWD, Fd, Process};
