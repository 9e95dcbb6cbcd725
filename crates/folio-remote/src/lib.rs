//! Folio's file systems over a byte stream, for guests and other machines: FUSE's own protocol,
//! with resumed sessions and pushed invalidations.
//!
//! ```text
//!   client: mount of /dev/fuse                    server: folio share --listen
//!     client/  relay, index of the kernel's cache    server/  sessions, changes
//!        |                                              |
//!        +-- link.rs    numbered frames, each once and in order, over one stream after another
//!            frame.rs   one frame
//!            handshake/, key.rs   authentication, and the session to resume
//!            message.rs fields of a message that a relay reads
//!            stream.rs  timeouts          folio_net: unix:, vsock: and tcp: sockets
//! ```
//!
//! The relay forwards the kernel's requests unchanged, and [`folio_fuse::Server`] answers them;
//! docs/design/remote.md gives the reasons.
//!
//! Neighbors: `folio-cli` above; below, the FUSE server of `folio-fuse`, and the sockets of
//! `folio-net`.
//!
//! Locks and invariants: server/mod.rs, client/mod.rs, link.rs.

#![deny(unsafe_code)]

mod client;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod key;
mod link;
mod message;
mod server;
mod stream;

pub use client::{Mount, MountAttributes, Remote};
pub use folio_net::{Address, HOST_CID, Listener, Peer, Stopper};
pub use key::Key;
pub use server::{Limits, Server, Share};
