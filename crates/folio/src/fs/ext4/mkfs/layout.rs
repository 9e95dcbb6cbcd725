//! Block numbers of a new file system: group metadata, then the initial files.
//!
//! The metadata of 16 groups (`flex_bg`) is contiguous at the start of the first: all block
//! bitmaps, all inode bitmaps, all inode tables. Files take the first free blocks. The journal goes
//! to the middle of the device, which halves the seek distance of a disk.

use super::geometry::{GROUPS_PER_FLEX, Geometry};
use crate::base::{Errno, Error, Result};
use crate::fs::ext4::layout::disk::{EXTENT_ENTRY_LEN, EXTENT_LEN_MAX, FIRST_INODE};
use std::collections::BTreeMap;
use std::ops::Range;

/// Extents that fit in an inode's `i_block`.
pub(super) const INODE_EXTENTS_MAX: usize = 4;
/// Bytes of lost+found, so that e2fsck finds room there without allocating.
const LOST_AND_FOUND_LEN: u32 = 16 << 10;
/// Maximum length of lost+found in blocks: the direct blocks of a block map, as in mke2fs.
const LOST_AND_FOUND_BLOCKS_MAX: u32 = 12;

/// The block numbers of one group's metadata.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupMetadata {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
}

/// The blocks of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct FileBlocks {
    /// Device blocks in file order, each range at most as long as an extent.
    pub(super) extents: Vec<Range<u64>>,
    /// The leaf of the extent tree, if the extents do not fit in the inode.
    pub(super) leaf: Option<u64>,
}

impl FileBlocks {
    /// Iterates over the file's blocks in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.extents.iter().cloned().flatten()
    }

    /// Returns the number of data blocks.
    pub(super) fn data_block_count(&self) -> u64 {
        self.extents.iter().map(|e| e.end - e.start).sum()
    }

    /// Returns the number of blocks in use, including the tree's leaf.
    pub(super) fn block_count(&self) -> u64 {
        self.data_block_count() + u64::from(self.leaf.is_some())
    }
}

/// All blocks in use on a new file system.
pub(super) struct Layout {
    pub(super) geometry: Geometry,
    /// By group number.
    pub(super) groups: Vec<GroupMetadata>,
    pub(super) used: UsedBlocks,
    /// `s_overhead_clusters`: blocks that are never available to files.
    pub(super) overhead_block_count: u64,
    pub(super) root: FileBlocks,
    pub(super) lost_and_found: FileBlocks,
    /// The resize inode's double indirect block.
    pub(super) resize_block: Option<u64>,
    pub(super) journal: Option<FileBlocks>,
    pub(super) orphan_file: Option<FileBlocks>,
}

impl Layout {
    pub(super) fn new(geometry: Geometry) -> Result<Self> {
        let mut layout = Self {
            groups: vec![GroupMetadata::default(); geometry.group_count as usize],
            used: UsedBlocks::new(&geometry),
            overhead_block_count: 0,
            root: FileBlocks::default(),
            lost_and_found: FileBlocks::default(),
            resize_block: None,
            journal: None,
            orphan_file: None,
            geometry,
        };
        layout.place_superblocks();
        for first in (0..layout.geometry.group_count).step_by(GROUPS_PER_FLEX as usize) {
            layout.place_flex(first)?;
        }
        // Before the files: only the journal counts as overhead, too, as in Linux.
        layout.overhead_block_count =
            u64::from(layout.geometry.first_data_block) + layout.used.count();
        layout.place_files()?;
        Ok(layout)
    }

    /// Returns the number of free blocks.
    pub(super) fn free_block_count(&self) -> u64 {
        self.geometry.block_count - u64::from(self.geometry.first_data_block) - self.used.count()
    }

    /// Returns the number of inodes in use, all at the start of the first group: reserved inodes,
    /// lost+found and the orphan file.
    pub(super) fn used_inode_count(&self) -> u32 {
        FIRST_INODE + u32::from(self.orphan_file.is_some())
    }

    /// Returns the number of free blocks in a group.
    pub(super) fn free_in_group(&self, group: u32) -> u64 {
        self.geometry.group_end(group)
            - self.geometry.group_start(group)
            - u64::from(self.used.in_group[group as usize])
    }

    /// Returns whether a group's block bitmap must be written: for the first and the last group,
    /// and for groups with more than a superblock backup.
    pub(super) fn has_block_bitmap(&self, group: u32) -> bool {
        group == 0
            || group == self.geometry.group_count - 1
            || u64::from(self.used.in_group[group as usize]) > self.geometry.superblock_run(group)
    }

    fn place_superblocks(&mut self) {
        for group in 0..self.geometry.group_count {
            let start = self.geometry.group_start(group);
            let run = self.geometry.superblock_run(group);
            // A short last group without room for data was omitted.
            self.take(start..start + run);
        }
    }

    /// Places the metadata of one flex group, which starts at group `first`.
    fn place_flex(&mut self, first: u32) -> Result<()> {
        let groups = first..(first + GROUPS_PER_FLEX).min(self.geometry.group_count);
        let area = self.geometry.group_start(first)..self.geometry.group_end(groups.end - 1);
        let bitmaps = self.place_runs(&area, area.start, groups.len() as u64, 1)?;
        let after = bitmaps.last().map_or(area.start, |b| b + 1);
        let inode_bitmaps = self.place_runs(&area, after, groups.len() as u64, 1)?;
        let after = inode_bitmaps.last().map_or(area.start, |b| b + 1);
        let table_len = u64::from(self.geometry.inode_table_block_count());
        let tables = self.place_runs(&area, after, groups.len() as u64, table_len)?;
        for (i, group) in groups.enumerate() {
            self.groups[group as usize] = GroupMetadata {
                block_bitmap: bitmaps[i],
                inode_bitmap: inode_bitmaps[i],
                inode_table: tables[i],
            };
        }
        Ok(())
    }

    /// Allocates `count` runs of `len` blocks in `area`: contiguous from `start` on if those blocks
    /// are free, else each run at the first free position.
    fn place_runs(
        &mut self,
        area: &Range<u64>,
        start: u64,
        count: u64,
        len: u64,
    ) -> Result<Vec<u64>> {
        let mut runs = Vec::with_capacity(count as usize);
        let mut next = start;
        for _ in 0..count {
            let found = if self.used.is_free(next..next + len) && next + len <= area.end {
                next
            } else {
                self.used
                    .first_free_run(area.clone(), len)
                    .ok_or_else(no_room)?
            };
            self.take(found..found + len);
            runs.push(found);
            next = found + len;
        }
        Ok(runs)
    }

    fn place_files(&mut self) -> Result<()> {
        let start = self.geometry.group_start(0);
        self.root = self.place_file(start, 1)?;
        let blocks = (LOST_AND_FOUND_LEN / self.geometry.block_size).min(LOST_AND_FOUND_BLOCKS_MAX);
        self.lost_and_found = self.place_file(start, blocks.into())?;
        if self.geometry.has_resize_inode {
            self.resize_block = self.place_file(start, 1)?.blocks().next();
        }
        if self.geometry.journal_block_count != 0 {
            let count = u64::from(self.geometry.journal_block_count);
            self.journal = Some(self.place_file(self.journal_goal(), count)?);
            self.overhead_block_count += count;
            self.orphan_file =
                Some(self.place_file(start, self.geometry.orphan_block_count.into())?);
        }
        Ok(())
    }

    /// Returns the start of the group near the middle with the most free blocks.
    fn journal_goal(&self) -> u64 {
        let geometry = &self.geometry;
        let last = geometry.group_count - 1;
        let half = (geometry.block_count - u64::from(geometry.first_data_block)) / 2;
        let middle = geometry.group_of(half.max(geometry.first_data_block.into()));
        let candidates = if middle > GROUPS_PER_FLEX {
            let flex = middle - middle % GROUPS_PER_FLEX;
            let first = (flex..last)
                .find(|g| self.free_in_group(*g) > 0)
                .unwrap_or(0);
            first..=(first + 1).min(last)
        } else {
            middle.saturating_sub(1)..=(middle + 1).min(last)
        };
        // The first of several with equally many free blocks.
        let emptiest = candidates.min_by_key(|g| std::cmp::Reverse(self.free_in_group(*g)));
        geometry.group_start(emptiest.unwrap_or(0))
    }

    /// Allocates `count` blocks to a file: free blocks from `goal` on, then those before it.
    fn place_file(&mut self, goal: u64, count: u64) -> Result<FileBlocks> {
        let mut place = FileBlocks::default();
        let mut missing = count;
        let start = self.geometry.group_start(0);
        for area in [goal..self.geometry.block_count, start..goal] {
            let mut from = area.start;
            while missing > 0 {
                let Some(run) = self.used.next_free(from..area.end) else {
                    break;
                };
                let run = run.start..run.end.min(run.start + missing);
                missing -= run.end - run.start;
                from = run.end;
                place.extents.extend(split_extents(run));
            }
        }
        if missing > 0 {
            return Err(no_room());
        }
        for extent in place.extents.clone() {
            self.take(extent);
        }
        if place.extents.len() > INODE_EXTENTS_MAX {
            if place.extents.len() > leaf_extents_max(self.geometry.block_size) {
                return Err(no_room());
            }
            let first = place.extents[0].start;
            let leaf = if first > start && self.used.is_free(first - 1..first) {
                first - 1
            } else {
                self.used
                    .first_free_run(start..self.geometry.block_count, 1)
                    .ok_or_else(no_room)?
            };
            self.take(leaf..leaf + 1);
            place.leaf = Some(leaf);
        }
        Ok(place)
    }

    fn take(&mut self, run: Range<u64>) {
        self.used.take(run, &self.geometry);
    }
}

/// Returns the number of extents in one block of an extent tree, without the checksum at the end.
fn leaf_extents_max(block_size: u32) -> usize {
    (block_size as usize - EXTENT_ENTRY_LEN - 4) / EXTENT_ENTRY_LEN
}

fn split_extents(run: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let len = usize::from(EXTENT_LEN_MAX);
    run.clone()
        .step_by(len)
        .map(move |start| start..(start + len as u64).min(run.end))
}

fn no_room() -> Error {
    Error::new(
        Errno::INVAL,
        "device too small for its inode tables and journal; use fewer inodes",
    )
}

/// The used blocks of a device as disjoint, nonadjacent runs, with a count per group.
pub(super) struct UsedBlocks {
    /// Start of each run to its end.
    runs: BTreeMap<u64, u64>,
    in_group: Vec<u32>,
}

impl UsedBlocks {
    fn new(geometry: &Geometry) -> Self {
        Self {
            runs: BTreeMap::new(),
            in_group: vec![0; geometry.group_count as usize],
        }
    }

    /// Iterates over all runs in ascending order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(start, end)| *start..*end)
    }

    /// Iterates over the parts of the runs in `area`, in ascending order.
    pub(super) fn within(&self, area: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .runs
            .range(..=area.start)
            .next_back()
            .map_or(area.start, |(start, _)| *start);
        self.runs
            .range(first..area.end)
            .map(move |(start, end)| (*start).max(area.start)..(*end).min(area.end))
            .filter(|run| !run.is_empty())
    }

    fn count(&self) -> u64 {
        self.in_group.iter().map(|n| u64::from(*n)).sum()
    }

    /// Marks free blocks as used.
    fn take(&mut self, run: Range<u64>, geometry: &Geometry) {
        if run.is_empty() {
            return;
        }
        debug_assert!(self.is_free(run.clone()));
        let mut at = run.start;
        while at < run.end {
            let group = geometry.group_of(at);
            let end = geometry.group_start(group + 1).min(run.end);
            self.in_group[group as usize] += (end - at) as u32;
            at = end;
        }
        let mut merged = run;
        if let Some(end) = self.runs.remove(&merged.end) {
            merged.end = end;
        }
        if let Some((start, end)) = self.runs.range_mut(..merged.start).next_back()
            && *end == merged.start
        {
            merged.start = *start;
        }
        self.runs.insert(merged.start, merged.end);
    }

    fn is_free(&self, run: Range<u64>) -> bool {
        self.within(run).next().is_none()
    }

    /// Returns the first run of free blocks in `area`, clipped to it.
    fn next_free(&self, area: Range<u64>) -> Option<Range<u64>> {
        let mut start = area.start;
        for used in self.within(area.clone()) {
            if used.start > start {
                return Some(start..used.start);
            }
            start = used.end;
        }
        (start < area.end).then_some(start..area.end)
    }

    /// Returns the start of the first `len` contiguous free blocks in `area`.
    fn first_free_run(&self, area: Range<u64>, len: u64) -> Option<u64> {
        let mut from = area.start;
        loop {
            let run = self.next_free(from..area.end)?;
            if run.end - run.start >= len {
                return Some(run.start);
            }
            from = run.end;
        }
    }
}
