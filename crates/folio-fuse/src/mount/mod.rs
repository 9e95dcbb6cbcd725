//! FUSE mounts on this machine: mounted, served over /dev/fuse, unmounted.
//!
//! ```text
//!   session.rs  Session: one mount, from its start to its end        options.rs  -o
//!      |  transport.rs    threads: read a request, write the reply
//!      |  invalidator.rs  one thread: writes notices
//!      |  mountpoint.rs   mount(2), fusermount3, umount(2)
//!      v
//!   server/, local/
//! ```
//!
//! Neighbours: `folio-cli` and `folio-remote` above; `server/` and `local/` below.

mod invalidator;
mod mountpoint;
mod options;
mod session;
mod transport;

pub use mountpoint::{MountAttributes, Mountpoint, Unmounter};
pub use options::{AllowedUsers, SessionOptions};
pub use session::Session;
