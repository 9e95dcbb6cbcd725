//! Moves blocks from beyond the new end: data and trees of files, blocks of pointers, attributes.
//!
//! The copy of a block is written before the transaction that refers to it, into blocks that are
//! free until then. The old block is free from that transaction on.

use super::Shrinker;
use super::inode::{ExtentTree, InodeRecord, MappingKind};
use crate::base::{Error, PhysicalBlock, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::extent::Extent;
use crate::fs::ext4::xattr::format::seal_block;
use std::ops::Range;

/// Bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;
/// Pointers to data in `i_block`.
const DIRECT: usize = 12;
/// Magic number and checksum at the end of a block of the orphan file.
const ORPHAN_TAIL_LEN: usize = 8;

impl Shrinker<'_> {
    /// Moves all blocks of an inode that are beyond the new end. Returns whether there were any.
    pub(super) fn evacuate(&mut self, inode: &mut InodeRecord) -> Result<bool> {
        let is_changed = match inode.kind() {
            MappingKind::None => false,
            MappingKind::Extents => self.evacuate_extents(inode)?,
            MappingKind::Pointers => self.evacuate_pointers(inode)?,
        };
        if is_changed {
            inode.store(&mut self.changes, &self.maps)?;
        }
        Ok(is_changed)
    }

    fn is_beyond(&self, run: &Range<u64>) -> bool {
        run.end > self.new.block_count
    }

    fn evacuate_extents(&mut self, inode: &mut InodeRecord) -> Result<bool> {
        let ExtentTree {
            extents,
            blocks: tree,
        } = inode.extent_tree(&self.changes)?;
        let is_inside = !extents
            .iter()
            .any(|extent| self.is_beyond(&extent.physical_range()))
            && !tree.iter().any(|block| *block >= self.new.block_count);
        if is_inside {
            return Ok(false);
        }
        let mut moved: Vec<Extent> = Vec::new();
        for extent in extents {
            let kept = self.new.block_count.saturating_sub(extent.physical);
            if kept > 0 {
                // At most the extent's length.
                let len = kept.min(extent.len.into()) as u32;
                append(&mut moved, Extent { len, ..extent });
            }
            if kept < extent.len.into() {
                let beyond = extent.tail_from(extent.logical + kept as u32);
                self.move_extent(inode, beyond, &mut moved)?;
            }
        }
        let superblock = self.old;
        let maps = &mut self.maps;
        let nodes = inode.set_extents(&moved, superblock, || {
            maps.allocate(superblock, 1).map(|run| run.start)
        })?;
        inode.charge(nodes.len() as i64 - tree.len() as i64, superblock);
        tree.into_iter()
            .for_each(|block| self.maps.free(block..block + 1));
        for (block, bytes) in nodes {
            self.write_new(block, &bytes)?;
        }
        Ok(true)
    }

    fn move_extent(
        &mut self,
        inode: &InodeRecord,
        mut extent: Extent,
        moved: &mut Vec<Extent>,
    ) -> Result<()> {
        while extent.len > 0 {
            let run = self.maps.allocate(self.old, extent.len.into())?;
            let len = (run.end - run.start) as u32;
            let from = extent.physical..extent.physical + u64::from(len);
            if !extent.is_unwritten {
                self.copy(&from, run.start)?;
                // Their checksums cover the number of the block.
                if self.old.raw.orphan_file_inum.get() == inode.number {
                    self.seal_orphan_blocks(inode, run.clone())?;
                }
            }
            self.maps.free(from);
            append(
                moved,
                Extent {
                    len,
                    physical: run.start,
                    ..extent
                },
            );
            extent = Extent {
                logical: extent.logical + len,
                len: extent.len - len,
                physical: extent.physical + u64::from(len),
                ..extent
            };
        }
        Ok(())
    }

    /// Copies blocks on the device.
    fn copy(&mut self, from: &Range<u64>, to: u64) -> Result<()> {
        let size = self.old.block_size as u64;
        let step = COPY_BYTES / size;
        let mut at = from.start;
        while at < from.end {
            let count = step.min(from.end - at);
            // At most COPY_BYTES.
            self.buffer.resize((count * size) as usize, 0);
            self.device.read_at(&mut self.buffer, at * size)?;
            self.device
                .write_at(&self.buffer, (to + at - from.start) * size)?;
            at += count;
        }
        self.moved_blocks += from.end - from.start;
        Ok(())
    }

    /// Writes a block that nothing refers to yet.
    fn write_new(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        self.device
            .write_at(bytes, block * self.old.block_size as u64)
    }

    /// Corrects the checksums of blocks of the orphan file, which cover the block's number.
    fn seal_orphan_blocks(&mut self, inode: &InodeRecord, blocks: Range<u64>) -> Result<()> {
        let Some(seed) = inode.seed(self.old) else {
            return Ok(());
        };
        for block in blocks {
            let mut bytes = vec![0; self.old.block_size];
            self.device
                .read_at(&mut bytes, block * self.old.block_size as u64)?;
            let (entries, tail) = bytes.split_at_mut(self.old.block_size - ORPHAN_TAIL_LEN);
            let crc = crc32c(crc32c(seed, &block.to_le_bytes()), entries);
            tail[4..].copy_from_slice(&crc.to_le_bytes());
            self.write_new(block, &bytes)?;
        }
        Ok(())
    }

    fn evacuate_pointers(&mut self, inode: &mut InodeRecord) -> Result<bool> {
        let mut i_block = inode.i_block();
        let mut is_changed = false;
        let mut left = self.old.block_count;
        for (slot, bytes) in i_block.chunks_exact_mut(4).enumerate() {
            let level = slot.saturating_sub(DIRECT - 1);
            let old = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let new = self
                .move_pointer(old, level, &mut left)
                .map_err(|error| error.at(format!("inode {}", inode.number)))?;
            if new != old {
                bytes.copy_from_slice(&new.to_le_bytes());
                is_changed = true;
            }
        }
        inode.set_i_block(&i_block);
        Ok(is_changed)
    }

    /// Moves the block of a pointer, and all blocks that it leads to: `level` blocks of pointers
    /// are between it and the data. Returns the new pointer. `left`: pointers that the map may
    /// still have; more mean a loop.
    fn move_pointer(&mut self, pointer: u32, level: usize, left: &mut u64) -> Result<u32> {
        if pointer == 0 {
            return Ok(0);
        }
        *left = left
            .checked_sub(1)
            .filter(|_| u64::from(pointer) < self.old.block_count)
            .ok_or_else(|| Error::corrupt("block map is damaged; run e2fsck"))?;
        let from = u64::from(pointer);
        let is_beyond = from >= self.new.block_count;
        let mut bytes = Vec::new();
        let mut is_changed = false;
        if level > 0 {
            bytes = self.changes.read(from)?;
            for slot in bytes.chunks_exact_mut(4) {
                let old = u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
                let new = self.move_pointer(old, level - 1, left)?;
                is_changed |= new != old;
                slot.copy_from_slice(&new.to_le_bytes());
            }
        }
        if !is_beyond {
            if is_changed {
                self.changes.block(from)?.copy_from_slice(&bytes);
            }
            return Ok(pointer);
        }
        let to = self.maps.allocate(self.old, 1)?.start;
        if level > 0 {
            self.write_new(to, &bytes)?;
        } else {
            self.copy(&(from..from + 1), to)?;
        }
        self.maps.free(from..from + 1);
        // Blocks of a map have 32-bit numbers, and the new one is lower.
        Ok(to as u32)
    }

    /// Moves a block of extended attributes, which all `sharers` use.
    pub(super) fn evacuate_xattrs(&mut self, block: u64, sharers: &[u32]) -> Result<()> {
        let mut bytes = self.changes.read(block)?;
        let to = self.maps.allocate(self.old, 1)?.start;
        // Its checksum covers the number of the block.
        seal_block(&mut bytes, PhysicalBlock(to), self.old.checksum_seed);
        self.write_new(to, &bytes)?;
        for number in sharers {
            let mut inode = InodeRecord::load(&self.changes, &self.maps, *number)?;
            inode.set_xattr_block(to);
            inode.store(&mut self.changes, &self.maps)?;
        }
        self.maps.free(block..block + 1);
        self.moved_blocks += 1;
        Ok(())
    }
}

/// Appends an extent, or extends the last one.
fn append(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && last.end() == u64::from(extent.logical)
        && last.physical_range().end == extent.physical
        && last.is_unwritten == extent.is_unwritten
    {
        last.len += extent.len;
        return;
    }
    extents.push(extent);
}
