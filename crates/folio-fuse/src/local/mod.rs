//! Behavior specific to /dev/fuse, where the client is the local kernel: change notifications,
//! validity in ticks of its clock, passthrough to files of the host.
//!
//! ```text
//!   server/ ---> client.rs  LocalClient: capabilities, users, replies to opens
//!                   |  cache_policy.rs  what the kernel keeps, and until when
//!                   |  backing.rs       files that the kernel reads and writes by itself
//!                   v
//!                ioctl.rs               FUSE_DEV_IOC_*
//! ```
//!
//! Neighbors: `server/` and `mount/` above; the node table and the numbers of `wire/` below.
//!
//! Locks: the list of passed-through files, then a shard of the node table.

mod backing;
mod cache_policy;
mod client;
pub(crate) mod ioctl;

pub(crate) use backing::Backings;
pub use cache_policy::Passthrough;
pub(crate) use cache_policy::{CachePolicy, Invalidation, PageCaching};
pub(crate) use client::LocalClient;
