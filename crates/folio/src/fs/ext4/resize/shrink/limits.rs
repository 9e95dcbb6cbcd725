//! The superblock of a smaller size, and the least size.

use super::super::plan::{blocks_of_groups, system_blocks, with_counts};
use super::groups::GroupMaps;
use crate::base::{Error, PAGE_SIZE, Result};
use crate::fs::ext4::layout::features::{Compat, Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;

/// Data blocks in a short last group, as at a resize to more blocks.
const LAST_GROUP_DATA_BLOCKS_MIN: u64 = 50;

/// Fails with EOPNOTSUPP for a feature that a shrink does not handle.
pub(super) fn check_features(superblock: &Superblock) -> Result<()> {
    let features = &superblock.features;
    let names = [
        ("bigalloc", features.ro_compat.contains(RoCompat::BIGALLOC)),
        ("quota", features.ro_compat.contains(RoCompat::QUOTA)),
        ("mmp", features.incompat.contains(Incompat::MMP)),
        (
            "sparse_super2",
            features.compat.contains(Compat::SPARSE_SUPER2),
        ),
        (
            "stable_inodes",
            features.compat.contains(Compat::STABLE_INODES),
        ),
    ];
    match names.iter().find(|(_, is_set)| *is_set) {
        Some((name, _)) => Err(Error::unsupported(format!(
            "shrinking a file system with the feature {name}; use resize2fs"
        ))),
        None => Ok(()),
    }
}

/// Returns the superblock with `blocks` blocks, at most as many as before. The free counts are
/// unchanged. Blocks of descriptors that are not needed any more are reserved, as far as the resize
/// inode can name them.
pub(super) fn smaller(superblock: &Superblock, blocks: u64) -> Result<Superblock> {
    let mut new = with_counts(superblock, blocks)?;
    if new.has_meta_bg() {
        // The table at the start holds the first descriptors, and keeps its length.
        return Ok(new);
    }
    if new.features.compat.contains(Compat::RESIZE_INODE) {
        let saved = superblock.descriptor_blocks() - new.descriptor_blocks();
        let most = superblock.block_size as u64 / 4;
        let reserved = u64::from(superblock.raw.reserved_gdt_blocks.get()) + saved;
        // At most a quarter of a block size.
        new.raw.reserved_gdt_blocks = (reserved.min(most) as u16).into();
    }
    Ok(new)
}

/// The least sizes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeastBlocks {
    /// Reached at once.
    pub(super) now: u64,
    /// A lower bound of what repeated shrinks reach: the metadata of removed groups is free only
    /// after they are removed.
    pub(super) finally: u64,
}

/// Returns the least number of blocks for what the file system holds.
pub(super) fn least(superblock: &Superblock, maps: &GroupMaps) -> Result<LeastBlocks> {
    let groups = superblock.group_count;
    let system: u64 = (0..groups)
        .map(|group| system_blocks(superblock, group))
        .sum();
    let used = superblock.block_count - superblock.first_data_block - maps.free_blocks();
    let content = used.saturating_sub(system);
    let inodes = u64::from(superblock.inode_count) - maps.free_inodes();
    // Extent trees may need more nodes.
    let slack = 8 + content / 1000;
    let find = |keeps_removed: bool| -> Result<u64> {
        let least_groups = inodes.div_ceil(superblock.inodes_per_group.into()).max(1);
        let (mut kept_system, mut metadata_end) = (0, 0);
        for count in 1..=groups {
            let group = count - 1;
            kept_system += system_blocks(superblock, group);
            metadata_end = metadata_end.max(maps.metadata_end(superblock, group));
            let is_kept = superblock.has_meta_bg()
                && count.div_ceil(superblock.descriptors_per_block())
                    < superblock.raw.first_meta_bg.get();
            if u64::from(count) < least_groups || is_kept {
                continue;
            }
            let end = blocks_of_groups(superblock, count.into()).min(superblock.block_count);
            let removed = if keeps_removed {
                maps.metadata_below(superblock, count, end)
            } else {
                0
            };
            let own = if group == 0 {
                0
            } else {
                system_blocks(superblock, group)
            };
            let last = superblock.group_start(group) + own + LAST_GROUP_DATA_BLOCKS_MIN;
            let blocks = (superblock.first_data_block + content + slack + kept_system + removed)
                .max(metadata_end)
                .max(last)
                .next_multiple_of(PAGE_SIZE as u64 / superblock.block_size as u64);
            if blocks <= end {
                return Ok(blocks);
            }
        }
        Ok(superblock.block_count)
    };
    Ok(LeastBlocks {
        now: find(true)?,
        finally: find(false)?,
    })
}
