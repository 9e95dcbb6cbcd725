//! File systems: each maps names and bytes to its store. None depends on another.
//!
//! ```text
//!   vfs    [file system traits: vfs/filesystem.rs, vfs/inode.rs]
//!             |
//!      ramfs  ext4  fat  rofs  hostfs      ramfs with limits: tmpfs, on a device: gpufs
//!             |      |    |      |        rofs: squashfs and erofs, read only
//!             |      |    |   a directory of the host
//!          [device trait: block/device.rs]
//! ```

pub mod ext4;
#[cfg(feature = "fat")]
pub mod fat;
#[cfg(feature = "hostfs")]
pub(crate) mod hostfs;
pub mod ramfs;
#[cfg(any(feature = "squashfs", feature = "erofs"))]
pub(crate) mod rofs;
