//! A new journal for a file system whose journal's inode is lost, and held nothing.
//! Counterpart: `tune2fs -j`, and e2fsck after it has deleted a journal.

use super::apply::{change_inode, change_superblock, mount, read_inode};
use crate::base::{Clock, LogicalBlock, Result};
use crate::block::Device;
use crate::fs::ext4::check::fix::{InodeChange, SuperblockChange};
use crate::fs::ext4::journal::write_empty_superblock;
use crate::fs::ext4::layout::disk::{JOURNAL_INODE, RawInode, inode_flags};
use crate::fs::ext4::layout::extent;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::mkfs::geometry::journal_block_count;
use crate::vfs::FileSystem;
use std::sync::Arc;
use zerocopy::FromZeros;

/// Blocks of the new journal, at most: they are in memory until the repair is written.
const BLOCKS_MAX: u32 = 8192;

/// Makes a journal in the reserved inode, on a file system without errors and without a journal.
///
/// # Errors
/// ENOSPC.
pub(super) fn make_journal(device: &Arc<dyn Device>, clock: Clock) -> Result<()> {
    let superblock = Superblock::load(&**device)?;
    let count = journal_block_count(superblock.block_count).clamp(1024, BLOCKS_MAX);
    let has_extents = superblock.features.incompat.contains(Incompat::EXTENT);
    // The lower 32 bits.
    let now = clock.now().secs as u32;
    let prepare: InodeChange = Box::new(move |raw| {
        *raw = RawInode {
            mode: 0o100_600.into(),
            links_count: 1.into(),
            extra_isize: raw.extra_isize,
            atime: now.into(),
            ctime: now.into(),
            mtime: now.into(),
            ..RawInode::new_zeroed()
        };
        if has_extents {
            raw.flags = inode_flags::EXTENTS.into();
            raw.block = extent::empty_root();
        }
    });
    change_inode(&**device, &superblock, JOURNAL_INODE, prepare)?;

    let mounted = mount(device, clock)?;
    let inode = mounted.fs.inode(JOURNAL_INODE.into())?;
    for logical in (0..count).map(LogicalBlock) {
        inode.append_metadata(logical, |bytes| {
            if logical.0 == 0 {
                write_empty_superblock(bytes, count, superblock.raw.uuid);
            }
            Ok(())
        })?;
    }
    drop(inode);
    mounted.unmount()?;

    let size = u64::from(count) * superblock.block_size as u64;
    let set_size: InodeChange = Box::new(move |raw| {
        // At most 8192 blocks of 64 KiB.
        raw.size_lo = (size as u32).into();
    });
    change_inode(&**device, &superblock, JOURNAL_INODE, set_size)?;
    let inode = read_inode(&**device, &superblock, JOURNAL_INODE)?;
    let record: SuperblockChange = Box::new(move |raw| {
        raw.feature_compat = (raw.feature_compat.get() | Compat::HAS_JOURNAL.bits()).into();
        raw.journal_inum = JOURNAL_INODE.into();
        raw.back_up_journal(&inode);
    });
    change_superblock(&**device, vec![record])
}
