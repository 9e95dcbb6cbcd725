//! Operations on whole images and devices, whatever their format: the counterpart of qemu-img.
//!
//! ```text
//!   rebase.rs                            rebase, commit
//!   resize.rs  create.rs                 qemu-img resize, create
//!      |          |
//!   open.rs                              the only opener that knows every format
//!
//!   info.rs  check.rs  snapshot.rs       offline work on one image file
//!   copy_compressed.rs  compare.rs       on all cores
//!           |         |
//!         copy.rs   zeros.rs
//! ```
//!
//! Neighbours: below, the formats. Nothing in `block/` is above.

mod check;
mod compare;
mod copy;
mod copy_compressed;
mod create;
mod info;
mod open;
mod rebase;
mod resize;
mod snapshot;
mod zeros;

pub use check::{check, check_on};
pub use compare::{CompareOptions, Comparison, Difference, compare};
pub use copy::{CopyOptions, copy};
pub use copy_compressed::copy_compressed;
pub use create::{create, create_with};
pub use info::{ImageInfo, info};
pub use open::open;
pub use rebase::{AfterCommit, OverlayOptions, commit, rebase, rename_backing};
pub use resize::{ResizeImage, resize};
pub use snapshot::{
    apply_snapshot, apply_snapshot_on, create_snapshot, create_snapshot_on, delete_snapshot,
    delete_snapshot_on, snapshots,
};
