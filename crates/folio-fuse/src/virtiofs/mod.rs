//! The transport of guests, a virtiofs device: FUSE requests from virtio queues, over vhost-user.
//!
//! ```text
//!   guest: mount -t virtiofs               QEMU, cloud-hypervisor: vhost-user-fs
//!        |  virtio queues in shared memory        |  socket: addresses of the queues, notifications
//!        v                                        v
//!   device.rs   a thread for each queue <---- service.rs   one front end after another
//!        |   guest.rs                  requests from guest memory, replies into it
//!        |   lost_memory.rs            memory that the front end has shortened
//!        |   folio_net::WorkerPool     threads for requests that wait for a device
//!        v
//!   server::Server
//! ```
//!
//! Neighbors: `folio-cli` above; `server/` and `folio-net` below. Behind the feature `virtiofs`, so
//! that programs that only mount do not build the virtio crates. Sources: virtio 1.2, section 5.11
//! (file system device); QEMU, docs/interop/vhost-user.rst.
//!
//! Locks: a queue (to take a request, to return its buffers), then its count of requests in
//! progress; neither while a request is handled.
//!
//! Invariants:
//! - V1: guest memory is accessed by vm-memory alone, which checks addresses; a guest with invalid
//!   addresses gets an empty reply.
//! - V2: the front end learns that a queue has stopped only when none of its requests is in
//!   progress. So nothing is written into memory that the guest has reused.
//! - V3: if guest memory is lost, the connection of this one guest ends.

mod device;
mod guest;
mod lost_memory;
mod service;

pub use folio_net::Stopper;
pub use service::{ConnectionEvent, Service, ServiceOptions, TAG_LEN_MAX};
