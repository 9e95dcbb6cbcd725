//! Block maps of ext2 and ext3: twelve direct pointers, then one, two and three levels of pointer
//! blocks. Read only.
//!
//! ```text
//!   i_block:  | 12 pointers to data | -> 1 level | -> 2 levels | -> 3 levels |
//!   pointer block:  | block_size / 4 pointers, 0 for a hole |
//! ```
//!
//! [`walk`] is the only code that follows pointers: [`load`] makes an extent map of them, and the
//! checker claims their blocks.

use super::extent_map::{ExtentMap, TreeContext};
use crate::base::{Error, LogicalBlock, PhysicalBlock, Result};

/// Pointers in the inode that name data directly.
const DIRECT: usize = 12;

/// Receives the pointers of a block map, in the order of the file.
pub(crate) trait BlockMapVisitor {
    /// An error that ends the walk.
    type Error;

    /// Receives the pointer to the data of file block `logical`; 0 is a hole.
    fn data(&mut self, logical: u64, pointer: u32) -> std::result::Result<(), Self::Error>;

    /// Returns the bytes of the pointer block `number`, or `None` to pass over all it leads to.
    fn pointer_block(&mut self, number: u32) -> std::result::Result<Option<Vec<u8>>, Self::Error>;
}

/// Walks the block map in an inode's `i_block`.
///
/// # Errors
/// The first error of `visitor`.
pub(crate) fn walk<V: BlockMapVisitor>(
    i_block: &[u8; 60],
    block_size: usize,
    visitor: &mut V,
) -> std::result::Result<(), V::Error> {
    let mut logical = 0;
    for pointer in pointers(&i_block[..4 * DIRECT]) {
        visitor.data(logical, pointer)?;
        logical += 1;
    }
    for (pointer, depth) in pointers(&i_block[4 * DIRECT..]).zip(1..) {
        walk_branch(pointer, depth, block_size, &mut logical, visitor)?;
    }
    Ok(())
}

fn walk_branch<V: BlockMapVisitor>(
    pointer: u32,
    depth: u32,
    block_size: usize,
    logical: &mut u64,
    visitor: &mut V,
) -> std::result::Result<(), V::Error> {
    let bytes = match pointer {
        0 => None,
        _ => visitor.pointer_block(pointer)?,
    };
    let Some(bytes) = bytes else {
        *logical += (block_size as u64 / 4).pow(depth);
        return Ok(());
    };
    for inner in pointers(&bytes) {
        if depth == 1 {
            visitor.data(*logical, inner)?;
            *logical += 1;
        } else {
            walk_branch(inner, depth - 1, block_size, logical, visitor)?;
        }
    }
    Ok(())
}

fn pointers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Returns the extent map of the block map in an inode's `i_block`.
///
/// # Errors
/// EUCLEAN for pointers outside the file system, and for loops.
pub(crate) fn load(i_block: &[u8; 60], context: &TreeContext<'_>) -> Result<ExtentMap> {
    let mut runs = RunCollector {
        context,
        runs: Vec::new(),
        pointer_blocks: Vec::new(),
        data_blocks: 0,
    };
    walk(i_block, context.block_size, &mut runs)?;
    Ok(ExtentMap::from_runs(runs.runs, runs.pointer_blocks))
}

/// Collects the runs of one file.
struct RunCollector<'a> {
    context: &'a TreeContext<'a>,
    runs: Vec<(LogicalBlock, PhysicalBlock, u32)>,
    pointer_blocks: Vec<u64>,
    data_blocks: u64,
}

impl BlockMapVisitor for RunCollector<'_> {
    type Error = Error;

    fn data(&mut self, logical: u64, pointer: u32) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        self.check(pointer)?;
        self.data_blocks += 1;
        // No block is used twice, so more than the file system has means a loop.
        if self.data_blocks > self.context.block_count {
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

    fn pointer_block(&mut self, number: u32) -> Result<Option<Vec<u8>>> {
        self.check(number)?;
        self.pointer_blocks.push(number.into());
        if self.pointer_blocks.len() as u64 > self.context.block_count {
            return Err(Error::corrupt(
                "block map has more pointer blocks than there are blocks",
            ));
        }
        let block = self.context.metadata.block(PhysicalBlock(number.into()))?;
        let bytes = block.read().to_vec();
        Ok(Some(bytes))
    }
}

impl RunCollector<'_> {
    fn check(&self, pointer: u32) -> Result<()> {
        let block = u64::from(pointer);
        let context = self.context;
        if block < context.block_count && block >= context.first_data_block.max(1) {
            Ok(())
        } else {
            Err(Error::corrupt(format!(
                "block map points to block {block}, outside the file system"
            )))
        }
    }
}
