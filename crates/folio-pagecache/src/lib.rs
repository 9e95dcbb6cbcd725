//! The host kernel's page cache: residency of files, warming, and hot sets that survive a restart.
//!
//! ```text
//!   scan       files of trees, in the order of inode numbers
//!   residency  bytes of one file in memory
//!   survey     residency of trees; drop
//!   warm       reads absent pages, in an order that suits the disk (device.rs)
//!   hotset     the resident ranges of files, saved and loaded
//!   memory     memory available; meminfo: its use; top: the files that fill it
//!   fit        the memory that a workload needs
//!   median     of repeated measurements
//!   sys        cachestat(2), mincore(2), FIEMAP
//! ```
//!
//! Neighbors: `folio-cli`, `folio-bench` and `folio-doctor` above; the host's kernel below. Folio's
//! own page cache is `folio::cache`.

#![deny(unsafe_code)]

mod device;
mod fit;
#[doc(hidden)]
pub mod fuzzing;
mod hotset;
mod median;
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

pub use fit::{Fit, FitReport, Method, Need, Point, Workload, fit_svg};
pub use hotset::{HotSetReport, Match, load, save, save_at};
pub use median::median;
pub use meminfo::{MemInfo, Pressure, Rates};
pub use memory::Memory;
pub use residency::{
    Residency, ResidencyReport, UnknownReason, cached_ranges, lock, page_bytes, peek, residency,
    residency_of,
};
pub use scan::{Files, Found, Scan, Walked};
pub use survey::{Dropped, State, drop_files, survey};
pub use sys::{Extent, Locked, fiemap as extents};
pub use top::{CachedFile, Mount, Mounts, Top, top};
pub use warm::{Order, Progress, Warm, Warmed};
