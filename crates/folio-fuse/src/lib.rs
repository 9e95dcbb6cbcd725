//! Folio's file systems behind FUSE: one server answers the requests of one client kernel.
//!
//! ```text
//!   /dev/fuse (mount/)         a guest's virtio queues (virtiofs/)         a stream (folio-remote)
//!        |  request bytes                  |                                       |
//!        +---------------------------------+---------------------------------------+
//!                                          v
//!   server/    one operation table: decode, call, encode          local/    /dev/fuse only
//!        |            |                  |
//!        v            v                  v
//!     wire/        nodes/ <----------- changes/ --- Invalidator --> the client's caches
//!     the bytes    ids to handles      what external writers changed; events/: for watchers
//!                     |
//!                     v
//!   folio::syscall::{Caller, Handle, OpenHandle}
//! ```
//!
//! Neighbors: `folio-cli` and `folio-remote` above; below, folio's public API, and `folio-net` for
//! [`virtiofs`], a feature. The server knows no transport, so that all transports share it.
//!
//! Locks: see `server/mod.rs`.
//!
//! Caching: the client caches names, attributes and pages of an image without limit, since it is
//! the only writer while the image is mounted. For a directory of the host it caches as
//! docs/semantics.md says. Dirty data, writeback and readahead from the device are Folio's.

#![deny(unsafe_code)]

mod changes;
mod client_options;
mod events;
#[doc(hidden)]
pub mod fuzzing;
mod local;
mod mount;
mod nodes;
mod server;
#[cfg(feature = "virtiofs")]
pub mod virtiofs;
pub mod wire;

pub use changes::{Invalidator, ReplyGuard};
pub use client_options::{ClientOptions, DataCache, FOREVER, PermissionChecks, parse_ttl};
pub use events::{EventCall, EventCallError, EventCaller};
pub use local::Passthrough;
pub use mount::{
    AllowedUsers, DetachedMount, DeviceSession, Events, MountAttributes, MountCaller, Mountpoint,
    Notifier, NotifierEnd, Session, SessionOptions, Unmounter, Uring, remount,
};
pub use nodes::ROOT;
pub use server::{CallObserver, ObservedCall, ObservedKind, Outcome, RequestCounts, Server, Wait};
