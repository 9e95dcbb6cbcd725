//! The volume of a mounted ext4: device, superblock, metadata, free space and journal, which all
//! inodes share. Linux: `struct ext4_sb_info`.
//!
//! ```text
//!   Volume --- geometry     the superblock as mounted: sizes and places, constant
//!          |-- superblock   the superblock as the next commit writes it
//!          |-- metadata     metadata blocks in the page cache
//!          |-- space        free blocks, free inodes, reservations
//!          |-- journal      transactions, once the mount has opened it
//!          `-- device       file data, and everything else by way of the journal
//! ```
//!
//! Neighbors: the inodes above, which are listed in `Ext4`; space, journal and layout below. Knows
//! no inode.
//!
//! Lock order: `superblock`, `space`, metadata pages. `first_error` is a leaf.

use super::journal::metadata::Metadata;
use super::journal::{Handle, Journal, JournalBlocks};
use super::layout::disk::SUPERBLOCK_OFFSET;
use super::layout::features::{Compat, Incompat, RoCompat};
use super::layout::superblock::Superblock;
use super::options::{AutoDaAlloc, Ext4Options};
use super::space::{BlockSource, Purpose, Space, group};
use crate::base::lock::Mutex;
use crate::base::{Clock, Errno, Error, PAGE_SIZE, PhysicalBlock, Result, Timespec};
use crate::block::{Device, guard};
use crate::cache::{ObjectMemory, PageCache, Writeback};
use crate::vfs::{FileSystemStatistics, MountOptions};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// `f_type` of statfs(2).
const MAGIC: u64 = 0xEF53;
/// Longest file name in bytes.
const NAME_MAX: u32 = 255;
/// The blocks of a transaction may take this part of the page cache's memory: one in so many.
const TRANSACTION_CACHE_SHARE: u64 = 8;

/// No failure: everything is allowed.
pub(crate) const FAILURE_NONE: u8 = 0;
/// Changes fail with EROFS (`errors=remount-ro`, or an aborted journal).
pub(crate) const FAILURE_READ_ONLY: u8 = 1;
/// Every call fails with EIO (`errors=panic`).
pub(crate) const FAILURE_DEAD: u8 = 2;

/// What all inodes of a mounted ext4 share.
pub(crate) struct Volume {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) metadata: Metadata,
    pub(crate) data_writeback: Arc<Writeback>,
    /// The superblock as mounted: sizes and places, which never change.
    pub(crate) geometry: Superblock,
    /// The superblock as it will be written: state and counts.
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) block_size: usize,
    pub(crate) inode_size: usize,
    pub(crate) checksum_seed: Option<u32>,
    pub(crate) space: Mutex<Space>,
    pub(crate) is_read_only: bool,
    /// As mounted, but for `auto_da_alloc`, which a remount changes.
    pub(crate) options: Ext4Options,
    auto_da_alloc: AtomicU8,
    /// Set at mount, if the file system has one and is mounted for writing.
    pub(crate) journal: OnceLock<Journal>,
    /// The first failure that no call could return; the next sync returns it.
    first_error: Mutex<Option<Error>>,
    /// How far the file system can still be used: one of the `FAILURE_` levels.
    pub(crate) failure_level: AtomicU8,
    /// Whether this mount marked the device as not clean.
    pub(crate) is_changed: AtomicBool,
    /// Memory for pages, inodes and names, in bytes. The blocks of a transaction are a part of it.
    cache_bytes: u64,
    /// The memory that inodes, and the journal's copies of blocks, are charged to.
    pub(crate) objects: Arc<ObjectMemory>,
    clock: Clock,
}

impl Volume {
    /// Returns the volume as the device has it now, without a journal.
    ///
    /// # Errors
    /// EINVAL for unknown mount options; EUCLEAN for damaged group descriptors.
    pub(crate) fn open(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Self> {
        let ext4_options = Ext4Options::parse(&options.file_system, &superblock)?;
        let device = guard(device);
        let metadata = Metadata::new(
            &cache.writeback(),
            device.clone(),
            superblock.block_size,
            superblock.block_count,
        );
        let groups = group::load_groups(&superblock, &metadata)?;
        Ok(Self {
            data_writeback: cache.writeback(),
            block_size: superblock.block_size,
            inode_size: superblock.inode_size,
            checksum_seed: superblock.checksum_seed,
            space: Mutex::new(Space::new(&superblock, groups)),
            geometry: superblock.clone(),
            superblock: Mutex::new(superblock),
            device,
            metadata,
            first_error: Mutex::new(None),
            is_read_only: options.read_only,
            auto_da_alloc: AtomicU8::new(ext4_options.auto_da_alloc as u8),
            options: ext4_options,
            journal: OnceLock::new(),
            failure_level: AtomicU8::new(FAILURE_NONE),
            is_changed: AtomicBool::new(false),
            cache_bytes: cache.budget_bytes(),
            objects: cache.objects().clone(),
            clock: options.clock,
        })
    }

    /// Begins an operation: all changes until the handle is dropped are in one transaction.
    pub(crate) fn start(&self) -> Option<Handle<'_>> {
        self.journal.get().map(|journal| journal.gate.start())
    }

    /// Returns the sequence number of the transaction that changes go into; 0 without a journal.
    pub(crate) fn running(&self) -> u32 {
        self.journal.get().map_or(0, Journal::running)
    }

    /// Opens the journal in `blocks`, which has been replayed and is empty.
    pub(crate) fn open_journal(
        &self,
        blocks: JournalBlocks,
        has_barriers: bool,
    ) -> Result<Journal> {
        Journal::new(
            blocks,
            self.device.clone(),
            self.cache_bytes / PAGE_SIZE as u64 / TRANSACTION_CACHE_SHARE,
            self.objects.charge_pinned(0),
            self.has_ro_compat(RoCompat::METADATA_CSUM),
            self.has_incompat(Incompat::BIT64),
            has_barriers,
        )
        .map_err(|e| e.at("journal"))
    }

    /// Sends all further changes through the journal in `blocks`.
    pub(crate) fn use_journal(&self, blocks: JournalBlocks) -> Result<()> {
        {
            let mut space = self.space.lock();
            // From the first change on, no block is reused before its transaction is durable.
            space.defer_frees();
            // A forged file must not get the journal's blocks: what it wrote there would be
            // replayed.
            space.protect(&blocks.runs);
        }
        let journal = self.open_journal(blocks, self.options.barrier)?;
        self.metadata.use_journal(journal.snapshots.clone());
        // Once, at mount.
        let _ = self.journal.set(journal);
        Ok(())
    }

    /// Whether the incompatible feature `feature` is on.
    pub(crate) fn has_incompat(&self, feature: Incompat) -> bool {
        self.geometry.features.incompat.contains(feature)
    }

    /// Whether the read-only compatible feature `feature` was on at mount.
    pub(crate) fn has_ro_compat(&self, feature: RoCompat) -> bool {
        self.geometry.features.ro_compat.contains(feature)
    }

    /// Sets the feature `large_file`, which ext2 and ext3 may lack, for the first file of 2 GiB.
    pub(crate) fn note_file_size(&self, size_bytes: u64) {
        if size_bytes > i32::MAX as u64 && !self.has_ro_compat(RoCompat::LARGE_FILE) {
            let features = &mut self.superblock.lock().features;
            features.ro_compat.insert(RoCompat::LARGE_FILE);
        }
    }

    /// Sets the feature `ext_attr`, which ext2 and ext3 may lack, for the first attribute.
    pub(crate) fn note_xattr(&self) {
        if !self.geometry.features.compat.contains(Compat::EXT_ATTR) {
            let features = &mut self.superblock.lock().features;
            features.compat.insert(Compat::EXT_ATTR);
        }
    }

    /// Returns the time of the mount's clock.
    pub(crate) fn now(&self) -> Timespec {
        self.clock.now()
    }

    /// Whether this mount may write to the device.
    pub(crate) fn is_writing(&self) -> bool {
        !self.is_read_only
    }

    /// Returns the protection of replaced files at present.
    pub(crate) fn auto_da_alloc(&self) -> AutoDaAlloc {
        AutoDaAlloc::from_number(self.auto_da_alloc.load(Ordering::Relaxed))
    }

    /// Changes an option of the mounted file system, or accepts one that is as it was.
    ///
    /// # Errors
    /// EINVAL for an unknown option or value, EOPNOTSUPP for one that only a new mount changes.
    pub(crate) fn set_option(&self, word: &str) -> Result<()> {
        let changed = self.options.clone().with(word)?;
        let auto_da_alloc = changed.auto_da_alloc;
        let same = Ext4Options {
            auto_da_alloc: self.options.auto_da_alloc,
            ..changed
        };
        if same != self.options {
            let why = format!("only a new mount changes the option {word:?}");
            return Err(Error::new(Errno::OPNOTSUPP, why));
        }
        if word.contains("auto_da_alloc") {
            // Files held back under the earlier protection are released as under it.
            self.auto_da_alloc
                .store(auto_da_alloc as u8, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Fails with EROFS for changes after a failure that `errors=remount-ro` answers, with EIO
    /// after one under `errors=panic`.
    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.failure_level.load(Ordering::Acquire) {
            FAILURE_NONE => Ok(()),
            FAILURE_READ_ONLY => Err(Error::new(
                Errno::ROFS,
                "the file system is read-only after an error",
            )),
            _ => self.check_alive(),
        }
    }

    /// Fails every call with EIO after a failure under `errors=panic`.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.failure_level.load(Ordering::Acquire) {
            FAILURE_DEAD => Err(Error::new(
                Errno::IO,
                "the file system failed (errors=panic)",
            )),
            _ => Ok(()),
        }
    }

    /// Keeps a failure that no caller waits for, until the next sync returns it.
    pub(crate) fn note_error(&self, error: Error) {
        self.first_error.lock().get_or_insert(error);
    }

    /// Returns, once, the first failure that no call could return.
    pub(crate) fn take_first_error(&self) -> Result<()> {
        self.first_error.lock().take().map_or(Ok(()), Err)
    }

    /// Flushes the device, unless the mount forgoes barriers.
    pub(crate) fn device_barrier(&self) -> Result<()> {
        if self.options.barrier {
            self.device.flush()
        } else {
            Ok(())
        }
    }

    /// Writes the superblock to the device, without a journal.
    pub(crate) fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        self.device
            .write_at(&superblock.to_bytes(self.now()), SUPERBLOCK_OFFSET)
    }

    /// Returns the block of the superblock as a transaction holds it. `Metadata` does not hold it.
    pub(crate) fn superblock_block(&self, superblock: &Superblock) -> Result<(u64, Arc<[u8]>)> {
        let number = SUPERBLOCK_OFFSET / self.block_size as u64;
        let start = (SUPERBLOCK_OFFSET % self.block_size as u64) as usize;
        // With large blocks the boot sector is in the same one: its bytes stay.
        let mut block = vec![0; self.block_size];
        self.device
            .read_at(&mut block, number * self.block_size as u64)?;
        let bytes = superblock.to_bytes(self.now());
        block[start..start + bytes.len()].copy_from_slice(&bytes);
        Ok((number, block.into()))
    }

    /// Sends discards for blocks that nothing uses any more (`discard`).
    pub(crate) fn discard(&self, freed: &[Range<u64>]) {
        if !self.options.discard {
            return;
        }
        let block_size = self.block_size as u64;
        for range in freed {
            // A hint: on a device without discard nothing is lost.
            let _ = self.device.discard(
                range.start * block_size,
                (range.end - range.start) * block_size,
            );
        }
    }

    /// Allocates one block for metadata, near other metadata. A reservation is released.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn allocate_metadata(&self, source: BlockSource) -> Result<PhysicalBlock> {
        let mut space = self.space.lock();
        let run = space.allocate(
            &self.geometry,
            &self.metadata,
            None,
            1,
            Purpose::Metadata,
            source,
        )?;
        if source == BlockSource::Reservation {
            space.release(1);
        }
        Ok(PhysicalBlock(run.start))
    }

    /// Frees blocks that held metadata, and drops their contents from the cache.
    pub(crate) fn free_metadata(&self, range: Range<u64>) -> Result<()> {
        // Before the blocks are free: dirty bytes must not be written over their next use.
        self.metadata.forget(range.clone());
        self.free_data(range)
    }

    /// Frees blocks that held file data.
    pub(crate) fn free_data(&self, range: Range<u64>) -> Result<()> {
        self.space
            .lock()
            .free(&self.geometry, &self.metadata, range)
    }

    /// Returns the counts of statfs(2).
    pub(crate) fn statistics(&self) -> FileSystemStatistics {
        let space = self.space.lock();
        let raw = &self.geometry.raw;
        let overhead = match raw.overhead_clusters.get() {
            0 => space.system_blocks(),
            clusters => u64::from(clusters) * u64::from(self.geometry.cluster_blocks),
        };
        let free = space.unreserved_blocks() * u64::from(self.geometry.cluster_blocks);
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
