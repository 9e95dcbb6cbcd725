//! Group descriptors: checksums and the locations of bitmaps and inode tables. Claims these blocks
//! before any file can.

use super::checker::Checker;
use super::facts::GroupFacts;
use super::report::{CheckPhase, CheckedStructure, FindingLocation};
use crate::base::Result;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{GROUP_BLOCK_UNINIT, GROUP_INODE_UNINIT, RawGroupDescriptor};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use crate::fs::ext4::mmp;
use crate::fs::ext4::space::group::descriptor_checksum;
use std::ops::Range;

impl Checker<'_> {
    /// Reads all descriptors and claims the blocks of superblock backups, descriptors, bitmaps and
    /// inode tables.
    pub(super) fn check_groups(&mut self) -> Result<()> {
        self.claim_heads();
        let per_block = self.sb.descriptors_per_block();
        let mut bytes = Vec::new();
        for first in (0..self.sb.group_count).step_by(per_block as usize) {
            let (location, _) = self.sb.descriptor_place(first);
            self.report
                .progress(CheckPhase::Layout, first.into(), self.sb.group_count.into())?;
            let is_read = self.read_block(
                location.0,
                &mut bytes,
                CheckedStructure::Group,
                FindingLocation::group(first),
            );
            let last = self.sb.group_count.min(first.saturating_add(per_block));
            for (number, slot) in (first..last).zip(bytes.chunks_exact(self.sb.descriptor_len)) {
                let facts = self.check_descriptor(number, slot, is_read);
                self.groups.push(facts);
            }
        }
        for number in 0..self.sb.group_count {
            self.claim_group(number);
        }
        Ok(())
    }

    /// Claims the backups of superblock and descriptors at the start of groups.
    fn claim_heads(&mut self) {
        self.claim_mmp_block();
        for number in 0..self.sb.group_count {
            let head = self.sb.head_of_group(number);
            let end = head.end.min(self.sb.block_count);
            self.claim_system(number, "superblock and descriptors", head.start..end, true);
        }
    }

    /// Claims and checks the block for multiple mount protection (feature mmp), by which a host
    /// detects that another host has the file system mounted. Linux: fs/ext4/mmp.c.
    fn claim_mmp_block(&mut self) {
        if !self.sb.features.incompat.contains(Incompat::MMP) {
            return;
        }
        let block = self.sb.raw.mmp_block.get();
        let location = FindingLocation::block(block);
        if !self.is_inside(&(block..block + 1)) {
            return self.report.error(
                CheckedStructure::Superblock,
                location,
                format_args!("multiple mount protection: outside the file system"),
            );
        }
        self.claim_system(0, "multiple mount protection", block..block + 1, false);
        let mut bytes = Vec::new();
        if !self.read_block(block, &mut bytes, CheckedStructure::Superblock, location) {
            return;
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let is_sealed = self
            .sb
            .checksum_seed
            .is_none_or(|seed| word(mmp::CHECKSUM_AT) == crc32c(seed, &bytes[..mmp::CHECKSUM_AT]));
        if word(0) != mmp::MAGIC || !is_sealed {
            let what = format_args!("multiple mount protection: bad magic or checksum");
            self.report
                .error(CheckedStructure::Superblock, location, what);
        } else if word(4) == mmp::FSCK {
            let what = format_args!(
                "multiple mount protection: e2fsck runs on a host, or was interrupted; if it does \
                 not run, use tune2fs -f -E clear_mmp"
            );
            self.report
                .error(CheckedStructure::Superblock, location, what);
        } else if word(4) != mmp::CLEAN {
            let what = format_args!(
                "multiple mount protection: in use on a host, or not unmounted cleanly"
            );
            self.report
                .warning(CheckedStructure::Superblock, location, what);
        }
    }

    fn check_descriptor(&mut self, number: u32, slot: &[u8], is_read: bool) -> GroupFacts {
        let mut padded = [0; size_of::<RawGroupDescriptor>()];
        let known = slot.len().min(padded.len());
        padded[..known].copy_from_slice(&slot[..known]);
        let raw: RawGroupDescriptor = zerocopy::transmute!(padded);
        let has_checksum = self
            .sb
            .features
            .ro_compat
            .intersects(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG);
        let is_good =
            !has_checksum || raw.checksum.get() == descriptor_checksum(number, slot, &self.sb);
        if is_read && !is_good {
            self.report.error(
                CheckedStructure::Group,
                FindingLocation::group(number),
                format_args!("bad checksum"),
            );
        }
        let mut facts = group_facts(&raw);
        let is_marked = facts.block_uninit || facts.inode_uninit || facts.unused_inodes != 0;
        if !has_checksum && is_marked {
            let what = format_args!("marked as never used, but descriptors have no checksums");
            self.report.error(
                CheckedStructure::Group,
                FindingLocation::group(number),
                what,
            );
        }
        if !has_checksum || !is_good {
            // Flags are invalid without a valid checksum: read everything.
            (facts.block_uninit, facts.inode_uninit, facts.unused_inodes) = (false, false, 0);
        }
        if facts.block_uninit && number == self.sb.group_count - 1 {
            let what = format_args!("the last group's block bitmap is marked as never written");
            self.report.error(
                CheckedStructure::Group,
                FindingLocation::group(number),
                what,
            );
        }
        let is_last = number == self.sb.group_count - 1;
        facts.is_wrong = (is_read && !is_good)
            || (!has_checksum && is_marked)
            || (facts.block_uninit && is_last);
        self.check_locations(number, &raw, &mut facts);
        facts
    }

    /// Checks the locations of bitmaps and inode table; the facts omit invalid locations.
    fn check_locations(&mut self, number: u32, raw: &RawGroupDescriptor, facts: &mut GroupFacts) {
        let whole = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let start = self.sb.group_start(number);
        let bounds = if self.sb.features.incompat.contains(Incompat::FLEX_BG) {
            self.sb.first_data_block + 1..self.sb.block_count
        } else {
            start..start + u64::from(self.sb.group_len(number))
        };
        let locations = [
            (
                "block bitmap",
                whole(raw.block_bitmap_lo.get(), raw.block_bitmap_hi.get()),
                1,
            ),
            (
                "inode bitmap",
                whole(raw.inode_bitmap_lo.get(), raw.inode_bitmap_hi.get()),
                1,
            ),
            (
                "inode table",
                whole(raw.inode_table_lo.get(), raw.inode_table_hi.get()),
                self.sb.inode_table_blocks(),
            ),
        ];
        let found = locations.map(|(name, first, len)| {
            let fits = bounds.contains(&first)
                && first.checked_add(len).is_some_and(|end| end <= bounds.end);
            if !fits {
                let what = format_args!(
                    "{name} at block {first}, outside {}..{}",
                    bounds.start, bounds.end
                );
                self.report.error(
                    CheckedStructure::Group,
                    FindingLocation::group(number),
                    what,
                );
            }
            facts.is_wrong |= !fits;
            fits.then_some(first)
        });
        [facts.block_bitmap, facts.inode_bitmap, facts.inode_table] = found;
        let (inodes, blocks) = (self.sb.inodes_per_group, self.sb.group_len(number));
        for (name, count, max) in [
            ("free inodes", facts.free_inodes, inodes),
            ("directories", facts.used_dirs, inodes),
            ("unused inodes", facts.unused_inodes, inodes),
            ("free blocks", facts.free_blocks, blocks),
        ] {
            if count > max {
                facts.is_wrong = true;
                self.report.error(
                    CheckedStructure::Group,
                    FindingLocation::group(number),
                    format_args!("{count} {name} of {max}"),
                );
            }
        }
        facts.unused_inodes = facts.unused_inodes.min(inodes);
    }

    fn claim_group(&mut self, number: u32) {
        let facts = self.groups[number as usize];
        // A bitmap whose block has another use is not compared; a repair moves it.
        if let Some(block) = facts.block_bitmap
            && !self.claim_system(number, "block bitmap", block..block + 1, false)
        {
            let facts = &mut self.groups[number as usize];
            (facts.block_bitmap, facts.is_wrong) = (None, true);
        }
        if let Some(block) = facts.inode_bitmap
            && !self.claim_system(number, "inode bitmap", block..block + 1, false)
        {
            let facts = &mut self.groups[number as usize];
            (facts.inode_bitmap, facts.is_wrong) = (None, true);
        }
        if let Some(first) = facts.inode_table {
            let table = first..first + self.sb.inode_table_blocks();
            if !self.claim_system(number, "inode table", table, false) {
                // The blocks have another use. Read as inodes they would give false findings, or
                // the same table many times.
                self.groups[number as usize].inode_table = None;
            }
        }
    }

    /// Claims metadata blocks of the file system; returns whether all of them were unclaimed.
    fn claim_system(&mut self, group: u32, name: &str, blocks: Range<u64>, is_head: bool) -> bool {
        let claimed = self.system.insert_range(blocks.clone());
        let ratio = u64::from(self.sb.cluster_blocks);
        let first = blocks.start.saturating_sub(self.sb.first_data_block) / ratio;
        let end = blocks
            .end
            .saturating_sub(self.sb.first_data_block)
            .div_ceil(ratio);
        self.used.insert_range(first..end);
        if claimed > 0 {
            let what = if is_head {
                format_args!("{name} overlap the blocks of another group")
            } else {
                format_args!(
                    "{name} at blocks {}..{} overlaps other metadata",
                    blocks.start, blocks.end
                )
            };
            self.report
                .error(CheckedStructure::Group, FindingLocation::group(group), what);
        }
        claimed == 0
    }
}

fn join(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// Returns the fields of a descriptor, without the locations that are still to be checked.
fn group_facts(raw: &RawGroupDescriptor) -> GroupFacts {
    let flags = raw.flags.get();
    GroupFacts {
        block_bitmap: None,
        inode_bitmap: None,
        inode_table: None,
        block_bitmap_csum: join(
            raw.block_bitmap_csum_lo.get(),
            raw.block_bitmap_csum_hi.get(),
        ),
        inode_bitmap_csum: join(
            raw.inode_bitmap_csum_lo.get(),
            raw.inode_bitmap_csum_hi.get(),
        ),
        free_blocks: join(
            raw.free_blocks_count_lo.get(),
            raw.free_blocks_count_hi.get(),
        ),
        free_inodes: join(
            raw.free_inodes_count_lo.get(),
            raw.free_inodes_count_hi.get(),
        ),
        used_dirs: join(raw.used_dirs_count_lo.get(), raw.used_dirs_count_hi.get()),
        unused_inodes: join(raw.itable_unused_lo.get(), raw.itable_unused_hi.get()),
        block_uninit: flags & GROUP_BLOCK_UNINIT != 0,
        inode_uninit: flags & GROUP_INODE_UNINIT != 0,
        is_wrong: false,
    }
}
