//! The resize inode, which owns the blocks reserved after the group descriptors.
//!
//! ```text
//!   inode 7 -> double indirect block -> each reserved block of group 0 -> its backups
//! ```
//!
//! Its contents follow from the superblock. They are compared with the old superblock first, then
//! updated to the new one. Linux: `verify_reserved_gdb`, `reserve_backup_gdb`, `add_new_gdb`.

use super::changes::BlockChanges;
use super::layout::{descriptor, free_block};
use crate::base::{Error, Result};
use crate::fs::ext4::layout::checksum::{inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{RESIZE_INODE, RawInode, inode_flags};
use crate::fs::ext4::layout::features::Compat;
use crate::fs::ext4::layout::superblock::Superblock;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Slot of the double indirect block in `i_block`.
const DOUBLE: usize = 13;

/// Updates the resize inode to the new size. Removes the blocks that hold descriptors now, which
/// are in `changes` already, and adds the backups in new groups.
pub(super) fn update(changes: &mut BlockChanges<'_>, new: &Superblock) -> Result<()> {
    let old = changes.old();
    let has_more_backups = (old.group_count..new.group_count).any(|group| new.has_backup(group));
    let is_needed = has_more_backups || new.descriptor_blocks() != old.descriptor_blocks();
    if !new.features.compat.contains(Compat::RESIZE_INODE) || !is_needed {
        return Ok(());
    }
    let mut inode = ResizeInode::load(changes)?;
    let double = pointer(&inode.raw.block, DOUBLE);
    check(changes, &inode.raw, u64::from(double))
        .map_err(|error| error.at(format!("inode {RESIZE_INODE}")))?;
    let words = old.block_size / 4;
    let table = changes.block(double.into())?;
    for slot in old.descriptor_blocks()..new.descriptor_blocks() {
        put_pointer(table, slot as usize % words, 0);
    }
    let backups = backups(new);
    if has_more_backups {
        for slot in reserved(new) {
            let block = new.first_descriptor_block() + slot;
            let list = changes.block(block)?;
            for (index, copy) in copies(new, block, &backups)?.into_iter().enumerate() {
                put_pointer(list, index, copy);
            }
        }
    }
    inode.raw.blocks_lo = sectors(new, &backups).into();
    inode.store(changes)
}

/// Writes the resize inode anew for `new`, which has fewer groups. The descriptors of the groups
/// beyond them are replaced by lists of backups. `moved` returns a place for the double indirect
/// block if that is beyond the new end; the old one is free then.
pub(super) fn rebuild(
    changes: &mut BlockChanges<'_>,
    new: &Superblock,
    moved: impl FnOnce(u64) -> Result<u64>,
) -> Result<()> {
    if !new.features.compat.contains(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let mut inode = ResizeInode::load(changes)?;
    let double = u64::from(pointer(&inode.raw.block, DOUBLE));
    check(changes, &inode.raw, double)
        .map_err(|error| error.at(format!("inode {RESIZE_INODE}")))?;
    let double = if double >= new.block_count {
        moved(double)?
    } else {
        double
    };
    // The resize inode exists below 2^32 blocks only.
    put_pointer(&mut inode.raw.block, DOUBLE, double as u32);
    let words = new.block_size / 4;
    let backups = backups(new);
    let table = changes.new_block(double);
    for slot in reserved(new) {
        let block = (new.first_descriptor_block() + slot) as u32;
        put_pointer(table, slot as usize % words, block);
    }
    for slot in reserved(new) {
        let block = new.first_descriptor_block() + slot;
        let copies = copies(new, block, &backups)?;
        let list = changes.new_block(block);
        for (index, copy) in copies.into_iter().enumerate() {
            put_pointer(list, index, copy);
        }
    }
    inode.raw.blocks_lo = sectors(new, &backups).into();
    inode.store(changes)
}

/// Empties the resize inode, whose only block left is its double indirect block. Returns the number
/// of freed blocks.
pub(super) fn remove(changes: &mut BlockChanges<'_>, old: &Superblock) -> Result<u64> {
    if !old.features.compat.contains(Compat::RESIZE_INODE) {
        return Ok(0);
    }
    let mut inode = ResizeInode::load(changes)?;
    let double = u64::from(pointer(&inode.raw.block, DOUBLE));
    check(changes, &inode.raw, double)
        .map_err(|error| error.at(format!("inode {RESIZE_INODE}")))?;
    inode.raw = zerocopy::FromZeros::new_zeroed();
    inode.store(changes)?;
    free_block(changes, old, double)
}

/// The resize inode, and where it is: its block, and its bytes in the block.
struct ResizeInode {
    block: u64,
    range: Range<usize>,
    raw: RawInode,
}

impl ResizeInode {
    /// Reads the inode, with the changes so far.
    fn load(changes: &mut BlockChanges<'_>) -> Result<Self> {
        let old = changes.old();
        let raw = descriptor(changes, 0)?;
        let table = u64::from(raw.inode_table_hi.get()) << 32 | u64::from(raw.inode_table_lo.get());
        let at = (RESIZE_INODE as usize - 1) * old.inode_size;
        let block = table + (at / old.block_size) as u64;
        let start = at % old.block_size;
        let range = start..start + old.inode_size;
        let raw = RawInode::of_bytes(&changes.read(block)?[range.clone()]);
        Ok(Self { block, range, raw })
    }

    /// Adds the inode to the changes, with its checksum.
    fn store(&self, changes: &mut BlockChanges<'_>) -> Result<()> {
        let inode = &self.raw;
        let seed = changes.old().checksum_seed;
        let bytes = &mut changes.block(self.block)?[self.range.clone()];
        let known = bytes.len().min(size_of::<RawInode>());
        bytes[..known].copy_from_slice(&inode.as_bytes()[..known]);
        if let Some(seed) = seed {
            let mut sealed = *inode;
            let seed = inode_seed(seed, RESIZE_INODE, inode.generation.get());
            let has_high = bytes.len() > 128 && inode.extra_isize.get() >= 4;
            let crc = inode_checksum(seed, bytes, has_high);
            sealed.checksum_lo = (crc as u16).into();
            if has_high {
                sealed.checksum_hi = ((crc >> 16) as u16).into();
            }
            bytes[..known].copy_from_slice(&sealed.as_bytes()[..known]);
        }
        Ok(())
    }
}

/// Fails with EUCLEAN unless the contents follow from the old superblock.
fn check(changes: &BlockChanges<'_>, inode: &RawInode, double: u64) -> Result<()> {
    let old = changes.old();
    let backups = backups(old);
    let is_plain = inode.flags.get() & (inode_flags::EXTENTS | inode_flags::HUGE_FILE) == 0
        && inode.blocks_lo.get() == sectors(old, &backups)
        && (0..15).all(|slot| (slot == DOUBLE) == (pointer(&inode.block, slot) != 0));
    let wrong = || {
        Err(Error::corrupt(
            "does not match the reserved group descriptor blocks; run e2fsck",
        ))
    };
    if !is_plain || double >= old.block_count {
        return wrong();
    }
    let table = changes.read(double)?;
    let words = old.block_size / 4;
    for slot in reserved(old) {
        let block = old.first_descriptor_block() + slot;
        if u64::from(pointer(&table, slot as usize % words)) != block {
            return wrong();
        }
        // Read the device, because `changes` has descriptors in some of these blocks.
        let list = changes.read_device(block)?;
        let copies = copies(old, block, &backups)?;
        if !copies
            .iter()
            .enumerate()
            .all(|(index, copy)| pointer(&list, index) == *copy)
        {
            return wrong();
        }
    }
    Ok(())
}

/// Returns the slots of the descriptor table that are reserved for growth.
fn reserved(superblock: &Superblock) -> Range<u64> {
    let used = superblock.descriptor_blocks();
    used..used + u64::from(superblock.raw.reserved_gdt_blocks.get())
}

fn backups(superblock: &Superblock) -> Vec<u32> {
    (1..superblock.group_count)
        .filter(|group| superblock.has_backup(*group))
        .collect()
}

/// Returns the backups of a reserved block.
fn copies(superblock: &Superblock, block: u64, backups: &[u32]) -> Result<Vec<u32>> {
    let copy = |group: &u32| {
        u32::try_from(block + u64::from(*group) * u64::from(superblock.blocks_per_group))
            .map_err(|_| Error::unsupported("resize inode beyond 2^32 blocks"))
    };
    if backups.len() * 4 <= superblock.block_size {
        backups.iter().map(copy).collect()
    } else {
        Err(Error::unsupported(
            "resize inode with more backups than fit in a block",
        ))
    }
}

/// Returns `i_blocks`: the double indirect block, the reserved blocks and their backups.
fn sectors(superblock: &Superblock, backups: &[u32]) -> u32 {
    let reserved = u32::from(superblock.raw.reserved_gdt_blocks.get());
    // Below 2^16 reserved blocks, and 2^10 backups of each.
    let blocks = u64::from(reserved) * (1 + backups.len() as u64) + 1;
    (blocks * (superblock.block_size as u64 / 512)) as u32
}

fn pointer(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put_pointer(bytes: &mut [u8], index: usize, value: u32) {
    bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
}
