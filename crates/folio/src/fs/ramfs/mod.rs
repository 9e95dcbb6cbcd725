//! File systems in memory alone: the page cache with nothing behind it. A ramfs has no limits, a
//! tmpfs has.
//!
//! ```text
//!   [file system seam]
//!        v
//!   mod.rs     Ramfs: the mounted file system, inode numbers, limits, clock     options.rs   tmpfs
//!   inode.rs   attributes, file data, xattrs        vfs_glue.rs   the seam's calls
//!   dir.rs     names                                swap.rs       a device for pages of tmpfs
//!        v
//!   cache/     a mapping without a store per file
//! ```
//!
//! Neighbours: `vfs` above, `cache` below; no device but for swap. Linux: fs/ramfs, and mm/shmem.c
//! (tmpfs) for xattrs, fallocate, O_TMPFILE and the sizes of directories.
//!
//! What counts, as in tmpfs: a page of data, and a page for a long symbolic link, in blocks; an
//! inode, and a hard link beyond the first, in inodes. What counts no more is free before the call
//! returns that took it away.
//!
//! Lock order: inode lock (the VFS takes it), `Directory` of one inode, `State` of one inode. No
//! two of a kind.

mod dir;
mod inode;
mod options;
mod swap;
mod vfs_glue;

use crate::base::{Clock, Error, Limit, PAGE_SIZE, Result};
use crate::cache::{PageCache, Writeback};
use crate::vfs::{FileSystem, FileSystemStatistics, FileType, Inode, MountOptions, NewInode};
use inode::RamInode;
use options::{TmpfsOptions, ramfs_root_mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use swap::swap_on;

/// `RAMFS_MAGIC` and `TMPFS_MAGIC` of linux/magic.h.
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A mounted ramfs or tmpfs.
pub struct Ramfs {
    kind: Kind,
    root: Arc<dyn Inode>,
    shared: Arc<Shared>,
    is_read_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ramfs,
    Tmpfs,
}

/// What all inodes of one file system share.
struct Shared {
    writeback: Arc<Writeback>,
    clock: Clock,
    next_number: AtomicU64,
    /// Memory for pages, which all file systems share.
    cache_bytes: u64,
    limits: Limits,
}

/// What a file system may take; a ramfs may take everything. Only pages that are counted may be
/// swapped.
#[derive(Default)]
struct Limits {
    pages: Option<Arc<Limit>>,
    inodes: Option<Limit>,
}

impl Limits {
    fn take_pages(&self, count: u64) -> Result<()> {
        self.pages
            .as_ref()
            .map_or(Ok(()), |pages| pages.take(count))
    }

    fn give_pages_back(&self, count: u64) {
        if let Some(pages) = &self.pages {
            pages.give_back(count);
        }
    }

    fn take_inode(&self) -> Result<()> {
        self.inodes.as_ref().map_or(Ok(()), |inodes| inodes.take(1))
    }

    fn give_inode_back(&self) {
        if let Some(inodes) = &self.inodes {
            inodes.give_back(1);
        }
    }
}

impl Shared {
    /// A number no inode of this file system has had.
    fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }
}

impl Ramfs {
    /// A new file system with an empty root directory that root owns, of mode 0755 or `mode=`.
    pub fn mount(cache: &Arc<PageCache>, options: &MountOptions) -> Result<Arc<dyn FileSystem>> {
        let mode = ramfs_root_mode(&options.file_system).map_err(|e| e.at("ramfs"))?;
        Ok(Self::build(
            Kind::Ramfs,
            cache,
            Limits::default(),
            (mode, 0, 0),
            options,
        ))
    }

    /// The file system that is there before anything is mounted. Linux: `rootfs`.
    pub fn new_root(cache: &Arc<PageCache>, options: &MountOptions) -> Arc<dyn FileSystem> {
        Self::build(
            Kind::Ramfs,
            cache,
            Limits::default(),
            (0o755, 0, 0),
            options,
        )
    }

    /// A new file system with limits and an empty root directory. Linux: mm/shmem.c.
    pub fn mount_tmpfs(
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        let tmpfs: TmpfsOptions = options
            .file_system
            .parse()
            .map_err(|e: Error| e.at("tmpfs"))?;
        let (pages, inodes) = tmpfs.limits(cache.budget_bytes());
        let limits = Limits {
            pages: Some(Arc::new(Limit::new(pages.unwrap_or(u64::MAX)))),
            inodes: inodes.map(Limit::new),
        };
        Ok(Self::build(
            Kind::Tmpfs,
            cache,
            limits,
            (tmpfs.mode, tmpfs.uid, tmpfs.gid),
            options,
        ))
    }

    fn build(
        kind: Kind,
        cache: &Arc<PageCache>,
        limits: Limits,
        (mode, uid, gid): (u16, u32, u32),
        options: &MountOptions,
    ) -> Arc<dyn FileSystem> {
        let shared = Arc::new(Shared {
            writeback: cache.writeback(),
            clock: options.clock,
            next_number: AtomicU64::new(1),
            cache_bytes: cache.budget_bytes(),
            limits,
        });
        let file_type = FileType::Directory;
        let root = RamInode::new(
            &shared,
            &NewInode {
                file_type,
                mode,
                uid,
                gid,
                device: (0, 0),
                target: b"",
            },
        )
        .unwrap_or_else(|_| unreachable!("a limit leaves room for the root"));
        root.set_parent(root.number());
        Arc::new(Self {
            kind,
            root: Arc::new(root),
            shared,
            is_read_only: options.read_only,
        })
    }
}

impl FileSystem for Ramfs {
    fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Ramfs => "ramfs",
            Kind::Tmpfs => "tmpfs",
        }
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        let Limits { pages, inodes } = &self.shared.limits;
        // Where there is no limit Linux tells zeros.
        let tell = |limit: Option<&Limit>| {
            limit
                .filter(|limit| limit.max() < u64::MAX)
                .map_or((0, 0), |limit| (limit.max(), limit.free()))
        };
        let (blocks, blocks_free) = tell(pages.as_deref());
        let (inodes, inodes_free) = tell(inodes.as_ref());
        Ok(FileSystemStatistics {
            magic: if self.kind == Kind::Tmpfs {
                TMPFS_MAGIC
            } else {
                RAMFS_MAGIC
            },
            block_size: PAGE_SIZE as u32,
            blocks,
            blocks_free,
            blocks_available: blocks_free,
            inodes,
            inodes_free,
            name_max: 255,
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
