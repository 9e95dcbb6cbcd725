//! What the device holds: bytes at offsets, in files of several formats.
//!
//! ```text
//!      fs/ext4            kernel.rs
//!         |                  |  opens
//!         v                  v
//!   [device seam: device.rs]  Device
//!     |      |       |        |
//!    raw   qcow2   memory   partition, overlay ...  (devices over devices)
//! ```
//!
//! Neighbours: file systems above use [`Device`] only; below lies the host. Knows `base`, nothing else.

mod device;
mod host_file;
mod image;
mod iov;
mod lock;
mod memory;
mod overlay;
mod partition;
mod qcow2;
mod raw;

pub use device::{Allocation, Device};
pub use image::{BackingPolicy, ImageFormat, OpenOptions, create, open};
pub use memory::MemoryDevice;
pub use overlay::{OverlayDevice, overlay};
pub use partition::{Partition, PartitionDevice, holds_ext4, partitions, select};
pub use qcow2::{Compat, CreateOptions, Qcow2Device};
pub use raw::RawDevice;
