//! Where a byte lives: the file systems, none of which knows another.
//!
//! ```text
//!   vfs    [file system seam: vfs/filesystem.rs]
//!             |
//!      ramfs  ext4  hostfs             ramfs with limits is tmpfs
//!             |        |
//!             |     a directory of the host
//!          [device seam: block/device.rs]
//! ```

pub mod ext4;
pub mod hostfs;
pub mod ramfs;
