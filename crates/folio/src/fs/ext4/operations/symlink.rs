//! Symbolic links: short targets in the inode, longer ones in a block.

use crate::base::{Errno, Error, LogicalBlock, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::state::ContentLayout;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::reserved::ReservedBlocks;

/// The longest target, in bytes, that is kept in `i_block`. A zero follows it.
const IN_BLOCK_FIELD_MAX: usize = 59;

impl Ext4Inode {
    /// Stores the target of a new symbolic link.
    ///
    /// # Errors
    /// ENAMETOOLONG if it does not fit in one block; ENOSPC.
    pub(crate) fn store_target(&self, target: &[u8], reserved: ReservedBlocks) -> Result<()> {
        let fs = &self.fs;
        let mut state = self.state_mut();
        if target.len() <= IN_BLOCK_FIELD_MAX {
            state.raw.block[..target.len()].copy_from_slice(target);
            state.set_recorded_size(target.len() as u64);
            return Ok(());
        }
        if target.len() >= fs.volume.block_size {
            return Err(Errno::NAMETOOLONG.into());
        }
        state.layout = ContentLayout::in_blocks(&fs.volume.geometry.features);
        let flags = state.layout.flags();
        state.raw.flags |= flags;
        let physical = self.append_block(&mut state, LogicalBlock(0), reserved)?;
        state.set_recorded_size(target.len() as u64);
        drop(state);
        let block = fs.volume.metadata.new_block(physical)?;
        block.write()[..target.len()].copy_from_slice(target);
        Ok(())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// ENOKEY for an encrypted link; EUCLEAN for damage.
    pub(crate) fn target(&self) -> Result<Vec<u8>> {
        let state = self.state.read();
        if state.raw.flags.get() & inode_flags::ENCRYPT != 0 {
            return Err(Error::new(Errno::NOKEY, "the link's target is encrypted"));
        }
        let size = state.recorded_size() as usize;
        let mut target = match state.layout {
            ContentLayout::InBlockField => state.raw.block.to_vec(),
            ContentLayout::Inline => self.inline_bytes(&state)?,
            ContentLayout::Extents | ContentLayout::BlockMap => {
                match state.map.lookup(LogicalBlock(0)) {
                    MappedRange::Data { physical, .. } => {
                        self.fs.volume.metadata.block(physical)?.read().to_vec()
                    }
                    _ => return Err(Error::corrupt("symbolic link without its block")),
                }
            }
        };
        if size > target.len() || size == 0 {
            return Err(Error::corrupt(format!("symbolic link of {size} bytes")));
        }
        target.truncate(size);
        if target.contains(&0) {
            return Err(Error::corrupt("zero byte in the target of a symbolic link"));
        }
        Ok(target)
    }
}
