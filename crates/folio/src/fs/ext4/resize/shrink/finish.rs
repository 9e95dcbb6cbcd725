//! The last transaction of a shrink: the new end, without the groups beyond it.

use super::super::plan::{put_free, put_overhead, system_blocks};
use super::super::reserve;
use super::Shrinker;
use crate::base::Result;

impl Shrinker<'_> {
    /// Sets the new size. No block and no inode beyond it is in use, and all changes so far are
    /// committed.
    pub(super) fn finish(&mut self) -> Result<()> {
        let (old, mut new) = (self.old, self.new.clone());
        for group in 0..new.group_count {
            let unused = new.head_of_group(group).end..old.head_of_group(group).end;
            if !unused.is_empty() {
                self.maps.free(unused);
            }
        }
        for run in self.maps.metadata_from(old, new.group_count) {
            if run.start < new.block_count {
                self.maps.free(run.start..run.end.min(new.block_count));
            }
        }
        let maps = &mut self.maps;
        reserve::rebuild(&mut self.changes, &new, |block| {
            maps.free(block..block + 1);
            maps.allocate(old, 1).map(|run| run.start)
        })?;
        self.maps.flush(&mut self.changes)?;
        self.maps.put_last(&mut self.changes, &new)?;
        let (free_blocks, free_inodes) = self.maps.free_before(&new);
        put_free(&mut new, free_blocks, free_inodes);
        let system = |of, groups| {
            (0..groups)
                .map(|group| system_blocks(of, group))
                .sum::<u64>()
        };
        let removed = system(old, old.group_count) - system(&new, new.group_count);
        let overhead = u64::from(new.raw.overhead_clusters.get()).saturating_sub(removed);
        new.raw.overhead_clusters = (overhead as u32).into();
        put_overhead(&mut new, 0, self.reserved_share);
        self.changes.put_superblock(&new, self.clock.now())?;
        self.write_changes()?;
        (self.free_blocks, self.free_inodes) = (free_blocks, free_inodes);
        self.new = new;
        Ok(())
    }
}
