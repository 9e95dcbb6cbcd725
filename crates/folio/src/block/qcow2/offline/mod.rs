//! Changes of an image that no device has open.
//!
//! ```text
//!   snapshots.rs   resize.rs   bitmaps.rs --> bitmap_bits.rs
//!          \           |           /
//!                 change.rs            new tables beside the old ones, then one switch in the
//!                                      header: an order of writes that survives a power cut
//!
//!   create.rs   inspect.rs   backing.rs   measure.rs   amend.rs   check_image.rs
//! ```
//!
//! Neighbors: above, `tools/`; below, `disk/` (growing and preallocating), `check/`, `layout/`.

mod amend;
mod backing;
mod bitmap_bits;
mod bitmaps;
pub(super) mod change;
pub(super) mod check_image;
mod create;
mod inspect;
mod measure;
pub(super) mod resize;
mod snapshots;

pub use amend::AmendOptions;
pub(crate) use amend::{amend, check_amend, downgrade, expand_zeros};
pub(crate) use backing::{
    backing_of, backing_path, backing_version_of, open_backing, record_version, rename_backing,
};
pub use bitmap_bits::BitmapBits;
pub use bitmaps::BitmapChange;
pub(crate) use bitmaps::{change as change_bitmap, read_bits as read_bitmap};
pub(crate) use check_image::check_image;
pub(crate) use create::{OldDataFile, create, create_in, write as write_empty};
pub(crate) use inspect::{disk_bytes, inspect};
pub(crate) use measure::{bitmaps_bytes, full_file_bytes};
pub(crate) use resize::resize;
pub use snapshots::Snapshot;
pub(crate) use snapshots::{
    apply as apply_snapshot, create as create_snapshot, delete as delete_snapshot,
    list as list_snapshots,
};
