//! ext4: a file system on a device, compatible both ways with mke2fs 1.47 and the kernel.
//!
//! ```text
//!   vfs_glue.rs   the VFS's calls, in ext4's words
//!      |
//!   directory.rs dir.rs htree.rs   xattr.rs acl.rs   file.rs delalloc.rs   symlink.rs
//!      |                              |                 |
//!   inode.rs  (an inode in memory)            extent.rs indirect.rs  (file block -> device block)
//!      |                                                |
//!   space.rs  (free blocks and inodes)  group.rs bitmap.rs
//!      |
//!   metadata.rs   metadata blocks in the page cache      superblock.rs options.rs disk.rs checksum.rs features.rs
//!      |
//!   [device seam]                                        journal/ (replay)   mkfs.rs (a fresh one)
//! ```
//!
//! Neighbours: the VFS above, the cache beside (file data by one mapping per inode, metadata by one per device),
//! a block device below. Knows no other file system.
//!
//! Lock order, outermost first: the VFS's inode locks; pages; `Ext4Inode::state`; `Ext4::superblock`;
//! `Ext4::space`; metadata pages. `Ext4::{inodes, dirty_inodes, retired, first_error}` are leaves: nothing is
//! locked, and no inode dropped, while one is held.
//!
//! Invariants:
//! 1. A block is promised (`Space::reserve`) before a page that needs it becomes dirty.
//! 2. Extents reach the inode table only through `Ext4Inode::flush`; bitmaps and descriptors only through
//!    `Space::flush`. Both stay in memory until a sync.
//! 3. A freed metadata block is forgotten by the cache before it can be given out again.
//! 4. From the first change until unmount the superblock on the device is marked not clean.
//! 5. An inode with dirty fields or pages is on the list of dirty inodes, which keeps it alive.

mod acl;
mod bitmap;
pub mod check;
mod checksum;
mod delalloc;
mod dir;
mod dir_block;
mod directory;
mod disk;
mod extent;
mod fallocate;
mod features;
mod file;
mod group;
mod hash;
mod htree;
mod indirect;
mod inline_data;
mod inode;
mod journal;
mod metadata;
pub mod mkfs;
mod options;
mod orphan;
mod space;
mod superblock;
mod symlink;
mod vfs_glue;
mod xattr;
mod xattr_store;

use crate::base::{Clock, Errno, Error, PhysicalBlock, Result, Timespec};
use crate::block::{self, Device};
use crate::cache::{PageCache, Writeback};
use crate::vfs::{FileSystem, FileSystemStatistics, FileType, Inode, MountOptions, ReserveOwners};
use disk::{ROOT_INODE, STATE_ERROR, STATE_VALID, SUPERBLOCK_OFFSET};
use features::Incompat;
use inode::Ext4Inode;
use journal::JournalBlocks;
use metadata::Metadata;
use options::Ext4Options;
use parking_lot::Mutex;
use space::Space;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use superblock::Superblock;

/// `f_type` of statfs(2).
const MAGIC: u64 = 0xEF53;
/// Longest file name in bytes.
const NAME_MAX: u32 = 255;
/// Dirty inodes that may gather in memory before those with clean data are written to the table.
const DIRTY_INODES_MAX: usize = 4096;

/// A mounted ext4. Linux: `struct ext4_sb_info`.
pub struct Ext4 {
    this: Weak<Ext4>,
    device: Arc<dyn Device>,
    metadata: Metadata,
    data_writeback: Arc<Writeback>,
    /// The superblock as mounted: sizes and places, which never change.
    geometry: Superblock,
    /// The superblock as it will be written: state and counts.
    superblock: Mutex<Superblock>,
    block_size: usize,
    inode_size: usize,
    checksum_seed: Option<u32>,
    space: Mutex<Space>,
    /// Every inode in use, by number.
    inodes: Mutex<HashMap<u32, Weak<Ext4Inode>, foldhash::fast::FixedState>>,
    dirty_inodes: Mutex<HashMap<u32, Arc<Ext4Inode>, foldhash::fast::FixedState>>,
    /// How many may be listed before those with clean data are written.
    dirty_inodes_limit: AtomicUsize,
    /// Inodes whose last reference was dropped inside writeback.
    retired: Mutex<Vec<Ext4Inode>>,
    /// The first failure nobody could be told of; the next sync tells it.
    first_error: Mutex<Option<Error>>,
    generation: AtomicU32,
    is_read_only: bool,
    options: Ext4Options,
    /// Whether the device was marked not clean by this mount.
    is_changed: AtomicBool,
    clock: Clock,
}

impl Ext4 {
    /// Mounts the ext4 on `device`. EROFS if it shall be written and the device cannot be; EOPNOTSUPP, naming the
    /// feature, for what Folio does not read or write; EUCLEAN for damage.
    pub fn mount(
        device: Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        let mounted = Self::open(device, cache, options).map_err(|e| e.at("ext4"))?;
        Ok(Arc::new(mounted))
    }

    fn open(device: Arc<dyn Device>, cache: &Arc<PageCache>, options: &MountOptions) -> Result<Mounted> {
        let superblock = Superblock::load(&*device)?;
        if !options.read_only {
            if device.is_read_only() {
                return Err(Error::new(Errno::ROFS, "the image is read-only"));
            }
            superblock.features.check_writable()?;
        }
        let (device, superblock) = match superblock.features.incompat.contains(Incompat::NEEDS_RECOVERY) {
            true => Self::recover(device, superblock, cache, options)?,
            false => (device, superblock),
        };
        let fs = Self::attach(device, superblock, cache, options)?;
        if fs.is_writing() {
            fs.process_orphans()?;
        }
        let root = fs.inode(ROOT_INODE.into())?;
        if root.common.file_type != FileType::Directory {
            return Err(Error::corrupt("is no directory").at("inode 2 (root)"));
        }
        Ok(Mounted { fs, root })
    }

    /// Brings what the journal holds to its place: on the device, or, for a read-only mount, in memory over it.
    fn recover(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<(Arc<dyn Device>, Superblock)> {
        let block_size = superblock.block_size;
        if superblock.raw.journal_inum.get() == 0 {
            return Err(Error::unsupported("a journal on another device"));
        }
        let blocks = {
            // Looks at the state before recovery, only to find the journal; all of it is forgotten afterwards.
            let before = Self::attach(
                device.clone(),
                superblock.clone(),
                cache,
                &MountOptions { read_only: true, ..options.clone() },
            )?;
            let number = before.geometry.check_inode_number(superblock.raw.journal_inum.get().into())?;
            let inode = Ext4Inode::load(&before, number, true).map_err(|e| e.at("journal"))?;
            let state = inode.state.read();
            let runs = state.map.extents().iter().map(|e| (e.physical, e.len)).collect();
            JournalBlocks { block_size, block_count: superblock.block_count, runs }
        };
        let device = if options.read_only { block::overlay(device) } else { device };
        journal::recover(blocks, device.clone())?;
        let mut superblock = Superblock::load(&*device)?;
        superblock.features.incompat.remove(Incompat::NEEDS_RECOVERY);
        device.write_at(&superblock.to_bytes(options.clock.now()), SUPERBLOCK_OFFSET)?;
        device.flush()?;
        Ok((device, superblock))
    }

    /// The file system in memory, as the device has it now.
    fn attach(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<Self>> {
        let ext4_options = Ext4Options::parse(&options.file_system, &superblock)?;
        let metadata =
            Metadata::new(&cache.writeback(), device.clone(), superblock.block_size, superblock.block_count);
        let groups = group::load_groups(&superblock, &metadata)?;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            data_writeback: cache.writeback(),
            block_size: superblock.block_size,
            inode_size: superblock.inode_size,
            checksum_seed: superblock.checksum_seed,
            space: Mutex::new(Space::new(&superblock, groups)),
            geometry: superblock.clone(),
            superblock: Mutex::new(superblock),
            device,
            metadata,
            inodes: Mutex::default(),
            dirty_inodes: Mutex::default(),
            dirty_inodes_limit: AtomicUsize::new(DIRTY_INODES_MAX),
            retired: Mutex::default(),
            first_error: Mutex::new(None),
            generation: AtomicU32::new(0),
            is_read_only: options.read_only,
            options: ext4_options,
            is_changed: AtomicBool::new(false),
            clock: options.clock,
        }))
    }

    /// The inode `number`, from memory or the device.
    fn inode(&self, number: u64) -> Result<Arc<Ext4Inode>> {
        let number = self.geometry.check_inode_number(number)?;
        let known = self.inodes.lock().get(&number).and_then(Weak::upgrade);
        if let Some(inode) = known {
            return Ok(inode);
        }
        let fs = self.this.upgrade().ok_or(Errno::IO)?;
        let loaded = Ext4Inode::load(&fs, number, false)?;
        Ok(self.remember(loaded))
    }

    /// Makes `inode` the one object of its number, unless another thread was faster: then that one is returned.
    fn remember(&self, inode: Arc<Ext4Inode>) -> Arc<Ext4Inode> {
        let mut inodes = self.inodes.lock();
        if let Some(known) = inodes.get(&inode.number).and_then(Weak::upgrade) {
            drop(inodes);
            return known;
        }
        inodes.insert(inode.number, Arc::downgrade(&inode));
        inode
    }

    /// Forgets an inode that is gone from memory.
    fn forget_inode(&self, number: u32) {
        let mut inodes = self.inodes.lock();
        if inodes.get(&number).is_some_and(|weak| weak.strong_count() == 0) {
            inodes.remove(&number);
        }
    }

    fn has_incompat(&self, feature: Incompat) -> bool {
        self.geometry.features.incompat.contains(feature)
    }

    fn now(&self) -> Timespec {
        self.clock.now()
    }

    /// A generation number for a new inode: different for each use of a slot, the same in each run.
    fn next_generation(&self, number: u32) -> u32 {
        let sequence = self.generation.fetch_add(1, Ordering::Relaxed);
        let seed = checksum::crc32c(!0, &self.geometry.raw.uuid);
        checksum::crc32c(checksum::crc32c(seed, &number.to_le_bytes()), &sequence.to_le_bytes())
    }

    /// Whether this mount may write to the device.
    fn is_writing(&self) -> bool {
        !self.is_read_only
    }

    /// To be called before every change, with no block locked: refuses it on a read-only mount or if memory is full
    /// of blocks that cannot be written, and marks the device not clean.
    fn begin_change(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Errno::ROFS.into());
        }
        if !self.is_changed.load(Ordering::Acquire) {
            let mut superblock = self.superblock.lock();
            if !self.is_changed.load(Ordering::Acquire) {
                let state = superblock.raw.state.get() & !STATE_VALID;
                superblock.raw.state = state.into();
                self.write_superblock(&superblock)?;
                self.device.flush()?;
                self.is_changed.store(true, Ordering::Release);
            }
        }
        self.bury();
        self.metadata.throttle()
    }

    /// Writes the superblock to the device at once.
    fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        let number = SUPERBLOCK_OFFSET / self.block_size as u64;
        let start = (SUPERBLOCK_OFFSET % self.block_size as u64) as usize;
        let block = self.metadata.block(PhysicalBlock(number))?;
        block.write()[start..start + 1024].copy_from_slice(&superblock.to_bytes(self.now()));
        self.metadata.write_back_block(PhysicalBlock(number))
    }

    /// Remembers a failure that nobody waits for.
    fn note_error(&self, error: Error) {
        self.first_error.lock().get_or_insert(error);
    }

    /// Writes dirty inodes whose data is clean to the table, once there are too many of them in memory.
    fn limit_dirty_inodes(&self) -> Result<()> {
        let count = self.dirty_inodes.lock().len();
        if count <= self.dirty_inodes_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.flush_inodes()?;
        // Those with dirty data stay listed until that is written, which the cache's limits see to.
        let left = self.dirty_inodes.lock().len();
        self.dirty_inodes_limit.store(left + DIRTY_INODES_MAX, Ordering::Relaxed);
        Ok(())
    }

    /// Writes every dirty inode into the metadata blocks.
    fn flush_inodes(&self) -> Result<()> {
        let mut dirty: Vec<Arc<Ext4Inode>> = self.dirty_inodes.lock().values().cloned().collect();
        // In the table's order, so that each of its blocks is touched once.
        dirty.sort_unstable_by_key(|inode| inode.number);
        for inode in dirty {
            let mut state = inode.state_mut();
            if state.is_dirty {
                inode.flush(&mut state).map_err(|e| e.at(format!("inode {}", inode.number)))?;
            }
            let has_dirty_pages = inode.common.mapping.as_ref().is_some_and(|m| m.is_dirty());
            if !has_dirty_pages {
                inode.trim_tree_reservation(&mut state);
                let listed = self.dirty_inodes.lock().remove(&inode.number);
                drop(state);
                drop(listed);
            } else {
                // New pages came in meanwhile: the inode stays on the list.
                state.is_dirty = true;
            }
        }
        Ok(())
    }

    fn statistics(&self) -> FileSystemStatistics {
        let space = self.space.lock();
        let raw = &self.geometry.raw;
        let overhead = match raw.overhead_clusters.get() {
            0 => space.system_blocks(),
            clusters => u64::from(clusters) * u64::from(self.geometry.cluster_blocks),
        };
        let free = space.available_blocks() * u64::from(self.geometry.cluster_blocks);
        FileSystemStatistics {
            magic: MAGIC,
            block_size: self.block_size as u32,
            blocks: self.geometry.block_count.saturating_sub(overhead),
            blocks_free: free,
            blocks_available: free.saturating_sub(self.options.reserved_blocks),
            inodes: self.geometry.inode_count.into(),
            inodes_free: space.free_inodes(),
            name_max: NAME_MAX,
        }
    }

    /// Makes everything durable; `is_final` also marks the file system clean.
    fn sync_all(&self, is_final: bool) -> Result<()> {
        if !self.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.data_writeback.write_back_all()?;
        // After writeback, which may have held the last reference to a deleted file.
        self.bury();
        self.flush_inodes()?;
        {
            let mut superblock = self.superblock.lock();
            self.space.lock().flush(&mut superblock, &self.metadata)?;
            self.metadata.write_back()?;
            self.device.flush()?;
            let error = self.first_error.lock().take();
            if error.is_some() {
                superblock.raw.state = (superblock.raw.state.get() | STATE_ERROR).into();
            } else if is_final {
                superblock.raw.state = (superblock.raw.state.get() | STATE_VALID).into();
            }
            self.write_superblock(&superblock)?;
            self.device.flush()?;
            if let Some(error) = error {
                return Err(error);
            }
        }
        if is_final {
            self.is_changed.store(false, Ordering::Release);
        }
        Ok(())
    }
}

/// What the VFS holds of a mounted ext4: the file system and its root. Inodes refer to the file system, so the
/// file system itself must not refer to one for ever.
struct Mounted {
    fs: Arc<Ext4>,
    root: Arc<Ext4Inode>,
}

impl FileSystem for Mounted {
    fn kind(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(self.fs.statistics())
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync_all(false).map_err(|e| e.at("ext4"))
    }

    fn unmount(&self) -> Result<()> {
        self.fs.sync_all(true).map_err(|e| e.at("ext4"))
    }

    fn is_read_only(&self) -> bool {
        self.fs.is_read_only
    }

    fn reserve_owners(&self) -> Option<ReserveOwners> {
        let options = &self.fs.options;
        Some(ReserveOwners { uid: options.reserved_uid, gid: options.reserved_gid })
    }
}
