//! Writable volumes on object storage: disks that outlive a machine and move to another.
//!
//! ```text
//!   ext4, NBD, mount        folio's faces and file systems
//!          |  [device trait: folio::block::Device]
//!     volume.rs             one writer: uploads and flush      reader.rs   any number of readers
//!     layer.rs, map.rs      changes in memory, places of blocks
//!     segment.rs   database.rs
//!          |            |   data: segments     map: slatedb, which fences the writer
//!          v            v
//!       requests.rs     repeats what fails, until the I/O timeout
//!              |
//!              v
//!        object_store::ObjectStore
//! ```
//!
//! Stored below a volume's root: `seg/` holds immutable segments of up to 8 MiB, `map/` the map
//! in slatedb, `gc/` the list of unused segments. `snapshot.rs` makes snapshots and clones as
//! checkpoints of the map, `gc.rs` deletes what none of them names.
//!
//! # Promise
//!
//! - One writer. Opening a volume fences the writer before it, whose next flush fails with ESTALE.
//! - After a crash or a takeover, the volume is the state of one flush: the last acknowledged one,
//!   or a later one. Never a mixture.
//! - A reader sees one flush point and moves forward only.
//! - Bytes are returned only if their CRC-32C matches.

#![deny(unsafe_code)]

mod changes;
mod check;
mod clock;
mod database;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod gc;
mod images;
mod layer;
mod map;
mod place;
mod progress;
mod read;
mod read_cache;
mod reader;
mod requests;
mod resize;
mod segment;
mod snapshot;
mod store_check;
mod vacancy;
mod volume;

pub use check::{CheckReport, VolumeInfo, check, info};
pub use format::{BLOCK_BYTES, VolumeMeta, WriterRecord};
pub use gc::{GcOptions, GcReport, delete_volume};
pub use images::StoredImages;
pub use place::StorePlace;
pub use progress::WorkProgress;
pub use reader::VolumeReader;
pub use requests::RetryPolicy;
pub use resize::grow_volume;
pub use snapshot::{Snapshot, clone_snapshot, delete_snapshot, snapshots};
pub use store_check::{StoreTest, StoreTests, StoreVerdict, check_store, refusal};
pub use vacancy::{check_vacant, volume_around};
pub use volume::{Takeover, Volume};
