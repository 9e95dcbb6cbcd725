//! The resize inode: it holds the blocks kept behind the group descriptors for more of them.
//!
//! ```text
//!   inode 7 -> doubly indirect block -> each kept block of group 0 -> the same block in each group with a copy
//! ```
//!
//! All of it follows from the superblock; here it is compared with that before, and made to follow
//! from the new one. Linux: `verify_reserved_gdb`, `reserve_backup_gdb`, `add_new_gdb`.

use super::changes::Changes;
use super::layout::{descriptor, free_block};
use crate::base::{Error, Result};
use crate::fs::ext4::layout::checksum::{inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{RESIZE_INODE, RawInode, inode_flags};
use crate::fs::ext4::layout::features::Compat;
use crate::fs::ext4::layout::superblock::Superblock;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Place of the doubly indirect block in the old mapping of `i_block`.
const DOUBLE: usize = 13;

/// Makes the resize inode what it has to be at the new size: some of its blocks hold descriptors
/// now, which are in `changes` already, and the others have copies in new groups.
pub(super) fn update(changes: &mut Changes<'_>, new: &Superblock) -> Result<()> {
    let old = changes.old();
    let has_more_backups = (old.group_count..new.group_count).any(|group| new.has_backup(group));
    let is_needed = has_more_backups || new.descriptor_blocks() != old.descriptor_blocks();
    if !new.features.compat.contains(Compat::RESIZE_INODE) || !is_needed {
        return Ok(());
    }
    let place = place(changes)?;
    let mut inode = load(changes, &place)?;
    let double = pointer(&inode.block, DOUBLE);
    check(changes, &inode, u64::from(double))
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
    inode.blocks_lo = sectors(new, &backups).into();
    store(changes, &place, &inode)
}

/// Empties the resize inode, which holds nothing but its own block. Returns how many blocks became
/// free.
pub(super) fn remove(changes: &mut Changes<'_>, old: &Superblock) -> Result<u64> {
    if !old.features.compat.contains(Compat::RESIZE_INODE) {
        return Ok(0);
    }
    let place = place(changes)?;
    let inode = load(changes, &place)?;
    let double = u64::from(pointer(&inode.block, DOUBLE));
    check(changes, &inode, double).map_err(|error| error.at(format!("inode {RESIZE_INODE}")))?;
    store(changes, &place, &zerocopy::FromZeros::new_zeroed())?;
    free_block(changes, old, double)
}

/// Where the inode lies: block, and bytes in it.
fn place(changes: &mut Changes<'_>) -> Result<(u64, Range<usize>)> {
    let old = changes.old();
    let raw = descriptor(changes, 0)?;
    let table = u64::from(raw.inode_table_hi.get()) << 32 | u64::from(raw.inode_table_lo.get());
    let at = (RESIZE_INODE as usize - 1) * old.inode_size;
    let start = at % old.block_size;
    Ok((
        table + (at / old.block_size) as u64,
        start..start + old.inode_size,
    ))
}

fn load(changes: &Changes<'_>, (block, range): &(u64, Range<usize>)) -> Result<RawInode> {
    let bytes = &changes.read(*block)?[range.clone()];
    let mut padded = [0; size_of::<RawInode>()];
    let known = bytes.len().min(padded.len());
    padded[..known].copy_from_slice(&bytes[..known]);
    RawInode::read_from_bytes(&padded).map_err(|_| Error::corrupt("inode cut short"))
}

fn store(
    changes: &mut Changes<'_>,
    (block, range): &(u64, Range<usize>),
    inode: &RawInode,
) -> Result<()> {
    let seed = changes.old().checksum_seed;
    let bytes = &mut changes.block(*block)?[range.clone()];
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

/// EUCLEAN unless all is as it follows from the old superblock.
fn check(changes: &Changes<'_>, inode: &RawInode, double: u64) -> Result<()> {
    let old = changes.old();
    let backups = backups(old);
    let is_plain = inode.flags.get() & (inode_flags::EXTENTS | inode_flags::HUGE_FILE) == 0
        && inode.blocks_lo.get() == sectors(old, &backups)
        && (0..15).all(|slot| (slot == DOUBLE) == (pointer(&inode.block, slot) != 0));
    let wrong = || {
        Err(Error::corrupt(
            "does not hold what is kept for group descriptors; run e2fsck",
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
        // Some of these hold descriptors by now, though not on the device.
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

/// Blocks of the table of descriptors that are kept for later.
fn reserved(superblock: &Superblock) -> Range<u64> {
    let used = superblock.descriptor_blocks();
    used..used + u64::from(superblock.raw.reserved_gdt_blocks.get())
}

fn backups(superblock: &Superblock) -> Vec<u32> {
    (1..superblock.group_count)
        .filter(|group| superblock.has_backup(*group))
        .collect()
}

/// Where the copies of a kept block lie.
fn copies(superblock: &Superblock, block: u64, backups: &[u32]) -> Result<Vec<u32>> {
    let copy = |group: &u32| {
        u32::try_from(block + u64::from(*group) * u64::from(superblock.blocks_per_group))
            .map_err(|_| Error::unsupported("a resize inode beyond 2^32 blocks"))
    };
    if backups.len() * 4 <= superblock.block_size {
        backups.iter().map(copy).collect()
    } else {
        Err(Error::unsupported(
            "a resize inode with more copies than a block names",
        ))
    }
}

/// `i_blocks`: the doubly indirect block, the kept blocks and their copies.
fn sectors(superblock: &Superblock, backups: &[u32]) -> u32 {
    let kept = u32::from(superblock.raw.reserved_gdt_blocks.get());
    // Below 2^16 kept blocks, and 2^10 copies of each.
    let blocks = u64::from(kept) * (1 + backups.len() as u64) + 1;
    (blocks * (superblock.block_size as u64 / 512)) as u32
}

fn pointer(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put_pointer(bytes: &mut [u8], index: usize, value: u32) {
    bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
}
