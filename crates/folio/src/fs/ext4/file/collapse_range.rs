//! Taking a range out of a file, or putting one in, by moving what follows
//! (`FALLOC_FL_COLLAPSE_RANGE`, `FALLOC_FL_INSERT_RANGE`). Linux: `ext4_collapse_range`,
//! `ext4_insert_range`.

use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::cache::Mapping;
use crate::fs::ext4::inode::{Ext4Inode, Layout, StateGuard};
use std::ops::Range;

impl Ext4Inode {
    /// Takes the bytes `range` out. EINVAL unless both ends are block bounds and bytes follow.
    pub(crate) fn collapse(&self, mapping: &Mapping, range: Range<u64>) -> Result<()> {
        let size = mapping.size_bytes();
        if range.end >= size {
            return Err(Error::new(
                Errno::INVAL,
                "a range at the end is taken away by truncation",
            ));
        }
        let blocks = self.whole_blocks(&range)?;
        self.settle_from(mapping, range.start)?;
        self.remove_blocks(blocks.start..blocks.end)?;
        let new_size = size - (range.end - range.start);
        let by = -((blocks.end - blocks.start) as i64);
        self.move_tail(mapping, self.state_mut(), (blocks.end, by), new_size);
        self.forget_from(mapping, range.start);
        Ok(())
    }

    /// Puts a hole of the length of `range` in where it begins. EINVAL unless both ends are block
    /// bounds and bytes follow, EFBIG if the file gets too large.
    pub(crate) fn insert_hole(&self, mapping: &Mapping, range: Range<u64>) -> Result<()> {
        let size = mapping.size_bytes();
        if range.start >= size {
            return Err(Error::new(
                Errno::INVAL,
                "a range at the end is added by truncation",
            ));
        }
        let blocks = self.whole_blocks(&range)?;
        let new_size = size
            .checked_add(range.end - range.start)
            .ok_or(Errno::FBIG)?;
        self.check_size(new_size)?;
        self.settle_from(mapping, range.start)?;
        let by = blocks.end - blocks.start;
        let mut state = self.state_mut();
        // Also space behind the end of the file moves.
        if state.map.end() + by > u64::from(u32::MAX) {
            return Err(Errno::FBIG.into());
        }
        self.reserve_tree(&mut state, 1)?;
        self.move_tail(mapping, state, (blocks.start, by as i64), new_size);
        self.forget_from(mapping, range.start);
        Ok(())
    }

    /// Moves what lies from file block `from` on by `by` blocks; the file has `new_size` bytes from
    /// then on.
    fn move_tail(
        &self,
        mapping: &Mapping,
        mut state: StateGuard<'_>,
        (from, by): (u64, i64),
        new_size: u64,
    ) {
        // Below the size, which has 32 bits of blocks.
        state.map.shift(from as u32, by);
        state.map_is_dirty = true;
        state.disk_size = new_size;
        self.mark_dirty(&mut state);
        drop(state);
        mapping.set_size_bytes(new_size);
    }

    fn whole_blocks(&self, range: &Range<u64>) -> Result<Range<u64>> {
        let block_size = self.fs.block_size as u64;
        if !range.start.is_multiple_of(block_size) || !range.end.is_multiple_of(block_size) {
            return Err(Error::new(
                Errno::INVAL,
                "both ends must be bounds of blocks",
            ));
        }
        if self.state.read().layout != Layout::Extents {
            return Err(Error::unsupported(
                "moving blocks of a file that has a block map (ext3)",
            ));
        }
        Ok(range.start / block_size..range.end / block_size)
    }

    /// Brings what will move to the device, where moving it is a matter of numbers. What is delayed
    /// before stays so, and is written before the transaction, which tells a size beyond it.
    fn settle_from(&self, mapping: &Mapping, offset: u64) -> Result<()> {
        mapping.write_back(offset / PAGE_SIZE as u64 * PAGE_SIZE as u64..u64::MAX)?;
        self.order();
        Ok(())
    }

    /// Drops the pages from `offset` on, which hold what was there before. They are clean.
    fn forget_from(&self, mapping: &Mapping, offset: u64) {
        mapping.punch(offset / PAGE_SIZE as u64 * PAGE_SIZE as u64..u64::MAX);
    }
}
