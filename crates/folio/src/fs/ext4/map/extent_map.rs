//! The extents of one inode: a sorted list in memory, a tree on disk.
//!
//! In memory the map is one sorted list, so that insertion, merging and removal are plain list
//! operations. On disk it is a tree of nodes; [`ExtentMap::store`] writes the whole list into the
//! inode's 60 bytes and as few full leaves as it needs, and reuses the tree's present blocks.

use super::pointer_slot::PointerSlot;
use crate::base::{Error, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::journal::metadata::Metadata;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{EXTENT_ENTRY_LEN, RawExtentHeader};
use crate::fs::ext4::layout::extent::{
    Extent, decode_extent, decode_index, encode_extent, encode_index, fill_node, len_max,
    node_capacity, parse_node, split_for_disk,
};
use std::ops::Range;

/// The state of a file block, and of the `len - 1` blocks after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MappedRange {
    /// Stored from this device block on.
    Data { physical: PhysicalBlock, len: u32 },
    /// Space from this device block on, reading as zeros.
    Unwritten { physical: PhysicalBlock, len: u32 },
    /// Not allocated.
    Hole { len: u32 },
}

/// The file system and inode of a map, to check and write its tree blocks.
pub(crate) struct TreeContext<'a> {
    /// The file system's metadata blocks.
    pub(crate) metadata: &'a Metadata,
    /// Bytes per block.
    pub(crate) block_size: usize,
    /// Blocks of the file system.
    pub(crate) block_count: u64,
    /// First block that may hold data.
    pub(crate) first_data_block: u64,
    /// The inode's checksum seed, if the file system has metadata_csum.
    pub(crate) checksum_seed: Option<u32>,
}

/// The extents of one inode.
#[derive(Debug, Default, Clone)]
pub(crate) struct ExtentMap {
    /// Sorted, not overlapping, neighbors merged where they touch.
    extents: Vec<Extent>,
    /// The tree's blocks on the device (leaves and inner nodes), in the order they were read.
    pub(super) tree_blocks: Vec<u64>,
    /// With a block map, the position of each of the `tree_blocks`; sorted.
    pub(super) slots: Vec<PointerSlot>,
    /// A range with all file blocks that changed since the block map was stored.
    pub(super) changed: Range<u64>,
}

impl ExtentMap {
    /// Returns the bytes outside of this object.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.extents.capacity() * size_of::<Extent>()
            + self.tree_blocks.capacity() * size_of::<u64>()
            + self.slots.capacity() * size_of::<PointerSlot>()
    }

    /// Loads the tree whose root is in an inode's `i_block`.
    ///
    /// # Errors
    /// EUCLEAN for a tree that breaks its rules, or points outside the file system.
    pub(crate) fn load(root: &[u8; 60], context: &TreeContext<'_>) -> Result<Self> {
        let mut map = Self::default();
        let (header, entries) = parse_node(root, None)?;
        map.load_node(&header, entries, 0..1 << 32, context)?;
        Ok(map)
    }

    /// Returns a map of plain runs, for inodes that map their blocks one by one (ext2, ext3);
    /// `pointer_blocks` are the pointer blocks, with their positions.
    pub(super) fn from_runs(
        runs: impl IntoIterator<Item = (LogicalBlock, PhysicalBlock, u32)>,
        mut pointer_blocks: Vec<(PointerSlot, u64)>,
    ) -> Self {
        pointer_blocks.sort_unstable();
        let (slots, tree_blocks) = pointer_blocks.into_iter().unzip();
        let mut map = Self {
            tree_blocks,
            slots,
            ..Self::default()
        };
        for (logical, physical, len) in runs {
            map.insert(Extent {
                logical: logical.0,
                len,
                physical: physical.0,
                is_unwritten: false,
            });
        }
        // What was loaded is not a change.
        map.changed = 0..0;
        map
    }

    /// Returns all extents, sorted by file block.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the file block after the last extent; 0 without any.
    pub(crate) fn end(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// Returns the number of blocks in all extents.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.extents
            .iter()
            .map(|extent| u64::from(extent.len))
            .sum()
    }

    /// Returns the device blocks that hold the tree itself.
    pub(crate) fn tree_blocks(&self) -> &[u64] {
        &self.tree_blocks
    }

    /// Looks up the file block `block`.
    pub(crate) fn lookup(&self, block: LogicalBlock) -> MappedRange {
        let after = self.extents.partition_point(|e| e.logical <= block.0);
        if let Some(extent) = after.checked_sub(1).map(|i| self.extents[i])
            && u64::from(block.0) < extent.end()
        {
            let tail = extent.tail_from(block.0);
            let physical = PhysicalBlock(tail.physical);
            let len = tail.len;
            return if tail.is_unwritten {
                MappedRange::Unwritten { physical, len }
            } else {
                MappedRange::Data { physical, len }
            };
        }
        let next = self.extents.get(after).map_or(u32::MAX, |e| e.logical);
        MappedRange::Hole {
            len: next - block.0,
        }
    }

    /// Returns the best device block for file block `block`: the one that continues the blocks
    /// before it.
    pub(crate) fn goal(&self, block: LogicalBlock) -> Option<PhysicalBlock> {
        let after = self.extents.partition_point(|e| e.logical <= block.0);
        let before = self.extents[after.checked_sub(1)?];
        let distance = u64::from(block.0) - u64::from(before.logical);
        Some(PhysicalBlock(
            before.physical + distance.min(u64::from(before.len)),
        ))
    }

    /// Returns the device block where the cluster of the file block `block` starts, if any block of
    /// it is mapped. The extents were checked: clusters of files start at clusters of the device.
    pub(crate) fn cluster_start(&self, block: u32, cluster_blocks: u32) -> Option<u64> {
        let first = u64::from(block / cluster_blocks * cluster_blocks);
        let at = self.extents.partition_point(|e| e.end() <= first);
        let extent = self.extents.get(at)?;
        let logical = u64::from(extent.logical);
        (logical < first + u64::from(cluster_blocks))
            .then(|| (extent.physical + first).saturating_sub(logical))
    }

    /// Returns the clusters on the device of the extents `removed`, sorted, that have no mapped
    /// block any more.
    pub(crate) fn unmapped_clusters(
        &self,
        removed: &[Extent],
        cluster_blocks: u32,
    ) -> Vec<Range<u64>> {
        if cluster_blocks <= 1 {
            return removed.iter().map(Extent::physical_range).collect();
        }
        let size = u64::from(cluster_blocks);
        // Below the end of an extent, which has 32 bits.
        let is_mapped = |cluster: u64| {
            let block = (cluster * size) as u32;
            self.cluster_start(block, cluster_blocks).is_some()
        };
        let (mut unmapped, mut seen) = (Vec::new(), 0);
        for extent in removed {
            let logical = u64::from(extent.logical);
            let mut clusters = (logical / size).max(seen)..extent.end().div_ceil(size);
            seen = clusters.end;
            // Only the first and the last one can have other blocks.
            if !clusters.is_empty() && is_mapped(clusters.start) {
                clusters.start += 1;
            }
            if !clusters.is_empty() && is_mapped(clusters.end - 1) {
                clusters.end -= 1;
            }
            if !clusters.is_empty() {
                let start = (extent.physical + clusters.start * size).saturating_sub(logical);
                unmapped.push(start..start + (clusters.end - clusters.start) * size);
            }
        }
        unmapped
    }

    /// Adds an extent over a hole, and merges it with neighbors that it continues.
    pub(crate) fn insert(&mut self, extent: Extent) {
        self.changed = hull(&self.changed, &extent);
        let mut at = self.extents.partition_point(|e| e.logical < extent.logical);
        let joins = |a: &Extent, b: &Extent| {
            a.end() == u64::from(b.logical)
                && a.physical + u64::from(a.len) == b.physical
                && a.is_unwritten == b.is_unwritten
                && a.len.checked_add(b.len).is_some()
        };
        if at > 0 && joins(&self.extents[at - 1], &extent) {
            at -= 1;
            self.extents[at].len += extent.len;
        } else {
            self.extents.insert(at, extent);
        }
        if at + 1 < self.extents.len() && joins(&self.extents[at], &self.extents[at + 1]) {
            self.extents[at].len += self.extents[at + 1].len;
            self.extents.remove(at + 1);
        }
    }

    /// Makes the file blocks in `range` holes; returns the extents they had.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Vec<Extent> {
        let first = self.extents.partition_point(|e| e.end() <= range.start);
        let last = self
            .extents
            .partition_point(|e| u64::from(e.logical) < range.end);
        if first >= last {
            return Vec::new();
        }
        let mut kept = Vec::new();
        let mut removed = Vec::with_capacity(last - first);
        for extent in &self.extents[first..last] {
            let mut middle = *extent;
            if u64::from(extent.logical) < range.start {
                // The casts are exact: both bounds are inside the extent, whose blocks are 32-bit.
                let split = range.start as u32;
                kept.push(Extent {
                    len: split - extent.logical,
                    ..*extent
                });
                middle = middle.tail_from(split);
            }
            if extent.end() > range.end {
                let split = range.end as u32;
                kept.push(middle.tail_from(split));
                middle.len = split - middle.logical;
            }
            self.changed = hull(&self.changed, &middle);
            removed.push(middle);
        }
        self.extents.splice(first..last, kept);
        removed
    }

    /// Moves the file blocks from `from` on by `by` blocks: towards the beginning over a hole, or
    /// towards the end. The caller has checked that there is room.
    pub(crate) fn move_blocks(&mut self, from: u32, by: i64) {
        // Removal splits an extent that crosses `from`; insertion merges extents that now touch.
        for extent in self.remove(u64::from(from)..1 << 32) {
            // Both ends have 32 bits: the caller checked them.
            let logical = (i64::from(extent.logical) + by) as u32;
            self.insert(Extent { logical, ..extent });
        }
    }

    /// Marks the allocated file blocks in `range` as written.
    pub(crate) fn mark_written(&mut self, range: Range<u64>) {
        self.set_unwritten(range, false);
    }

    /// Makes the blocks in `range` read as zeros.
    pub(crate) fn mark_unwritten(&mut self, range: Range<u64>) {
        self.set_unwritten(range, true);
    }

    fn set_unwritten(&mut self, range: Range<u64>, is_unwritten: bool) {
        for extent in self.remove(range) {
            self.insert(Extent {
                is_unwritten,
                ..extent
            });
        }
    }

    /// Returns how many entries the tree on disk needs.
    fn disk_entries(&self) -> u64 {
        let per = |e: &Extent| u64::from(e.len.div_ceil(u32::from(len_max(e.is_unwritten))));
        self.extents.iter().map(per).sum()
    }

    /// Returns how many blocks the tree needs beside the inode, with `more` extents in addition to
    /// the present ones.
    pub(crate) fn tree_blocks_needed(&self, more: u64, block_size: usize) -> u64 {
        let mut entries = self.disk_entries().saturating_add(more);
        let per_block = node_capacity(block_size);
        let mut blocks = 0;
        while entries > node_capacity(60) {
            entries = entries.div_ceil(per_block);
            blocks += entries;
        }
        blocks
    }

    /// Writes the map into `root` (an inode's `i_block`) and tree blocks. `allocate` allocates a
    /// block for the tree. Returns the blocks that are no longer needed.
    pub(crate) fn store(
        &mut self,
        root: &mut [u8; 60],
        context: &TreeContext<'_>,
        mut allocate: impl FnMut() -> Result<PhysicalBlock>,
    ) -> Result<Vec<PhysicalBlock>> {
        let mut entries: Vec<[u8; EXTENT_ENTRY_LEN]> = Vec::new();
        let mut firsts: Vec<u32> = Vec::new();
        for extent in &self.extents {
            for piece in split_for_disk(*extent) {
                entries.push(encode_extent(&piece));
                firsts.push(piece.logical);
            }
        }
        let needed = self.tree_blocks_needed(0, context.block_size) as usize;
        let known = self.tree_blocks.len();
        // All blocks first: without space the tree on the device stays as it is.
        while self.tree_blocks.len() < needed {
            self.tree_blocks.push(allocate()?.0);
        }
        let surplus = self
            .tree_blocks
            .split_off(needed)
            .into_iter()
            .map(PhysicalBlock)
            .collect();
        let mut free_blocks = self.tree_blocks.iter().enumerate();
        let mut depth = 0;
        while entries.len() as u64 > node_capacity(60) {
            let per_block = node_capacity(context.block_size) as usize;
            let mut upper = Vec::new();
            let mut upper_firsts = Vec::new();
            for (chunk, first) in entries.chunks(per_block).zip(firsts.chunks(per_block)) {
                // `needed` counted one block for each chunk of each level.
                let (index, number) = free_blocks
                    .next()
                    .ok_or_else(|| Error::corrupt("extent tree miscounted"))?;
                write_tree_block(PhysicalBlock(*number), index < known, chunk, depth, context)?;
                upper.push(encode_index(first[0], *number));
                upper_firsts.push(first[0]);
            }
            (entries, firsts) = (upper, upper_firsts);
            depth += 1;
        }
        fill_node(root, &entries, depth);
        Ok(surplus)
    }

    fn load_node(
        &mut self,
        header: &RawExtentHeader,
        entries: &[u8],
        bounds: Range<u64>,
        context: &TreeContext<'_>,
    ) -> Result<()> {
        let entries = entries
            .chunks_exact(EXTENT_ENTRY_LEN)
            .take(header.entries.get().into());
        if header.depth.get() == 0 {
            for raw in entries {
                let extent = decode_extent(raw)?;
                self.append_checked(extent, &bounds, context)?;
            }
            return Ok(());
        }
        let indexes: Vec<(u32, u64)> = entries.map(decode_index).collect::<Result<_>>()?;
        for (i, (first, number)) in indexes.iter().enumerate() {
            let end = indexes
                .get(i + 1)
                .map_or(bounds.end, |(next, _)| u64::from(*next));
            let inner = u64::from(*first)..end;
            if inner.start < bounds.start || inner.end > bounds.end || inner.is_empty() {
                return Err(Error::corrupt(format!(
                    "extent index of file block {first} is out of order"
                )));
            }
            self.load_block(*number, header.depth.get() - 1, inner, context)
                .map_err(|e| e.at(format!("extent block {number}")))?;
        }
        Ok(())
    }

    fn load_block(
        &mut self,
        number: u64,
        depth: u16,
        bounds: Range<u64>,
        context: &TreeContext<'_>,
    ) -> Result<()> {
        let block = context.metadata.block(PhysicalBlock(number))?;
        // A copy, so that no page stays locked while the levels below are read.
        let bytes = block.read().to_vec();
        let (header, entries) = parse_node(&bytes, Some(depth))?;
        if header.entries.get() == 0 {
            return Err(Error::corrupt("empty node below the root"));
        }
        if let Some(seed) = context.checksum_seed {
            let tail = EXTENT_ENTRY_LEN * (1 + usize::from(header.max.get()));
            let stored = bytes
                .get(tail..tail + 4)
                .and_then(|b| b.try_into().ok())
                .map(u32::from_le_bytes);
            if stored != Some(crc32c(seed, &bytes[..tail])) {
                return Err(Error::corrupt("bad checksum"));
            }
        }
        self.tree_blocks.push(number);
        self.load_node(&header, entries, bounds, context)
    }

    fn append_checked(
        &mut self,
        extent: Extent,
        bounds: &Range<u64>,
        context: &TreeContext<'_>,
    ) -> Result<()> {
        let physical_end = extent.physical.checked_add(u64::from(extent.len));
        let what = if extent.len == 0 {
            "is empty"
        } else if u64::from(extent.logical) < bounds.start || extent.end() > bounds.end {
            "leaves its node's range"
        } else if self
            .extents
            .last()
            .is_some_and(|last| last.end() > u64::from(extent.logical))
        {
            "overlaps the one before"
        } else if extent.physical < context.first_data_block.max(1)
            || physical_end.is_none_or(|end| end > context.block_count)
        {
            "points outside the file system"
        } else {
            self.insert(extent);
            return Ok(());
        };
        Err(Error::corrupt(format!(
            "extent of file block {} {what}",
            extent.logical
        )))
    }
}

/// Returns the smallest range that has `range` and the file blocks of `extent`.
fn hull(range: &Range<u64>, extent: &Extent) -> Range<u64> {
    let start = u64::from(extent.logical);
    if range.is_empty() {
        start..extent.end()
    } else {
        range.start.min(start)..range.end.max(extent.end())
    }
}

/// Writes a block of the tree. With `is_known` it is a block of the tree already, which is not
/// made dirty if its contents stay the same.
fn write_tree_block(
    number: PhysicalBlock,
    is_known: bool,
    entries: &[[u8; EXTENT_ENTRY_LEN]],
    depth: u16,
    context: &TreeContext<'_>,
) -> Result<()> {
    let mut node = vec![0; context.block_size];
    fill_node(&mut node, entries, depth);
    if let Some(seed) = context.checksum_seed {
        let tail = EXTENT_ENTRY_LEN * (1 + node_capacity(context.block_size) as usize);
        let crc = crc32c(seed, &node[..tail]);
        node[tail..tail + 4].copy_from_slice(&crc.to_le_bytes());
    }
    if is_known && *context.metadata.block(number)?.read() == *node {
        return Ok(());
    }
    context
        .metadata
        .new_block(number)?
        .write()
        .copy_from_slice(&node);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(logical: u32, len: u32, physical: u64) -> Extent {
        Extent {
            logical,
            len,
            physical,
            is_unwritten: false,
        }
    }

    #[test]
    fn touching_extents_merge_and_split() {
        let mut map = ExtentMap::default();
        map.insert(extent(0, 4, 100));
        map.insert(extent(8, 4, 108));
        map.insert(extent(4, 4, 104));
        assert_eq!(map.extents(), &[extent(0, 12, 100)]);
        assert_eq!(map.remove(3..5), vec![extent(3, 2, 103)]);
        assert_eq!(map.extents(), &[extent(0, 3, 100), extent(5, 7, 105)]);
        assert_eq!(map.lookup(LogicalBlock(3)), MappedRange::Hole { len: 2 });
        assert_eq!(map.goal(LogicalBlock(4)), Some(PhysicalBlock(103)));
    }

    proptest! {
        #[test]
        fn extent_map_agrees_with_one_entry_per_block(edits in prop::collection::vec((any::<bool>(), 0_u32..64, 1_u32..16), 1..60)) {
            let mut map = ExtentMap::default();
            let mut model: Vec<Option<u64>> = vec![None; 96];
            let mut next = 1000;
            for (add, start, len) in edits {
                for removed in map.remove(u64::from(start)..u64::from(start + len)) {
                    for i in 0..removed.len {
                        let held = model[(removed.logical + i) as usize].take();
                        prop_assert_eq!(held, Some(removed.physical + u64::from(i)));
                    }
                }
                prop_assert!(model[start as usize..(start + len) as usize].iter().all(Option::is_none));
                if add {
                    map.insert(extent(start, len, next));
                    for i in 0..len { model[(start + i) as usize] = Some(next + u64::from(i)); }
                    next += u64::from(len);
                }
                for (block, held) in model.iter().enumerate() {
                    let found = match map.lookup(LogicalBlock(block as u32)) {
                        MappedRange::Data { physical, .. } => Some(physical.0),
                        _ => None,
                    };
                    prop_assert_eq!(found, *held);
                }
            }
        }
    }
}
