//! Devices over devices, mostly for tests and measurements: each passes its calls to the device
//! below.
//!
//! ```text
//!   record.rs   records every write and flush; a test replays a prefix to simulate a power cut
//!   fault.rs    fails the calls that a test selects
//!   slow.rs     models the time and the write cache of a hard disk
//!   concatenated.rs   several devices one after the other
//!   salvage.rs        reads unreadable sectors as zeros
//! ```
//!
//! Lock order: each wrapper has one lock. `record.rs` holds it over calls to the lower device, so
//! an upper wrapper's lock is taken before a lower one's.

mod concatenated;
mod fault;
mod record;
mod salvage;
mod slow;

pub use concatenated::ConcatenatedDevice;
pub use fault::{FaultDevice, FaultKind, FaultWhen};
pub use record::{RecordDevice, Recorded};
pub use salvage::{SalvageDevice, SalvageReport};
pub use slow::{DiskCounters, DiskModel, SlowDevice};
