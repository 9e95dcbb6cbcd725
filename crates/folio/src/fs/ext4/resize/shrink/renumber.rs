//! Moves inodes from beyond the last group that is kept, and redirects the names that lead to them.
//!
//! An inode's number is part of the checksums of its blocks, of its directory entries, and in the
//! entries `.` and `..`. One transaction changes all of that for an inode.

use super::super::changes::BlockChanges;
use super::Shrinker;
use super::inode::{InodeRecord, MappingKind, seal_node};
use crate::base::{Error, InodeNumber, Result};
use crate::fs::ext4::directory::block::{self, Entries};
use crate::fs::ext4::directory::context::DirectoryContext;
use crate::fs::ext4::directory::index_block;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::map::block_map::{BlockMapVisitor, walk};
use std::collections::HashMap;

/// The byte of the entry `..` in the first block of a directory.
const PARENT_AT: usize = 12;

/// The place of a directory entry.
#[derive(Debug, Clone, Copy)]
struct EntryPlace {
    directory: u32,
    /// Block of the directory, and on the device.
    logical: u64,
    physical: u64,
    /// Its byte in the block.
    offset: usize,
}

impl Shrinker<'_> {
    /// Gives new numbers to all inodes of `moved`, which are beyond the new last one.
    /// `directories`: all directories, by their old numbers.
    pub(super) fn renumber(&mut self, moved: &[u32], directories: &[u32]) -> Result<bool> {
        let last = self.new.inode_count;
        let is_moved = |number: u32| number > last;
        let kept = directories
            .iter()
            .copied()
            .filter(|number| !is_moved(*number));
        let mut directories_now: Vec<u32> = kept.collect();
        // First: the places of names that are collected below have the new numbers.
        for number in directories
            .iter()
            .copied()
            .filter(|number| is_moved(*number))
        {
            directories_now.push(self.renumber_directory(number)?);
            if !self.step()? {
                return Ok(false);
            }
        }
        let mut places: HashMap<u32, Vec<EntryPlace>> = HashMap::new();
        for directory in directories_now {
            for (place, number) in self.entries(directory)? {
                if number > self.new.inode_count {
                    places.entry(number).or_default().push(place);
                }
            }
        }
        for number in moved {
            if directories.binary_search(number).is_ok() {
                continue;
            }
            self.renumber_inode(*number, &places.remove(number).unwrap_or_default())?;
            if !self.step()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn renumber_directory(&mut self, number: u32) -> Result<u32> {
        let inode = InodeRecord::load(&self.changes, &self.maps, number)?;
        let entries = self.entries(number)?;
        let first = entries.first().map(|(place, _)| *place);
        let Some(first) = first else {
            return Err(Error::corrupt(format!("inode {number}: empty directory")));
        };
        let parent = {
            let bytes = self.changes.read(first.physical)?;
            parent_of(&bytes, number)?
        };
        let in_parent = self.entries(parent)?;
        let places: Vec<_> = in_parent
            .into_iter()
            .filter(|(place, child)| *child == number && !is_dot(place))
            .map(|(place, _)| place)
            .collect();
        let moved = self.renumber_inode(number, &places)?;
        // Subdirectories lead back.
        for (place, child) in entries {
            if is_dot(&place) || !self.is_directory(child)? {
                continue;
            }
            let first = self.entries(child)?.first().map(|(place, _)| *place);
            if let Some(first) = first {
                let parent = EntryPlace {
                    offset: PARENT_AT,
                    ..first
                };
                self.redirect(&parent, moved)?;
            }
        }
        debug_assert!(inode.is_directory());
        Ok(moved)
    }

    fn is_directory(&self, number: u32) -> Result<bool> {
        let inode = InodeRecord::load(&self.changes, &self.maps, number)?;
        Ok(inode.is_directory())
    }

    /// Moves one inode to a free number, which is returned. `places`: its names.
    fn renumber_inode(&mut self, number: u32, places: &[EntryPlace]) -> Result<u32> {
        let old = InodeRecord::load(&self.changes, &self.maps, number)?;
        if old.has_flag(inode_flags::EA_INODE) {
            return Err(Error::unsupported(
                "moving inodes of large extended attributes (ea_inode)",
            ));
        }
        let is_directory = old.is_directory();
        let mut inode = old.clone();
        inode.number = self.maps.allocate_inode(self.old, is_directory)?;
        inode.store(&mut self.changes, &self.maps)?;
        old.clear(&mut self.changes, &self.maps)?;
        self.maps.free_inode(self.old, number, is_directory);
        if inode.kind() == MappingKind::Extents {
            let tree = inode.extent_tree(&self.changes)?;
            let seed = inode.seed(self.old);
            for block in tree.blocks {
                seal_node(self.changes.block(block)?, seed);
            }
        }
        if is_directory {
            for (logical, physical) in self.directory_blocks(&inode)? {
                let mut bytes = self.changes.read(physical)?;
                if logical == 0 {
                    bytes[..4].copy_from_slice(&inode.number.to_le_bytes());
                }
                self.seal(&inode, logical, &mut bytes);
                self.changes.block(physical)?.copy_from_slice(&bytes);
            }
        }
        for place in places {
            // A directory may contain itself only as `.`, so it is not the moved one.
            self.redirect(place, inode.number)?;
        }
        self.moved_inodes += 1;
        Ok(inode.number)
    }

    /// Points an entry to another inode.
    fn redirect(&mut self, place: &EntryPlace, number: u32) -> Result<()> {
        let directory = InodeRecord::load(&self.changes, &self.maps, place.directory)?;
        let mut bytes = self.changes.read(place.physical)?;
        bytes[place.offset..place.offset + 4].copy_from_slice(&number.to_le_bytes());
        self.seal(&directory, place.logical, &mut bytes);
        self.changes.block(place.physical)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// Returns all entries of a directory in use, with their inodes.
    fn entries(&self, directory: u32) -> Result<Vec<(EntryPlace, u32)>> {
        let inode = InodeRecord::load(&self.changes, &self.maps, directory)?;
        let mut found = Vec::new();
        for (logical, physical) in self.directory_blocks(&inode)? {
            let bytes = self.changes.read(physical)?;
            for entry in Entries::new(&bytes) {
                let entry = entry.map_err(|error| {
                    error.at(format!("directory inode {directory}, block {logical}"))
                })?;
                if entry.number != 0 {
                    let offset = entry.offset;
                    let place = EntryPlace {
                        directory,
                        logical,
                        physical,
                        offset,
                    };
                    found.push((place, entry.number));
                }
            }
        }
        Ok(found)
    }

    /// Returns the blocks of a directory: in the directory, and on the device.
    fn directory_blocks(&self, inode: &InodeRecord) -> Result<Vec<(u64, u64)>> {
        let mut blocks = Vec::new();
        match inode.kind() {
            MappingKind::None => {
                let what = format!("inode {}: a directory without blocks", inode.number);
                return Err(Error::unsupported(what));
            }
            MappingKind::Extents => {
                for extent in inode.extent_tree(&self.changes)?.extents {
                    let logical = u64::from(extent.logical)..extent.end();
                    blocks.extend(logical.zip(extent.physical_range()));
                }
            }
            MappingKind::Pointers => {
                let mut pointers = PointerCollector {
                    changes: &self.changes,
                    found: Vec::new(),
                };
                walk(&inode.i_block(), self.old.block_size, &mut pointers)?;
                blocks = pointers.found;
            }
        }
        Ok(blocks)
    }

    /// Writes the checksum of a directory's block.
    fn seal(&self, inode: &InodeRecord, logical: u64, bytes: &mut [u8]) {
        let context = self.context(inode);
        let is_indexed = inode.has_flag(inode_flags::INDEX);
        let is_node = bytes[..4] == [0; 4]
            && usize::from(u16::from_le_bytes([bytes[4], bytes[5]])) == bytes.len();
        if is_indexed && logical == 0 {
            index_block::seal(&context, bytes, index_block::ROOT_ENTRIES_AT);
        } else if is_indexed && is_node {
            index_block::seal(&context, bytes, index_block::NODE_ENTRIES_AT);
        } else if block::has_tail(&context, bytes) {
            block::seal(&context, bytes);
        }
    }

    fn context(&self, inode: &InodeRecord) -> DirectoryContext {
        let superblock = self.old;
        let features = &superblock.features;
        DirectoryContext {
            block_size: superblock.block_size,
            number: InodeNumber(inode.number.into()),
            checksum_seed: inode.seed(superblock),
            hash_seed: superblock.raw.hash_seed.map(|word| word.get()),
            default_hash_version: superblock.raw.def_hash_version,
            unsigned_hash: superblock.has_unsigned_hash(),
            has_file_type: features.incompat.contains(Incompat::FILETYPE),
            large_dir: features.incompat.contains(Incompat::LARGE_DIR),
            dir_index: features.compat.contains(Compat::DIR_INDEX),
            casefold: inode.has_flag(inode_flags::CASEFOLD),
            strict_encoding: false,
        }
    }
}

/// Collects the blocks of a directory with a block map.
struct PointerCollector<'a> {
    changes: &'a BlockChanges<'a>,
    found: Vec<(u64, u64)>,
}

impl BlockMapVisitor for PointerCollector<'_> {
    type Error = Error;

    fn data(&mut self, logical: u64, pointer: u32) -> Result<()> {
        if self.found.len() as u64 > self.changes.old().block_count {
            return Err(Error::corrupt("block map names more blocks than there are"));
        }
        if pointer != 0 {
            self.found.push((logical, pointer.into()));
        }
        Ok(())
    }

    fn pointer_block(&mut self, number: u32, _: u8, _: u64) -> Result<Option<Vec<u8>>> {
        self.changes.read(number.into()).map(Some)
    }
}

/// Whether an entry is `.` or `..`.
fn is_dot(place: &EntryPlace) -> bool {
    place.logical == 0 && place.offset <= PARENT_AT
}

fn parent_of(bytes: &[u8], number: u32) -> Result<u32> {
    let entry = &bytes[PARENT_AT..PARENT_AT + 10];
    if entry[6] != 2 || &entry[8..10] != b".." {
        return Err(Error::corrupt(format!(
            "inode {number}: directory without .."
        )));
    }
    Ok(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
}
