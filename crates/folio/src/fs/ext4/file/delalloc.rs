//! Delayed allocation: space is promised at the write and placed at writeback.
//!
//! ```text
//!   write_begin   blocks that are neither mapped nor delayed   ->  delayed, promised
//!   writeback     delayed blocks                               ->  mapped in long runs, promise kept
//!   truncate      delayed blocks                               ->  holes, promise taken back
//! ```
//!
//! Tree blocks that the worst placement would need are promised too, so that writeback never runs
//! out of space.

use super::extent::{Extent, Mapped};
use crate::base::{Error, LogicalBlock, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::inode::{Ext4Inode, InodeState, Layout};
use crate::fs::ext4::space::{LARGE_FILE_BYTES, Purpose};
use std::ops::Range;

/// The delayed blocks of one inode, and what was promised for them.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    /// Sorted, not overlapping, not touching.
    ranges: Vec<Range<u32>>,
    data_blocks: u64,
    tree_blocks: u64,
    /// Extents that may be split when unwritten blocks are written, each into two more.
    splits: u64,
}

impl Delayed {
    /// Blocks promised for data.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// The delayed runs, in file blocks.
    pub(crate) fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    /// Uses up one block promised for the tree; false if there is none.
    pub(crate) fn take_tree_block(&mut self) -> bool {
        let is_promised = self.tree_blocks > 0;
        self.tree_blocks = self.tree_blocks.saturating_sub(1);
        is_promised
    }

    /// The first delayed run within `range`.
    pub(crate) fn first_in(&self, range: Range<u32>) -> Option<Range<u32>> {
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        let found = self.ranges.get(at).filter(|r| r.start < range.end)?;
        Some(found.start.max(range.start)..found.end.min(range.end))
    }

    fn add(&mut self, range: Range<u32>) {
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

    /// Takes the blocks in `range` away; returns how many were delayed.
    fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.data_blocks;
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
            // Both parts lie within `old`, whose bounds have 32 bits.
            for part in parts.into_iter().filter(|p| p.start < p.end) {
                self.data_blocks += part.end - part.start;
                kept.push(part.start as u32..part.end as u32);
            }
        }
        self.ranges.splice(first..last.max(first), kept);
        before - self.data_blocks
    }
}

impl Ext4Inode {
    /// Promises space for the blocks `range` (in file blocks) as far as they have none. ENOSPC if
    /// there is none. Returns whether that changes more than the inode's times.
    pub(crate) fn reserve(&self, state: &mut InodeState, range: Range<u32>) -> Result<bool> {
        let mut fresh: Vec<Range<u32>> = Vec::new();
        let mut block = range.start;
        while block < range.end {
            let (is_hole, len) = match state.map.lookup(LogicalBlock(block)) {
                Mapped::Data { len, .. } => (false, len),
                Mapped::Unwritten { len, .. } => {
                    state.delayed.splits += 1;
                    (false, len)
                }
                Mapped::Hole { len } => (true, len),
            };
            let end = block.saturating_add(len).min(range.end);
            if is_hole {
                let mut at = block;
                while at < end {
                    let delayed = state.delayed.first_in(at..end).unwrap_or(end..end);
                    if at < delayed.start {
                        fresh.push(at..delayed.start);
                    }
                    at = delayed.end;
                }
            }
            block = end;
        }
        if fresh.is_empty() && state.delayed.splits == 0 {
            return Ok(false);
        }
        if state.layout == Layout::BlockMap && !fresh.is_empty() {
            return Err(Error::unsupported(
                "adding blocks to a file that has a block map (ext3)",
            ));
        }
        let count: u64 = fresh.iter().map(|r| r.len() as u64).sum();
        let tree = self
            .tree_blocks_wanted(state, count)
            .saturating_sub(state.delayed.tree_blocks);
        self.fs.space.lock().reserve(count + tree)?;
        state.delayed.tree_blocks += tree;
        for range in fresh {
            state.delayed.add(range);
        }
        Ok(true)
    }

    /// Places delayed blocks in `range` (in file blocks) at once, as space that reads as zeros
    /// (`nodelalloc`).
    pub(crate) fn allocate_at_write(&self, range: Range<u32>) -> Result<()> {
        let size_bytes = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        let mut state = self.state_mut();
        while let Some(run) = state.delayed.first_in(range.clone()) {
            self.place_delayed(&mut state, run, size_bytes, true)?;
        }
        self.mark_dirty(&mut state);
        drop(state);
        // As Linux does without delayed allocation: the data goes with the transaction.
        self.order();
        Ok(())
    }

    /// Tree blocks to keep promised: the worst placement of all delayed blocks and `more`, less
    /// what there is.
    fn tree_blocks_wanted(&self, state: &InodeState, more: u64) -> u64 {
        let entries = state.delayed.data_blocks + more + 2 * state.delayed.splits;
        let worst = state.map.tree_blocks_needed(entries, self.fs.block_size);
        worst.saturating_sub(state.map.tree_blocks().len() as u64)
    }

    /// Gives back tree blocks that are promised without need.
    pub(crate) fn trim_tree_reservation(&self, state: &mut InodeState) {
        if state.delayed.data_blocks == 0
            && self.common.mapping.as_ref().is_none_or(|m| !m.is_dirty())
        {
            state.delayed.splits = 0;
        }
        let wanted = self.tree_blocks_wanted(state, 0);
        let surplus = state.delayed.tree_blocks.saturating_sub(wanted);
        if surplus > 0 {
            state.delayed.tree_blocks -= surplus;
            self.fs.space.lock().release(surplus);
        }
    }

    /// Promises tree blocks for the extents in the map, as a directory needs that grew, and for
    /// `more`, as an extent needs that is about to be split.
    pub(crate) fn reserve_tree(&self, state: &mut InodeState, more: u64) -> Result<()> {
        let missing = self
            .tree_blocks_wanted(state, more)
            .saturating_sub(state.delayed.tree_blocks);
        if missing > 0 {
            self.fs.space.lock().reserve(missing)?;
            state.delayed.tree_blocks += missing;
        }
        Ok(())
    }

    /// Places the delayed run `run`, or its beginning, on the device.
    pub(crate) fn place_delayed(
        &self,
        state: &mut InodeState,
        run: Range<u32>,
        size_bytes: u64,
        is_unwritten: bool,
    ) -> Result<()> {
        let purpose = match size_bytes >= LARGE_FILE_BYTES {
            true => Purpose::LargeFile,
            false => Purpose::SmallFile,
        };
        let goal = state.map.goal(LogicalBlock(run.start));
        let want = run.len() as u32;
        let placed = {
            let mut space = self.fs.space.lock();
            let placed = space.allocate(
                &self.fs.geometry,
                &self.fs.metadata,
                goal,
                want,
                purpose,
                true,
            )?;
            space.release(placed.end - placed.start);
            placed
        };
        // At most `want`, so it has 32 bits.
        let len = (placed.end - placed.start) as u32;
        state
            .delayed
            .remove(run.start.into()..u64::from(run.start) + u64::from(len));
        if is_unwritten {
            // The write to come may split it.
            state.delayed.splits += 1;
        }
        state.map.insert(Extent {
            logical: run.start,
            len,
            physical: placed.start,
            is_unwritten,
        });
        state.charge_blocks(len.into(), self.fs.block_size);
        state.map_is_dirty = true;
        Ok(())
    }
}

impl Ext4 {
    /// Takes back the promise for the delayed blocks in `range` (in file blocks).
    pub(crate) fn release_delayed(&self, state: &mut InodeState, range: Range<u64>) {
        let count = state.delayed.remove(range);
        if count > 0 {
            self.space.lock().release(count);
        }
    }

    /// Takes back every promise for tree blocks of an inode that goes.
    pub(crate) fn release_tree_reservation(&self, state: &mut InodeState) {
        let count = std::mem::take(&mut state.delayed.tree_blocks);
        if count > 0 {
            self.space.lock().release(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_agree_with_a_set(edits in prop::collection::vec((any::<bool>(), 0_u32..60, 1_u32..12), 1..50)) {
            let mut delayed = Delayed::default();
            let mut model = std::collections::BTreeSet::new();
            for (add, start, len) in edits {
                let blocks = start..start + len;
                match add {
                    true => {
                        delayed.add(blocks.clone());
                        model.extend(blocks);
                    }
                    false => {
                        let removed = delayed.remove(start.into()..u64::from(start + len));
                        let held = blocks.filter(|b| model.remove(b)).count();
                        prop_assert_eq!(removed, held as u64);
                    }
                }
                prop_assert_eq!(delayed.data_blocks(), model.len() as u64);
                let first = delayed.first_in(10..50).map(|r| r.start);
                prop_assert_eq!(first, model.range(10..50).next().copied());
                prop_assert!(delayed.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
