//! Inodes: all fields of inodes in use and the blocks they claim. One pass over the inode tables in
//! device order.

use super::blocks::BlockOwner;
use super::checker::Checker;
use super::extents::has_header;
use super::facts::{BAD_BLOCKS_INODE, SpecialFile, XattrFacts};
use super::fix::{Fix, InodeChange};
use super::inode_view::{FAST_SYMLINK_MAX, InodeView};
use super::report::{CheckPhase, CheckedStructure, FindingLocation};
use super::sets::InodeKind;
use crate::base::Result;
use crate::block::Allocation;
use crate::fs::ext4::layout::checksum::{inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{
    INODE_BASE_LEN, INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET, RESIZE_INODE, ROOT_INODE,
    RawInode, inode_flags as flags,
};
use crate::fs::ext4::layout::features::{Compat, Features, Incompat, RoCompat};

/// Bytes of an inode table that are read at once, at most.
const CHUNK_LEN: usize = 1 << 20;
/// Reserved inodes that a feature uses: quota files, the resize inode and the journal. Linux never
/// reads the rest of them, and e2fsck ignores one without a mode.
const FEATURE_INODES: [u32; 4] = [3, 4, RESIZE_INODE, 8];
/// The inode for a boot loader (`EXT4_BOOT_LOADER_INO`).
const BOOT_LOADER_INODE: u32 = 5;
/// `s_creator_os`: Linux. Other values change the meaning of some fields.
const CREATOR_LINUX: u32 = 0;
/// `i_flags`: AFS directory (`EXT4_IMAGIC_FL`).
const IMAGIC: u32 = 0x2000;

impl Checker<'_> {
    /// Checks the inodes of all groups.
    pub(super) fn check_inodes(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        for group in 0..self.sb.group_count {
            self.report
                .progress(CheckPhase::Inodes, group.into(), self.sb.group_count.into())?;
            let count = self.written_inodes(group);
            if let Some(table) = self.groups[group as usize].inode_table {
                self.check_table(group, table, count, &mut bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the number of inodes of a group that were ever written, by its descriptor.
    pub(super) fn written_inodes(&self, group: u32) -> u32 {
        let facts = self.groups[group as usize];
        if facts.inode_uninit {
            0
        } else {
            self.sb.inodes_per_group - facts.unused_inodes
        }
    }

    fn check_table(
        &mut self,
        group: u32,
        table: u64,
        count: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let size = self.sb.inode_size;
        let per_chunk = (CHUNK_LEN / size) as u32;
        for first in (0..count).step_by(per_chunk as usize) {
            let len = (count - first).min(per_chunk) as usize * size;
            let offset = table * self.sb.block_size as u64 + u64::from(first) * size as u64;
            // Inodes in a hole of the device are zeros, so not in use.
            if let Ok((Allocation::Hole | Allocation::Zero, empty)) =
                self.device.allocation(offset, len as u64)
                && empty >= len as u64
            {
                continue;
            }
            bytes.resize(len, 0);
            if let Err(error) = self.device.read_at(bytes, offset) {
                let what =
                    format_args!("inode table cannot be read from inode {first} on: {error}");
                self.report
                    .error(CheckedStructure::Group, FindingLocation::group(group), what);
                continue;
            }
            let start = group * self.sb.inodes_per_group + first + 1;
            let offsets = (offset..).step_by(size);
            for ((number, at), bytes) in (start..).zip(offsets).zip(bytes.chunks_exact(size)) {
                if self.is_bad_block(at / self.sb.block_size as u64) && number != BAD_BLOCKS_INODE {
                    // The block is lost, and its inodes are in use.
                    let facts = self.inodes.get_mut(number);
                    (facts.kind, facts.is_nameless) = (InodeKind::Unknown, true);
                } else if bytes.iter().any(|&byte| byte != 0) {
                    self.check_inode(number, bytes);
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_inode(&mut self, number: u32, bytes: &[u8]) {
        let raw = raw_inode(bytes);
        self.check_inode_checksum(number, &raw, bytes);
        let kind = InodeKind::of_mode(raw.mode.get());
        let view = InodeView {
            number,
            raw: &raw,
            bytes,
            kind,
            flags: raw.flags.get(),
            size: u64::from(raw.size_high.get()) << 32 | u64::from(raw.size_lo.get()),
        };
        let is_orphan = self.orphans.contains(&number);
        let is_reserved = number < self.sb.first_inode && number != ROOT_INODE;
        if raw.dtime.get() != 0
            && raw.dtime.get() < self.sb.inode_count
            && !is_orphan
            && self.has_plausible_times()
        {
            let what = format_args!(
                "deletion time names inode {}, but the inode is not in the orphan list",
                raw.dtime
            );
            self.inode_error(&view, what);
        }
        if is_reserved && !self.check_reserved(&view) {
            return;
        }
        if raw.links_count.get() == 0 && !is_orphan && !is_reserved {
            if raw.mode.get() != 0 && raw.dtime.get() == 0 {
                self.inode_error(&view, format_args!("deleted, but has no deletion time"));
                self.inodes.get_mut(number).has_no_deletion_time = true;
            }
            return;
        }
        self.report.report.inodes_used += 1;
        if raw.dtime.get() != 0 && !is_orphan {
            self.inode_error(&view, format_args!("in use, but has a deletion time"));
            let clear: InodeChange = Box::new(|raw| raw.dtime = 0.into());
            self.report.preen(Fix::Inode(number, clear));
        }
        let is_nameless_orphan = is_orphan && raw.links_count.get() == 0;
        let is_nameless = is_reserved || is_nameless_orphan || self.is_special(number);
        let has_imagic = self.sb.features.compat.contains(Compat::IMAGIC_INODES);
        let facts = self.inodes.get_mut(number);
        (facts.links, facts.kind, facts.is_nameless) = (raw.links_count.get(), kind, is_nameless);
        facts.is_name_optional = has_imagic && view.has(IMAGIC);
        facts.has_foreign_content = view.has_foreign_content();
        self.check_fields(&view);
        self.check_contents(&view, is_nameless_orphan);
    }

    /// Returns whether the superblock's times exceed all inode numbers. Only then a small deletion
    /// time is a link of the orphan list.
    fn has_plausible_times(&self) -> bool {
        let raw = &self.sb.raw;
        let times = [raw.wtime, raw.mtime, raw.mkfs_time];
        times
            .iter()
            .all(|time| time.get() == 0 || time.get() >= self.sb.inode_count)
    }

    fn inode_error(&mut self, view: &InodeView<'_>, what: std::fmt::Arguments<'_>) {
        self.report.error(
            CheckedStructure::Inode,
            FindingLocation::inode(view.number),
            what,
        );
    }

    fn check_inode_checksum(&mut self, number: u32, raw: &RawInode, bytes: &[u8]) {
        let Some(seed) = self.sb.checksum_seed else {
            return;
        };
        let has_high = bytes.len() > INODE_BASE_LEN && raw.extra_isize.get() >= 4;
        let sum = inode_checksum(
            inode_seed(seed, number, raw.generation.get()),
            bytes,
            has_high,
        );
        let high = if has_high {
            u32::from(raw.checksum_hi.get()) << 16
        } else {
            0
        };
        let mask = if has_high { u32::MAX } else { 0xFFFF };
        let stored = high | u32::from(raw.checksum_lo.get());
        if sum & mask != stored {
            self.report.error(
                CheckedStructure::Inode,
                FindingLocation::inode(number),
                format_args!("bad checksum"),
            );
            // A checksum over the damage would accept it.
            if has_high && let Some(bit) = damaged_bit(seed, number, bytes, sum ^ stored) {
                self.report.fix(Fix::InodeBit(number, bit));
            }
        }
    }

    /// Checks an inode with a reserved number; returns whether its fields and contents are to be
    /// checked too.
    fn check_reserved(&mut self, view: &InodeView<'_>) -> bool {
        let raw = view.raw;
        let has_features = FEATURE_INODES.contains(&view.number);
        let is_in_use = raw.mode.get() != 0 || (has_features && raw.links_count.get() != 0);
        if self.is_special(view.number) {
            return is_in_use;
        }
        let what = match view.number {
            BAD_BLOCKS_INODE => return self.check_bad_blocks(view),
            RESIZE_INODE if self.sb.features.compat.contains(Compat::RESIZE_INODE) => return false,
            BOOT_LOADER_INODE if is_in_use && view.kind == InodeKind::Directory => {
                "the boot loader's inode is a directory"
            }
            BOOT_LOADER_INODE if is_in_use => return true,
            _ if is_in_use => "reserved inode is in use",
            _ if has_features && view.is_nonempty() => "unused inode has nonzero fields",
            _ if view.size > self.size_max(view.has(flags::EXTENTS))
                || view.raw.blocks_lo.get() != 0 =>
            {
                "unused inode has a size"
            }
            _ => return false,
        };
        self.inode_error(
            view,
            format_args!("{what} (mode {:o}, {} links)", raw.mode, raw.links_count),
        );
        if !is_in_use {
            // Linux never reads its fields.
            let empty: InodeChange = Box::new(|raw| {
                set_size(raw, 0);
                raw.flags = 0.into();
                (raw.blocks_lo, raw.blocks_high) = (0.into(), 0.into());
                (raw.file_acl_lo, raw.file_acl_high) = (0.into(), 0.into());
                raw.block.fill(0);
            });
            self.report.fix(Fix::Inode(view.number, empty));
        }
        is_in_use && view.number != RESIZE_INODE
    }

    /// Checks the inode of bad blocks, which has a block map and nothing else.
    fn check_bad_blocks(&mut self, view: &InodeView<'_>) -> bool {
        let raw = view.raw;
        let owners = [
            raw.mode,
            raw.uid_lo,
            raw.uid_high,
            raw.gid_lo,
            raw.gid_high,
            raw.links_count,
        ];
        let is_odd = owners.iter().any(|field| field.get() != 0)
            || view.has(flags::INLINE_DATA | flags::EXTENTS)
            || view.xattr_block() != 0;
        if is_odd {
            self.inode_error(
                view,
                format_args!("the inode of bad blocks has fields besides its block map"),
            );
        }
        let mut owner = BlockOwner::new(view.number, CheckedStructure::BlockMap, None);
        owner.runs = Some(Vec::new());
        self.check_block_map(&mut owner, &raw.block);
        // `i_blocks` and the size are not kept up to date.
        for (_, start, len) in owner.runs.unwrap_or_default() {
            self.bad_blocks.insert_range(start..start + len);
        }
        self.find_bad_bitmaps();
        false
    }

    /// Returns whether the superblock names this inode: journal, orphan file or quota file, which
    /// have no directory entry.
    pub(super) fn is_special(&self, number: u32) -> bool {
        let raw = &self.sb.raw;
        let Self { sb, .. } = self;
        let has_quota = sb.features.ro_compat.contains(RoCompat::QUOTA);
        let has_orphan_file = sb.features.compat.contains(Compat::ORPHAN_FILE);
        (sb.features.compat.contains(Compat::HAS_JOURNAL) && number == raw.journal_inum.get())
            || (has_orphan_file && number == raw.orphan_file_inum.get())
            || (has_quota && self.is_quota_inode(number))
    }

    /// Checks the fields that do not depend on the contents.
    fn check_fields(&mut self, view: &InodeView<'_>) {
        let features = self.sb.features;
        let is_linux = self.sb.raw.creator_os.get() == CREATOR_LINUX;
        let misfits = base_misfits(view, features, is_linux)
            .into_iter()
            .chain(mapping_misfits(view, features))
            .chain(flag_misfits(view, features))
            .chain(special_file_misfits(view));
        for (_, what, fix) in misfits.filter(|(is_wrong, ..)| *is_wrong) {
            self.inode_error(view, format_args!("{what}"));
            if let Some(fix) = fix {
                self.report.fix(Fix::Inode(view.number, Box::new(fix)));
            }
        }
        let is_large = view.kind == InodeKind::Regular && view.size >= 1 << 32;
        if is_large && !features.ro_compat.contains(RoCompat::LARGE_FILE) {
            self.inode_error(view, format_args!("{} bytes without large_file", view.size));
            self.report.preen(Fix::Superblock(Box::new(|raw| {
                let bits = raw.feature_ro_compat.get() | RoCompat::LARGE_FILE.bits();
                raw.feature_ro_compat = bits.into();
            })));
        }
        self.check_extra_fields(view);
    }

    /// Checks the fields after the first 128 bytes.
    fn check_extra_fields(&mut self, view: &InodeView<'_>) {
        let room = view.bytes.len() - INODE_BASE_LEN;
        let extra = usize::from(view.raw.extra_isize.get());
        if room == 0 || extra == 0 {
            return;
        }
        if extra > room || extra % 4 != 0 || extra < 4 {
            self.inode_error(
                view,
                format_args!("{extra} bytes of extra fields, with room for {room}"),
            );
            return;
        }
        // Old kernels wrote times before 1970 as a negative second with both epoch bits set.
        let raw = view.raw;
        let times = [
            (raw.atime, raw.atime_extra, 16),
            (raw.ctime, raw.ctime_extra, 8),
            (raw.mtime, raw.mtime_extra, 12),
            (raw.crtime, raw.crtime_extra, 24),
        ];
        let is_old = times
            .iter()
            .any(|(secs, more, end)| extra >= *end && secs.get() >> 31 == 1 && more.get() & 3 == 3);
        if is_old {
            let what = format_args!("timestamp after 2310, probably a time before 1970");
            self.report.warning(
                CheckedStructure::Inode,
                FindingLocation::inode(view.number),
                what,
            );
        }
    }

    /// Checks data, attributes and the counts over both.
    fn check_contents(&mut self, view: &InodeView<'_>, is_orphan: bool) {
        let is_by_extents = view.has(flags::EXTENTS);
        let structure = if is_by_extents {
            CheckedStructure::Extents
        } else {
            CheckedStructure::BlockMap
        };
        let seed = self
            .sb
            .checksum_seed
            .map(|seed| inode_seed(seed, view.number, view.raw.generation.get()));
        let is_special = self.is_special(view.number);
        let mut owner = BlockOwner::new(view.number, structure, seed);
        owner.is_directory = view.kind == InodeKind::Directory && !is_orphan;
        let is_file = view.kind == InodeKind::Regular && view.number >= self.sb.first_inode;
        owner.may_be_copied = is_file && !is_special && !is_orphan;
        if is_special {
            owner.runs = Some(Vec::new());
            if view.kind != InodeKind::Regular {
                let what = format_args!("named by the superblock, but not a regular file");
                self.inode_error(view, what);
            }
        }
        let first_block = self.directory_blocks.len();
        let XattrFacts {
            inline,
            values,
            policy,
        } = self.check_xattrs(view, &mut owner);
        self.note_encryption(view, policy);
        if view.has(flags::INLINE_DATA) {
            self.check_inline(view, inline.as_deref());
        } else if view.is_mapped() && !view.is_fast_symlink() {
            if is_by_extents {
                self.check_extents(&mut owner, &view.raw.block);
            } else {
                if self.sb.features.incompat.contains(Incompat::EXTENT)
                    && has_header(&view.raw.block)
                {
                    self.inode_error(
                        view,
                        format_args!("has an extent tree without the extents flag"),
                    );
                    owner.is_damaged = true;
                }
                self.check_block_map(&mut owner, &view.raw.block);
            }
        }
        // The values in inodes of their own count as this inode's blocks, too.
        owner.clusters += values.clusters;
        self.check_sums(view, &owner);
        self.charge(view, owner.clusters, values.inodes);
        match view.kind {
            InodeKind::Symlink => self.check_symlink(view, &owner, inline.as_deref()),
            InodeKind::Directory if !is_orphan => {
                self.add_directory(view, owner.seed, first_block, inline);
            }
            _ => {}
        }
        if let Some(runs) = owner.runs {
            self.special_files.insert(
                view.number,
                SpecialFile {
                    runs,
                    size: view.size,
                    seed,
                },
            );
        }
    }

    /// Compares `i_blocks`, and then the size, with the mapped blocks.
    fn check_sums(&mut self, view: &InodeView<'_>, owner: &BlockOwner) {
        let unit = self.sb.block_size as u64 / 512;
        let blocks = owner.clusters.saturating_mul(self.sb.cluster_blocks.into());
        let has_high = self.sb.features.ro_compat.contains(RoCompat::HUGE_FILE);
        let high = if has_high {
            u64::from(view.raw.blocks_high.get()) << 32
        } else {
            0
        };
        let stored = high | u64::from(view.raw.blocks_lo.get());
        let counted = if view.has(flags::HUGE_FILE) && has_high {
            blocks
        } else {
            blocks * unit
        };
        if stored != counted && !owner.is_damaged {
            self.inode_error(
                view,
                format_args!("i_blocks is {stored}, counted {counted}"),
            );
            let change: InodeChange = Box::new(move |raw| set_block_count(raw, counted, has_high));
            // The mode of such a file may be wrong, and its count right.
            if (has_high || counted >> 32 == 0) && !view.has_foreign_content() {
                self.report.preen(Fix::Inode(view.number, change));
            }
        }
        self.check_size(view, owner);
    }

    /// Compares the size with the mapped blocks.
    fn check_size(&mut self, view: &InodeView<'_>, owner: &BlockOwner) {
        let block_size = self.sb.block_size as u64;
        let is_inline = view.has(flags::INLINE_DATA);
        match view.kind {
            InodeKind::Directory if !is_inline => {
                let is_wrong = !view.size.is_multiple_of(block_size)
                    || view.size / block_size != owner.end
                    || view.size == 0;
                // Its missing block is reported.
                let is_lost = owner.end == 0 && view.size == block_size;
                if is_wrong && !is_lost {
                    let what = format_args!(
                        "directory of {} bytes, with blocks up to {}",
                        view.size, owner.end
                    );
                    self.inode_error(view, what);
                    let size = owner.end.saturating_mul(block_size);
                    if size > 0 && !owner.is_damaged {
                        let change: InodeChange = Box::new(move |raw| set_size(raw, size));
                        self.report.fix(Fix::Inode(view.number, change));
                    }
                }
            }
            InodeKind::Regular if !is_inline => {
                let is_short =
                    owner.written_end > 0 && view.size < (owner.written_end - 1) * block_size;
                // The truncation of an orphan has not ended yet.
                let is_orphan = self.orphans.contains(&view.number);
                if is_short && !is_orphan && !view.has(flags::VERITY) {
                    let what = format_args!(
                        "{} bytes long, with data up to block {}",
                        view.size, owner.written_end
                    );
                    self.inode_error(view, what);
                    let size = owner.written_end.saturating_mul(block_size);
                    if !owner.is_damaged && size <= self.size_max(view.has(flags::EXTENTS)) {
                        let change: InodeChange = Box::new(move |raw| set_size(raw, size));
                        self.report.preen(Fix::Inode(view.number, change));
                    }
                }
                if view.size > self.size_max(view.has(flags::EXTENTS)) {
                    self.inode_error(
                        view,
                        format_args!(
                            "{} bytes long, more than its mapping can address",
                            view.size
                        ),
                    );
                }
            }
            _ => {}
        }
    }

    /// Returns the maximum file size in bytes.
    fn size_max(&self, is_by_extents: bool) -> u64 {
        let block_size = self.sb.block_size as u64;
        if is_by_extents {
            return (block_size << 32) - 1;
        }
        let per_block = block_size / 4;
        let blocks = 12 + per_block + per_block.pow(2) + per_block.pow(3);
        blocks.min(1 << 32) * block_size
    }

    /// Checks the target of a symbolic link: its length equals the size, and it has no zero byte.
    fn check_symlink(&mut self, view: &InodeView<'_>, owner: &BlockOwner, inline: Option<&[u8]>) {
        if view.has(flags::ENCRYPT) {
            return;
        }
        let mut bytes = Vec::new();
        let target: &[u8] = if view.has(flags::INLINE_DATA) {
            bytes.extend_from_slice(&view.raw.block);
            bytes.extend_from_slice(inline.unwrap_or_default());
            &bytes
        } else if view.is_fast_symlink() {
            &view.raw.block
        } else {
            let Some(block) = owner.first_data.filter(|_| owner.end == 1) else {
                let what = format_args!("target is not in a single block");
                return self.report.error(
                    CheckedStructure::Symlink,
                    FindingLocation::inode(view.number),
                    what,
                );
            };
            self.read_block(
                block,
                &mut bytes,
                CheckedStructure::Symlink,
                FindingLocation::inode(view.number),
            );
            &bytes
        };
        let len = target
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(target.len()) as u64;
        let is_full = len == self.sb.block_size as u64;
        let whole = FAST_SYMLINK_MAX + inline.map_or(0, |inline| inline.len() as u64);
        if view.has(flags::INLINE_DATA) && len < view.size && len > 0 && view.size <= whole {
            // Linux ends the target there.
            let what = format_args!("target of {len} bytes, size {}", view.size);
            let location = FindingLocation::inode(view.number);
            self.report
                .warning(CheckedStructure::Symlink, location, what);
            return;
        }
        if len < view.size && len > 0 && view.is_fast_symlink() == (len < FAST_SYMLINK_MAX) {
            // Linux ends the target there.
            let change: InodeChange = Box::new(move |raw| set_size(raw, len));
            self.report.fix(Fix::Inode(view.number, change));
        }
        if len != view.size || len == 0 || is_full || view.has(flags::INDEX) {
            let what = format_args!("target of {len} bytes, size {}", view.size);
            self.report.error(
                CheckedStructure::Symlink,
                FindingLocation::inode(view.number),
                what,
            );
        }
    }
}

/// Returns the only bit of an inode whose change makes its checksum right, counted from the lowest
/// bit of the first byte; `difference` is that of the computed and the stored checksum.
///
/// At these lengths a CRC-32C differs in at least four bits of data and checksum, so one changed
/// bit has one answer. Source: P. Koopman, "32-Bit Cyclic Redundancy Codes for Internet
/// Applications", 2002.
fn damaged_bit(fs_seed: u32, number: u32, bytes: &[u8], difference: u32) -> Option<usize> {
    if difference.is_power_of_two() {
        let bit = difference.trailing_zeros() as usize;
        let field = if bit < 16 {
            INODE_CHECKSUM_LO_OFFSET
        } else {
            INODE_CHECKSUM_HI_OFFSET
        };
        return Some(field * 8 + bit % 16);
    }
    let mut changed = bytes.to_vec();
    let stored = |bytes: &[u8]| {
        let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        half(INODE_CHECKSUM_HI_OFFSET) << 16 | half(INODE_CHECKSUM_LO_OFFSET)
    };
    (0..8 * bytes.len()).find(|bit| {
        changed[bit / 8] ^= 1 << (bit % 8);
        let raw = raw_inode(&changed);
        let seed = inode_seed(fs_seed, number, raw.generation.get());
        let has_high = raw.extra_isize.get() >= 4;
        let is_right = has_high && inode_checksum(seed, &changed, true) == stored(&changed);
        changed[bit / 8] ^= 1 << (bit % 8);
        is_right
    })
}

/// Sets `i_blocks`; without huge_file the field of its upper half has another meaning.
fn set_block_count(raw: &mut RawInode, count: u64, has_high: bool) {
    raw.blocks_lo = (count as u32).into();
    if has_high {
        raw.blocks_high = ((count >> 32) as u16).into();
    }
}

fn set_size(raw: &mut RawInode, size: u64) {
    raw.size_lo = (size as u32).into();
    raw.size_high = ((size >> 32) as u32).into();
}

/// Returns the fields of an inode's bytes; fields beyond them are zeros.
pub(super) fn raw_inode(bytes: &[u8]) -> RawInode {
    RawInode::of_bytes(bytes)
}

/// A condition, its message if it holds, and the change that answers it, if there is only one.
type InodeMisfit = (bool, &'static str, Option<fn(&mut RawInode)>);

fn clear_flags(raw: &mut RawInode, bits: u32) {
    raw.flags = (raw.flags.get() & !bits).into();
}

/// Conditions on the mode and the base fields, each with its message.
///
/// The Hurd stores other numbers in the fields of Linux after the first 112 bytes.
fn base_misfits(view: &InodeView<'_>, features: Features, is_linux: bool) -> [InodeMisfit; 5] {
    [
        (
            view.kind == InodeKind::Unknown,
            "invalid file type in the mode",
            None,
        ),
        (
            view.raw.obso_faddr.get() != 0,
            "nonzero fragment address",
            Some(|raw| raw.obso_faddr = 0.into()),
        ),
        (
            is_linux
                && view.raw.blocks_high.get() != 0
                && !features.ro_compat.contains(RoCompat::HUGE_FILE),
            "block count of 48 bits without huge_file",
            Some(|raw| raw.blocks_high = 0.into()),
        ),
        (
            is_linux
                && view.raw.file_acl_high.get() != 0
                && !features.incompat.contains(Incompat::BIT64),
            "xattr block of 48 bits without 64bit",
            Some(|raw| raw.file_acl_high = 0.into()),
        ),
        (
            view.xattr_block() != 0 && !features.compat.contains(Compat::EXT_ATTR),
            "xattr block without ext_attr",
            // The block decides (`check_xattr_block`).
            None,
        ),
    ]
}

/// Conditions on the flags of extents and inline data.
fn mapping_misfits(view: &InodeView<'_>, features: Features) -> [InodeMisfit; 6] {
    [
        (
            view.has(flags::EXTENTS) && !features.incompat.contains(Incompat::EXTENT),
            "extents without the feature",
            None,
        ),
        (
            view.has(flags::EXTENTS) && view.is_special_file(),
            "extents in a special file",
            // The mode or the content is wrong. An entry decides (`check_entry`).
            None,
        ),
        (
            view.has(flags::EXTENTS) && view.is_fast_symlink(),
            "extents in a symbolic link whose target is in the inode",
            Some(|raw| clear_flags(raw, flags::EXTENTS)),
        ),
        (
            view.has(flags::INLINE_DATA) && !features.incompat.contains(Incompat::INLINE_DATA),
            "inline data without the feature",
            None,
        ),
        (
            view.has(flags::INLINE_DATA) && view.has(flags::EXTENTS),
            "both extents and inline data",
            None,
        ),
        (
            view.has(flags::INLINE_DATA) && !view.is_mapped(),
            "inline data in a special file",
            None,
        ),
    ]
}

/// Conditions on the other flags and the features they need.
fn flag_misfits(view: &InodeView<'_>, features: Features) -> [InodeMisfit; 10] {
    [
        (
            view.has(flags::EA_INODE) && view.kind == InodeKind::Directory,
            "flag of an attribute's value on a directory",
            Some(|raw| clear_flags(raw, flags::EA_INODE)),
        ),
        (
            view.has(flags::EA_INODE)
                && view.kind != InodeKind::Directory
                && !features.incompat.contains(Incompat::EA_INODE),
            "flag of an attribute's value without ea_inode",
            Some(|raw| clear_flags(raw, flags::EA_INODE)),
        ),
        (
            view.has(flags::INDEX) && view.kind != InodeKind::Directory,
            "index flag on a file that is not a directory",
            Some(|raw| clear_flags(raw, flags::INDEX)),
        ),
        (
            view.has(flags::INDEX) && !features.compat.contains(Compat::DIR_INDEX),
            "index flag without dir_index",
            None,
        ),
        (
            view.has(flags::CASEFOLD) && !features.incompat.contains(Incompat::CASEFOLD),
            "casefold without the feature",
            Some(|raw| clear_flags(raw, flags::CASEFOLD)),
        ),
        (
            view.has(flags::CASEFOLD) && view.kind != InodeKind::Directory,
            "casefold flag on a file that is not a directory",
            Some(|raw| clear_flags(raw, flags::CASEFOLD)),
        ),
        (
            view.has(flags::ENCRYPT) && !features.incompat.contains(Incompat::ENCRYPT),
            "encrypted without the feature",
            None,
        ),
        (
            view.has(flags::VERITY) && !features.ro_compat.contains(RoCompat::VERITY),
            "verity without the feature",
            Some(|raw| clear_flags(raw, flags::VERITY)),
        ),
        (
            view.has(flags::HUGE_FILE) && !features.ro_compat.contains(RoCompat::HUGE_FILE),
            "counts blocks as huge_file without the feature",
            Some(|raw| clear_flags(raw, flags::HUGE_FILE)),
        ),
        (
            view.has(IMAGIC) && !features.compat.contains(Compat::IMAGIC_INODES),
            "AFS flag without the feature",
            Some(|raw| clear_flags(raw, IMAGIC)),
        ),
    ]
}

/// Conditions on special files and symbolic links.
fn special_file_misfits(view: &InodeView<'_>) -> [InodeMisfit; 2] {
    [
        (
            view.has(flags::IMMUTABLE | flags::APPEND)
                && (view.is_special_file() || view.kind == InodeKind::Symlink),
            "immutable or append-only flag on a special file or symbolic link",
            Some(|raw| clear_flags(raw, flags::IMMUTABLE | flags::APPEND)),
        ),
        (
            view.is_special_file() && view.size != 0,
            "special file with a nonzero size",
            // With content the mode may be wrong.
            (!view.has_foreign_content()).then_some(|raw| set_size(raw, 0)),
        ),
    ]
}
