//! Free space: allocates blocks and inodes, and reserves blocks for delayed allocation.
//!
//! ```text
//!   write            reserve   ->  free - reserved is left for other writers: ENOSPC is reported here
//!   writeback        allocate, release the reservation
//!   unlink           free      ->  pending until the transaction that freed them is durable
//!
//!   mod.rs: all groups, reservations, placement      claim.rs: marks of the fast-commit replay
//!      |                                             aside.rs: blocks that are being discarded
//!   group.rs: one group   bitmap.rs: its bits        reserved.rs: blocks reserved for root
//! ```
//!
//! Placement: blocks of a file continue where the file ended. Otherwise each purpose has a cursor
//! that moves through the device, so that blocks written together are adjacent: directories and
//! trees near the front, small files after them, large files in a region of their own with long
//! free runs.
//!
//! Neighbors: files and inodes above, through `Volume::space`, which is the only lock. Metadata
//! blocks below hold bitmaps and descriptors.
//!
//! Invariants:
//! 1. A file never gets a block of the file system itself (`SystemZones`).
//! 2. `reserved + pending <= free`, except after damage: a reservation can always be allocated.
//! 3. Bitmaps and descriptors reach the metadata blocks only through [`Space::flush`].

mod aside;
pub(super) mod bitmap;
mod claim;
pub(super) mod group;
pub(super) mod reserved;

use crate::base::{Errno, Error, PhysicalBlock, Result};
use crate::fs::ext4::journal::metadata::Metadata;
use crate::fs::ext4::layout::disk::GROUP_INODE_UNINIT;
use crate::fs::ext4::layout::superblock::Superblock;
use group::{Group, SystemZones};
use reserved::ReservedBlocks;
use std::collections::BTreeSet;
use std::ops::Range;

/// The purpose of an allocation. Each has its own region on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Directories, extent tree blocks, xattr blocks.
    Metadata,
    /// Files that are small so far.
    SmallFile,
    /// Files of [`LARGE_FILE_BYTES`] and more.
    LargeFile,
}

/// Where the blocks of an allocation come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockSource {
    /// Space that no delayed block needs, with or without the reserved blocks.
    Free(ReservedBlocks),
    /// The reservation of the caller's delayed blocks, which the caller then releases.
    Reservation,
}

/// The size in bytes from which a file counts as large.
pub(crate) const LARGE_FILE_BYTES: u64 = 1 << 20;

/// The shortest run, in blocks, that is used only because it continues the file.
const CONTINUATION_MIN: u32 = 16;

/// Blocks at the front that are preferred for metadata, before the region of small files.
const METADATA_REGION_BLOCKS: u64 = 2048;

/// All groups with their bitmaps, and the reservations. `Volume::space` is its lock.
pub(crate) struct Space {
    groups: Vec<Group>,
    zones: SystemZones,
    free_blocks: u64,
    free_inodes: u64,
    reserved_blocks: u64,
    /// Reserved for root and the owners that the superblock or the mount names.
    root_reserved_blocks: u64,
    /// Free blocks that cannot be used before the transaction that freed them is durable.
    pending_blocks: u64,
    /// Whether freed blocks wait for their transaction (with a journal).
    defers_frees: bool,
    /// Groups to write with the next flush.
    dirty_groups: BTreeSet<u32>,
    /// The block where the next search of each [`Purpose`] starts.
    cursors: [u64; 3],
}

impl Space {
    /// Returns the free space of a file system with the groups `groups`.
    pub(crate) fn new(superblock: &Superblock, groups: Vec<Group>) -> Self {
        let zones = SystemZones::new(superblock, &groups);
        let free_blocks = groups.iter().map(|g| u64::from(g.free_blocks())).sum();
        let free_inodes = groups.iter().map(|g| u64::from(g.free_inodes())).sum();
        let flex = 1_u64 << superblock.raw.log_groups_per_flex.min(31);
        let large_group = match u64::from(superblock.group_count) {
            count if count > flex => flex as u32,
            count => (count / 2) as u32,
        };
        let small = METADATA_REGION_BLOCKS.min(u64::from(superblock.blocks_per_group) / 16);
        let first = superblock.first_data_block;
        let cursors = [first, first + small, superblock.group_start(large_group)];
        let root_reserved_blocks =
            superblock.reserved_blocks() / u64::from(superblock.cluster_blocks);
        Self {
            groups,
            zones,
            free_blocks,
            free_inodes,
            reserved_blocks: 0,
            root_reserved_blocks,
            pending_blocks: 0,
            defers_frees: false,
            dirty_groups: BTreeSet::new(),
            cursors,
        }
    }

    /// Returns the blocks that can be allocated without a reservation (clusters with bigalloc).
    pub(crate) fn available_blocks(&self) -> u64 {
        self.free_blocks
            .saturating_sub(self.reserved_blocks + self.pending_blocks)
    }

    /// Returns the free blocks of statfs(2): those that are available after a commit (clusters with
    /// bigalloc).
    pub(crate) fn unreserved_blocks(&self) -> u64 {
        self.free_blocks.saturating_sub(self.reserved_blocks)
    }

    /// Protects the blocks of `runs`, each a first block and a length, from being used by files.
    pub(crate) fn protect(&mut self, runs: &[(u64, u32)]) {
        self.zones.extend(
            runs.iter()
                .map(|(first, len)| *first..first + u64::from(*len)),
        );
    }

    /// Returns the available blocks that an operation may use: the last ones are for root. Linux:
    /// `ext4_has_free_clusters`.
    fn usable_blocks(&self, reserved: ReservedBlocks) -> u64 {
        match reserved {
            ReservedBlocks::Usable => self.available_blocks(),
            ReservedBlocks::Kept => self
                .available_blocks()
                .saturating_sub(self.root_reserved_blocks),
        }
    }

    /// Whether any blocks are reserved.
    pub(crate) fn has_reservations(&self) -> bool {
        self.reserved_blocks > 0
    }

    /// Returns the number of free inodes.
    pub(crate) fn free_inodes(&self) -> u64 {
        self.free_inodes
    }

    /// Returns the number of blocks that the file system itself uses.
    pub(crate) fn system_blocks(&self) -> u64 {
        self.zones.block_count()
    }

    /// Checks that no block in `range` is the file system's own.
    ///
    /// # Errors
    /// EUCLEAN.
    pub(crate) fn check_not_system(&self, range: &Range<u64>) -> Result<()> {
        if self.zones.overlaps(range) {
            return Err(Error::corrupt(format!(
                "blocks {}..{} belong to the file system itself",
                range.start, range.end
            )));
        }
        Ok(())
    }

    /// Reserves `count` blocks.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn reserve(&mut self, count: u64, reserved: ReservedBlocks) -> Result<()> {
        if count > self.usable_blocks(reserved) {
            return Err(Errno::NOSPC.into());
        }
        self.reserved_blocks += count;
        Ok(())
    }

    /// Releases `count` reserved blocks, because they were allocated or are not needed.
    pub(crate) fn release(&mut self, count: u64) {
        debug_assert!(count <= self.reserved_blocks, "more released than reserved");
        self.reserved_blocks = self.reserved_blocks.saturating_sub(count);
    }

    /// Allocates up to `len_max` blocks (clusters with bigalloc) in one run, at `goal` if possible,
    /// and returns all their blocks.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn allocate(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        goal: Option<PhysicalBlock>,
        len_max: u32,
        purpose: Purpose,
        source: BlockSource,
    ) -> Result<Range<u64>> {
        let left = if source == BlockSource::Reservation {
            self.free_blocks.saturating_sub(self.pending_blocks)
        } else {
            self.available_blocks()
        };
        let len_max = u64::from(len_max).min(left) as u32;
        if len_max == 0 {
            return Err(Errno::NOSPC.into());
        }
        if let BlockSource::Free(reserved) = source
            && self.usable_blocks(reserved) < u64::from(len_max)
        {
            return Err(Errno::NOSPC.into());
        }
        if let Some(goal) = goal.filter(|g| g.0 < superblock.block_count)
            && let Some(run) = self.take_at(superblock, metadata, goal.0, len_max)?
        {
            return Ok(run);
        }
        // Whole runs first: a file is split only where no group has room for it.
        let mut len_min = len_max.min(superblock.blocks_per_group / 2);
        loop {
            if let Some(run) =
                self.take_from_cursor(superblock, metadata, len_min, len_max, purpose)?
            {
                return Ok(run);
            }
            if len_min == 1 {
                return Err(Error::new(
                    Errno::NOSPC,
                    "free block count and bitmaps disagree: run e2fsck",
                ));
            }
            len_min = len_min.div_ceil(2);
        }
    }

    /// Allocates a run at `goal`, if that is free and long enough.
    fn take_at(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        goal: u64,
        len_max: u32,
    ) -> Result<Option<Range<u64>>> {
        let (number, bit) = superblock.group_of(goal.max(superblock.first_data_block));
        let bit = bit.div_ceil(superblock.cluster_blocks);
        let Some(group) = self
            .groups
            .get_mut(number as usize)
            .filter(|g| g.free_blocks() > 0)
        else {
            return Ok(None);
        };
        let bitmap = group.load_blocks(number, superblock, metadata)?;
        let run = bitmap
            .next_clear_run(bit, len_max)
            .filter(|run| run.start == bit);
        // A short continuation would only add an extent; a new place may take all of the run.
        match run.filter(|run| run.len() as u32 >= len_max.min(CONTINUATION_MIN)) {
            Some(run) => Ok(Some(self.take(superblock, number, run))),
            None => Ok(None),
        }
    }

    /// Allocates the first run of at least `len_min` blocks after the purpose's cursor, which wraps
    /// around once.
    fn take_from_cursor(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        len_min: u32,
        len_max: u32,
        purpose: Purpose,
    ) -> Result<Option<Range<u64>>> {
        let cursor = self.cursors[purpose as usize].min(superblock.block_count - 1);
        let (first, first_bit) = superblock.group_of(cursor);
        // The cursor's group is searched twice: first from the cursor on, last from its start.
        for step in 0..=superblock.group_count {
            let number = (u64::from(first) + u64::from(step))
                .rem_euclid(u64::from(superblock.group_count)) as u32;
            let group = &mut self.groups[number as usize];
            if group.longest_free_run.min(group.free_blocks()) < len_min {
                continue;
            }
            let from = if step == 0 {
                first_bit / superblock.cluster_blocks
            } else {
                0
            };
            let bitmap = group.load_blocks(number, superblock, metadata)?;
            let mut longest = 0;
            let mut at = from;
            let mut found = None;
            while let Some(run) = bitmap.next_clear_run(at, len_max) {
                if run.len() as u32 >= len_min {
                    found = Some(run);
                    break;
                }
                longest = longest.max(run.len() as u32);
                at = run.end;
            }
            if let Some(run) = found {
                let run = self.take(superblock, number, run);
                self.cursors[purpose as usize] = run.end;
                return Ok(Some(run));
            }
            // A search from the middle has not seen all runs.
            if from == 0 {
                group.longest_free_run = longest;
            }
        }
        Ok(None)
    }

    /// Marks a run of group `number` as used.
    fn take(&mut self, superblock: &Superblock, number: u32, run: Range<u32>) -> Range<u64> {
        let group = &mut self.groups[number as usize];
        let len = run.len() as u64;
        let cluster_blocks = u64::from(superblock.cluster_blocks);
        let start = superblock.group_start(number) + u64::from(run.start) * cluster_blocks;
        if let Some(bitmap) = &mut group.blocks {
            bitmap.set(run);
        }
        group.add_free_blocks(-(len as i64));
        self.dirty_groups.insert(number);
        self.free_blocks -= len;
        start..start + len * cluster_blocks
    }

    /// Frees blocks; with bigalloc, all clusters that have any of them.
    ///
    /// # Errors
    /// EUCLEAN for blocks that do not exist, are free already, or are the file system's own.
    pub(crate) fn free(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        range: Range<u64>,
    ) -> Result<()> {
        self.check_not_system(&range)?;
        if range.end > superblock.block_count || range.start < superblock.first_data_block {
            return Err(Error::corrupt(format!(
                "freed blocks {}..{} do not exist",
                range.start, range.end
            )));
        }
        let mut start = range.start;
        while start < range.end {
            let (number, bit) = superblock.group_of(start);
            let len = (range.end - start).min(u64::from(superblock.group_len(number) - bit)) as u32;
            let bits = superblock.cluster_bits(bit..bit + len);
            let count = bits.len() as u64;
            let group = &mut self.groups[number as usize];
            let bitmap = group.load_blocks(number, superblock, metadata)?;
            let is_freed = if self.defers_frees {
                group.free_later(bits)
            } else if bitmap.all_set(bits.clone()) {
                bitmap.clear(bits);
                true
            } else {
                false
            };
            if !is_freed {
                let what = format!(
                    "blocks {start}..{} are freed, but some are free already",
                    start + u64::from(len)
                );
                return Err(Error::corrupt(what).at(format!("group {number}")));
            }
            group.add_free_blocks(count as i64);
            group.longest_free_run = u32::MAX;
            self.dirty_groups.insert(number);
            self.free_blocks += count;
            self.pending_blocks += if self.defers_frees { count } else { 0 };
            start += u64::from(len);
        }
        Ok(())
    }

    /// Allocates a free inode, as near to `parent` as possible.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn allocate_inode(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        parent: u32,
        is_directory: bool,
    ) -> Result<u32> {
        let first = (parent - 1) / superblock.inodes_per_group;
        for step in 0..superblock.group_count {
            let number = (first + step) % superblock.group_count;
            let group = &mut self.groups[number as usize];
            if group.free_inodes() == 0 {
                continue;
            }
            let base = number * superblock.inodes_per_group;
            let from = superblock.first_inode.saturating_sub(base + 1);
            let was_uninit = group.has_flag(superblock, GROUP_INODE_UNINIT);
            let bitmap = group.load_inodes(number, superblock, metadata)?;
            let Some(index) = bitmap.next_clear(from, bitmap.len()) else {
                continue;
            };
            bitmap.set(index..index + 1);
            // Slots that were never used may hold old bytes, which must not be taken for inodes.
            let unused = if was_uninit {
                superblock.inodes_per_group
            } else {
                group.itable_unused()
            };
            let unused_from = superblock.inodes_per_group - unused.min(superblock.inodes_per_group);
            let table = group.inode_table();
            group.note_inode(superblock, index, true, is_directory);
            self.dirty_groups.insert(number);
            self.free_inodes -= 1;
            zero_inodes(superblock, metadata, table, unused_from..index)?;
            return Ok(base + index + 1);
        }
        Err(Error::new(Errno::NOSPC, "no free inodes"))
    }

    /// Frees an inode.
    ///
    /// # Errors
    /// EUCLEAN if it is free already.
    pub(crate) fn free_inode(
        &mut self,
        superblock: &Superblock,
        metadata: &Metadata,
        number: u32,
        is_directory: bool,
    ) -> Result<()> {
        let (group_number, index) = inode_place(superblock, number);
        let group = &mut self.groups[group_number as usize];
        let bitmap = group.load_inodes(group_number, superblock, metadata)?;
        if !bitmap.is_set(index) {
            return Err(Error::corrupt(format!(
                "inode {number} is freed, but is free already"
            )));
        }
        bitmap.clear(index..index + 1);
        group.note_inode(superblock, index, false, is_directory);
        self.dirty_groups.insert(group_number);
        self.free_inodes += 1;
        Ok(())
    }

    /// Returns the first block of the inode table that holds inode `number`.
    pub(crate) fn inode_table(&self, superblock: &Superblock, number: u32) -> u64 {
        self.groups[inode_place(superblock, number).0 as usize].inode_table()
    }

    /// Makes freed blocks wait for their transaction.
    pub(crate) fn defer_frees(&mut self) {
        self.defers_frees = true;
    }

    /// Whether blocks wait for the transaction that freed them.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending_blocks > 0
    }

    /// Returns the most metadata blocks that the next flush can change.
    pub(crate) fn dirty_len(&self) -> usize {
        3 * self.dirty_groups.len()
    }

    /// Makes the next flush write the blocks in `range` as used, which the last one hid.
    pub(crate) fn unhide(&mut self, superblock: &Superblock, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (
            superblock.group_of(range.start).0,
            superblock.group_of(range.end - 1).0,
        );
        for number in first..=last {
            if let Some(group) = self.groups.get_mut(number as usize) {
                group.touch_blocks();
                self.dirty_groups.insert(number);
            }
        }
    }

    /// Writes every changed bitmap and descriptor into the metadata blocks, and the totals into
    /// `superblock`. The blocks in `hidden` are in use, but shown as free on disk.
    pub(crate) fn flush(
        &mut self,
        superblock: &mut Superblock,
        metadata: &Metadata,
        hidden: &[Range<u64>],
    ) -> Result<()> {
        for number in &self.dirty_groups {
            self.groups[*number as usize].flush(*number, superblock, metadata, hidden)?;
        }
        let hidden: u64 = hidden.iter().map(|range| range.end - range.start).sum();
        let blocks = (self.free_blocks + hidden) * u64::from(superblock.cluster_blocks);
        superblock.raw.free_blocks_count_lo = (blocks as u32).into();
        superblock.raw.free_blocks_count_hi = ((blocks >> 32) as u32).into();
        superblock.raw.free_inodes_count = (self.free_inodes as u32).into();
        // Otherwise `close_freed` takes them.
        if !self.defers_frees {
            self.dirty_groups.clear();
        }
        Ok(())
    }

    /// Closes a transaction, after its flush: the blocks it freed wait until it is durable. Returns
    /// them.
    pub(crate) fn close_freed(&mut self, superblock: &Superblock) -> Vec<Range<u64>> {
        let mut freed = Vec::new();
        for number in std::mem::take(&mut self.dirty_groups) {
            let start = superblock.group_start(number);
            let block = |bit: u32| start + u64::from(bit) * u64::from(superblock.cluster_blocks);
            let runs = self.groups[number as usize].close_freed();
            freed.extend(runs.into_iter().map(|run| block(run.start)..block(run.end)));
        }
        freed
    }

    /// Makes the blocks in `freed` usable again: the transaction that freed them is durable.
    pub(crate) fn finish_freed(&mut self, superblock: &Superblock, freed: &[Range<u64>]) {
        let mut groups: Vec<u32> = freed
            .iter()
            .map(|range| superblock.group_of(range.start).0)
            .collect();
        // In order: `close_freed` goes through the groups in order.
        groups.dedup();
        for number in groups {
            let count = self.groups[number as usize].finish_freed();
            self.pending_blocks = self.pending_blocks.saturating_sub(count);
        }
    }
}

/// Returns the group of an inode, and its index in the group.
pub(crate) fn inode_place(superblock: &Superblock, number: u32) -> (u32, u32) {
    (
        (number - 1) / superblock.inodes_per_group,
        (number - 1) % superblock.inodes_per_group,
    )
}

fn zero_inodes(
    superblock: &Superblock,
    metadata: &Metadata,
    table: u64,
    range: Range<u32>,
) -> Result<()> {
    for index in range {
        let offset = index as usize * superblock.inode_size;
        let block = metadata.block(PhysicalBlock(
            table + (offset / superblock.block_size) as u64,
        ))?;
        let start = offset % superblock.block_size;
        block.write()[start..start + superblock.inode_size].fill(0);
    }
    Ok(())
}
