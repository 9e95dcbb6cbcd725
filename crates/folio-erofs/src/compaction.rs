//! Removal of blocks that no file has: contents of files that later ones replaced or hid.

use crate::content::{Content, Data};
use crate::format::{BLOCK_BYTES, HOLE};
use crate::output::BlockOutput;
use crate::tree::{Body, Tree};
use folio::Result;
use std::collections::BTreeMap;

/// Of this many blocks, one may be unused.
const UNUSED_SHARE: u64 = 50;

/// Moves the blocks of all files to the start of the image, unless only few blocks are unused.
///
/// # Errors
///
/// Those of reads and writes of the image.
pub(crate) fn compact(tree: &mut Tree, output: &mut BlockOutput) -> Result<()> {
    let (order, _) = tree.walk();
    let mut extents = BTreeMap::new();
    for id in &order {
        if let Body::File(content) = &tree.nodes[*id].body {
            add_extents(content, &mut extents);
        }
    }
    let live: u64 = extents.values().map(|count| u64::from(*count)).sum();
    // The first block is that of the superblock.
    let all = u64::from(output.next_block()?) - 1;
    if (all - live) * UNUSED_SHARE <= all {
        return Ok(());
    }
    let (mut next, mut moved) = (1, BTreeMap::new());
    for (start, count) in extents {
        output.move_blocks(start, next, count)?;
        moved.insert(start, next);
        next += count;
    }
    output.truncate(next);
    for id in order {
        if let Body::File(content) = &mut tree.nodes[id].body {
            relocate(content, &moved);
        }
    }
    Ok(())
}

/// Adds the first block and the number of blocks of each part of a content.
fn add_extents(content: &Content, extents: &mut BTreeMap<u32, u32>) {
    let blocks = |bytes: u64| bytes.div_ceil(BLOCK_BYTES as u64);
    match &content.data {
        Data::Flat { start_block, tail } => {
            let count = blocks(content.size_bytes - tail.len() as u64);
            if *start_block != HOLE {
                extents.insert(*start_block, count as u32);
            }
        }
        Data::Chunks {
            chunk_bits,
            blocks: starts,
        } => {
            let mut left = blocks(content.size_bytes);
            for start in starts {
                let count = left.min(1 << chunk_bits);
                left -= count;
                if *start != HOLE {
                    extents.insert(*start, count as u32);
                }
            }
        }
        Data::Compressed {
            start_block,
            block_count,
            ..
        } => drop(extents.insert(*start_block, *block_count)),
    }
}

/// Replaces the first block of each part of a content.
fn relocate(content: &mut Content, moved: &BTreeMap<u32, u32>) {
    let relocate = |block: &mut u32| *block = moved.get(block).copied().unwrap_or(*block);
    match &mut content.data {
        Data::Flat { start_block, .. } | Data::Compressed { start_block, .. } => {
            relocate(start_block);
        }
        Data::Chunks { blocks, .. } => blocks.iter_mut().for_each(relocate),
    }
}
