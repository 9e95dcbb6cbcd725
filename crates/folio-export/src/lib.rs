//! Folio's disks for other programs: exports of a [`folio::block::Device`], by protocol.
//!
//! ```text
//!   qemu, nbdcopy, fio, the kernel's nbd       virtual machines: QEMU, cloud-hypervisor, crosvm
//!        v                                          v
//!   nbd/            NBD, over sockets          vhost_user_blk/    virtio-blk, in shared memory
//!        |                                          |
//!        +------------- pace.rs --------------------+     when a request needs a thread of its own
//!                           v
//!                  folio::block::Device
//! ```
//!
//! Neighbors: `folio-cli` above; below, the devices of `folio`, and the sockets and queues of
//! `folio-net`. The two protocols do not use each other.

#![deny(unsafe_code)]

pub mod nbd;
mod pace;
#[cfg(feature = "vhost-user")]
pub mod vhost_user_blk;
