//! Block maps of ext2 and ext3: twelve direct pointers, then one, two and three levels of pointer
//! blocks.
//!
//! ```text
//!   i_block:  | 12 pointers to data | -> 1 level | -> 2 levels | -> 3 levels |
//!   pointer block:  | block_size / 4 pointers, 0 for a hole |
//! ```
//!
//! [`walk`] is the only code that follows pointers: [`load`] makes an extent map of them, and the
//! checker claims their blocks. [`store`] writes the pointer blocks that changed.
//!
//! A pointer cannot say that its block reads as zeros. Unwritten extents of the map in memory are
//! stored as holes, so that no reader sees the bytes of an earlier file after a crash.

use super::extent_map::{ExtentMap, TreeContext};
use super::pointer_slot::{DIRECT, PointerSlot, slots_needed};
use crate::base::{Errno, Error, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::layout::extent::Extent;
use std::iter::once;
use std::ops::Range;

/// Receives the pointers of a block map, in the order of the file.
pub(crate) trait BlockMapVisitor {
    /// An error that ends the walk.
    type Error;

    /// Receives the pointer to the data of file block `logical`; 0 is a hole.
    fn data(&mut self, logical: u64, pointer: u32) -> std::result::Result<(), Self::Error>;

    /// Returns the bytes of the pointer block `number`, or `None` to pass over all it leads to.
    /// The block has pointers to data if `level` is 1, and leads to file blocks from `first` on.
    fn pointer_block(
        &mut self,
        number: u32,
        level: u8,
        first: u64,
    ) -> std::result::Result<Option<Vec<u8>>, Self::Error>;
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
    let (direct, indirect) = i_block.split_at(4 * DIRECT as usize);
    for pointer in pointers(direct) {
        visitor.data(logical, pointer)?;
        logical += 1;
    }
    for (pointer, depth) in pointers(indirect).zip(1..) {
        walk_branch(pointer, depth, block_size, &mut logical, visitor)?;
    }
    Ok(())
}

fn walk_branch<V: BlockMapVisitor>(
    pointer: u32,
    depth: u8,
    block_size: usize,
    logical: &mut u64,
    visitor: &mut V,
) -> std::result::Result<(), V::Error> {
    let bytes = match pointer {
        0 => None,
        _ => visitor.pointer_block(pointer, depth, *logical)?,
    };
    let Some(bytes) = bytes else {
        *logical += (block_size as u64 / 4).pow(depth.into());
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

/// Writes the map into `i_block` and pointer blocks, as far as it changed since it was loaded or
/// stored. `allocate` allocates a pointer block. Returns the blocks that are no longer needed.
///
/// # Errors
/// Those of `allocate`; EFBIG for blocks that 32-bit pointers do not reach.
pub(crate) fn store(
    map: &mut ExtentMap,
    i_block: &mut [u8; 60],
    context: &TreeContext<'_>,
    allocate: impl FnMut() -> Result<PhysicalBlock>,
) -> Result<Vec<PhysicalBlock>> {
    let block_size = context.block_size;
    let (fresh, surplus) = place_pointer_blocks(map, block_size, allocate)?;
    // Slots of level 1 lead to changed file blocks; those above, to slots that came or went.
    let changed = slots_needed(once(map.changed.clone()), block_size);
    for slot in changed {
        let Ok(at) = map.slots.binary_search(&slot) else {
            continue;
        };
        let number = PhysicalBlock(map.tree_blocks[at]);
        let bytes = pointer_block_bytes(map, slot, block_size)?;
        let is_known = fresh.binary_search(&slot).is_err();
        // A block that stays as it is need not be in the transaction.
        if is_known && *context.metadata.block(number)?.read() == *bytes {
            continue;
        }
        let block = context.metadata.new_block(number)?;
        block.write().copy_from_slice(&bytes);
    }
    let (direct, indirect) = i_block.split_at_mut(4 * DIRECT as usize);
    fill_data_pointers(map, 0..DIRECT, direct)?;
    let roots = (1..).map(|level| PointerSlot { level, index: 0 });
    fill_slot_pointers(map, roots, indirect)?;
    map.changed = 0..0;
    Ok(surplus)
}

/// Gives each slot that the map needs a block. Returns the slots that got a new one, sorted, and
/// the blocks that no slot needs.
fn place_pointer_blocks(
    map: &mut ExtentMap,
    block_size: usize,
    mut allocate: impl FnMut() -> Result<PhysicalBlock>,
) -> Result<(Vec<PointerSlot>, Vec<PhysicalBlock>)> {
    let needed = slots_needed(
        written(map, 0..u64::MAX).map(|e| file_range(&e)),
        block_size,
    );
    if needed == map.slots {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut fresh = Vec::new();
    let mut blocks = Vec::with_capacity(needed.len());
    let mut known = map.slots.iter().zip(&map.tree_blocks).peekable();
    let mut surplus = Vec::new();
    for slot in &needed {
        while let Some((_, block)) = known.next_if(|(known, _)| *known < slot) {
            surplus.push(PhysicalBlock(*block));
        }
        match known.next_if(|(known, _)| *known == slot) {
            Some((_, block)) => blocks.push(*block),
            None => {
                blocks.push(0);
                fresh.push(*slot);
            }
        }
    }
    surplus.extend(known.map(|(_, block)| PhysicalBlock(*block)));
    // All or none, so that the map stays as it is without space. A surplus block is not reused:
    // the journal may have to revoke it.
    let mut allocated = Vec::with_capacity(fresh.len());
    for _ in &fresh {
        allocated.push(allocate()?.0);
    }
    let mut allocated = allocated.into_iter();
    for block in blocks.iter_mut().filter(|block| **block == 0) {
        *block = allocated.next().unwrap_or(0);
    }
    (map.slots, map.tree_blocks) = (needed, blocks);
    Ok((fresh, surplus))
}

/// Returns the contents of the pointer block at `slot`.
fn pointer_block_bytes(map: &ExtentMap, slot: PointerSlot, block_size: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; block_size];
    if slot.level == 1 {
        fill_data_pointers(map, slot.data_range(block_size), &mut bytes)?;
    } else {
        fill_slot_pointers(map, slot.children(block_size), &mut bytes)?;
    }
    Ok(bytes)
}

/// Writes the pointers to the file blocks in `range` into `bytes`.
fn fill_data_pointers(map: &ExtentMap, range: Range<u64>, bytes: &mut [u8]) -> Result<()> {
    bytes.fill(0);
    for extent in written(map, range.clone()) {
        let blocks = file_range(&extent);
        let (start, end) = (blocks.start.max(range.start), blocks.end.min(range.end));
        let physical = extent.physical + (start - blocks.start);
        let pointers = bytes[4 * (start - range.start) as usize..].chunks_exact_mut(4);
        for (pointer, block) in pointers.zip(physical..physical + (end - start)) {
            pointer.copy_from_slice(&pointer_to(block)?.to_le_bytes());
        }
    }
    Ok(())
}

/// Writes the pointers to the pointer blocks at `slots` into `bytes`.
fn fill_slot_pointers(
    map: &ExtentMap,
    slots: impl Iterator<Item = PointerSlot>,
    bytes: &mut [u8],
) -> Result<()> {
    for (pointer, slot) in bytes.chunks_exact_mut(4).zip(slots) {
        let block = map.slots.binary_search(&slot).map(|at| map.tree_blocks[at]);
        pointer.copy_from_slice(&pointer_to(block.unwrap_or(0))?.to_le_bytes());
    }
    Ok(())
}

fn pointer_to(block: u64) -> Result<u32> {
    u32::try_from(block).map_err(|_| {
        Error::new(
            Errno::FBIG,
            format!("block {block} is beyond the reach of a block map"),
        )
    })
}

/// Returns the written extents that overlap the file blocks in `range`.
fn written(map: &ExtentMap, range: Range<u64>) -> impl Iterator<Item = Extent> {
    let extents = map.extents();
    let first = extents.partition_point(|extent| extent.end() <= range.start);
    extents[first..]
        .iter()
        .take_while(move |extent| u64::from(extent.logical) < range.end)
        .filter(|extent| !extent.is_unwritten)
        .copied()
}

fn file_range(extent: &Extent) -> Range<u64> {
    extent.logical.into()..extent.end()
}

/// Collects the runs of one file.
struct RunCollector<'a> {
    context: &'a TreeContext<'a>,
    runs: Vec<(LogicalBlock, PhysicalBlock, u32)>,
    pointer_blocks: Vec<(PointerSlot, u64)>,
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

    fn pointer_block(&mut self, number: u32, level: u8, first: u64) -> Result<Option<Vec<u8>>> {
        self.check(number)?;
        let slot = PointerSlot::on_way_to(first, level, self.context.block_size);
        self.pointer_blocks.push((slot, number.into()));
        if self.pointer_blocks.len() as u64 > self.context.block_count {
            return Err(Error::corrupt(
                "block map has more pointer blocks than there are blocks",
            ));
        }
        let block = self.context.metadata.block(PhysicalBlock(number.into()))?;
        // A copy, so that no page stays locked while the levels below are read.
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
