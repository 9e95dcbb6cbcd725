//! The journal: its replay in memory before all other checks, then the check of its superblock.
//! Linux: fs/jbd2.

use super::checker::Checker;
use super::extents::has_header;
use super::fix::{BlockChange, Fix, InodeChange, SuperblockChange};
use super::inodes::raw_inode;
use super::report::{CheckedStructure, FindingLocation, FindingReporter};
use super::special::read_file_ahead;
use super::superblock::needs_recovery;
use crate::base::Result;
use crate::block::{self, Device};
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::inode::Ext4;
use crate::fs::ext4::journal::{self, JournalBlocks};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{JOURNAL_BACKUP_BLOCKS, JOURNAL_INODE, RawInode, inode_flags};
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::vfs::MountOptions;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// Minimum length of a journal in blocks (`JBD2_MIN_JOURNAL_BLOCKS`).
const BLOCKS_MIN: u64 = 1024;
/// First word of the journal's superblock.
const MAGIC: u32 = 0xC03B_3998;
/// `h_blocktype` of superblocks of version 1 and 2.
const TYPES: [u32; 2] = [3, 4];
/// Known incompatible features: revoke, 64bit, async_commit, csum_v2, csum_v3, fast_commit.
const KNOWN_INCOMPAT: u32 = 0x3F;
const INCOMPAT_CSUM_V2: u32 = 0x8;
const INCOMPAT_CSUM_V3: u32 = 0x10;
const INCOMPAT_FAST_COMMIT: u32 = 0x20;
/// `s_checksum_type`: crc32c.
const CHECKSUM_CRC32C: u8 = 4;
/// Offset of the superblock's checksum, and the length it covers.
const CHECKSUM_AT: usize = 0xFC;
const SUPERBLOCK_LEN: usize = 1024;
/// Offset of the first field that a superblock of version 1 does not have.
const FIELDS_OF_VERSION_2: usize = 0x24;
/// Length of `i_block`.
const INODE_MAP_LEN: usize = 60;

/// Returns the blocks of the journal's inode; `None` without a journal in an inode.
pub(in crate::fs::ext4) fn journal_blocks(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
) -> Result<Option<JournalBlocks>> {
    let number = superblock.raw.journal_inum.get();
    if number == 0 || !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let file = read_file_ahead(device, superblock, number)?;
    let file = file.filter(|file| file.contiguous_blocks() > 0);
    Ok(file.map(|file| JournalBlocks {
        block_size: superblock.block_size,
        block_count: superblock.block_count,
        // A run belongs to one inode, whose block numbers have 32 bits.
        runs: file
            .runs
            .iter()
            .map(|(_, start, len)| (*start, *len as u32))
            .collect(),
    }))
}

/// Replays the journal into an overlay in memory. Returns the overlay and its superblock, or `None`
/// after reporting why the journal cannot be replayed. Does not write to the device.
pub(super) fn replayed(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    report: &mut FindingReporter<'_>,
) -> Result<Option<(Arc<dyn Device>, Superblock)>> {
    let number = superblock.raw.journal_inum.get();
    if number == 0 {
        // Reported with the journal's other faults.
        return Ok(None);
    }
    let location = FindingLocation::inode(number);
    let Some(blocks) = journal_blocks(device, superblock)? else {
        let what =
            format_args!("needs recovery, but the journal is missing; checked without replay");
        report.error(CheckedStructure::Journal, location, what);
        return Ok(None);
    };
    let layer = block::overlay(device.clone());
    match journal::recover(blocks, layer.clone(), superblock.has_error_mark()) {
        Ok(recovered) => {
            let count = recovered.transactions;
            report.report.replayed_transactions = Some(count);
            let what = format_args!(
                "{count} transactions to be replayed; checked after a replay in memory"
            );
            report.warning(CheckedStructure::Journal, location, what);
            let cache = PageCache::new(CacheOptions {
                background_writeback: false,
                ..CacheOptions::default()
            });
            let options = MountOptions::default();
            if let Err(error) = Ext4::complete_replay(&layer, &cache, &options, &recovered) {
                let what =
                    format_args!("fast commits cannot be replayed: {error}; checked without them");
                report.error(CheckedStructure::Journal, location, what);
            }
        }
        Err(error) => {
            let what = format_args!("cannot be replayed: {error}; checked without replay");
            report.error(CheckedStructure::Journal, location, what);
            return Ok(None);
        }
    }
    Ok(super::superblock::open(&*layer, report, false)?.map(|superblock| (layer, superblock)))
}

/// The journal's superblock; the whole journal is big-endian.
struct JournalSuperblock<'a>(&'a [u8]);

impl JournalSuperblock<'_> {
    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn is_v2(&self) -> bool {
        self.word(4) == TYPES[1]
    }

    fn incompat(&self) -> u32 {
        if self.is_v2() { self.word(0x28) } else { 0 }
    }

    fn has_valid_checksum(&self) -> bool {
        if self.incompat() & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) == 0 {
            return true;
        }
        let crc = crc32c(crc32c(!0, &self.0[..CHECKSUM_AT]), &[0; 4]);
        let crc = crc32c(crc, &self.0[CHECKSUM_AT + 4..SUPERBLOCK_LEN]);
        self.0[0x50] == CHECKSUM_CRC32C && self.word(CHECKSUM_AT) == crc
    }
}

/// Writes the checksum of the journal's superblock.
fn seal_journal(bytes: &mut [u8]) {
    bytes[0x50] = CHECKSUM_CRC32C;
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let crc = crc32c(!0, &bytes[..SUPERBLOCK_LEN]);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&crc.to_be_bytes());
}

impl Checker<'_> {
    /// Checks the journal's inode and superblock. Recovery checks the log.
    pub(super) fn check_journal(&mut self, needs_recovery: bool) {
        if !self.sb.features.compat.contains(Compat::HAS_JOURNAL) {
            return;
        }
        let number = self.sb.raw.journal_inum.get();
        let location = FindingLocation::inode(number);
        if number == 0 {
            if self.sb.raw.journal_dev.get() != 0 {
                let what = format_args!(
                    "on another device, which is not read; changes in it are missing here: use \
                     e2fsck -f -j DEVICE"
                );
                return self
                    .report
                    .error(CheckedStructure::Journal, FindingLocation::NONE, what);
            }
            return self.report.error(
                CheckedStructure::Journal,
                FindingLocation::NONE,
                format_args!("has_journal is set, but the superblock names no journal"),
            );
        }
        if self.sb.raw.journal_uuid != [0; 16] {
            let what = format_args!("named both as an inode and as another device");
            self.report
                .error(CheckedStructure::Journal, FindingLocation::NONE, what);
        }
        let Some(file) = self.special_files.remove(&number) else {
            self.report.error(
                CheckedStructure::Journal,
                location,
                format_args!("the journal's inode is not in use"),
            );
            return self.restore_journal_inode(number);
        };
        let blocks = file.size / self.sb.block_size as u64;
        if blocks < BLOCKS_MIN || file.contiguous_blocks() < blocks {
            let what = format_args!(
                "{blocks} blocks long, {} of them before the first hole",
                file.contiguous_blocks()
            );
            self.report.error(CheckedStructure::Journal, location, what);
            return self.restore_journal_inode(number);
        }
        let Some(first) = file.blocks().next() else {
            return;
        };
        let mut bytes = Vec::new();
        if self.read_block(first, &mut bytes, CheckedStructure::Journal, location) {
            self.check_journal_superblock(
                location.at_block(first),
                &JournalSuperblock(&bytes),
                blocks,
                needs_recovery,
            );
        }
    }

    /// Collects the superblock's copy of the journal inode's mapping and size as a fix.
    fn restore_journal_inode(&mut self, number: u32) {
        let raw = &self.sb.raw;
        let Some(bytes) = self.read_inode(number) else {
            return;
        };
        let inode = raw_inode(&bytes);
        let is_restored = inode.block == raw.jnl_blocks.as_bytes()[..INODE_MAP_LEN];
        // Other numbers are those of files, if they are in use.
        let may_be_replaced = number == JOURNAL_INODE || inode.mode.get() == 0;
        let has_backup = raw.jnl_backup_type == JOURNAL_BACKUP_BLOCKS && !is_restored;
        if !has_backup || !may_be_replaced {
            return self.delete_journal(number);
        }
        let (backup, now) = (raw.jnl_blocks, raw.wtime);
        let restore: InodeChange = Box::new(move |raw| {
            let (map, size) = backup.as_bytes().split_at(INODE_MAP_LEN);
            *raw = RawInode {
                mode: 0o100_600.into(),
                links_count: 1.into(),
                extra_isize: raw.extra_isize,
                ..RawInode::new_zeroed()
            };
            raw.block.copy_from_slice(map);
            raw.size_high.as_mut_bytes().copy_from_slice(&size[..4]);
            raw.size_lo.as_mut_bytes().copy_from_slice(&size[4..]);
            (raw.atime, raw.ctime, raw.mtime) = (now, now, now);
            if has_header(&raw.block) {
                raw.flags = inode_flags::EXTENTS.into();
            }
        });
        // The next check counts its blocks.
        self.report.fix_journal(Fix::Inode(number, restore));
    }

    /// Collects the deletion of an empty journal whose inode is lost as a fix, and a new one.
    fn delete_journal(&mut self, number: u32) {
        if number != JOURNAL_INODE || needs_recovery(&self.sb) {
            return;
        }
        let forget: SuperblockChange = Box::new(|raw| {
            let bits = raw.feature_compat.get() & !Compat::HAS_JOURNAL.bits();
            (raw.feature_compat, raw.journal_inum) = (bits.into(), 0.into());
            (raw.jnl_backup_type, raw.jnl_blocks) = (0, FromZeros::new_zeroed());
        });
        let clear: InodeChange = Box::new(|raw| {
            *raw = RawInode {
                extra_isize: raw.extra_isize,
                ..RawInode::new_zeroed()
            }
        });
        self.report.fix_journal(Fix::Superblock(forget));
        self.report.fix_journal(Fix::Inode(number, clear));
        self.report.fix_journal(Fix::NewJournal);
    }

    /// Collects the superblock of an empty journal as a fix: what the log holds cannot be found.
    fn empty_journal(&mut self, location: FindingLocation, blocks: u64) {
        let (Some(block), Ok(count)) = (location.block, u32::try_from(blocks)) else {
            return;
        };
        let uuid = self.sb.raw.uuid;
        let change: BlockChange =
            Box::new(move |bytes| journal::write_empty_superblock(bytes, count, uuid));
        self.report.fix_journal(Fix::Block(block, change));
        let forget: SuperblockChange = Box::new(|raw| {
            let bits = raw.feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits();
            raw.feature_incompat = bits.into();
        });
        self.report.fix_journal(Fix::Superblock(forget));
    }

    /// Checks the journal's superblock, whose inode maps `available` blocks.
    fn check_journal_superblock(
        &mut self,
        location: FindingLocation,
        head: &JournalSuperblock<'_>,
        available: u64,
        needs_recovery: bool,
    ) {
        if self.check_journal_format(location, head, available, needs_recovery) {
            self.check_journal_log(location, head, available, needs_recovery);
        }
    }

    /// Checks magic, features and checksum; returns whether the other fields can be checked.
    fn check_journal_format(
        &mut self,
        location: FindingLocation,
        head: &JournalSuperblock<'_>,
        available: u64,
        needs_recovery: bool,
    ) -> bool {
        let report = &mut self.report;
        let mut error = |what: std::fmt::Arguments<'_>| {
            report.error(CheckedStructure::Journal, location, what);
        };
        if head.word(0) != MAGIC || !TYPES.contains(&head.word(4)) {
            error(format_args!(
                "invalid superblock (magic {:#010x}, type {})",
                head.word(0),
                head.word(4)
            ));
            self.empty_journal(location, available);
            return false;
        }
        let incompat = head.incompat();
        if incompat & !KNOWN_INCOMPAT != 0
            || incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3)
                == INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3
        {
            error(format_args!("invalid feature bits {incompat:#x}"));
            return false;
        }
        let is_v2 = head.is_v2();
        if is_v2 && (head.word(0x2C) != 0 || head.word(0x24) & !1 != 0) {
            error(format_args!(
                "features compat {:#x}, ro_compat {:#x}",
                head.word(0x24),
                head.word(0x2C)
            ));
        }
        if !is_v2 && head.0[0x24..0x30].iter().any(|&byte| byte != 0) {
            error(format_args!("features in a superblock of version 1"));
        }
        if !head.has_valid_checksum() {
            error(format_args!("bad checksum"));
            if needs_recovery {
                // Where the log starts and what it holds may be wrong, too.
                self.empty_journal(location, available);
            } else if let Some(block) = location.block {
                report.fix(Fix::Block(block, Box::new(seal_journal)));
            }
        }
        true
    }

    /// Checks the journal's length, its log and its state.
    fn check_journal_log(
        &mut self,
        location: FindingLocation,
        head: &JournalSuperblock<'_>,
        available: u64,
        needs_recovery: bool,
    ) {
        let mut error = |what: std::fmt::Arguments<'_>| {
            self.report.error(CheckedStructure::Journal, location, what);
        };
        let (count, first, start) = (head.word(0x10), head.word(0x14), head.word(0x1C));
        let fast = match (head.incompat() & INCOMPAT_FAST_COMMIT != 0, head.word(0x54)) {
            (false, _) => 0,
            (true, 0) => 256,
            (true, count) => count,
        };
        let end = count.saturating_sub(fast);
        if head.word(0xC) as usize != self.sb.block_size
            || u64::from(count) > available
            || u64::from(count) < BLOCKS_MIN
        {
            error(format_args!(
                "{count} blocks of {} bytes, but the inode has {available}",
                head.word(0xC)
            ));
        }
        if first == 0
            || first >= end
            || u64::from(end) < BLOCKS_MIN
            || (start != 0 && !(first..end).contains(&start))
        {
            error(format_args!(
                "log from block {first} to {end}, starting at {start}"
            ));
        }
        if start != 0 && !needs_recovery {
            error(format_args!(
                "holds transactions, but the superblock does not request recovery"
            ));
        }
        if head.is_v2() && head.word(0x40) > 1 {
            error(format_args!("used by {} file systems", head.word(0x40)));
            if let Some(block) = location.block.filter(|_| start == 0 && !needs_recovery) {
                // A superblock of version 1 ends here; the fields after it are stray.
                let clear: BlockChange =
                    Box::new(|bytes| bytes[FIELDS_OF_VERSION_2..SUPERBLOCK_LEN].fill(0));
                self.report.fix_journal(Fix::Block(block, clear));
            }
        }
        if head.word(0x20) != 0 {
            // Linux mounts such a file system, and sets the error state.
            let what = format_args!("aborted after an error ({})", head.word(0x20) as i32);
            self.report
                .warning(CheckedStructure::Journal, location, what);
        }
    }
}
