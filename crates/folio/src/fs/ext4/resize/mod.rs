//! Makes an ext4 larger while nobody else uses it, step by step; a power cut leaves it whole at
//! some size in between.
//!
//! ```text
//!   what is asked for  -> plan.rs      how many blocks, groups, inodes; where the table of descriptors ends
//!      v
//!   mounted once       journal replayed, orphans gone
//!      v
//!   step after step    layout.rs    where the metadata of new groups lies: written past the old end, where nobody looks
//!      |               reserve.rs   what the resize inode holds then
//!      |               changes.rs   all blocks before the old end, as one transaction of the journal
//!      v
//!   copies.rs          superblock and descriptors in the groups that keep a copy
//! ```
//!
//! A step extends the last group if it is short, and adds up to [`GROUPS_PER_STEP`] groups.
//! Descriptors go into the blocks that the resize inode keeps for them; once those are used up the
//! file system becomes one with `meta_bg`, as the kernel makes it.
//!
//! Neighbours: `Ext4` to make the file system clean, the journal to change it, the device below.
//! Knows no cache but the one it lends to `Ext4`. No locks. Linux: fs/ext4/resize.c; resize2fs(8).
//!
//! Invariants:
//! 1. Before a transaction only blocks are written that the file system on the device does not have
//!    yet.
//! 2. A transaction changes no block behind the old end: replaying it must make sense to the old
//!    superblock.
//! 3. Copies are written last; a copy that is old, or was never written, is no damage.

mod changes;
mod copies;
mod layout;
mod plan;
mod reserve;

use super::Ext4;
use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::journal::Journal;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::vfs::MountOptions;
use changes::Changes;
use layout::NewGroups;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Groups that one transaction adds at most.
const GROUPS_PER_STEP: u32 = 512;
/// Memory for the mount that replays the journal.
const CACHE_BYTES: u64 = 32 << 20;

/// How to resize.
#[derive(Debug, Clone, Copy)]
pub struct ResizeOptions {
    /// Bytes the file system shall have, rounded down to whole pages; the device's size if not
    /// given.
    pub len_bytes: Option<u64>,
    /// Where timestamps come from.
    pub clock: Clock,
}

impl Default for ResizeOptions {
    fn default() -> Self {
        Self {
            len_bytes: None,
            clock: Clock::System,
        }
    }
}

/// What a file system has: before, or after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSize {
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that nothing uses.
    pub free_blocks: u64,
    /// Inodes in all.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeReport {
    /// Bytes per block.
    pub block_size: u32,
    /// What it had.
    pub old: FileSystemSize,
    /// What it has.
    pub new: FileSystemSize,
}

/// Says how many blocks [`resize`] would give the ext4 on a device of `device_len` bytes, without
/// writing anything.
///
/// Errors are those of [`resize`] that can be told beforehand.
pub fn plan(device: &dyn Device, device_len: u64, options: &ResizeOptions) -> Result<u64> {
    plan::check(device, device_len, options)
        .map(|(_, blocks)| blocks)
        .map_err(|error| error.at("ext4"))
}

/// Makes the ext4 on `device` larger; durable when this returns. `progress` is told how many of how
/// many blocks it has, and may end it between two steps: it is then as large as it was told last.
///
/// EINVAL for fewer blocks than it has, or more than its device or its format can have; EOPNOTSUPP,
/// naming it, for a feature that Folio does not write, or that leaves no room for more group
/// descriptors; EINTR if `progress` ended it; EUCLEAN for damage.
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
    let mut growth = Growth::open(device, options.clock)?;
    // Again: what the journal held may say something else.
    let (_, wanted) = plan::check(&**device, device.len_bytes(), options)?;
    let old = growth.size();
    // At most 4 KiB.
    let block_size = growth.superblock.block_size as u32;
    if wanted > old.blocks {
        growth.begin()?;
        // After a failure the journal may still have to be replayed, and says so.
        let is_done = growth.grow(wanted, progress)?;
        growth.end()?;
        if !is_done {
            return Err(Errno::INTR.into());
        }
    }
    Ok(ResizeReport {
        block_size,
        old,
        new: growth.size(),
    })
}

/// A file system that is made larger.
struct Growth {
    device: Arc<dyn Device>,
    /// As it is on the device.
    superblock: Superblock,
    free_blocks: u64,
    free_inodes: u64,
    journal: Option<Journal>,
    /// Blocks kept for root, of all blocks, when it began: the share stays.
    kept_share: (u64, u64),
    clock: Clock,
}

impl Growth {
    /// Replays the journal and buries orphans; then nothing on the device waits for anything.
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
            let space = fs.space.lock();
            (space.available_blocks(), space.free_inodes())
        };
        let superblock = Superblock::load(&**device)?;
        let journal = if superblock.features.compat.contains(Compat::HAS_JOURNAL) {
            // Only to find the journal, which a mount that writes keeps to itself.
            let options = MountOptions {
                read_only: true,
                ..options
            };
            let fs = Ext4::attach(device.clone(), superblock.clone(), &cache, &options)?;
            Some(fs.new_journal(fs.journal_blocks()?, true)?)
        } else {
            None
        };
        let kept_share = (superblock.reserved_blocks(), superblock.block_count);
        Ok(Self {
            device: device.clone(),
            superblock,
            free_blocks,
            free_inodes,
            journal,
            kept_share,
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

    /// Says on the device that there may be something to replay, or else to mend.
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

    /// Brings the copies up to date, and takes back what [`Growth::begin`] said.
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

    /// Says whether `progress` let it come to the end.
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

    /// One transaction: the file system gets `blocks` blocks.
    fn step(&mut self, blocks: u64) -> Result<()> {
        let old = &self.superblock;
        let mut new = plan::with_blocks(old, blocks)?;
        let mut groups = NewGroups::place(&new, old.group_count)?;
        groups.write(&*self.device, &new)?;
        let mut changes = Changes::new(&*self.device, old);
        let extended = layout::extend_last_group(&mut changes, &new)?;
        groups.describe(&mut changes, &new)?;
        reserve::update(&mut changes, &new)?;
        let free_blocks = self.free_blocks + extended + groups.free_blocks();
        let free_inodes = self.free_inodes + groups.free_inodes(&new);
        plan::put_free(&mut new, free_blocks, free_inodes);
        plan::put_overhead(&mut new, groups.system_blocks(), self.kept_share);
        changes.put_superblock(&new, self.clock.now())?;
        changes.commit(self.journal.as_ref(), self.clock.now())?;
        (self.superblock, self.free_blocks, self.free_inodes) = (new, free_blocks, free_inodes);
        Ok(())
    }

    /// Descriptors of groups to come lie among these groups, since their table cannot grow any
    /// further. The resize inode, which holds nothing any more, goes. Linux:
    /// `ext4_convert_meta_bg`.
    fn convert_to_meta_bg(&mut self) -> Result<()> {
        let old = &self.superblock;
        let mut new = plan::with_meta_bg(old)?;
        let mut changes = Changes::new(&*self.device, old);
        let freed = reserve::remove(&mut changes, old)?;
        let free_blocks = self.free_blocks + freed;
        plan::put_free(&mut new, free_blocks, self.free_inodes);
        changes.put_superblock(&new, self.clock.now())?;
        changes.commit(self.journal.as_ref(), self.clock.now())?;
        (self.superblock, self.free_blocks) = (new, free_blocks);
        Ok(())
    }
}
