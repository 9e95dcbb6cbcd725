//! The bytes of a new file system; the superblock is written last.

use super::geometry::{DESCRIPTOR_LEN, GROUPS_PER_FLEX, INODE_LEN, has_superblock};
use super::layout::{FileBlocks, INODE_EXTENTS_MAX, Layout};
use super::options::Identity;
use crate::base::{Owner, Result};
use crate::block::Device;
use crate::fs::ext4::journal;
use crate::fs::ext4::layout::checksum::{
    crc32c, group_checksum_crc32c, inode_checksum, inode_seed,
};
use crate::fs::ext4::layout::disk::{
    EXTENT_ENTRY_LEN, EXTENT_MAGIC, FIRST_INODE, GROUP_BLOCK_UNINIT, GROUP_INODE_UNINIT,
    GROUP_INODE_ZEROED, JOURNAL_INODE, RESIZE_INODE, ROOT_INODE, RawExtent, RawExtentHeader,
    RawExtentIndex, RawGroupDescriptor, RawInode, RawSuperblock, STATE_VALID,
    SUPERBLOCK_CHECKSUM_OFFSET, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET, halves, inode_flags,
};
use crate::fs::ext4::layout::features::{Compat, Features};
use std::io::IoSlice;
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

/// lost+found: the first inode that is not reserved.
const LOST_AND_FOUND_INODE: u32 = FIRST_INODE;
/// The orphan file: the next inode.
const ORPHAN_FILE_INODE: u32 = FIRST_INODE + 1;
/// The list of bad blocks: empty, with timestamps.
const BAD_BLOCKS_INODE: u32 = 1;
/// Length of the inode's fields after the first 128 bytes (`s_want_extra_isize`).
pub(super) const EXTRA_LEN: u16 = 32;
/// Direct blocks and the slot of the double indirect block in a block map.
const DIRECT_BLOCKS: u64 = 12;
const DOUBLE_INDIRECT_SLOT: usize = 13;
/// `dt_reserved_ft`: marks the checksum at the end of a directory block.
const DIR_TAIL_FILE_TYPE: u8 = 0xDE;
const DIR_TAIL_LEN: usize = 12;
/// File type of a directory in a directory entry.
const DIR_ENTRY_DIRECTORY: u8 = 2;
/// `ob_magic` at the end of every block of the orphan file.
const ORPHAN_BLOCK_MAGIC: u32 = 0x0B10_CA04;

/// Writes the file system described by `layout` and flushes the device.
pub(super) fn write(device: &dyn Device, layout: &Layout, identity: &Identity) -> Result<()> {
    let mut writer = FormatWriter {
        device,
        layout,
        identity,
        block_size: layout.geometry.block_size as usize,
        seed: crc32c(!0, &identity.uuid),
        written_bytes: 0,
    };
    // First: it erases an old superblock, so that an interrupted format leaves none.
    writer.zero_used_blocks()?;
    writer.write_files()?;
    writer.write_inodes()?;
    let block_bitmap_checksums = writer.write_block_bitmaps()?;
    let inode_bitmap_checksum = writer.write_inode_bitmap()?;
    let descriptors = writer.descriptors(&block_bitmap_checksums, inode_bitmap_checksum);
    writer.write_superblocks(&descriptors)?;
    device.flush()
}

struct FormatWriter<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    identity: &'a Identity,
    block_size: usize,
    /// Seed of all checksums except the superblock's (`s_checksum_seed`).
    seed: u32,
    /// Bytes written so far, for `s_kbytes_written`.
    written_bytes: u64,
}

impl FormatWriter<'_> {
    fn write_block(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        self.written_bytes += bytes.len() as u64;
        self.device.write_at(bytes, block * self.block_size as u64)
    }

    /// Zeroes the boot sector and all used blocks, so that only nonzero blocks must be written.
    fn zero_used_blocks(&self) -> Result<()> {
        self.device.write_zeroes(0, SUPERBLOCK_OFFSET)?;
        let size = self.block_size as u64;
        for run in self.layout.used.runs() {
            self.device
                .write_zeroes(run.start * size, (run.end - run.start) * size)?;
        }
        Ok(())
    }

    fn write_files(&mut self) -> Result<()> {
        let layout = self.layout;
        let root = [
            (ROOT_INODE, &b"."[..]),
            (ROOT_INODE, b".."),
            (LOST_AND_FOUND_INODE, b"lost+found"),
        ];
        self.write_directory(&layout.root, ROOT_INODE, &root)?;
        let entries = [(LOST_AND_FOUND_INODE, &b"."[..]), (ROOT_INODE, b"..")];
        self.write_directory(&layout.lost_and_found, LOST_AND_FOUND_INODE, &entries)?;
        if let Some(block) = layout.resize_block {
            self.write_resize_file(block)?;
        }
        if let Some(place) = &layout.journal {
            self.write_journal(place)?;
        }
        if let Some(place) = &layout.orphan_file {
            self.write_orphan_file(place)?;
        }
        Ok(())
    }

    /// Writes a directory: `entries` in the first block, the other blocks empty.
    fn write_directory(
        &mut self,
        place: &FileBlocks,
        number: u32,
        entries: &[(u32, &[u8])],
    ) -> Result<()> {
        let seed = inode_seed(self.seed, number, 0);
        for (i, block) in place.blocks().enumerate() {
            let bytes = directory_block(self.block_size, if i == 0 { entries } else { &[] }, seed);
            self.write_block(block, &bytes)?;
        }
        Ok(())
    }

    /// Writes the resize inode's blocks. The double indirect block names the blocks reserved after
    /// the group descriptors; each of those lists its backups in other groups. Linux:
    /// `reserve_backup_gdb`.
    fn write_resize_file(&mut self, double_indirect: u64) -> Result<()> {
        let geometry = &self.layout.geometry;
        let reserved = geometry.reserved_descriptor_block_count as usize;
        let offset = 1 + u64::from(geometry.descriptor_block_count);
        let words = self.block_size / 4;
        let copies: Vec<u64> = (1..geometry.group_count)
            .filter(|g| has_superblock(*g))
            .map(|g| geometry.group_start(g))
            .collect();
        let first = geometry.group_start(0) + offset;
        let mut block = vec![0; self.block_size];
        let mut lists = vec![0; reserved * self.block_size];
        for (i, list) in lists.chunks_exact_mut(self.block_size).enumerate() {
            let slot = (geometry.descriptor_block_count as usize + i) % words;
            put_block_number(&mut block, slot, first + i as u64);
            for (slot, copy) in copies.iter().enumerate().take(words) {
                put_block_number(list, slot, copy + offset + i as u64);
            }
        }
        self.write_block(double_indirect, &block)?;
        self.write_block(first, &lists)
    }

    /// Writes an empty journal, whose first transaction will be number 1.
    fn write_journal(&mut self, place: &FileBlocks) -> Result<()> {
        let mut bytes = vec![0; self.block_size];
        let count = self.layout.geometry.journal_block_count;
        journal::write_empty_superblock(&mut bytes, count, self.identity.uuid);
        match place.blocks().next() {
            Some(block) => self.write_block(block, &bytes)?,
            None => return Ok(()),
        }
        self.write_leaf(place, JOURNAL_INODE)
    }

    /// Writes the orphan file: empty blocks, each with a checksum that covers its block number.
    fn write_orphan_file(&mut self, place: &FileBlocks) -> Result<()> {
        let seed = inode_seed(self.seed, ORPHAN_FILE_INODE, 0);
        for extent in &place.extents {
            let mut bytes = vec![0; (extent.end - extent.start) as usize * self.block_size];
            for (block, bytes) in extent.clone().zip(bytes.chunks_exact_mut(self.block_size)) {
                let (entries, tail) = bytes.split_at_mut(self.block_size - 8);
                let crc = crc32c(crc32c(seed, &block.to_le_bytes()), entries);
                tail[..4].copy_from_slice(&ORPHAN_BLOCK_MAGIC.to_le_bytes());
                tail[4..].copy_from_slice(&crc.to_le_bytes());
            }
            self.write_block(extent.start, &bytes)?;
        }
        self.write_leaf(place, ORPHAN_FILE_INODE)
    }

    /// Writes the leaf of a file's extent tree, if the extents do not fit in the inode.
    fn write_leaf(&mut self, place: &FileBlocks, number: u32) -> Result<()> {
        let Some(leaf) = place.leaf else {
            return Ok(());
        };
        let max = (self.block_size - EXTENT_ENTRY_LEN) / EXTENT_ENTRY_LEN;
        let mut bytes = extent_node(place, max as u16);
        let checksum_offset = EXTENT_ENTRY_LEN * (1 + max);
        bytes.resize(self.block_size, 0);
        let crc = crc32c(inode_seed(self.seed, number, 0), &bytes[..checksum_offset]);
        bytes[checksum_offset..checksum_offset + 4].copy_from_slice(&crc.to_le_bytes());
        self.write_block(leaf, &bytes)
    }

    /// Writes all inodes up to the last in use; reserved inodes are empty but have checksums.
    fn write_inodes(&mut self) -> Result<()> {
        let mut table = vec![0; (self.layout.used_inode_count() * INODE_LEN) as usize];
        for (number, bytes) in (1..).zip(table.chunks_exact_mut(INODE_LEN as usize)) {
            let inode = self.inode(number);
            bytes[..size_of::<RawInode>()].copy_from_slice(inode.as_bytes());
            let has_high = inode.extra_isize.get() != 0;
            let crc = inode_checksum(inode_seed(self.seed, number, 0), bytes, has_high);
            let mut inode = inode;
            inode.checksum_lo = (crc as u16).into();
            if has_high {
                inode.checksum_hi = ((crc >> 16) as u16).into();
            }
            bytes[..size_of::<RawInode>()].copy_from_slice(inode.as_bytes());
        }
        self.write_block(self.layout.groups[0].inode_table, &table)
    }

    fn inode(&self, number: u32) -> RawInode {
        let layout = self.layout;
        match number {
            BAD_BLOCKS_INODE => {
                let time = (self.identity.now_secs as u32).into();
                RawInode {
                    atime: time,
                    ctime: time,
                    mtime: time,
                    ..RawInode::new_zeroed()
                }
            }
            ROOT_INODE => {
                let mut inode = self.file_inode(0o040_755, 3, &layout.root);
                let Owner { uid, gid } = self.identity.root_owner;
                (inode.uid_lo, inode.uid_high) = ((uid as u16).into(), ((uid >> 16) as u16).into());
                (inode.gid_lo, inode.gid_high) = ((gid as u16).into(), ((gid >> 16) as u16).into());
                inode
            }
            RESIZE_INODE => layout
                .resize_block
                .map_or(RawInode::new_zeroed(), |b| self.resize_inode(b)),
            JOURNAL_INODE => self.optional_inode(&layout.journal),
            LOST_AND_FOUND_INODE => self.file_inode(0o040_700, 2, &layout.lost_and_found),
            ORPHAN_FILE_INODE => self.optional_inode(&layout.orphan_file),
            _ => RawInode::new_zeroed(),
        }
    }

    fn optional_inode(&self, place: &Option<FileBlocks>) -> RawInode {
        place.as_ref().map_or(RawInode::new_zeroed(), |place| {
            self.file_inode(0o100_600, 1, place)
        })
    }

    /// Returns an inode in use, owned by root, with current timestamps and no mapping.
    fn new_inode(&self, mode: u16, links: u16, size: u64, blocks: u64) -> RawInode {
        let mut inode = RawInode::new_zeroed();
        inode.mode = mode.into();
        inode.links_count = links.into();
        inode.size_lo = (size as u32).into();
        inode.size_high = ((size >> 32) as u32).into();
        let sectors = blocks * (self.block_size as u64 / 512);
        inode.blocks_lo = (sectors as u32).into();
        inode.extra_isize = EXTRA_LEN.into();
        // 32 signed bits of seconds, and two epoch bits that extend them.
        let secs = self.identity.now_secs;
        let epoch = ((secs - i64::from(secs as i32)) >> 32) as u32 & 3;
        let (time, extra) = ((secs as u32).into(), epoch.into());
        (inode.atime, inode.ctime, inode.mtime, inode.crtime) = (time, time, time, time);
        (
            inode.atime_extra,
            inode.ctime_extra,
            inode.mtime_extra,
            inode.crtime_extra,
        ) = (extra, extra, extra, extra);
        inode
    }

    fn file_inode(&self, mode: u16, links: u16, place: &FileBlocks) -> RawInode {
        let size = place.data_block_count() * self.block_size as u64;
        let mut inode = self.new_inode(mode, links, size, place.block_count());
        inode.flags = inode_flags::EXTENTS.into();
        inode.block = match place.leaf {
            None => in_inode(&extent_node(place, INODE_EXTENTS_MAX as u16)),
            Some(leaf) => in_inode(&extent_root_above(leaf)),
        };
        inode
    }

    fn resize_inode(&self, double_indirect: u64) -> RawInode {
        let geometry = &self.layout.geometry;
        let words = self.block_size as u64 / 4;
        let size = (words * words + words + DIRECT_BLOCKS) * self.block_size as u64;
        let copies = (0..geometry.group_count)
            .filter(|g| has_superblock(*g))
            .count() as u64;
        let blocks = 1 + u64::from(geometry.reserved_descriptor_block_count) * copies;
        let mut inode = self.new_inode(0o100_600, 1, size, blocks);
        put_block_number(&mut inode.block, DOUBLE_INDIRECT_SLOT, double_indirect);
        inode
    }

    /// Writes the block bitmaps that are not implied; returns each group's checksum, 0 for an
    /// implied bitmap.
    fn write_block_bitmaps(&mut self) -> Result<Vec<u32>> {
        let layout = self.layout;
        let geometry = &layout.geometry;
        let mut checksums = vec![0; geometry.group_count as usize];
        let mut bitmap = vec![0; self.block_size];
        for group in (0..geometry.group_count).filter(|g| layout.has_block_bitmap(*g)) {
            let start = geometry.group_start(group);
            let end = geometry.group_end(group);
            bitmap.fill(0);
            for run in layout.used.within(start..end) {
                set_bits(
                    &mut bitmap,
                    (run.start - start) as usize..(run.end - start) as usize,
                );
            }
            // Bits beyond the group's end are set.
            set_bits(&mut bitmap, (end - start) as usize..self.block_size * 8);
            checksums[group as usize] = crc32c(self.seed, &bitmap);
            self.write_block(layout.groups[group as usize].block_bitmap, &bitmap)?;
        }
        Ok(checksums)
    }

    /// Writes the first group's inode bitmap, the only one that is not implied; returns its
    /// checksum.
    fn write_inode_bitmap(&mut self) -> Result<u32> {
        let layout = self.layout;
        let inodes = layout.geometry.inodes_per_group as usize;
        let mut bitmap = vec![0; self.block_size];
        set_bits(&mut bitmap, 0..layout.used_inode_count() as usize);
        set_bits(&mut bitmap, inodes..self.block_size * 8);
        self.write_block(layout.groups[0].inode_bitmap, &bitmap)?;
        Ok(crc32c(self.seed, &bitmap[..inodes / 8]))
    }

    /// Returns the table of all group descriptors, padded to whole blocks.
    fn descriptors(&self, block_bitmap_checksums: &[u32], inode_bitmap_checksum: u32) -> Vec<u8> {
        let layout = self.layout;
        let mut table = vec![0; layout.geometry.descriptor_block_count as usize * self.block_size];
        for (group, bytes) in
            (0..layout.geometry.group_count).zip(table.chunks_exact_mut(DESCRIPTOR_LEN as usize))
        {
            let (flags, used_inodes, directories, inode_checksum) = match group {
                0 => (0, layout.used_inode_count(), 2_u16, inode_bitmap_checksum),
                _ => (GROUP_INODE_UNINIT, 0, 0, 0),
            };
            let uninit = if layout.has_block_bitmap(group) {
                0
            } else {
                GROUP_BLOCK_UNINIT
            };
            let place = &layout.groups[group as usize];
            let (block_bitmap, inode_bitmap) = (place.block_bitmap, place.inode_bitmap);
            let block_checksum = block_bitmap_checksums[group as usize];
            let free_blocks = layout.free_in_group(group) as u32;
            let free_inodes = layout.geometry.inodes_per_group - used_inodes;
            let mut raw = RawGroupDescriptor::new_zeroed();
            raw.block_bitmap_lo = (block_bitmap as u32).into();
            raw.block_bitmap_hi = ((block_bitmap >> 32) as u32).into();
            raw.inode_bitmap_lo = (inode_bitmap as u32).into();
            raw.inode_bitmap_hi = ((inode_bitmap >> 32) as u32).into();
            raw.inode_table_lo = (place.inode_table as u32).into();
            raw.inode_table_hi = ((place.inode_table >> 32) as u32).into();
            raw.free_blocks_count_lo = (free_blocks as u16).into();
            raw.free_blocks_count_hi = ((free_blocks >> 16) as u16).into();
            raw.free_inodes_count_lo = (free_inodes as u16).into();
            raw.free_inodes_count_hi = ((free_inodes >> 16) as u16).into();
            raw.used_dirs_count_lo = directories.into();
            raw.flags = (flags | uninit | GROUP_INODE_ZEROED).into();
            raw.block_bitmap_csum_lo = (block_checksum as u16).into();
            raw.block_bitmap_csum_hi = ((block_checksum >> 16) as u16).into();
            raw.inode_bitmap_csum_lo = (inode_checksum as u16).into();
            raw.inode_bitmap_csum_hi = ((inode_checksum >> 16) as u16).into();
            raw.itable_unused_lo = (free_inodes as u16).into();
            raw.itable_unused_hi = ((free_inodes >> 16) as u16).into();
            raw.checksum = group_checksum_crc32c(self.seed, group, raw.as_bytes()).into();
            bytes.copy_from_slice(raw.as_bytes());
        }
        table
    }

    /// Writes all backups of superblock and descriptors, then the primary superblock.
    fn write_superblocks(&mut self, descriptors: &[u8]) -> Result<()> {
        let geometry = &self.layout.geometry;
        let backups: Vec<u32> = (1..geometry.group_count)
            .filter(|g| has_superblock(*g))
            .collect();
        let descriptors_len = descriptors.len() as u64 * (backups.len() as u64 + 1);
        let superblocks_len = size_of::<RawSuperblock>() as u64 * (backups.len() as u64 + 1);
        self.written_bytes += descriptors_len + superblocks_len;
        let mut superblock = self.superblock();
        let padding = vec![0; self.block_size - size_of::<RawSuperblock>()];
        for group in backups {
            superblock.block_group_nr = (group as u16).into();
            // Only the primary's state counts; a backup must not claim to be clean.
            superblock.state = 0.into();
            seal(&mut superblock);
            let parts = [superblock.as_bytes(), &padding, descriptors].map(IoSlice::new);
            self.device
                .write_vectored_at(&parts, geometry.group_start(group) * self.block_size as u64)?;
        }
        let table_at = (geometry.group_start(0) + 1) * self.block_size as u64;
        self.device.write_at(descriptors, table_at)?;
        superblock.block_group_nr = 0.into();
        superblock.state = STATE_VALID.into();
        seal(&mut superblock);
        self.device
            .write_at(superblock.as_bytes(), SUPERBLOCK_OFFSET)
    }

    fn superblock(&self) -> RawSuperblock {
        let (layout, identity) = (self.layout, self.identity);
        let mut raw = RawSuperblock::new_zeroed();
        self.put_counts(&mut raw);
        self.put_times(&mut raw);
        let mut features = Features::DEFAULT;
        features
            .compat
            .set(Compat::RESIZE_INODE, layout.geometry.has_resize_inode);
        raw.magic = SUPERBLOCK_MAGIC.into();
        raw.errors = 1.into(); // continue
        raw.max_mnt_count = u16::MAX.into();
        raw.rev_level = 1.into();
        raw.first_ino = FIRST_INODE.into();
        raw.inode_size = (INODE_LEN as u16).into();
        raw.desc_size = (DESCRIPTOR_LEN as u16).into();
        raw.uuid = identity.uuid;
        raw.volume_name = identity.label;
        raw.hash_seed
            .as_mut_bytes()
            .copy_from_slice(&identity.hash_seed);
        raw.def_hash_version = 1; // half_md4
        raw.flags = 1.into(); // signed characters in the hash, as on x86
        raw.default_mount_opts = 0xC.into(); // user_xattr, acl
        raw.min_extra_isize = EXTRA_LEN.into();
        raw.want_extra_isize = EXTRA_LEN.into();
        raw.log_groups_per_flex = GROUPS_PER_FLEX.trailing_zeros() as u8;
        raw.checksum_type = 1; // crc32c
        raw.checksum_seed = self.seed.into();
        if layout.journal.is_some() {
            raw.journal_inum = JOURNAL_INODE.into();
            raw.orphan_file_inum = ORPHAN_FILE_INODE.into();
            raw.back_up_journal(&self.inode(JOURNAL_INODE));
        } else {
            features.compat -= Compat::HAS_JOURNAL | Compat::ORPHAN_FILE;
        }
        raw.feature_compat = features.compat.bits().into();
        raw.feature_incompat = features.incompat.bits().into();
        raw.feature_ro_compat = features.ro_compat.bits().into();
        raw
    }

    fn put_counts(&self, raw: &mut RawSuperblock) {
        let (layout, geometry) = (self.layout, &self.layout.geometry);
        let (blocks, free) = (geometry.block_count, layout.free_block_count());
        let reserved = geometry.reserved_block_count;
        raw.inodes_count = geometry.inode_count().into();
        raw.free_inodes_count = (geometry.inode_count() - layout.used_inode_count()).into();
        (raw.blocks_count_lo, raw.blocks_count_hi) = halves(blocks);
        (raw.free_blocks_count_lo, raw.free_blocks_count_hi) = halves(free);
        (raw.r_blocks_count_lo, raw.r_blocks_count_hi) = halves(reserved);
        raw.overhead_clusters = u32::try_from(layout.overhead_block_count)
            .unwrap_or(0)
            .into();
        raw.first_data_block = geometry.first_data_block.into();
        raw.log_block_size = (geometry.block_size / 1024).trailing_zeros().into();
        raw.log_cluster_size = raw.log_block_size;
        raw.blocks_per_group = geometry.blocks_per_group.into();
        raw.clusters_per_group = geometry.blocks_per_group.into();
        raw.inodes_per_group = geometry.inodes_per_group.into();
        raw.reserved_gdt_blocks = (geometry.reserved_descriptor_block_count as u16).into();
        raw.kbytes_written = (self.written_bytes / 1024).into();
    }

    fn put_times(&self, raw: &mut RawSuperblock) {
        let now = self.identity.now_secs as u64;
        let (lo, hi) = ((now as u32).into(), (now >> 32) as u8);
        (raw.wtime, raw.lastcheck, raw.mkfs_time) = (lo, lo, lo);
        (raw.wtime_hi, raw.lastcheck_hi, raw.mkfs_time_hi) = (hi, hi, hi);
    }
}

/// Sets the superblock's checksum.
fn seal(superblock: &mut RawSuperblock) {
    superblock.checksum = crc32c(!0, &superblock.as_bytes()[..SUPERBLOCK_CHECKSUM_OFFSET]).into();
}

fn put_block_number(words: &mut [u8], slot: usize, block: u64) {
    // Block maps have 32-bit numbers; a file system with a resize inode has at most 2^32 blocks.
    words[slot * 4..][..4].copy_from_slice(&(block as u32).to_le_bytes());
}

/// Sets a range of bits; bit 0 is the lowest of the first byte.
fn set_bits(bitmap: &mut [u8], bits: Range<usize>) {
    let (mut at, end) = (bits.start, bits.end);
    while at < end {
        if at % 8 == 0 && end - at >= 8 {
            let whole = at / 8..end / 8;
            at = whole.end * 8;
            bitmap[whole].fill(0xFF);
        } else {
            bitmap[at / 8] |= 1 << (at % 8);
            at += 1;
        }
    }
}

/// Returns a directory block: entries, the last extended to the end, then the checksum.
fn directory_block(block_size: usize, entries: &[(u32, &[u8])], seed: u32) -> Vec<u8> {
    let mut bytes = vec![0; block_size];
    let end = block_size - DIR_TAIL_LEN;
    let mut at = 0;
    for (i, (number, name)) in entries.iter().enumerate() {
        let len = if i + 1 == entries.len() {
            end - at
        } else {
            (8 + name.len()).next_multiple_of(4)
        };
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        bytes[at + 4..at + 6].copy_from_slice(&(len as u16).to_le_bytes());
        bytes[at + 6] = name.len() as u8;
        bytes[at + 7] = DIR_ENTRY_DIRECTORY;
        bytes[at + 8..at + 8 + name.len()].copy_from_slice(name);
        at += len;
    }
    if entries.is_empty() {
        bytes[4..6].copy_from_slice(&(end as u16).to_le_bytes());
    }
    let crc = crc32c(seed, &bytes[..end]);
    bytes[end + 4..end + 6].copy_from_slice(&(DIR_TAIL_LEN as u16).to_le_bytes());
    bytes[end + 7] = DIR_TAIL_FILE_TYPE;
    bytes[end + 8..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns a leaf of an extent tree for at most `max` extents, without the unused entries.
fn extent_node(place: &FileBlocks, max: u16) -> Vec<u8> {
    let header = RawExtentHeader {
        magic: EXTENT_MAGIC.into(),
        entries: (place.extents.len() as u16).into(),
        max: max.into(),
        depth: 0.into(),
        generation: 0.into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    let mut logical = 0_u32;
    for extent in &place.extents {
        let len = (extent.end - extent.start) as u16;
        let raw = RawExtent {
            block: logical.into(),
            len: len.into(),
            start_hi: ((extent.start >> 32) as u16).into(),
            start_lo: (extent.start as u32).into(),
        };
        bytes.extend_from_slice(raw.as_bytes());
        logical += u32::from(len);
    }
    bytes
}

/// Returns the root of an extent tree with a single leaf.
fn extent_root_above(leaf: u64) -> Vec<u8> {
    let header = RawExtentHeader {
        magic: EXTENT_MAGIC.into(),
        entries: 1.into(),
        max: (INODE_EXTENTS_MAX as u16).into(),
        depth: 1.into(),
        generation: 0.into(),
    };
    let index = RawExtentIndex {
        block: 0.into(),
        leaf_lo: (leaf as u32).into(),
        leaf_hi: ((leaf >> 32) as u16).into(),
        unused: 0.into(),
    };
    [header.as_bytes(), index.as_bytes()].concat()
}

/// Returns an extent node padded to the length of `i_block`.
fn in_inode(node: &[u8]) -> [u8; 60] {
    let mut block = [0; 60];
    block[..node.len()].copy_from_slice(node);
    block
}
