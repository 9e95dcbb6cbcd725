//! The parts that Folio's servers share: listening sockets, byte streams, a stop handle and a pool
//! of worker threads.
//!
//! ```text
//!   folio-export        folio-remote          folio-fuse
//!      |  \             /  |  \              /  |
//!      |   listener.rs     |   stopper.rs      |      accept, and end accepting
//!      |    |       \      |                   |
//!      |    |     stream.rs, address.rs        |      unix:, vsock:, tcp:
//!      |   socket.rs ----------------------- (yes)    the file of a Unix socket
//!      +------------- worker_pool.rs ----------+      threads, started on demand
//! ```
//!
//! Neighbors: above, the three servers; below, the error type of `folio` and the host's sockets.
//!
//! Locks: the queue of a [`WorkerPool`], never held while a task runs.
//!
//! Invariants:
//! 1. A server removes only the socket file that it created.
//! 2. After [`Listener::close`], [`Listener::accept`] returns without a client, in every thread.
//! 3. A [`WorkerPool`] never has more threads than its limit, and never drops a task: it runs the
//!    task, queues it or returns it.

#![deny(unsafe_code)]

mod accept_failure;
mod address;
mod listener;
mod socket;
mod stopper;
mod stream;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;
mod worker_pool;

pub use accept_failure::AcceptFailure;
pub use address::{Address, HOST_CID};
pub use listener::{Listener, Peer};
pub use socket::{Socket, accept_until};
pub use stopper::Stopper;
pub use stream::{Keepalive, Stream, StreamReader};
pub use worker_pool::{Job, Task, WorkerPool, WorkerPoolOptions};
