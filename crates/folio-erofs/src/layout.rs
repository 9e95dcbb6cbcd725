//! The places of inodes in the metadata, and what is behind each of them.
//!
//! ```text
//!   | inode | extended attributes | tail or list of chunks |      in one block if it fits
//! ```
//!
//! A tail may not cross the end of a block. Each inode goes into the block with the least space
//! that is enough.

use crate::compression_index;
use crate::content::{Content, Data};
use crate::directory;
use crate::format::{BLOCK_BYTES, DataLayout, HOLE, RawCompactInode, RawExtendedInode, SLOT_BYTES};
use crate::tree::{Body, NodeId, Tree};
use folio::Timespec;
use std::collections::BTreeSet;

/// Bytes of the list of chunks for each chunk.
const CHUNK_ENTRY_BYTES: usize = 4;

/// What is behind an inode and its extended attributes, or in blocks of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing: all data are in blocks, or there are none.
    None,
    /// The bytes after the last whole block.
    Inline,
    /// It does not fit behind the inode, and gets one more block.
    Apart,
    /// As `Apart`, but the other blocks are elsewhere, so all of them are listed as chunks.
    Listed,
    /// The list of chunks.
    Chunks,
    /// The index of compressed pieces.
    Index,
}

/// An inode, and its place.
pub(crate) struct Plan {
    pub(crate) node: NodeId,
    pub(crate) is_extended: bool,
    pub(crate) link_count: u32,
    pub(crate) size_bytes: u64,
    pub(crate) tail: Tail,
    /// Bytes behind the inode and its extended attributes.
    behind_bytes: usize,
    /// The place in the metadata, in slots.
    pub(crate) nid: u64,
    /// The first block of the data.
    pub(crate) start_block: u32,
    /// The block of a tail that is listed.
    pub(crate) tail_block: u32,
}

impl Plan {
    /// Plans the inode of a node, whose extended attributes have `xattr_bytes`. The place is still
    /// unknown.
    pub(crate) fn new(tree: &Tree, node: NodeId, xattr_bytes: usize, link_count: u32) -> Self {
        let mut plan = Self {
            node,
            is_extended: true,
            link_count,
            size_bytes: 0,
            tail: Tail::None,
            behind_bytes: 0,
            nid: 0,
            start_block: HOLE,
            tail_block: HOLE,
        };
        let (size_bytes, tail_bytes) = match &tree.nodes[node].body {
            Body::File(Content { size_bytes, data }) => {
                let tail_bytes = match data {
                    Data::Flat { start_block, tail } => {
                        plan.start_block = *start_block;
                        tail.len()
                    }
                    Data::Chunks { blocks, .. } => {
                        plan.tail = Tail::Chunks;
                        blocks.len() * CHUNK_ENTRY_BYTES
                    }
                    Data::Compressed { start_block, .. } => {
                        plan.tail = Tail::Index;
                        plan.start_block = *start_block;
                        compression_index::len_bytes(*size_bytes, xattr_bytes)
                    }
                };
                (*size_bytes, tail_bytes)
            }
            Body::Directory(found) => {
                let len = directory::len_bytes(&directory::names(found, node));
                (len as u64, len % BLOCK_BYTES)
            }
            Body::Symlink(target) => (target.len() as u64, target.len()),
            Body::Special(_) => (0, 0),
        };
        plan.size_bytes = size_bytes;
        plan.behind_bytes = tail_bytes;
        plan.place_tail(xattr_bytes);
        plan
    }

    /// Uses the small form of the inode if its numbers allow it. `common` is the time that inodes
    /// without one have.
    pub(crate) fn shrink(&mut self, tree: &Tree, common: Timespec) {
        let node = &tree.nodes[self.node];
        self.is_extended = u16::try_from(node.uid).is_err()
            || u16::try_from(node.gid).is_err()
            || u16::try_from(self.link_count).is_err()
            || u32::try_from(self.size_bytes).is_err()
            || node.modified != common;
    }

    /// Decides where the bytes after the last whole block go.
    fn place_tail(&mut self, xattr_bytes: usize) {
        if self.tail != Tail::None || self.behind_bytes == 0 {
            return;
        }
        let largest = size_of::<RawExtendedInode>() + xattr_bytes + self.behind_bytes;
        if largest <= BLOCK_BYTES {
            self.tail = Tail::Inline;
        } else if self.start_block == HOLE {
            self.tail = Tail::Apart;
            self.behind_bytes = 0;
        } else {
            self.tail = Tail::Listed;
            let count = self.size_bytes.div_ceil(BLOCK_BYTES as u64);
            self.behind_bytes = usize::try_from(count).unwrap_or(0) * CHUNK_ENTRY_BYTES;
        }
    }

    /// Returns the bytes of the inode without what is behind it.
    pub(crate) fn inode_bytes(&self) -> usize {
        if self.is_extended {
            size_of::<RawExtendedInode>()
        } else {
            size_of::<RawCompactInode>()
        }
    }

    /// Returns how the inode finds its data.
    pub(crate) fn data_layout(&self) -> DataLayout {
        match self.tail {
            Tail::None | Tail::Apart => DataLayout::Plain,
            Tail::Inline => DataLayout::Inline,
            Tail::Listed | Tail::Chunks => DataLayout::Chunks,
            Tail::Index => DataLayout::Compressed,
        }
    }

    /// Finds the place.
    pub(crate) fn place(&mut self, slots: &mut Slots, xattr_bytes: usize) {
        let len = self.inode_bytes() + xattr_bytes + self.behind_bytes;
        self.nid = slots.allocate(len) / SLOT_BYTES as u64;
    }
}

/// Free space of a block, which is at its end.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FreeSpace {
    len: usize,
    block: u64,
}

/// Allocates space in the blocks of the metadata.
pub(crate) struct Slots {
    free: BTreeSet<FreeSpace>,
    block_count: u64,
}

impl Slots {
    /// Creates the first block. Its first slot is not used: an inode number 0 is none.
    pub(crate) fn new() -> Self {
        let len = BLOCK_BYTES - SLOT_BYTES;
        Self {
            free: BTreeSet::from([FreeSpace { len, block: 0 }]),
            block_count: 1,
        }
    }

    /// Returns where `len` bytes are, which cross no end of a block unless they are more than one.
    fn allocate(&mut self, len: usize) -> u64 {
        let len = len.next_multiple_of(SLOT_BYTES);
        let block_bytes = BLOCK_BYTES as u64;
        let enough = FreeSpace { len, block: 0 };
        let found = self.free.range(enough..).next();
        let Some(&FreeSpace { len: have, block }) = found else {
            let start = self.block_count * block_bytes;
            self.block_count += len.div_ceil(BLOCK_BYTES) as u64;
            self.release(self.block_count * block_bytes - start - len as u64);
            return start;
        };
        self.free.remove(&FreeSpace { len: have, block });
        let start = (block + 1) * block_bytes - have as u64;
        if have > len {
            let len = have - len;
            self.free.insert(FreeSpace { len, block });
        }
        start
    }

    /// Makes the end of the last block free.
    fn release(&mut self, len: u64) {
        if len > 0 {
            let (len, block) = (len as usize, self.block_count - 1);
            self.free.insert(FreeSpace { len, block });
        }
    }
}
