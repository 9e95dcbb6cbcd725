//! Symbolic links: short targets in the inode, longer ones in a block.

use crate::base::{Errno, Error, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::file::extent::{Extent, Mapped};
use crate::fs::ext4::inode::{Ext4Inode, Layout};
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::space::Purpose;

/// Targets shorter than `i_block` lie in it, with a zero behind.
const IN_BLOCK_FIELD_MAX: usize = 59;

impl Ext4Inode {
    /// Gives a new symbolic link its target. ENAMETOOLONG if it does not fit in one block.
    pub(crate) fn store_target(&self, target: &[u8]) -> Result<()> {
        let fs = &self.fs;
        let mut state = self.state_mut();
        if target.len() <= IN_BLOCK_FIELD_MAX {
            state.raw.block[..target.len()].copy_from_slice(target);
            state.set_recorded_size(target.len() as u64);
            return Ok(());
        }
        if target.len() >= fs.block_size {
            return Err(Errno::NAMETOOLONG.into());
        }
        let run = fs.space.lock().allocate(
            &fs.geometry,
            &fs.metadata,
            None,
            1,
            Purpose::Metadata,
            false,
        )?;
        state.layout = Layout::Extents;
        state.raw.flags |= inode_flags::EXTENTS;
        state.map.insert(Extent {
            logical: 0,
            len: 1,
            physical: run.start,
            is_unwritten: false,
        });
        state.map_is_dirty = true;
        state.charge_blocks(1, fs.block_size);
        state.set_recorded_size(target.len() as u64);
        drop(state);
        let block = fs.metadata.new_block(PhysicalBlock(run.start))?;
        block.write()[..target.len()].copy_from_slice(target);
        Ok(())
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self) -> Result<Vec<u8>> {
        let state = self.state.read();
        if state.raw.flags.get() & inode_flags::ENCRYPT != 0 {
            return Err(Error::new(Errno::NOKEY, "the link's target is encrypted"));
        }
        let size = state.recorded_size() as usize;
        let mut target = match state.layout {
            Layout::InBlockField => state.raw.block.to_vec(),
            Layout::Inline => self.inline_bytes(&state)?,
            Layout::Extents | Layout::BlockMap => match state.map.lookup(LogicalBlock(0)) {
                Mapped::Data { physical, .. } => self.fs.metadata.block(physical)?.read().to_vec(),
                _ => return Err(Error::corrupt("symbolic link without its block")),
            },
        };
        if size > target.len() || size == 0 {
            return Err(Error::corrupt(format!("symbolic link of {size} bytes")));
        }
        target.truncate(size);
        match target.contains(&0) {
            false => Ok(target),
            true => Err(Error::corrupt("zero byte in the target of a symbolic link")),
        }
    }
}
