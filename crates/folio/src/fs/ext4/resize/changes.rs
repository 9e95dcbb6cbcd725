//! A set of changed blocks and its commit: one journal transaction, or ordered writes without a
//! journal.

use crate::base::{Error, Result, Timespec};
use crate::block::Device;
use crate::fs::ext4::journal::{Journal, Transaction};
use crate::fs::ext4::layout::disk::SUPERBLOCK_OFFSET;
use crate::fs::ext4::layout::superblock::Superblock;
use std::collections::BTreeMap;

/// Changed blocks with their new contents.
pub(super) struct BlockChanges<'a> {
    device: &'a dyn Device,
    old: &'a Superblock,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl<'a> BlockChanges<'a> {
    /// Creates an empty set of changes to the file system described by `old`.
    pub(super) fn new(device: &'a dyn Device, old: &'a Superblock) -> Self {
        Self {
            device,
            old,
            blocks: BTreeMap::new(),
        }
    }

    /// Returns the superblock before the changes.
    pub(super) fn old(&self) -> &'a Superblock {
        self.old
    }

    pub(super) fn device(&self) -> &'a dyn Device {
        self.device
    }

    /// Returns the number of changed blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns block `number` for changing, with all earlier changes.
    pub(super) fn block(&mut self, number: u64) -> Result<&mut Vec<u8>> {
        if !self.blocks.contains_key(&number) {
            let bytes = self.read(number)?;
            self.blocks.insert(number, bytes);
        }
        Ok(self.blocks.entry(number).or_default())
    }

    /// Returns block `number` for writing, zeroed.
    pub(super) fn new_block(&mut self, number: u64) -> &mut Vec<u8> {
        let zeros = vec![0; self.old.block_size];
        self.blocks.entry(number).insert_entry(zeros).into_mut()
    }

    /// Returns a copy of block `number` with all earlier changes.
    pub(super) fn read(&self, number: u64) -> Result<Vec<u8>> {
        if let Some(bytes) = self.blocks.get(&number) {
            return Ok(bytes.clone());
        }
        self.read_device(number)
    }

    /// Reads block `number` from the device, without changes.
    pub(super) fn read_device(&self, number: u64) -> Result<Vec<u8>> {
        if number >= self.old.block_count {
            let what = format!(
                "block {number} is outside the {} blocks of the file system; run e2fsck",
                self.old.block_count
            );
            return Err(Error::corrupt(what));
        }
        let mut bytes = vec![0; self.old.block_size];
        self.device
            .read_at(&mut bytes, number * self.old.block_size as u64)?;
        Ok(bytes)
    }

    /// Adds the superblock to the changes.
    pub(super) fn put_superblock(&mut self, new: &Superblock, now: Timespec) -> Result<()> {
        let size = self.old.block_size as u64;
        // Smaller than a block.
        let at = (SUPERBLOCK_OFFSET % size) as usize;
        let bytes = new.to_bytes(now);
        self.block(SUPERBLOCK_OFFSET / size)?[at..at + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    /// Makes all changes and all earlier writes durable.
    pub(super) fn commit(mut self, journal: Option<&Journal>, now: Timespec) -> Result<()> {
        // After a power cut these blocks are outside the old file system.
        let beyond = self.blocks.split_off(&self.old.block_count);
        self.write(&beyond)?;
        match journal {
            Some(journal) => self.commit_by(journal, now),
            None => self.write_in_order(),
        }
    }

    fn write(&self, blocks: &BTreeMap<u64, Vec<u8>>) -> Result<()> {
        let size = self.old.block_size as u64;
        blocks
            .iter()
            .try_for_each(|(number, bytes)| self.device.write_at(bytes, number * size))
    }

    fn commit_by(self, journal: &Journal, now: Timespec) -> Result<()> {
        // With barriers on, the log flushes the device between the transaction's blocks and its
        // commit block.
        self.device.flush()?;
        for (number, bytes) in self.blocks {
            journal.snapshots.insert(number, bytes.into());
        }
        let mut committer = journal.committer();
        committer.close(
            || Ok(()),
            || true,
            || {
                let blocks = journal.snapshots.close(&[]);
                Ok(Some(Transaction {
                    blocks,
                    revoked: Vec::new(),
                    freed: Vec::new(),
                    time: now,
                }))
            },
        )?;
        committer.write()?;
        // The next step reads from the device.
        committer.checkpoint()?;
        committer.flush()
    }

    /// Writes the superblock last: it makes the new groups valid. A power cut before that leaves a
    /// last group whose descriptor covers too many blocks, or a resize inode with too few entries.
    /// e2fsck repairs both.
    fn write_in_order(mut self) -> Result<()> {
        let last = self
            .blocks
            .remove_entry(&(SUPERBLOCK_OFFSET / self.old.block_size as u64));
        let last: BTreeMap<u64, Vec<u8>> = last.into_iter().collect();
        self.device.flush()?;
        self.write(&self.blocks)?;
        self.device.flush()?;
        self.write(&last)?;
        self.device.flush()
    }
}
