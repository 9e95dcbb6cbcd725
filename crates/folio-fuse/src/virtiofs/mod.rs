//! The transport of guests, a virtiofs device: FUSE requests from virtio queues, over vhost-user.
//!
//! ```text
//!   guest: mount -t virtiofs               QEMU, cloud-hypervisor: vhost-user-fs
//!        |  virtio queues in shared memory        |  socket: addresses of the queues, notifications
//!        v                                        v
//!   folio_net::vhost_user     queues, guest memory, requests that wait
//!        v                                        v
//!   device.rs   one request at a time         service.rs   one front end after another
//!        |   guest.rs                  requests from guest memory, replies into it
//!        v
//!   server::Server
//! ```
//!
//! Neighbors: `folio-cli` above; `server/` and `folio-net` below. Behind the feature `virtiofs`, so
//! that programs that only mount do not build the virtio crates. Sources: virtio 1.2, section 5.11
//! (file system device); QEMU, docs/interop/vhost-user.rst.

mod device;
mod guest;
mod service;

pub use folio_net::Stopper;
pub use folio_net::vhost_user::ConnectionEvent;
pub use service::{Service, ServiceOptions, TAG_LEN_MAX};
