//! The geometry of a new file system: counts of blocks, groups and inodes; journal and reserves.
//!
//! The rules follow mke2fs(8), mke2fs.conf(5) and the output of mke2fs. The `mkfs` test compares
//! the numbers with it.

use super::options::FormatOptions;
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::fs::ext4::layout::disk::{FIRST_INODE, RawGroupDescriptor};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Bytes of an inode on disk (`s_inode_size`).
pub(super) const INODE_LEN: u32 = 256;
/// Bytes of a group descriptor on disk (`s_desc_size` with the 64bit feature).
pub(super) const DESCRIPTOR_LEN: u32 = size_of::<RawGroupDescriptor>() as u32;
/// Groups per flex group, whose bitmaps and inode tables are contiguous (`flex_bg`).
pub(super) const GROUPS_PER_FLEX: u32 = 16;
/// Minimum number of inodes per group, so that the first group has all reserved inodes, lost+found
/// and the orphan file.
const INODES_PER_GROUP_MIN: u32 = 16;
/// Minimum number of data blocks in the last group; a smaller group is omitted.
const LAST_GROUP_DATA_BLOCKS_MIN: u64 = 50;
/// Factor by which the device may grow later without moving blocks (`resize_inode`).
const GROWTH_MAX: u64 = 1024;
/// Minimum device size in blocks for a journal.
const JOURNAL_DEVICE_BLOCKS_MIN: u64 = 2048;

/// The numbers of a file system that do not depend on the allocation of blocks.
#[derive(Debug, Clone)]
pub(super) struct Geometry {
    /// Bytes per block.
    pub(super) block_size: u32,
    /// Number of blocks, from the device's start.
    pub(super) block_count: u64,
    /// The first block of group 0: 1 if the boot sector fills a block, else 0.
    pub(super) first_data_block: u32,
    pub(super) blocks_per_group: u32,
    pub(super) group_count: u32,
    pub(super) inodes_per_group: u32,
    /// Blocks of all group descriptors.
    pub(super) descriptor_block_count: u32,
    /// Blocks reserved after the group descriptors for growth.
    pub(super) reserved_descriptor_block_count: u32,
    /// Whether the resize inode owns the reserved descriptor blocks.
    pub(super) has_resize_inode: bool,
    /// Blocks reserved for root.
    pub(super) reserved_block_count: u64,
    /// 0 for no journal and no orphan file.
    pub(super) journal_block_count: u32,
    pub(super) orphan_block_count: u32,
}

/// Usage types of mke2fs.conf(5): exclusive upper limit of the size in bytes, block size, bytes per
/// inode.
const USAGE_TYPES: [(u64, u32, u32); 5] = [
    (3 * MIB, 1024, 8192),
    (512 * MIB, 1024, 4096),
    (4 * TIB, 4096, 16384),
    (16 * TIB, 4096, 32768),
    (u64::MAX, 4096, 65536),
];

impl Geometry {
    pub(super) fn new(len_bytes: u64, options: &FormatOptions) -> Result<Self> {
        let usage = USAGE_TYPES.iter().find(|(below, ..)| len_bytes < *below);
        let (_, default_block_size, default_ratio) = usage.copied().unwrap_or(USAGE_TYPES[4]);
        let block_size = options.block_size.unwrap_or(default_block_size);
        check_options(block_size, options)?;
        // Whole pages, so that the kernel's page cache has no partial page at the end.
        let block_count = len_bytes / PAGE_SIZE as u64 * (PAGE_SIZE as u64 / u64::from(block_size));
        let ratio = options.inode_ratio.unwrap_or(default_ratio).max(block_size);
        let inode_count = match options.inode_count {
            Some(count) => count,
            None => u32::try_from(block_count * u64::from(block_size) / u64::from(ratio))
                .unwrap_or(u32::MAX),
        };
        let mut geometry = Self {
            block_size,
            block_count,
            first_data_block: u32::from(block_size == 1024),
            blocks_per_group: 8 * block_size,
            group_count: 0,
            inodes_per_group: 0,
            descriptor_block_count: 0,
            reserved_descriptor_block_count: 0,
            has_resize_inode: block_count <= u64::from(u32::MAX),
            reserved_block_count: (options.reserved_percent * block_count as f64 / 100.0) as u64,
            journal_block_count: 0,
            orphan_block_count: 0,
        };
        geometry.fit_groups(inode_count.max(FIRST_INODE + 1))?;
        geometry.journal_block_count = journal_block_count(geometry.block_count);
        if geometry.journal_block_count != 0 {
            geometry.orphan_block_count = (geometry.block_count / 4096).clamp(32, 512) as u32;
        }
        Ok(geometry)
    }

    /// Returns the number of inodes. [`Self::divide`] checked the product.
    pub(super) fn inode_count(&self) -> u32 {
        self.inodes_per_group * self.group_count
    }

    /// Returns the length of a group's inode table in blocks.
    pub(super) fn inode_table_block_count(&self) -> u32 {
        (self.inodes_per_group * INODE_LEN).div_ceil(self.block_size)
    }

    /// Returns the first block of a group.
    pub(super) fn group_start(&self, group: u32) -> u64 {
        u64::from(self.first_data_block) + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Returns the block after the last one of a group.
    pub(super) fn group_end(&self, group: u32) -> u64 {
        self.group_start(group + 1).min(self.block_count)
    }

    /// Returns the group of a block, which must not be before the first data block.
    pub(super) fn group_of(&self, block: u64) -> u32 {
        ((block - u64::from(self.first_data_block)) / u64::from(self.blocks_per_group)) as u32
    }

    /// Returns the length in blocks of superblock, group descriptors and reserved descriptor blocks
    /// at the start of a group; 0 for a group without a backup.
    pub(super) fn superblock_run(&self, group: u32) -> u64 {
        if has_superblock(group) {
            1 + u64::from(self.descriptor_block_count)
                + u64::from(self.reserved_descriptor_block_count)
        } else {
            0
        }
    }

    /// Divides the device into groups. Omits a last group that would have little more than its own
    /// metadata.
    fn fit_groups(&mut self, inode_count: u32) -> Result<()> {
        self.divide(inode_count)?;
        let last = self.group_count - 1;
        let bare = 2 + u64::from(self.inode_table_block_count());
        // The first group always has a superblock, and no group has more metadata.
        let most = bare + self.superblock_run(0);
        if most > u64::from(self.blocks_per_group) {
            let what = format!(
                "{most} blocks of metadata do not fit a group of {}: use larger blocks or fewer inodes",
                self.blocks_per_group
            );
            return Err(Error::new(Errno::INVAL, what));
        }
        let overhead = bare + self.superblock_run(last);
        let last_len = self.group_end(last) - self.group_start(last);
        if last_len == u64::from(self.blocks_per_group) {
            return Ok(());
        }
        if last == 0 && last_len < overhead {
            return Err(too_small(self.block_count * u64::from(self.block_size)));
        }
        if last > 0 && last_len < overhead + LAST_GROUP_DATA_BLOCKS_MIN {
            let kept = self.block_count - last_len;
            let reserved = u128::from(self.reserved_block_count) * u128::from(kept);
            self.reserved_block_count = (reserved / u128::from(self.block_count)) as u64;
            self.block_count = kept;
            // The other groups get the last group's inodes, up to the length of their bitmaps.
            let most = (8 * self.block_size).saturating_mul(last);
            self.divide(inode_count.min(most))?;
        }
        Ok(())
    }

    /// Sets group count, inodes per group and descriptor blocks from the block count.
    fn divide(&mut self, inode_count: u32) -> Result<()> {
        let data_blocks = self
            .block_count
            .saturating_sub(u64::from(self.first_data_block));
        if data_blocks == 0 {
            return Err(too_small(self.block_count * u64::from(self.block_size)));
        }
        let group_count = data_blocks.div_ceil(u64::from(self.blocks_per_group));
        let Ok(group_count) = u32::try_from(group_count) else {
            return Err(Error::new(
                Errno::INVAL,
                format!(
                    "too many block groups: {group_count}, at most {}; use larger blocks",
                    u32::MAX
                ),
            ));
        };
        self.group_count = group_count;
        let per_group = inode_count.div_ceil(group_count);
        if per_group > 8 * self.block_size {
            let most = u64::from(8 * self.block_size) * u64::from(group_count);
            let what = format!("too many inodes: {inode_count}, at most {most} fit");
            return Err(Error::new(Errno::INVAL, what));
        }
        // Whole blocks of the inode table, and whole bytes of the bitmap.
        let per_block = self.block_size / INODE_LEN;
        let rounded = per_group.next_multiple_of(per_block) / 8 * 8;
        // The total must fit the 32-bit field.
        let most = (u32::MAX / group_count) / per_block.max(8) * per_block.max(8);
        self.inodes_per_group = rounded.max(INODES_PER_GROUP_MIN).min(most);
        let per_block = self.block_size / DESCRIPTOR_LEN;
        self.descriptor_block_count = group_count.div_ceil(per_block);
        self.reserved_descriptor_block_count = if self.has_resize_inode {
            self.growth_descriptor_blocks()
        } else {
            0
        };
        Ok(())
    }

    /// Returns the descriptor blocks that growth by [`GROWTH_MAX`], or to 2^32 - 1 blocks, would
    /// add; at most as many as one indirect block can name.
    fn growth_descriptor_blocks(&self) -> u32 {
        let most_blocks = (self.block_count * GROWTH_MAX).min(u64::from(u32::MAX));
        let groups =
            (most_blocks - u64::from(self.first_data_block)).div_ceil(self.blocks_per_group.into());
        let blocks = groups.div_ceil(u64::from(self.block_size / DESCRIPTOR_LEN));
        let added = blocks.saturating_sub(u64::from(self.descriptor_block_count));
        added.min(u64::from(self.block_size / 4)) as u32
    }
}

fn check_options(block_size: u32, options: &FormatOptions) -> Result<()> {
    let refuse = |what: String| Err(Error::new(Errno::INVAL, what));
    if ![1024, 2048, 4096].contains(&block_size) {
        return refuse(format!(
            "invalid block size {block_size}: expected 1024, 2048 or 4096"
        ));
    }
    if let Some(ratio) = options
        .inode_ratio
        .filter(|r| !(1024..=64 << 20).contains(r))
    {
        return refuse(format!(
            "invalid inode ratio {ratio}: expected 1024 to 67108864 bytes per inode"
        ));
    }
    if !(0.0..=50.0).contains(&options.reserved_percent) {
        return refuse(format!(
            "invalid reserved percentage {}: expected 0 to 50",
            options.reserved_percent
        ));
    }
    Ok(())
}

fn too_small(len_bytes: u64) -> Error {
    Error::new(
        Errno::INVAL,
        format!("device too small for an ext4: {len_bytes} bytes"),
    )
}

/// Returns whether a group has a superblock and group descriptors (`sparse_super`): 0, 1 and powers
/// of 3, 5 and 7.
pub(super) fn has_superblock(group: u32) -> bool {
    let is_power_of = |base: u32| {
        let mut power = base;
        while power < group {
            match power.checked_mul(base) {
                Some(next) => power = next,
                None => return false,
            }
        }
        power == group
    };
    group <= 1 || is_power_of(3) || is_power_of(5) || is_power_of(7)
}

/// Returns the journal's length for a device's length, both in blocks.
pub(in crate::fs::ext4) fn journal_block_count(block_count: u64) -> u32 {
    /// Exclusive upper limit of the device's length, and the journal's length.
    const STEPS: [(u64, u32); 8] = [
        (JOURNAL_DEVICE_BLOCKS_MIN, 0),
        (32 << 10, 1024),
        (256 << 10, 4096),
        (512 << 10, 8192),
        (4 << 20, 16 << 10),
        (8 << 20, 32 << 10),
        (16 << 20, 64 << 10),
        (32 << 20, 128 << 10),
    ];
    STEPS
        .iter()
        .find(|(below, _)| block_count < *below)
        .map_or(256 << 10, |(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_are_in_powers_of_three_five_seven() {
        let groups: Vec<u32> = (0..130).filter(|g| has_superblock(*g)).collect();
        assert_eq!(groups, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    }

    #[test]
    fn geometry_of_two_gib_equals_mke2fs() {
        let g = Geometry::new(2 << 30, &FormatOptions::default()).unwrap();
        assert_eq!(
            (g.block_size, g.block_count, g.group_count),
            (4096, 524_288, 16)
        );
        assert_eq!((g.inode_count(), g.inodes_per_group), (131_072, 8192));
        assert_eq!(
            (g.reserved_descriptor_block_count, g.reserved_block_count),
            (255, 26214)
        );
        assert_eq!((g.journal_block_count, g.orphan_block_count), (16384, 128));
    }

    #[test]
    fn invalid_options_are_rejected() {
        let error = |len: u64, options: FormatOptions| {
            Geometry::new(len, &options).unwrap_err().to_string()
        };
        let default = FormatOptions::default;
        assert!(error(0, default()).contains("too small"));
        assert!(error(8 << 10, default()).contains("too small"));
        assert!(
            error(
                8 << 20,
                FormatOptions {
                    block_size: Some(512),
                    ..default()
                }
            )
            .contains("block size")
        );
        assert!(
            error(
                8 << 20,
                FormatOptions {
                    inode_count: Some(1 << 20),
                    ..default()
                }
            )
            .contains("inodes")
        );
        assert!(
            error(
                8 << 20,
                FormatOptions {
                    inode_ratio: Some(1),
                    ..default()
                }
            )
            .contains("per inode")
        );
        assert!(
            error(
                8 << 20,
                FormatOptions {
                    reserved_percent: f64::NAN,
                    ..default()
                }
            )
            .contains("percentage")
        );
        assert!(
            error(
                4 * TIB,
                FormatOptions {
                    block_size: Some(1024),
                    ..default()
                }
            )
            .contains("larger")
        );
        assert!(error(u64::MAX, default()).contains("too many"));
    }
}
