//! The checked superblock, with all numbers that the rest of ext4 relies on.

use super::checksum::crc32c;
use super::disk::{
    RawGroupDescriptor, RawSuperblock, STATE_ERROR, SUPERBLOCK_CHECKSUM_OFFSET, SUPERBLOCK_MAGIC,
    SUPERBLOCK_OFFSET,
};
use super::features::{Compat, Features, Incompat, RoCompat};
use crate::base::{Error, InodeNumber, PAGE_SIZE, PhysicalBlock, Result, Timespec};
use crate::block::{Device, contents, foreign_contents};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Minimum number of blocks per group, as in mke2fs. Fewer would let a forged image exhaust memory.
const BLOCKS_PER_GROUP_MIN: u32 = 256;

/// `s_flags`: directory hashes use unsigned characters.
const FLAG_UNSIGNED_HASH: u32 = 2;

/// `s_encoding`: UTF-8 of Unicode 12.1.
const ENCODING_UTF8_12_1: u16 = 1;

/// A superblock whose geometry is consistent and fits its device.
#[derive(Clone)]
pub(crate) struct Superblock {
    /// The raw superblock, for fields that are only preserved. Its counts are updated before a
    /// write.
    pub(crate) raw: RawSuperblock,
    pub(crate) features: Features,
    /// Bytes per block: 1024 to 65536; at most [`PAGE_SIZE`] if the file system is written.
    pub(crate) block_size: usize,
    pub(crate) block_count: u64,
    /// First block of group 0: 1 with blocks of 1 KiB, else 0.
    pub(crate) first_data_block: u64,
    pub(crate) blocks_per_group: u32,
    /// Blocks per cluster; 1 without bigalloc.
    pub(crate) cluster_blocks: u32,
    pub(crate) inodes_per_group: u32,
    pub(crate) inode_count: u32,
    pub(crate) group_count: u32,
    /// Bytes per group descriptor on disk.
    pub(crate) descriptor_len: usize,
    /// Bytes per inode on disk.
    pub(crate) inode_size: usize,
    /// First inode number that is not reserved.
    pub(crate) first_inode: u32,
    /// Seed of all checksums, with metadata_csum.
    pub(crate) checksum_seed: Option<u32>,
}

impl Superblock {
    /// Reads and checks the superblock of `device`.
    pub(crate) fn load(device: &dyn Device) -> Result<Self> {
        let raw = Self::read(device)?;
        check_checksum(&raw)
            .and_then(|()| Self::check(raw, device.len_bytes()))
            .map_err(|e| e.at("superblock"))
    }

    /// Reads the superblock before the journal is replayed. A power cut may have left it partly
    /// written: at a checkpoint, which the replay repairs, or at a change of the recovery flag,
    /// which then counts as set.
    pub(crate) fn load_for_recovery(device: &dyn Device) -> Result<Self> {
        let mut raw = Self::read(device)?;
        let sealed = check_checksum(&raw);
        if sealed.is_err()
            && check_checksum(&with_recovery_flag(&raw, !needs_recovery(&raw))).is_ok()
        {
            raw = with_recovery_flag(&raw, true);
        }
        if sealed.is_ok() || needs_recovery(&raw) {
            Self::check(raw, device.len_bytes())
        } else {
            sealed.and_then(|()| Self::check(raw, device.len_bytes()))
        }
        .map_err(|e| e.at("superblock"))
    }

    /// Checks a superblock that may have a bad checksum.
    pub(crate) fn load_unsealed(raw: RawSuperblock, device_len: u64) -> Result<Self> {
        Self::check(raw, device_len).map_err(|e| e.at("superblock"))
    }

    /// Sets or clears the recovery flag on the device. Changes nothing else, so that a partly
    /// written superblock can be distinguished from a damaged one. Durable after a flush.
    pub(crate) fn write_recovery_flag(device: &dyn Device, is_needed: bool) -> Result<()> {
        Self::rewrite(device, |raw| with_recovery_flag(raw, is_needed))
    }

    /// Marks the file system on the device as one with errors. Durable after a flush.
    pub(crate) fn write_error_mark(device: &dyn Device) -> Result<()> {
        Self::rewrite(device, |raw| RawSuperblock {
            state: (raw.state.get() | STATE_ERROR).into(),
            ..raw.clone()
        })
    }

    /// Returns whether the file system is marked as one with errors.
    pub(crate) fn has_error_mark(&self) -> bool {
        self.raw.state.get() & STATE_ERROR != 0
    }

    fn rewrite(
        device: &dyn Device,
        change: impl FnOnce(&RawSuperblock) -> RawSuperblock,
    ) -> Result<()> {
        let mut raw = Self::read(device)?;
        if check_checksum(&raw).is_err() {
            raw = with_recovery_flag(&raw, !needs_recovery(&raw));
            check_checksum(&raw).map_err(|e| e.at("superblock"))?;
        }
        let mut raw = change(&raw);
        if RoCompat::from_bits_retain(raw.feature_ro_compat.get()).contains(RoCompat::METADATA_CSUM)
        {
            raw.checksum = crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_CHECKSUM_OFFSET]).into();
        }
        device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET)
    }

    fn read(device: &dyn Device) -> Result<RawSuperblock> {
        let mut bytes = [0; size_of::<RawSuperblock>()];
        if device.len_bytes() < SUPERBLOCK_OFFSET + bytes.len() as u64 {
            return Err(Error::corrupt(format!(
                "no ext4 file system: the device has only {} bytes",
                device.len_bytes()
            )));
        }
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        let raw = RawSuperblock::read_from_bytes(&bytes)
            .map_err(|_| Error::corrupt("superblock truncated"))?;
        check_magic(&raw).map_err(|_| no_file_system(device, &raw))?;
        Ok(raw)
    }

    /// Reads the superblock as it is: only magic and checksum are checked, so that file systems
    /// with features that Folio cannot read are described too.
    pub(crate) fn load_raw(device: &dyn Device) -> Result<RawSuperblock> {
        let raw = Self::read(device)?;
        check_checksum(&raw).map_err(|e| e.at("superblock"))?;
        Ok(raw)
    }

    fn check(raw: RawSuperblock, device_len: u64) -> Result<Self> {
        check_magic(&raw)?;
        let features = raw.features();
        features.check_readable()?;
        let checksum_seed = checksum_seed(&raw, &features)?;
        let block_size = checked_block_size(&raw)?;
        let cluster_blocks = checked_cluster_blocks(&raw, &features)?;
        let is_64bit = features.incompat.contains(Incompat::BIT64);
        let high = if is_64bit {
            u64::from(raw.blocks_count_hi.get())
        } else {
            0
        };
        let block_count = high << 32 | u64::from(raw.blocks_count_lo.get());
        let first_data_block = u64::from(raw.first_data_block.get());
        let (inode_size, first_inode) = checked_inode_size(&raw, block_size)?;
        let superblock = Self {
            features,
            block_size,
            block_count,
            first_data_block,
            blocks_per_group: raw.blocks_per_group.get(),
            cluster_blocks,
            inodes_per_group: raw.inodes_per_group.get(),
            inode_count: raw.inodes_count.get(),
            group_count: 0,
            descriptor_len: checked_descriptor_len(&raw, is_64bit, block_size)?,
            inode_size,
            first_inode,
            checksum_seed,
            raw,
        };
        superblock.check_geometry(device_len)
    }

    fn check_geometry(mut self, device_len: u64) -> Result<Self> {
        let bits = 8 * self.block_size as u64;
        let groups = || {
            let blocks = self
                .block_count
                .checked_sub(self.first_data_block)
                .filter(|b| *b > 0)?;
            u32::try_from(blocks.div_ceil(u64::from(self.blocks_per_group))).ok()
        };
        let what = if u64::from(self.blocks_per_group) > bits * u64::from(self.cluster_blocks)
            || self.blocks_per_group < BLOCKS_PER_GROUP_MIN
        {
            format!("{} blocks per group", self.blocks_per_group)
        } else if self.inodes_per_group == 0 || u64::from(self.inodes_per_group) > bits {
            format!("{} inodes per group", self.inodes_per_group)
        } else if self.first_data_block > 1
            || (self.first_data_block == 1 && self.block_size != 1024)
        {
            format!("first data block {}", self.first_data_block)
        } else if self.block_count > device_len / self.block_size as u64 {
            let (blocks, size) = (self.block_count, self.block_size);
            format!("{blocks} blocks of {size} bytes on a device of {device_len} bytes: truncated?")
        } else if let Some(count) = groups() {
            self.group_count = count;
            let inodes = u64::from(count) * u64::from(self.inodes_per_group);
            if inodes == u64::from(self.inode_count) {
                return self.check_descriptor_table();
            }
            format!(
                "{} inodes, but {count} groups hold {inodes}",
                self.inode_count
            )
        } else {
            format!("{} blocks", self.block_count)
        };
        Err(Error::corrupt(what))
    }

    fn check_descriptor_table(self) -> Result<Self> {
        let blocks = self.descriptor_blocks();
        let reserved = u64::from(self.raw.reserved_gdt_blocks.get());
        if self.has_meta_bg() {
            return Ok(self);
        }
        let fits = blocks + reserved + 1 < u64::from(self.blocks_per_group)
            && self.first_data_block + 1 + blocks <= self.block_count
            && reserved <= self.block_size as u64 / 4;
        if fits {
            Ok(self)
        } else {
            Err(Error::corrupt(format!(
                "{blocks} group descriptor blocks and {reserved} reserved"
            )))
        }
    }

    /// Returns the number of blocks reserved for root and for the user and group named by the
    /// superblock or the mount.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        let is_64bit = self.features.incompat.contains(Incompat::BIT64);
        let high = if is_64bit {
            u64::from(self.raw.r_blocks_count_hi.get())
        } else {
            0
        };
        (high << 32 | u64::from(self.raw.r_blocks_count_lo.get())).min(self.block_count)
    }

    /// Returns whether the groups from `first_meta_bg` on store their own descriptors.
    pub(crate) fn has_meta_bg(&self) -> bool {
        self.features.incompat.contains(Incompat::META_BG)
    }

    /// Returns the number of descriptors per block.
    pub(crate) fn descriptors_per_block(&self) -> u32 {
        (self.block_size / self.descriptor_len) as u32
    }

    /// Returns the number of blocks of all descriptors.
    pub(crate) fn descriptor_blocks(&self) -> u64 {
        u64::from(self.group_count.div_ceil(self.descriptors_per_block()))
    }

    /// Returns the block after the superblock, which is in block 1 with blocks of 1 KiB, even if
    /// bigalloc starts groups at block 0.
    pub(crate) fn first_descriptor_block(&self) -> u64 {
        if self.block_size == 1024 {
            2
        } else {
            self.first_data_block + 1
        }
    }

    /// Returns the location of the descriptor of `group`: block, and byte offset in it.
    pub(crate) fn descriptor_place(&self, group: u32) -> (PhysicalBlock, usize) {
        let per_block = self.descriptors_per_block();
        let (table_block, slot) = (group / per_block, (group % per_block) as usize);
        let first = if self.has_meta_bg() && table_block >= self.raw.first_meta_bg.get() {
            let leader = table_block * per_block;
            self.group_start(leader) + u64::from(self.has_backup(leader))
        } else {
            self.first_descriptor_block() + u64::from(table_block)
        };
        (PhysicalBlock(first), slot * self.descriptor_len)
    }

    /// Returns the first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> u64 {
        self.first_data_block + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Returns the number of blocks in a group; the last group may be short.
    pub(crate) fn group_len(&self, group: u32) -> u32 {
        let left = self.block_count - self.group_start(group);
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Returns the group of a block, and the block's index in the group.
    pub(crate) fn group_of(&self, block: u64) -> (u32, u32) {
        let from_start = block - self.first_data_block;
        let per_group = u64::from(self.blocks_per_group);
        (
            (from_start / per_group) as u32,
            (from_start % per_group) as u32,
        )
    }

    /// Returns the bits in the bitmap of a group for its blocks `range`: one for each block, or
    /// with bigalloc for each cluster that has any of them.
    pub(crate) fn cluster_bits(&self, range: Range<u32>) -> Range<u32> {
        range.start / self.cluster_blocks..range.end.div_ceil(self.cluster_blocks)
    }

    /// Returns whether `group` starts with a superblock, the primary or a backup.
    pub(crate) fn has_backup(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.raw.backup_bgs.iter().any(|b| b.get() == group);
        }
        if group == 1 || !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3_u64, 5, 7].iter().any(|base| {
            let mut power = *base;
            while power < u64::from(group) {
                power *= base;
            }
            power == u64::from(group)
        })
    }

    /// Returns the blocks at the start of a group that hold superblock and descriptors.
    pub(crate) fn head_of_group(&self, group: u32) -> Range<u64> {
        let start = self.group_start(group);
        let backup = u64::from(self.has_backup(group));
        let per_block = self.descriptors_per_block();
        let meta_first = self.raw.first_meta_bg.get();
        let table = if !self.has_meta_bg() || group / per_block < meta_first {
            let blocks = if self.has_meta_bg() {
                u64::from(meta_first).min(self.descriptor_blocks())
            } else {
                self.descriptor_blocks() + u64::from(self.raw.reserved_gdt_blocks.get())
            };
            backup * blocks
        } else {
            // The first, second and last group of each meta group store its descriptor block.
            u64::from([0, 1, per_block - 1].contains(&(group % per_block)))
        };
        let boot = if group == 0 {
            self.first_descriptor_block() - 1 - start
        } else {
            0
        };
        start..start + boot + backup + table
    }

    /// Returns the length of a group's inode table in blocks.
    pub(crate) fn inode_table_blocks(&self) -> u64 {
        (u64::from(self.inodes_per_group) * self.inode_size as u64).div_ceil(self.block_size as u64)
    }

    /// Fails with EUCLEAN for an inode number that does not exist.
    pub(crate) fn check_inode_number(&self, number: u64) -> Result<u32> {
        match u32::try_from(number) {
            Ok(small) if small >= 1 && small <= self.inode_count => Ok(small),
            _ => Err(Error::corrupt(format!(
                "inode {} is beyond the last inode {}",
                InodeNumber(number),
                self.inode_count
            ))),
        }
    }

    /// Checks that the journal is a file of the file system itself.
    ///
    /// # Errors
    /// EOPNOTSUPP, with the UUID of the journal.
    pub(crate) fn check_own_journal(&self) -> Result<()> {
        if self.raw.journal_inum.get() != 0 {
            return Ok(());
        }
        let uuid = uuid::Uuid::from_bytes(self.raw.journal_uuid);
        Err(Error::unsupported(format!(
            "a journal on another device (UUID {uuid}); remove it with tune2fs -O ^has_journal, \
             or read what is in its place with the mount options ro,noload"
        )))
    }

    /// Checks values that a change must know: blocks of at most a page, the encoding of casefolded
    /// names, and a map by extents with bigalloc.
    ///
    /// # Errors
    /// EOPNOTSUPP.
    pub(crate) fn check_writable_values(&self) -> Result<()> {
        if self.block_size > PAGE_SIZE {
            let size = self.block_size;
            let what =
                format!("writing a file system with blocks of {size} bytes; open it read-only");
            return Err(Error::unsupported(what));
        }
        if self.cluster_blocks > 1 && !self.features.incompat.contains(Incompat::EXTENT) {
            let what = "writing a file system with bigalloc without extent; open it read-only";
            return Err(Error::unsupported(what));
        }
        let encoding = self.raw.encoding.get();
        if self.features.incompat.contains(Incompat::CASEFOLD) && encoding != ENCODING_UTF8_12_1 {
            let what = format!("writing a file system with encoding {encoding}; open it read-only");
            return Err(Error::unsupported(what));
        }
        Ok(())
    }

    /// Returns the bytes to write, with `s_wtime` and the checksum updated.
    pub(crate) fn to_bytes(&self, now: Timespec) -> [u8; 1024] {
        let mut raw = self.raw.clone();
        raw.feature_compat = self.features.compat.bits().into();
        raw.feature_incompat = self.features.incompat.bits().into();
        raw.feature_ro_compat = self.features.ro_compat.bits().into();
        raw.wtime = (now.secs as u32).into();
        raw.wtime_hi = (now.secs >> 32) as u8;
        if self.checksum_seed.is_some() {
            raw.checksum = crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_CHECKSUM_OFFSET]).into();
        }
        zerocopy::transmute!(raw)
    }

    /// Returns whether directory hashes use unsigned characters.
    pub(crate) fn has_unsigned_hash(&self) -> bool {
        self.raw.flags.get() & FLAG_UNSIGNED_HASH != 0
    }
}

impl RawSuperblock {
    /// Returns the three sets of feature flags.
    pub(crate) fn features(&self) -> Features {
        Features {
            compat: Compat::from_bits_retain(self.feature_compat.get()),
            incompat: Incompat::from_bits_retain(self.feature_incompat.get()),
            ro_compat: RoCompat::from_bits_retain(self.feature_ro_compat.get()),
        }
    }
}

fn check_magic(raw: &RawSuperblock) -> Result<()> {
    if raw.magic.get() == SUPERBLOCK_MAGIC {
        return Ok(());
    }
    let magic = raw.magic.get();
    Err(Error::corrupt(format!(
        "bad magic {magic:#06x}, expected {SUPERBLOCK_MAGIC:#06x}"
    )))
}

/// Returns the error for a device without the magic number of ext4, with the name of what it holds.
pub(crate) fn no_file_system(device: &dyn Device, raw: &RawSuperblock) -> Error {
    Error::corrupt(match contents(device) {
        Ok(Some(name)) => format!("no ext4 file system: {}", foreign_contents(name)),
        Ok(None) | Err(_) => {
            let magic = raw.magic.get();
            format!("no ext4 file system: magic {magic:#06x}, expected {SUPERBLOCK_MAGIC:#06x}")
        }
    })
}

fn needs_recovery(raw: &RawSuperblock) -> bool {
    Incompat::from_bits_retain(raw.feature_incompat.get()).contains(Incompat::NEEDS_RECOVERY)
}

/// Returns a copy with another recovery flag and the old checksum.
fn with_recovery_flag(raw: &RawSuperblock, is_needed: bool) -> RawSuperblock {
    let mut incompat = Incompat::from_bits_retain(raw.feature_incompat.get());
    incompat.set(Incompat::NEEDS_RECOVERY, is_needed);
    RawSuperblock {
        feature_incompat: incompat.bits().into(),
        ..raw.clone()
    }
}

fn check_checksum(raw: &RawSuperblock) -> Result<()> {
    let has_checksum =
        RoCompat::from_bits_retain(raw.feature_ro_compat.get()).contains(RoCompat::METADATA_CSUM);
    // Another checksum type or magic is reported later by its own error.
    let is_ours = raw.magic.get() == SUPERBLOCK_MAGIC && has_checksum && raw.checksum_type == 1;
    if is_ours && raw.checksum.get() != crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_CHECKSUM_OFFSET]) {
        Err(Error::corrupt("bad checksum"))
    } else {
        Ok(())
    }
}

/// Returns the seed of all other checksums, if the file system has metadata_csum.
fn checksum_seed(raw: &RawSuperblock, features: &Features) -> Result<Option<u32>> {
    if !features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        return Ok(None);
    }
    if raw.checksum_type != 1 {
        return Err(Error::unsupported(format!(
            "checksum type {}",
            raw.checksum_type
        )));
    }
    Ok(Some(
        if features.incompat.contains(Incompat::METADATA_CSUM_SEED) {
            raw.checksum_seed.get()
        } else {
            crc32c(!0, &raw.uuid)
        },
    ))
}

fn checked_block_size(raw: &RawSuperblock) -> Result<usize> {
    match raw.log_block_size.get() {
        log @ 0..=6 => Ok(1024 << log),
        log => Err(Error::corrupt(format!(
            "block size 2^{}",
            u64::from(log) + 10
        ))),
    }
}

fn checked_cluster_blocks(raw: &RawSuperblock, features: &Features) -> Result<u32> {
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        return Ok(1);
    }
    let log = raw
        .log_cluster_size
        .get()
        .checked_sub(raw.log_block_size.get());
    match log {
        Some(log @ 0..=16)
            if raw.clusters_per_group.get().checked_mul(1 << log)
                == Some(raw.blocks_per_group.get()) =>
        {
            Ok(1 << log)
        }
        _ => Err(Error::corrupt(format!(
            "cluster size 2^{}",
            u64::from(raw.log_cluster_size.get()) + 10
        ))),
    }
}

fn checked_inode_size(raw: &RawSuperblock, block_size: usize) -> Result<(usize, u32)> {
    if raw.rev_level.get() == 0 {
        return Ok((128, super::disk::FIRST_INODE));
    }
    let size = usize::from(raw.inode_size.get());
    if size < 128 || size > block_size || !size.is_power_of_two() {
        return Err(Error::corrupt(format!("inodes of {size} bytes")));
    }
    Ok((size, raw.first_ino.get().max(super::disk::FIRST_INODE)))
}

fn checked_descriptor_len(raw: &RawSuperblock, is_64bit: bool, block_size: usize) -> Result<usize> {
    let len = usize::from(raw.desc_size.get());
    match is_64bit {
        false => Ok(32),
        true if len >= size_of::<RawGroupDescriptor>()
            && len <= block_size
            && len.is_power_of_two() =>
        {
            Ok(len)
        }
        true => Err(Error::corrupt(format!("group descriptors of {len} bytes"))),
    }
}
