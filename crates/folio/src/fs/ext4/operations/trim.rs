//! Discarding free space (FITRIM). Linux: `ext4_trim_fs`.

use crate::base::{Errno, Result};
use crate::fs::ext4::inode::Ext4;
use std::ops::Range;

impl Ext4 {
    /// Discards the runs of at least `len_min` bytes in `range` of the device that no file uses.
    /// Returns how many bytes they have.
    ///
    /// # Errors
    /// EROFS on a read-only mount; EINVAL for a range without a block or past the end; EOPNOTSUPP
    /// if the device discards nothing.
    pub(crate) fn trim(&self, range: Range<u64>, len_min: u64) -> Result<u64> {
        let volume = &self.volume;
        let (geometry, block_size) = (&volume.geometry, volume.block_size as u64);
        if volume.is_read_only {
            return Err(Errno::ROFS.into());
        }
        let group_bytes = u64::from(geometry.blocks_per_group) * block_size;
        let len = range.end.saturating_sub(range.start);
        let is_beyond = range.start / block_size >= geometry.block_count;
        if len < block_size || len_min > group_bytes || is_beyond {
            return Err(Errno::INVAL.into());
        }
        // Blocks that this transaction frees are usable, and may be discarded, after a commit.
        self.sync_all(false)?;
        let end = (range.end / block_size).min(geometry.block_count);
        let len_min = (len_min / block_size).max(1);
        let mut at = (range.start / block_size).max(geometry.first_data_block);
        let mut discarded = 0;
        loop {
            let run = {
                let mut space = volume.space.lock();
                space.set_aside(geometry, &volume.metadata, at..end, len_min)?
            };
            let Some(run) = run else {
                return Ok(discarded * block_size);
            };
            let count = run.end - run.start;
            let done = volume
                .device
                .discard(run.start * block_size, count * block_size);
            volume.space.lock().return_aside(geometry, &run);
            done?;
            discarded += count;
            at = run.end;
        }
    }
}
