//! A file system in memory alone: the page cache with nothing behind it.
//!
//! ```text
//!   [file system seam]
//!        v
//!   mod.rs     Ramfs: the mounted file system, inode numbers, clock
//!   inode.rs   attributes, file data, xattrs        vfs_glue.rs   the seam's calls
//!   dir.rs     names
//!        v
//!   cache/     a mapping without a store per file
//! ```
//!
//! Neighbours: `vfs` above, `cache` below; no device. Linux: fs/ramfs, and mm/shmem.c (tmpfs) for xattrs,
//! fallocate, O_TMPFILE and the sizes of directories.
//!
//! Lock order: inode lock (the VFS takes it), `Directory` of one inode, `State` of one inode. No two of a kind.

mod dir;
mod inode;
mod vfs_glue;

use crate::base::{Clock, PAGE_SIZE, Result};
use crate::cache::{PageCache, Writeback};
use crate::vfs::{FileSystem, FileSystemStatistics, FileType, Inode, MountOptions, NewInode};
use inode::RamInode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `RAMFS_MAGIC` of linux/magic.h.
const MAGIC: u64 = 0x8584_58f6;

/// A mounted ramfs.
pub struct Ramfs {
    root: Arc<dyn Inode>,
    is_read_only: bool,
}

/// What all inodes of one ramfs share.
struct Shared {
    writeback: Arc<Writeback>,
    clock: Clock,
    next_number: AtomicU64,
}

impl Shared {
    /// A number no inode of this file system has had.
    fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }
}

impl Ramfs {
    /// A new file system with an empty root directory of mode 0755 that root owns.
    pub fn mount(cache: &Arc<PageCache>, options: &MountOptions) -> Arc<dyn FileSystem> {
        let shared = Arc::new(Shared {
            writeback: cache.writeback(),
            clock: options.clock,
            next_number: AtomicU64::new(1),
        });
        let new = NewInode {
            file_type: FileType::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            device: (0, 0),
            target: b"",
        };
        let root = RamInode::new(&shared, &new);
        root.set_parent(root.number());
        Arc::new(Self { root: Arc::new(root), is_read_only: options.read_only })
    }
}

impl FileSystem for Ramfs {
    fn kind(&self) -> &'static str {
        "ramfs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(FileSystemStatistics {
            magic: MAGIC,
            block_size: PAGE_SIZE as u32,
            name_max: 255,
            ..FileSystemStatistics::default()
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}
