//! Collapse and insert range: removes a range from a file, or inserts a hole, by moving the blocks
//! after it (`FALLOC_FL_COLLAPSE_RANGE`, `FALLOC_FL_INSERT_RANGE`). Linux: `ext4_collapse_range`,
//! `ext4_insert_range`.

use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::cache::Mapping;
use crate::fs::ext4::inode::state::ContentLayout;
use crate::fs::ext4::inode::{Ext4Inode, StateGuard};
use crate::fs::ext4::space::reserved::ReservedBlocks;
use std::ops::Range;

impl Ext4Inode {
    /// Removes the bytes in `range`.
    ///
    /// # Errors
    /// EINVAL unless both ends are block bounds and bytes follow.
    pub(crate) fn collapse_range(
        &self,
        mapping: &Mapping,
        range: Range<u64>,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let size = mapping.size_bytes();
        if range.end >= size {
            return Err(Error::new(
                Errno::INVAL,
                "no bytes follow the range: truncate the file instead",
            ));
        }
        let blocks = self.whole_blocks(&range)?;
        // Before the map moves: dirty pages and delayed blocks have the old offsets.
        self.write_back_from(mapping, range.start)?;
        self.remove_blocks(blocks.start..blocks.end, reserved)?;
        let new_size = size - (range.end - range.start);
        let by = -((blocks.end - blocks.start) as i64);
        self.move_tail(mapping, self.state_mut(), blocks.end, by, new_size);
        // After the map moved: a page that is read now has the new contents.
        self.drop_pages_from(mapping, range.start);
        Ok(())
    }

    /// Inserts a hole at the start of `range`, as long as it.
    ///
    /// # Errors
    /// EINVAL unless both ends are block bounds and bytes follow; EFBIG if the file gets too large.
    pub(crate) fn insert_range(
        &self,
        mapping: &Mapping,
        range: Range<u64>,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let size = mapping.size_bytes();
        if range.start >= size {
            return Err(Error::new(
                Errno::INVAL,
                "no bytes follow the range: extend the file by truncation instead",
            ));
        }
        let blocks = self.whole_blocks(&range)?;
        let new_size = size
            .checked_add(range.end - range.start)
            .ok_or(Errno::FBIG)?;
        self.check_size(new_size)?;
        // Before the map moves: dirty pages and delayed blocks have the old offsets.
        self.write_back_from(mapping, range.start)?;
        let by = blocks.end - blocks.start;
        let mut state = self.state_mut();
        // Space past the end of the file moves, too.
        if state.map.end() + by > u64::from(u32::MAX) {
            return Err(Errno::FBIG.into());
        }
        // The inserted hole may split an extent.
        self.reserve_tree(&mut state, 1, reserved)?;
        self.move_tail(mapping, state, blocks.start, by as i64, new_size);
        self.drop_pages_from(mapping, range.start);
        Ok(())
    }

    /// Moves the file blocks from `from` on by `by` blocks, and sets the file's size to `new_size`
    /// bytes.
    fn move_tail(
        &self,
        mapping: &Mapping,
        mut state: StateGuard<'_>,
        from: u64,
        by: i64,
        new_size: u64,
    ) {
        // Below the size, which is at most 2^32 blocks.
        state.map.move_blocks(from as u32, by);
        state.map_is_dirty = true;
        state.disk_size = new_size;
        self.mark_dirty(&mut state);
        drop(state);
        mapping.set_size_bytes(new_size);
    }

    /// Returns the file blocks of the byte range `range`.
    fn whole_blocks(&self, range: &Range<u64>) -> Result<Range<u64>> {
        let block_size = self.fs.volume.block_size as u64;
        let unit = block_size * u64::from(self.fs.volume.geometry.cluster_blocks);
        if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
            let why =
                "both ends must be multiples of the block size, with bigalloc of the cluster size";
            return Err(Error::new(Errno::INVAL, why));
        }
        if self.state.read().layout != ContentLayout::Extents {
            return Err(Error::unsupported(
                "moving blocks of a file that has a block map (ext3)",
            ));
        }
        Ok(range.start / block_size..range.end / block_size)
    }

    /// Writes the data that will move to the device, so that only the map has to change. Delayed
    /// blocks before `offset` stay delayed. They are written before the transaction, which shows a
    /// size beyond them.
    fn write_back_from(&self, mapping: &Mapping, offset: u64) -> Result<()> {
        mapping.write_back(offset / PAGE_SIZE as u64 * PAGE_SIZE as u64..u64::MAX)?;
        self.order();
        Ok(())
    }

    /// Drops the pages from `offset` on, which hold the old contents. They are clean.
    fn drop_pages_from(&self, mapping: &Mapping, offset: u64) {
        mapping.punch(offset / PAGE_SIZE as u64 * PAGE_SIZE as u64..u64::MAX);
    }
}
