//! Where a byte lives: the file systems, none of which knows another.
//!
//! ```text
//!   vfs    [file system seam: vfs/filesystem.rs]
//!             |
//!      ramfs  ext4                     ramfs with limits is tmpfs
//!             |
//!          [device seam: block/device.rs]
//! ```

pub mod ext4;
pub mod ramfs;
