//! Eviction: frees an inode that has no names left, with its last reference. Linux:
//! `ext4_evict_inode`.

use crate::base::Result;
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::map::extent_map::ExtentMap;
use crate::vfs::FileType;

impl Drop for Ext4Inode {
    fn drop(&mut self) {
        if self.state.get_mut().link_count() == 0
            && self.fs.volume.is_writing()
            && let Err(error) = self.evict()
        {
            self.fs
                .volume
                .note_error(error.at(format!("inode {}", self.number)));
        }
        self.fs.forget_inode(self.number);
    }
}

impl Ext4Inode {
    /// Frees the blocks and the slot of an inode without names.
    fn evict(&self) -> Result<()> {
        let volume = &self.fs.volume;
        // One transaction frees blocks, attributes and slot, or the orphan list keeps the inode.
        let _handle = volume.start();
        // Pages first: none may be written into blocks that are free.
        if let Some(mapping) = &self.common.mapping {
            mapping.truncate(0);
        }
        let mut state = self.state_mut();
        self.clear_dirty(&mut state);
        self.end_hold(&mut state)?;
        volume.release_delayed(&mut state, 0..1 << 32);
        volume.release_tree_reservation(&mut state);
        let is_directory = self.common.file_type == FileType::Directory;
        // Values of attributes are written as metadata.
        let is_metadata = self.common.file_type != FileType::Regular
            || state.raw.flags.get() & inode_flags::EA_INODE != 0;
        let removed = state.map.remove(0..1 << 32);
        for range in self.uncharge_removed(&mut state, &removed) {
            if is_metadata {
                volume.free_metadata(range)?;
            } else {
                volume.free_data(range)?;
            }
        }
        for block in state.map.tree_blocks().to_vec() {
            volume.free_metadata(block..block + 1)?;
        }
        self.drop_xattrs(&mut state)?;
        let now = volume.now();
        state.map = ExtentMap::default();
        state.disk_size = 0;
        state.raw.block = state.layout.empty_block_field();
        state.raw.dtime = (now.secs as u32).into();
        state.raw.links_count = 0.into();
        (state.raw.blocks_lo, state.raw.blocks_high) = (0.into(), 0.into());
        state.set_recorded_size(0);
        let (block, start) = volume.inode_block(self.number)?;
        self.write_slot(
            &mut state,
            &mut block.write()[start..start + volume.inode_size],
            true,
        );
        drop(state);
        // The number leaves the list before the slot is free: its next inode may be an orphan, too.
        self.fs.orphans.lock().remove(self.number);
        // Last: from here on another thread may take the slot and write it.
        volume.free_inode(self.number, is_directory)
    }
}
