//! The resize plan: the final size, the superblock for a size, and the extent of one step.

use super::options::ResizeOptions;
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::Device;
use crate::fs::ext4::layout::disk::halves;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::layout::superblock::Superblock;

/// Groups that one transaction adds, at most.
const GROUPS_PER_STEP: u32 = 512;
/// Minimum number of data blocks in the last group; a smaller group is omitted, as in mke2fs and
/// resize2fs.
const LAST_GROUP_DATA_BLOCKS_MIN: u64 = 50;

/// Returns the superblock on `device` and its number of blocks after a resize on a device of
/// `device_len` bytes.
pub(super) fn check(
    device: &dyn Device,
    device_len: u64,
    options: &ResizeOptions,
) -> Result<(Superblock, u64)> {
    let superblock = Superblock::load_for_recovery(device)?;
    superblock.features.check_writable_offline()?;
    superblock.check_writable_values()?;
    if !superblock.features.compat.contains(Compat::RESIZE_INODE)
        && superblock.raw.reserved_gdt_blocks.get() != 0
    {
        return Err(Error::corrupt(
            "reserved group descriptor blocks without a resize inode; run e2fsck",
        ));
    }
    let len_bytes = options.len_bytes.unwrap_or(device_len);
    if len_bytes > device_len {
        let what = format!(
            "invalid size: {len_bytes} bytes, but the device has {device_len}; make the device larger first"
        );
        return Err(Error::new(Errno::INVAL, what));
    }
    let blocks = wanted(&superblock, len_bytes)?;
    Ok((superblock, blocks))
}

/// Returns the number of blocks of a file system of at most `len_bytes` bytes.
fn wanted(superblock: &Superblock, len_bytes: u64) -> Result<u64> {
    let (old, block_size) = (superblock.block_count, superblock.block_size as u64);
    let refuse = |what: String| Err(Error::new(Errno::INVAL, what));
    if len_bytes / block_size < old {
        return wanted_smaller(superblock, len_bytes);
    }
    // Whole pages, so that the kernel's page cache has no partial page at the end.
    let mut blocks = (len_bytes / PAGE_SIZE as u64 * (PAGE_SIZE as u64 / block_size)).max(old);
    if !superblock.features.incompat.contains(Incompat::BIT64) && blocks > u64::from(u32::MAX) {
        return refuse(format!(
            "invalid size: {blocks} blocks, at most 2^32 - 1 without the 64bit feature"
        ));
    }
    let per_group = u64::from(superblock.blocks_per_group);
    let in_last = (blocks - superblock.first_data_block) % per_group;
    let grown = at_size(superblock, blocks)?;
    if in_last != 0 && grown.group_count > superblock.group_count {
        let last = grown.group_count - 1;
        let head = grown.head_of_group(last);
        let own = head.end - head.start + 2 + grown.inode_table_blocks();
        if in_last < own + LAST_GROUP_DATA_BLOCKS_MIN {
            blocks -= in_last;
        }
    }
    Ok(blocks)
}

/// Returns the number of blocks after a shrink to at most `len_bytes` bytes.
fn wanted_smaller(superblock: &Superblock, len_bytes: u64) -> Result<u64> {
    let pages = len_bytes / PAGE_SIZE as u64;
    let mut blocks = pages * (PAGE_SIZE as u64 / superblock.block_size as u64);
    let groups = blocks
        .saturating_sub(superblock.first_data_block)
        .div_ceil(superblock.blocks_per_group.into());
    // At most as many as before.
    let last = groups.saturating_sub(1) as u32;
    let own = system_blocks(superblock, last) + LAST_GROUP_DATA_BLOCKS_MIN;
    if blocks < superblock.group_start(last) + own {
        blocks = superblock.group_start(last);
    }
    if blocks > superblock.first_data_block {
        return Ok(blocks);
    }
    let what = format!("invalid size: {len_bytes} bytes are too few for an ext4");
    Err(Error::new(Errno::INVAL, what))
}

/// Returns the blocks of the metadata of a group.
pub(super) fn system_blocks(superblock: &Superblock, group: u32) -> u64 {
    let head = superblock.head_of_group(group);
    head.end - head.start + 2 + superblock.inode_table_blocks()
}

/// Returns the superblock at its final size.
fn at_size(superblock: &Superblock, blocks: u64) -> Result<Superblock> {
    let limit = table_groups_max(superblock);
    let is_in_reach = group_count(superblock, blocks)? <= limit;
    if is_in_reach {
        with_blocks(superblock, blocks)
    } else {
        let full = with_blocks(superblock, blocks_of_groups(superblock, limit))?;
        with_blocks(&with_meta_bg(&full)?, blocks)
    }
}

fn group_count(superblock: &Superblock, blocks: u64) -> Result<u64> {
    let groups =
        (blocks - superblock.first_data_block).div_ceil(superblock.blocks_per_group.into());
    let inodes = u128::from(groups) * u128::from(superblock.inodes_per_group);
    match u32::try_from(inodes) {
        Ok(_) => Ok(groups),
        Err(_) => {
            let what = format!(
                "invalid size: {blocks} blocks need {inodes} inodes, at most 2^32 - 1 allowed"
            );
            Err(Error::new(Errno::INVAL, what))
        }
    }
}

pub(super) fn blocks_of_groups(superblock: &Superblock, groups: u64) -> u64 {
    superblock.first_data_block + groups * u64::from(superblock.blocks_per_group)
}

/// Returns the number of groups whose descriptors fit in the table at the start of the device,
/// including its reserved blocks.
fn table_groups_max(superblock: &Superblock) -> u64 {
    if superblock.has_meta_bg() {
        u64::MAX
    } else {
        let reserved = u64::from(superblock.raw.reserved_gdt_blocks.get());
        (superblock.descriptor_blocks() + reserved) * u64::from(superblock.descriptors_per_block())
    }
}

/// Returns the size after the next step towards `wanted` blocks; `None` if the table has no room
/// for more descriptors.
pub(super) fn next(superblock: &Superblock, wanted: u64) -> Option<u64> {
    let groups = u64::from(superblock.group_count);
    // Steps end at the end of a flex group.
    let step = u64::from(GROUPS_PER_STEP);
    let end = ((groups / step + 1) * step).min(table_groups_max(superblock));
    let blocks = blocks_of_groups(superblock, end).min(wanted);
    (blocks > superblock.block_count).then_some(blocks)
}

/// Returns the superblock with the counts of blocks, groups and inodes for `blocks` blocks. The
/// free counts and the reserved descriptor blocks are unchanged.
pub(super) fn with_counts(superblock: &Superblock, blocks: u64) -> Result<Superblock> {
    let mut new = superblock.clone();
    new.block_count = blocks;
    // `group_count` ensures that the inodes fit 32 bits, and each group has at least one.
    new.group_count = group_count(superblock, blocks)? as u32;
    new.inode_count = new.group_count * new.inodes_per_group;
    (new.raw.blocks_count_lo, new.raw.blocks_count_hi) = halves(blocks);
    new.raw.inodes_count = new.inode_count.into();
    Ok(new)
}

/// Returns the superblock with `blocks` blocks. The free counts are unchanged.
pub(super) fn with_blocks(superblock: &Superblock, blocks: u64) -> Result<Superblock> {
    let mut new = with_counts(superblock, blocks)?;
    if !new.has_meta_bg() {
        let used = new.descriptor_blocks() - superblock.descriptor_blocks();
        let reserved = u64::from(superblock.raw.reserved_gdt_blocks.get()).checked_sub(used);
        let Some(reserved) = reserved else {
            return Err(Error::unsupported("no room for more group descriptors"));
        };
        // Less than the old value, which has 16 bits.
        new.raw.reserved_gdt_blocks = (reserved as u16).into();
    }
    Ok(new)
}

/// Returns the superblock converted to `meta_bg`, without a resize inode.
pub(super) fn with_meta_bg(superblock: &Superblock) -> Result<Superblock> {
    if superblock.has_meta_bg() || superblock.raw.reserved_gdt_blocks.get() != 0 {
        return Err(Error::unsupported("no room for more group descriptors"));
    }
    let mut new = superblock.clone();
    new.features.compat.remove(Compat::RESIZE_INODE);
    new.features.incompat.insert(Incompat::META_BG);
    // Fewer than the number of groups.
    new.raw.first_meta_bg = (superblock.descriptor_blocks() as u32).into();
    Ok(new)
}

/// Sets the free counts of the superblock.
pub(super) fn put_free(new: &mut Superblock, free_blocks: u64, free_inodes: u64) {
    (new.raw.free_blocks_count_lo, new.raw.free_blocks_count_hi) = halves(free_blocks);
    // At most the number of inodes, which has 32 bits.
    new.raw.free_inodes_count = (free_inodes as u32).into();
}

/// The share of the blocks that are reserved for the superuser.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReservedShare {
    reserved: u64,
    of: u64,
}

impl ReservedShare {
    /// Returns the share of a file system.
    pub(super) fn of(superblock: &Superblock) -> Self {
        Self {
            reserved: superblock.reserved_blocks(),
            of: superblock.block_count,
        }
    }

    /// Returns the reserved blocks of `blocks`, with the same rounding as resize2fs.
    fn blocks(self, blocks: u64) -> u64 {
        let percent = self.reserved as f64 * 100.0 / self.of as f64;
        (percent * blocks as f64 / 100.0) as u64
    }
}

/// Adds the metadata of new groups to the superblock's overhead, and sets the reserved blocks to
/// the same share of all blocks as before.
pub(super) fn put_overhead(new: &mut Superblock, system_blocks: u64, share: ReservedShare) {
    let reserved = share.blocks(new.block_count);
    (new.raw.r_blocks_count_lo, new.raw.r_blocks_count_hi) = halves(reserved);
    let overhead = u64::from(new.raw.overhead_clusters.get());
    if overhead != 0 {
        // 0 means "not counted".
        new.raw.overhead_clusters = u32::try_from(overhead + system_blocks).unwrap_or(0).into();
    }
}
