//! Extended attributes: in the inode, in blocks shared by inodes, and in inodes that hold a single
//! value. Linux: fs/ext4/xattr.c.

use super::blocks::BlockOwner;
use super::checker::Checker;
use super::encryption::{CONTEXT_SUFFIX, INDEX_ENCRYPTION};
use super::facts::{EncryptionPolicy, SharedXattrBlock, ValueCharge, XattrFacts};
use super::fix::{Fix, InodeChange, SuperblockChange};
use super::inode_view::InodeView;
use super::inodes::raw_inode;
use super::report::{CheckedStructure, FindingLocation};
use crate::base::PhysicalBlock;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::xattr::format::{
    BLOCK_HEADER_LEN, INDEX_SYSTEM, INLINE_DATA_SUFFIX, MAGIC, RawBlockHeader, RawEntry,
    block_checksum, entry_hash, entry_len, seal_block, set_reference_count,
};
use std::ops::Range;
use zerocopy::FromBytes;

/// Attributes that are being checked.
struct XattrArea<'b> {
    location: FindingLocation,
    bytes: &'b [u8],
    /// Offset of the first entry. Value offsets count from the start of `bytes`.
    entries_at: usize,
    is_block: bool,
    /// Number and generation of the inode that has the attributes.
    owner: (u32, u32),
}

impl Checker<'_> {
    /// Checks all attributes of an inode and claims their block.
    pub(super) fn check_xattrs(
        &mut self,
        view: &InodeView<'_>,
        owner: &mut BlockOwner,
    ) -> XattrFacts {
        let raw = view.raw;
        let has_values = self.sb.features.incompat.contains(Incompat::EA_INODE);
        if has_values && view.has(inode_flags::EA_INODE) {
            let references = u64::from(raw.ctime.get()) << 32 | u64::from(raw.version_lo.get());
            let inode = self.value_inodes.entry(view.number).or_default();
            inode.stored = Some(references);
            inode.is_uncounted = raw.ctime.get() == raw.atime.get();
        }
        let mut facts = XattrFacts::default();
        let area = view.xattr_area();
        let generation = raw.generation.get();
        if area.len() >= 4 && area[..4] == MAGIC.to_le_bytes() {
            facts = self.check_attributes(&XattrArea {
                location: FindingLocation::inode(view.number),
                bytes: &area[4..],
                entries_at: 0,
                is_block: false,
                owner: (view.number, generation),
            });
        }
        let block = view.xattr_block();
        if block != 0 {
            facts.add(self.check_xattr_block(owner, block, generation));
        }
        facts
    }

    fn check_xattr_block(
        &mut self,
        owner: &mut BlockOwner,
        block: u64,
        generation: u32,
    ) -> XattrFacts {
        if let Some(shared) = self.xattr_blocks.get_mut(&block) {
            shared.found += 1;
            owner.clusters += 1;
            return shared.facts.clone();
        }
        let mut claimant = BlockOwner::new(owner.number, CheckedStructure::Xattr, None);
        let is_new = self.claim_metadata(&mut claimant, block);
        if claimant.is_damaged {
            self.forget_xattr_block(owner.location());
        }
        owner.clusters += claimant.clusters;
        owner.is_damaged |= claimant.is_damaged;
        let (mut bytes, location) = (Vec::new(), owner.location().at_block(block));
        if !is_new || !self.read_block(block, &mut bytes, CheckedStructure::Xattr, owner.location())
        {
            return XattrFacts::default();
        }
        let Ok((header, _)) = RawBlockHeader::read_from_prefix(&bytes) else {
            return XattrFacts::default();
        };
        self.check_xattr_header(&header, block, &bytes, location);
        let mut facts = XattrFacts::default();
        if header.magic.get() == MAGIC {
            facts = self.check_attributes(&XattrArea {
                location,
                bytes: &bytes,
                entries_at: BLOCK_HEADER_LEN,
                is_block: true,
                owner: (owner.number, generation),
            });
            // Inline data belongs to one inode.
            facts.inline = None;
        }
        let shared = SharedXattrBlock {
            stored: header.reference_count.get(),
            found: 1,
            facts: facts.clone(),
        };
        self.xattr_blocks.insert(block, shared);
        facts
    }

    /// Checks the header of a block of attributes.
    fn check_xattr_header(
        &mut self,
        header: &RawBlockHeader,
        block: u64,
        bytes: &[u8],
        location: FindingLocation,
    ) {
        let seed = self.sb.checksum_seed;
        let what = if header.magic.get() != MAGIC {
            "bad magic"
        } else if header.blocks.get() != 1 {
            "spans several blocks"
        } else if seed.is_some_and(|seed| {
            header.checksum.get() != block_checksum(bytes, PhysicalBlock(block), seed)
        }) {
            "bad checksum"
        } else {
            ""
        };
        if !what.is_empty() {
            self.report
                .error(CheckedStructure::Xattr, location, format_args!("{what}"));
        }
        if header.magic.get() != MAGIC {
            self.forget_xattr_block(location);
        } else if what.is_empty() && !self.sb.features.compat.contains(Compat::EXT_ATTR) {
            let change: SuperblockChange = Box::new(|raw| {
                raw.feature_compat = (raw.feature_compat.get() | Compat::EXT_ATTR.bits()).into();
            });
            self.report.fix(Fix::Superblock(change));
        }
        if what == "bad checksum" {
            let seal = move |bytes: &mut [u8]| seal_block(bytes, PhysicalBlock(block), seed);
            self.report.fix(Fix::Block(block, Box::new(seal)));
        }
    }

    /// Collects a fix for an inode whose block of attributes is none: they cannot be found.
    fn forget_xattr_block(&mut self, location: FindingLocation) {
        let Some(number) = location.inode else {
            return;
        };
        let forget: InodeChange =
            Box::new(|raw| (raw.file_acl_lo, raw.file_acl_high) = (0.into(), 0.into()));
        self.report.fix(Fix::Inode(number, forget));
    }

    fn xattr_error(&mut self, location: FindingLocation, at: usize, what: std::fmt::Arguments<'_>) {
        self.report.error(
            CheckedStructure::Xattr,
            location,
            format_args!("entry at byte {at}: {what}"),
        );
    }

    /// Checks the entries of an area.
    fn check_attributes(&mut self, area: &XattrArea<'_>) -> XattrFacts {
        let location = area.location;
        let (mut at, mut facts, mut values) = (area.entries_at, XattrFacts::default(), Vec::new());
        loop {
            let rest = area.bytes.get(at..).unwrap_or_default();
            match rest.first_chunk::<4>() {
                Some([0, 0, 0, 0]) => break,
                Some(_) => {}
                // Entries may fill an inode to its last byte, without an end mark.
                None if rest.is_empty() && !area.is_block => break,
                None => {
                    self.xattr_error(location, at, format_args!("entries have no end mark"));
                    return facts;
                }
            }
            let entry = RawEntry::ref_from_prefix(rest).ok();
            let entry =
                entry.and_then(|(raw, after)| Some((raw, after.get(..usize::from(raw.name_len))?)));
            let Some((raw, name)) = entry else {
                self.xattr_error(location, at, format_args!("exceeds the area"));
                return facts;
            };
            if raw.name_index == 0 {
                self.xattr_error(location, at, format_args!("name index 0"));
            }
            let mut context: &[u8] = &[];
            if raw.value_inode.get() != 0 {
                facts.add(self.check_value_inode(area, at, raw));
            } else if let Some((range, value)) = self.check_attribute_value(area, at, raw, name) {
                if !range.is_empty() {
                    values.push(range);
                }
                if raw.name_index == INDEX_SYSTEM && name == INLINE_DATA_SUFFIX {
                    facts.inline = Some(value.to_vec());
                }
                context = value;
            }
            if raw.name_index == INDEX_ENCRYPTION && name == CONTEXT_SUFFIX {
                let policy = self.encryption.of_context(context);
                facts.policy = Some(policy.unwrap_or(EncryptionPolicy::Invalid));
            }
            at += entry_len(name.len());
        }
        values.push(area.entries_at..at + 4);
        values.sort_unstable_by_key(|range| range.start);
        if values.windows(2).any(|pair| pair[1].start < pair[0].end) {
            self.report.error(
                CheckedStructure::Xattr,
                location,
                format_args!("values overlap each other or the entries"),
            );
        }
        facts
    }

    /// Checks one value beside its entry: its range and the hash over name and value.
    fn check_attribute_value<'b>(
        &mut self,
        area: &XattrArea<'b>,
        at: usize,
        raw: &RawEntry,
        name: &[u8],
    ) -> Option<(Range<usize>, &'b [u8])> {
        let stored = raw.hash.get();
        let (location, bytes) = (area.location, area.bytes);
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
        if !is_good && (area.is_block || stored != 0) {
            self.xattr_error(location, at, format_args!("bad hash"));
        }
        Some((range, value))
    }

    /// Counts a reference to a value in an inode of its own. Returns the space that the inode with
    /// the attribute is charged for it: none if Lustre wrote the value, with its owner's number in
    /// the modification time.
    fn check_value_inode(&mut self, area: &XattrArea<'_>, at: usize, raw: &RawEntry) -> XattrFacts {
        let number = raw.value_inode.get();
        let has_feature = self.sb.features.incompat.contains(Incompat::EA_INODE);
        if !has_feature || number < self.sb.first_inode || number > self.sb.inode_count {
            self.xattr_error(
                area.location,
                at,
                format_args!("value in the invalid inode {number}"),
            );
            return XattrFacts::default();
        }
        self.value_inodes.entry(number).or_default().found += 1;
        let inode = self.read_inode(number).map(|bytes| raw_inode(&bytes));
        let is_by_lustre =
            inode.is_some_and(|inode| (inode.mtime.get(), inode.generation.get()) == area.owner);
        let mut facts = XattrFacts::default();
        if !is_by_lustre {
            let cluster_bytes = u64::from(self.sb.cluster_blocks) * self.sb.block_size as u64;
            facts.values = ValueCharge {
                clusters: u64::from(raw.value_size.get()).div_ceil(cluster_bytes),
                inodes: 1,
            };
        }
        facts
    }

    /// Marks the inodes that hold values of attributes: they have no names. One without an
    /// attribute is an ordinary file.
    pub(super) fn mark_value_inodes(&mut self) {
        for (number, value) in &self.value_inodes {
            if value.stored.is_some() && value.found > 0 {
                self.inodes.get_mut(*number).is_nameless = true;
            }
        }
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
                let seed = self.sb.checksum_seed;
                let recount = move |bytes: &mut [u8]| {
                    set_reference_count(bytes, shared.found);
                    seal_block(bytes, PhysicalBlock(block), seed);
                };
                self.report.preen(Fix::Block(block, Box::new(recount)));
            }
        }
        let mut inodes: Vec<_> = self.value_inodes.drain().collect();
        inodes.sort_unstable_by_key(|(number, _)| *number);
        for (number, value) in inodes {
            let what = match value.stored {
                None => "referenced as an attribute's value, but not in use as one".to_owned(),
                Some(_) if value.found == 0 => continue,
                Some(stored)
                    if (stored == value.found || value.is_uncounted)
                        && self.inodes.get(number).links == 1 =>
                {
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
