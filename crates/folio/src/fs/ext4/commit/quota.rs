//! Quota files on disk: entries for new owners, and the usage that a commit writes. Linux:
//! fs/quota/quota_tree.c.
//!
//! An operation makes the entries of its owners before its first change, so that a commit only
//! overwrites entries. Entries of owners without usage stay.

use crate::base::{Error, LogicalBlock, Result};
use crate::fs::ext4::inode::quota::{QuotaFile, Quotas, UsageChange};
use crate::fs::ext4::inode::state::ContentLayout;
use crate::fs::ext4::inode::{Ext4, Ext4Inode};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::features::RoCompat;
use crate::fs::ext4::layout::quota::{
    BLOCK_LEN, DEPTH, ENTRY_LEN, EntryBlockHead, QuotaHeader, QuotaKind, QuotaUsage, ROOT_BLOCK,
    entries, is_free, reference_at, set_word, word,
};
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use std::collections::HashMap;
use std::sync::Arc;

impl Ext4 {
    /// Opens the quota files, if the file system has them.
    ///
    /// # Errors
    /// EUCLEAN for a damaged file.
    pub(crate) fn open_quotas(self: &Arc<Self>) -> Result<()> {
        if !self.volume.has_ro_compat(RoCompat::QUOTA) {
            return Ok(());
        }
        let raw = &self.volume.geometry.raw;
        let numbers = [
            raw.usr_quota_inum.get(),
            raw.grp_quota_inum.get(),
            raw.prj_quota_inum.get(),
        ];
        let quotas = Quotas::default();
        for (kind, number) in QuotaKind::ALL.into_iter().zip(numbers) {
            if number != 0 {
                let file = self.load_quota_file(kind, number);
                let file = file.map_err(|e| e.at(format!("{} quota file", kind.name())))?;
                quotas.files.lock().push(file);
            }
        }
        // Once, at mount.
        let _ = self.quotas.set(quotas);
        Ok(())
    }

    fn load_quota_file(self: &Arc<Self>, kind: QuotaKind, number: u32) -> Result<QuotaFile> {
        let number = self.volume.geometry.check_inode_number(number.into())?;
        let inode = Ext4Inode::load(self, number, false)?;
        let state = inode.state.read();
        let count = state
            .recorded_size()
            .div_ceil(self.volume.block_size as u64);
        if !state.layout.has_blocks() || count > state.map.end() {
            return Err(Error::corrupt("is not mapped"));
        }
        let mut blocks = Vec::new();
        // At most the end of the map, which has 32 bits.
        for logical in (0..count as u32).map(LogicalBlock) {
            match state.map.lookup(logical) {
                MappedRange::Data { physical, .. } => blocks.push(physical),
                _ => return Err(Error::corrupt(format!("block {logical} is not mapped"))),
            }
        }
        drop(state);
        let first = *blocks.first().ok_or_else(|| Error::corrupt("is empty"))?;
        let head = self.volume.metadata.block(first)?.read()[..BLOCK_LEN].to_vec();
        let header = QuotaHeader::parse(&head, kind)
            .filter(|header| header.blocks > ROOT_BLOCK)
            .ok_or_else(|| Error::corrupt("bad header"))?;
        Ok(QuotaFile {
            kind,
            number,
            blocks,
            header,
            entries: HashMap::default(),
        })
    }

    /// Makes entries in the quota files for those of `owners` (of the kinds in
    /// [`QuotaKind::ALL`]) that have none.
    ///
    /// # Errors
    /// ENOSPC; EUCLEAN for a damaged file.
    pub(crate) fn add_owners(
        &self,
        owners: [Option<u32>; 3],
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let Some(quotas) = self.quotas.get() else {
            return Ok(());
        };
        for file in quotas.files.lock().iter_mut() {
            if let Some(id) = owners[file.kind as usize] {
                let mut open = OpenQuotaFile {
                    fs: self,
                    file,
                    reserved,
                };
                open.entry(id)
                    .map_err(|e| e.at(format!("{} quota file", file.kind.name())))?;
            }
        }
        Ok(())
    }

    /// Writes the changed usage of all owners into the quota files.
    pub(super) fn write_quotas(&self) -> Result<()> {
        let Some(quotas) = self.quotas.get() else {
            return Ok(());
        };
        let mut files = quotas.files.lock();
        for ((kind, id), change) in quotas.take_changes() {
            let Some(file) = files.iter_mut().find(|file| file.kind == kind) else {
                continue;
            };
            let mut open = OpenQuotaFile {
                fs: self,
                file,
                reserved: ReservedBlocks::Usable,
            };
            let written = open.add_usage(id, change);
            if let Err(error) = written {
                // The owner had no entry, although it has files: the quota file was damaged.
                let place = format!("{} quota file", kind.name());
                self.volume.note_error(error.at(place));
            }
        }
        Ok(())
    }
}

/// A quota file while it is read or changed.
struct OpenQuotaFile<'a> {
    fs: &'a Ext4,
    file: &'a mut QuotaFile,
    reserved: ReservedBlocks,
}

impl OpenQuotaFile<'_> {
    /// Returns the metadata block with the bytes from `at` on, and their place in it.
    fn place(&self, at: u64) -> Result<(MetadataBlock, usize)> {
        let block_size = self.fs.volume.block_size as u64;
        let physical = usize::try_from(at / block_size)
            .ok()
            .and_then(|logical| self.file.blocks.get(logical))
            .ok_or_else(|| Error::corrupt(format!("no block for byte {at}")))?;
        let block = self.fs.volume.metadata.block(*physical)?;
        Ok((block, (at % block_size) as usize))
    }

    /// Returns a copy of the quota block `number`.
    ///
    /// # Errors
    /// EUCLEAN for a block that does not exist.
    fn read(&self, number: u32) -> Result<Vec<u8>> {
        if number == 0 || number >= self.file.header.blocks {
            return Err(Error::corrupt(format!("no quota block {number}")));
        }
        let (block, start) = self.place(u64::from(number) * BLOCK_LEN as u64)?;
        let bytes = block.read()[start..start + BLOCK_LEN].to_vec();
        Ok(bytes)
    }

    fn write(&self, number: u32, bytes: &[u8]) -> Result<()> {
        let (block, start) = self.place(u64::from(number) * BLOCK_LEN as u64)?;
        block.write()[start..start + BLOCK_LEN].copy_from_slice(bytes);
        Ok(())
    }

    /// Returns the byte at which the entry of the owner `id` starts; makes it if there is none.
    fn entry(&mut self, id: u32) -> Result<u64> {
        if let Some(at) = self.file.entries.get(&id) {
            return Ok(*at);
        }
        let mut path = Vec::from([ROOT_BLOCK]);
        let mut at = None;
        for level in 0..DEPTH {
            let bytes = self.read(path[level as usize])?;
            match word(&bytes, reference_at(id, level)) {
                0 => break,
                number if level + 1 < DEPTH => path.push(number),
                number => at = Some(self.entry_in(number, id)?),
            }
        }
        let at = match at {
            Some(at) => at,
            None => self.insert(id, &path)?,
        };
        self.file.entries.insert(id, at);
        Ok(at)
    }

    /// Returns the byte at which the entry of the owner `id` starts, which is in block `number`.
    fn entry_in(&self, number: u32, id: u32) -> Result<u64> {
        let bytes = self.read(number)?;
        let found = entries(&bytes).find(|(_, entry)| !is_free(entry) && word(entry, 0) == id);
        let (at, _) =
            found.ok_or_else(|| Error::corrupt(format!("quota block {number} lacks {id}")))?;
        Ok(u64::from(number) * BLOCK_LEN as u64 + at as u64)
    }

    /// Adds an entry for the owner `id`; `path` are the blocks of the tree that lead to it so far.
    /// Returns the byte at which it starts.
    fn insert(&mut self, id: u32, path: &[u32]) -> Result<u64> {
        let missing = DEPTH - path.len() as u32;
        let mut header = self.file.header;
        let is_new_block = header.free_entry == 0;
        // All of them, even if free blocks will do: nothing is refused after the first change.
        self.grow(header.blocks + missing + u32::from(is_new_block))?;
        let (number, mut bytes) = if is_new_block {
            let number = self.take_block(&mut header)?;
            header.free_entry = number;
            (number, vec![0; BLOCK_LEN])
        } else {
            (header.free_entry, self.read(header.free_entry)?)
        };
        let free = entries(&bytes).find(|(_, entry)| is_free(entry));
        let (at, _) = free.ok_or_else(|| Error::corrupt(format!("block {number} is full")))?;
        QuotaUsage::default().store(&mut bytes[at..at + ENTRY_LEN], id);
        let mut head = EntryBlockHead::parse(&bytes)?;
        head.entries += 1;
        if head.is_full() {
            self.unlist(&mut header, head)?;
            (head.next, head.previous) = (0, 0);
        }
        head.store(&mut bytes);
        self.write(number, &bytes)?;
        let mut child = number;
        for level in (path.len() as u32..DEPTH).rev() {
            let mut bytes = vec![0; BLOCK_LEN];
            set_word(&mut bytes, reference_at(id, level), child);
            child = self.take_block(&mut header)?;
            self.write(child, &bytes)?;
        }
        let last = path.len() - 1;
        let mut bytes = self.read(path[last])?;
        set_word(&mut bytes, reference_at(id, last as u32), child);
        self.write(path[last], &bytes)?;
        let (block, start) = self.place(0)?;
        header.store(&mut block.write()[start..start + BLOCK_LEN]);
        self.file.header = header;
        Ok(u64::from(number) * BLOCK_LEN as u64 + at as u64)
    }

    /// Takes a free block: of the list, or at the end.
    fn take_block(&self, header: &mut QuotaHeader) -> Result<u32> {
        if header.free_block != 0 {
            let number = header.free_block;
            header.free_block = word(&self.read(number)?, 0);
            return Ok(number);
        }
        header.blocks += 1;
        Ok(header.blocks - 1)
    }

    /// Removes a block that is full now from the list of blocks with room.
    fn unlist(&self, header: &mut QuotaHeader, head: EntryBlockHead) -> Result<()> {
        for (number, at, value) in [(head.next, 4, head.previous), (head.previous, 0, head.next)] {
            if number != 0 {
                let mut bytes = self.read(number)?;
                set_word(&mut bytes, at, value);
                self.write(number, &bytes)?;
            }
        }
        if head.previous == 0 {
            header.free_entry = head.next;
        }
        Ok(())
    }

    /// Makes the file at least `count` quota blocks long.
    ///
    /// # Errors
    /// ENOSPC.
    fn grow(&mut self, count: u32) -> Result<()> {
        let size = u64::from(count) * BLOCK_LEN as u64;
        let inode = self.fs.inode(self.file.number.into())?;
        let mut state = inode.state_mut();
        if state.layout == ContentLayout::Inline || size <= state.disk_size {
            return Ok(());
        }
        let block_size = self.fs.volume.block_size as u64;
        while self.file.blocks.len() as u64 * block_size < size {
            let logical = LogicalBlock(self.file.blocks.len() as u32);
            let physical = inode.append_block(&mut state, logical, self.reserved)?;
            self.fs.volume.metadata.new_block(physical)?;
            self.file.blocks.push(physical);
        }
        state.disk_size = size;
        if let Some(mapping) = &inode.common.mapping {
            mapping.set_size_bytes(size);
        }
        // At once: in a commit the inodes are flushed before the quotas.
        inode.flush(&mut state)?;
        inode.trim_tree_reservation(&mut state);
        Ok(())
    }

    /// Adds `change` to the usage of the owner `id`.
    fn add_usage(&mut self, id: u32, change: UsageChange) -> Result<()> {
        if change == UsageChange::default() {
            return Ok(());
        }
        let at = self.entry(id)?;
        let (block, start) = self.place(at)?;
        let mut block = block.write();
        let entry = &mut block[start..start + ENTRY_LEN];
        let old = QuotaUsage::load(entry);
        let new = QuotaUsage {
            bytes: old.bytes.saturating_add_signed(change.bytes),
            inodes: old.inodes.saturating_add_signed(change.inodes),
        };
        new.store(entry, id);
        Ok(())
    }
}
