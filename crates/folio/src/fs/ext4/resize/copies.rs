//! Backups of superblock and descriptors in other groups, for e2fsck.

use crate::base::{Result, Timespec};
use crate::block::Device;
use crate::fs::ext4::layout::disk::STATE_VALID;
use crate::fs::ext4::layout::superblock::Superblock;
use std::io::IoSlice;

/// Updates all backups. Writes only blocks that are reserved for backups.
pub(super) fn write(device: &dyn Device, superblock: &Superblock, now: Timespec) -> Result<()> {
    let size = superblock.block_size as u64;
    let per_block = superblock.descriptors_per_block();
    let table_len = if superblock.has_meta_bg() {
        superblock
            .descriptor_blocks()
            .min(superblock.raw.first_meta_bg.get().into())
    } else {
        superblock.descriptor_blocks()
    };
    // As long as the table read at mount.
    let mut table = vec![0; table_len as usize * superblock.block_size];
    device.read_at(&mut table, superblock.first_descriptor_block() * size)?;
    let mut copy = superblock.clone();
    // A backup must not claim to be clean.
    copy.raw.state = (copy.raw.state.get() & !STATE_VALID).into();
    for group in (1..superblock.group_count).filter(|group| superblock.has_backup(*group)) {
        copy.raw.block_group_nr = u16::try_from(group).unwrap_or(u16::MAX).into();
        let mut block = vec![0; superblock.block_size];
        let bytes = copy.to_bytes(now);
        block[..bytes.len()].copy_from_slice(&bytes);
        let has_table = !superblock.has_meta_bg() || u64::from(group / per_block) < table_len;
        let parts = [
            IoSlice::new(&block),
            IoSlice::new(if has_table { &table } else { &[] }),
        ];
        device.write_vectored_at(&parts, superblock.group_start(group) * size)?;
    }
    let mut block = vec![0; superblock.block_size];
    // With meta_bg, each block of descriptors has backups in two of its groups.
    for first in (0..superblock.group_count)
        .step_by(per_block as usize)
        .skip(table_len as usize)
    {
        device.read_at(&mut block, superblock.descriptor_place(first).0.0 * size)?;
        for group in [first + 1, first + per_block - 1]
            .into_iter()
            .filter(|g| *g < superblock.group_count)
        {
            let place = superblock.group_start(group) + u64::from(superblock.has_backup(group));
            device.write_at(&block, place * size)?;
        }
    }
    Ok(())
}
