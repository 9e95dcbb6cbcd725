//! Changes of an image that no device has open.
//!
//! ```text
//!   snapshots.rs   resize.rs    new tables beside the old ones, then one switch in the header
//!          \       /
//!          change.rs            the order of writes that survives a power cut
//!
//!   create.rs   inspect.rs   backing.rs
//! ```
//!
//! Neighbours: above, `tools/`; below, `disk/` (growing and preallocating), `check/`, `layout/`.

mod backing;
mod change;
mod create;
mod inspect;
mod resize;
mod snapshots;

pub(crate) use backing::{backing_of, backing_path, open_backing, rename_backing};
pub(crate) use create::{OldDataFile, create, create_in};
pub(crate) use inspect::{disk_bytes, inspect};
pub(crate) use resize::resize;
pub use snapshots::Snapshot;
pub(crate) use snapshots::{
    apply as apply_snapshot, create as create_snapshot, delete as delete_snapshot,
    list as list_snapshots,
};
