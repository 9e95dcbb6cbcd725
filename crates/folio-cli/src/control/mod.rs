//! The control socket of commands that serve: requests to a running server, by `folio ctl`.
//!
//! ```text
//!   folio ctl SOCKET fork NEW                folio serve --control SOCKET
//!     client.rs   sends one request   ---->  server.rs   a thread for each request
//!             protocol.rs   one line of JSON each way       |
//!                                                           v
//!                                                 disk.rs   LiveImage, counters
//! ```
//!
//! Neighbors: `commands/serve` and `commands/ctl` above; below, `folio::block::LiveImage` and
//! `folio_net::Socket`. The socket has mode 0600: a program that can write to it can change the
//! image.

mod client;
mod disk;
mod protocol;
mod server;

pub(crate) use client::ask;
pub(crate) use disk::{ControlledDisk, ServedDisk};
pub(crate) use protocol::{Answer, Order};
pub(crate) use server::ControlServer;
