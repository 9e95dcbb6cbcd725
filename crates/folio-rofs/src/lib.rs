//! squashfs and erofs in Folio's VFS, read only, by the crates `backhand` and `erofs-rs`.
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
mod erofs;
#[doc(hidden)]
pub mod fuzzing;
mod panics;
mod squashfs;
mod squashfs_xattrs;
mod tree;

use folio::base::Result;
use folio::block::Device;
use folio::cache::PageCache;
use folio::vfs::FileSystem;
use panics::without_panic;
use std::sync::Arc;

/// A kind of file system that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// squashfs 4.
    Squashfs,
    /// erofs.
    Erofs,
}

impl Kind {
    /// Returns the kind that [`folio::block::contents`] calls `name`, if this crate reads it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "squashfs" => Some(Self::Squashfs),
            "erofs" => Some(Self::Erofs),
            _ => None,
        }
    }
}

/// Opens the file system of this kind on `device`. Pages of files are in `cache`.
///
/// # Errors
///
/// EUCLEAN for damaged metadata, EOPNOTSUPP for what the crates do not read, else the device's
/// errors.
pub fn mount(
    device: Arc<dyn Device>,
    kind: Kind,
    cache: &Arc<PageCache>,
) -> Result<Arc<dyn FileSystem>> {
    let mounted = without_panic(|| match kind {
        Kind::Squashfs => squashfs::read_tree(device),
        Kind::Erofs => erofs::read_tree(device),
    });
    Ok(mounted?.mount(cache))
}
