//! Folio: Linux's file I/O path as a library.
//!
//! A program asks (`syscall`); a name becomes an inode (`vfs`); memory answers if it can (`cache`);
//! a file system says where the byte lives (`fs`); a device holds it (`block`). No root, no mount,
//! no virtual machine.
//!
//! ```text
//!   syscall/   what a program asks    fds, flags, errno
//!      v
//!    vfs/      what a name means      path walk, dentry, inode, mount, file
//!      v
//!   cache/     what memory holds      folio, mapping, readahead, writeback, reclaim
//!      v
//!    fs/       where a byte lives     ramfs ext4 hostfs
//!      v
//!   block/     what the device holds  raw qcow2 memory
//!   base/      what all share         errno, error, ids, time
//! ```
//!
//! Three traits join the layers: [`vfs::FileSystem`] (with [`vfs::Inode`]), [`cache::Store`] and
//! [`block::Device`]. [`kernel`] alone names concrete file systems and devices.

#![deny(unsafe_code)]

pub mod base;
pub mod block;
pub mod cache;
pub mod fs;
pub mod kernel;
pub mod syscall;
pub mod vfs;

pub use base::{Errno, Error, ErrorKind, Result, Timespec};
pub use kernel::{Kernel, KernelOptions};
pub use syscall::Process;
