//! Changes of directories that answer findings, collected for a repair.

use super::checker::Checker;
use super::directories::DirectoryScan;
use super::fix::{BlockChange, Fix, InodeChange};
use super::report::{CheckedStructure, FindingLocation};
use crate::base::LogicalBlock;
use crate::fs::ext4::directory::block::{self, BlockKind, Entries, Entry};
use crate::fs::ext4::directory::index_block::{self, ROOT_ENTRIES_AT};
use crate::fs::ext4::layout::disk::inode_flags;

/// Length of `.`, the first entry.
const DOT_LEN: usize = 12;

impl Checker<'_> {
    /// Collects a change of a leaf as a fix; directories in inline data are not changed.
    pub(super) fn fix_directory_block(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        change: impl FnOnce(&mut [u8]) + 'static,
    ) {
        let Some(block) = location.block.filter(|block| !self.is_system(*block)) else {
            return;
        };
        let context = scan.context.clone();
        let change: BlockChange = Box::new(move |bytes| {
            change(bytes);
            block::seal(&context, bytes);
        });
        self.report.fix(Fix::Block(block, change));
    }

    /// Collects a change of `.` and `..` in a directory's first block as a fix; each starts with
    /// its inode number.
    pub(super) fn fix_dots(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut [u8], &mut [u8]) + 'static,
    ) {
        let block = self.directory_block(index, 0);
        let Some(block) = block.filter(|block| !self.is_system(*block)) else {
            return;
        };
        let directory = &self.directories[index];
        let context = self.context(directory);
        let has_index = directory.flags & inode_flags::INDEX != 0;
        let change: BlockChange = Box::new(move |bytes| {
            let (dot, rest) = bytes.split_at_mut(DOT_LEN);
            if !dot[4..6].eq(&(DOT_LEN as u16).to_le_bytes()) {
                return;
            }
            change(dot, rest);
            if !has_index {
                block::seal(&context, bytes);
            } else {
                index_block::seal(&context, bytes, ROOT_ENTRIES_AT);
            }
        });
        self.report.fix(Fix::Block(block, change));
    }

    /// Returns whether a block has metadata of the file system: a directory that names it is wrong.
    fn is_system(&self, block: u64) -> bool {
        self.system.next(block..block + 1).is_some()
    }

    /// Collects a tail for the checksum of a leaf that has none as a fix, if there is room for it.
    pub(super) fn make_tail(&mut self, scan: &DirectoryScan<'_>, location: FindingLocation) {
        let end = block::region_len(scan.context);
        self.fix_directory_block(scan, location, move |bytes| {
            let last = Entries::new(bytes).last();
            let has_room = |entry: &Entry<'_>| entry.offset + entry.used_len() <= end;
            let last = last.and_then(Result::ok).filter(has_room);
            if let Some(offset) = last.map(|entry| entry.offset) {
                block::set_len(bytes, offset, end - offset);
            }
        });
    }

    /// Returns the inode number in `..` of a directory in blocks; 0 if it cannot be read.
    pub(super) fn read_dotdot(&mut self, index: usize) -> u32 {
        let Some(block) = self.directory_block(index, 0) else {
            return 0;
        };
        let (mut bytes, number) = (Vec::new(), self.directories[index].number);
        let location = FindingLocation::inode(number);
        let is_read = self.read_block(block, &mut bytes, CheckedStructure::Directory, location);
        let entries = || Entries::new(&bytes).map_while(Result::ok);
        let dotdot = entries().take(2).find(|entry| entry.name == b"..");
        dotdot.filter(|_| is_read).map_or(0, |entry| entry.number)
    }

    /// Collects the removal of an entry as a fix; `previous` is the offset of the entry before it.
    pub(super) fn remove_entry(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        entry: &Entry<'_>,
        previous: Option<usize>,
    ) {
        let (offset, len) = (entry.offset, entry.len);
        self.fix_directory_block(scan, location, move |bytes| {
            // An entry before it may have been removed at the same time: it has this one's space.
            let previous = previous.filter(|previous| block::ends_at(bytes, *previous, offset));
            block::remove(bytes, offset, len, previous);
        });
    }

    /// Collects a fix for an entry that is none, at `offset`: it gets the only length after which
    /// the rest of the block reads as entries. Without one the entry before it, at `previous`, gets
    /// the rest, and files without a name are named in lost+found.
    pub(super) fn salvage(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        offset: usize,
        previous: Option<usize>,
        has_dots: bool,
    ) {
        if has_dots && offset <= DOT_LEN {
            return;
        }
        let (end, inodes) = (block::region_len(scan.context), self.sb.inode_count);
        self.fix_directory_block(scan, location, move |bytes| {
            let region = &mut bytes[..end];
            if !block::restore_len(region, offset, inodes) {
                block::remove(region, offset, end - offset, previous);
            }
        });
    }

    /// Collects the removal of a directory's index as a fix: its leaves hold all entries, and are
    /// then read in order.
    pub(super) fn remove_index(&mut self, index: usize) {
        let directory = &self.directories[index];
        let context = self.context(directory);
        let (number, blocks) = (directory.number, directory.blocks.clone());
        for at in blocks {
            let (context, place) = (context.clone(), self.directory_blocks[at]);
            if self.is_system(place.block) {
                continue;
            }
            let change: BlockChange = Box::new(move |bytes| {
                let end = block::region_len(&context);
                let has_entries = || Entries::new(&bytes[..end]).all(|entry| entry.is_ok());
                match block::kind(&context, LogicalBlock(place.logical.min(1) as u32), bytes) {
                    BlockKind::IndexRoot => keep_dots(bytes, end),
                    BlockKind::IndexNode => block::write_unused(&mut bytes[..end]),
                    BlockKind::Leaf if place.logical != 0 || has_entries() => return,
                    BlockKind::Leaf => keep_dots(bytes, end),
                }
                block::seal(&context, bytes);
            });
            self.report.preen(Fix::Block(place.block, change));
        }
        let change: InodeChange =
            Box::new(|raw| raw.flags = (raw.flags.get() & !inode_flags::INDEX).into());
        self.report.fix(Fix::Inode(number, change));
    }
}

/// Makes `..` the last entry of a directory's first block, and frees the rest up to `end`.
fn keep_dots(bytes: &mut [u8], end: usize) {
    block::remove(bytes, 2 * DOT_LEN, end - 2 * DOT_LEN, Some(DOT_LEN));
}
