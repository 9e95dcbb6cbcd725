//! Folio's file systems behind FUSE: what a kernel asks about inodes, answered through handles.
//!
//! ```text
//!   kernel:  /dev/fuse                                       a guest's virtiofs, a stream
//!       v                                                        v
//!   transport.rs   requests read, replies written                 |
//!   session.rs     serves; mountpoint.rs: mounts, unmounts        |
//!   options.rs     -o; keeping.rs: what the kernel keeps          |
//!   push.rs        what it must forget                            |
//!   backing.rs     files it reads by itself; sys.rs               |
//!       v                                                         v
//!   wire/          the protocol as bytes: a request in, a reply out
//!       v
//!   adapter/       one call per operation, no protocol: ids, counts, open files
//!       v
//!   folio::syscall::{Caller, Handle, OpenHandle}
//! ```
//!
//! Neighbours: `folio-cli` and `folio-virtiofs` above; below, folio's public API alone. The adapter
//! knows no transport, so that all can share it.
//!
//! Locks: one shard of a table of the adapter, with no call made meanwhile.
//!
//! Who caches what: the kernel keeps names, attributes and pages of an image as long as it likes,
//! since nobody else changes it while it is mounted, and of a directory of the host as
//! docs/semantics.md says; dirty data, writeback and readahead from the device are Folio's.

#![deny(unsafe_code)]

pub mod adapter;
mod backing;
#[doc(hidden)]
pub mod fuzzing;
mod keeping;
mod mountpoint;
mod options;
mod push;
mod session;
mod sys;
mod transport;
pub mod wire;

pub use mountpoint::{MountAttributes, Mountpoint, Unmounter};
pub use options::{AllowedUsers, Passthrough, SessionOptions};
pub use session::Session;
