//! The doctor: finds the layer that makes a file of the host slow, from facts that it measures.
//!
//! ```text
//!   probe/    facts, counted wherever they can be       judge/    verdicts over facts alone
//!     layers      file system, devices, what is below     page_cache   bypassed, cold, evicted, copied slowly
//!     blocks      the file's extents (FIEMAP)             attributes   the answer to each stat: cache or server
//!     attributes  context switches of each statx(2)       blocks       holes, unwritten, fragments
//!     reads       the same part read twice                image        what first writes into an image cost
//!     rewrite     a temporary file, only if asked         file_system  delayed allocation, flush at close and rename
//!     rename      a rename over a file, only if asked
//!     memory      limits, pressure, refaults              device       the disk is the limit
//!     image       clusters of an image
//!         |                                                    ^
//!         v                                                    |
//!       [`Facts`]  -------------- judge -------------->  [`Check`]: fault, fine, note or unknown
//! ```
//!
//! [`run_workload`] runs a command with its file calls recorded (`workload/`), [`attach_workload`]
//! records those of a process that runs already, and [`judge_workload`] names the causes of the
//! waits (`judge/workload.rs`), in the same [`Check`]s. Each has a [`Cure`] for a trial
//! (`judge/cure.rs`).
//!
//! [`inside`] does the same for a file inside an image, by Folio's own counters.
//!
//! Neighbors: `folio-cli` above; below, `folio-interpose` for the calls of commands,
//! `folio-pagecache` for the kernel's page cache and `folio` for images.
//!
//! Invariants:
//! 1. What a probe could not find out is a reason in words, never a number.
//! 2. Nothing is written unless asked for, and then only into files of our own: without a name
//!    wherever that will do, and for a rename in a hidden folder that is removed at once.
//! 3. Verdicts rest on counts; times are evidence, and lead to hints at most.

#![deny(unsafe_code)]

mod bounded;
mod cure;
mod examine;
mod finding;
mod inside;
mod judge;
mod probe;
mod sample;
mod text;
mod workload;

pub use cure::{Cure, Trial};
pub use examine::{attach as attach_workload, run as run_workload};
pub use finding::{Certainty, Check, Verdict};
pub use folio_interpose::Omission;
pub use inside::inside;
pub use judge::{judge, judge_workload};
pub use probe::attributes::Attributes;
pub use probe::blocks::Blocks;
pub use probe::image::{BackingFile, ImageFacts};
pub use probe::layers::{Disk, FileSystem, Layer, LoopRange, Step, chain_of};
pub use probe::memory::{During, Pressure};
pub use probe::memory_group::MemoryGroup;
pub use probe::mounts::shown_options;
pub use probe::reads::{Pass, Reads};
pub use probe::rename::Rename;
pub use probe::rewrite::{FirstWrites, Rewrite};
pub use probe::{Fact, Facts, Kind, Limits, probe};
pub use sample::{Sample, sample};
pub use text::reason;
pub use workload::{
    CommandOutput, Cost, FileCost, Lane, MountedOn, Part, Recorder, RunOptions, Strip, Timeline,
    Tiny, Unreached, Workload, record as record_workload,
};
