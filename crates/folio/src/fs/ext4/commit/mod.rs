//! Commits: everything that changed in memory goes into metadata blocks, and those into the
//! journal.
//!
//! ```text
//!   ordered files: data to its place        operations run
//!   operations stop: the rest of that data  writeback runs
//!   all stops: inodes, orphans, bitmaps, descriptors, superblock -> blocks -> copies
//!   all runs again: copies -> log, flush, commit block, flush
//!   freed blocks can be used again
//! ```
//!
//! Without a journal every sync writes the same to its place, and e2fsck repairs what a crash
//! leaves.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | closing a transaction, fsync(2), sync(2), unmount |
//! | `freeze.rs` | a clean device for a time, while the file system stays mounted |
//! | `thread.rs` | the thread that writes changes which have waited |
//! | `orphan.rs` | inodes without names, on disk |
//! | `quota.rs` | usage of owners, on disk |
//! | `failure.rs` | damage and failed commits (`errors=`) |
//! | `fast_commit_replay.rs` | fast commits of the kernel, at mount |
//!
//! Neighbors: operations and the mount above; files and directories, whose data and names a commit
//! makes durable, and the journal below.
//!
//! Lock order: the right to commit (`Journal::committer`), an operation's handle
//! (`Volume::start`), pages, a store's handle, the locks of inode/. A thread within an operation
//! never waits for a commit.
//!
//! Invariants:
//! 1. A freed block is used again only after the transaction that freed it is durable.
//! 2. From the first change until unmount the superblock on the device demands a replay of the
//!    journal, or without a journal a check by e2fsck. A freeze suspends that: no change can begin.
//! 3. A failed commit aborts the journal: memory and log no longer agree. If the device is out of
//!    space, the closed transaction is kept instead, and the next commit begins with it.

mod failure;
mod fast_commit_replay;
mod freeze;
pub(super) mod orphan;
mod quota;
mod thread;

use super::inode::{DIRTY_INODES_MAX, Ext4, Ext4Inode};
use super::journal::{
    AllStopped, CloseError, Committer, Journal, Transaction, is_within_operation,
};
use super::layout::disk::{STATE_ERROR, STATE_VALID};
use super::layout::features::Incompat;
use super::layout::superblock::Superblock;
use crate::base::{Errno, Result};
use std::sync::atomic::Ordering;

impl Ext4 {
    /// Prepares an operation: makes room for it, and marks the device as not clean. The caller
    /// holds no lock.
    ///
    /// # Errors
    /// EROFS on a read-only mount; after a failure what `errors=` demands.
    pub(crate) fn begin_change(&self) -> Result<()> {
        if self.volume.is_read_only {
            return Err(Errno::ROFS.into());
        }
        self.volume.check_failure()?;
        if !self.volume.is_changed.load(Ordering::Acquire) {
            self.mark_changed()?;
        }
        // Outside of the handle: an eviction may have to wait for a commit.
        self.evict_retired();
        if !is_within_operation() {
            self.limit_lazy_times();
        }
        match self.volume.journal.get() {
            None => self.volume.metadata.throttle(),
            // A thread that waits for a commit must not keep an operation open.
            Some(_) if is_within_operation() => Ok(()),
            Some(journal) => self.limit_transaction(journal),
        }
    }

    /// Marks the device as not clean: it needs a replay of the journal, or without one e2fsck.
    fn mark_changed(&self) -> Result<()> {
        let mut superblock = self.volume.superblock.lock();
        // Another thread may have marked it meanwhile.
        if self.volume.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.volume.journal.get().is_some() {
            superblock
                .features
                .incompat
                .insert(Incompat::NEEDS_RECOVERY);
            Superblock::write_recovery_flag(&*self.volume.device, true)?;
        } else {
            superblock.raw.state = (superblock.raw.state.get() & !STATE_VALID).into();
            self.volume.write_superblock(&superblock)?;
        }
        // Durable before the first change: a mount drops the log of a file system that looks clean.
        if !self.volume.device.has_atomic_flushes() {
            self.volume.device.flush()?;
        }
        // Only now: another thread that sees it makes its change at once.
        self.volume.is_changed.store(true, Ordering::Release);
        drop(superblock);
        self.start_commit_thread();
        Ok(())
    }

    /// Returns the most metadata blocks that the running transaction can have.
    fn transaction_len(&self) -> u64 {
        let dirty_inodes = self.unflushed_inodes.load(Ordering::Relaxed) as u64;
        let data = self
            .volume
            .journal
            .get()
            .map_or(0, |journal| journal.snapshots.data_len());
        let owners = self.quotas.get().map_or(0, |quotas| quotas.changed_len());
        data + self.volume.metadata.dirty_len()
            + dirty_inodes
            + owners as u64
            + self.volume.space.lock().dirty_len() as u64
    }

    /// Whether there is anything to commit.
    pub(crate) fn has_changes(&self) -> bool {
        let has_closed = self.volume.journal.get().is_some_and(Journal::has_closed);
        has_closed
            || self.transaction_len() > 0
            || !self.held_inodes.is_empty()
            || !self.ordered_inodes.is_empty()
    }

    /// Commits the running transaction if it has grown large.
    fn limit_transaction(&self, journal: &Journal) -> Result<()> {
        if self.transaction_len() <= journal.transaction_max() {
            return Ok(());
        }
        {
            // Many inodes share a block of the table: the size is known only once they are flushed.
            let _handle = self.volume.start();
            self.flush_inodes()?;
        }
        if self.transaction_len() > journal.transaction_max() {
            // Room in memory is what is needed; what is durable does not matter.
            self.log_changes(&mut journal.committer(), journal, journal.running())
                .map(drop)
        } else {
            Ok(())
        }
    }

    /// Makes room for an operation that failed with ENOSPC: a commit makes freed blocks usable.
    /// Without a journal, as in a new image that is filled, writeback releases the tree blocks that
    /// delayed allocation reserves for the worst placement. Returns whether the operation should be
    /// retried.
    pub(crate) fn commit_for_space(&self) -> Result<bool> {
        if is_within_operation() {
            return Ok(false);
        }
        let Some(journal) = self.volume.journal.get() else {
            let has_reservations = self.volume.space.lock().has_reservations();
            // A failed write is reported to the files that it belongs to.
            return Ok(has_reservations && self.volume.data_writeback.write_back_all().is_ok());
        };
        let is_held = self.release_holds();
        if !is_held && !self.volume.space.lock().has_pending() {
            return Ok(false);
        }
        self.commit(journal, journal.running())?;
        self.evict_retired();
        Ok(true)
    }

    /// Makes the transaction `sequence`, and all transactions before it, durable.
    pub(crate) fn commit(&self, journal: &Journal, sequence: u32) -> Result<()> {
        let mut committer = journal.committer();
        let is_logged = self.log_changes(&mut committer, journal, sequence)?;
        let flushed = if is_logged {
            committer.flush()
        } else {
            self.volume.device_barrier()
        };
        flushed.map_err(|error| self.volume.fail_commit(error))
    }

    /// Writes the transaction `sequence`, and all transactions before it, into the log; returns
    /// false if nothing has changed. They are durable then, or from the next flush of a device with
    /// atomic flushes on.
    fn log_changes(
        &self,
        committer: &mut Committer<'_>,
        journal: &Journal,
        sequence: u32,
    ) -> Result<bool> {
        if journal.is_committed(sequence) {
            // Another thread committed it together with its own.
            return Ok(true);
        }
        journal.check()?;
        // The device may have been full when this one was closed.
        self.write_closed(committer)?;
        if journal.is_committed(sequence) {
            return Ok(true);
        }
        drop(self.close_running(committer, journal)?);
        self.write_closed(committer)
    }

    /// Closes the running transaction. Operations and writeback continue once the result is
    /// dropped.
    fn close_running<'a>(
        &self,
        committer: &mut Committer<'a>,
        journal: &Journal,
    ) -> Result<AllStopped<'a>> {
        // Most of the data while operations run, so that they stop only for what is added
        // meanwhile.
        self.write_ordered()?;
        let closed = committer.close(
            || self.write_ordered(),
            || !self.is_order_late.load(Ordering::Acquire),
            || self.close_transaction(journal),
        );
        closed.map_err(|error| match error {
            CloseError::Settle(error) => error,
            // Memory and log no longer agree.
            CloseError::Close(error) => self.volume.fail_journal(error),
        })
    }

    /// Writes the closed transaction into the log; returns whether there was one.
    fn write_closed(&self, committer: &mut Committer<'_>) -> Result<bool> {
        let written = committer
            .write()
            .map_err(|error| self.volume.fail_commit(error))?;
        let Some(freed) = written else {
            return Ok(false);
        };
        // Before the blocks can be allocated again.
        self.volume.discard(&freed);
        self.volume
            .space
            .lock()
            .finish_freed(&self.volume.geometry, &freed);
        if committer.wants_checkpoint()
            && let Err(error) = committer.checkpoint()
        {
            let error = self.volume.fail_commit(error);
            // The transaction is durable in the log, which has room until it is full.
            if !error.is_out_of_space() {
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Writes all changes into metadata blocks and copies those, while operations and writeback are
    /// stopped. Returns the transaction, unless nothing changed.
    fn close_transaction(&self, journal: &Journal) -> Result<Option<Transaction>> {
        self.publishes.store(false, Ordering::Release);
        // Holds first: they put extents into inodes, which the next step flushes.
        let hidden = self.finish_holds()?;
        self.flush_inodes()?;
        // Inodes before quotas and bitmaps: a flush may allocate blocks of the extent tree.
        self.write_quotas()?;
        // After the inodes: a flush writes all of an inode, and `i_dtime` links the orphans.
        self.write_orphans()?;
        let mut superblock = self.volume.superblock.lock();
        self.volume
            .space
            .lock()
            .flush(&mut superblock, &self.volume.metadata, &hidden)?;
        if self.volume.metadata.dirty_len() == 0 && journal.snapshots.data_len() == 0 {
            return Ok(None);
        }
        // In every transaction: its counts follow the bitmaps.
        let (number, block) = self.volume.superblock_block(&superblock)?;
        drop(superblock);
        journal.snapshots.insert(number, block);
        let freed = self.volume.space.lock().close_freed(&self.volume.geometry);
        // With a journal this copies the blocks into the transaction.
        self.volume.metadata.write_back()?;
        // Only what the log has could be replayed over the next use of a block.
        let revoked = freed
            .iter()
            .flat_map(|range| journal.snapshots.logged_in(range.clone()))
            .collect();
        let blocks = journal.snapshots.close(&freed);
        Ok(Some(Transaction {
            blocks,
            revoked,
            freed,
            time: self.volume.now(),
        }))
    }

    /// Makes one inode durable (fsync(2)); with `data_only` (fdatasync(2)) its times need not be.
    pub(crate) fn sync_inode(&self, inode: &Ext4Inode, data_only: bool) -> Result<()> {
        let Some(journal) = self.volume.journal.get() else {
            // Without a journal, only a full sync makes inode, blocks and bitmaps agree on the
            // device.
            return self.sync_all(false);
        };
        if !self.volume.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.volume.check_failure()?;
        if !data_only {
            self.flush_lazy_times_of(inode);
        }
        let is_held = inode.release_hold();
        if let Some(mapping) = &inode.common.mapping {
            mapping.write_back(0..u64::MAX)?;
        }
        // Only after writeback, which changes the inode when it allocates blocks.
        let sequence = {
            let state = inode.state.read();
            if data_only {
                state.data_changed_in
            } else {
                state.changed_in
            }
        };
        // Contents that were held back are in no transaction yet, whatever number the inode has.
        let sequence = if is_held { journal.running() } else { sequence };
        if journal.is_committed(sequence) {
            // Data written in place since that commit is not durable yet.
            self.volume.device_barrier()
        } else {
            self.commit(journal, sequence)
        }
    }

    /// Makes everything durable; with `is_final` also marks the file system as clean.
    pub(crate) fn sync_all(&self, is_final: bool) -> Result<()> {
        if !self.volume.is_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.volume.check_failure()?;
        self.flush_lazy_times();
        self.release_holds();
        let written = self.volume.data_writeback.write_back_all();
        // After writeback, which may have dropped the last reference to a deleted file.
        self.evict_retired();
        match self.volume.journal.get() {
            Some(journal) => {
                let commit = || {
                    if !is_final {
                        return self.commit(journal, journal.running());
                    }
                    // The flush at the end is enough.
                    let mut committer = journal.committer();
                    self.log_changes(&mut committer, journal, journal.running())
                        .map(drop)
                };
                commit()?;
                if self.evict_retired() {
                    commit()?;
                }
                let written = written.and_then(|()| self.volume.take_first_error());
                match written {
                    Ok(()) if is_final => self.empty_journal(journal),
                    // A failed write does not keep the rest from becoming durable.
                    Err(_) if is_final => self.commit(journal, journal.running()).and(written),
                    _ => written,
                }
            }
            None => {
                written?;
                self.sync_in_place(is_final)
            }
        }
    }

    /// Writes everything to its place, so that nothing has to be replayed, and clears the mark on
    /// the device.
    fn empty_journal(&self, journal: &Journal) -> Result<()> {
        let mut committer = journal.committer();
        // The log is empty before the flag is cleared: a mount without the flag does not replay.
        committer.checkpoint()?;
        let mut superblock = self.volume.superblock.lock();
        superblock
            .features
            .incompat
            .remove(Incompat::NEEDS_RECOVERY);
        self.clear_mark(journal, &superblock)?;
        self.volume.is_changed.store(false, Ordering::Release);
        Ok(())
    }

    /// Clears the mark on the device, after a checkpoint of all changes.
    fn clear_mark(&self, journal: &Journal, superblock: &Superblock) -> Result<()> {
        if superblock.has_error_mark() {
            // The checkpoint may have written a copy from before the mark.
            Superblock::write_error_mark(&*self.volume.device)?;
            self.volume.device.flush()?;
            journal.record_error(&*self.volume.device, false)?;
        }
        Superblock::write_recovery_flag(&*self.volume.device, false)?;
        self.volume.device.flush()
    }

    /// Writes everything to its place, without a journal.
    fn sync_in_place(&self, is_final: bool) -> Result<()> {
        self.flush_inodes()?;
        self.write_quotas()?;
        let mut superblock = self.volume.superblock.lock();
        self.volume
            .space
            .lock()
            .flush(&mut superblock, &self.volume.metadata, &[])?;
        self.volume.metadata.write_back()?;
        // The superblock calls clean only what is durable.
        self.volume.device.flush()?;
        let failed = self.volume.take_first_error();
        if failed.is_err() {
            superblock.raw.state = (superblock.raw.state.get() | STATE_ERROR).into();
        } else if is_final {
            superblock.raw.state = (superblock.raw.state.get() | STATE_VALID).into();
        }
        self.volume.write_superblock(&superblock)?;
        self.volume.device.flush()?;
        failed?;
        if is_final {
            self.volume.is_changed.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Flushes dirty inodes with clean data, once too many inodes are dirty.
    pub(crate) fn limit_dirty_inodes(&self) -> Result<()> {
        if self.dirty_inodes.len() <= self.dirty_inodes_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.flush_inodes()?;
        // Inodes with dirty data stay listed until that is written. The cache limits dirty data.
        let left = self.dirty_inodes.len();
        self.dirty_inodes_limit
            .store(left + DIRTY_INODES_MAX, Ordering::Relaxed);
        Ok(())
    }

    /// Writes every dirty inode into the metadata blocks.
    pub(crate) fn flush_inodes(&self) -> Result<()> {
        let mut listed = self.dirty_inodes.all();
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
            if !inode.has_dirty_pages() && !state.is_dirty {
                inode.trim_tree_reservation(&mut state);
                let unlisted = self.dirty_inodes.remove(inode.number);
                drop(state);
                // An eviction would wait for a commit, which must not happen here.
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
