//! System calls as functions.
//!
//! ```text
//!   Process   process.rs      file descriptors, working directory, credentials, umask
//!     |-- files.rs            open, read, write, seek, list, sync
//!     |-- locks.rs            flock, fcntl on ranges
//!     |-- vectored.rs         readv, preadv, writev, pwritev
//!     |-- advice.rs           posix_fadvise, sync_file_range, counters of a file
//!     |-- directory_ops.rs    mkdir, mknod, link, unlink, rename, readlink
//!     |-- attributes.rs       stat, statx, chmod, chown, utimes, truncate, statfs
//!     `-- xattrs.rs           extended attributes
//!   Caller    caller.rs       the same calls for servers, by handle, on behalf of any user
//!     v
//!    vfs/
//! ```
//!
//! Neighbors: programs and faces above, `vfs` below. This layer maps a path or a descriptor to a
//! location or an open file, and adds the path to errors; the VFS implements the calls.
//!
//! Locks: descriptors, the working directory and cached paths are read under a pin (base/rcu.rs).
//! Calls that cannot block (stat, fstat) finish under the pin. Calls that may block first take a
//! reference to the open file or location, and end the pin. Open and close lock the process's file
//! table.

mod advice;
mod attributes;
mod caller;
mod directory_ops;
mod files;
mod flags;
mod locks;
mod process;
mod vectored;
mod xattrs;

pub use crate::vfs::{
    Advice, Borrowed, BorrowedRead, Credentials, FlockOperation, LockMode, OpenFlags, ReadAt,
    SyncFileRange,
};
pub use attributes::Statx;
pub use caller::{Caller, Handle, OpenHandle};
pub use files::Dirent;
pub use flags::{AtFlags, Whence};
pub use locks::{LockCall, LockKind, RecordLock};
pub use process::{AT_FDCWD, Fd, Process};
