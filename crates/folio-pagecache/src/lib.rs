//! The host kernel's page cache: what is in it, bringing files in, keeping what was hot.
//!
//! ```text
//!   scan       which files, in the order of inode numbers
//!   residency  how much of each is in memory, as far as it can be known
//!   survey     the same of whole trees; drop
//!   warm       the rest brought in, in an order that suits the disk (device.rs)
//!   hotset     which parts of which files are in memory, kept and brought back
//!   memory     how much room there is; meminfo what it is used for; top which files fill it
//!   sys        cachestat(2), mincore(2), FIEMAP
//! ```
//!
//! Neighbours: `folio-cli` above; below, the kernel alone. Folio's own page cache is another one
//! (`folio::cache`).

#![deny(unsafe_code)]

mod device;
mod hotset;
mod meminfo;
mod memory;
mod open;
mod parallel;
mod residency;
mod scan;
mod survey;
#[allow(unsafe_code)]
mod sys;
mod top;
mod warm;

pub use hotset::{Kept, load, save, save_at};
pub use meminfo::{MemInfo, Pressure, Rates};
pub use memory::Memory;
pub use residency::{
    Known, Residency, Unknown, cached_ranges, lock, peek, residency, residency_of,
};
pub use scan::{Files, Found, Scan, Walked};
pub use survey::{Dropped, State, drop_files, survey};
pub use sys::{Extent, Locked, fiemap as extents};
pub use top::{Held, Mount, Mounts, Top, top};
pub use warm::{Order, Progress, Warm, Warmed};
