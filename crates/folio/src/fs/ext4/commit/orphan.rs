//! Orphans: inodes that lost their last name while open, or whose truncation was under way, when
//! the power went. Linux: fs/ext4/orphan.c.

use crate::base::{Error, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::file::extent::Mapped;
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::checksum::{crc32c, inode_seed};
use crate::fs::ext4::layout::features::{Compat, RoCompat};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// `ob_magic` at the end of every block of the orphan file.
pub(crate) const BLOCK_MAGIC: u32 = 0x0B10_CA04;
/// Where `i_dtime` lies in an inode.
const DTIME_OFFSET: usize = 0x14;
/// Bytes of the tail: magic and checksum.
pub(crate) const TAIL_LEN: usize = 8;

/// What is done with a block of the orphan file: checksum seed, device block, contents.
type Visit<'a> = &'a mut dyn FnMut(u32, u64, &MetadataBlock) -> Result<()>;

/// Inodes in memory that have no name. A commit writes them all, so that the next mount frees those
/// that are left.
#[derive(Default)]
pub(crate) struct Orphans {
    numbers: BTreeSet<u32>,
    /// Whether they, or their entries in the table, differ from what was written last.
    is_changed: bool,
}

/// Where the orphan file lies (`orphan_file`).
pub(crate) struct OrphanFile {
    blocks: Vec<PhysicalBlock>,
    seed: u32,
}

impl Ext4 {
    /// Frees or truncates what the last user left half done, and empties both lists.
    pub(crate) fn process_orphans(self: &Arc<Self>) -> Result<()> {
        let listed = self.listed_orphans()?;
        let in_file = self.orphans_in_file()?;
        let is_present = self
            .geometry
            .features
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT);
        if listed.is_empty() && in_file.is_empty() && !is_present {
            return Ok(());
        }
        self.begin_change()?;
        if self.journal.get().is_some() {
            // They stay listed, whatever happens, until each is done.
            let mut orphans = self.orphans.lock();
            orphans.numbers.extend(listed.iter().chain(&in_file));
            orphans.is_changed = true;
        }
        for number in listed.into_iter().chain(in_file) {
            self.begin_change()?;
            self.process_orphan(number)
                .map_err(|e| e.at(format!("orphan inode {number}")))?;
        }
        if self.journal.get().is_none() {
            self.empty_orphan_file()?;
            self.superblock.lock().raw.last_orphan = 0.into();
        }
        self.superblock
            .lock()
            .features
            .ro_compat
            .remove(RoCompat::ORPHAN_PRESENT);
        self.sync_all(false)
    }

    /// An inode that is in use has no name.
    pub(crate) fn add_orphan(&self, number: u32) {
        if self.journal.get().is_some() {
            let mut orphans = self.orphans.lock();
            orphans.numbers.insert(number);
            orphans.is_changed = true;
        }
    }

    /// It has a name again, or is gone.
    pub(crate) fn remove_orphan(&self, number: u32) {
        let mut orphans = self.orphans.lock();
        orphans.is_changed |= orphans.numbers.remove(&number);
    }

    /// Writes the orphans that there are into the orphan file as far as it has room, the others
    /// into a list that goes from the superblock through their deletion times. Nothing else runs
    /// meanwhile.
    pub(crate) fn write_orphans(&self) -> Result<()> {
        let mut orphans = self.orphans.lock();
        if !orphans.is_changed {
            return Ok(());
        }
        let mut left = orphans.numbers.iter().copied();
        if let Some(Some(file)) = self.orphan_file.get() {
            for number in &file.blocks {
                let block = self.metadata.block(*number)?;
                let mut bytes = block.read().to_vec();
                let (entries, tail) = bytes.split_at_mut(self.block_size - TAIL_LEN);
                for entry in entries.chunks_exact_mut(4) {
                    entry.copy_from_slice(&left.next().unwrap_or(0).to_le_bytes());
                }
                if self.checksum_seed.is_some() {
                    tail[4..].copy_from_slice(
                        &orphan_checksum(file.seed, number.0, entries).to_le_bytes(),
                    );
                }
                if *block.read() != *bytes {
                    block.write().copy_from_slice(&bytes);
                }
            }
            let is_any = !orphans.numbers.is_empty();
            self.superblock
                .lock()
                .features
                .ro_compat
                .set(RoCompat::ORPHAN_PRESENT, is_any);
        }
        let mut next = 0;
        for number in left.rev() {
            self.set_deletion_time(number, next)?;
            next = number;
        }
        self.superblock.lock().raw.last_orphan = next.into();
        orphans.is_changed = false;
        Ok(())
    }

    /// Sets `i_dtime` in the inode table, where it links orphans.
    fn set_deletion_time(&self, number: u32, value: u32) -> Result<()> {
        let (block, start) = self.inode_block(number)?;
        let range = start..start + self.inode_size;
        let mut bytes = block.read()[range.clone()].to_vec();
        bytes[DTIME_OFFSET..DTIME_OFFSET + 4].copy_from_slice(&value.to_le_bytes());
        self.seal_inode(number, &mut bytes);
        if block.read()[range.clone()] != *bytes {
            block.write()[range].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn process_orphan(self: &Arc<Self>, number: u32) -> Result<()> {
        let _handle = self.start();
        let inode = self.remember(Ext4Inode::load(self, number, true)?);
        let mut state = inode.state_mut();
        state.raw.dtime = 0.into();
        if state.link_count() == 0 {
            // Dropping the last reference frees it.
            return Ok(());
        }
        self.remove_orphan(number);
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
            let number = self
                .geometry
                .check_inode_number(next.into())
                .map_err(place)?;
            if !seen.insert(number) {
                return Err(place(Error::corrupt(format!("inode {number} comes twice"))));
            }
            orphans.push(number);
            let (block, start) = self.inode_block(number)?;
            let bytes = block.read();
            let dtime = &bytes[start + DTIME_OFFSET..start + DTIME_OFFSET + 4];
            next = u32::from_le_bytes([dtime[0], dtime[1], dtime[2], dtime[3]]);
        }
        Ok(orphans)
    }

    /// Finds the orphan file, if the file system has one.
    pub(crate) fn find_orphan_file(self: &Arc<Self>) -> Result<()> {
        let number = self.geometry.raw.orphan_file_inum.get();
        let mut file = None;
        if self.geometry.features.compat.contains(Compat::ORPHAN_FILE) && number != 0 {
            let number = self.geometry.check_inode_number(number.into())?;
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
        let count = state.recorded_size() / self.block_size as u64;
        let mut blocks = Vec::new();
        for logical in (0..u32::try_from(count).unwrap_or(u32::MAX)).map(LogicalBlock) {
            match state.map.lookup(logical) {
                Mapped::Data { physical, .. } => blocks.push(physical),
                _ => return Err(Error::corrupt(format!("block {logical} is not mapped"))),
            }
        }
        Ok(OrphanFile {
            blocks,
            seed: self
                .checksum_seed
                .map_or(0, |seed| inode_seed(seed, number, generation)),
        })
    }

    /// Calls `visit` with each block of the orphan file.
    fn visit_orphan_file(&self, visit: Visit<'_>) -> Result<()> {
        let Some(Some(file)) = self.orphan_file.get() else {
            return Ok(());
        };
        for (physical, logical) in file.blocks.iter().zip(0..) {
            let block = self.metadata.block(*physical)?;
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
            if self.checksum_seed.is_some()
                && word(&tail[4..]) != orphan_checksum(seed, number, entries)
            {
                return Err(Error::corrupt("bad checksum"));
            }
            for entry in entries
                .chunks_exact(4)
                .map(word)
                .filter(|entry| *entry != 0)
            {
                orphans.push(self.geometry.check_inode_number(entry.into())?);
            }
            Ok(())
        })?;
        Ok(orphans)
    }

    fn empty_orphan_file(&self) -> Result<()> {
        if !self
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
            if self.checksum_seed.is_some() {
                let crc = orphan_checksum(seed, number, &bytes[..entries_len]);
                bytes[entries_len + 4..].copy_from_slice(&crc.to_le_bytes());
            }
            Ok(())
        })
    }
}

pub(crate) fn orphan_checksum(seed: u32, block: u64, entries: &[u8]) -> u32 {
    crc32c(crc32c(seed, &block.to_le_bytes()), entries)
}
