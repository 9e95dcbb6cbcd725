//! Free blocks set aside while they are discarded, so that no file gets them meanwhile.

use super::Space;
use crate::base::Result;
use crate::fs::ext4::journal::metadata::Metadata;
use crate::fs::ext4::layout::superblock::Superblock;
use std::ops::Range;

impl Space {
    /// Sets aside the first run of at least `len_min` free blocks in `range`; `None` if there is
    /// none. The run is in one group. The caller returns it by [`Space::return_aside`].
    ///
    /// # Errors
    /// EUCLEAN for a damaged bitmap.
    pub(crate) fn set_aside(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        range: Range<u64>,
        len_min: u64,
    ) -> Result<Option<Range<u64>>> {
        let mut start = range.start;
        while start < range.end {
            let (number, bit) = superblock.group_of(start);
            let base = superblock.group_start(number);
            let cluster_blocks = superblock.cluster_blocks;
            let block = |bit: u32| base + u64::from(bit) * u64::from(cluster_blocks);
            let end = range
                .end
                .min(base + u64::from(superblock.group_len(number)));
            let group = &mut self.groups[number as usize];
            let count_min = len_min.div_ceil(cluster_blocks.into());
            if u64::from(group.free_blocks()) >= count_min {
                // Both are in the group, whose length has 32 bits.
                let found = group.load_blocks(number, superblock, metadata)?;
                let mut at = bit.div_ceil(cluster_blocks);
                let end_bit = (end - base) as u32 / cluster_blocks;
                while at < end_bit
                    && let Some(run) = found.next_clear_run(at, end_bit - at)
                    && run.start < end_bit
                {
                    let run = run.start..run.end.min(end_bit);
                    let len = u64::from(run.end - run.start);
                    if len >= count_min {
                        group.set_aside(run.clone());
                        // Free on disk, but not to be reserved meanwhile.
                        self.pending_blocks += len;
                        return Ok(Some(block(run.start)..block(run.end)));
                    }
                    at = run.end;
                }
            }
            start = end;
        }
        Ok(None)
    }

    /// Makes a run usable again that was set aside.
    pub(crate) fn return_aside(&mut self, superblock: &Superblock, range: &Range<u64>) {
        let (number, bit) = superblock.group_of(range.start);
        let bits = superblock.cluster_bits(bit..bit + (range.end - range.start) as u32);
        self.groups[number as usize].return_aside(&bits);
        self.pending_blocks = self.pending_blocks.saturating_sub(bits.len() as u64);
    }
}
