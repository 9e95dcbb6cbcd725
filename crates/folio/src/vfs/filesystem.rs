//! The file system trait: one mounted file system.

use super::change::ChangeListener;
use super::inode::Inode;
use crate::base::{Errno, InodeNumber, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Sizes and free space of a file system, as statfs(2) reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystemStatistics {
    /// Magic number (`f_type`).
    pub magic: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Total number of blocks of `block_size` bytes.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Number of free blocks that unprivileged users may allocate.
    pub blocks_available: u64,
    /// Total number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A mounted file system. Linux: `struct super_block`.
pub trait FileSystem: Send + Sync {
    /// Returns the type as mount(8) writes it: "ext4".
    fn kind(&self) -> &'static str;

    /// Returns the root directory.
    fn root(&self) -> Arc<dyn Inode>;

    /// Returns the inode `number`, for a client that knows no name of it. Linux: `fh_to_dentry`.
    ///
    /// # Errors
    /// ESTALE if it is not in use, or the file system finds no inode by its number.
    fn inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        let _ = number;
        Err(Errno::STALE.into())
    }

    /// Returns sizes and free space.
    fn statistics(&self) -> Result<FileSystemStatistics>;

    /// Makes all earlier writes durable.
    fn sync(&self) -> Result<()>;

    /// Syncs, and calls `work`, once. A type that can keeps the medium unchanged meanwhile, and
    /// marks it clean: changes by other threads wait. By default they go on. Linux: FIFREEZE and
    /// FITHAW.
    ///
    /// # Errors
    /// Those of a sync; `work` was not called then. Else those of `work`, and of a mark.
    fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.sync()?;
        work()
    }

    /// Syncs, and marks the medium clean. The caller has dropped every open file. Later calls may
    /// fail with EIO.
    fn unmount(&self) -> Result<()>;

    /// Returns whether changes are rejected.
    fn is_read_only(&self) -> bool;

    /// Registers `listener` for changes by external writers, until its last strong reference is
    /// dropped. Returns false if the file system cannot report changes.
    fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        let _ = listener;
        false
    }

    /// Discards the runs of at least `len_min` bytes in `range`, in bytes of the device, that no
    /// file uses; returns how many bytes they have. Linux: FITRIM.
    ///
    /// # Errors
    /// ENOTTY if the file system has no device to discard on.
    fn trim(&self, range: Range<u64>, len_min: u64) -> Result<u64> {
        let _ = (range, len_min);
        Err(Errno::NOTTY.into())
    }

    /// Changes an option of this type while it is mounted: a word of mount(8). Linux: a remount.
    ///
    /// # Errors
    /// EINVAL for an unknown option, EOPNOTSUPP for one that only a new mount changes.
    fn set_option(&self, option: &str) -> Result<()> {
        let _ = option;
        Err(Errno::INVAL.into())
    }

    /// Returns warnings for the user that mounted the file system, each a sentence without a full
    /// stop.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}
