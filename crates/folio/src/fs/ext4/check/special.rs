//! Special inodes: the resize inode, the orphan file and the orphan list, quota inodes.

use super::blocks::BlockOwner;
use super::checker::Checker;
use super::facts::SpecialFile;
use super::fix::Fix;
use super::inodes::raw_inode;
use super::report::{
    CheckFinding, CheckListener, CheckedStructure, FindingLocation, FindingReporter,
};
use super::superblock::needs_recovery;
use crate::base::Result;
use crate::block::Device;
use crate::fs::ext4::commit::orphan::{BLOCK_MAGIC, TAIL_LEN, orphan_checksum};
use crate::fs::ext4::layout::disk::{RESIZE_INODE, RawInode, inode_flags};
use crate::fs::ext4::layout::features::{Compat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;
use std::collections::HashSet;
use std::sync::Arc;

/// Index of the double indirect pointer among the 15 of `i_block` (`EXT4_DIND_BLOCK`).
const DOUBLE: usize = 13;

/// Blocks of the orphan file that are read, at most; the kernel and mke2fs create far fewer.
const ORPHAN_BLOCKS_MAX: usize = 1 << 16;

/// A listener that discards all findings.
struct DiscardFindings;

impl CheckListener for DiscardFindings {
    fn finding(&mut self, _: &CheckFinding) {}
}

/// Reads the mapping of a file that is needed before all other checks. Errors in it are reported
/// later, by the inode phase.
pub(super) fn read_file_ahead(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    number: u32,
) -> Result<Option<SpecialFile>> {
    let mut mute = DiscardFindings;
    let mut scratch = Checker::new(
        device.clone(),
        superblock.clone(),
        FindingReporter::new(&mut mute, 0),
    );
    scratch.check_groups()?;
    let Some(bytes) = scratch.read_inode(number) else {
        return Ok(None);
    };
    scratch.check_inode(number, &bytes);
    Ok(scratch.special_files.remove(&number))
}

impl Checker<'_> {
    /// Reads the bytes of one inode; `None` if its table is unusable or unreadable.
    pub(super) fn read_inode(&self, number: u32) -> Option<Vec<u8>> {
        let index = number
            .checked_sub(1)
            .filter(|_| number <= self.sb.inode_count)?;
        let facts = self
            .groups
            .get((index / self.sb.inodes_per_group) as usize)?;
        let (slot, size) = (
            u64::from(index % self.sb.inodes_per_group),
            self.sb.inode_size,
        );
        let mut bytes = vec![0; size];
        let offset = facts.inode_table? * self.sb.block_size as u64 + slot * size as u64;
        self.device.read_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    /// Collects the orphans, which are inodes in use without a name.
    pub(super) fn find_orphans(&mut self, is_replayed: bool) -> Result<()> {
        let mut orphans = self.listed_orphans();
        self.orphans_in_file(&mut orphans, is_replayed)?;
        for number in &orphans {
            let what = format_args!("orphan; the next mount or e2fsck frees or truncates it");
            if is_replayed {
                self.report.warning(
                    CheckedStructure::Orphans,
                    FindingLocation::inode(*number),
                    what,
                )
            } else {
                self.report.error(
                    CheckedStructure::Orphans,
                    FindingLocation::inode(*number),
                    what,
                );
                self.report.preen(Fix::Orphan);
            }
        }
        self.orphans = orphans.into_iter().collect();
        Ok(())
    }

    /// Walks the list that starts in the superblock and continues in each orphan's deletion time.
    fn listed_orphans(&mut self) -> Vec<u32> {
        let (mut orphans, mut seen) = (Vec::new(), HashSet::new());
        let mut next = self.sb.raw.last_orphan.get();
        while next != 0 {
            let is_possible = next >= self.sb.first_inode && next <= self.sb.inode_count;
            if !is_possible || !seen.insert(next) {
                self.report.error(
                    CheckedStructure::Orphans,
                    FindingLocation::NONE,
                    format_args!("the orphan list names the invalid or repeated inode {next}"),
                );
                break;
            }
            let Some(bytes) = self.read_inode(next) else {
                break;
            };
            orphans.push(next);
            next = raw_inode(&bytes).dtime.get();
        }
        orphans
    }

    fn orphans_in_file(&mut self, orphans: &mut Vec<u32>, is_replayed: bool) -> Result<()> {
        let number = self.sb.raw.orphan_file_inum.get();
        let is_present = self
            .sb
            .features
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT);
        if !self.sb.features.compat.contains(Compat::ORPHAN_FILE) {
            if is_present {
                let what = format_args!("orphan_present is set, but orphan_file is not");
                self.report
                    .error(CheckedStructure::Orphans, FindingLocation::NONE, what);
                self.clear_orphan_present();
            }
            return Ok(());
        }
        let location = FindingLocation::inode(number);
        let Some(file) = read_file_ahead(&self.device, &self.sb, number)? else {
            self.report.error(
                CheckedStructure::Orphans,
                location,
                format_args!("the orphan file is missing"),
            );
            return Ok(());
        };
        let block_size = self.sb.block_size as u64;
        let blocks = file.contiguous_blocks();
        if blocks == 0 || file.size != blocks * block_size {
            let what = format_args!("orphan file of {} bytes has {blocks} blocks", file.size);
            self.report.error(CheckedStructure::Orphans, location, what);
        }
        let (mut bytes, before) = (Vec::new(), orphans.len());
        for block in file.blocks().take(ORPHAN_BLOCKS_MAX) {
            if !self.is_inside(&(block..block + 1))
                || !self.read_block(block, &mut bytes, CheckedStructure::Orphans, location)
            {
                continue;
            }
            self.check_orphan_block(
                location.at_block(block),
                block,
                &bytes,
                file.seed,
                is_present,
                orphans,
            );
        }
        // Linux sets the flag while the file system is mounted.
        let was_unmounted = !is_replayed && !needs_recovery(&self.sb);
        if is_present && orphans.len() == before && was_unmounted {
            let what = format_args!("orphan_present is set, but the orphan file is empty");
            self.report.error(CheckedStructure::Orphans, location, what);
            self.clear_orphan_present();
        }
        Ok(())
    }

    fn clear_orphan_present(&mut self) {
        self.report.preen(Fix::Superblock(Box::new(|raw| {
            let bits = raw.feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits();
            raw.feature_ro_compat = bits.into();
        })));
    }

    fn check_orphan_block(
        &mut self,
        location: FindingLocation,
        block: u64,
        bytes: &[u8],
        seed: Option<u32>,
        is_present: bool,
        orphans: &mut Vec<u32>,
    ) {
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let (entries, tail) = bytes.split_at(bytes.len() - TAIL_LEN);
        let mut error = |what: std::fmt::Arguments<'_>| {
            self.report.error(CheckedStructure::Orphans, location, what)
        };
        if word(tail) != BLOCK_MAGIC {
            return error(format_args!("bad magic"));
        }
        if seed.is_some_and(|seed| word(&tail[4..]) != orphan_checksum(seed, block, entries)) {
            return error(format_args!("bad checksum"));
        }
        for number in entries
            .chunks_exact(4)
            .map(word)
            .filter(|number| *number != 0)
        {
            if !is_present {
                return error(format_args!(
                    "names inode {number}, but orphan_present is not set"
                ));
            }
            if number >= self.sb.first_inode && number <= self.sb.inode_count {
                orphans.push(number)
            } else {
                error(format_args!("names the invalid inode {number}"))
            }
        }
    }

    /// Checks that the quota inodes are in use, then checks the resize inode.
    pub(super) fn check_special_files(&mut self) {
        let raw = &self.sb.raw;
        let mut wanted = Vec::new();
        if self.sb.features.ro_compat.contains(RoCompat::QUOTA) {
            let numbers = [
                raw.usr_quota_inum.get(),
                raw.grp_quota_inum.get(),
                raw.prj_quota_inum.get(),
            ];
            wanted.extend(numbers.into_iter().filter(|number| *number != 0));
        }
        for number in wanted {
            if !self.special_files.contains_key(&number) {
                self.report.error(
                    CheckedStructure::Quota,
                    FindingLocation::inode(number),
                    format_args!("the quota inode is not in use"),
                );
            }
        }
        if self.sb.features.compat.contains(Compat::RESIZE_INODE) {
            self.check_resize_inode();
        }
    }

    /// Checks the resize inode, which holds the blocks reserved for more group descriptors. Its
    /// contents follow from the geometry. Linux: fs/ext4/resize.c.
    fn check_resize_inode(&mut self) {
        let location = FindingLocation::inode(RESIZE_INODE);
        let Some(bytes) = self.read_inode(RESIZE_INODE) else {
            return;
        };
        let raw = raw_inode(&bytes);
        let pointers: Vec<u32> = words(&raw.block).collect();
        if !is_plain_resize_inode(&raw, &pointers, &self.sb) {
            let what = format_args!("not a file with a single double indirect block");
            return self
                .report
                .error(CheckedStructure::ResizeInode, location, what);
        }
        let mut owner = BlockOwner::new(RESIZE_INODE, CheckedStructure::ResizeInode, None);
        let double = u64::from(pointers[DOUBLE]);
        if !self.claim_metadata(&mut owner, double) {
            return;
        }
        let mut bytes = Vec::new();
        if !self.read_block(double, &mut bytes, CheckedStructure::ResizeInode, location) {
            return;
        }
        let table: Vec<u32> = words(&bytes).collect();
        let backups: Vec<u32> = (1..self.sb.group_count)
            .filter(|group| self.sb.has_backup(*group))
            .collect();
        let reserved = u64::from(self.sb.raw.reserved_gdt_blocks.get());
        let in_use = self.sb.descriptor_blocks();
        let mut is_good = true;
        for slot in in_use..in_use + reserved {
            let block = self.sb.first_descriptor_block() + slot;
            let at = (slot % table.len() as u64) as usize;
            is_good &= u64::from(table[at]) == block && self.names_backups(block, &backups);
        }
        if !is_good {
            let what = format_args!(
                "does not name the {reserved} reserved descriptor blocks and their backups"
            );
            self.report.error(
                CheckedStructure::ResizeInode,
                location.at_block(double),
                what,
            );
        }
        let blocks = 1 + reserved * (1 + backups.len() as u64);
        let counted =
            blocks * u64::from(self.sb.cluster_blocks) * (self.sb.block_size as u64 / 512);
        let stored = u64::from(raw.blocks_high.get()) << 32 | u64::from(raw.blocks_lo.get());
        if stored != counted {
            let what = format_args!("i_blocks is {stored}, counted {counted}");
            self.report
                .error(CheckedStructure::ResizeInode, location, what);
        }
    }

    /// Returns whether a reserved block lists its backups in the groups of `backups`.
    fn names_backups(&mut self, block: u64, backups: &[u32]) -> bool {
        let mut bytes = Vec::new();
        if !self.read_block(
            block,
            &mut bytes,
            CheckedStructure::ResizeInode,
            FindingLocation::inode(RESIZE_INODE),
        ) {
            return false;
        }
        let per_group = u64::from(self.sb.blocks_per_group);
        let wanted = backups
            .iter()
            .map(|group| block + u64::from(*group) * per_group);
        words(&bytes).map(u64::from).take(backups.len()).eq(wanted)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Returns whether the resize inode is a regular file with a double indirect block and nothing
/// else.
fn is_plain_resize_inode(raw: &RawInode, pointers: &[u32], superblock: &Superblock) -> bool {
    let block_size = superblock.block_size as u64;
    let per_block = block_size / 4;
    let size = u64::from(raw.size_high.get()) << 32 | u64::from(raw.size_lo.get());
    raw.mode.get() >> 12 == 8
        && raw.links_count.get() == 1
        && raw.dtime.get() == 0
        && raw.file_acl_lo.get() == 0
        && raw.file_acl_high.get() == 0
        && raw.flags.get() & (inode_flags::EXTENTS | inode_flags::INLINE_DATA | inode_flags::INDEX)
            == 0
        && size == (per_block * per_block + per_block + 12) * block_size
        && pointers
            .iter()
            .enumerate()
            .all(|(i, pointer)| (i == DOUBLE) == (*pointer != 0))
}
