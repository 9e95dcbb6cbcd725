//! Folio's file systems over a byte stream, for guests and other machines: FUSE's own protocol,
//! with resumed sessions and pushed invalidations.
//!
//! ```text
//!   client: mount of /dev/fuse                    server: folio share --listen
//!     client/  relay, what the kernel knows          server/  sessions, what changes
//!        |                                              |
//!        +-- link.rs    numbered frames, each once and in order, whatever happens to streams
//!            frame.rs   one frame
//!            handshake.rs, key.rs   who may, and which session goes on
//!            message.rs what a relay reads of a message
//!            stream.rs, address.rs  unix:, vsock:, tcp:
//! ```
//!
//! The requests are the kernel's, untouched, and are answered by [`folio_fuse::wire`];
//! docs/design/remote.md says why.
//!
//! Neighbours: `folio-cli` above; below, the FUSE codec and adapter of `folio-fuse`.
//!
//! Locks and invariants: server/mod.rs, client/mod.rs, link.rs.

#![deny(unsafe_code)]

mod address;
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

pub use address::{Address, HOST_CID};
pub use client::{Mount, MountAttributes, Remote};
pub use key::Key;
pub use server::{Limits, Server, Share, Stopper};
pub use stream::{Listener, Peer};
