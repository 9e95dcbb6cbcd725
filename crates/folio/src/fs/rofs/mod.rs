//! squashfs and erofs, read only, by the crates `backhand` and `erofs-rs`.
//!
//! ```text
//!   FileSystem and Inode of the VFS    tree.rs          all inodes, in memory from the mount on
//!        v
//!   squashfs.rs   erofs.rs             the tree and the data of files, by the crates
//!        v
//!   squashfs_xattrs.rs                 its extended attributes, which `backhand` does not read
//!        v
//!   device_reader.rs                   the device as `std::io` has it
//! ```
//!
//! The data of files goes through the page cache. Linux: fs/squashfs, fs/erofs.

mod device_reader;
#[cfg(feature = "erofs")]
mod erofs;
mod panics;
#[cfg(feature = "squashfs")]
mod squashfs;
#[cfg(feature = "squashfs")]
mod squashfs_xattrs;
mod tree;

use crate::base::Result;
use crate::block::Device;
use crate::cache::PageCache;
use crate::vfs::FileSystem;
use panics::without_panic;
use std::sync::Arc;

/// Opens the squashfs 4 on `device`. Pages of files are in `cache`.
///
/// # Errors
///
/// EUCLEAN for damaged metadata, EOPNOTSUPP for a compression that `backhand` does not read, else
/// the device's errors.
#[cfg(feature = "squashfs")]
pub(crate) fn mount_squashfs(
    device: Arc<dyn Device>,
    cache: &Arc<PageCache>,
) -> Result<Arc<dyn FileSystem>> {
    Ok(without_panic(|| squashfs::read_tree(device))?.mount(cache))
}

/// Opens the erofs on `device`. Pages of files are in `cache`.
///
/// # Errors
///
/// EUCLEAN for damaged metadata, EOPNOTSUPP for what `erofs-rs` does not read, else the device's
/// errors.
#[cfg(feature = "erofs")]
pub(crate) fn mount_erofs(
    device: Arc<dyn Device>,
    cache: &Arc<PageCache>,
) -> Result<Arc<dyn FileSystem>> {
    Ok(without_panic(|| erofs::read_tree(device))?.mount(cache))
}
