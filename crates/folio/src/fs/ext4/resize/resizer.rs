//! An unmounted file system with an empty journal, while it is resized.

use super::copies;
use super::plan::ReservedShare;
use crate::base::{Clock, Result};
use crate::block::Device;
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::inode::Ext4;
use crate::fs::ext4::journal::Journal;
use crate::fs::ext4::layout::disk::{STATE_VALID, SUPERBLOCK_OFFSET};
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::vfs::MountOptions;
use std::sync::Arc;

/// Page cache for the mount that replays the journal, in bytes.
const CACHE_BYTES: u64 = 32 << 20;

/// The size of a file system, before or after a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSize {
    /// Number of blocks of [`block_size`](super::ResizeReport::block_size) bytes.
    pub blocks: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Number of block groups.
    pub groups: u32,
}

fn page_cache() -> Arc<PageCache> {
    PageCache::new(CacheOptions {
        budget_bytes: CACHE_BYTES,
        background_writeback: false,
        ..CacheOptions::default()
    })
}

/// Opens the journal of a clean file system, if it has one.
pub(super) fn open_journal(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    clock: Clock,
) -> Result<Option<Journal>> {
    if !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let cache = page_cache();
    // Read-only, to locate the journal without starting one.
    let options = MountOptions {
        clock,
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Ext4::attach(device.clone(), superblock.clone(), &cache, &options)?;
    fs.volume.open_journal(fs.journal_blocks()?, true).map(Some)
}

/// The state of a resize.
pub(super) struct Resizer {
    pub(super) device: Arc<dyn Device>,
    /// The superblock as stored on the device.
    pub(super) superblock: Superblock,
    pub(super) free_blocks: u64,
    pub(super) free_inodes: u64,
    pub(super) journal: Option<Journal>,
    /// Reserved blocks and all blocks at the start; the ratio is kept.
    pub(super) reserved_share: ReservedShare,
    pub(super) clock: Clock,
}

impl Resizer {
    /// Replays the journal and frees orphans, which leaves a clean file system.
    pub(super) fn open(device: &Arc<dyn Device>, clock: Clock) -> Result<Self> {
        let cache = page_cache();
        let options = MountOptions {
            clock,
            ..MountOptions::default()
        };
        let (free_blocks, free_inodes) = {
            let mounted = Ext4::open(device.clone(), &cache, &options)?;
            let fs = &mounted.fs;
            fs.sync_all(true)?;
            let space = fs.volume.space.lock();
            (space.available_blocks(), space.free_inodes())
        };
        // After the mount, which may have replayed the journal.
        let superblock = Superblock::load(&**device)?;
        let journal = open_journal(device, &superblock, clock)?;
        let reserved_share = ReservedShare::of(&superblock);
        Ok(Self {
            device: device.clone(),
            superblock,
            free_blocks,
            free_inodes,
            journal,
            reserved_share,
            clock,
        })
    }

    /// Returns the current size.
    pub(super) fn size(&self) -> FileSystemSize {
        FileSystemSize {
            blocks: self.superblock.block_count,
            free_blocks: self.free_blocks,
            inodes: self.superblock.inode_count,
            groups: self.superblock.group_count,
        }
    }

    /// Marks the file system on the device: recovery is needed, or without a journal, not clean.
    pub(super) fn begin(&mut self) -> Result<()> {
        let mut marked = self.superblock.clone();
        match self.journal {
            Some(_) => marked.features.incompat.insert(Incompat::NEEDS_RECOVERY),
            None => marked.raw.state = (marked.raw.state.get() & !STATE_VALID).into(),
        }
        self.write_superblock(&marked)?;
        self.superblock = marked;
        Ok(())
    }

    /// Updates the backups and clears the mark of [`Resizer::begin`].
    pub(super) fn end(&mut self) -> Result<()> {
        let mut clean = self.superblock.clone();
        match self.journal {
            Some(_) => clean.features.incompat.remove(Incompat::NEEDS_RECOVERY),
            None => clean.raw.state = (clean.raw.state.get() | STATE_VALID).into(),
        }
        // Before the mark: a clean file system has its backups.
        copies::write(&*self.device, &clean, self.clock.now())?;
        self.write_superblock(&clean)?;
        self.superblock = clean;
        Ok(())
    }

    fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        self.device.flush()?;
        self.device
            .write_at(&superblock.to_bytes(self.clock.now()), SUPERBLOCK_OFFSET)?;
        self.device.flush()
    }
}
