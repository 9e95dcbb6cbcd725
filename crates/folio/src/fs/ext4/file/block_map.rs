//! Block maps of ext2 and ext3: twelve direct blocks, then one, two and three levels of pointers.
//! Read only.

use super::extent::ExtentMap;
use crate::base::{Error, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::Ext4;

/// Pointers in the inode that name data directly.
const DIRECT: usize = 12;

/// Collects the runs of one file.
struct Walk<'a> {
    fs: &'a Ext4,
    next_logical: u64,
    runs: Vec<(LogicalBlock, PhysicalBlock, u32)>,
    pointer_blocks: Vec<u64>,
    data_blocks: u64,
}

/// The map in an inode's `i_block`.
pub(crate) fn load(i_block: &[u8; 60], fs: &Ext4) -> Result<ExtentMap> {
    let mut walk = Walk {
        fs,
        next_logical: 0,
        runs: Vec::new(),
        pointer_blocks: Vec::new(),
        data_blocks: 0,
    };
    let pointers: Vec<u32> = pointers(i_block).collect();
    for pointer in &pointers[..DIRECT] {
        walk.data(*pointer)?;
    }
    for (pointer, depth) in pointers[DIRECT..].iter().zip(1..) {
        walk.branch(*pointer, depth)?;
    }
    Ok(ExtentMap::from_runs(walk.runs, walk.pointer_blocks))
}

fn pointers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

impl Walk<'_> {
    fn data(&mut self, pointer: u32) -> Result<()> {
        let logical = self.next_logical;
        self.next_logical += 1;
        if pointer == 0 {
            return Ok(());
        }
        self.check(pointer)?;
        self.data_blocks += 1;
        // No block serves twice, so more than the file system has means a loop.
        if self.data_blocks > self.fs.geometry.block_count {
            return Err(Error::corrupt("block map names more blocks than there are"));
        }
        let logical =
            u32::try_from(logical).map_err(|_| Error::corrupt("block map beyond 2^32 blocks"))?;
        if let Some((first, start, len)) = self.runs.last_mut()
            && first.0 + *len == logical
            && start.0 + u64::from(*len) == u64::from(pointer)
        {
            *len += 1;
        } else {
            self.runs
                .push((LogicalBlock(logical), PhysicalBlock(pointer.into()), 1));
        }
        Ok(())
    }

    fn branch(&mut self, pointer: u32, depth: u32) -> Result<()> {
        let per_block = self.fs.block_size as u64 / 4;
        if pointer == 0 {
            self.next_logical += per_block.pow(depth);
            return Ok(());
        }
        self.check(pointer)?;
        self.pointer_blocks.push(pointer.into());
        if self.pointer_blocks.len() as u64 > self.fs.geometry.block_count {
            return Err(Error::corrupt(
                "block map has more pointer blocks than there are blocks",
            ));
        }
        let block = self.fs.metadata.block(PhysicalBlock(pointer.into()))?;
        let bytes = block.read().to_vec();
        for inner in pointers(&bytes) {
            match depth {
                1 => self.data(inner)?,
                _ => self.branch(inner, depth - 1)?,
            }
        }
        Ok(())
    }

    fn check(&self, pointer: u32) -> Result<()> {
        let block = u64::from(pointer);
        let geometry = &self.fs.geometry;
        match block < geometry.block_count && block >= geometry.first_data_block.max(1) {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "block map points to block {block}, outside the file system"
            ))),
        }
    }
}
