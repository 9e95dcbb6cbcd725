//! Directories: blocks without holes, entries that name inodes in use, unique names, `.` and `..`
//! first.

use super::checker::Checker;
use super::facts::{Directory, DirectoryBlock};
use super::fix::{Fix, InodeChange};
use super::index::DirectoryIndex;
use super::inode_view::InodeView;
use super::report::{CheckPhase, CheckedStructure, FindingLocation};
use super::sets::InodeKind;
use crate::base::{InodeNumber, LogicalBlock, Result};
use crate::fs::ext4::directory::block::{self, Entries, Entry};
use crate::fs::ext4::directory::context::DirectoryContext;
use crate::fs::ext4::directory::fold::is_casefolded;
use crate::fs::ext4::layout::disk::{ROOT_INODE, inode_flags};
use crate::fs::ext4::layout::features::{Compat, Incompat};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::Range;
use std::ops::RangeInclusive;

/// File type in the mode (`S_IFMT`).
const MODE_TYPE: u16 = 0xF000;

/// Blocks of a hole that a repair fills, at most.
const HOLE_BLOCKS_MAX: u64 = 64;
/// Contiguous directory blocks that are read at once, at most.
const RUN_BLOCKS_MAX: usize = 64;
/// `s_creator_os`: the Hurd, whose entries have no file types.
const CREATOR_HURD: u32 = 1;
/// `s_encoding_flags`: names in directories that ignore case must be valid.
const ENCODING_STRICT: u16 = 1;
/// File type of a directory in an entry (`EXT4_FT_DIR`).
const DIRECTORY_CODE: u8 = 2;

/// The state of scanning one directory.
pub(super) struct DirectoryScan<'a> {
    index: usize,
    pub(super) number: u32,
    pub(super) context: &'a DirectoryContext,
    is_encrypted: bool,
    /// Hashes of all names, to find duplicates.
    names: Vec<u64>,
    entries: u64,
}

impl Checker<'_> {
    /// Adds a directory found by the inode phase. Its blocks start at index `first_block` of
    /// [`Checker::directory_blocks`].
    pub(super) fn add_directory(
        &mut self,
        view: &InodeView<'_>,
        seed: Option<u32>,
        first_block: usize,
        inline: Option<Vec<u8>>,
    ) {
        let is_inline = view.has(inode_flags::INLINE_DATA);
        let inline = is_inline.then(|| {
            [&view.raw.block[..], &inline.unwrap_or_default()]
                .concat()
                .into()
        });
        self.report.report.directories += 1;
        self.directories.push(Directory {
            number: view.number,
            blocks: first_block..self.directory_blocks.len(),
            size_blocks: if is_inline {
                0
            } else {
                view.size / self.sb.block_size as u64
            },
            flags: view.flags,
            seed,
            inline,
            dotdot: 0,
            parent: 0,
        });
    }

    /// Reads all directories, in the order of their first blocks.
    pub(super) fn check_directories(&mut self) -> Result<()> {
        let first = |directory: &Directory| {
            self.directory_blocks
                .get(directory.blocks.start)
                .map(|b| b.block)
        };
        let mut order: Vec<(u64, usize)> = self
            .directories
            .iter()
            .map(|d| first(d).unwrap_or(0))
            .zip(0..)
            .collect();
        order.sort_unstable();
        let total = order.len() as u64;
        for ((_, index), done) in order.into_iter().zip(0..) {
            if done % 64 == 0 {
                self.report.progress(CheckPhase::Directories, done, total)?;
            }
            self.check_directory(index);
        }
        Ok(())
    }

    pub(super) fn context(&self, directory: &Directory) -> DirectoryContext {
        let has = |feature| self.sb.features.incompat.contains(feature);
        DirectoryContext {
            block_size: self.sb.block_size,
            number: InodeNumber(directory.number.into()),
            checksum_seed: directory.seed,
            hash_seed: self.sb.raw.hash_seed.map(|word| word.get()),
            default_hash_version: self.sb.raw.def_hash_version,
            unsigned_hash: self.sb.has_unsigned_hash(),
            has_file_type: has(Incompat::FILETYPE) && self.sb.raw.creator_os.get() != CREATOR_HURD,
            large_dir: has(Incompat::LARGE_DIR),
            dir_index: self.sb.features.compat.contains(Compat::DIR_INDEX),
            casefold: is_casefolded(directory.flags),
            // Old names may have been made without it.
            strict_encoding: false,
        }
    }

    fn check_directory(&mut self, index: usize) {
        let context = self.context(&self.directories[index]);
        let directory = &mut self.directories[index];
        let (number, flags) = (directory.number, directory.flags);
        let inline = directory.inline.take();
        let mut scan = DirectoryScan {
            index,
            number,
            context: &context,
            is_encrypted: flags & inode_flags::ENCRYPT != 0,
            names: Vec::new(),
            entries: 0,
        };
        if let Some(bytes) = inline {
            self.check_inline_directory(&mut scan, &bytes);
        } else {
            let index_errors = self.report.index_errors;
            let tree = if flags & inode_flags::INDEX != 0 {
                self.check_index(index, &context)
            } else {
                None
            };
            self.check_blocks(&mut scan, tree.as_ref());
            if self.report.index_errors > index_errors {
                self.remove_index(index);
            }
        }
        let mut names = std::mem::take(&mut scan.names);
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            self.report_duplicates(&scan, &names);
        }
        let is_inline = flags & inode_flags::INLINE_DATA != 0;
        let has_start = is_inline || self.directory_block(index, 0).is_some();
        if self.directories[index].dotdot == 0 && has_start {
            self.report.error(
                CheckedStructure::Directory,
                FindingLocation::inode(number),
                format_args!("has no .."),
            );
        }
    }

    /// Checks the blocks in order; reads contiguous blocks at once.
    fn check_blocks(&mut self, scan: &mut DirectoryScan<'_>, tree: Option<&DirectoryIndex>) {
        let directory = &self.directories[scan.index];
        let (range, size) = (directory.blocks.clone(), directory.size_blocks);
        let (mut at, mut next, mut bytes) = (range.start, 0, Vec::new());
        while at < range.end {
            let run = run_at(&self.directory_blocks[at..range.end]);
            let first = self.directory_blocks[at];
            self.read_run(first.block, run, &mut bytes, scan.number);
            for (i, bytes) in bytes.chunks_exact(self.sb.block_size).enumerate() {
                let DirectoryBlock { logical, block } = self.directory_blocks[at + i];
                if logical != next {
                    self.hole(scan.number, next..logical);
                }
                next = logical + 1;
                let location = FindingLocation::inode(scan.number).at_block(block);
                self.check_block(scan, tree, logical, location, bytes);
            }
            at += run;
        }
        if next < size {
            self.hole(scan.number, next..size);
        }
    }

    fn hole(&mut self, number: u32, blocks: Range<u64>) {
        let what = format_args!("block {} of the directory is missing", blocks.start);
        self.report.error(
            CheckedStructure::Directory,
            FindingLocation::inode(number),
            what,
        );
        // More of them are a wrong size or a wrong block number.
        if blocks.end - blocks.start <= HOLE_BLOCKS_MAX
            && let Ok(first) = u32::try_from(blocks.start)
        {
            let count = (blocks.end - blocks.start) as u32;
            self.report
                .fix(Fix::FillDirectory(number, first..first + count));
        }
    }

    fn read_run(&mut self, block: u64, count: usize, bytes: &mut Vec<u8>, number: u32) {
        let size = self.sb.block_size;
        bytes.resize(size * count, 0);
        if self.device.read_at(bytes, block * size as u64).is_ok() {
            return;
        }
        // Retry block by block, so that only the unreadable block is skipped.
        let mut one = Vec::new();
        for (chunk, block) in bytes.chunks_exact_mut(size).zip(block..) {
            self.read_block(
                block,
                &mut one,
                CheckedStructure::Directory,
                FindingLocation::inode(number),
            );
            chunk.copy_from_slice(&one);
        }
    }

    fn check_block(
        &mut self,
        scan: &mut DirectoryScan<'_>,
        tree: Option<&DirectoryIndex>,
        logical: u64,
        location: FindingLocation,
        bytes: &[u8],
    ) {
        let context = scan.context;
        let mut bounds = None;
        if let Some(tree) = tree {
            if logical == 0 {
                // The bytes after `..` were checked as the root of the index.
                return self.check_root_dots(scan, location, bytes);
            }
            if tree.is_node(logical) {
                return;
            }
            bounds = tree.bounds(logical);
            if bounds.is_none() {
                let what = format_args!("block {logical} of the directory is not in its index");
                self.report.error(CheckedStructure::Index, location, what);
            }
        }
        let region = match block::checked_region(context, bytes) {
            Ok(region) => region,
            Err(error) => {
                self.report.error(
                    CheckedStructure::Directory,
                    location,
                    format_args!("{error}"),
                );
                if block::has_tail(context, bytes) {
                    self.fix_directory_block(scan, location, |_| ());
                } else {
                    self.make_tail(scan, location);
                }
                &bytes[..block::region_len(context)]
            }
        };
        self.check_entries(
            scan,
            tree.zip(bounds.as_ref()),
            logical == 0,
            location,
            region,
        );
    }

    /// Checks `.` and `..` of a directory with an index.
    fn check_root_dots(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        bytes: &[u8],
    ) {
        for (offset, name) in [(0, &b"."[..]), (12, b"..")] {
            let bytes = &bytes[offset..];
            let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            self.check_dot(scan, location, number, name, bytes);
        }
    }

    fn check_entries(
        &mut self,
        scan: &mut DirectoryScan<'_>,
        bounds: Option<(&DirectoryIndex, &RangeInclusive<u32>)>,
        has_dots: bool,
        location: FindingLocation,
        region: &[u8],
    ) {
        let dots: &[&[u8]] = if has_dots { &[b".", b".."] } else { &[] };
        let (mut previous, mut end) = (None, 0);
        for (position, entry) in Entries::new(region).enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.report.error(
                        CheckedStructure::Directory,
                        location,
                        format_args!("{error}"),
                    );
                    return self.salvage(scan, location, end, previous, has_dots);
                }
            };
            if let Some(name) = dots.get(position) {
                self.check_dot(scan, location, entry.number, name, &region[entry.offset..]);
            } else if !entry.is_unused() {
                self.check_entry(scan, bounds, location, &entry, previous);
            }
            (previous, end) = (Some(entry.offset), entry.offset + entry.len);
        }
    }

    /// Checks one of the first two entries, `.` or `..`; `bytes` starts with the entry.
    fn check_dot(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        number: u32,
        name: &[u8],
        bytes: &[u8],
    ) {
        let is_dot = name.len() == 1;
        let is_named = bytes
            .get(6)
            .is_some_and(|len| usize::from(*len) == name.len())
            && bytes.get(8..8 + name.len()) == Some(name);
        let shown = name.escape_ascii();
        if !is_named {
            self.report.error(
                CheckedStructure::Directory,
                location,
                format_args!("{shown} is missing from its position"),
            );
            return;
        }
        if bytes.get(8 + name.len()) != Some(&0) {
            self.report.error(
                CheckedStructure::Directory,
                location,
                format_args!("{shown} is not followed by a zero byte"),
            );
        }
        let type_code = if scan.context.has_file_type {
            DIRECTORY_CODE
        } else {
            0
        };
        if bytes[7] != type_code {
            self.report.error(
                CheckedStructure::Directory,
                location,
                format_args!("{shown} has file type {}", bytes[7]),
            );
            self.fix_dots(scan.index, move |dot, dotdot| {
                (if is_dot { dot } else { dotdot })[7] = type_code;
            });
        }
        if is_dot && number != scan.number {
            self.report.error(
                CheckedStructure::Directory,
                location,
                format_args!(". names inode {number}"),
            );
            let own = scan.number.to_le_bytes();
            self.fix_dots(scan.index, move |dot, _| dot[..4].copy_from_slice(&own));
        }
        if !is_dot {
            self.directories[scan.index].dotdot = number;
        }
        self.count_name(location, number, name, None);
    }

    /// Counts a name of an inode; returns whether the inode is in use and may have names.
    fn count_name(
        &mut self,
        location: FindingLocation,
        number: u32,
        name: &[u8],
        facts: Option<super::sets::InodeFacts>,
    ) -> bool {
        let is_possible =
            number == ROOT_INODE || (self.sb.first_inode..=self.sb.inode_count).contains(&number);
        let shown = name.escape_ascii();
        if !is_possible {
            self.report.error(
                CheckedStructure::Directory,
                location,
                format_args!("{shown} names the invalid inode {number}"),
            );
            return false;
        }
        let facts = facts.unwrap_or_else(|| self.inodes.get(number));
        let what = match (facts.kind, facts.is_nameless) {
            (InodeKind::Free, _) => "which is not in use",
            (_, true) => "which may not have names",
            _ => {
                self.inodes.get_mut(number).names += 1;
                return true;
            }
        };
        self.report.error(
            CheckedStructure::Directory,
            location,
            format_args!("{shown} names inode {number}, {what}"),
        );
        if self.is_unread(number) {
            // Of name and descriptor one is wrong: the inode itself decides, once it is read. Linux
            // trusts the name, e2fsck: PR_2_INOREF_IN_UNUSED.
            let group = (number - 1) / self.sb.inodes_per_group;
            self.report.preen(Fix::WholeInodeTable(group));
        } else if self.is_deleted_by_mistake(number, facts) {
            self.inodes.get_mut(number).names += 1;
            let change: InodeChange = Box::new(|raw| raw.links_count = 1.into());
            self.report.fix(Fix::Inode(number, change));
        }
        false
    }

    /// Returns whether an inode is in the part of its table that was never written.
    fn is_unread(&self, number: u32) -> bool {
        let is_possible = (1..=self.sb.inode_count).contains(&number);
        let per_group = self.sb.inodes_per_group;
        is_possible && (number - 1) % per_group >= self.written_inodes((number - 1) / per_group)
    }

    /// Returns whether an inode without links has a mode, no time of deletion, and a name: then its
    /// link count is wrong. Later checks of the round do not see its content.
    fn is_deleted_by_mistake(&self, number: u32, facts: super::sets::InodeFacts) -> bool {
        facts.has_no_deletion_time && number >= self.sb.first_inode
    }

    /// Checks the name of an entry other than `.` and `..` at the start.
    fn check_entry_name(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        entry: &Entry<'_>,
        previous: Option<usize>,
    ) {
        let name = entry.name;
        if !scan.is_encrypted
            && let Err(error) = entry.check_name()
        {
            self.report.error(
                CheckedStructure::Directory,
                location,
                format_args!("{error}"),
            );
        }
        if matches!(name, b"." | b"..") {
            let what = format_args!("second {}, at byte {}", name.escape_ascii(), entry.offset);
            self.report
                .error(CheckedStructure::Directory, location, what);
            self.remove_entry(scan, location, entry, previous);
        }
        let is_strict = self.sb.raw.encoding_flags.get() & ENCODING_STRICT != 0;
        let is_folded = scan.context.casefold && !scan.is_encrypted;
        if is_strict && is_folded && std::str::from_utf8(name).is_err() {
            let what = format_args!("{} is not valid UTF-8", name.escape_ascii());
            self.report
                .error(CheckedStructure::Directory, location, what);
        }
    }

    /// Checks an entry other than `.` and `..` at the start.
    fn check_entry(
        &mut self,
        scan: &mut DirectoryScan<'_>,
        bounds: Option<(&DirectoryIndex, &RangeInclusive<u32>)>,
        location: FindingLocation,
        entry: &Entry<'_>,
        previous: Option<usize>,
    ) {
        scan.entries += 1;
        let (name, number) = (entry.name, entry.number);
        self.check_entry_name(scan, location, entry, previous);
        scan.names
            .push(foldhash::fast::FixedState::default().hash_one(name));
        if let Some((tree, bounds)) = bounds {
            self.check_hash(scan, tree, bounds, location, name);
        }
        let possible = number <= self.sb.inode_count;
        let facts = if possible {
            self.inodes.get(number)
        } else {
            super::sets::InodeFacts::default()
        };
        if !self.count_name(location, number, name, Some(facts)) {
            if !self.is_deleted_by_mistake(number, facts) && !self.is_unread(number) {
                // The file is deleted, or never was.
                self.remove_entry(scan, location, entry, previous);
            }
            return;
        }
        if scan.is_encrypted && self.sb.features.incompat.contains(Incompat::ENCRYPT) {
            self.check_encrypted_entry(scan, location, entry, facts.kind);
        }
        let code = if scan.context.has_file_type {
            facts.kind.entry_code()
        } else {
            0
        };
        if entry.file_type != code {
            let what = format_args!(
                "{} has file type {}, inode {number} is of type {code}",
                name.escape_ascii(),
                entry.file_type
            );
            self.report
                .error(CheckedStructure::Directory, location, what);
            let at = entry.offset + 7;
            let is_unknown = facts.kind == InodeKind::Unknown;
            if !facts.has_foreign_content && !is_unknown {
                self.fix_directory_block(scan, location, move |bytes| bytes[at] = code);
            } else if let Some(mode) = mode_of_entry(entry.file_type, !is_unknown) {
                // The mode is none, or entry and content agree against it. The next check reads the
                // content as what it then is.
                let change: InodeChange =
                    Box::new(move |raw| raw.mode = (raw.mode.get() & !MODE_TYPE | mode).into());
                self.report.fix(Fix::Inode(number, change));
            }
        }
        if facts.kind == InodeKind::Directory {
            self.set_parent(scan, location, entry, previous);
        }
    }

    fn check_hash(
        &mut self,
        scan: &DirectoryScan<'_>,
        tree: &DirectoryIndex,
        bounds: &RangeInclusive<u32>,
        location: FindingLocation,
        name: &[u8],
    ) {
        let Some(hash) = tree.hash(scan.context, name) else {
            return;
        };
        if !bounds.contains(&hash) {
            let (low, high) = (bounds.start(), bounds.end());
            let what = format_args!(
                "{} has hash {hash:#010x}, outside {low:#010x} to {high:#010x}",
                name.escape_ascii()
            );
            self.report.error(CheckedStructure::Index, location, what);
        }
    }

    /// Stores the parent of a directory; reports a second name for it.
    fn set_parent(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        entry: &Entry<'_>,
        previous: Option<usize>,
    ) {
        let number = entry.number;
        let Ok(at) = self
            .directories
            .binary_search_by_key(&number, |directory| directory.number)
        else {
            return;
        };
        let Directory { parent, dotdot, .. } = self.directories[at];
        if number != ROOT_INODE && parent == 0 {
            self.directories[at].parent = scan.number;
            return;
        }
        let what = format_args!(
            "{} is one more name of directory {number}",
            entry.name.escape_ascii()
        );
        self.report
            .error(CheckedStructure::Directory, location, what);
        // `..` decides.
        let dotdot = if dotdot == 0 {
            self.read_dotdot(at)
        } else {
            dotdot
        };
        if number == ROOT_INODE || (dotdot == parent && dotdot != scan.number) {
            self.remove_entry(scan, location, entry, previous);
        }
    }

    /// Reads the directory again to find the names whose hashes occur twice.
    fn report_duplicates(&mut self, scan: &DirectoryScan<'_>, sorted: &[u64]) {
        let mut repeated: Vec<u64> = sorted
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        repeated.dedup();
        let (mut seen, mut bytes) = (HashMap::<Vec<u8>, u32>::new(), Vec::new());
        for at in self.directories[scan.index].blocks.clone() {
            let block = self.directory_blocks[at].block;
            if !self.read_block(
                block,
                &mut bytes,
                CheckedStructure::Directory,
                FindingLocation::inode(scan.number),
            ) {
                continue;
            }
            let region = &bytes[..block::region_len(scan.context)];
            for entry in Entries::new(region)
                .map_while(|entry| entry.ok())
                .filter(|entry| !entry.is_unused())
            {
                let hash = foldhash::fast::FixedState::default().hash_one(entry.name);
                if repeated.binary_search(&hash).is_ok() {
                    *seen.entry(entry.name.to_vec()).or_default() += 1;
                }
            }
        }
        let mut names: Vec<_> = seen.into_iter().filter(|(_, count)| *count > 1).collect();
        names.sort_unstable();
        for (name, count) in names {
            let what = format_args!("{} occurs {count} times", name.escape_ascii());
            self.report.error(
                CheckedStructure::Directory,
                FindingLocation::inode(scan.number),
                what,
            );
        }
    }

    /// Checks a directory in inline data: the parent's number, then entries in two regions.
    fn check_inline_directory(&mut self, scan: &mut DirectoryScan<'_>, bytes: &[u8]) {
        let location = FindingLocation::inode(scan.number);
        let parent = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.directories[scan.index].dotdot = parent;
        self.count_name(location, scan.number, b".", None);
        self.count_name(location, parent, b"..", None);
        for region in [&bytes[4..60], &bytes[60..]] {
            self.check_entries(scan, None, false, location, region);
        }
    }

    /// Returns the device block of a directory's block `logical`, if it is mapped.
    pub(super) fn directory_block(&self, index: usize, logical: u64) -> Option<u64> {
        let blocks = &self.directory_blocks[self.directories[index].blocks.clone()];
        let at = blocks
            .binary_search_by_key(&logical, |block| block.logical)
            .ok()?;
        Some(blocks[at].block)
    }

    /// Returns the number of blocks according to the directory's `i_size`.
    pub(super) fn directory_size(&self, index: usize) -> u64 {
        self.directories[index].size_blocks
    }

    /// Converts a directory block number; numbers beyond 32 bits become the maximum.
    pub(super) fn logical(block: u64) -> LogicalBlock {
        LogicalBlock(u32::try_from(block).unwrap_or(u32::MAX))
    }
}

/// Returns the type in the mode of a file, by the file type of its entry.
fn mode_of_entry(entry_code: u8, has_content: bool) -> Option<u16> {
    let kinds = [0x8, 0x4, 0x2, 0x6, 0x1, 0xC, 0xA].map(|kind| kind << 12);
    // A regular file or a directory, if it has content.
    let count = if has_content { 2 } else { kinds.len() };
    kinds
        .into_iter()
        .take(count)
        .find(|mode| InodeKind::of_mode(*mode).entry_code() == entry_code)
}

/// Returns how many blocks from the first on are contiguous on the device.
fn run_at(blocks: &[DirectoryBlock]) -> usize {
    let next = |pair: &[DirectoryBlock]| pair[1].block == pair[0].block + 1;
    1 + blocks
        .windows(2)
        .take(RUN_BLOCKS_MAX - 1)
        .take_while(|pair| next(pair))
        .count()
}
