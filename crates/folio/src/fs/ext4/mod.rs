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
//!   commit.rs     closes transactions       auto_da_alloc.rs orphan.rs failure.rs commit_thread.rs lazy_time.rs
//!      |
//!   journal/      makes them durable, replays them (fast_replay.rs)      mkfs/ (a fresh one)  tune.rs  check/ (one looked at)  resize/
//!      |
//!   [device seam]
//! ```
//!
//! Neighbours: the VFS above, the cache beside (file data by one mapping per inode, metadata by one
//! per device), a block device below. Knows no other file system.
//!
//! Lock order, outermost first: the VFS's inode locks; the right to commit (`Journal::committer`);
//! an operation's handle (`Ext4::start`); pages; a store's handle; `Ext4Inode::state`;
//! `Ext4::orphans`; `Ext4::superblock`; `Ext4::space`; metadata pages.
//! `Ext4::{inodes, dirty_inodes, ordered_inodes, held_inodes, retired, first_error}` are leaves:
//! nothing is locked, and no inode dropped, while one is held. Nobody waits for a commit within an
//! operation, and a commit drops no inode without names ([`Ext4::retire`]).
//!
//! Invariants:
//! 1. A block is promised (`Space::reserve`) before a page that needs it becomes dirty.
//! 2. Extents reach the inode table only through `Ext4Inode::flush`; bitmaps and descriptors only
//!    through `Space::flush`. Both stay in memory until a commit, or without a journal until a
//!    sync.
//! 3. A freed block is used again only after the transaction that freed it is durable; a freed
//!    metadata block is forgotten by the cache before.
//! 4. From the first change until unmount the superblock on the device says that the journal must
//!    be replayed, or without one that e2fsck must look.
//! 5. An inode with dirty fields or pages is on the list of dirty inodes, which keeps it alive; one
//!    without names is on no list, and is written to the table with every change.
//! 6. What an operation changes, it changes under one handle.

pub mod check;
mod commit;
mod directory;
mod file;
mod inode;
mod journal;
mod layout;
pub mod mkfs;
mod operations;
mod options;
pub mod resize;
mod space;
pub mod tune;
mod xattr;

use crate::base::{Clock, Errno, Error, PAGE_SIZE, Result, Timespec};
use crate::block::{self, Device};
use crate::cache::{PageCache, Writeback};
use crate::vfs::{FileSystem, FileSystemStatistics, FileType, Inode, MountOptions};
use commit::failure::Failure;
use commit::lazy_time::LazyTimes;
use commit::orphan::{OrphanFile, Orphans};
use commit::thread::CommitThread;
use inode::Ext4Inode;
use journal::metadata::Metadata;
use journal::{Journal, JournalBlocks};
use layout::checksum;
use layout::disk::ROOT_INODE;
use layout::features::{Compat, Incompat, RoCompat};
use layout::superblock::Superblock;
use options::Ext4Options;
pub(crate) use options::words_known;
use parking_lot::Mutex;
use space::{Space, group};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// `f_type` of statfs(2).
const MAGIC: u64 = 0xEF53;
/// Longest file name in bytes.
const NAME_MAX: u32 = 255;
/// One part in so many of the page cache's memory is for the blocks of a transaction.
const TRANSACTION_CACHE_SHARE: u64 = 8;
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
    /// Set at mount, where there is one and it is written.
    journal: OnceLock<Journal>,
    commit_thread: CommitThread,
    has_threads: bool,
    /// Memory for pages, which the blocks of a transaction are a part of.
    cache_bytes: u64,
    /// Inodes in `dirty_inodes` that the table does not show as they are.
    unflushed_inodes: AtomicUsize,
    /// Files whose data has to be on the device before the next transaction is durable.
    ordered_inodes: Mutex<HashMap<u32, Arc<Ext4Inode>, foldhash::fast::FixedState>>,
    /// Files that the table shows as they were before a truncation.
    held_inodes: Mutex<HashMap<u32, Arc<Ext4Inode>, foldhash::fast::FixedState>>,
    orphans: Mutex<Orphans>,
    orphan_file: OnceLock<Option<OrphanFile>>,
    failure: Failure,
    lazy_times: LazyTimes,
    /// Whether the device was marked not clean by this mount.
    is_changed: AtomicBool,
    clock: Clock,
}

impl Ext4 {
    /// Mounts the ext4 on `device`. EROFS if it shall be written and the device cannot be;
    /// EOPNOTSUPP, naming the feature, for what Folio does not read or write; EUCLEAN for damage.
    pub fn mount(
        device: Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        let mounted = Self::open(device, cache, options).map_err(|e| e.at("ext4"))?;
        Ok(Arc::new(mounted))
    }

    fn open(
        device: Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Mounted> {
        let superblock = Superblock::load_for_recovery(&*device)?;
        if !options.read_only {
            if device.is_read_only() {
                return Err(Error::new(Errno::ROFS, "the image is read-only"));
            }
            superblock.features.check_writable()?;
        }
        let needs_recovery = superblock
            .features
            .incompat
            .contains(Incompat::NEEDS_RECOVERY);
        let loads_journal = Ext4Options::parse(&options.file_system, &superblock)?.load_journal;
        if needs_recovery && !loads_journal && !options.read_only {
            let why = "the journal must be replayed before the file system is written (noload, norecovery)";
            return Err(Error::new(Errno::INVAL, why));
        }
        let (device, superblock) = match needs_recovery && loads_journal {
            true => Self::recover(device, superblock, cache, options)?,
            false => {
                let superblock = Superblock::load(&*device)?;
                (device, superblock)
            }
        };
        let fs = Self::attach(device, superblock, cache, options)?;
        match fs.start_up() {
            Ok(root) => {
                tracing::info!(
                    block_size = fs.block_size,
                    blocks = fs.geometry.block_count,
                    read_only = fs.is_read_only,
                    journal = fs.journal.get().is_some(),
                    "ext4 mounted"
                );
                tracing::debug!(options = ?fs.options, "ext4 options");
                Ok(Mounted { fs, root })
            }
            Err(error) => {
                fs.give_up();
                Err(error)
            }
        }
    }

    /// Makes an attached file system ready for use, and returns its root.
    fn start_up(self: &Arc<Self>) -> Result<Arc<Ext4Inode>> {
        if self.is_writing() {
            self.open_journal()?;
            self.find_orphan_file()?;
            self.process_orphans()?;
        }
        let root = self.inode(ROOT_INODE.into())?;
        match root.common.file_type {
            FileType::Directory => Ok(root),
            _ => Err(Error::corrupt("is no directory").at("inode 2 (root)")),
        }
    }

    /// Lets go of what could not be written: its inodes hold the file system, which holds them.
    fn give_up(&self) {
        for list in [&self.dirty_inodes, &self.ordered_inodes, &self.held_inodes] {
            let inodes = std::mem::take(&mut *list.lock());
            for mapping in inodes
                .values()
                .filter_map(|inode| inode.common.mapping.as_ref())
            {
                // Dirty pages would stay in memory as long as the cache.
                mapping.truncate(0);
            }
        }
        self.metadata.forget_all();
        drop(self.lazy_times.take());
        let retired = std::mem::take(&mut *self.retired.lock());
        drop(retired);
    }

    /// Brings what the journal holds to its place: on the device, or, for a read-only mount, in
    /// memory over it.
    fn recover(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<(Arc<dyn Device>, Superblock)> {
        if superblock.raw.journal_inum.get() == 0 {
            return Err(Error::unsupported("a journal on another device"));
        }
        let blocks = {
            // Looks at the state before recovery, only to find the journal; all of it is forgotten
            // afterwards.
            let before = Self::attach(
                device.clone(),
                superblock.clone(),
                cache,
                &MountOptions {
                    read_only: true,
                    ..options.clone()
                },
            )?;
            before.journal_blocks()?
        };
        let device = if options.read_only {
            block::overlay(device)
        } else {
            device
        };
        let recovered = journal::recover(blocks, device.clone())?;
        tracing::info!(
            transactions = recovered.transactions,
            fast_commit_changes = recovered.changes.len(),
            in_memory = options.read_only,
            "ext4 journal replayed"
        );
        Self::replay_fast_commits(&device, cache, options, &recovered.changes)?;
        recovered.finish()?;
        Superblock::write_recovery_flag(&*device, false)?;
        device.flush()?;
        let superblock = Superblock::load(&*device)?;
        Ok((device, superblock))
    }

    /// Where the journal lies.
    fn journal_blocks(self: &Arc<Self>) -> Result<JournalBlocks> {
        let number = self
            .geometry
            .check_inode_number(self.geometry.raw.journal_inum.get().into())?;
        let inode = Ext4Inode::load(self, number, true).map_err(|e| e.at("journal"))?;
        let state = inode.state.read();
        let runs = state
            .map
            .extents()
            .iter()
            .map(|e| (e.physical, e.len))
            .collect();
        Ok(JournalBlocks {
            block_size: self.block_size,
            block_count: self.geometry.block_count,
            runs,
        })
    }

    /// From now on everything is written by way of the journal, if there is one and the mount wants
    /// it.
    fn open_journal(self: &Arc<Self>) -> Result<()> {
        let features = &self.geometry.features;
        if !features.compat.contains(Compat::HAS_JOURNAL) || !self.options.load_journal {
            return Ok(());
        }
        if self.geometry.raw.journal_inum.get() == 0 {
            return Err(Error::unsupported("a journal on another device"));
        }
        let blocks = self.journal_blocks()?;
        {
            let mut space = self.space.lock();
            space.defer_frees();
            space.protect(&blocks.runs);
        }
        let journal = self.new_journal(blocks, self.options.barrier)?;
        self.metadata.use_journal(journal.snapshots.clone());
        // Once, at mount.
        let _ = self.journal.set(journal);
        Ok(())
    }

    /// The journal as it lies on the device, replayed and empty.
    fn new_journal(&self, blocks: JournalBlocks, has_barriers: bool) -> Result<Journal> {
        let features = &self.geometry.features;
        Journal::new(
            blocks,
            self.device.clone(),
            self.cache_bytes / PAGE_SIZE as u64 / TRANSACTION_CACHE_SHARE,
            features.ro_compat.contains(RoCompat::METADATA_CSUM),
            features.incompat.contains(Incompat::BIT64),
            has_barriers,
        )
        .map_err(|e| e.at("journal"))
    }

    /// The file system in memory, as the device has it now.
    fn attach(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<Self>> {
        let ext4_options = Ext4Options::parse(&options.file_system, &superblock)?;
        let metadata = Metadata::new(
            &cache.writeback(),
            device.clone(),
            superblock.block_size,
            superblock.block_count,
        );
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
            journal: OnceLock::new(),
            commit_thread: CommitThread::default(),
            has_threads: cache.has_threads(),
            cache_bytes: cache.budget_bytes(),
            unflushed_inodes: AtomicUsize::new(0),
            ordered_inodes: Mutex::default(),
            held_inodes: Mutex::default(),
            orphans: Mutex::default(),
            orphan_file: OnceLock::new(),
            failure: Failure::default(),
            lazy_times: LazyTimes::new(options.is_lazy_time),
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

    /// Makes `inode` the one object of its number, unless another thread was faster: then that one
    /// is returned.
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
        if inodes
            .get(&number)
            .is_some_and(|weak| weak.strong_count() == 0)
        {
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
        checksum::crc32c(
            checksum::crc32c(seed, &number.to_le_bytes()),
            &sequence.to_le_bytes(),
        )
    }

    /// Whether this mount may write to the device.
    fn is_writing(&self) -> bool {
        !self.is_read_only
    }

    /// Remembers a failure that nobody waits for.
    fn note_error(&self, error: Error) {
        self.first_error.lock().get_or_insert(error);
    }

    /// Writes dirty inodes whose data is clean to the table, once there are too many of them in
    /// memory.
    fn limit_dirty_inodes(&self) -> Result<()> {
        let count = self.dirty_inodes.lock().len();
        if count <= self.dirty_inodes_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.flush_inodes()?;
        // Those with dirty data stay listed until that is written, which the cache's limits see to.
        let left = self.dirty_inodes.lock().len();
        self.dirty_inodes_limit
            .store(left + DIRTY_INODES_MAX, Ordering::Relaxed);
        Ok(())
    }

    fn statistics(&self) -> FileSystemStatistics {
        let space = self.space.lock();
        let raw = &self.geometry.raw;
        let overhead = match raw.overhead_clusters.get() {
            0 => space.system_blocks(),
            clusters => u64::from(clusters) * u64::from(self.geometry.cluster_blocks),
        };
        let free = space.unpromised_blocks() * u64::from(self.geometry.cluster_blocks);
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
}

/// What the VFS holds of a mounted ext4: the file system and its root. Inodes refer to the file
/// system, so the file system itself must not refer to one for ever.
struct Mounted {
    fs: Arc<Ext4>,
    root: Arc<Ext4Inode>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.fs.give_up();
    }
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
}
