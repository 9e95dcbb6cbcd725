//! The bitmaps of all groups: blocks and inodes below the new end are allocated, those beyond it
//! freed.

use super::super::changes::BlockChanges;
use super::super::layout::{bitmap_checksum, descriptor, has_flags, put_descriptor, quarters};
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::journal::metadata::Metadata;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{GROUP_BLOCK_UNINIT, GROUP_INODE_UNINIT};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::space::bitmap::Bitmap;
use crate::fs::ext4::space::group::load_groups;
use crate::fs::ext4::space::inode_place;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Free runs that the search for a long one examines.
const RUNS_EXAMINED_MAX: usize = 32;

/// One group.
struct GroupMap {
    blocks: Bitmap,
    inodes: Bitmap,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    /// Inodes at the end of the table that were never used.
    unused_inodes: u32,
    directories: u32,
}

/// All groups of the file system before it is shrunk.
pub(super) struct GroupMaps {
    groups: Vec<GroupMap>,
    /// Groups whose bitmaps differ from the device.
    dirty: BTreeSet<u32>,
    /// Blocks to free with the next flush. They are in use until that is durable.
    freed: Vec<Range<u64>>,
    /// The new end: blocks from here on are not allocated.
    block_end: u64,
    /// Inodes above are not allocated.
    inode_last: u32,
    /// No block below is free.
    block_cursor: u64,
    inode_cursor: u32,
    free_blocks: u64,
    free_inodes: u64,
}

impl GroupMaps {
    /// Reads and checks all bitmaps.
    pub(super) fn load(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<Self> {
        let cache = PageCache::new(CacheOptions {
            background_writeback: false,
            ..CacheOptions::default()
        });
        let metadata = Metadata::new(
            &cache.writeback(),
            device.clone(),
            superblock.block_size,
            superblock.block_count,
        );
        let mut groups = Vec::new();
        let loaded = load_groups(superblock, &metadata)?;
        for (mut group, number) in loaded.into_iter().zip(0..) {
            let blocks = group.load_blocks(number, superblock, &metadata)?.clone();
            let inodes = group.load_inodes(number, superblock, &metadata)?.clone();
            let is_unused = group.has_flag(superblock, GROUP_INODE_UNINIT);
            groups.push(GroupMap {
                blocks,
                inodes,
                block_bitmap: group.block_bitmap(),
                inode_bitmap: group.inode_bitmap(),
                inode_table: group.inode_table(),
                unused_inodes: if is_unused {
                    superblock.inodes_per_group
                } else if has_flags(superblock) {
                    group.itable_unused()
                } else {
                    0
                },
                directories: group.used_dirs(),
            });
        }
        let free =
            |count: fn(&GroupMap) -> u32| groups.iter().map(|group| u64::from(count(group))).sum();
        Ok(Self {
            free_blocks: free(|group| group.blocks.count_clear()),
            free_inodes: free(|group| group.inodes.count_clear()),
            groups,
            dirty: BTreeSet::new(),
            freed: Vec::new(),
            block_end: superblock.block_count,
            inode_last: superblock.inode_count,
            block_cursor: superblock.first_data_block,
            inode_cursor: superblock.first_inode,
        })
    }

    /// Restricts allocation to the file system `new`.
    pub(super) fn limit(&mut self, new: &Superblock) {
        self.block_end = new.block_count;
        self.inode_last = new.inode_count;
    }

    /// Returns the free blocks and inodes before the end of `new`.
    pub(super) fn free_before(&self, new: &Superblock) -> (u64, u64) {
        let kept = self.groups.iter().zip(0..new.group_count);
        kept.fold((0, 0), |(blocks, inodes), (group, number)| {
            let len = new.group_len(number);
            let mut free = 0;
            let mut at = 0;
            while let Some(start) = group.blocks.next_clear(at, len) {
                at = group.blocks.next_set(start, len).unwrap_or(len);
                free += u64::from(at - start);
            }
            (
                blocks + free,
                inodes + u64::from(group.inodes.count_clear()),
            )
        })
    }

    /// Returns the blocks in use beyond the end of `new` that are not metadata of groups.
    pub(super) fn content_beyond(&self, old: &Superblock, new: &Superblock) -> u64 {
        let all = old.block_count - old.first_data_block - self.free_blocks;
        let before = new.block_count - new.first_data_block - self.free_before(new).0;
        let metadata = |from: u64| {
            let heads = (0..old.group_count).map(|group| old.head_of_group(group));
            heads
                .chain(self.metadata_from(old, 0))
                .map(|run| run.end.saturating_sub(run.start.max(from)))
                .sum::<u64>()
        };
        (all - before).saturating_sub(metadata(new.block_count))
    }

    /// Returns the block after the metadata of a group.
    pub(super) fn metadata_end(&self, superblock: &Superblock, group: u32) -> u64 {
        let ends = self.metadata_of(superblock, group).map(|run| run.end);
        ends.into_iter().max().unwrap_or(0)
    }

    /// Returns the blocks of bitmaps and inode tables of the groups from `group` on.
    pub(super) fn metadata_from(&self, superblock: &Superblock, group: u32) -> Vec<Range<u64>> {
        (group..superblock.group_count)
            .flat_map(|group| self.metadata_of(superblock, group))
            .collect()
    }

    /// Returns how many of these blocks are before block `end`.
    pub(super) fn metadata_below(&self, superblock: &Superblock, group: u32, end: u64) -> u64 {
        self.metadata_from(superblock, group)
            .into_iter()
            .map(|run| run.end.min(end).saturating_sub(run.start))
            .sum()
    }

    fn metadata_of(&self, superblock: &Superblock, group: u32) -> [Range<u64>; 3] {
        let map = &self.groups[group as usize];
        let table = map.inode_table;
        [
            map.block_bitmap..map.block_bitmap + 1,
            map.inode_bitmap..map.inode_bitmap + 1,
            table..table + superblock.inode_table_blocks(),
        ]
    }

    pub(super) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    pub(super) fn free_inodes(&self) -> u64 {
        self.free_inodes
    }

    /// Returns the first block of a group's inode table.
    pub(super) fn inode_table(&self, group: u32) -> u64 {
        self.groups[group as usize].inode_table
    }

    /// Returns the groups that the next flush writes.
    pub(super) fn dirty_len(&self) -> usize {
        self.dirty.len() + self.freed.len()
    }

    /// Returns the inodes of a group that are in use.
    pub(super) fn used_inodes(&self, superblock: &Superblock, group: u32) -> Vec<u32> {
        let first = group * superblock.inodes_per_group + 1;
        let runs = self.groups[group as usize].inodes.set_runs();
        runs.flatten().map(|index| first + index).collect()
    }

    /// Allocates a run of at most `len_max` blocks below the new end.
    ///
    /// # Errors
    /// ENOSPC.
    pub(super) fn allocate(&mut self, superblock: &Superblock, len_max: u64) -> Result<Range<u64>> {
        let mut best = 0..0;
        let mut at = self.block_cursor;
        for examined in 0..RUNS_EXAMINED_MAX {
            let Some(run) = self.next_free(superblock, at, len_max) else {
                break;
            };
            if examined == 0 {
                self.block_cursor = run.start;
            }
            at = run.end;
            if run.end - run.start > best.end - best.start {
                best = run;
            }
            if best.end - best.start >= len_max {
                break;
            }
        }
        if best.is_empty() {
            return Err(Error::new(
                Errno::NOSPC,
                "no free blocks below the new size",
            ));
        }
        let (group, bit) = superblock.group_of(best.start);
        let len = (best.end - best.start) as u32;
        self.groups[group as usize].blocks.set(bit..bit + len);
        self.dirty.insert(group);
        self.free_blocks -= u64::from(len);
        Ok(best)
    }

    /// Returns the first free run from block `at` on, within one group and at most `len_max` long.
    fn next_free(&self, superblock: &Superblock, at: u64, len_max: u64) -> Option<Range<u64>> {
        if at >= self.block_end {
            return None;
        }
        let (mut group, mut bit) = superblock.group_of(at);
        let max = u32::try_from(len_max).unwrap_or(u32::MAX);
        while let Some(map) = self.groups.get(group as usize) {
            let start = superblock.group_start(group);
            if start >= self.block_end {
                return None;
            }
            if let Some(run) = map.blocks.next_clear_run(bit, max) {
                let run = start + u64::from(run.start)..start + u64::from(run.end);
                let end = run.end.min(self.block_end);
                return (run.start < end).then_some(run.start..end);
            }
            (group, bit) = (group + 1, 0);
        }
        None
    }

    /// Frees blocks with the next flush.
    pub(super) fn free(&mut self, run: Range<u64>) {
        self.freed.push(run);
    }

    /// Allocates the lowest free inode below the new end.
    ///
    /// # Errors
    /// ENOSPC.
    pub(super) fn allocate_inode(
        &mut self,
        superblock: &Superblock,
        is_directory: bool,
    ) -> Result<u32> {
        while self.inode_cursor <= self.inode_last {
            let (number, index) = inode_place(superblock, self.inode_cursor);
            let group = &mut self.groups[number as usize];
            let Some(free) = group.inodes.next_clear(index, superblock.inodes_per_group) else {
                self.inode_cursor = (number + 1) * superblock.inodes_per_group + 1;
                continue;
            };
            group.inodes.set(free..free + 1);
            group.directories += u32::from(is_directory);
            let unused = superblock.inodes_per_group - free - 1;
            group.unused_inodes = group.unused_inodes.min(unused);
            self.dirty.insert(number);
            self.free_inodes -= 1;
            self.inode_cursor = number * superblock.inodes_per_group + free + 1;
            return Ok(self.inode_cursor);
        }
        Err(Error::new(
            Errno::NOSPC,
            "no free inodes below the new size",
        ))
    }

    /// Frees an inode.
    pub(super) fn free_inode(&mut self, superblock: &Superblock, number: u32, is_directory: bool) {
        let (number, index) = inode_place(superblock, number);
        let group = &mut self.groups[number as usize];
        group.inodes.clear(index..index + 1);
        group.directories = group.directories.saturating_sub(u32::from(is_directory));
        self.dirty.insert(number);
        self.free_inodes += 1;
    }

    /// Adds all changed bitmaps and descriptors to `changes`.
    pub(super) fn flush(&mut self, changes: &mut BlockChanges<'_>) -> Result<()> {
        let superblock = changes.old();
        // First: this makes groups dirty.
        for run in std::mem::take(&mut self.freed) {
            self.mark_free(superblock, run)?;
        }
        for group in std::mem::take(&mut self.dirty) {
            self.put(changes, superblock, group)
                .map_err(|error| error.at(format!("group {group}")))?;
        }
        Ok(())
    }

    fn mark_free(&mut self, superblock: &Superblock, run: Range<u64>) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            let (group, bit) = superblock.group_of(at);
            let end = superblock.group_start(group + 1).min(run.end);
            let bits = bit..bit + (end - at) as u32;
            let blocks = &mut self.groups[group as usize].blocks;
            if !blocks.all_set(bits.clone()) {
                return Err(Error::corrupt(format!(
                    "blocks {at}..{end} are in use and free; run e2fsck"
                )));
            }
            blocks.clear(bits);
            self.free_blocks += end - at;
            self.block_cursor = self.block_cursor.min(at);
            self.dirty.insert(group);
            at = end;
        }
        Ok(())
    }

    fn put(
        &self,
        changes: &mut BlockChanges<'_>,
        superblock: &Superblock,
        group: u32,
    ) -> Result<()> {
        let map = &self.groups[group as usize];
        put_group(changes, superblock, group, &map.blocks, Some(map))
    }

    /// Writes the last group of `new`, which ends earlier than before. `changes` has nothing of it.
    pub(super) fn put_last(&self, changes: &mut BlockChanges<'_>, new: &Superblock) -> Result<()> {
        let group = new.group_count - 1;
        let map = &self.groups[group as usize];
        let mut bytes = vec![0; new.block_size];
        map.blocks.write_to(&mut bytes);
        let blocks = Bitmap::from_bytes(&bytes, new.group_len(group));
        put_group(changes, new, group, &blocks, None)
    }
}

/// Writes bitmap and descriptor of a group of `new`: blocks always, inodes if given.
fn put_group(
    changes: &mut BlockChanges<'_>,
    new: &Superblock,
    group: u32,
    blocks: &Bitmap,
    inodes: Option<&GroupMap>,
) -> Result<()> {
    let superblock = changes.old();
    let mut raw = descriptor(changes, group)?;
    let number = |hi: u32, lo: u32| u64::from(hi) << 32 | u64::from(lo);
    let place = number(raw.block_bitmap_hi.get(), raw.block_bitmap_lo.get());
    let bytes = changes.new_block(place);
    blocks.write_to(bytes);
    (raw.block_bitmap_csum_lo, raw.block_bitmap_csum_hi) = quarters(bitmap_checksum(bytes, new));
    (raw.free_blocks_count_lo, raw.free_blocks_count_hi) = quarters(blocks.count_clear());
    let mut flags = raw.flags.get() & !GROUP_BLOCK_UNINIT;
    if let Some(map) = inodes {
        let place = number(raw.inode_bitmap_hi.get(), raw.inode_bitmap_lo.get());
        let bytes = changes.new_block(place);
        map.inodes.write_to(bytes);
        let covered = (superblock.inodes_per_group / 8) as usize;
        let sum = superblock
            .checksum_seed
            .map_or(0, |seed| crc32c(seed, &bytes[..covered]));
        (raw.inode_bitmap_csum_lo, raw.inode_bitmap_csum_hi) = quarters(sum);
        (raw.free_inodes_count_lo, raw.free_inodes_count_hi) = quarters(map.inodes.count_clear());
        (raw.used_dirs_count_lo, raw.used_dirs_count_hi) = quarters(map.directories);
        if has_flags(superblock) {
            (raw.itable_unused_lo, raw.itable_unused_hi) = quarters(map.unused_inodes);
        }
        flags &= !GROUP_INODE_UNINIT;
    }
    if has_flags(superblock) {
        raw.flags = flags.into();
    }
    let (block, offset) = superblock.descriptor_place(group);
    let slot = &mut changes.block(block.0)?[offset..offset + superblock.descriptor_len];
    put_descriptor(slot, raw, group, superblock);
    Ok(())
}
