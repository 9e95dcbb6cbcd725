//! Orphans on disk: inodes that were unlinked while open, or being truncated, at a crash. Linux:
//! fs/ext4/orphan.c.
//!
//! ```text
//!   orphan list:  superblock.s_last_orphan -> inode.i_dtime -> inode.i_dtime -> 0
//!   orphan file:  block | number | number | ... | magic, checksum |
//! ```

use crate::base::{Error, LogicalBlock, Result};
use crate::fs::ext4::inode::orphans::OrphanFile;
use crate::fs::ext4::inode::{Ext4, Ext4Inode};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::features::{Compat, RoCompat};
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use std::collections::HashSet;
use std::sync::Arc;

/// `ob_magic` at the end of every block of the orphan file.
pub(crate) const BLOCK_MAGIC: u32 = 0x0B10_CA04;
/// The byte offset of `i_dtime` in an inode.
const DTIME_OFFSET: usize = 0x14;
/// Bytes of the tail: magic and checksum.
pub(crate) const TAIL_LEN: usize = 8;

/// Called with each block of the orphan file: checksum seed, device block, contents.
type VisitOrphanBlock<'a> = &'a mut dyn FnMut(u32, u64, &MetadataBlock) -> Result<()>;

impl Ext4 {
    /// Frees or truncates the orphans of the last mount, and empties both lists.
    pub(crate) fn process_orphans(self: &Arc<Self>) -> Result<()> {
        let listed = self.listed_orphans()?;
        let in_file = self.orphans_in_file()?;
        let is_present = self
            .volume
            .geometry
            .features
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT);
        if listed.is_empty() && in_file.is_empty() && !is_present {
            return Ok(());
        }
        self.begin_change()?;
        if self.volume.journal.get().is_some() {
            // Each stays listed until it is done, so that a crash loses none.
            let mut orphans = self.orphans.lock();
            orphans.numbers.extend(listed.iter().chain(&in_file));
            orphans.is_changed = true;
        }
        for number in listed.into_iter().chain(in_file) {
            self.begin_change()?;
            self.process_orphan(number)
                .map_err(|e| e.at(format!("orphan inode {number}")))?;
        }
        if self.volume.journal.get().is_none() {
            self.empty_orphan_file()?;
            self.volume.superblock.lock().raw.last_orphan = 0.into();
        }
        self.volume
            .superblock
            .lock()
            .features
            .ro_compat
            .remove(RoCompat::ORPHAN_PRESENT);
        self.sync_all(false)
    }

    /// Writes the orphans in memory into the orphan file as far as it has room, the rest into the
    /// list that links their deletion times. Operations and writeback are stopped.
    pub(crate) fn write_orphans(&self) -> Result<()> {
        let mut orphans = self.orphans.lock();
        if !orphans.is_changed {
            return Ok(());
        }
        let mut left = orphans.numbers.iter().copied();
        if let Some(Some(file)) = self.orphan_file.get() {
            for number in &file.blocks {
                let block = self.volume.metadata.block(*number)?;
                let mut bytes = block.read().to_vec();
                let (entries, tail) = bytes.split_at_mut(self.volume.block_size - TAIL_LEN);
                for entry in entries.chunks_exact_mut(4) {
                    entry.copy_from_slice(&left.next().unwrap_or(0).to_le_bytes());
                }
                if self.volume.checksum_seed.is_some() {
                    tail[4..].copy_from_slice(
                        &orphan_checksum(file.seed, number.0, entries).to_le_bytes(),
                    );
                }
                // A write makes the block part of the transaction, even if no byte differs.
                if *block.read() != *bytes {
                    block.write().copy_from_slice(&bytes);
                }
            }
            let is_any = !orphans.numbers.is_empty();
            self.volume
                .superblock
                .lock()
                .features
                .ro_compat
                .set(RoCompat::ORPHAN_PRESENT, is_any);
        }
        let mut next = 0;
        // From the end: each inode links to the one after it, the superblock to the first.
        for number in left.rev() {
            self.set_deletion_time(number, next)?;
            next = number;
        }
        self.volume.superblock.lock().raw.last_orphan = next.into();
        orphans.is_changed = false;
        Ok(())
    }

    /// Sets `i_dtime` in the inode table, where it links orphans.
    fn set_deletion_time(&self, number: u32, value: u32) -> Result<()> {
        let (block, start) = self.volume.inode_block(number)?;
        let range = start..start + self.volume.inode_size;
        let mut bytes = block.read()[range.clone()].to_vec();
        bytes[DTIME_OFFSET..DTIME_OFFSET + 4].copy_from_slice(&value.to_le_bytes());
        self.volume.seal_inode(number, &mut bytes);
        if block.read()[range.clone()] != *bytes {
            block.write()[range].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn process_orphan(self: &Arc<Self>, number: u32) -> Result<()> {
        let _handle = self.volume.start();
        let inode = self.remember(Ext4Inode::load(self, number, true)?);
        let mut state = inode.state_mut();
        // The field had the link to the next orphan, instead of a time.
        state.raw.dtime = 0.into();
        if state.link_count() == 0 {
            // Dropping the last reference frees it.
            return Ok(());
        }
        // Under the handle of the truncation: the inode stays listed if a crash undoes that.
        self.orphans.lock().remove(number);
        inode.mark_dirty(&mut state);
        let keep = state
            .recorded_size()
            .div_ceil(self.volume.block_size as u64);
        drop(state);
        if inode.common.mapping.is_some() {
            inode.remove_blocks(keep..1 << 32, ReservedBlocks::Usable)
        } else {
            Ok(())
        }
    }

    /// Returns the orphan list, which starts in the superblock and continues in each orphan's
    /// deletion time.
    fn listed_orphans(&self) -> Result<Vec<u32>> {
        let mut orphans = Vec::new();
        let mut seen = HashSet::new();
        let mut next = self.volume.geometry.raw.last_orphan.get();
        while next != 0 {
            let place = |e: Error| e.at("orphan list");
            let number = self
                .volume
                .geometry
                .check_inode_number(next.into())
                .map_err(place)?;
            if !seen.insert(number) {
                return Err(place(Error::corrupt(format!(
                    "inode {number} is listed twice"
                ))));
            }
            orphans.push(number);
            let (block, start) = self.volume.inode_block(number)?;
            let bytes = block.read();
            let dtime = &bytes[start + DTIME_OFFSET..start + DTIME_OFFSET + 4];
            next = u32::from_le_bytes([dtime[0], dtime[1], dtime[2], dtime[3]]);
        }
        Ok(orphans)
    }

    /// Finds the orphan file, if the file system has one.
    pub(crate) fn find_orphan_file(self: &Arc<Self>) -> Result<()> {
        let number = self.volume.geometry.raw.orphan_file_inum.get();
        let mut file = None;
        if self
            .volume
            .geometry
            .features
            .compat
            .contains(Compat::ORPHAN_FILE)
            && number != 0
        {
            let number = self.volume.geometry.check_inode_number(number.into())?;
            file = Some(
                self.load_orphan_file(number)
                    .map_err(|e| e.at("orphan file"))?,
            );
        }
        // Once, at mount.
        let _ = self.orphan_file.set(file);
        Ok(())
    }

    fn load_orphan_file(self: &Arc<Self>, number: u32) -> Result<OrphanFile> {
        let inode = Ext4Inode::load(self, number, false)?;
        let state = inode.state.read();
        let generation = state.raw.generation.get();
        let count = state.recorded_size() / self.volume.block_size as u64;
        let mut blocks = Vec::new();
        for logical in (0..u32::try_from(count).unwrap_or(u32::MAX)).map(LogicalBlock) {
            match state.map.lookup(logical) {
                MappedRange::Data { physical, .. } => blocks.push(physical),
                _ => return Err(Error::corrupt(format!("block {logical} is not mapped"))),
            }
        }
        Ok(OrphanFile {
            blocks,
            seed: self
                .volume
                .inode_checksum_seed(number, generation)
                .unwrap_or(0),
        })
    }

    /// Calls `visit` with each block of the orphan file.
    fn visit_orphan_file(&self, visit: VisitOrphanBlock<'_>) -> Result<()> {
        let Some(Some(file)) = self.orphan_file.get() else {
            return Ok(());
        };
        for (physical, logical) in file.blocks.iter().zip(0..) {
            let block = self.volume.metadata.block(*physical)?;
            visit(file.seed, physical.0, &block).map_err(|e| {
                e.at(format!("block {}", LogicalBlock(logical)))
                    .at("orphan file")
            })?;
        }
        Ok(())
    }

    fn orphans_in_file(&self) -> Result<Vec<u32>> {
        let mut orphans = Vec::new();
        if !self
            .volume
            .geometry
            .features
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT)
        {
            return Ok(orphans);
        }
        self.visit_orphan_file(&mut |seed, number, block| {
            let bytes = block.read();
            let (entries, tail) = bytes.split_at(bytes.len() - TAIL_LEN);
            let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            if word(tail) != BLOCK_MAGIC {
                return Err(Error::corrupt("bad magic"));
            }
            if self.volume.checksum_seed.is_some()
                && word(&tail[4..]) != orphan_checksum(seed, number, entries)
            {
                return Err(Error::corrupt("bad checksum"));
            }
            for entry in entries
                .chunks_exact(4)
                .map(word)
                .filter(|entry| *entry != 0)
            {
                orphans.push(self.volume.geometry.check_inode_number(entry.into())?);
            }
            Ok(())
        })?;
        Ok(orphans)
    }

    fn empty_orphan_file(&self) -> Result<()> {
        if !self
            .volume
            .geometry
            .features
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT)
        {
            return Ok(());
        }
        self.visit_orphan_file(&mut |seed, number, block| {
            let mut bytes = block.write();
            let entries_len = bytes.len() - TAIL_LEN;
            bytes[..entries_len].fill(0);
            if self.volume.checksum_seed.is_some() {
                let crc = orphan_checksum(seed, number, &bytes[..entries_len]);
                bytes[entries_len + 4..].copy_from_slice(&crc.to_le_bytes());
            }
            Ok(())
        })
    }
}

/// Returns the checksum of a block of the orphan file.
pub(crate) fn orphan_checksum(seed: u32, block: u64, entries: &[u8]) -> u32 {
    crc32c(crc32c(seed, &block.to_le_bytes()), entries)
}
