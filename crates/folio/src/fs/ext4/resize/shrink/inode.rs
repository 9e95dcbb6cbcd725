//! Inodes as bytes of their table, and the blocks that they map.

use super::super::changes::BlockChanges;
use super::groups::GroupMaps;
use crate::base::{Error, Result};
use crate::fs::ext4::inode::file_type_of;
use crate::fs::ext4::layout::checksum::{crc32c, inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{
    EXTENT_ENTRY_LEN, INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET, RawInode, inode_flags,
};
use crate::fs::ext4::layout::extent::{
    Extent, decode_extent, decode_index, empty_root, encode_extent, encode_index, fill_node,
    node_capacity, parse_node, split_for_disk,
};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::space::inode_place;
use crate::vfs::FileType;
use std::mem::offset_of;

/// A shorter target of a symbolic link is stored in `i_block`.
const FAST_SYMLINK_MAX: u64 = 60;
const BLOCK_AT: usize = offset_of!(RawInode, block);

/// How an inode maps its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingKind {
    /// No blocks: data in the inode, or none.
    None,
    Extents,
    /// Pointers to blocks, and to blocks of pointers.
    Pointers,
}

/// The extent tree of a file.
#[derive(Default)]
pub(super) struct ExtentTree {
    pub(super) extents: Vec<Extent>,
    /// The blocks of the tree itself.
    pub(super) blocks: Vec<u64>,
}

/// One inode.
#[derive(Clone)]
pub(super) struct InodeRecord {
    pub(super) number: u32,
    bytes: Vec<u8>,
}

impl InodeRecord {
    /// Reads an inode, with the changes so far.
    pub(super) fn load(changes: &BlockChanges<'_>, maps: &GroupMaps, number: u32) -> Result<Self> {
        let superblock = changes.old();
        superblock.check_inode_number(number.into())?;
        let (block, at) = place(superblock, maps, number);
        let bytes = changes.read(block)?[at..at + superblock.inode_size].to_vec();
        Ok(Self { number, bytes })
    }

    /// Returns an inode of a table that was read as a whole.
    pub(super) fn of_bytes(number: u32, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self { number, bytes }
    }

    /// Adds the inode to the changes, with its checksum.
    pub(super) fn store(&mut self, changes: &mut BlockChanges<'_>, maps: &GroupMaps) -> Result<()> {
        let superblock = changes.old();
        if let Some(seed) = self.seed(superblock) {
            let has_high = self.bytes.len() > 128 && self.raw().extra_isize.get() >= 4;
            let crc = inode_checksum(seed, &self.bytes, has_high);
            let low = INODE_CHECKSUM_LO_OFFSET;
            self.bytes[low..low + 2].copy_from_slice(&(crc as u16).to_le_bytes());
            if has_high {
                let high = INODE_CHECKSUM_HI_OFFSET;
                self.bytes[high..high + 2].copy_from_slice(&((crc >> 16) as u16).to_le_bytes());
            }
        }
        let (block, at) = place(superblock, maps, self.number);
        changes.block(block)?[at..at + superblock.inode_size].copy_from_slice(&self.bytes);
        Ok(())
    }

    /// Clears the place of this inode in the table.
    pub(super) fn clear(&self, changes: &mut BlockChanges<'_>, maps: &GroupMaps) -> Result<()> {
        let superblock = changes.old();
        let (block, at) = place(superblock, maps, self.number);
        changes.block(block)?[at..at + superblock.inode_size].fill(0);
        Ok(())
    }

    pub(super) fn raw(&self) -> RawInode {
        RawInode::of_bytes(&self.bytes)
    }

    /// Returns the seed of checksums that belong to the inode.
    pub(super) fn seed(&self, superblock: &Superblock) -> Option<u32> {
        let generation = self.raw().generation.get();
        Some(inode_seed(
            superblock.checksum_seed?,
            self.number,
            generation,
        ))
    }

    pub(super) fn is_directory(&self) -> bool {
        file_type_of(self.raw().mode.get()) == Some(FileType::Directory)
    }

    pub(super) fn has_flag(&self, flag: u32) -> bool {
        self.raw().flags.get() & flag != 0
    }

    /// Returns the block of extended attributes; 0 without one.
    pub(super) fn xattr_block(&self) -> u64 {
        let raw = self.raw();
        u64::from(raw.file_acl_high.get()) << 32 | u64::from(raw.file_acl_lo.get())
    }

    pub(super) fn set_xattr_block(&mut self, block: u64) {
        let low = offset_of!(RawInode, file_acl_lo);
        self.bytes[low..low + 4].copy_from_slice(&(block as u32).to_le_bytes());
        let high = offset_of!(RawInode, file_acl_high);
        self.bytes[high..high + 2].copy_from_slice(&((block >> 32) as u16).to_le_bytes());
    }

    pub(super) fn kind(&self) -> MappingKind {
        let raw = self.raw();
        let size = u64::from(raw.size_high.get()) << 32 | u64::from(raw.size_lo.get());
        let has_extents = self.has_flag(inode_flags::EXTENTS);
        let is_unmapped = match file_type_of(raw.mode.get()) {
            Some(FileType::Symlink) => size < FAST_SYMLINK_MAX && !has_extents,
            Some(FileType::Regular | FileType::Directory) => false,
            // A reserved inode without a mode.
            None => raw.block == [0; 60],
            Some(_) => true,
        };
        if is_unmapped || self.has_flag(inode_flags::INLINE_DATA) {
            MappingKind::None
        } else if has_extents {
            MappingKind::Extents
        } else {
            MappingKind::Pointers
        }
    }

    pub(super) fn i_block(&self) -> [u8; 60] {
        self.raw().block
    }

    pub(super) fn set_i_block(&mut self, i_block: &[u8; 60]) {
        self.bytes[BLOCK_AT..BLOCK_AT + 60].copy_from_slice(i_block);
    }

    /// Adds blocks to `i_blocks`.
    pub(super) fn charge(&mut self, blocks: i64, superblock: &Superblock) {
        let unit = if self.has_flag(inode_flags::HUGE_FILE) {
            1
        } else {
            superblock.block_size as i64 / 512
        };
        let raw = self.raw();
        let old = u64::from(raw.blocks_high.get()) << 32 | u64::from(raw.blocks_lo.get());
        let new = old.saturating_add_signed(blocks * unit);
        let low = offset_of!(RawInode, blocks_lo);
        self.bytes[low..low + 4].copy_from_slice(&(new as u32).to_le_bytes());
        let high = offset_of!(RawInode, blocks_high);
        self.bytes[high..high + 2].copy_from_slice(&((new >> 32) as u16).to_le_bytes());
    }

    /// Returns the extent tree of a file mapped by extents.
    ///
    /// # Errors
    /// EUCLEAN for a damaged tree.
    pub(super) fn extent_tree(&self, changes: &BlockChanges<'_>) -> Result<ExtentTree> {
        let mut found = ExtentTree::default();
        found
            .read_node(changes, &self.i_block(), None)
            .map_err(|error| error.at(format!("inode {}", self.number)))?;
        Ok(found)
    }

    /// Replaces the extent tree. Returns the blocks of the new tree, with their contents.
    pub(super) fn set_extents(
        &mut self,
        extents: &[Extent],
        superblock: &Superblock,
        mut allocate: impl FnMut() -> Result<u64>,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let (size, seed) = (superblock.block_size, self.seed(superblock));
        let pieces = extents.iter().copied().flat_map(split_for_disk);
        let mut entries: Vec<(u32, [u8; EXTENT_ENTRY_LEN])> = pieces
            .map(|piece| (piece.logical, encode_extent(&piece)))
            .collect();
        let mut nodes = Vec::new();
        let mut root = empty_root();
        let mut depth = 0;
        while entries.len() as u64 > node_capacity(root.len()) {
            let mut above = Vec::new();
            for chunk in entries.chunks(node_capacity(size) as usize) {
                let mut node = vec![0; size];
                let slots: Vec<_> = chunk.iter().map(|(_, entry)| *entry).collect();
                fill_node(&mut node, &slots, depth);
                seal_node(&mut node, seed);
                let number = allocate()?;
                above.push((chunk[0].0, encode_index(chunk[0].0, number)));
                nodes.push((number, node));
            }
            entries = above;
            depth += 1;
        }
        let slots: Vec<_> = entries.iter().map(|(_, entry)| *entry).collect();
        fill_node(&mut root, &slots, depth);
        self.set_i_block(&root);
        Ok(nodes)
    }
}

/// Writes the checksum of a block of an extent tree.
pub(super) fn seal_node(node: &mut [u8], seed: Option<u32>) {
    if let Some(seed) = seed {
        let tail = EXTENT_ENTRY_LEN * (1 + node_capacity(node.len()) as usize);
        let crc = crc32c(seed, &node[..tail]);
        node[tail..tail + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Returns the block of the table that has an inode, and the inode's first byte in it.
fn place(superblock: &Superblock, maps: &GroupMaps, number: u32) -> (u64, usize) {
    let (group, index) = inode_place(superblock, number);
    let at = index as usize * superblock.inode_size;
    let block = maps.inode_table(group) + (at / superblock.block_size) as u64;
    (block, at % superblock.block_size)
}

impl ExtentTree {
    /// Collects the extents below a node. They are in order and no node is empty, so that the walk
    /// ends even in a forged tree.
    fn read_node(
        &mut self,
        changes: &BlockChanges<'_>,
        bytes: &[u8],
        depth: Option<u16>,
    ) -> Result<()> {
        let (header, entries) = parse_node(bytes, depth)?;
        let count = usize::from(header.entries.get());
        if count == 0 && (depth.is_some() || header.depth.get() > 0) {
            return Err(Error::corrupt("empty extent node"));
        }
        for entry in entries.chunks_exact(EXTENT_ENTRY_LEN).take(count) {
            if header.depth.get() > 0 {
                let (_, child) = decode_index(entry)?;
                self.blocks.push(child);
                let below = header.depth.get() - 1;
                self.read_node(changes, &changes.read(child)?, Some(below))
                    .map_err(|error| error.at(format!("extent block {child}")))?;
                continue;
            }
            let extent = decode_extent(entry)?;
            let after = self.extents.last().map_or(0, Extent::end);
            let is_inside = extent.physical_range().end <= changes.old().block_count;
            if u64::from(extent.logical) < after || extent.len == 0 || !is_inside {
                let what = format!("extent of file block {} is damaged", extent.logical);
                return Err(Error::corrupt(what));
            }
            self.extents.push(extent);
        }
        Ok(())
    }
}
