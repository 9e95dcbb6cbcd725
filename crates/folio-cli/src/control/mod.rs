//! The control socket of commands that keep an image open: orders to a running server or mount, by
//! `folio ctl`.
//!
//! ```text
//!   folio ctl SOCKET fork NEW                folio serve, mount, run --control SOCKET
//!     client.rs   sends one order     ---->  server.rs   a thread for each order
//!             protocol.rs   one line of JSON each way       |
//!                                                           v
//!                                                 disk.rs   LiveImage, counters
//!                                                 mount.rs  a file system above it, frozen for forks
//! ```
//!
//! Neighbors: `commands/{serve,mount,run,ctl}` above; below, `folio::block::LiveImage` and
//! `folio_net::Socket`. The socket has mode 0600: a program that can write to it can change the
//! image.

mod client;
mod disk;
mod mount;
mod protocol;
mod server;

pub(crate) use client::ask;
pub(crate) use disk::{ControlledDisk, ServedDisk};
pub(crate) use mount::MountedDisk;
pub(crate) use protocol::{Answer, Order};
pub(crate) use server::{ControlServer, obey_while};
