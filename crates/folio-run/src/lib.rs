//! `folio run`: a command with a Folio file system as its root, in namespaces of its own.
//!
//! ```text
//!   host's namespaces                          | new user, mount, PID, IPC and UTS namespaces
//!                                              |
//!   read_only_program.rs  the own file          |
//!   private_mounts.rs  only a mount namespace   |
//!   container.rs  clone, id maps, exit status  | init/   PID 1: mounts, starts, reaps
//!      |  id_map.rs     /etc/subuid            |   mounts.rs    /proc, /dev, /sys, --bind
//!      |  terminal.rs   the user's terminal <--+-> terminal.rs  a terminal of the namespace
//!      |  channel.rs <-------------------------+-> messages, descriptors
//!      v                                       |   program.rs   search, execve
//!   folio-fuse  serves the mount  <-- /dev/fuse --  passwd.rs   the image's users
//!                                              |      v
//!                                              |   the command
//! ```
//!
//! Neighbors: `folio-cli` above; `folio-fuse` and the host's kernel below. Needs no root: each
//! user may create namespaces and mount FUSE in them. The mount is in no other namespace.
//!
//! Invariants:
//! 1. The process is cloned before it has a second thread.
//! 2. The first process of the namespace ends with the server, and every other process with the
//!    first. The kernel then writes the mount's data back and removes it, which ends the server.
//! 3. Names of the image are resolved with the image as the root, after the host's tree is
//!    detached.
//! 4. The command's process closes every descriptor but the standard streams before it follows the
//!    first path. No standard stream is a directory.
//! 5. The command's system calls are filtered, and with the image as its root it has no id of the
//!    host, if root calls.
//! 6. No process inside has a writable file of the host as its program (/proc/PID/exe).
//!
//! Linux: user_namespaces(7), mount_namespaces(7), pivot_root(2), seccomp(2).

#![deny(unsafe_code)]

mod channel;
mod container;
mod failure;
mod id_map;
mod init;
mod options;
mod private_mounts;
mod read_only_program;
mod status;
mod sys;
mod terminal;

pub use container::Container;
pub use failure::Failure;
pub use options::{Bind, Network, Options, Root};
pub use private_mounts::unshare_mounts;
pub use read_only_program::execute_read_only;
