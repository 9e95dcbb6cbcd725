//! Comparison of bitmaps and free counts with the blocks and inodes found in use.

use super::checker::Checker;
use super::fix::{Fix, GroupState};
use super::report::{CheckPhase, CheckedStructure, FindingLocation};
use super::sets::InodeKind;
use crate::base::Result;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::RawGroupDescriptor;
use crate::fs::ext4::layout::features::Incompat;

/// A stored bitmap and the bits it is expected to have.
struct BitmapComparison<'a> {
    structure: CheckedStructure,
    group: u32,
    /// The stored bits; zeros for a bitmap that was never written.
    stored: &'a [u64],
    /// The expected bits.
    used: &'a [u64],
    /// The block or inode number of bit 0.
    first: u64,
    /// Blocks or inodes per bit.
    step: u64,
}

impl Checker<'_> {
    /// Reports bitmaps in bad blocks: unlike inode tables they can be moved.
    pub(super) fn find_bad_bitmaps(&mut self) {
        for number in 0..self.sb.group_count {
            let mut facts = self.groups[number as usize];
            for (name, place) in [
                ("block bitmap", &mut facts.block_bitmap),
                ("inode bitmap", &mut facts.inode_bitmap),
            ] {
                if let Some(block) = place.filter(|block| self.is_bad_block(*block)) {
                    let what = format_args!("{name} in the bad block {block}");
                    let location = FindingLocation::group(number);
                    self.report.error(CheckedStructure::Group, location, what);
                    (*place, facts.is_wrong) = (None, true);
                }
            }
            self.groups[number as usize] = facts;
        }
    }

    /// Compares the bitmaps and counts of all groups, then the totals in the superblock, which
    /// the kernel updates at unmount only.
    pub(super) fn check_bitmaps(&mut self, was_unmounted: bool) -> Result<()> {
        let (mut free_blocks, mut free_inodes) = (0_u64, 0_u64);
        let mut bytes = Vec::new();
        for group in 0..self.sb.group_count {
            self.report
                .progress(CheckPhase::Sums, group.into(), self.sb.group_count.into())?;
            let errors = self.report.report.errors;
            free_blocks += u64::from(self.check_block_bitmap(group, &mut bytes));
            free_inodes += u64::from(self.check_inode_bitmap(group, &mut bytes));
            let is_wrong = self.report.report.errors > errors;
            if self.report.collects_fixes() && (is_wrong || self.groups[group as usize].is_wrong) {
                self.fix_group(group);
            }
        }
        let raw = &self.sb.raw;
        let high = if self.sb.features.incompat.contains(Incompat::BIT64) {
            raw.free_blocks_count_hi.get()
        } else {
            0
        };
        let stored_blocks = u64::from(high) << 32 | u64::from(raw.free_blocks_count_lo.get());
        let stored_inodes = u64::from(raw.free_inodes_count.get());
        let free_blocks = free_blocks * u64::from(self.sb.cluster_blocks);
        for (name, stored, counted) in [
            ("blocks", stored_blocks, free_blocks),
            ("inodes", stored_inodes, free_inodes),
        ] {
            if stored != counted && was_unmounted {
                let what = format_args!("{stored} free {name}, counted {counted}");
                self.report
                    .error(CheckedStructure::Superblock, FindingLocation::NONE, what);
                self.report.preen(Fix::Superblock(Box::new(move |raw| {
                    raw.free_blocks_count_lo = (free_blocks as u32).into();
                    raw.free_blocks_count_hi = ((free_blocks >> 32) as u32).into();
                    // Inode numbers have 32 bits.
                    raw.free_inodes_count = (free_inodes as u32).into();
                })));
            }
        }
        self.report.report.blocks_used = self.sb.block_count.saturating_sub(free_blocks);
        Ok(())
    }

    /// Checks a block bitmap; returns the number of free clusters in the group.
    fn check_block_bitmap(&mut self, group: u32, bytes: &mut Vec<u8>) -> u32 {
        let facts = self.groups[group as usize];
        let per_group = self.sb.blocks_per_group / self.sb.cluster_blocks;
        let (used, len) = self.counted_blocks(group);
        let stored = match facts.block_bitmap {
            Some(_) if facts.block_uninit => Some(self.system_bits(group, len)),
            Some(block) => self.read_bitmap(
                CheckedStructure::BlockBitmap,
                group,
                block,
                facts.block_bitmap_csum,
                per_group,
                len,
                bytes,
            ),
            None => None,
        };
        if let Some(stored) = &stored {
            let step = u64::from(self.sb.cluster_blocks);
            let first = self.sb.group_start(group);
            self.compare(&BitmapComparison {
                structure: CheckedStructure::BlockBitmap,
                group,
                stored,
                used: &used,
                first,
                step,
            });
        }
        let free = len - count(&used);
        self.check_count(group, "blocks", facts.free_blocks, free);
        free
    }

    /// Returns the counted clusters in use of a group, and their number of bits.
    fn counted_blocks(&self, group: u32) -> (Vec<u64>, u32) {
        let len = self.sb.group_len(group).div_ceil(self.sb.cluster_blocks);
        let per_group = self.sb.blocks_per_group / self.sb.cluster_blocks;
        let start = u64::from(group) * u64::from(per_group);
        let mut used: Vec<u64> = (0..len.div_ceil(64))
            .map(|i| self.used.window(start + u64::from(i) * 64))
            .collect();
        mask_tail(&mut used, len);
        (used, len)
    }

    /// Collects a group's counted state as the fix of its bitmaps and counts.
    fn fix_group(&mut self, group: u32) {
        let facts = self.groups[group as usize];
        if facts.inode_table.is_none() {
            return;
        }
        // A bitmap without a place of its own gets one: its content is counted anew.
        let places = [facts.block_bitmap, facts.inode_bitmap]
            .map(|place| place.or_else(|| self.claim_free_block(group)));
        let [Some(block_bitmap), Some(inode_bitmap)] = places else {
            return;
        };
        let (blocks, block_bits) = self.counted_blocks(group);
        let (inodes, directories) = self.counted_inodes(group);
        self.report.preen(Fix::Group(Box::new(GroupState {
            number: group,
            block_bitmap,
            inode_bitmap,
            blocks,
            block_bits,
            has_no_inodes: facts.inode_uninit && inodes.iter().all(|word| *word == 0),
            inodes,
            inode_bits: self.sb.inodes_per_group,
            directories,
            unused_inodes: facts.unused_inodes,
        })));
    }

    /// Claims a block of the group that nothing uses.
    fn claim_free_block(&mut self, group: u32) -> Option<u64> {
        let (used, len) = self.counted_blocks(group);
        let is_free = |bit: &u32| used[(bit / 64) as usize] >> (bit % 64) & 1 == 0;
        let bit = (0..len).find(is_free)?;
        let ratio = u64::from(self.sb.cluster_blocks);
        let block = self.sb.group_start(group) + u64::from(bit) * ratio;
        // The group's other bitmap must not get the same block.
        self.used.insert(self.cluster_of(block));
        Some(block)
    }

    /// Returns the bits of the metadata blocks in a group. A bitmap that was never written
    /// (`BLOCK_UNINIT`) implies exactly these.
    fn system_bits(&self, group: u32, len: u32) -> Vec<u64> {
        let (start, ratio) = (
            self.sb.group_start(group),
            u64::from(self.sb.cluster_blocks),
        );
        let end = start + u64::from(self.sb.group_len(group));
        let (mut bits, mut at) = (vec![0; len.div_ceil(64) as usize], start);
        while let Some(block) = self.system.next(at..end) {
            let bit = (block - start) / ratio;
            bits[(bit / 64) as usize] |= 1 << (bit % 64);
            at = start + (bit + 1) * ratio;
        }
        bits
    }

    /// Checks an inode bitmap; returns the number of free inodes in the group.
    fn check_inode_bitmap(&mut self, group: u32, bytes: &mut Vec<u8>) -> u32 {
        let facts = self.groups[group as usize];
        let len = self.sb.inodes_per_group;
        let (used, directories) = self.counted_inodes(group);
        let stored = match facts.inode_bitmap {
            Some(_) if facts.inode_uninit => Some(vec![0; used.len()]),
            Some(block) => self.read_bitmap(
                CheckedStructure::InodeBitmap,
                group,
                block,
                facts.inode_bitmap_csum,
                len,
                len,
                bytes,
            ),
            None => None,
        };
        if let Some(stored) = &stored {
            let first = u64::from(group) * u64::from(len) + 1;
            self.compare(&BitmapComparison {
                structure: CheckedStructure::InodeBitmap,
                group,
                stored,
                used: &used,
                first,
                step: 1,
            });
        }
        let free = len - count(&used);
        self.check_count(group, "inodes", facts.free_inodes, free);
        if facts.used_dirs != directories {
            let what = format_args!("{} directories, counted {directories}", facts.used_dirs);
            self.report
                .error(CheckedStructure::Group, FindingLocation::group(group), what);
        }
        free
    }

    /// Returns the counted inodes in use of a group, and the number of directories among them.
    fn counted_inodes(&self, group: u32) -> (Vec<u64>, u32) {
        let len = self.sb.inodes_per_group;
        let (mut used, mut directories) = (vec![0_u64; len.div_ceil(64) as usize], 0);
        let first = group * len + 1;
        // One past the last inode number may overflow.
        let last = first + (len - 1);
        let mut number = first;
        loop {
            let kind = self.inodes.get(number).kind;
            directories += u32::from(kind == InodeKind::Directory);
            if kind != InodeKind::Free || number < self.sb.first_inode {
                let bit = number - first;
                used[(bit / 64) as usize] |= 1 << (bit % 64);
            }
            if number >= last {
                break;
            }
            number += 1;
            if number >= self.sb.first_inode {
                number = self.inodes.skip_unknown(number..last);
            }
        }
        (used, directories)
    }

    fn check_count(&mut self, group: u32, name: &str, stored: u32, counted: u32) {
        if stored != counted {
            let what = format_args!("{stored} free {name}, counted {counted}");
            self.report
                .error(CheckedStructure::Group, FindingLocation::group(group), what);
        }
    }

    /// Reads the first `len` bits of a bitmap after checking its checksum and its padding, which
    /// must be ones. The checksum covers `covered` bits.
    #[allow(clippy::too_many_arguments)]
    fn read_bitmap(
        &mut self,
        structure: CheckedStructure,
        group: u32,
        block: u64,
        csum: u32,
        covered: u32,
        len: u32,
        bytes: &mut Vec<u8>,
    ) -> Option<Vec<u64>> {
        let location = FindingLocation::group(group);
        if !self.read_block(block, bytes, structure, location) {
            return None;
        }
        if let Some(seed) = self.sb.checksum_seed {
            let is_long = self.sb.descriptor_len >= size_of::<RawGroupDescriptor>();
            let mask = if is_long { u32::MAX } else { 0xFFFF };
            if (crc32c(seed, &bytes[..(covered / 8) as usize]) ^ csum) & mask != 0 {
                self.report
                    .error(structure, location, format_args!("bad checksum"));
            }
        }
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect();
        let is_padded =
            (len as usize..8 * bytes.len()).all(|bit| words[bit / 64] >> (bit % 64) & 1 == 1);
        if !is_padded {
            self.report.error(
                structure,
                location,
                format_args!("padding bits at the end are not all set"),
            );
        }
        let mut words = words;
        words.truncate(len.div_ceil(64) as usize);
        mask_tail(&mut words, len);
        Some(words)
    }

    fn compare(&mut self, compared: &BitmapComparison<'_>) {
        let both = || compared.stored.iter().zip(compared.used);
        for (what, bits) in [
            (
                "in use, but marked free",
                both()
                    .map(|(stored, used)| used & !stored)
                    .collect::<Vec<_>>(),
            ),
            (
                "marked in use, but free",
                both().map(|(stored, used)| stored & !used).collect(),
            ),
        ] {
            let total = count(&bits);
            if total == 0 {
                continue;
            }
            let at = |bit: u64| compared.first + bit * compared.step;
            let (first, end) = first_run(&bits);
            let run = match at(end) - at(first) {
                1 => format!("{}", at(first)),
                _ => format!("{} to {}", at(first), at(end) - 1),
            };
            let more = if u64::from(total) > end - first {
                format!(" and {} more", u64::from(total) - (end - first))
            } else {
                String::new()
            };
            let location = FindingLocation::group(compared.group);
            self.report.error(
                compared.structure,
                location,
                format_args!("{run}{more}: {what}"),
            );
        }
    }
}

fn mask_tail(words: &mut [u64], len: u32) {
    if let Some(last) = words.last_mut()
        && !len.is_multiple_of(64)
    {
        *last &= (1 << (len % 64)) - 1;
    }
}

fn count(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// Returns the first run of set bits: its start and end.
fn first_run(words: &[u64]) -> (u64, u64) {
    let is_set = |bit: u64| {
        words
            .get((bit / 64) as usize)
            .is_some_and(|word| word >> (bit % 64) & 1 == 1)
    };
    let word = words.iter().position(|word| *word != 0).unwrap_or(0);
    let first =
        word as u64 * 64 + u64::from(words.get(word).map_or(0, |word| word.trailing_zeros()));
    let end = (first..).find(|bit| !is_set(*bit)).unwrap_or(first);
    (first, end)
}
