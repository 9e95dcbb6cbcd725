//! Folio's file systems as virtiofs devices: a guest's FUSE requests from virtio queues, over
//! vhost-user.
//!
//! ```text
//!   guest: mount -t virtiofs          QEMU, cloud-hypervisor: vhost-user-fs
//!        |  virtio queues in memory that both sides map        |  socket: where they are, when to look
//!        v                                                     v
//!   device.rs   a thread for each queue <------------- service.rs   socket, one guest after another
//!        |   guest.rs  requests out of guest memory, replies into it
//!        |   folio_net::WorkerPool   threads for requests that wait for a device
//!        v
//!   folio_fuse::Server
//! ```
//!
//! Neighbours: `folio-cli` above; `folio-fuse` below. A crate of its own, so that programs that
//! only mount do not build the virtio crates. Sources: virtio 1.2, section 5.11 (file system
//! device); QEMU, docs/interop/vhost-user.rst.
//!
//! Locks: a queue (to take a request, to give its reply back), then its count of requests under
//! way; neither while a request is handled.
//!
//! Invariants:
//! - V1: guest memory is reached through vm-memory alone, by addresses that it checks; a guest that
//!   gives others gets an empty reply.
//! - V2: a queue is not told to have stopped while one of its requests is under way, so that
//!   nothing is written into memory that the guest uses otherwise.

#![deny(unsafe_code)]

mod device;
mod guest;
mod service;

pub use folio_net::Stopper;
pub use service::{Event, Options, Service, TAG_LEN_MAX};
