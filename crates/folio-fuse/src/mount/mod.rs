//! FUSE mounts on this machine: mounted, served over /dev/fuse, unmounted.
//!
//! ```text
//!   session.rs  Session: one mount, from its start to its end        options.rs  -o
//!      |        DeviceSession: the same without mount and unmount
//!      |  transport.rs    threads: read a request, write the reply
//!      |  uring/          the same over io_uring, on the CPU of the requesting program
//!      |  invalidator.rs  one thread: writes notices
//!      |  event_thread.rs  one thread: makes the calls of events, by mount_caller.rs
//!      |                   (descriptor_table.rs); notifier.rs makes those of a guest
//!      |  mountpoint.rs   mount(2), fusermount3, umount(2)
//!      |  detached.rs     the same without a place in the tree
//!      |  sync_device.rs  the block device for which the kernel sends sync(2)
//!      |  writeback.rs    one thread: writes back what the kernel delays
//!      v
//!   server/, local/
//! ```
//!
//! Neighbors: `folio-cli` and `folio-remote` above; `server/` and `local/` below.

mod descriptor_table;
mod detached;
mod event_thread;
mod invalidator;
mod mount_caller;
mod mountpoint;
mod notifier;
mod options;
mod session;
mod sync_device;
mod transport;
mod uring;
mod writeback;

pub use detached::DetachedMount;
pub use mount_caller::MountCaller;
pub use mountpoint::{Mountpoint, Unmounter, remount};
pub use notifier::{Notifier, NotifierEnd};
pub use options::{AllowedUsers, Events, MountAttributes, SessionOptions, Uring};
pub use session::{DeviceSession, Session};
