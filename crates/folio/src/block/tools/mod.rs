//! Operations on whole images and devices, whatever their format: the counterpart of qemu-img.
//!
//! ```text
//!   commit.rs --> rebase.rs              overlays
//!   resize.rs  new_image.rs              qemu-img resize; images in the place of other files
//!      |          |
//!      |       create.rs                 qemu-img create
//!      |          |
//!   open.rs                              the only opener that knows every format
//!
//!   info.rs  check.rs  snapshot.rs  bitmap.rs  amend.rs   offline work on one image file
//!   measure.rs                           the size of a new image
//!   copy_compressed.rs  compare.rs       on all cores
//!           |         |
//!         copy.rs --> backed.rs         what the target's backing file has already
//!           `---------+--> zeros.rs    throttle.rs   bytes per second
//!   verity/                              hash trees of dm-verity, on all cores
//! ```
//!
//! Neighbors: above, `live/`; below, the formats.

#[cfg(feature = "qcow2")]
mod amend;
mod backed;
#[cfg(feature = "qcow2")]
mod bitmap;
#[cfg(feature = "qcow2")]
mod check;
#[cfg(feature = "qcow2")]
mod commit;
mod compare;
mod copy;
#[cfg(feature = "qcow2")]
mod copy_compressed;
pub(super) mod create;
mod info;
mod measure;
pub(super) mod new_image;
pub(super) mod open;
#[cfg(feature = "qcow2")]
mod rebase;
pub(super) mod resize;
#[cfg(feature = "qcow2")]
mod snapshot;
pub(super) mod throttle;
#[cfg(feature = "verity")]
pub mod verity;
mod zeros;

#[cfg(feature = "qcow2")]
pub use amend::amend;
pub use backed::TargetBacking;
#[cfg(feature = "qcow2")]
pub use bitmap::{change_bitmap, read_bitmap};
#[cfg(feature = "qcow2")]
pub use check::{check, check_on, check_shared};
#[cfg(feature = "qcow2")]
pub use commit::{AfterCommit, CommitOptions, commit};
pub use compare::{CompareOptions, Comparison, Difference, compare};
pub use copy::{CopyOptions, copy};
#[cfg(feature = "qcow2")]
pub use copy_compressed::copy_compressed;
pub use info::{ImageInfo, foreign_image, info};
#[cfg(feature = "qcow2")]
pub use measure::measure_bitmaps;
pub use measure::{MeasuredContent, Measurement, measure};
#[cfg(feature = "qcow2")]
pub use rebase::{OverlayOptions, rebase, record_backing_version, rename_backing};
pub use resize::{ResizeImage, resize};
#[cfg(feature = "qcow2")]
pub use snapshot::{
    apply_snapshot, apply_snapshot_on, create_snapshot, create_snapshot_on, delete_snapshot,
    delete_snapshot_on, snapshots,
};
