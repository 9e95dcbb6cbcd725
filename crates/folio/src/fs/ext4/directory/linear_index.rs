//! Lookups in a large linear directory: one that `mke2fs -d` made, or one of a file system without
//! the feature dir_index.
//!
//! The first lookup reads all blocks and makes an index in memory. Without it, each lookup would
//! search the blocks from the start.

use super::context::DirectoryBlocks;
use super::fold::SoughtName;
use super::leaf::visible_entries;
use crate::base::{LogicalBlock, Result};
use crate::fs::ext4::inode::name_index::NameIndex;
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Fewest blocks of a directory with an index: fewer are searched as fast.
const BLOCKS_MIN: u32 = 8;

/// Returns the blocks of a linear directory that may have `name`, in order; `None` if all may: the
/// directory is small, or damaged.
pub(super) fn candidates(
    blocks: &dyn DirectoryBlocks,
    name: &SoughtName<'_>,
) -> Option<SmallVec<[LogicalBlock; 4]>> {
    if blocks.block_count() < BLOCKS_MIN {
        return None;
    }
    let index = match blocks.name_index() {
        Some(index) => index,
        None => {
            // Of a damaged directory, a search from the start finds the names before the damage.
            let index = Arc::new(build(blocks).ok()?);
            blocks.replace_name_index(Some(index.clone()));
            index
        }
    };
    Some(index.candidates(name.hashed()))
}

/// Notes that `name` was inserted into `block`.
pub(super) fn note_inserted(blocks: &dyn DirectoryBlocks, name: &[u8], block: LogicalBlock) {
    // Taken out, so that this is its only reference, and it is changed in place.
    if let Some(mut index) = blocks.replace_name_index(None) {
        let name = blocks.context().sought(name);
        Arc::make_mut(&mut index).insert(name.hashed(), block);
        blocks.replace_name_index(Some(index));
    }
}

/// Reads all names of a directory.
///
/// # Errors
/// EUCLEAN for a damaged block.
fn build(blocks: &dyn DirectoryBlocks) -> Result<NameIndex> {
    let mut index = NameIndex::default();
    for logical in (0..blocks.block_count()).map(LogicalBlock) {
        let block = blocks.block(logical)?;
        let _: ControlFlow<()> =
            visible_entries(blocks.context(), logical, &block.read(), &mut |entry| {
                let name = blocks.context().sought(entry.name);
                index.push(name.hashed(), logical);
                ControlFlow::Continue(())
            })?;
    }
    index.finish();
    Ok(index)
}
