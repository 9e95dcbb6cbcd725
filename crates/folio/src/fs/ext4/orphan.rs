//! Orphans: inodes that lost their last name while open, or whose truncation was under way, when the power went.
//! Linux: fs/ext4/orphan.c.

use super::Ext4;
use super::checksum::{crc32c, inode_seed};
use super::extent::Mapped;
use super::features::{Compat, RoCompat};
use super::inode::Ext4Inode;
use super::metadata::MetadataBlock;
use crate::base::{Error, LogicalBlock, Result};
use std::collections::HashSet;
use std::sync::Arc;

/// `ob_magic` at the end of every block of the orphan file.
pub(super) const BLOCK_MAGIC: u32 = 0x0B10_CA04;
/// Bytes of the tail: magic and checksum.
pub(super) const TAIL_LEN: usize = 8;

/// What is done with a block of the orphan file: checksum seed, device block, contents.
type Visit<'a> = &'a mut dyn FnMut(u32, u64, &MetadataBlock) -> Result<()>;

impl Ext4 {
    /// Frees or truncates what the last user left half done, and empties both lists.
    pub(super) fn process_orphans(self: &Arc<Self>) -> Result<()> {
        let listed = self.listed_orphans()?;
        let in_file = self.orphans_in_file()?;
        let is_present = self.geometry.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        if listed.is_empty() && in_file.is_empty() && !is_present {
            return Ok(());
        }
        self.begin_change()?;
        for number in listed.into_iter().chain(in_file) {
            self.process_orphan(number).map_err(|e| e.at(format!("orphan inode {number}")))?;
        }
        self.empty_orphan_file()?;
        let mut superblock = self.superblock.lock();
        superblock.raw.last_orphan = 0.into();
        superblock.features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
        drop(superblock);
        self.sync_all(false)
    }

    fn process_orphan(self: &Arc<Self>, number: u32) -> Result<()> {
        let inode = self.remember(Ext4Inode::load(self, number, true)?);
        let mut state = inode.state_mut();
        state.raw.dtime = 0.into();
        if state.link_count() == 0 {
            // Dropping the last reference frees it.
            return Ok(());
        }
        inode.mark_dirty(&mut state);
        let keep = state.recorded_size().div_ceil(self.block_size as u64);
        drop(state);
        match inode.common.mapping.is_some() {
            true => inode.remove_blocks(keep..1 << 32),
            false => Ok(()),
        }
    }

    /// The chain that starts in the superblock and goes on in each orphan's deletion time.
    fn listed_orphans(&self) -> Result<Vec<u32>> {
        let mut orphans = Vec::new();
        let mut seen = HashSet::new();
        let mut next = self.geometry.raw.last_orphan.get();
        while next != 0 {
            let place = |e: Error| e.at("orphan list");
            let number = self.geometry.check_inode_number(next.into()).map_err(place)?;
            if !seen.insert(number) {
                return Err(place(Error::corrupt(format!("inode {number} comes twice"))));
            }
            orphans.push(number);
            let (block, start) = self.inode_block(number)?;
            let bytes = block.read();
            let dtime = &bytes[start + 0x14..start + 0x18];
            next = u32::from_le_bytes([dtime[0], dtime[1], dtime[2], dtime[3]]);
        }
        Ok(orphans)
    }

    fn orphan_file(self: &Arc<Self>) -> Result<Option<Arc<Ext4Inode>>> {
        let number = self.geometry.raw.orphan_file_inum.get();
        if !self.geometry.features.compat.contains(Compat::ORPHAN_FILE) || number == 0 {
            return Ok(None);
        }
        let number = self.geometry.check_inode_number(number.into())?;
        Ext4Inode::load(self, number, true).map(Some).map_err(|e| e.at("orphan file"))
    }

    /// Calls `visit` with each block of the orphan file.
    fn visit_orphan_file(self: &Arc<Self>, visit: Visit<'_>) -> Result<()> {
        let Some(inode) = self.orphan_file()? else { return Ok(()) };
        let state = inode.state.read();
        let generation = state.raw.generation.get();
        let blocks = state.recorded_size() / self.block_size as u64;
        for logical in (0..u32::try_from(blocks).unwrap_or(u32::MAX)).map(LogicalBlock) {
            let Mapped::Data { physical, .. } = state.map.lookup(logical) else {
                return Err(Error::corrupt(format!("block {logical} is not mapped")).at("orphan file"));
            };
            let block = self.metadata.block(physical)?;
            let seed = self.checksum_seed.map_or(0, |seed| inode_seed(seed, inode.number, generation));
            visit(seed, physical.0, &block)
                .map_err(|e| e.at(format!("block {logical}")).at("orphan file"))?;
        }
        Ok(())
    }

    fn orphans_in_file(self: &Arc<Self>) -> Result<Vec<u32>> {
        let mut orphans = Vec::new();
        if !self.geometry.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
            return Ok(orphans);
        }
        self.visit_orphan_file(&mut |seed, number, block| {
            let bytes = block.read();
            let (entries, tail) = bytes.split_at(bytes.len() - TAIL_LEN);
            let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            if word(tail) != BLOCK_MAGIC {
                return Err(Error::corrupt("bad magic"));
            }
            if self.checksum_seed.is_some() && word(&tail[4..]) != orphan_checksum(seed, number, entries) {
                return Err(Error::corrupt("bad checksum"));
            }
            for entry in entries.chunks_exact(4).map(word).filter(|entry| *entry != 0) {
                orphans.push(self.geometry.check_inode_number(entry.into())?);
            }
            Ok(())
        })?;
        Ok(orphans)
    }

    fn empty_orphan_file(self: &Arc<Self>) -> Result<()> {
        if !self.geometry.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
            return Ok(());
        }
        self.visit_orphan_file(&mut |seed, number, block| {
            let mut bytes = block.write();
            let entries_len = bytes.len() - TAIL_LEN;
            bytes[..entries_len].fill(0);
            if self.checksum_seed.is_some() {
                let crc = orphan_checksum(seed, number, &bytes[..entries_len]);
                bytes[entries_len + 4..].copy_from_slice(&crc.to_le_bytes());
            }
            Ok(())
        })
    }
}

pub(super) fn orphan_checksum(seed: u32, block: u64, entries: &[u8]) -> u32 {
    crc32c(crc32c(seed, &block.to_le_bytes()), entries)
}
