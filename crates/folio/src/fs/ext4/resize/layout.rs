//! Layout of new groups: metadata locations, bitmaps and descriptors; extension of the last old
//! group.

use super::changes::BlockChanges;
use crate::base::{Error, Result};
use crate::block::Device;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{
    GROUP_BLOCK_UNINIT, GROUP_INODE_UNINIT, GROUP_INODE_ZEROED, RawGroupDescriptor, halves,
};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::space::bitmap::Bitmap;
use crate::fs::ext4::space::group::descriptor_checksum;
use std::ops::Range;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The block numbers of one group's metadata.
#[derive(Debug, Clone, Copy)]
struct GroupMetadata {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

/// The groups added by one step.
pub(super) struct NewGroups {
    /// Number of the first group.
    first: u32,
    places: Vec<GroupMetadata>,
    /// Used blocks of the new groups: ordered, disjoint, nonadjacent ranges.
    used: Vec<Range<u64>>,
    /// The checksum of each group's block bitmap, `None` for an implied bitmap.
    block_bitmaps: Vec<Option<u32>>,
    /// The number of free blocks of each group.
    free: Vec<u32>,
}

impl NewGroups {
    /// Places the metadata of the groups from `first` to the last of `new`. The metadata of a flex
    /// group is contiguous if it fits.
    pub(super) fn place(new: &Superblock, first: u32) -> Result<Self> {
        let flex = if new.features.incompat.contains(Incompat::FLEX_BG) {
            1_u32 << new.raw.log_groups_per_flex.min(16)
        } else {
            1
        };
        let mut places = Vec::new();
        let mut from = first;
        while from < new.group_count {
            let to = (from / flex + 1).saturating_mul(flex).min(new.group_count);
            match together(new, from..to) {
                Some(found) => places.extend(found),
                None => {
                    for group in from..to {
                        let apart = together(new, group..group + 1);
                        let no_room =
                            || Error::unsupported("no room for the metadata of a new group");
                        places.extend(apart.ok_or_else(no_room)?);
                    }
                }
            }
            from = to;
        }
        let used = used_blocks(new, first, &places);
        let mut this = Self {
            first,
            places,
            used,
            block_bitmaps: Vec::new(),
            free: Vec::new(),
        };
        this.free = this
            .groups()
            .map(|group| new.group_len(group) - this.used_in(new, group))
            .collect();
        Ok(this)
    }

    fn groups(&self) -> Range<u32> {
        self.first..self.first + self.places.len() as u32
    }

    pub(super) fn free_blocks(&self) -> u64 {
        self.free.iter().map(|free| u64::from(*free)).sum()
    }

    pub(super) fn free_inodes(&self, new: &Superblock) -> u64 {
        self.places.len() as u64 * u64::from(new.inodes_per_group)
    }

    /// Returns the number of metadata blocks.
    pub(super) fn system_blocks(&self) -> u64 {
        self.used.iter().map(|range| range.end - range.start).sum()
    }

    /// Iterates over the used ranges of a group, as bits of its bitmap.
    fn runs_in(&self, new: &Superblock, group: u32) -> impl Iterator<Item = Range<u32>> {
        let start = new.group_start(group);
        let end = start + u64::from(new.group_len(group));
        let first = self.used.partition_point(|range| range.end <= start);
        let inside = self.used[first..]
            .iter()
            .take_while(move |range| range.start < end);
        inside.map(move |range| {
            // Bit numbers in a group fit 32 bits.
            (range.start.max(start) - start) as u32..(range.end.min(end) - start) as u32
        })
    }

    fn used_in(&self, new: &Superblock, group: u32) -> u32 {
        self.runs_in(new, group)
            .map(|run| run.end - run.start)
            .sum()
    }

    /// Returns whether a group's bitmap is implied: all used blocks are the group's own metadata.
    /// The last group's bitmap is always written.
    fn is_implied(&self, new: &Superblock, group: u32) -> bool {
        let start = new.group_start(group);
        let end = start + u64::from(new.group_len(group));
        let own: u64 = own_blocks(new, group, &self.places[(group - self.first) as usize])
            .iter()
            .map(|range| range.end.min(end).saturating_sub(range.start.max(start)))
            .sum();
        has_flags(new) && group + 1 < new.group_count && own == u64::from(self.used_in(new, group))
    }

    /// Writes bitmaps and empty inode tables, all past the old end of the file system.
    pub(super) fn write(&mut self, device: &dyn Device, new: &Superblock) -> Result<()> {
        let size = new.block_size as u64;
        for range in &self.used {
            device.write_zeroes(range.start * size, (range.end - range.start) * size)?;
        }
        let mut block = vec![0; new.block_size];
        for group in self.groups() {
            let place = self.places[(group - self.first) as usize];
            if !has_flags(new) {
                Bitmap::new(new.inodes_per_group).write_to(&mut block);
                device.write_at(&block, place.inode_bitmap * size)?;
            }
            if self.is_implied(new, group) {
                self.block_bitmaps.push(None);
                continue;
            }
            let mut bitmap = Bitmap::new(new.group_len(group));
            self.runs_in(new, group).for_each(|run| bitmap.set(run));
            bitmap.write_to(&mut block);
            device.write_at(&block, place.block_bitmap * size)?;
            self.block_bitmaps.push(Some(bitmap_checksum(&block, new)));
        }
        Ok(())
    }

    /// Adds the group descriptors to `changes`.
    pub(super) fn describe(&self, changes: &mut BlockChanges<'_>, new: &Superblock) -> Result<()> {
        for (index, group) in self.groups().enumerate() {
            let place = self.places[index];
            let mut raw = RawGroupDescriptor::new_zeroed();
            (raw.block_bitmap_lo, raw.block_bitmap_hi) = halves(place.block_bitmap);
            (raw.inode_bitmap_lo, raw.inode_bitmap_hi) = halves(place.inode_bitmap);
            (raw.inode_table_lo, raw.inode_table_hi) = halves(place.inode_table);
            (raw.free_blocks_count_lo, raw.free_blocks_count_hi) = quarters(self.free[index]);
            (raw.free_inodes_count_lo, raw.free_inodes_count_hi) = quarters(new.inodes_per_group);
            if has_flags(new) {
                (raw.itable_unused_lo, raw.itable_unused_hi) = quarters(new.inodes_per_group);
                let implied = if self.block_bitmaps[index].is_none() {
                    GROUP_BLOCK_UNINIT
                } else {
                    0
                };
                raw.flags = (GROUP_INODE_UNINIT | GROUP_INODE_ZEROED | implied).into();
            }
            let sum = self.block_bitmaps[index].unwrap_or(0);
            (raw.block_bitmap_csum_lo, raw.block_bitmap_csum_hi) = quarters(sum);
            let (block, offset) = new.descriptor_place(group);
            let block = match group % new.descriptors_per_block() {
                // The first descriptor of a block: ignore its old contents.
                0 => changes.new_block(block.0),
                _ => changes.block(block.0)?,
            };
            put_descriptor(
                &mut block[offset..offset + new.descriptor_len],
                raw,
                group,
                new,
            );
        }
        Ok(())
    }
}

/// Extends the last old group to its new length. Returns the number of added blocks.
pub(super) fn extend_last_group(changes: &mut BlockChanges<'_>, new: &Superblock) -> Result<u64> {
    let old = changes.old();
    let group = old.group_count - 1;
    let (old_len, new_len) = (old.group_len(group), new.group_len(group));
    if old_len == new_len {
        return Ok(0);
    }
    change_group(changes, new, group, |bitmap| {
        bitmap.clear(old_len..new_len);
        Ok(i64::from(new_len - old_len))
    })
    .map_err(|error| error.at(format!("group {group}")))
}

/// Frees a used block. `new` has the same groups as before.
pub(super) fn free_block(
    changes: &mut BlockChanges<'_>,
    new: &Superblock,
    block: u64,
) -> Result<u64> {
    let (group, bit) = new.group_of(block);
    change_group(changes, new, group, |bitmap| {
        if !bitmap.is_set(bit) {
            return Err(Error::corrupt(format!(
                "block {block} is already free; run e2fsck"
            )));
        }
        bitmap.clear(bit..bit + 1);
        Ok(1)
    })
    .map_err(|error| error.at(format!("group {group}")))
}

/// Changes the block bitmap of a group and updates its descriptor. `change` returns the difference
/// in free blocks.
fn change_group(
    changes: &mut BlockChanges<'_>,
    new: &Superblock,
    group: u32,
    change: impl FnOnce(&mut Bitmap) -> Result<i64>,
) -> Result<u64> {
    let old_len = changes.old().group_len(group);
    let mut raw = descriptor(changes, group)?;
    let free = joined(
        raw.free_blocks_count_lo.get(),
        raw.free_blocks_count_hi.get(),
    );
    let is_implied = has_flags(new) && raw.flags.get() & GROUP_BLOCK_UNINIT != 0;
    let mut bitmap = Bitmap::new(new.group_len(group));
    let place = u64::from(raw.block_bitmap_hi.get()) << 32 | u64::from(raw.block_bitmap_lo.get());
    if !is_implied {
        let bytes = changes.block(place)?;
        let stored = joined(
            raw.block_bitmap_csum_lo.get(),
            raw.block_bitmap_csum_hi.get(),
        );
        if bitmap_checksum(bytes, new) & checksum_mask(new) != stored & checksum_mask(new) {
            return Err(Error::corrupt("block bitmap: bad checksum"));
        }
        if Bitmap::from_bytes(bytes, old_len).count_clear() != free {
            return Err(Error::corrupt(
                "block bitmap and descriptor disagree; run e2fsck",
            ));
        }
        bitmap = Bitmap::from_bytes(bytes, new.group_len(group));
    } else if new.group_len(group) == old_len {
        // A block in an implied bitmap cannot be freed.
        return Err(Error::corrupt("block bitmap was never written"));
    }
    let more = change(&mut bitmap)?;
    if !is_implied {
        let bytes = changes.block(place)?;
        bitmap.write_to(bytes);
        (raw.block_bitmap_csum_lo, raw.block_bitmap_csum_hi) =
            quarters(bitmap_checksum(bytes, new));
    }
    // At most the group's length.
    (raw.free_blocks_count_lo, raw.free_blocks_count_hi) =
        quarters((i64::from(free) + more) as u32);
    let (block, offset) = new.descriptor_place(group);
    put_descriptor(
        &mut changes.block(block.0)?[offset..offset + new.descriptor_len],
        raw,
        group,
        new,
    );
    Ok(more as u64)
}

/// Returns the descriptor of an existing group.
pub(super) fn descriptor(changes: &mut BlockChanges<'_>, group: u32) -> Result<RawGroupDescriptor> {
    let old = changes.old();
    let (block, offset) = old.descriptor_place(group);
    let slot = changes.read(block.0)?[offset..offset + old.descriptor_len].to_vec();
    let mut padded = [0; size_of::<RawGroupDescriptor>()];
    let known = slot.len().min(padded.len());
    padded[..known].copy_from_slice(&slot[..known]);
    let raw = RawGroupDescriptor::read_from_bytes(&padded)
        .map_err(|_| Error::corrupt("descriptor truncated"))?;
    if has_flags(old) && raw.checksum.get() != descriptor_checksum(group, &slot, old) {
        Err(Error::corrupt("descriptor: bad checksum"))
    } else {
        Ok(raw)
    }
}

pub(super) fn put_descriptor(
    slot: &mut [u8],
    raw: RawGroupDescriptor,
    group: u32,
    superblock: &Superblock,
) {
    let mut raw = raw;
    let known = slot.len().min(size_of::<RawGroupDescriptor>());
    slot[..known].copy_from_slice(&raw.as_bytes()[..known]);
    raw.checksum = descriptor_checksum(group, slot, superblock).into();
    slot[..known].copy_from_slice(&raw.as_bytes()[..known]);
}

/// Returns whether descriptors have checksums, and so flags for implied bitmaps.
pub(super) fn has_flags(superblock: &Superblock) -> bool {
    superblock
        .features
        .ro_compat
        .intersects(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG)
}

pub(super) fn bitmap_checksum(bytes: &[u8], superblock: &Superblock) -> u32 {
    let covered = (superblock.blocks_per_group / 8) as usize;
    superblock
        .checksum_seed
        .map_or(0, |seed| crc32c(seed, &bytes[..covered]))
}

/// Returns the valid bits of a bitmap's checksum: all, the low half in short descriptors, or none
/// without checksums.
fn checksum_mask(superblock: &Superblock) -> u32 {
    match superblock.checksum_seed {
        Some(_) if superblock.descriptor_len >= size_of::<RawGroupDescriptor>() => u32::MAX,
        Some(_) => 0xFFFF,
        None => 0,
    }
}

pub(super) fn quarters(value: u32) -> (zerocopy::little_endian::U16, zerocopy::little_endian::U16) {
    ((value as u16).into(), ((value >> 16) as u16).into())
}

fn joined(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// Places the metadata of `groups` from their first block on: block bitmaps, inode bitmaps, inode
/// tables. Returns `None` if it does not fit.
fn together(new: &Superblock, groups: Range<u32>) -> Option<Vec<GroupMetadata>> {
    let last = groups.end - 1;
    let end = new.group_start(last) + u64::from(new.group_len(last));
    let mut room = FreeRange {
        new,
        at: new.group_start(groups.start),
        end,
    };
    let mut take = |len: u64| {
        groups
            .clone()
            .map(|_| room.take(len))
            .collect::<Option<Vec<u64>>>()
    };
    let (block_bitmaps, inode_bitmaps) = (take(1)?, take(1)?);
    let inode_tables = take(new.inode_table_blocks())?;
    let bitmaps = block_bitmaps.into_iter().zip(inode_bitmaps);
    let places = bitmaps
        .zip(inode_tables)
        .map(
            |((block_bitmap, inode_bitmap), inode_table)| GroupMetadata {
                block_bitmap,
                inode_bitmap,
                inode_table,
            },
        );
    Some(places.collect())
}

/// The free rest of a range of blocks. Groups with a backup start with used blocks.
struct FreeRange<'a> {
    new: &'a Superblock,
    at: u64,
    end: u64,
}

impl FreeRange<'_> {
    fn take(&mut self, len: u64) -> Option<u64> {
        loop {
            let (start, end) = (self.at, self.at + len);
            if end > self.end {
                return None;
            }
            let (first, last) = (self.new.group_of(start).0, self.new.group_of(end - 1).0);
            let mut heads = (first..=last).map(|group| self.new.head_of_group(group));
            match heads.find(|head| head.start < end && head.end > start) {
                Some(head) => self.at = head.end,
                None => {
                    self.at = end;
                    return Some(start);
                }
            }
        }
    }
}

fn own_blocks(new: &Superblock, group: u32, place: &GroupMetadata) -> [Range<u64>; 4] {
    [
        new.head_of_group(group),
        place.block_bitmap..place.block_bitmap + 1,
        place.inode_bitmap..place.inode_bitmap + 1,
        place.inode_table..place.inode_table + new.inode_table_blocks(),
    ]
}

fn used_blocks(new: &Superblock, first: u32, places: &[GroupMetadata]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = (first..)
        .zip(places)
        .flat_map(|(group, place)| own_blocks(new, group, place))
        .filter(|range| !range.is_empty())
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => merged.push(range),
        }
    }
    merged
}
