//! The host kernel's page cache: what is in it, bringing files in, keeping what was hot.
//!
//! ```text
//!   scan       which files, in the order of inode numbers
//!   residency  how much of each is in memory, as far as it can be known
//!   warm       the rest brought in, in an order that suits the disk (device.rs)
//!   hotset     which parts of which files are in memory, kept and brought back
//!   memory     how much room there is
//!   sys        cachestat(2), mincore(2), FIEMAP
//! ```
//!
//! Neighbours: `folio-cli` above; below, the kernel alone. Folio's own page cache is another one (`folio::cache`).

#![deny(unsafe_code)]

mod device;
mod hotset;
mod memory;
mod residency;
mod scan;
#[allow(unsafe_code)]
mod sys;
mod warm;

pub use hotset::{Kept, load, save};
pub use memory::Memory;
pub use residency::{Known, Residency, cached_ranges, residency, residency_of};
pub use scan::{Files, Found, Scan};
pub use sys::{Extent, Locked, fiemap as extents};
pub use warm::{Order, Progress, Warm, Warmed};
