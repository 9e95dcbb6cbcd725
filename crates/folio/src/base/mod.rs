//! The vocabulary that all layers share: errno, errors, ids, time, locks and RCU.
//!
//! ```text
//!   syscall  vfs  cache  fs  block
//!        \    |    |    |    /
//!                base
//! ```
//!
//! Neighbors: all layers above, no layer below. No I/O. The only state is that of RCU (`rcu`),
//! the slots of threads (`thread_slots`) and the number of the process (`owner_process`), one for
//! each process (`per_process`).
//!
//! Lock order: a registry of thread slots, or RCU's deferred drops; never both, and no other lock
//! under either.

mod aligned_buffer;
#[cfg_attr(folio_loom, allow(dead_code))]
pub(crate) mod condvar;
mod error;
pub(crate) mod fork;
mod futex;
mod ids;
mod limit;
pub(crate) mod lock;
#[cfg(all(test, folio_loom))]
pub(crate) mod loom_check;
pub(crate) mod owner_process;
pub(crate) mod per_process;
pub(crate) mod rcu;
pub(crate) mod seq;
pub(crate) mod sync;
pub(crate) mod thread_slots;
mod time;
pub(crate) mod unwind;

pub use aligned_buffer::AlignedBuffer;
pub use error::{Detail, Error, ErrorKind, Result, errno_of};
pub use ids::{DeviceNumber, InodeNumber, LogicalBlock, Owner, PhysicalBlock};
pub use limit::Limit;
pub use time::{Clock, Timespec};

/// An error number of Linux (errno(3)).
pub use rustix::io::Errno;

/// Bytes of one page of the page cache; also the alignment of every folio.
pub const PAGE_SIZE: usize = 4096;
