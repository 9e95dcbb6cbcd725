//! Closing a transaction: everything that changed in memory goes into metadata blocks, and those
//! into the journal.
//!
//! ```text
//!   ordered files: data to its place      operations go on
//!   operations stop: the rest of that     data goes on
//!   all stops: inodes, orphans, bitmaps, descriptors, superblock -> blocks -> copies
//!   everything goes on: copies -> log, flush, commit block, flush
//!   freed blocks can be used again
//! ```
//!
//! Without a journal the same goes to the device at every sync, and a crash leaves what e2fsck has
//! to repair.

pub(super) mod failure;
mod fast_commit_replay;
pub(super) mod lazy_time;
pub(super) mod orphan;
pub(super) mod thread;

use super::Ext4;
use crate::base::{Errno, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::journal::{Handle, Journal, Transaction, is_within_operation};
use crate::fs::ext4::layout::disk::{STATE_ERROR, STATE_VALID, SUPERBLOCK_OFFSET};
use crate::fs::ext4::layout::features::Incompat;
use crate::fs::ext4::layout::superblock::Superblock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Ext4 {
    /// Begins an operation: what it changes until the handle goes is in one transaction.
    pub(crate) fn start(&self) -> Option<Handle<'_>> {
        self.journal.get().map(|journal| journal.gate.start())
    }

    /// Sequence number of the transaction that changes go into; 0 without a journal.
    pub(crate) fn running(&self) -> u32 {
        self.journal.get().map_or(0, Journal::running)
    }

    /// To be called before every operation, with nothing locked: refuses it on a read-only mount or
    /// after a failure, makes room for it, and marks the device not clean.
    pub(crate) fn begin_change(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Errno::ROFS.into());
        }
        self.check_failure()?;
        if !self.is_changed.load(Ordering::Acquire) {
            self.mark_changed()?;
        }
        self.bury();
        if !is_within_operation() {
            self.limit_lazy_times();
        }
        match self.journal.get() {
            None => self.metadata.throttle(),
            // Whoever waits for a commit must not hold it up.
            Some(_) if is_within_operation() => Ok(()),
            Some(journal) => self.limit_transaction(journal),
        }
    }

    /// Marks the device not clean: with a journal it has to be replayed, else e2fsck has to look.
    fn mark_changed(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if self.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.journal.get().is_some() {
            superblock
                .features
                .incompat
                .insert(Incompat::NEEDS_RECOVERY);
            Superblock::write_recovery_flag(&*self.device, true)?;
        } else {
            superblock.raw.state = (superblock.raw.state.get() & !STATE_VALID).into();
            self.write_superblock(&superblock)?;
        }
        self.device.flush()?;
        self.is_changed.store(true, Ordering::Release);
        drop(superblock);
        self.start_commit_thread();
        Ok(())
    }

    /// Writes the superblock to the device, where there is no journal.
    fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        self.device
            .write_at(&superblock.to_bytes(self.now()), SUPERBLOCK_OFFSET)
    }

    /// The block of the superblock, as a transaction has it. It is no block of `Metadata`.
    fn superblock_block(&self, superblock: &Superblock) -> Result<(u64, Arc<[u8]>)> {
        let number = SUPERBLOCK_OFFSET / self.block_size as u64;
        let start = (SUPERBLOCK_OFFSET % self.block_size as u64) as usize;
        let mut block = vec![0; self.block_size];
        self.device
            .read_at(&mut block, number * self.block_size as u64)?;
        let bytes = superblock.to_bytes(self.now());
        block[start..start + bytes.len()].copy_from_slice(&bytes);
        Ok((number, block.into()))
    }

    /// Metadata blocks that the running transaction has at most.
    fn transaction_len(&self) -> u64 {
        let dirty_inodes = self.unflushed_inodes.load(Ordering::Relaxed) as u64;
        let data = self
            .journal
            .get()
            .map_or(0, |journal| journal.snapshots.data_len());
        data + self.metadata.dirty_len() + dirty_inodes + self.space.lock().dirty_len() as u64
    }

    /// Whether a commit would have something to do.
    pub(crate) fn has_changes(&self) -> bool {
        self.transaction_len() > 0
            || !self.held_inodes.lock().is_empty()
            || !self.ordered_inodes.lock().is_empty()
    }

    /// Commits the running transaction if it has grown large.
    fn limit_transaction(&self, journal: &Journal) -> Result<()> {
        if self.transaction_len() <= journal.transaction_max() {
            return Ok(());
        }
        {
            // Many inodes share a block of the table: only then it is known how large the
            // transaction is.
            let _handle = self.start();
            self.flush_inodes()?;
        }
        match self.transaction_len() > journal.transaction_max() {
            true => self.commit(journal, journal.running()),
            false => Ok(()),
        }
    }

    /// Makes room for an operation that found none: blocks freed a moment ago become free with a
    /// commit. Says whether trying again makes sense.
    pub(crate) fn commit_for_space(&self) -> Result<bool> {
        let Some(journal) = self.journal.get().filter(|_| !is_within_operation()) else {
            return Ok(false);
        };
        let is_held = self.release_holds();
        if !is_held && !self.space.lock().has_pending() {
            return Ok(false);
        }
        self.commit(journal, journal.running())?;
        self.bury();
        Ok(true)
    }

    /// Makes transaction `sequence`, and all before it, durable.
    pub(crate) fn commit(&self, journal: &Journal, sequence: u32) -> Result<()> {
        let mut committer = journal.committer();
        if journal.is_committed(sequence) {
            // Somebody else did, together with his own.
            return Ok(());
        }
        journal.check()?;
        self.write_ordered();
        let mut freed = Vec::new();
        let closed = committer.close(
            || self.write_ordered(),
            || {
                let closed = self.close_transaction(journal)?;
                Ok(closed.map(|(transaction, blocks)| {
                    freed = blocks;
                    transaction
                }))
            },
        );
        let result = closed.and_then(|transaction| match transaction {
            Some(transaction) => committer.write(&transaction),
            None => self.device_barrier(),
        });
        if let Err(error) = result {
            // What is in memory and what is in the log do not agree any more.
            return Err(self.fail_journal(error));
        }
        // Before anybody else can have them.
        self.discard(&freed);
        self.space.lock().finish_freed(&self.geometry, &freed);
        match committer.wants_checkpoint() {
            true => committer
                .checkpoint()
                .map_err(|error| self.fail_journal(error)),
            false => Ok(()),
        }
    }

    /// Puts everything that changed into metadata blocks and copies those. Nothing else runs
    /// meanwhile. Returns the transaction, unless nothing changed, and the blocks it frees.
    fn close_transaction(
        &self,
        journal: &Journal,
    ) -> Result<Option<(Transaction, Vec<Range<u64>>)>> {
        let hidden = self.settle_holds()?;
        self.flush_inodes()?;
        self.write_orphans()?;
        let mut superblock = self.superblock.lock();
        self.space
            .lock()
            .flush(&mut superblock, &self.metadata, &hidden)?;
        if self.metadata.dirty_len() == 0 && journal.snapshots.data_len() == 0 {
            return Ok(None);
        }
        let (number, block) = self.superblock_block(&superblock)?;
        drop(superblock);
        journal.snapshots.insert(number, block);
        let freed = self.space.lock().close_freed(&self.geometry);
        self.metadata.write_back()?;
        let revoked = freed
            .iter()
            .flat_map(|range| journal.snapshots.logged_in(range.clone()))
            .collect();
        let blocks = journal.snapshots.close(&freed);
        Ok(Some((
            Transaction {
                blocks,
                revoked,
                time: self.now(),
            },
            freed,
        )))
    }

    /// A flush of the device, unless the mount forgoes them.
    pub(crate) fn device_barrier(&self) -> Result<()> {
        if self.options.barrier {
            self.device.flush()
        } else {
            Ok(())
        }
    }

    /// Tells the device of blocks that nothing uses any more (`discard`).
    fn discard(&self, freed: &[Range<u64>]) {
        if !self.options.discard {
            return;
        }
        let block_size = self.block_size as u64;
        for range in freed {
            // A hint: a device that cannot loses nothing.
            let _ = self.device.discard(
                range.start * block_size,
                (range.end - range.start) * block_size,
            );
        }
    }

    /// Makes one inode durable (fsync(2)); with `data_only`, times need not be.
    pub(crate) fn sync_inode(&self, inode: &Ext4Inode, data_only: bool) -> Result<()> {
        let Some(journal) = self.journal.get() else {
            // Without a journal nothing less makes the inode, its blocks and the bitmaps agree on
            // the device.
            return self.sync_all(false);
        };
        if !self.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_failure()?;
        if !data_only {
            self.flush_lazy_times_of(inode);
        }
        let is_held = inode.release_hold();
        if let Some(mapping) = &inode.common.mapping {
            mapping.write_back(0..u64::MAX)?;
        }
        let sequence = {
            let state = inode.state.read();
            if data_only {
                state.data_changed_in
            } else {
                state.changed_in
            }
        };
        // What was held back was in no transaction yet, whatever number it has.
        let sequence = if is_held { journal.running() } else { sequence };
        match journal.is_committed(sequence) {
            true => self.device_barrier(),
            false => self.commit(journal, sequence),
        }
    }

    /// Makes everything durable; `is_final` also marks the file system clean.
    pub(crate) fn sync_all(&self, is_final: bool) -> Result<()> {
        if !self.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_failure()?;
        self.flush_lazy_times();
        self.release_holds();
        let written = self.data_writeback.write_back_all();
        // After writeback, which may have held the last reference to a deleted file.
        self.bury();
        match self.journal.get() {
            Some(journal) => {
                // Also what failed to be written shall not keep the rest from being durable.
                self.commit(journal, journal.running())?;
                if self.bury() {
                    self.commit(journal, journal.running())?;
                }
                written?;
                self.tell_first_error()?;
                if is_final {
                    self.empty_journal(journal)
                } else {
                    Ok(())
                }
            }
            None => {
                written?;
                self.sync_in_place(is_final)
            }
        }
    }

    /// The first failure nobody could be told of, as an error.
    fn tell_first_error(&self) -> Result<()> {
        self.first_error.lock().take().map_or(Ok(()), Err)
    }

    /// Brings everything to its place, so that nothing has to be replayed, and says so on the
    /// device.
    fn empty_journal(&self, journal: &Journal) -> Result<()> {
        let mut committer = journal.committer();
        committer.checkpoint()?;
        let mut superblock = self.superblock.lock();
        superblock
            .features
            .incompat
            .remove(Incompat::NEEDS_RECOVERY);
        Superblock::write_recovery_flag(&*self.device, false)?;
        self.device.flush()?;
        self.is_changed.store(false, Ordering::Release);
        Ok(())
    }

    /// Without a journal: everything to its place.
    fn sync_in_place(&self, is_final: bool) -> Result<()> {
        self.flush_inodes()?;
        let mut superblock = self.superblock.lock();
        self.space
            .lock()
            .flush(&mut superblock, &self.metadata, &[])?;
        self.metadata.write_back()?;
        self.device.flush()?;
        let told = self.tell_first_error();
        if told.is_err() {
            superblock.raw.state = (superblock.raw.state.get() | STATE_ERROR).into();
        } else if is_final {
            superblock.raw.state = (superblock.raw.state.get() | STATE_VALID).into();
        }
        self.write_superblock(&superblock)?;
        self.device.flush()?;
        told?;
        if is_final {
            self.is_changed.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Writes every dirty inode into the metadata blocks.
    pub(crate) fn flush_inodes(&self) -> Result<()> {
        let mut listed: Vec<Arc<Ext4Inode>> = self.dirty_inodes.lock().values().cloned().collect();
        // In the table's order, so that each of its blocks is touched once.
        listed.sort_unstable_by_key(|inode| inode.number);
        let mut result = Ok(());
        for inode in listed {
            let mut state = inode.state_mut();
            if state.is_dirty && result.is_ok() {
                result = inode
                    .flush(&mut state)
                    .map_err(|e| e.at(format!("inode {}", inode.number)));
            }
            let has_dirty_pages = inode.common.mapping.as_ref().is_some_and(|m| m.is_dirty());
            if !has_dirty_pages && !state.is_dirty {
                inode.trim_tree_reservation(&mut state);
                let unlisted = self.dirty_inodes.lock().remove(&inode.number);
                drop(state);
                // What was the last reference must not be dropped here, where nothing may wait for
                // a commit.
                unlisted.into_iter().for_each(Self::retire);
            } else {
                // Dirty pages keep the inode on the list, which keeps it alive.
                drop(state);
            }
            Self::retire(inode);
        }
        result
    }
}
