//! qcow2: QEMU's copy-on-write image format, versions 2 and 3, read and written.
//!
//! ```text
//!   guest offset                         a write
//!        |  L1 table                     plan   (lock)     take clusters      metadata/
//!        v                               data   (no lock)  one host write     disk/write.rs
//!   L2 table  ->  Mapping                finish (lock)     enter them in L2   metadata/
//!        |                               flush             in safe order      disk/flush.rs
//!        v
//!   data cluster | zeros | compressed cluster | backing file
//!
//!   offline/    create, resize, snapshots, rebase: an image that no device has open
//!   disk/       Qcow2Device: an open image as a disk
//!   check/      counts references and compares them with the refcounts; repairs
//!   metadata/   tables in memory: lookups, allocation, refcounts, their cache
//!   layout/     bytes in the file: header, tables, entries
//! ```
//!
//! Each folder uses only folders below it; `check/` and `metadata/` do not use each other.
//!
//! Source: QEMU, docs/interop/qcow2.txt. Reasons and invariants: docs/design/qcow2.md.
//!
//! Neighbors: above, `tools/` opens it; below, `file/` and `image/`. Writes keep internal
//! snapshots intact; only `offline/snapshots.rs` creates, applies and deletes them. A data cluster
//! is stored in the image's file, or in the external data file (`disk/data_file.rs`).
//!
//! Lock order:
//! ```text
//!   flushing          one write-back at a time
//!     io (shared)     held by every transfer, over plan, data and finish; exclusive: waits for them
//!       metadata      tables in memory; the file's tables are read under it, guest data never
//! ```
//!
//! Invariants:
//! 1. The file's L2 tables never name a cluster whose data and refcount are not durable.
//! 2. A cluster is reused only after no table in the file names it and all its readers are done.
//! 3. Bytes of a new cluster that the write does not cover keep the content that the guest cluster
//!    had before.

mod check;
mod disk;
mod layout;
mod metadata;
mod offline;
#[cfg(test)]
mod tests;

pub use check::{Finding, ImageCheck, Repair};
pub use disk::Qcow2Device;
pub(crate) use disk::backing::{DEPTH_MAX, check_version};
pub(crate) use disk::{Appender, PackedCluster, Qcow2Parts};
pub use layout::bitmaps::DirtyBitmap;
pub(crate) use layout::bitmaps::list as list_bitmaps;
pub use offline::{AmendOptions, BitmapBits, BitmapChange, Snapshot};
pub(crate) use offline::{
    OldDataFile, amend, apply_snapshot, backing_of, backing_path, backing_version_of,
    bitmaps_bytes, change_bitmap, check_amend, check_image, create, create_in, create_snapshot,
    delete_snapshot, disk_bytes, downgrade, expand_zeros, full_file_bytes, inspect, list_snapshots,
    open_backing, read_bitmap, record_version, rename_backing, resize, write_empty,
};
