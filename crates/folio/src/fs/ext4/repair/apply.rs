//! Applies fixes to the overlay of a repair, and updates the checksums of what they change.

use crate::base::{Clock, Error, Result};
use crate::block::Device;
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::check::fix::{BlockChange, Fix, GroupState, InodeChange, SuperblockChange};
use crate::fs::ext4::check::journal_blocks;
use crate::fs::ext4::inode::Ext4;
use crate::fs::ext4::journal;
use crate::fs::ext4::layout::checksum::{crc32c, inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{
    GROUP_BLOCK_UNINIT, GROUP_INODE_UNINIT, INODE_BASE_LEN, INODE_CHECKSUM_HI_OFFSET,
    INODE_CHECKSUM_LO_OFFSET, RawGroupDescriptor, RawInode, RawSuperblock, STATE_ERROR,
    STATE_VALID, SUPERBLOCK_CHECKSUM_OFFSET, SUPERBLOCK_OFFSET,
};
use crate::fs::ext4::layout::features::{Compat, Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::mount::Mounted;
use crate::fs::ext4::space::group::descriptor_checksum;
use crate::vfs::MountOptions;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Replays the journal and its fast commits, if the superblock requests it; returns the number of
/// transactions.
pub(super) fn replay(device: &Arc<dyn Device>) -> Result<Option<u32>> {
    let Ok(superblock) = Superblock::load_for_recovery(&**device) else {
        // The check reports the superblock, and may repair it.
        return Ok(None);
    };
    let features = &superblock.features;
    if !features.incompat.contains(Incompat::NEEDS_RECOVERY)
        || !features.compat.contains(Compat::HAS_JOURNAL)
    {
        return Ok(None);
    }
    superblock.check_own_journal()?;
    let Some(blocks) = journal_blocks(device, &superblock)? else {
        return Err(Error::corrupt("needs recovery, but the journal is missing"));
    };
    let recovered = journal::recover(blocks, device.clone(), superblock.has_error_mark())?;
    let options = MountOptions::default();
    Ext4::complete_replay(device, &cache(), &options, &recovered)?;
    let count = recovered.transactions;
    recovered.finish()?;
    Superblock::write_recovery_flag(&**device, false)?;
    Ok(Some(count))
}

/// Mounts the overlay of a repair.
pub(super) fn mount(device: &Arc<dyn Device>, clock: Clock) -> Result<Mounted> {
    let options = MountOptions {
        clock,
        ..MountOptions::default()
    };
    Ext4::open(device.clone(), &cache(), &options)
}

fn cache() -> Arc<PageCache> {
    PageCache::new(CacheOptions {
        background_writeback: false,
        ..CacheOptions::default()
    })
}

/// Applies fixes. Those of the superblock come last: all other fixes rely on its present numbers.
pub(super) fn apply(device: &dyn Device, fixes: Vec<Fix>) -> Result<()> {
    let (mut changes, mut restored, mut rest) = (Vec::new(), None, Vec::new());
    let has_damaged_bits = fixes.iter().any(|fix| matches!(fix, Fix::InodeBit(..)));
    for fix in fixes {
        match fix {
            Fix::InodeBit(..) => rest.push(fix),
            // Fixes beside it may rest on the damaged inode: the next round finds the right ones.
            _ if has_damaged_bits => {}
            Fix::Superblock(change) => changes.push(change),
            Fix::RestoreSuperblock(raw) => restored = Some(raw),
            fix => rest.push(fix),
        }
    }
    if let Some(raw) = restored {
        // The other fixes belong to the numbers of the backup: the next round finds them again.
        return restore_superblock(device, *raw);
    }
    if !rest.is_empty() {
        let superblock = read_superblock(device)?;
        let superblock = Superblock::load_unsealed(superblock, device.len_bytes())?;
        for fix in rest {
            match fix {
                Fix::Group(state) => write_group(device, &superblock, &state)?,
                Fix::WholeInodeTable(group) => {
                    let change = |raw: &mut RawGroupDescriptor| {
                        (raw.itable_unused_lo, raw.itable_unused_hi) = (0.into(), 0.into());
                        raw.flags = (raw.flags.get() & !GROUP_INODE_UNINIT).into();
                    };
                    change_descriptor(device, &superblock, group, change)?;
                }
                Fix::Inode(number, change) => change_inode(device, &superblock, number, change)?,
                Fix::InodeBit(number, bit) => {
                    let offset = inode_offset(device, &superblock, number)? + bit as u64 / 8;
                    let mut byte = [0];
                    device.read_at(&mut byte, offset)?;
                    device.write_at(&[byte[0] ^ 1 << (bit % 8)], offset)?;
                }
                Fix::Block(block, change) => change_block(device, &superblock, block, change)?,
                // The caller mounts the file system for the last five.
                Fix::Superblock(_)
                | Fix::RestoreSuperblock(_)
                | Fix::Orphan
                | Fix::Reconnect(_)
                | Fix::Unshare(..)
                | Fix::FillDirectory(..)
                | Fix::NewJournal => {}
            }
        }
    }
    change_superblock(device, changes)
}

fn read_superblock(device: &dyn Device) -> Result<RawSuperblock> {
    let mut bytes = [0; size_of::<RawSuperblock>()];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    Ok(zerocopy::transmute!(bytes))
}

fn write_superblock(device: &dyn Device, mut raw: RawSuperblock) -> Result<()> {
    if RoCompat::from_bits_retain(raw.feature_ro_compat.get()).contains(RoCompat::METADATA_CSUM) {
        raw.checksum = crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_CHECKSUM_OFFSET]).into();
    }
    device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET)
}

fn restore_superblock(device: &dyn Device, mut raw: RawSuperblock) -> Result<()> {
    raw.block_group_nr = 0.into();
    write_superblock(device, raw)
}

pub(super) fn change_superblock(device: &dyn Device, changes: Vec<SuperblockChange>) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut raw = read_superblock(device)?;
    for change in changes {
        change(&mut raw);
    }
    raw.state = (raw.state.get() & !STATE_ERROR | STATE_VALID).into();
    raw.error_count = 0.into();
    write_superblock(device, raw)
}

/// Records in the superblock that the whole file system was checked now, without an error.
pub(super) fn mark_clean(device: &dyn Device, clock: Clock) -> Result<()> {
    let now = clock.now().secs;
    let mut raw = read_superblock(device)?;
    raw.state = (raw.state.get() & !STATE_ERROR | STATE_VALID).into();
    raw.error_count = 0.into();
    // The lower 32 bits; the upper ones have fields of their own.
    (raw.lastcheck, raw.wtime) = ((now as u32).into(), (now as u32).into());
    (raw.lastcheck_hi, raw.wtime_hi) = ((now >> 32) as u8, (now >> 32) as u8);
    raw.mnt_count = 0.into();
    write_superblock(device, raw)
}

fn change_block(
    device: &dyn Device,
    superblock: &Superblock,
    block: u64,
    change: BlockChange,
) -> Result<()> {
    let mut bytes = vec![0; superblock.block_size];
    let offset = block * superblock.block_size as u64;
    device.read_at(&mut bytes, offset)?;
    change(&mut bytes);
    device.write_at(&bytes, offset)
}

/// Reads a group's descriptor; returns its bytes and its offset on the device.
fn read_descriptor(
    device: &dyn Device,
    superblock: &Superblock,
    group: u32,
) -> Result<(Vec<u8>, u64)> {
    let (block, at) = superblock.descriptor_place(group);
    let offset = block.0 * superblock.block_size as u64 + at as u64;
    let mut bytes = vec![0; superblock.descriptor_len];
    device.read_at(&mut bytes, offset)?;
    Ok((bytes, offset))
}

fn raw_descriptor(bytes: &[u8]) -> RawGroupDescriptor {
    let mut padded = [0; size_of::<RawGroupDescriptor>()];
    let known = bytes.len().min(padded.len());
    padded[..known].copy_from_slice(&bytes[..known]);
    zerocopy::transmute!(padded)
}

/// Returns where an inode is, in bytes.
fn inode_offset(device: &dyn Device, superblock: &Superblock, number: u32) -> Result<u64> {
    let index = number - 1;
    let (group, slot) = (
        index / superblock.inodes_per_group,
        index % superblock.inodes_per_group,
    );
    let descriptor = raw_descriptor(&read_descriptor(device, superblock, group)?.0);
    let table = u64::from(descriptor.inode_table_hi.get()) << 32
        | u64::from(descriptor.inode_table_lo.get());
    let (block_size, size) = (superblock.block_size as u64, superblock.inode_size as u64);
    Ok(table * block_size + u64::from(slot) * size)
}

/// Reads an inode's fields.
pub(super) fn read_inode(
    device: &dyn Device,
    superblock: &Superblock,
    number: u32,
) -> Result<RawInode> {
    let mut bytes = vec![0; superblock.inode_size];
    device.read_at(&mut bytes, inode_offset(device, superblock, number)?)?;
    Ok(RawInode::of_bytes(&bytes))
}

pub(super) fn change_inode(
    device: &dyn Device,
    superblock: &Superblock,
    number: u32,
    change: InodeChange,
) -> Result<()> {
    let size = superblock.inode_size;
    let offset = inode_offset(device, superblock, number)?;
    let mut bytes = vec![0; size];
    device.read_at(&mut bytes, offset)?;
    let known = size.min(size_of::<RawInode>());
    let mut raw = RawInode::of_bytes(&bytes);
    change(&mut raw);
    bytes[..known].copy_from_slice(&raw.as_bytes()[..known]);
    if let Some(seed) = superblock.checksum_seed {
        let has_high = size > INODE_BASE_LEN && raw.extra_isize.get() >= 4;
        let sum = inode_checksum(
            inode_seed(seed, number, raw.generation.get()),
            &bytes,
            has_high,
        );
        let [low, high] = [sum as u16, (sum >> 16) as u16].map(u16::to_le_bytes);
        bytes[INODE_CHECKSUM_LO_OFFSET..INODE_CHECKSUM_LO_OFFSET + 2].copy_from_slice(&low);
        if has_high {
            bytes[INODE_CHECKSUM_HI_OFFSET..INODE_CHECKSUM_HI_OFFSET + 2].copy_from_slice(&high);
        }
    }
    device.write_at(&bytes, offset)
}

/// Returns the block of a bitmap with `bits`; all bits from `len` on are ones.
fn bitmap_block(bits: &[u64], len: u32, block_size: usize) -> Vec<u8> {
    let mut bytes = vec![0xFF; block_size];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(bits) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let len = len as usize;
    for bit in len..(len.div_ceil(64) * 64).min(8 * block_size) {
        bytes[bit / 8] |= 1 << (bit % 8);
    }
    bytes
}

/// Changes a group's descriptor, and updates its checksum.
fn change_descriptor(
    device: &dyn Device,
    superblock: &Superblock,
    group: u32,
    change: impl FnOnce(&mut RawGroupDescriptor),
) -> Result<()> {
    let (mut bytes, offset) = read_descriptor(device, superblock, group)?;
    let mut raw = raw_descriptor(&bytes);
    let has_flags = superblock
        .features
        .ro_compat
        .intersects(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG);
    if !has_flags {
        raw.flags = 0.into();
    }
    change(&mut raw);
    let known = bytes.len().min(size_of::<RawGroupDescriptor>());
    bytes[..known].copy_from_slice(&raw.as_bytes()[..known]);
    if has_flags {
        raw.checksum = descriptor_checksum(group, &bytes, superblock).into();
        bytes[..known].copy_from_slice(&raw.as_bytes()[..known]);
    }
    device.write_at(&bytes, offset)
}

/// Writes the bitmaps of a group, and their checksums and counts into its descriptor.
fn write_group(device: &dyn Device, superblock: &Superblock, state: &GroupState) -> Result<()> {
    let block_size = superblock.block_size;
    let count = |bits: &[u64]| bits.iter().map(|word| word.count_ones()).sum::<u32>();
    let blocks = bitmap_block(&state.blocks, state.block_bits, block_size);
    device.write_at(&blocks, state.block_bitmap * block_size as u64)?;
    let inodes = bitmap_block(&state.inodes, state.inode_bits, block_size);
    if !state.has_no_inodes {
        device.write_at(&inodes, state.inode_bitmap * block_size as u64)?;
    }
    let covered = superblock.blocks_per_group / superblock.cluster_blocks / 8;
    let sum = |bytes: &[u8], covered: u32| {
        let seed = superblock.checksum_seed;
        seed.map_or(0, |seed| crc32c(seed, &bytes[..covered as usize]))
    };
    let halves = |whole: u32| (whole as u16, (whole >> 16) as u16);
    change_descriptor(device, superblock, state.number, |raw| {
        let halves_of_block = |block: u64| ((block as u32).into(), ((block >> 32) as u32).into());
        (raw.block_bitmap_lo, raw.block_bitmap_hi) = halves_of_block(state.block_bitmap);
        (raw.inode_bitmap_lo, raw.inode_bitmap_hi) = halves_of_block(state.inode_bitmap);
        let mut flags = raw.flags.get() & !GROUP_BLOCK_UNINIT;
        let (low, high) = halves(sum(&blocks, covered));
        (raw.block_bitmap_csum_lo, raw.block_bitmap_csum_hi) = (low.into(), high.into());
        let (low, high) = halves(state.block_bits - count(&state.blocks));
        (raw.free_blocks_count_lo, raw.free_blocks_count_hi) = (low.into(), high.into());
        if !state.has_no_inodes {
            flags &= !GROUP_INODE_UNINIT;
            let (low, high) = halves(sum(&inodes, state.inode_bits / 8));
            (raw.inode_bitmap_csum_lo, raw.inode_bitmap_csum_hi) = (low.into(), high.into());
        }
        let (low, high) = halves(state.inode_bits - count(&state.inodes));
        (raw.free_inodes_count_lo, raw.free_inodes_count_hi) = (low.into(), high.into());
        let (low, high) = halves(state.directories);
        (raw.used_dirs_count_lo, raw.used_dirs_count_hi) = (low.into(), high.into());
        let (low, high) = halves(state.unused_inodes);
        (raw.itable_unused_lo, raw.itable_unused_hi) = (low.into(), high.into());
        raw.flags = flags.into();
    })
}
