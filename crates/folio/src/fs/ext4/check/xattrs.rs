//! Extended attributes: in the inode, in blocks shared by inodes, and in inodes that hold a single
//! value. Linux: fs/ext4/xattr.c.

use super::blocks::BlockOwner;
use super::checker::Checker;
use super::facts::SharedXattrBlock;
use super::inodes::InodeView;
use super::report::{CheckedStructure, FindingLocation};
use crate::base::PhysicalBlock;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::layout::features::Incompat;
use crate::fs::ext4::xattr::format::{
    BLOCK_HEADER_LEN, INDEX_SYSTEM, INLINE_DATA_SUFFIX, MAGIC, RawBlockHeader, RawEntry,
    block_checksum, entry_hash, entry_len,
};
use std::ops::Range;
use zerocopy::FromBytes;

impl Checker<'_> {
    /// Checks all attributes of an inode and claims their block. Returns the attribute
    /// `system.data` of a file with inline data.
    pub(super) fn check_xattrs(
        &mut self,
        view: &InodeView<'_>,
        owner: &mut BlockOwner,
    ) -> Option<Vec<u8>> {
        if view.has(inode_flags::EA_INODE) {
            let references =
                u64::from(view.raw.ctime.get()) << 32 | u64::from(view.raw.version_lo.get());
            self.value_inodes.entry(view.number).or_default().stored = Some(references);
        }
        let mut inline = None;
        let area = view.xattr_area();
        if area.len() >= 4 && area[..4] == MAGIC.to_le_bytes() {
            inline =
                self.check_attributes(FindingLocation::inode(view.number), &area[4..], 0, false);
        }
        let block = view.xattr_block();
        if block != 0 {
            self.check_xattr_block(owner, block);
        }
        inline
    }

    fn check_xattr_block(&mut self, owner: &mut BlockOwner, block: u64) {
        if let Some(shared) = self.xattr_blocks.get_mut(&block) {
            shared.found += 1;
            owner.clusters += 1;
            return;
        }
        let mut claimant = BlockOwner::new(owner.number, CheckedStructure::Xattr, None);
        let is_new = self.claim_metadata(&mut claimant, block);
        owner.clusters += claimant.clusters;
        owner.is_damaged |= claimant.is_damaged;
        if !is_new {
            return;
        }
        let (mut bytes, location) = (Vec::new(), owner.location().at_block(block));
        if !self.read_block(block, &mut bytes, CheckedStructure::Xattr, owner.location()) {
            return;
        }
        let Ok((header, _)) = RawBlockHeader::read_from_prefix(&bytes) else {
            return;
        };
        self.xattr_blocks.insert(
            block,
            SharedXattrBlock {
                stored: header.reference_count.get(),
                found: 1,
            },
        );
        let seed = self.sb.checksum_seed;
        let what = if header.magic.get() != MAGIC {
            "bad magic"
        } else if header.blocks.get() != 1 {
            "spans several blocks"
        } else if seed.is_some_and(|seed| {
            header.checksum.get() != block_checksum(&bytes, PhysicalBlock(block), seed)
        }) {
            "bad checksum"
        } else {
            self.check_attributes(location, &bytes, BLOCK_HEADER_LEN, true);
            return;
        };
        self.report
            .error(CheckedStructure::Xattr, location, format_args!("{what}"));
        if header.magic.get() == MAGIC {
            self.check_attributes(location, &bytes, BLOCK_HEADER_LEN, true);
        }
    }

    fn xattr_error(&mut self, location: FindingLocation, at: usize, what: std::fmt::Arguments<'_>) {
        self.report.error(
            CheckedStructure::Xattr,
            location,
            format_args!("entry at byte {at}: {what}"),
        );
    }

    /// Checks the entries from `entries_at` on; value offsets count from the start of `bytes`.
    /// Returns the value of `system.data`.
    fn check_attributes(
        &mut self,
        location: FindingLocation,
        bytes: &[u8],
        entries_at: usize,
        is_block: bool,
    ) -> Option<Vec<u8>> {
        let (mut at, mut inline, mut values) = (entries_at, None, Vec::new());
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match rest.first_chunk::<4>() {
                Some([0, 0, 0, 0]) => break,
                Some(_) => {}
                // Entries may fill an inode to its last byte, without an end mark.
                None if rest.is_empty() && !is_block => break,
                None => {
                    self.xattr_error(location, at, format_args!("entries have no end mark"));
                    return inline;
                }
            }
            let entry = RawEntry::ref_from_prefix(rest).ok();
            let entry =
                entry.and_then(|(raw, after)| Some((raw, after.get(..usize::from(raw.name_len))?)));
            let Some((raw, name)) = entry else {
                self.xattr_error(location, at, format_args!("exceeds the area"));
                return inline;
            };
            if raw.name_index == 0 {
                self.xattr_error(location, at, format_args!("name index 0"));
            }
            let value = self.check_attribute_value(location, at, bytes, raw, name, is_block);
            if let Some((range, value)) = value {
                if !range.is_empty() {
                    values.push(range);
                }
                if raw.name_index == INDEX_SYSTEM && name == INLINE_DATA_SUFFIX {
                    inline = Some(value.to_vec());
                }
            }
            at += entry_len(name.len());
        }
        values.push(entries_at..at + 4);
        values.sort_unstable_by_key(|range| range.start);
        if values.windows(2).any(|pair| pair[1].start < pair[0].end) {
            self.report.error(
                CheckedStructure::Xattr,
                location,
                format_args!("values overlap each other or the entries"),
            );
        }
        inline
    }

    /// Checks one value: its range and the hash over name and value.
    fn check_attribute_value<'b>(
        &mut self,
        location: FindingLocation,
        at: usize,
        bytes: &'b [u8],
        raw: &RawEntry,
        name: &[u8],
        is_block: bool,
    ) -> Option<(Range<usize>, &'b [u8])> {
        let stored = raw.hash.get();
        if raw.value_inode.get() != 0 {
            self.check_value_inode(location, at, raw);
            return None;
        }
        let (offset, size) = (
            usize::from(raw.value_offset.get()),
            raw.value_size.get() as usize,
        );
        let range = offset..offset.saturating_add(size.saturating_add(3) & !3);
        let Some(value) = bytes
            .get(range.clone())
            .and_then(|padded| padded.get(..size))
        else {
            self.xattr_error(
                location,
                at,
                format_args!("value of {size} bytes at {offset} exceeds the area"),
            );
            return None;
        };
        let is_good = stored == entry_hash(name, value) || stored == signed_entry_hash(name, value);
        if !is_good && (is_block || stored != 0) {
            self.xattr_error(location, at, format_args!("bad hash"));
        }
        Some((range, value))
    }

    fn check_value_inode(&mut self, location: FindingLocation, at: usize, raw: &RawEntry) {
        let number = raw.value_inode.get();
        let has_feature = self.sb.features.incompat.contains(Incompat::EA_INODE);
        if !has_feature || number < self.sb.first_inode || number > self.sb.inode_count {
            self.xattr_error(
                location,
                at,
                format_args!("value in the invalid inode {number}"),
            );
            return;
        }
        self.value_inodes.entry(number).or_default().found += 1;
    }

    /// Compares the reference counts after all inodes were checked.
    pub(super) fn check_shared_xattrs(&mut self) {
        let mut blocks: Vec<_> = self.xattr_blocks.drain().collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        for (block, shared) in blocks {
            if shared.stored != shared.found {
                let what = format_args!(
                    "reference count {}, counted {}",
                    shared.stored, shared.found
                );
                self.report
                    .error(CheckedStructure::Xattr, FindingLocation::block(block), what);
            }
        }
        let mut inodes: Vec<_> = self.value_inodes.drain().collect();
        inodes.sort_unstable_by_key(|(number, _)| *number);
        for (number, value) in inodes {
            let what = match value.stored {
                None => "referenced as an attribute's value, but not in use as one".to_owned(),
                Some(stored) if stored == value.found && self.inodes.get(number).links == 1 => {
                    continue;
                }
                Some(stored) => format!("reference count {stored}, counted {}", value.found),
            };
            self.report.error(
                CheckedStructure::Xattr,
                FindingLocation::inode(number),
                format_args!("{what}"),
            );
        }
    }
}

/// Returns the hash as computed with signed characters, which differs for names beyond ASCII.
fn signed_entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let unsigned = name
        .iter()
        .fold(0_u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte));
    let signed = name.iter().fold(0_u32, |hash, &byte| {
        hash.rotate_left(5) ^ byte as i8 as i32 as u32
    });
    // Both hashes add the value's words alike, so their difference is only rotated by them.
    let words = value.len().div_ceil(4) as u32;
    entry_hash(name, value) ^ (unsigned ^ signed).rotate_left(16 * (words % 2))
}
