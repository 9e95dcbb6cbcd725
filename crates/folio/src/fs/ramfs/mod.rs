//! ramfs and tmpfs: file systems in memory, the page cache without a store. A tmpfs has limits.
//! gpufs: a ramfs whose files have their pages in a device's memory.
//!
//! ```text
//!   [traits of the VFS: FileSystem, Inode, FileOperations]
//!        v
//!   mod.rs          Ramfs: the mounted file system      options.rs   mount options of tmpfs
//!   operations.rs   Inode, FileOperations
//!   inode.rs        attributes, file data, xattrs       mount_state.rs  limits, clock, inode numbers
//!   dir.rs          names of a directory
//!        v
//!   cache/          a mapping without a store per file
//!
//!   frame_file.rs   in its place: pages in device memory   frame_files.rs   those of one mount
//!                                                          launch.rs   open files for launches
//!        v
//!   frame_slab.rs   frames of one page, in chunks
//!        v
//!   [frame memory trait: frame_memory.rs]                  HostFrames, and crates/folio-cuda
//! ```
//!
//! Neighbors: `vfs` above, `cache` below; no device. Linux: fs/ramfs, and
//! mm/shmem.c (tmpfs) for xattrs, fallocate, O_TMPFILE and the sizes of directories.
//!
//! Accounting, as in tmpfs: each page of data, and a page for a long symbolic link, counts as a
//! block; each inode, and each hard link beyond the first, counts as an inode. A call that frees
//! something releases its count before it returns.
//!
//! Lock order: inode lock (taken by the VFS), `Directory` of one inode, `InodeState` of one inode.
//! Never two of the same kind. Below them the state of a `FrameFile`, then the free frames of its
//! slab; no call of a `FrameMemory` that moves bytes is made with one of these locked.

mod dir;
mod frame_file;
mod frame_files;
mod frame_memory;
mod frame_slab;
mod inode;
mod launch;
mod mount_state;
mod operations;
mod options;

use crate::base::{DeviceNumber, Error, Limit, Owner, PAGE_SIZE, Result};
use crate::cache::PageCache;
use crate::vfs::{FileSystem, FileSystemStatistics, FileType, Inode, MountOptions, NewInode};
use frame_slab::FrameSlab;
use inode::RamInode;
use mount_state::{Limits, MountState};
use options::{GpufsOptions, TmpfsOptions, ramfs_root_mode};
use std::sync::Arc;

pub use frame_file::FramePages;
pub use frame_files::FrameFiles;
pub use frame_memory::{FrameMemory, FrameRead, FrameWrite, HostFrames};
pub use frame_slab::Frame;

/// `RAMFS_MAGIC` and `TMPFS_MAGIC` of linux/magic.h.
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A mounted ramfs or tmpfs.
pub(crate) struct Ramfs {
    kind: Kind,
    root: Arc<dyn Inode>,
    shared: Arc<MountState>,
    is_read_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ramfs,
    Tmpfs,
    Gpufs,
}

impl Ramfs {
    /// Creates a ramfs with an empty root directory, owned by root, of mode 0755 or `mode=`.
    ///
    /// # Errors
    ///
    /// EINVAL for invalid options.
    pub(crate) fn mount(
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        let mode = ramfs_root_mode(&options.file_system).map_err(|e| e.at("ramfs"))?;
        Ok(Self::build(
            Kind::Ramfs,
            cache,
            Limits::default(),
            None,
            root_directory(mode, Owner::ROOT),
            options,
        ))
    }

    /// Creates the file system at `/` before anything is mounted. Linux: `rootfs`.
    pub(crate) fn new_root(cache: &Arc<PageCache>, options: &MountOptions) -> Arc<dyn FileSystem> {
        Self::build(
            Kind::Ramfs,
            cache,
            Limits::default(),
            None,
            root_directory(0o755, Owner::ROOT),
            options,
        )
    }

    /// Creates a tmpfs with limits and an empty root directory. Linux: mm/shmem.c.
    ///
    /// # Errors
    ///
    /// EINVAL for invalid options.
    pub(crate) fn mount_tmpfs(
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
            None,
            root_directory(tmpfs.mode, tmpfs.owner),
            options,
        ))
    }

    /// Creates a ramfs whose regular files have their pages in `memory`. Symbolic links and names
    /// are in the host's memory.
    ///
    /// # Errors
    ///
    /// EINVAL for invalid options, EIO if the device fails.
    pub(crate) fn mount_gpufs(
        cache: &Arc<PageCache>,
        memory: Arc<dyn FrameMemory>,
        options: &MountOptions,
    ) -> Result<(Arc<dyn FileSystem>, FrameFiles)> {
        let gpufs: GpufsOptions = options
            .file_system
            .parse()
            .map_err(|e: Error| e.at("gpufs"))?;
        let len_bytes = gpufs.len_bytes(memory.len_bytes()?);
        let files = FrameFiles::new(FrameSlab::new(memory, gpufs.page_bytes, len_bytes));
        let file_system = Self::build(
            Kind::Gpufs,
            cache,
            Limits::default(),
            Some(files.clone()),
            root_directory(gpufs.mode, Owner::ROOT),
            options,
        );
        Ok((file_system, files))
    }

    fn build(
        kind: Kind,
        cache: &Arc<PageCache>,
        limits: Limits,
        frames: Option<FrameFiles>,
        root: NewInode<'_>,
        options: &MountOptions,
    ) -> Arc<dyn FileSystem> {
        let shared = Arc::new(MountState::new(cache, options.clock, limits, frames));
        let root = RamInode::new(&shared, &root)
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

/// Returns the properties of a new root directory.
fn root_directory(mode: u16, owner: Owner) -> NewInode<'static> {
    NewInode {
        file_type: FileType::Directory,
        mode,
        uid: owner.uid,
        gid: owner.gid,
        device: DeviceNumber::default(),
        target: b"",
    }
}

impl FileSystem for Ramfs {
    fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Ramfs => "ramfs",
            Kind::Tmpfs => "tmpfs",
            Kind::Gpufs => "gpufs",
        }
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        let Limits { pages, inodes } = &self.shared.limits;
        // Without a limit, Linux reports zeros.
        let totals = |limit: Option<&Limit>| {
            limit
                .filter(|limit| limit.max() < u64::MAX)
                .map_or((0, 0), |limit| (limit.max(), limit.free()))
        };
        let frames = self.shared.frames.as_ref();
        let (blocks, blocks_free) =
            totals(frames.map_or(pages.as_deref(), |files| Some(files.limit())));
        let (inodes, inodes_free) = totals(inodes.as_ref());
        Ok(FileSystemStatistics {
            magic: if self.kind == Kind::Tmpfs {
                TMPFS_MAGIC
            } else {
                RAMFS_MAGIC
            },
            block_size: frames.map_or(PAGE_SIZE as u32, |files| files.page_bytes() as u32),
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
