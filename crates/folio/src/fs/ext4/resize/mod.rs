//! The offline resizer: makes an unmounted ext4 larger in steps, or smaller (`shrink/`). A power
//! cut leaves a consistent file system of an intermediate size.
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
//! 3. Backups are written last; an outdated or missing backup is not damage.
//!
//! `shrink/mod.rs` states what holds while it moves blocks and inodes.

mod changes;
mod copies;
mod layout;
mod options;
mod plan;
mod reserve;
mod resizer;
mod shrink;

pub use options::ResizeOptions;
pub use resizer::FileSystemSize;

use crate::base::{Errno, Error, Result};
use crate::block::Device;
use changes::BlockChanges;
use layout::NewGroups;
use resizer::Resizer;
use std::ops::ControlFlow;
use std::sync::Arc;

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
pub fn plan_resize(device: &dyn Device, device_len: u64, options: &ResizeOptions) -> Result<u64> {
    plan::check(device, device_len, options)
        .map(|(_, blocks)| blocks)
        .map_err(|error| error.at("ext4"))
}

/// Makes the ext4 on `device` larger or smaller; the new size is durable when this returns. Calls
/// `progress` between steps: with the current and the final number of blocks while it grows, with
/// moved blocks and blocks to move while it shrinks. If it breaks, the file system keeps the size
/// that it has then.
///
/// # Errors
/// - EINVAL for fewer blocks than the content needs, or more than the device or the format allows.
/// - EOPNOTSUPP, naming the feature, for a feature that Folio cannot write or that leaves no room
///   for more group descriptors.
/// - EROFS for a read-only device.
/// - EINTR if `progress` stopped the resize.
/// - ENOSPC if a shrink finds that the content needs more blocks than was planned.
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
    let is_shrunk = options.to_minimum || wanted < old.blocks;
    if is_shrunk && !options.to_minimum {
        shrink::check(&resizer, wanted, options)?;
    }
    if is_shrunk || wanted > old.blocks {
        resizer.begin()?;
        // After a failure the superblock still requests a replay of the journal.
        let is_done = if is_shrunk {
            let wanted = (!options.to_minimum).then_some(wanted);
            let done = shrink::run(&mut resizer, wanted, progress);
            // Each transaction has left a consistent file system: it is clean, only not as small.
            if matches!(&done, Err(error) if error.errno() == Errno::NOSPC) {
                resizer.end()?;
            }
            done?
        } else {
            resizer.grow(wanted, progress)?
        };
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

impl Resizer {
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
        // Before the transaction that makes them part of the file system (invariant 1).
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
