//! Delayed allocation: reserves space at the write, allocates it at writeback.
//!
//! ```text
//!   write_begin   blocks that are neither mapped nor delayed   ->  delayed, reserved
//!   writeback     delayed blocks                               ->  mapped in long runs, reservation used
//!   truncate      delayed blocks                               ->  holes, reservation released
//! ```
//!
//! Tree blocks for the worst placement are reserved too, so that writeback never runs out of space.

use crate::base::{Error, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::layout::extent::Extent;
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::map::pointer_slot::pointer_blocks_needed;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::fs::ext4::space::{BlockSource, LARGE_FILE_BYTES, Purpose};
use crate::fs::ext4::volume::Volume;
use std::ops::Range;

impl Ext4Inode {
    /// Reserves space for the file blocks in `range` that have none. Returns whether that changes
    /// more than the inode's times.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn reserve(
        &self,
        state: &mut InodeState,
        range: Range<u32>,
        reserved: ReservedBlocks,
    ) -> Result<bool> {
        let mut fresh: Vec<Range<u32>> = Vec::new();
        let mut block = range.start;
        while block < range.end {
            let (is_hole, len) = match state.map.lookup(LogicalBlock(block)) {
                MappedRange::Data { len, .. } => (false, len),
                MappedRange::Unwritten { len, .. } => {
                    state.delayed.splits += 1;
                    (false, len)
                }
                MappedRange::Hole { len } => (true, len),
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
        let added = fresh.iter().map(|range| state.delayed.add(range.clone()));
        let count: u64 = added.sum();
        let tree = self
            .tree_blocks_needed(state, 0)
            .saturating_sub(state.delayed.tree_blocks);
        let result = self.fs.volume.space.lock().reserve(count + tree, reserved);
        if let Err(error) = result {
            for range in fresh {
                state.delayed.remove(range.start.into()..range.end.into());
            }
            return Err(error);
        }
        state.delayed.tree_blocks += tree;
        Ok(true)
    }

    /// Allocates the delayed file blocks in `range` at once, as space that reads as zeros
    /// (`nodelalloc`).
    pub(crate) fn allocate_at_write(&self, range: Range<u32>) -> Result<()> {
        let size_bytes = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        let mut state = self.state_mut();
        while let Some(run) = state.delayed.first_in(range.clone()) {
            self.allocate_delayed(&mut state, run, size_bytes, true)?;
        }
        self.mark_dirty(&mut state);
        drop(state);
        // As in Linux without delayed allocation, the data is written with the transaction.
        self.order();
        Ok(())
    }

    /// Returns the number of tree blocks to keep reserved: for the worst placement of all delayed
    /// blocks and `more`, less those the tree has.
    fn tree_blocks_needed(&self, state: &InodeState, more: u64) -> u64 {
        if state.layout == ContentLayout::BlockMap {
            return self.pointer_blocks_missing(state);
        }
        let entries = state.delayed.data_blocks() + more + 2 * state.delayed.splits;
        let worst = state
            .map
            .tree_blocks_needed(entries, self.fs.volume.block_size);
        worst.saturating_sub(state.map.tree_blocks().len() as u64)
    }

    /// Returns the number of pointer blocks that a block map lacks for all its blocks, delayed ones
    /// included. It does not depend on where they are placed.
    fn pointer_blocks_missing(&self, state: &InodeState) -> u64 {
        let extents = state.map.extents();
        let mapped = extents.iter().map(|e| u64::from(e.logical)..e.end());
        let ranges = state.delayed.ranges();
        let delayed = ranges.iter().map(|r| r.start.into()..r.end.into());
        let all = merge(mapped, delayed);
        let needed = pointer_blocks_needed(all, self.fs.volume.block_size);
        needed.saturating_sub(state.map.tree_blocks().len() as u64)
    }

    /// Releases tree blocks that are reserved without need.
    pub(crate) fn trim_tree_reservation(&self, state: &mut InodeState) {
        if state.delayed.data_blocks() == 0 && !self.has_dirty_pages() {
            state.delayed.splits = 0;
        }
        let needed = self.tree_blocks_needed(state, 0);
        let surplus = state.delayed.tree_blocks.saturating_sub(needed);
        if surplus > 0 {
            state.delayed.tree_blocks -= surplus;
            self.fs.volume.space.lock().release(surplus);
        }
    }

    /// Reserves tree blocks for the extents in the map (of a directory that grew), and for `more`
    /// (for an extent that will be split).
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn reserve_tree(
        &self,
        state: &mut InodeState,
        more: u64,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let missing = self
            .tree_blocks_needed(state, more)
            .saturating_sub(state.delayed.tree_blocks);
        if missing > 0 {
            self.fs.volume.space.lock().reserve(missing, reserved)?;
            state.delayed.tree_blocks += missing;
        }
        Ok(())
    }

    /// Allocates blocks for the delayed run `run`, or for its beginning; returns their number.
    pub(crate) fn allocate_delayed(
        &self,
        state: &mut InodeState,
        run: Range<u32>,
        size_bytes: u64,
        is_unwritten: bool,
    ) -> Result<u32> {
        let purpose = if size_bytes >= LARGE_FILE_BYTES {
            Purpose::LargeFile
        } else {
            Purpose::SmallFile
        };
        if is_unwritten {
            // The following write may split it.
            state.delayed.splits += 1;
        }
        self.allocate_run(state, run, purpose, BlockSource::Reservation, is_unwritten)
    }

    /// Maps the hole `run`, or its beginning, to blocks; returns their number. With bigalloc they
    /// are in the cluster that the file has there already, or in new ones out of `source`.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn allocate_run(
        &self,
        state: &mut InodeState,
        run: Range<u32>,
        purpose: Purpose,
        source: BlockSource,
        is_unwritten: bool,
    ) -> Result<u32> {
        let volume = &self.fs.volume;
        let cluster_blocks = volume.geometry.cluster_blocks;
        let first = run.start / cluster_blocks * cluster_blocks;
        let is_mapped = |block: u32| {
            let is_possible = cluster_blocks > 1;
            is_possible.then(|| state.map.cluster_start(block, cluster_blocks))?
        };
        let known = is_mapped(run.start);
        let last = (run.end - 1) / cluster_blocks * cluster_blocks;
        let mut clusters = (last - first) / cluster_blocks + 1;
        if last > first && is_mapped(last).is_some() {
            clusters -= 1;
        }
        let goal = state.map.goal(LogicalBlock(first));
        // Locked until the reservation is released: in between the blocks would count twice.
        let mut space = volume.space.lock();
        let allocated = match known {
            Some(start) => start..start + u64::from(cluster_blocks),
            None => space.allocate(
                &volume.geometry,
                &volume.metadata,
                goal,
                clusters,
                purpose,
                source,
            )?,
        };
        let skipped = run.start - first;
        // At most as long as `run`, so it has 32 bits.
        let len =
            (allocated.end - allocated.start - u64::from(skipped)).min(run.len() as u64) as u32;
        let mapped = u64::from(run.start)..u64::from(run.start) + u64::from(len);
        space.release(state.delayed.remove(mapped));
        drop(space);
        state.map.insert(Extent {
            logical: run.start,
            len,
            physical: allocated.start + u64::from(skipped),
            is_unwritten,
        });
        if known.is_none() {
            let count = (allocated.end - allocated.start) as i64;
            state.charge_blocks(count, volume.block_size);
        }
        state.map_is_dirty = true;
        Ok(len)
    }
}

impl Ext4Inode {
    /// Allocates the file block `logical`, which follows the last one, for metadata in a directory
    /// or file. The caller sets the size.
    ///
    /// # Errors
    /// ENOSPC; EFBIG. The map stays as it was.
    pub(crate) fn append_block(
        &self,
        state: &mut InodeState,
        logical: LogicalBlock,
        reserved: ReservedBlocks,
    ) -> Result<PhysicalBlock> {
        let volume = &self.fs.volume;
        let at = u64::from(logical.0);
        self.check_reach(state, (at + 1) * volume.block_size as u64)?;
        let range = logical.0..logical.0 + 1;
        let source = BlockSource::Free(reserved);
        self.allocate_run(state, range, Purpose::Metadata, source, false)?;
        // Here, not in the commit: a commit must find room for the tree.
        if let Err(error) = self.reserve_tree(state, 0, reserved) {
            let removed = state.map.remove(at..at + 1);
            for range in self.uncharge_removed(state, &removed) {
                volume.free_data(range)?;
            }
            return Err(error);
        }
        match state.map.lookup(logical) {
            MappedRange::Data { physical, .. } => Ok(physical),
            _ => Err(Error::corrupt(format!("block {logical} is not mapped"))),
        }
    }

    /// Maps a new block at `logical`, whose zeros `fill` changes. A directory's size reaches its
    /// end at least.
    ///
    /// # Errors
    /// ENOSPC; those of `fill`.
    pub(crate) fn append_metadata(
        &self,
        logical: LogicalBlock,
        fill: impl Fn(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let volume = &self.fs.volume;
        self.change(None, |reserved| {
            let mut state = self.state_mut();
            let physical = self.append_block(&mut state, logical, reserved)?;
            let end = (u64::from(logical.0) + 1) * volume.block_size as u64;
            let size = state.recorded_size().max(end);
            state.set_recorded_size(size);
            self.mark_dirty(&mut state);
            drop(state);
            fill(&mut volume.metadata.new_block(physical)?.write())
        })
    }

    /// Gives the file its own copy of the block at `logical`, which has another owner, too.
    ///
    /// # Errors
    /// ENOSPC; the device's errors.
    pub(crate) fn unshare_block(&self, logical: LogicalBlock) -> Result<()> {
        let (volume, at) = (&self.fs.volume, u64::from(logical.0));
        let mapped = self.state.read().map.lookup(logical);
        let content = match mapped {
            MappedRange::Hole { .. } => return Ok(()),
            MappedRange::Unwritten { .. } => None,
            MappedRange::Data { physical, .. } => {
                let mut bytes = vec![0; volume.block_size];
                let offset = physical.0 * volume.block_size as u64;
                volume.device.read_at(&mut bytes, offset)?;
                Some(bytes)
            }
        };
        self.change(None, |reserved| {
            let mut state = self.state_mut();
            let removed = state.map.remove(at..at + 1);
            // The other owner keeps the block.
            self.uncharge_removed(&mut state, &removed);
            self.mark_dirty(&mut state);
            let Some(content) = &content else {
                return Ok(());
            };
            let physical = self.append_block(&mut state, logical, reserved)?;
            self.mark_dirty(&mut state);
            drop(state);
            let block = volume.metadata.new_block(physical)?;
            block.write().copy_from_slice(content);
            Ok(())
        })
    }

    /// Returns the clusters on the device that the extents `removed` leave without a mapped block,
    /// which the caller frees. The inode is not charged for them any more.
    pub(crate) fn uncharge_removed(
        &self,
        state: &mut InodeState,
        removed: &[Extent],
    ) -> Vec<Range<u64>> {
        let volume = &self.fs.volume;
        let cluster_blocks = volume.geometry.cluster_blocks;
        let freed = state.map.unmapped_clusters(removed, cluster_blocks);
        let count: u64 = freed.iter().map(|range| range.end - range.start).sum();
        state.charge_blocks(-(count as i64), volume.block_size);
        freed
    }
}

/// Merges two sorted sequences of ranges by their starts.
fn merge(
    left: impl Iterator<Item = Range<u64>>,
    right: impl Iterator<Item = Range<u64>>,
) -> impl Iterator<Item = Range<u64>> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || {
        let is_left_first = match (left.peek(), right.peek()) {
            (Some(left), Some(right)) => left.start <= right.start,
            (left, _) => left.is_some(),
        };
        if is_left_first {
            left.next()
        } else {
            right.next()
        }
    })
}

impl Volume {
    /// Releases the reservation for the delayed file blocks in `range`.
    pub(crate) fn release_delayed(&self, state: &mut InodeState, range: Range<u64>) {
        let count = state.delayed.remove(range);
        if count > 0 {
            self.space.lock().release(count);
        }
    }

    /// Releases all tree blocks reserved for an inode that is evicted.
    pub(crate) fn release_tree_reservation(&self, state: &mut InodeState) {
        let count = std::mem::take(&mut state.delayed.tree_blocks);
        if count > 0 {
            self.space.lock().release(count);
        }
    }
}
