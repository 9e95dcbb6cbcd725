//! vhost-user: virtio devices for virtual machines, over a Unix socket and shared memory.
//!
//! ```text
//!   guest's driver                          QEMU, cloud-hypervisor, crosvm, Firecracker, libblkio
//!        |  virtqueues in shared memory            |  socket: memory, queues, descriptors
//!        v                                         v
//!   queue.rs   a thread for each queue  <----  service.rs      one front end after another
//!        |                                     session.rs      its requests
//!        |   split_ring.rs   the ring          message.rs      the protocol
//!        |   inflight.rs     requests in progress that survive the server
//!        |   connection.rs   what the threads share: guest_memory.rs, lost_memory.rs
//!        v
//!   device.rs      the trait of a kind of device: block, file system
//! ```
//!
//! Neighbors: above, the devices of `folio-fuse` and `folio-export`; below, [`crate::WorkerPool`]
//! and [`crate::Socket`]. Behind the feature `vhost-user`. The crate vhost-user-backend does not
//! serve: it has no record of requests in progress, and leaks descriptors with each connection.
//!
//! Sources: virtio 1.2; QEMU, docs/interop/vhost-user.rst.
//!
//! Locks: a queue's state, then its count of requests in progress; neither while a request is
//! handled.
//!
//! Invariants:
//! - V1: guest memory is accessed by vm-memory alone, which checks addresses; a request that cannot
//!   be followed gets an empty reply, and a broken ring stops.
//! - V2: the front end learns that a queue has stopped only when none of its requests is in
//!   progress. So nothing is written into memory that the guest has reused.
//! - V3: if guest memory is lost, the connection of this one guest ends.
//! - V4: a request is in the record from when it is taken until it is returned. A server that is
//!   killed in between leaves it to the next one.

mod connection;
mod device;
mod guest_memory;
mod inflight;
mod lost_memory;
mod message;
mod queue;
mod service;
mod session;
mod split_ring;

pub use device::{Device, Request, Wait};
pub use guest_memory::{Buffers, Memory, OutOfMemory};
pub use inflight::DeviceRecord;
pub use service::{ConfigNotifier, ConnectionEvent, Service};
