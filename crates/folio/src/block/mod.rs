//! What the device holds: bytes at offsets, in files of several formats.
//!
//! ```text
//!      fs/ext4            kernel.rs
//!         |                  |  opens
//!         v                  v
//!   [device seam: device.rs]  Device
//!     |      |       |        |
//!    raw   qcow2   memory   partition, overlay, and for tests record, fault, slow  (devices over devices)
//!     |      |
//!     |   [file seam: image_file.rs]  ImageFile    a file that grows: of the host, or on a device
//!     |      |
//!   host_file.rs, lock.rs    the host's files, and the lock that QEMU understands; write_behind.rs
//! ```
//!
//! [`open`] and [`create`] find the format, [`select`] the partition. Neighbours: file systems
//! above use [`Device`] only; below lies the host. Knows `base`, nothing else.
//!
//! Lock order: a device over a device takes its own lock first. qcow2's own order stands in
//! `qcow2/mod.rs`.
//!
//! Invariants:
//! 1. A range outside the device is refused before anything is transferred.
//! 2. An image has one writer; the lock is taken before its first byte is read.
//! 3. No number from an image is believed before it is checked.

mod compare;
mod copy;
mod copy_compressed;
mod device;
mod fault;
mod host_file;
mod image;
mod image_file;
mod info;
mod iov;
mod lock;
mod memory;
mod offline;
mod overlay;
mod partition;
mod qcow2;
mod raw;
mod rebase;
mod record;
mod resize;
mod slow;
mod write_behind;
mod zeros;

pub use compare::{CompareOptions, Comparison, Difference, compare};
pub use copy::{CopyOptions, copy};
pub use copy_compressed::copy_compressed;
pub use device::{Allocation, Device, Extent};
pub use fault::{FaultDevice, FaultKind, FaultWhen};
pub use image::{BackingPolicy, ImageFormat, OpenOptions, create, create_with, format_of, open};
pub use info::{ImageInfo, info};
pub use memory::MemoryDevice;
pub use offline::{
    apply_snapshot, apply_snapshot_on, check, check_on, create_snapshot, create_snapshot_on,
    delete_snapshot, delete_snapshot_on, snapshots,
};
pub use overlay::{OverlayDevice, overlay};
pub use partition::{Partition, PartitionDevice, holds_ext4, partitions, select};
pub use qcow2::{
    BackingName, Compat, Compression, CreateOptions, DataFileName, Finding, ImageCheck,
    Preallocation, Qcow2Device, Qcow2Info, Repair, Snapshot,
};
pub use raw::RawDevice;
pub use rebase::{Committed, OverlayOptions, commit, rebase, rename_backing};
pub use record::{RecordDevice, Recorded};
pub use resize::{ResizeImage, resize};
pub use slow::{DiskCounters, DiskModel, SlowDevice};
