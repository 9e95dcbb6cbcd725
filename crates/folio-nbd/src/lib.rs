//! Folio's disks as network block devices: a server of the NBD protocol for one export.
//!
//! ```text
//!   client:  qemu, nbdcopy, fio, the kernel's nbd
//!       v
//!   server.rs      accepts, stops, flushes         listener.rs   where it listens, and byte streams
//!   handshake.rs   options, until both agree       input.rs      bytes that came
//!   connection.rs  who reads requests, who works   outbox.rs     bytes that go
//!   command.rs     one function per command        crew.rs       the threads
//!       v                                          protocol.rs   numbers of the protocol
//!   folio::block::Device
//! ```
//!
//! Source: the NBD project's doc/proto.md. Fixed newstyle negotiation without TLS; structured
//! replies with holes and errors in words; `base:allocation`; flush, FUA, trim, write zeroes,
//! cache. The server is our own because the crate `nbd` (0.3.1) is an early one: one request at a
//! time, and without structured replies.
//!
//! Neighbours: `folio-cli` above; below, folio's devices alone.
//!
//! Locks, none held while another is taken: the crew's queue; the list of connections; one
//! connection's output, held while bytes are sent.
//!
//! Invariants:
//! 1. Nothing that a client says makes the server allocate more than [`PIECE_BYTES`] for a request
//!    and 64 KiB for an option, or hold more than [`Limits`] threads; a request outside the disk or
//!    the rules gets an error, bytes that are no request end the connection.
//! 2. A write is acknowledged after the device has it, a flush after the device has flushed; both
//!    hold for all connections, since they share the device.
//! 3. Bytes of two replies never mix: whole chunks are sent under the connection's lock.
//! 4. A stop answers every request that was received, then flushes the device.

#![deny(unsafe_code)]

mod command;
mod connection;
mod crew;
mod handshake;
mod input;
mod listener;
mod outbox;
mod protocol;
mod server;

pub use listener::Listener;
pub use server::{Export, Limits, Server, Stopper};

/// Bytes of a request that are in memory at a time; longer reads and writes pass through in pieces.
pub const PIECE_BYTES: usize = 1 << 20;
/// Longest read or write, as it is told to clients.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
