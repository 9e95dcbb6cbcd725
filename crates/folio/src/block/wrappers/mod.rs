//! Devices over devices, mostly for tests and measurements: each passes its calls to the device
//! below.
//!
//! ```text
//!   record.rs   records every write and flush; a test replays a prefix to simulate a power cut
//!   fault.rs    fails the calls that a test selects
//!   slow.rs     models the time and the write cache of a hard disk
//! ```
//!
//! Lock order: each wrapper has one lock. `record.rs` holds it over calls to the lower device, so
//! an upper wrapper's lock is taken before a lower one's.

mod fault;
mod record;
mod slow;

pub use fault::{FaultDevice, FaultKind, FaultWhen};
pub use record::{RecordDevice, Recorded};
pub use slow::{DiskCounters, DiskModel, SlowDevice};
