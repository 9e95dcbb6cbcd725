//! Blocks that change together, and how they reach the device: by the journal, or in an order that
//! does no harm.

use crate::base::{Error, Result, Timespec};
use crate::block::Device;
use crate::fs::ext4::journal::{Journal, Transaction};
use crate::fs::ext4::layout::disk::SUPERBLOCK_OFFSET;
use crate::fs::ext4::layout::superblock::Superblock;
use std::collections::BTreeMap;

/// Blocks as they shall be.
pub(super) struct Changes<'a> {
    device: &'a dyn Device,
    old: &'a Superblock,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Changes<'a> {
    /// No changes to the file system that `old` describes.
    pub(super) fn new(device: &'a dyn Device, old: &'a Superblock) -> Self {
        Self {
            device,
            old,
            blocks: BTreeMap::new(),
        }
    }

    /// The superblock as it was before.
    pub(super) fn old(&self) -> &'a Superblock {
        self.old
    }

    /// Block `number` to be changed, as it is so far.
    pub(super) fn block(&mut self, number: u64) -> Result<&mut Vec<u8>> {
        if !self.blocks.contains_key(&number) {
            let bytes = self.read(number)?;
            self.blocks.insert(number, bytes);
        }
        Ok(self.blocks.entry(number).or_default())
    }

    /// Block `number` to be written, all zeros at first.
    pub(super) fn new_block(&mut self, number: u64) -> &mut Vec<u8> {
        let zeros = vec![0; self.old.block_size];
        self.blocks.entry(number).insert_entry(zeros).into_mut()
    }

    /// The bytes of block `number` as they are so far.
    pub(super) fn read(&self, number: u64) -> Result<Vec<u8>> {
        if let Some(bytes) = self.blocks.get(&number) {
            return Ok(bytes.clone());
        }
        self.read_device(number)
    }

    /// The bytes of block `number` as they were before.
    pub(super) fn read_device(&self, number: u64) -> Result<Vec<u8>> {
        if number >= self.old.block_count {
            let what = format!("block {number} of {}", self.old.block_count);
            return Err(Error::corrupt(what));
        }
        let mut bytes = vec![0; self.old.block_size];
        self.device
            .read_at(&mut bytes, number * self.old.block_size as u64)?;
        Ok(bytes)
    }

    /// Puts the superblock in.
    pub(super) fn put_superblock(&mut self, new: &Superblock, now: Timespec) -> Result<()> {
        let size = self.old.block_size as u64;
        // Less than a block.
        let at = (SUPERBLOCK_OFFSET % size) as usize;
        let bytes = new.to_bytes(now);
        self.block(SUPERBLOCK_OFFSET / size)?[at..at + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    /// Makes all changes durable, and everything that was written before.
    pub(super) fn commit(mut self, journal: Option<&Journal>, now: Timespec) -> Result<()> {
        // The file system that a cut brings back does not have these.
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
        // The log flushes the device between the blocks of a transaction and its commit block, if
        // the mount wants it.
        self.device.flush()?;
        for (number, bytes) in self.blocks {
            journal.snapshots.insert(number, bytes.into());
        }
        let mut committer = journal.committer();
        let transaction = committer.close(
            || {},
            || {
                let blocks = journal.snapshots.close(&[]);
                Ok(Some(Transaction {
                    blocks,
                    revoked: Vec::new(),
                    time: now,
                }))
            },
        )?;
        if let Some(transaction) = transaction {
            committer.write(&transaction)?;
        }
        // The next step reads from the device.
        committer.checkpoint()
    }

    /// The superblock last: until it says so nobody looks at new groups. What is left by a cut
    /// before it is a last group that is described as longer than it is, or a resize inode that
    /// lists too little, which e2fsck mends.
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
