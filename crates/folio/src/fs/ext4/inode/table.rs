//! The inode table on disk: where an inode's bytes are, and their checksum.

use super::state::{ContentLayout, InodeState};
use crate::base::{Error, PhysicalBlock, Result};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::checksum::{inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{
    INODE_BASE_LEN, INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET, RawInode, inode_flags,
};
use crate::fs::ext4::layout::features::RoCompat;
use crate::fs::ext4::layout::quota::has_project;
use crate::fs::ext4::map::extent_map::TreeContext;
use crate::fs::ext4::map::pointer_slot::blocks_max;
use crate::fs::ext4::space::inode_place;
use crate::fs::ext4::volume::Volume;
use std::mem::offset_of;

impl Volume {
    /// Returns the block of the inode table that holds inode `number`, and the byte where the inode
    /// starts in it.
    pub(crate) fn inode_block(&self, number: u32) -> Result<(MetadataBlock, usize)> {
        let superblock = &self.geometry;
        let (_, index) = inode_place(superblock, number);
        let offset = index as usize * self.inode_size;
        // Locked for the place only: the read may wait for the device.
        let table = self.space.lock().inode_table(superblock, number);
        let block = self
            .metadata
            .block(PhysicalBlock(table + (offset / self.block_size) as u64))
            .map_err(|e| e.at("inode table"))?;
        Ok((block, offset % self.block_size))
    }

    /// Returns the seed of the checksums of inode `number` and its blocks, with `metadata_csum`.
    pub(crate) fn inode_checksum_seed(&self, number: u32, generation: u32) -> Option<u32> {
        self.checksum_seed
            .map(|seed| inode_seed(seed, number, generation))
    }

    /// Puts the checksum into the bytes that inode `number` has in the table.
    pub(crate) fn seal_inode(&self, number: u32, bytes: &mut [u8]) {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let generation = word(offset_of!(RawInode, generation));
        let Some(seed) = self.inode_checksum_seed(number, generation) else {
            return;
        };
        let extra = if bytes.len() > INODE_BASE_LEN {
            word(INODE_BASE_LEN) as u16
        } else {
            0
        };
        let has_high = INODE_BASE_LEN + usize::from(extra) >= INODE_CHECKSUM_HI_OFFSET + 2
            && bytes.len() > INODE_BASE_LEN;
        let crc = inode_checksum(seed, bytes, has_high);
        bytes[INODE_CHECKSUM_LO_OFFSET..][..2].copy_from_slice(&(crc as u16).to_le_bytes());
        if has_high {
            bytes[INODE_CHECKSUM_HI_OFFSET..][..2]
                .copy_from_slice(&((crc >> 16) as u16).to_le_bytes());
        }
    }

    /// Returns what the block map of inode `number` is checked against.
    pub(crate) fn tree_context(&self, number: u32, raw: &RawInode) -> TreeContext<'_> {
        TreeContext {
            metadata: &self.metadata,
            block_size: self.block_size,
            block_count: self.geometry.block_count,
            first_data_block: self.geometry.first_data_block,
            checksum_seed: self.inode_checksum_seed(number, raw.generation.get()),
        }
    }

    /// Checks that no block of an inode's map is the file system's own, and that its clusters are
    /// those of the device.
    ///
    /// # Errors
    /// EUCLEAN.
    pub(crate) fn check_not_system(&self, state: &InodeState) -> Result<()> {
        if state.map.extents().is_empty() {
            return Ok(());
        }
        let cluster_blocks = u64::from(self.geometry.cluster_blocks);
        let space = self.space.lock();
        for extent in state.map.extents() {
            space.check_not_system(&extent.physical_range())?;
            let offset = u64::from(extent.logical) % cluster_blocks;
            if extent.physical % cluster_blocks != offset {
                let what = "the file block does not start where its cluster does";
                return Err(Error::corrupt(what).at(format!("file block {}", extent.logical)));
            }
        }
        if state.layout == ContentLayout::BlockMap {
            for block in state.map.tree_blocks() {
                space.check_not_system(&(*block..block + 1))?;
            }
        }
        Ok(())
    }

    /// Returns the most bytes that the blocks of a file with a block map can hold.
    pub(crate) fn block_map_bytes_max(&self) -> u64 {
        if self.geometry.raw.rev_level.get() == 0 {
            return i32::MAX as u64;
        }
        let block_size = self.block_size as u64;
        let reached = blocks_max(self.block_size) * block_size;
        if self.has_ro_compat(RoCompat::HUGE_FILE) {
            return reached;
        }
        // `i_blocks` counts sectors in 32 bits, pointer blocks among them.
        let pointers = block_size / 4;
        reached.min((u64::from(u32::MAX) * 512) / (pointers + 2) * pointers)
    }

    /// Returns the length in bytes of the extra fields that new inodes get (`i_extra_isize`).
    pub(crate) fn extra_isize(&self) -> usize {
        let room = self.inode_size - INODE_BASE_LEN;
        let wanted = usize::from(self.geometry.raw.want_extra_isize.get());
        let known = size_of::<RawInode>() - INODE_BASE_LEN;
        let is_usable = wanted % 4 == 0 && (4..=known).contains(&wanted);
        if room == 0 {
            0
        } else if is_usable {
            wanted.min(room)
        } else {
            known.min(room)
        }
    }

    /// Returns the project of a new inode in a directory with the fields `parent`.
    pub(crate) fn inherited_project(&self, parent: &RawInode) -> u32 {
        let inherits = parent.flags.get() & inode_flags::PROJECT_INHERIT != 0;
        if inherits && self.has_ro_compat(RoCompat::PROJECT) && has_project(parent) {
            parent.projid.get()
        } else {
            0
        }
    }

    /// Frees the slot of inode `number`.
    pub(crate) fn free_inode(&self, number: u32, is_directory: bool) -> Result<()> {
        self.space
            .lock()
            .free_inode(&self.geometry, &self.metadata, number, is_directory)
    }
}
