//! Folio's disks as network block devices: a server of the NBD protocol for one export.
//!
//! ```text
//!   client:  qemu, nbdcopy, fio, the kernel's nbd
//!       v
//!   server.rs      accepts clients, stops, flushes      uri.rs             where clients connect
//!   connection.rs  reads requests in turn, runs them    folio_net          listener, worker pool
//!   command.rs     one function per command
//!   handshake.rs   options, until both sides agree
//!   reply_queue.rs replies to send                      request_reader.rs  received bytes
//!   client.rs      one connection, for all its threads
//!   state.rs       the export and the server's state    protocol.rs        the protocol's numbers
//!       v
//!   folio::block::Device
//! ```
//!
//! Each file uses only files below it.
//!
//! Source: the NBD project's doc/proto.md. Fixed newstyle negotiation without TLS; structured
//! replies with holes and error messages; `base:allocation`; flush, FUA, trim, write zeroes, cache.
//! The server is our own because the crate `nbd` (0.3.1) is an early one: one request at a time,
//! and without structured replies.
//!
//! Neighbors: `folio-cli` above; below, the devices of `folio` and the sockets of `folio-net`;
//! beside, `pace.rs`.
//!
//! Locks, never held together: the worker pool's queue; the list of connections; one connection's
//! output, held while bytes are sent.
//!
//! Invariants:
//! 1. For a client's request the server allocates at most [`PIECE_BYTES`], for an option 64 KiB,
//!    and it has at most [`Limits`] threads, of which each connection has one at any time. A client
//!    that takes no replies starts no further threads, and is disconnected after a timeout. An
//!    invalid request is answered with an error; bytes that are not a request end the connection.
//! 2. A write is acknowledged after the device has it, a flush after the device has flushed. Both
//!    hold for all connections, since they share the device.
//! 3. Bytes of two replies never mix: whole chunks are sent under the connection's lock.
//! 4. A stop answers every received request, then flushes the device.

mod client;
mod command;
mod connection;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod protocol;
mod reply_queue;
mod request_reader;
mod server;
mod state;
mod uri;

pub use folio_net::{Listener, Stopper};
pub use protocol::{PAYLOAD_BYTES_MAX, PIECE_BYTES};
pub use server::Server;
pub use state::{Export, Limits};
