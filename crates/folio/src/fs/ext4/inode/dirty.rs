//! Dirty inodes: listed until a commit or a sync writes them to the inode table.

use super::quota::{InodeUsage, Quotas};
use super::state::{ContentLayout, InodeState};
use super::{Ext4, Ext4Inode};
use crate::base::Result;
use crate::fs::ext4::layout::disk::{ROOT_INODE, inode_flags};
use crate::fs::ext4::map::block_map;
use crate::fs::ext4::space::BlockSource;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::vfs::FileType;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

impl Ext4Inode {
    /// Puts the inode on the list of dirty inodes, which keeps it alive until it is written.
    pub(crate) fn mark_dirty(&self, state: &mut InodeState) {
        state.data_changed_in = self.fs.volume.running();
        self.mark_times_dirty(state);
    }

    /// Does the same after a change that fdatasync(2) need not make durable.
    pub(crate) fn mark_times_dirty(&self, state: &mut InodeState) {
        let fs = &self.fs;
        state.changed_in = fs.volume.running();
        if state.link_count() == 0 {
            // The list would keep it alive; so an inode without names is written at once.
            if fs.volume.journal.get().is_some()
                && let Err(error) = self.flush(state)
            {
                fs.volume
                    .note_error(error.at(format!("inode {}", self.number)));
            }
            return;
        }
        if !state.is_dirty
            && let Some(this) = self.this.upgrade()
        {
            state.is_dirty = true;
            fs.unflushed_inodes.fetch_add(1, Ordering::Relaxed);
            let listed = fs.dirty_inodes.insert(self.number, this);
            listed.into_iter().for_each(Ext4::retire);
        }
    }

    /// Marks the inode as clean. It may stay listed.
    pub(crate) fn clear_dirty(&self, state: &mut InodeState) {
        if std::mem::take(&mut state.is_dirty) {
            self.fs.unflushed_inodes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes the inode from the lists that would keep it alive.
    pub(crate) fn forget_dirty(&self) {
        self.clear_dirty(&mut self.state_mut());
        let listed = self.fs.dirty_inodes.remove(self.number);
        let ordered = self.fs.ordered_inodes.remove(self.number);
        let lazy = self.fs.lazy_times.remove(self.number);
        drop((listed, ordered, lazy));
    }

    /// Writes the inode and its block map into the metadata blocks. The device is not written.
    pub(crate) fn flush(&self, state: &mut InodeState) -> Result<()> {
        let volume = &self.fs.volume;
        if let (FileType::Regular, Some(mapping)) = (self.common.file_type, &self.common.mapping) {
            let size = if volume.journal.get().is_some() {
                state.disk_size
            } else {
                mapping.size_bytes()
            };
            state.set_recorded_size(size);
            volume.note_file_size(size);
        }
        // While a truncation is held, the table keeps the root of the old contents.
        if state.map_is_dirty && state.layout.has_blocks() && state.held.is_none() {
            self.flush_map(state)?;
        }
        let (block, start) = volume.inode_block(self.number)?;
        let mut bytes = block.write();
        let slot = &mut bytes[start..start + volume.inode_size];
        self.write_slot(state, slot, false);
        drop(bytes);
        self.clear_dirty(state);
        if state.link_count() == 0 && volume.journal.get().is_some() {
            // Its deletion time may be a link of the list of orphans.
            self.fs.orphans.lock().add(self.number);
        }
        Ok(())
    }

    /// Writes the extent tree or block map into the inode's `i_block` and metadata blocks.
    pub(crate) fn flush_map(&self, state: &mut InodeState) -> Result<()> {
        let volume = &self.fs.volume;
        let context = volume.tree_context(self.number, &state.raw);
        let mut root = state.raw.block;
        let before = state.map.tree_blocks().len() as i64;
        let delayed = &mut state.delayed;
        let allocate = || {
            let source = if delayed.take_tree_block() {
                BlockSource::Reservation
            } else {
                BlockSource::Free(ReservedBlocks::Usable)
            };
            volume.allocate_metadata(source)
        };
        let surplus = if state.layout == ContentLayout::BlockMap {
            block_map::store(&mut state.map, &mut root, &context, allocate)?
        } else {
            state.map.store(&mut root, &context, allocate)?
        };
        // Only after all blocks were allocated: without space the root stays as it was.
        state.raw.block = root;
        let added = state.map.tree_blocks().len() as i64 - before;
        // Each is in a cluster of its own.
        let cluster_blocks = i64::from(volume.geometry.cluster_blocks);
        state.charge_blocks(added * cluster_blocks, volume.block_size);
        state.map_is_dirty = false;
        for block in surplus {
            volume.free_metadata(block.0..block.0 + 1)?;
        }
        Ok(())
    }

    /// Encodes the inode as the table shows it.
    pub(crate) fn encode(&self, state: &InodeState, bytes: &mut [u8]) {
        let volume = &self.fs.volume;
        let fields_end = bytes.len() - state.tail.len();
        bytes[..fields_end]
            .copy_from_slice(&state.shown(volume.block_size).as_bytes()[..fields_end]);
        bytes[fields_end..].copy_from_slice(&state.tail);
        volume.seal_inode(self.number, bytes);
    }

    /// Returns the quotas, if the file system has them and they count this inode. The file system's
    /// own files and values of attributes are not counted.
    fn quotas(&self, state: &InodeState) -> Option<&Quotas> {
        let quotas = self.fs.quotas.get()?;
        let geometry = &self.fs.volume.geometry;
        let raw = &geometry.raw;
        let own_files = [&raw.prj_quota_inum, &raw.orphan_file_inum];
        let is_own = self.number < geometry.first_inode && self.number != ROOT_INODE
            || own_files.iter().any(|file| file.get() == self.number);
        let is_value = state.raw.flags.get() & inode_flags::EA_INODE != 0;
        (!is_own && !is_value).then_some(quotas)
    }

    /// Writes the inode's bytes into `slot` of the table. With `is_freed` it is not in use any
    /// more.
    pub(crate) fn write_slot(&self, state: &mut InodeState, slot: &mut [u8], is_freed: bool) {
        let quotas = self.quotas(state);
        let block_size = self.fs.volume.block_size;
        let usage = |slot: &[u8], is_used: bool| is_used.then(|| InodeUsage::of(slot, block_size));
        // What the table has, not memory: the quota files must agree with the table.
        let before = quotas.and_then(|_| usage(slot, state.is_in_table));
        self.encode(state, slot);
        if let Some(quotas) = quotas {
            quotas.note(before, usage(slot, !is_freed));
        }
        state.is_in_table = !is_freed;
    }
}
