//! What all layers share: errno, errors, ids and time.
//!
//! ```text
//!   syscall  vfs  cache  fs  block
//!        \    |    |    |    /
//!                base
//! ```
//!
//! Neighbours: everybody above, nobody below. No I/O; the only state of its own is who is reading
//! ([`rcu`]).

mod error;
mod ids;
mod limit;
pub(crate) mod rcu;
pub(crate) mod seq;
pub(crate) mod sync;
mod time;

pub use error::{Error, ErrorKind, Result};
pub use ids::{InodeNumber, LogicalBlock, PhysicalBlock};
pub use limit::Limit;
pub use time::{Clock, Timespec};

/// An error number as Linux gives it (errno(3)).
pub use rustix::io::Errno;

/// Bytes in one page of the page cache; also the alignment of every folio.
pub const PAGE_SIZE: usize = 4096;
