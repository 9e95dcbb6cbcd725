//! The offline resizer: makes an unmounted ext4 larger in steps. A power cut leaves a consistent
//! file system of an intermediate size.
//!
//! ```text
//!   ResizeOptions      -> plan.rs   counts of blocks, groups, inodes; end of the descriptor table
//!      v
//!   one mount          replays the journal, frees orphans
//!      v
//!   each step          layout.rs    metadata of new groups, written past the old end
//!      |               reserve.rs   contents of the resize inode
//!      |               changes.rs   all blocks before the old end, as one journal transaction
//!      v
//!   copies.rs          backups of superblock and descriptors
//! ```
//!
//! A step extends the last group if it is short, and adds up to `plan::GROUPS_PER_STEP` groups.
//! Descriptors go into the blocks that the resize inode reserves for them. When those are used up,
//! the file system is converted to `meta_bg`, as the kernel does.
//!
//! Neighbors: `Ext4` to clean the file system, the journal to change it, the device below. The only
//! cache is the one passed to `Ext4`. No locks. Linux: fs/ext4/resize.c; resize2fs(8).
//!
//! Invariants:
//! 1. Before a transaction, only blocks past the old end are written.
//! 2. A transaction changes no block past the old end, so that it can be replayed under the old
//!    superblock.
//! 3. Backups are written last; an outdated or missing backup is no damage.

mod changes;
mod copies;
mod layout;
mod options;
mod plan;
mod reserve;

pub use options::ResizeOptions;

use super::inode::Ext4;
use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::journal::Journal;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::vfs::MountOptions;
use changes::BlockChanges;
use layout::NewGroups;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Page cache for the mount that replays the journal, in bytes.
const CACHE_BYTES: u64 = 32 << 20;

/// The size of a file system, before or after a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSize {
    /// Number of blocks of [`ResizeReport::block_size`] bytes.
    pub blocks: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Number of block groups.
    pub groups: u32,
}

/// The result of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeReport {
    /// Bytes per block.
    pub block_size: u32,
    /// The size before.
    pub old: FileSystemSize,
    /// The size after.
    pub new: FileSystemSize,
}

/// Returns the number of blocks that [`resize`] would give the ext4 on a device of `device_len`
/// bytes. Writes nothing.
///
/// # Errors
/// Those of [`resize`] that can be detected beforehand: EINVAL, EOPNOTSUPP and EUCLEAN.
pub fn plan(device: &dyn Device, device_len: u64, options: &ResizeOptions) -> Result<u64> {
    plan::check(device, device_len, options)
        .map(|(_, blocks)| blocks)
        .map_err(|error| error.at("ext4"))
}

/// Makes the ext4 on `device` larger; the new size is durable when this returns. Calls `progress`
/// between steps with the current and the final number of blocks. If it breaks, the file system
/// keeps the size that was last reported.
///
/// # Errors
/// - EINVAL for fewer blocks than before, or more than the device or the format allows.
/// - EOPNOTSUPP, naming the feature, for a feature that Folio cannot write or that leaves no room
///   for more group descriptors.
/// - EROFS for a read-only device.
/// - EINTR if `progress` stopped the resize.
/// - EUCLEAN for a damaged file system.
///
/// Counterpart: resize2fs(8); Linux: `ext4_resize_fs`.
pub fn resize(
    device: &Arc<dyn Device>,
    options: &ResizeOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ResizeReport> {
    run(device, options, progress).map_err(|error| error.at("ext4"))
}

fn run(
    device: &Arc<dyn Device>,
    options: &ResizeOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ResizeReport> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "the image is read-only"));
    }
    plan::check(&**device, device.len_bytes(), options)?;
    let mut resizer = Resizer::open(device, options.clock)?;
    // Again, because the replay may have changed the superblock.
    let (_, wanted) = plan::check(&**device, device.len_bytes(), options)?;
    let old = resizer.size();
    // At most 4 KiB.
    let block_size = resizer.superblock.block_size as u32;
    if wanted > old.blocks {
        resizer.begin()?;
        // After a failure the superblock still requests a replay of the journal.
        let is_done = resizer.grow(wanted, progress)?;
        resizer.end()?;
        if !is_done {
            return Err(Errno::INTR.into());
        }
    }
    Ok(ResizeReport {
        block_size,
        old,
        new: resizer.size(),
    })
}

/// The state of a resize.
struct Resizer {
    device: Arc<dyn Device>,
    /// The superblock as stored on the device.
    superblock: Superblock,
    free_blocks: u64,
    free_inodes: u64,
    journal: Option<Journal>,
    /// Reserved blocks and all blocks at the start; the ratio is kept.
    reserved_share: (u64, u64),
    clock: Clock,
}

impl Resizer {
    /// Replays the journal and frees orphans, which leaves a clean file system.
    fn open(device: &Arc<dyn Device>, clock: Clock) -> Result<Self> {
        let cache = PageCache::new(CacheOptions {
            budget_bytes: CACHE_BYTES,
            background_writeback: false,
            ..CacheOptions::default()
        });
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
        let superblock = Superblock::load(&**device)?;
        let journal = if superblock.features.compat.contains(Compat::HAS_JOURNAL) {
            // Read-only, to locate the journal without starting one.
            let options = MountOptions {
                read_only: true,
                ..options
            };
            let fs = Ext4::attach(device.clone(), superblock.clone(), &cache, &options)?;
            Some(fs.volume.open_journal(fs.journal_blocks()?, true)?)
        } else {
            None
        };
        let reserved_share = (superblock.reserved_blocks(), superblock.block_count);
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

    fn size(&self) -> FileSystemSize {
        FileSystemSize {
            blocks: self.superblock.block_count,
            free_blocks: self.free_blocks,
            inodes: self.superblock.inode_count,
            groups: self.superblock.group_count,
        }
    }

    /// Marks the file system on the device: recovery is needed, or without a journal, not clean.
    fn begin(&mut self) -> Result<()> {
        let mut marked = self.superblock.clone();
        match self.journal {
            Some(_) => marked.features.incompat.insert(Incompat::NEEDS_RECOVERY),
            None => {
                marked.raw.state =
                    (marked.raw.state.get() & !super::layout::disk::STATE_VALID).into()
            }
        }
        self.write_superblock(&marked)?;
        self.superblock = marked;
        Ok(())
    }

    /// Updates the backups and clears the mark of [`Resizer::begin`].
    fn end(&mut self) -> Result<()> {
        let mut clean = self.superblock.clone();
        match self.journal {
            Some(_) => clean.features.incompat.remove(Incompat::NEEDS_RECOVERY),
            None => {
                clean.raw.state = (clean.raw.state.get() | super::layout::disk::STATE_VALID).into()
            }
        }
        copies::write(&*self.device, &clean, self.clock.now())?;
        self.write_superblock(&clean)?;
        self.superblock = clean;
        Ok(())
    }

    fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        self.device.flush()?;
        self.device.write_at(
            &superblock.to_bytes(self.clock.now()),
            super::layout::disk::SUPERBLOCK_OFFSET,
        )?;
        self.device.flush()
    }

    /// Runs steps up to `wanted` blocks; returns false if `progress` stopped them.
    fn grow(
        &mut self,
        wanted: u64,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let start = self.superblock.block_count;
        while self.superblock.block_count < wanted {
            let done = self.superblock.block_count;
            if done > start && progress(done, wanted).is_break() {
                return Ok(false);
            }
            match plan::next(&self.superblock, wanted) {
                Some(blocks) => self.step(blocks)?,
                None => self.convert_to_meta_bg()?,
            }
        }
        Ok(true)
    }

    /// Grows the file system to `blocks` blocks in one transaction.
    fn step(&mut self, blocks: u64) -> Result<()> {
        let old = &self.superblock;
        let mut new = plan::with_blocks(old, blocks)?;
        let mut groups = NewGroups::place(&new, old.group_count)?;
        groups.write(&*self.device, &new)?;
        let mut changes = BlockChanges::new(&*self.device, old);
        let extended = layout::extend_last_group(&mut changes, &new)?;
        groups.describe(&mut changes, &new)?;
        reserve::update(&mut changes, &new)?;
        let free_blocks = self.free_blocks + extended + groups.free_blocks();
        let free_inodes = self.free_inodes + groups.free_inodes(&new);
        plan::put_free(&mut new, free_blocks, free_inodes);
        plan::put_overhead(&mut new, groups.system_blocks(), self.reserved_share);
        changes.put_superblock(&new, self.clock.now())?;
        changes.commit(self.journal.as_ref(), self.clock.now())?;
        (self.superblock, self.free_blocks, self.free_inodes) = (new, free_blocks, free_inodes);
        Ok(())
    }

    /// Converts to `meta_bg`: the descriptor table is full, so descriptors of later groups are
    /// stored in these groups. Removes the resize inode, which is empty now. Linux:
    /// `ext4_convert_meta_bg`.
    fn convert_to_meta_bg(&mut self) -> Result<()> {
        let old = &self.superblock;
        let mut new = plan::with_meta_bg(old)?;
        let mut changes = BlockChanges::new(&*self.device, old);
        let freed = reserve::remove(&mut changes, old)?;
        let free_blocks = self.free_blocks + freed;
        plan::put_free(&mut new, free_blocks, self.free_inodes);
        changes.put_superblock(&new, self.clock.now())?;
        changes.commit(self.journal.as_ref(), self.clock.now())?;
        (self.superblock, self.free_blocks) = (new, free_blocks);
        Ok(())
    }
}
