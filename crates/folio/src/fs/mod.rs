//! File systems: each maps names and bytes to its store. None depends on another.
//!
//! ```text
//!   vfs    [file system traits: vfs/filesystem.rs, vfs/inode.rs]
//!             |
//!      ramfs  ext4  hostfs             ramfs with limits: tmpfs, on a device: gpufs
//!             |        |
//!             |     a directory of the host
//!          [device trait: block/device.rs]
//! ```

pub mod ext4;
#[cfg(feature = "hostfs")]
pub mod hostfs;
pub mod ramfs;
