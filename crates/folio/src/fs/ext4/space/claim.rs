//! Claims of the fast-commit replay: makes the bitmaps follow the inodes.

use super::{Metadata, Space, Superblock, inode_place};
use crate::base::{Error, Result};
use std::ops::Range;

impl Space {
    /// Marks the blocks in `range` as used or free; returns those that changed.
    ///
    /// # Errors
    /// EUCLEAN for blocks that do not exist or are the file system's own.
    pub(crate) fn settle(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        range: Range<u64>,
        is_used: bool,
    ) -> Result<Vec<Range<u64>>> {
        self.check_not_system(&range)?;
        if range.end > superblock.block_count || range.start < superblock.first_data_block {
            return Err(Error::corrupt(format!(
                "blocks {}..{} do not exist",
                range.start, range.end
            )));
        }
        let mut changed = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let (number, bit) = superblock.group_of(start);
            let end =
                bit + (range.end - start).min(u64::from(superblock.group_len(number) - bit)) as u32;
            let group = &mut self.groups[number as usize];
            let bitmap = group.load_blocks(number, superblock, metadata)?;
            let base = superblock.group_start(number);
            let mut at = bit;
            let mut count = 0;
            while let Some(run) = next_run(bitmap, at..end, is_used) {
                at = run.end;
                count += i64::from(run.end - run.start);
                changed.push(base + u64::from(run.start)..base + u64::from(run.end));
                if is_used {
                    bitmap.set(run)
                } else {
                    bitmap.clear(run)
                }
            }
            if count > 0 {
                group.add_free_blocks(if is_used { -count } else { count });
                group.longest_free_run = u32::MAX;
                self.dirty_groups.insert(number);
                self.free_blocks =
                    self.free_blocks
                        .saturating_add_signed(if is_used { -count } else { count });
            }
            start = base + u64::from(end);
        }
        Ok(changed)
    }

    /// Marks inode `number` as used; returns whether it was free.
    pub(crate) fn claim_inode(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        number: u32,
        is_directory: bool,
    ) -> Result<bool> {
        let (group_number, index) = inode_place(superblock, number);
        let group = &mut self.groups[group_number as usize];
        let bitmap = group.load_inodes(group_number, superblock, metadata)?;
        if bitmap.is_set(index) {
            return Ok(false);
        }
        bitmap.set(index..index + 1);
        let table = group.inode_table();
        // Before `note_inode`, which changes both.
        let unused = if group.has_flag(superblock, super::GROUP_INODE_UNINIT) {
            superblock.inodes_per_group
        } else {
            group.itable_unused().min(superblock.inodes_per_group)
        };
        group.note_inode(superblock, index, true, is_directory);
        self.dirty_groups.insert(group_number);
        self.free_inodes = self.free_inodes.saturating_sub(1);
        // Slots that were never used may hold old bytes, which must not be taken for inodes.
        let unused_from = superblock.inodes_per_group - unused;
        super::zero_inodes(superblock, metadata, table, unused_from..index)?;
        Ok(true)
    }

    /// Whether inode `number` is in use.
    pub(crate) fn has_inode(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        number: u32,
    ) -> Result<bool> {
        let (group, index) = inode_place(superblock, number);
        Ok(self.groups[group as usize]
            .load_inodes(group, superblock, metadata)?
            .is_set(index))
    }
}

/// Returns the next run in `range` that differs from `is_used`.
fn next_run(
    bitmap: &super::bitmap::Bitmap,
    range: Range<u32>,
    is_used: bool,
) -> Option<Range<u32>> {
    if is_used {
        let start = bitmap.next_clear(range.start, range.end)?;
        Some(start..bitmap.next_set(start, range.end).unwrap_or(range.end))
    } else {
        let start = bitmap.next_set(range.start, range.end)?;
        Some(start..bitmap.next_clear(start, range.end).unwrap_or(range.end))
    }
}
