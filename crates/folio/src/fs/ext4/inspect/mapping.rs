//! The blocks of an inode: data, tree nodes and pointer blocks, in the order in which a walk from
//! the root meets them.

use super::inspector::Ext4Inspector;
use crate::base::{Error, Result};
use crate::fs::ext4::inode::file_type_of;
use crate::fs::ext4::layout::disk::{EXTENT_ENTRY_LEN, RawInode, inode_flags};
use crate::fs::ext4::layout::extent::{decode_extent, decode_index, parse_node};
use crate::fs::ext4::map::block_map::{BlockMapVisitor, walk};
use crate::vfs::FileType;

/// Length of `i_block` in bytes: a shorter target of a symbolic link is stored there.
const FAST_SYMLINK_MAX: u64 = 60;

/// A run of blocks of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRun {
    /// The use of the blocks.
    pub kind: RunKind,
    /// First block in the file; of a tree node or pointer block the first that it maps.
    pub logical: u64,
    /// First block on the device.
    pub physical: u64,
    /// Number of blocks; 1 for tree nodes and pointer blocks.
    pub len: u64,
}

/// The use of a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// Holds data.
    Data,
    /// Allocated, but reads as zeros.
    Unwritten,
    /// A node of the extent tree, at this depth below the inode.
    TreeNode(u16),
    /// A block of pointers, with this number of levels down to the data: 1 to 3.
    Pointers(u8),
}

impl Ext4Inspector {
    /// Returns the blocks of inode `number`; none if its data is in the inode, or it has no data.
    /// The block of extended attributes is not among them. debugfs: `blocks`.
    ///
    /// # Errors
    /// EUCLEAN for a damaged mapping, or an inode number that does not exist.
    pub fn mapping(&self, number: u32) -> Result<Vec<BlockRun>> {
        let raw = RawInode::of_bytes(&self.inode_bytes(number)?);
        self.mapping_of(&raw)
            .map_err(|e| e.at(format!("inode {number}")))
    }

    /// Returns the blocks of an inode with these fields.
    pub(super) fn mapping_of(&self, raw: &RawInode) -> Result<Vec<BlockRun>> {
        let flags = raw.flags.get();
        let size = u64::from(raw.size_high.get()) << 32 | u64::from(raw.size_lo.get());
        let file_type = file_type_of(raw.mode.get());
        let is_unmapped = match file_type {
            Some(FileType::Regular | FileType::Directory) => false,
            Some(FileType::Symlink) => size < FAST_SYMLINK_MAX && flags & inode_flags::EXTENTS == 0,
            Some(_) => true,
            None => false,
        };
        let mut runs = Vec::new();
        if is_unmapped || flags & inode_flags::INLINE_DATA != 0 {
            return Ok(runs);
        }
        if flags & inode_flags::EXTENTS != 0 {
            let mut next = 0;
            self.walk_tree(&raw.block, 0, None, &mut next, &mut runs)?;
        } else {
            let mut collector = PointerCollector {
                inspector: self,
                runs: Vec::new(),
                left: self.superblock.block_count,
            };
            walk(&raw.block, self.superblock.block_size, &mut collector)?;
            runs = collector.runs;
        }
        Ok(runs)
    }

    /// Walks the node in `bytes`, at `level` below the inode. `depth`: the depth that it must have.
    /// `next`: the lowest file block that the next extent may have. As extents are in order and no
    /// node is empty, the walk ends even in a forged tree.
    fn walk_tree(
        &self,
        bytes: &[u8],
        level: u16,
        depth: Option<u16>,
        next: &mut u64,
        runs: &mut Vec<BlockRun>,
    ) -> Result<()> {
        let (header, entries) = parse_node(bytes, depth)?;
        let count = usize::from(header.entries.get());
        let entries = entries.chunks_exact(EXTENT_ENTRY_LEN).take(count);
        if count == 0 && (level > 0 || header.depth.get() > 0) {
            return Err(Error::corrupt("empty extent node"));
        }
        for entry in entries {
            if header.depth.get() > 0 {
                let (logical, child) = decode_index(entry)?;
                self.check_block(child, 1)?;
                runs.push(BlockRun {
                    kind: RunKind::TreeNode(level),
                    logical: logical.into(),
                    physical: child,
                    len: 1,
                });
                let block = self.block(child)?;
                let depth = Some(header.depth.get() - 1);
                self.walk_tree(&block, level + 1, depth, next, runs)
                    .map_err(|e| e.at(format!("extent block {child}")))?;
                continue;
            }
            let extent = decode_extent(entry)?;
            if u64::from(extent.logical) < *next || extent.len == 0 {
                let what = format!("extent of file block {} is out of order", extent.logical);
                return Err(Error::corrupt(what));
            }
            self.check_block(extent.physical, extent.len.into())?;
            *next = extent.end();
            runs.push(BlockRun {
                kind: if extent.is_unwritten {
                    RunKind::Unwritten
                } else {
                    RunKind::Data
                },
                logical: extent.logical.into(),
                physical: extent.physical,
                len: extent.len.into(),
            });
        }
        Ok(())
    }

    /// Fails with EUCLEAN for blocks outside the file system.
    pub(super) fn check_block(&self, first: u64, len: u64) -> Result<()> {
        let end = first.checked_add(len);
        if first == 0 || end.is_none_or(|end| end > self.superblock.block_count) {
            let what = format!("{len} blocks from {first} are outside the file system");
            return Err(Error::corrupt(what));
        }
        Ok(())
    }
}

/// Collects the runs of a block map.
struct PointerCollector<'a> {
    inspector: &'a Ext4Inspector,
    runs: Vec<BlockRun>,
    /// Blocks that the map may still name: no block is used twice, so more means a loop.
    left: u64,
}

impl PointerCollector<'_> {
    fn count(&mut self, pointer: u32) -> Result<()> {
        self.inspector.check_block(pointer.into(), 1)?;
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| Error::corrupt("block map names more blocks than there are"))?;
        Ok(())
    }
}

impl BlockMapVisitor for PointerCollector<'_> {
    type Error = Error;

    fn data(&mut self, logical: u64, pointer: u32) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        self.count(pointer)?;
        if let Some(last) = self.runs.last_mut()
            && last.kind == RunKind::Data
            && last.logical + last.len == logical
            && last.physical + last.len == u64::from(pointer)
        {
            last.len += 1;
            return Ok(());
        }
        self.runs.push(BlockRun {
            kind: RunKind::Data,
            logical,
            physical: pointer.into(),
            len: 1,
        });
        Ok(())
    }

    fn pointer_block(&mut self, number: u32, level: u8, first: u64) -> Result<Option<Vec<u8>>> {
        self.count(number)?;
        self.runs.push(BlockRun {
            kind: RunKind::Pointers(level),
            logical: first,
            physical: number.into(),
            len: 1,
        });
        self.inspector.block(number.into()).map(Some)
    }
}
