//! Block groups in memory: descriptors, bitmaps, and the zones of the file system's own blocks.

use super::bitmap::Bitmap;
use crate::base::{Error, PhysicalBlock, Result};
use crate::fs::ext4::journal::metadata::Metadata;
use crate::fs::ext4::layout::checksum::{crc32c, group_checksum_crc16, group_checksum_crc32c};
use crate::fs::ext4::layout::disk::{GROUP_BLOCK_UNINIT, GROUP_INODE_UNINIT, RawGroupDescriptor};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// One block group. Bitmaps are read when first needed.
pub(crate) struct Group {
    raw: RawGroupDescriptor,
    /// Blocks (clusters with bigalloc) in use.
    pub(crate) blocks: Option<Bitmap>,
    /// Inodes in use.
    pub(crate) inodes: Option<Bitmap>,
    /// Blocks that the running transaction freed. They are free on disk with it, and can be used
    /// only after it is durable.
    freed: Option<Bitmap>,
    /// Blocks that the transaction being committed freed.
    freeing: Option<Bitmap>,
    /// Free blocks that are not allocated while they are discarded.
    aside: Vec<Range<u32>>,
    /// An upper bound of the longest run of free blocks.
    pub(crate) longest_free_run: u32,
    is_dirty: bool,
    blocks_dirty: bool,
    inodes_dirty: bool,
}

/// Defines the accessors of a number in two halves. The upper half is zero in short descriptors.
macro_rules! joined {
    ($name:ident, $set:ident, $low:ident, $high:ident, $whole:ty, $half:ty, $bits:literal) => {
        pub(crate) fn $name(&self) -> $whole {
            <$whole>::from(self.raw.$high.get()) << $bits | <$whole>::from(self.raw.$low.get())
        }

        #[allow(dead_code)] // Only counts are set: bitmaps and tables never move.
        fn $set(&mut self, value: $whole) {
            self.raw.$low = (value as $half).into();
            self.raw.$high = ((value >> $bits) as $half).into();
        }
    };
}

impl Group {
    joined!(
        block_bitmap,
        set_block_bitmap,
        block_bitmap_lo,
        block_bitmap_hi,
        u64,
        u32,
        32
    );
    joined!(
        inode_bitmap,
        set_inode_bitmap,
        inode_bitmap_lo,
        inode_bitmap_hi,
        u64,
        u32,
        32
    );
    joined!(
        inode_table,
        set_inode_table,
        inode_table_lo,
        inode_table_hi,
        u64,
        u32,
        32
    );
    joined!(
        free_blocks,
        set_free_blocks,
        free_blocks_count_lo,
        free_blocks_count_hi,
        u32,
        u16,
        16
    );
    joined!(
        free_inodes,
        set_free_inodes,
        free_inodes_count_lo,
        free_inodes_count_hi,
        u32,
        u16,
        16
    );
    joined!(
        used_dirs,
        set_used_dirs,
        used_dirs_count_lo,
        used_dirs_count_hi,
        u32,
        u16,
        16
    );
    joined!(
        itable_unused,
        set_itable_unused,
        itable_unused_lo,
        itable_unused_hi,
        u32,
        u16,
        16
    );
    joined!(
        blocks_csum,
        set_blocks_csum,
        block_bitmap_csum_lo,
        block_bitmap_csum_hi,
        u32,
        u16,
        16
    );
    joined!(
        inodes_csum,
        set_inodes_csum,
        inode_bitmap_csum_lo,
        inode_bitmap_csum_hi,
        u32,
        u16,
        16
    );

    /// Whether `flag` of `bg_flags` is set. Flags are valid only if descriptors have checksums.
    pub(crate) fn has_flag(&self, superblock: &Superblock, flag: u16) -> bool {
        let ro_compat = superblock.features.ro_compat;
        ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG)
            && self.raw.flags.get() & flag != 0
    }

    fn clear_flag(&mut self, flag: u16) {
        self.raw.flags.set(self.raw.flags.get() & !flag);
    }

    /// Counts blocks that became free (positive) or used (negative).
    pub(crate) fn add_free_blocks(&mut self, change: i64) {
        self.set_free_blocks((i64::from(self.free_blocks()) + change).max(0) as u32);
        self.clear_flag(GROUP_BLOCK_UNINIT);
        (self.is_dirty, self.blocks_dirty) = (true, true);
    }

    /// Counts inode `index` of the group, which became used or free.
    pub(crate) fn note_inode(
        &mut self,
        superblock: &Superblock,
        index: u32,
        is_used: bool,
        is_directory: bool,
    ) {
        let change = |count: u32, up: bool| {
            if up {
                count + 1
            } else {
                count.saturating_sub(1)
            }
        };
        self.set_free_inodes(change(self.free_inodes(), !is_used));
        if is_directory {
            self.set_used_dirs(change(self.used_dirs(), is_used));
        }
        self.clear_flag(GROUP_INODE_UNINIT);
        // e2fsck skips the end of the table that was never used: no inode in use may be there.
        if is_used
            && superblock
                .features
                .ro_compat
                .intersects(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG)
        {
            self.set_itable_unused(
                self.itable_unused()
                    .min(superblock.inodes_per_group - index - 1),
            );
        }
        (self.is_dirty, self.inodes_dirty) = (true, true);
    }

    /// Frees the blocks in `range`, whose bitmap is loaded, once the transaction is durable.
    /// Returns false if some are free already.
    pub(crate) fn free_later(&mut self, range: Range<u32>) -> bool {
        let Some(blocks) = &self.blocks else {
            return false;
        };
        let freed = self.freed.get_or_insert_with(|| Bitmap::new(blocks.len()));
        // A second free would give the blocks to two files.
        if !blocks.all_set(range.clone()) || freed.next_set(range.start, range.end).is_some() {
            return false;
        }
        freed.set(range);
        true
    }

    /// Sets the freed blocks aside while their transaction is committed, and returns them.
    pub(crate) fn close_freed(&mut self) -> Vec<Range<u32>> {
        // Apart from what the next transaction frees meanwhile: only these become usable with it.
        self.freeing = self.freed.take();
        self.freeing
            .as_ref()
            .map_or(Vec::new(), |freeing| freeing.set_runs().collect())
    }

    /// Makes the blocks usable that the committed transaction freed; returns how many they are.
    pub(crate) fn finish_freed(&mut self) -> u64 {
        let (Some(freeing), Some(blocks)) = (self.freeing.take(), &mut self.blocks) else {
            return 0;
        };
        let mut count = 0;
        for run in freeing.set_runs() {
            count += run.len() as u64;
            blocks.clear(run);
        }
        self.longest_free_run = u32::MAX;
        count
    }

    /// Keeps the free blocks in `range` from being allocated. They stay free on disk, and in the
    /// count of free blocks.
    pub(crate) fn set_aside(&mut self, range: Range<u32>) {
        if let Some(blocks) = &mut self.blocks {
            blocks.set(range.clone());
            self.aside.push(range);
        }
    }

    /// Makes the blocks in `range` usable again, which [`Group::set_aside`] set aside.
    pub(crate) fn return_aside(&mut self, range: &Range<u32>) {
        self.aside.retain(|other| other != range);
        if let Some(blocks) = &mut self.blocks {
            blocks.clear(range.clone());
        }
        self.longest_free_run = u32::MAX;
    }

    /// Marks the bitmap to be written with the next transaction, although it did not change.
    pub(crate) fn touch_blocks(&mut self) {
        (self.is_dirty, self.blocks_dirty) = (true, true);
    }

    /// Returns the bitmap of blocks, which the first call reads from disk.
    pub(crate) fn load_blocks(
        &mut self,
        number: u32,
        superblock: &Superblock,
        metadata: &Metadata,
    ) -> Result<&mut Bitmap> {
        let bitmap = match self.blocks.take() {
            Some(bitmap) => bitmap,
            None => self
                .read_blocks(number, superblock, metadata)
                .map_err(|e| in_group(e, number))?,
        };
        Ok(self.blocks.insert(bitmap))
    }

    fn read_blocks(
        &self,
        number: u32,
        superblock: &Superblock,
        metadata: &Metadata,
    ) -> Result<Bitmap> {
        let len = superblock
            .group_len(number)
            .div_ceil(superblock.cluster_blocks);
        // The block of an uninitialized bitmap may have any bytes.
        let bitmap = if self.has_flag(superblock, GROUP_BLOCK_UNINIT) {
            let mut bitmap = Bitmap::new(len);
            for zone in self.own_zones(number, superblock) {
                mark_zone(&mut bitmap, zone, number, superblock);
            }
            bitmap
        } else {
            let block = metadata.block(PhysicalBlock(self.block_bitmap()))?;
            let bytes = block.read();
            self.check_csum(
                &bytes[..(superblock.blocks_per_group / superblock.cluster_blocks / 8) as usize],
                self.blocks_csum(),
                superblock,
                "block bitmap",
            )?;
            Bitmap::from_bytes(&bytes, len)
        };
        // A file would get them otherwise (invariant 1 of `Space`).
        for zone in self.own_zones(number, superblock) {
            if let Some(range) = zone_in_group(&zone, number, superblock)
                && !bitmap.all_set(range)
            {
                return Err(Error::corrupt(
                    "block bitmap calls the file system's own blocks free",
                ));
            }
        }
        // A wrong count would break the promise that reserved space can be allocated.
        let free = bitmap.count_clear();
        if free == self.free_blocks() {
            Ok(bitmap)
        } else {
            Err(Error::corrupt(format!(
                "block bitmap has {free} free, but the descriptor counts {}: run e2fsck",
                self.free_blocks()
            )))
        }
    }

    /// Returns the bitmap of inodes, which the first call reads from disk.
    pub(crate) fn load_inodes(
        &mut self,
        number: u32,
        superblock: &Superblock,
        metadata: &Metadata,
    ) -> Result<&mut Bitmap> {
        let bitmap = match self.inodes.take() {
            Some(bitmap) => bitmap,
            None => self
                .read_inodes(superblock, metadata)
                .map_err(|e| in_group(e, number))?,
        };
        Ok(self.inodes.insert(bitmap))
    }

    fn read_inodes(&self, superblock: &Superblock, metadata: &Metadata) -> Result<Bitmap> {
        if self.has_flag(superblock, GROUP_INODE_UNINIT) {
            return Ok(Bitmap::new(superblock.inodes_per_group));
        }
        let block = metadata.block(PhysicalBlock(self.inode_bitmap()))?;
        let bytes = block.read();
        let used = &bytes[..(superblock.inodes_per_group / 8) as usize];
        self.check_csum(used, self.inodes_csum(), superblock, "inode bitmap")?;
        let bitmap = Bitmap::from_bytes(&bytes, superblock.inodes_per_group);
        let free = bitmap.count_clear();
        if free == self.free_inodes() {
            Ok(bitmap)
        } else {
            Err(Error::corrupt(format!(
                "inode bitmap has {free} free, but the descriptor counts {}: run e2fsck",
                self.free_inodes()
            )))
        }
    }

    fn check_csum(
        &self,
        bytes: &[u8],
        stored: u32,
        superblock: &Superblock,
        what: &str,
    ) -> Result<()> {
        let Some(seed) = superblock.checksum_seed else {
            return Ok(());
        };
        // Short descriptors have only the low half.
        let mask = if superblock.descriptor_len >= size_of::<RawGroupDescriptor>() {
            u32::MAX
        } else {
            0xFFFF
        };
        if crc32c(seed, bytes) & mask == stored & mask {
            Ok(())
        } else {
            Err(Error::corrupt(format!("{what}: bad checksum")))
        }
    }

    /// Returns the blocks of the group's bitmaps, inode table, and superblock with descriptors.
    fn own_zones(&self, number: u32, superblock: &Superblock) -> [Range<u64>; 4] {
        let (blocks, inodes, table) =
            (self.block_bitmap(), self.inode_bitmap(), self.inode_table());
        [
            superblock.head_of_group(number),
            blocks..blocks + 1,
            inodes..inodes + 1,
            table..table + superblock.inode_table_blocks(),
        ]
    }

    fn check_locations(&self, number: u32, superblock: &Superblock) -> Result<()> {
        let is_flex = superblock.features.incompat.contains(Incompat::FLEX_BG);
        let start = superblock.group_start(number);
        let (low, high) = if is_flex {
            (superblock.first_data_block + 1, superblock.block_count)
        } else {
            (start, start + u64::from(superblock.group_len(number)))
        };
        let table_end = self
            .inode_table()
            .checked_add(superblock.inode_table_blocks());
        let what = if !(low..high).contains(&self.block_bitmap()) {
            format!("block bitmap at block {}", self.block_bitmap())
        } else if !(low..high).contains(&self.inode_bitmap()) {
            format!("inode bitmap at block {}", self.inode_bitmap())
        } else if self.inode_table() < low || table_end.is_none_or(|end| end > high) {
            format!("inode table at block {}", self.inode_table())
        } else if self.free_inodes() > superblock.inodes_per_group
            || self.itable_unused() > superblock.inodes_per_group
            || self.free_blocks() > superblock.group_len(number)
        {
            "more free than there is".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::corrupt(what))
    }

    /// Writes changes into the metadata blocks, with new checksums. The blocks in `hidden` are in
    /// use, but shown as free on disk.
    pub(crate) fn flush(
        &mut self,
        number: u32,
        superblock: &Superblock,
        metadata: &Metadata,
        hidden: &[Range<u64>],
    ) -> Result<()> {
        if !self.is_dirty {
            return Ok(());
        }
        let mut hidden_count = 0;
        if let (true, Some(bitmap)) = (self.blocks_dirty, &self.blocks) {
            let mut shown = std::borrow::Cow::Borrowed(bitmap);
            // Free on disk with this transaction, but set in memory until it is durable.
            let freed = self.freed.iter().flat_map(Bitmap::set_runs);
            for run in freed.chain(self.aside.iter().cloned()) {
                shown.to_mut().clear(run);
            }
            for run in hidden
                .iter()
                .filter_map(|range| zone_in_group(range, number, superblock))
            {
                hidden_count += run.len() as u32;
                shown.to_mut().clear(run);
            }
            let covered = (superblock.blocks_per_group / superblock.cluster_blocks / 8) as usize;
            let csum = flush_bitmap(&shown, self.block_bitmap(), covered, superblock, metadata)?;
            self.set_blocks_csum(csum);
        }
        if let (true, Some(bitmap)) = (self.inodes_dirty, &self.inodes) {
            let covered = (superblock.inodes_per_group / 8) as usize;
            let csum = flush_bitmap(bitmap, self.inode_bitmap(), covered, superblock, metadata)?;
            self.set_inodes_csum(csum);
        }
        let (block, start) = superblock.descriptor_place(number);
        let block = metadata.block(block)?;
        let mut bytes = block.write();
        let slot = &mut bytes[start..start + superblock.descriptor_len];
        // On disk hidden blocks count as free, in memory as used.
        let free_blocks = self.free_blocks();
        self.set_free_blocks(free_blocks + hidden_count);
        let known = slot.len().min(size_of::<RawGroupDescriptor>());
        slot[..known].copy_from_slice(&self.raw.as_bytes()[..known]);
        // Of the bytes just stored, including those past the known fields; then stored again.
        self.raw.checksum = descriptor_checksum(number, slot, superblock).into();
        slot[..known].copy_from_slice(&self.raw.as_bytes()[..known]);
        self.set_free_blocks(free_blocks);
        (self.is_dirty, self.blocks_dirty, self.inodes_dirty) = (false, false, false);
        Ok(())
    }
}

fn in_group(error: Error, number: u32) -> Error {
    error.at(format!("group {number}"))
}

fn flush_bitmap(
    bitmap: &Bitmap,
    place: u64,
    covered: usize,
    superblock: &Superblock,
    metadata: &Metadata,
) -> Result<u32> {
    let block = metadata.new_block(PhysicalBlock(place))?;
    let mut bytes = block.write();
    bitmap.write_to(&mut bytes);
    Ok(superblock
        .checksum_seed
        .map_or(0, |seed| crc32c(seed, &bytes[..covered])))
}

/// Returns the checksum of a descriptor with the bytes on disk; 0 if descriptors have none.
pub(crate) fn descriptor_checksum(number: u32, bytes: &[u8], superblock: &Superblock) -> u16 {
    match superblock.checksum_seed {
        Some(seed) => group_checksum_crc32c(seed, number, bytes),
        None if superblock.features.ro_compat.contains(RoCompat::UNINIT_BG) => {
            group_checksum_crc16(&superblock.raw.uuid, number, bytes)
        }
        None => 0,
    }
}

/// Returns the part of `zone` in group `number`, as bits of its bitmap.
fn zone_in_group(zone: &Range<u64>, number: u32, superblock: &Superblock) -> Option<Range<u32>> {
    let start = superblock.group_start(number);
    let end = start + u64::from(superblock.group_len(number));
    let (from, to) = (zone.start.max(start), zone.end.min(end));
    let ratio = u64::from(superblock.cluster_blocks);
    (from < to).then(|| ((from - start) / ratio) as u32..(to - start).div_ceil(ratio) as u32)
}

fn mark_zone(bitmap: &mut Bitmap, zone: Range<u64>, number: u32, superblock: &Superblock) {
    if let Some(range) = zone_in_group(&zone, number, superblock) {
        bitmap.set(range);
    }
}

/// Reads and checks all group descriptors.
///
/// # Errors
/// EUCLEAN for a damaged descriptor.
pub(crate) fn load_groups(superblock: &Superblock, metadata: &Metadata) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let per_block = superblock.descriptors_per_block();
    for first in (0..superblock.group_count).step_by(per_block as usize) {
        let (place, _) = superblock.descriptor_place(first);
        let block = metadata
            .block(place)
            .map_err(|e| e.at("group descriptors"))?;
        let bytes = block.read();
        let last = superblock.group_count.min(first.saturating_add(per_block));
        for (number, slot) in (first..last).zip(bytes.chunks_exact(superblock.descriptor_len)) {
            groups.push(load_group(number, slot, superblock).map_err(|e| in_group(e, number))?);
        }
    }
    Ok(groups)
}

fn load_group(number: u32, slot: &[u8], superblock: &Superblock) -> Result<Group> {
    let mut padded = [0; size_of::<RawGroupDescriptor>()];
    let known = slot.len().min(padded.len());
    padded[..known].copy_from_slice(&slot[..known]);
    let raw = RawGroupDescriptor::read_from_bytes(&padded)
        .map_err(|_| Error::corrupt("descriptor cut short"))?;
    let has_checksum = superblock
        .features
        .ro_compat
        .intersects(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG);
    if has_checksum && raw.checksum.get() != descriptor_checksum(number, slot, superblock) {
        return Err(Error::corrupt("descriptor: bad checksum"));
    }
    let group = Group {
        raw,
        blocks: None,
        inodes: None,
        freed: None,
        freeing: None,
        aside: Vec::new(),
        longest_free_run: u32::MAX,
        is_dirty: false,
        blocks_dirty: false,
        inodes_dirty: false,
    };
    group.check_locations(number, superblock)?;
    Ok(group)
}

/// The zones of the file system's own blocks, which no file may claim: sorted, merged.
pub(crate) struct SystemZones(Vec<Range<u64>>);

impl SystemZones {
    /// Returns the zones of all groups.
    pub(crate) fn new(superblock: &Superblock, groups: &[Group]) -> Self {
        let zones: Vec<Range<u64>> = groups
            .iter()
            .zip(0..)
            .flat_map(|(group, number)| group.own_zones(number, superblock))
            .filter(|zone| !zone.is_empty())
            .collect();
        Self::merged(zones)
    }

    fn merged(mut zones: Vec<Range<u64>>) -> Self {
        zones.sort_unstable_by_key(|zone| zone.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for zone in zones {
            match merged.last_mut() {
                Some(last) if last.end >= zone.start => last.end = last.end.max(zone.end),
                _ => merged.push(zone),
            }
        }
        Self(merged)
    }

    /// Adds zones that no descriptor names.
    pub(crate) fn extend(&mut self, more: impl Iterator<Item = Range<u64>>) {
        let mut zones = std::mem::take(&mut self.0);
        zones.extend(more);
        *self = Self::merged(zones);
    }

    /// Whether any block in `range` is the file system's own.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let after = self.0.partition_point(|zone| zone.end <= range.start);
        self.0.get(after).is_some_and(|zone| zone.start < range.end)
    }

    /// How many blocks the zones take in all.
    pub(crate) fn block_count(&self) -> u64 {
        self.0.iter().map(|zone| zone.end - zone.start).sum()
    }
}
