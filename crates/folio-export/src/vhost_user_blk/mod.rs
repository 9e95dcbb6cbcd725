//! vhost-user-blk: a disk for virtual machines, by virtio-blk requests in shared memory.
//!
//! ```text
//!   guest: /dev/vda                     QEMU, cloud-hypervisor, crosvm, Firecracker, libblkio
//!        v                                   v
//!   folio_net::vhost_user     queues, guest memory, requests that wait
//!        v                                   v
//!   device.rs   one request at a time   server.rs   a socket, one virtual machine after another
//!        |  config.rs    what the driver learns about the disk
//!        |  export.rs    the disk, counts.rs    requests by kind
//!        |  write_log.rs acknowledged writes that survive the server
//!        v
//!   folio::block::Device
//!
//!   client/         the other side, for tests and measurements
//! ```
//!
//! Features: several queues, flush, a write cache that the driver may turn off, discard, write
//! zeroes, serial number, read-only disks, a size that grows, and the record of requests in
//! progress: a server that is killed and started anew goes on with them, because a block request
//! may be repeated.
//!
//! Neighbors: `folio-cli` above; `folio-net` below; beside, `pace.rs`. Source: virtio 1.2, section
//! 5.2 (block device).
//!
//! Invariants:
//! 1. A request is returned as done after the device has done it, a flush after the device has
//!    flushed. A driver without a flush command gets each write flushed.
//! 2. What was acknowledged survives the end of the server, if the front end keeps memory for that;
//!    what was flushed survives a power cut.
//! 3. A request allocates at most the buffer of its thread; its ranges are checked against the
//!    disk.

#[cfg(feature = "client")]
pub mod client;
mod config;
mod counts;
mod device;
mod export;
mod server;
mod write_log;

pub use config::{QUEUES_MAX, SERIAL_LEN_MAX};
pub use counts::RequestCounts;
pub use export::Disk;
pub use folio_net::Stopper;
pub use folio_net::vhost_user::{ConfigNotifier, Service};
pub use server::{Server, ServerOptions};
