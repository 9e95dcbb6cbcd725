//! The block layer: devices, and the image files that hold disks.
//!
//! ```text
//!      fs/ext4            kernel.rs
//!         |                  |
//!         |   live/          |  forks, snapshots, new sizes of an open image
//!     claim.rs             |  one writer of each byte of a device
//!     guarded.rs           |  panics of a caller's device become EIO
//!     contents.rs          |  the kind of file system, names of other formats
//!         |   tools/         |  open, create, copy, compare, resize, check, rebase ...
//!         |     |            v
//!         |   raw.rs, qcow2/, partition/, memory.rs, overlay.rs, wrappers/    devices
//!         |     |
//!         |   image/         format names, options, the chain of backing files
//!         |     |
//!         |   file/          [file seam: file/image_file.rs]  a file of the host, or on a device
//!         v     v
//!   [device seam: device.rs]  Device       iov.rs: windows on lists of buffers
//! ```
//!
//! Each line uses only lines below it. [`open`] and [`create`] find the format,
//! [`partition::select`] the partition. Neighbors: file systems above use [`Device`], [`overlay()`]
//! and [`contents()`]; below is the host. Uses `base`, nothing else.
//!
//! Lock order: a device over a device takes its own lock first. `qcow2/mod.rs` documents the order
//! of qcow2's locks.
//!
//! Invariants:
//! 1. A range outside the device is rejected before anything is transferred.
//! 2. An image has one writer; the lock is taken before its first byte is read.
//! 3. Every number from an image is checked before use.

mod claim;
mod contents;
mod device;
mod file;
mod guarded;
mod image;
mod iov;
#[cfg(feature = "qcow2")]
mod live;
mod memory;
mod overlay;
pub mod partition;
#[cfg(feature = "qcow2")]
pub mod qcow2;
mod raw;
pub mod tools;
pub(crate) mod wrappers;

pub(crate) use claim::DeviceClaim;
pub use contents::{FileSystemKind, contents};
pub(crate) use contents::{foreign_contents, holds_ext4};
pub use device::{Allocation, Device, HostPlace, LowerDevice, MapEntry, PlaceReader};
pub use file::{RemoteImage, RemoteImages, check_unused, provide_remote_images};
pub(crate) use guarded::guard;
pub use image::{
    BackingName, BackingPolicy, ChainImage, Compat, Compression, CreateOptions, DataFileName,
    ForeignFormat, ForeignImage, ImageFormat, OpenOptions, Preallocation, Qcow2Info,
    SnapshotSelector, format_of,
};
#[cfg(feature = "qcow2")]
pub use live::{CompactOptions, Fork, GENERATIONS_MAX, LiveImage};
pub use memory::MemoryDevice;
pub use overlay::{OverlayDevice, overlay};
pub use raw::RawDevice;
pub use tools::create::{create, create_with};
pub use tools::new_image::NewImage;
pub use tools::open::open;
pub use wrappers::ConcatenatedDevice;
