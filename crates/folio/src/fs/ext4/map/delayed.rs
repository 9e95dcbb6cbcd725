//! Delayed blocks of one inode: written file blocks without a place on the device yet.

use std::ops::Range;

/// The delayed blocks of one inode, and the blocks reserved for them.
#[derive(Debug, Default)]
pub(crate) struct DelayedBlocks {
    /// Sorted, not overlapping, not touching.
    ranges: Vec<Range<u32>>,
    data_blocks: u64,
    /// Blocks per cluster; 0 or 1 without bigalloc.
    cluster_blocks: u32,
    /// With bigalloc, clusters with delayed blocks.
    clusters: u64,
    /// Blocks reserved for the extent tree.
    pub(crate) tree_blocks: u64,
    /// Extents that may be split when unwritten blocks are written, each into two more.
    pub(crate) splits: u64,
}

impl DelayedBlocks {
    /// Returns the bytes outside of this object.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<Range<u32>>()
    }

    /// Returns the blocks of a file system with clusters of `cluster_blocks`, none yet.
    pub(crate) fn new(cluster_blocks: u32) -> Self {
        Self {
            cluster_blocks,
            ..Self::default()
        }
    }

    /// Returns the number of delayed blocks.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Returns the number of blocks reserved for data: whole clusters, even if some of their other
    /// blocks are mapped already.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.clusters() * u64::from(self.cluster_blocks.max(1))
    }

    fn clusters(&self) -> u64 {
        if self.cluster_blocks > 1 {
            self.clusters
        } else {
            self.data_blocks
        }
    }

    /// Returns the number of clusters with delayed blocks among those that `range` touches; 0
    /// without bigalloc.
    fn clusters_at(&self, range: &Range<u64>) -> u64 {
        let size = u64::from(self.cluster_blocks);
        if size <= 1 {
            return 0;
        }
        let window = range.start / size * size..range.end.next_multiple_of(size);
        let first = self
            .ranges
            .partition_point(|r| u64::from(r.end) <= window.start);
        let (mut count, mut counted_to) = (0, 0);
        for run in &self.ranges[first..] {
            let start = u64::from(run.start).max(window.start);
            let end = u64::from(run.end).min(window.end);
            if start >= end {
                break;
            }
            let clusters = (start / size).max(counted_to)..end.div_ceil(size);
            count += clusters.end.saturating_sub(clusters.start);
            counted_to = clusters.end;
        }
        count
    }

    /// Returns the delayed runs, in file blocks.
    pub(crate) fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    /// Uses one block reserved for the tree; false if there is none.
    pub(crate) fn take_tree_block(&mut self) -> bool {
        let is_reserved = self.tree_blocks > 0;
        self.tree_blocks = self.tree_blocks.saturating_sub(1);
        is_reserved
    }

    /// Returns the first delayed run within `range`.
    pub(crate) fn first_in(&self, range: Range<u32>) -> Option<Range<u32>> {
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        let found = self.ranges.get(at).filter(|r| r.start < range.end)?;
        Some(found.start.max(range.start)..found.end.min(range.end))
    }

    /// Marks the file blocks in `range` as delayed; returns how many clusters (without bigalloc,
    /// blocks) that adds to those reserved.
    pub(crate) fn add(&mut self, range: Range<u32>) -> u64 {
        let before = self.clusters();
        let touched = range.start.into()..range.end.into();
        let old = self.clusters_at(&touched);
        self.add_blocks(range);
        self.clusters = self.clusters + self.clusters_at(&touched) - old;
        self.clusters() - before
    }

    fn add_blocks(&mut self, range: Range<u32>) {
        let at = self.ranges.partition_point(|r| r.end < range.start);
        let last = self.ranges.partition_point(|r| r.start <= range.end);
        let mut merged = range;
        for old in &self.ranges[at..last] {
            self.data_blocks -= old.len() as u64;
            merged = merged.start.min(old.start)..merged.end.max(old.end);
        }
        self.data_blocks += merged.len() as u64;
        self.ranges.splice(at..last, [merged]);
    }

    /// Removes the file blocks in `range`; returns how many clusters (without bigalloc, blocks)
    /// need no reservation any more.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.clusters();
        let old = self.clusters_at(&range);
        self.remove_blocks(&range);
        self.clusters = self.clusters + self.clusters_at(&range) - old;
        before - self.clusters()
    }

    fn remove_blocks(&mut self, range: &Range<u64>) {
        let first = self
            .ranges
            .partition_point(|r| u64::from(r.end) <= range.start);
        let last = self
            .ranges
            .partition_point(|r| u64::from(r.start) < range.end);
        let mut kept = Vec::new();
        for old in &self.ranges[first..last.max(first)] {
            self.data_blocks -= old.len() as u64;
            let parts = [
                u64::from(old.start)..range.start.min(old.end.into()),
                range.end.max(old.start.into())..u64::from(old.end),
            ];
            // Both parts are within `old`, whose bounds have 32 bits.
            for part in parts.into_iter().filter(|p| p.start < p.end) {
                self.data_blocks += part.end - part.start;
                kept.push(part.start as u32..part.end as u32);
            }
        }
        self.ranges.splice(first..last.max(first), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn delayed_ranges_agree_with_a_set(edits in prop::collection::vec((any::<bool>(), 0_u32..60, 1_u32..12), 1..50)) {
            let mut delayed = DelayedBlocks::default();
            let mut model = std::collections::BTreeSet::new();
            for (add, start, len) in edits {
                let blocks = start..start + len;
                if add {
                    delayed.add(blocks.clone());
                    model.extend(blocks);
                } else {
                    let removed = delayed.remove(start.into()..u64::from(start + len));
                    let held = blocks.filter(|b| model.remove(b)).count();
                    prop_assert_eq!(removed, held as u64);
                }
                prop_assert_eq!(delayed.data_blocks(), model.len() as u64);
                let first = delayed.first_in(10..50).map(|r| r.start);
                prop_assert_eq!(first, model.range(10..50).next().copied());
                prop_assert!(delayed.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
