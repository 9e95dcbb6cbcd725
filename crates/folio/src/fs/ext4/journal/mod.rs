//! The journal (jbd2): makes each transaction of metadata changes atomic on the device.
//!
//! ```text
//!   operation -> handle.rs          all changes of an operation are in one transaction
//!                   | commit (../commit/): stops operations, copies dirty blocks
//!                   v
//!               snapshot.rs         copies of blocks not yet checkpointed
//!                   | log.rs        writes them to the log, later to the file system (checkpoint)
//!                   v
//!   log:  | superblock | D data data R C | D data C | ...        D descriptor, R revoke, C commit
//!           start, sequence --^                       ^-- the end: a block without the next sequence
//!                   | recovery.rs fast_commit.rs   replay after a crash, before all other reads
//!                   v
//!                 device            ring.rs disk.rs: location and bytes of the log
//! ```
//!
//! `metadata.rs` has the metadata blocks in the page cache, which a commit copies; `thread.rs` the
//! periodic thread that commits; `dump.rs` the log as a person reads it.
//!
//! Neighbors: `Ext4` decides when to commit and what is in a transaction; below is the device.
//! It has no access to inodes. Format: the kernel's Documentation/filesystems/ext4/journal.rst.
//!
//! Unlike jbd2, a block is copied once per transaction, when the transaction is closed, and no
//! buffer belongs to two transactions: copying is faster than tracking buffers. See
//! docs/design/journal.md.
//!
//! Lock order: `Journal::log`; operations, stores (handle.rs); all locks of `Ext4`; `Snapshots`.
//!
//! Invariants:
//! 1. Only transactions with a valid commit block are replayed, in order, each block at most once
//!    per pass.
//! 2. The log is emptied only after all its blocks are checkpointed and flushed.
//! 3. A block is checkpointed only after the transaction that changed it is durable in the log.
//! 4. A freed block is reused only after the transaction that freed it is durable. That transaction
//!    revokes copies of the block in the log, and they are never checkpointed after it.
//! 5. Data is on the device before the commit of the transaction that maps it.
//!
//! On a device with atomic flushes, a write is as good as durable for what is written after it: one
//! flush makes both durable, or none. There only fsync(2), sync(2) and unmount flush.

mod disk;
mod dump;
mod fast_commit;
mod handle;
mod log;
pub(crate) mod metadata;
mod recovery;
mod ring;
mod snapshot;
pub(crate) mod thread;

pub(crate) use disk::write_empty_superblock;
pub(crate) use dump::dump;
pub use dump::{JournalDump, JournalFields, LogRecord, LogRecordKind, LoggedBlock};
pub(crate) use fast_commit::FastCommitChange;
pub(crate) use handle::{AllStopped, Handle, OperationGate, is_within_operation};
pub(crate) use log::Transaction;
pub(crate) use recovery::{Recovered, recover, wipe};
pub(crate) use ring::JournalBlocks;
pub(crate) use snapshot::Snapshots;

use crate::base::lock::{Mutex, MutexGuard};
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::cache::ObjectCharge;
use disk::ERROR_IO;
use log::Log;
use ring::{JournalError, Ring, write_error};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A transaction may take one part in this many of the log, as in jbd2.
const TRANSACTION_SHARE: u32 = 4;
/// Maximum number of blocks in a transaction, which bounds the memory for copies beside the page
/// cache.
const TRANSACTION_MAX: u32 = 4096;
/// Committed blocks before a checkpoint, for the same reason: as many as this many transactions
/// have.
const COMMITTED_SHARE: u64 = 2;

/// The journal of a writable mount. Linux: `journal_t`.
pub(crate) struct Journal {
    pub(crate) gate: OperationGate,
    pub(crate) snapshots: Arc<Snapshots>,
    log: Mutex<Log>,
    /// Sequence number of the running transaction.
    running: AtomicU32,
    /// Sequence number of the newest transaction in the log.
    committed: AtomicU32,
    /// Number of blocks at which a transaction is closed.
    transaction_max: u64,
    is_aborted: AtomicBool,
    error: JournalError,
    /// Offset of the journal's superblock on the device, in bytes.
    superblock_offset: u64,
    /// Whether a closed transaction is not in the log yet.
    has_closed: AtomicBool,
}

/// A transaction could not be closed.
pub(crate) enum CloseError {
    /// Before anything changed: the transaction continues.
    Settle(Error),
    /// While changes were collected.
    Close(Error),
}

impl From<CloseError> for Error {
    fn from(error: CloseError) -> Self {
        let (CloseError::Settle(error) | CloseError::Close(error)) = error;
        error
    }
}

/// The exclusive right to commit, held by one thread.
pub(crate) struct Committer<'a> {
    journal: &'a Journal,
    log: MutexGuard<'a, Log>,
}

impl Journal {
    /// Opens a replayed journal for writing. A transaction has about `blocks_max` blocks at most.
    /// The copies of blocks are charged to `charge`. `has_checksums` and `is_64bit` are features of
    /// the file system; `has_barriers` says whether the device is flushed around commits.
    pub(crate) fn new(
        blocks: JournalBlocks,
        device: Arc<dyn Device>,
        blocks_max: u64,
        charge: ObjectCharge,
        has_checksums: bool,
        is_64bit: bool,
        has_barriers: bool,
    ) -> Result<Self> {
        let ring = Ring::open(blocks, device)?;
        let (error, superblock_offset) = (ring.error.clone(), ring.device_offset(0)?);
        let log = Log::new(ring, has_checksums, is_64bit, has_barriers)?;
        let next = log.next;
        let transaction_max =
            u64::from((log.capacity() / TRANSACTION_SHARE).min(TRANSACTION_MAX)).min(blocks_max);
        Ok(Self {
            gate: OperationGate::default(),
            snapshots: Arc::new(Snapshots::new(charge)),
            log: Mutex::new(log),
            running: AtomicU32::new(next),
            committed: AtomicU32::new(next.wrapping_sub(1)),
            transaction_max,
            is_aborted: AtomicBool::new(false),
            error,
            superblock_offset,
            has_closed: AtomicBool::new(false),
        })
    }

    /// Returns the sequence number of the running transaction, which is constant while the caller
    /// holds a handle.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Acquire)
    }

    /// Returns whether transaction `sequence` is in the log. It is durable then, or from the next
    /// flush of a device with atomic flushes on. Numbers wrap around.
    pub(crate) fn is_committed(&self, sequence: u32) -> bool {
        self.committed
            .load(Ordering::Acquire)
            .wrapping_sub(sequence) as i32
            >= 0
    }

    /// Returns the number of blocks at which a transaction is closed.
    pub(crate) fn transaction_max(&self) -> u64 {
        self.transaction_max
    }

    /// Waits for a running commit and takes the right to commit.
    pub(crate) fn committer(&self) -> Committer<'_> {
        Committer {
            journal: self,
            log: self.log.lock(),
        }
    }

    /// Returns whether a closed transaction is not in the log yet.
    pub(crate) fn has_closed(&self) -> bool {
        self.has_closed.load(Ordering::Acquire)
    }

    /// Aborts the journal: all later commits fail, because log and memory are unreliable. Linux:
    /// `jbd2_journal_abort`.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    /// Records in the journal's superblock on `device` whether the file system has errors, which
    /// makes the next mount mark it; durable after a flush.
    pub(crate) fn record_error(&self, device: &dyn Device, has_error: bool) -> Result<()> {
        let value = if has_error { ERROR_IO } else { 0 };
        write_error(&self.error, value, device, self.superblock_offset)
    }

    /// Fails with EROFS after an abort.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_aborted.load(Ordering::Acquire) {
            Err(Error::new(
                Errno::ROFS,
                "the journal was aborted after an error",
            ))
        } else {
            Ok(())
        }
    }
}

impl<'a> Committer<'a> {
    /// Blocks new operations, waits for running ones, then calls `settle` while data can still be
    /// written. Then stops data writes too, and settles again unless `is_settled`: a data write
    /// that ended in between may have given `settle` more to do. At last calls `close`, which
    /// builds the transaction. All continue in the next transaction once the result is dropped. No
    /// closed transaction is waiting.
    ///
    /// # Errors
    /// `settle`'s, before anything changed; or [`CloseError::Close`], after which memory and log
    /// may disagree.
    pub(crate) fn close(
        &mut self,
        settle: impl Fn() -> Result<()>,
        is_settled: impl Fn() -> bool,
        close: impl FnOnce() -> Result<Option<Transaction>>,
    ) -> std::result::Result<AllStopped<'a>, CloseError> {
        let mut operations = self.journal.gate.stop_operations();
        let stopped = loop {
            settle().map_err(CloseError::Settle)?;
            let all = operations.stop_stores();
            if is_settled() {
                break all;
            }
            // Without operations there is no new data: this ends.
            operations = all.resume_stores();
        };
        self.journal.check().map_err(CloseError::Settle)?;
        self.log.closed = close().map_err(CloseError::Close)?;
        if self.log.closed.is_some() {
            self.journal.has_closed.store(true, Ordering::Release);
            // Changes from here on belong to the next transaction.
            self.journal
                .running
                .store(self.log.next.wrapping_add(1), Ordering::Release);
        }
        Ok(stopped)
    }

    /// Writes the closed transaction to the log; returns the blocks that it frees, or `None` if
    /// there is none. After an error it can be written again. A [`Committer::flush`] makes it
    /// durable.
    pub(crate) fn write(&mut self) -> Result<Option<Vec<Range<u64>>>> {
        let Some(transaction) = self.log.closed.take() else {
            return Ok(None);
        };
        if let Err(error) = self.write_transaction(&transaction) {
            // Its copies exist nowhere else: the pages are clean and may be evicted.
            self.log.closed = Some(transaction);
            return Err(error);
        }
        self.journal.has_closed.store(false, Ordering::Release);
        Ok(Some(transaction.freed))
    }

    fn write_transaction(&mut self, transaction: &Transaction) -> Result<()> {
        if !self.log.has_room_for(transaction) {
            self.log.checkpoint(&self.journal.snapshots)?;
        }
        let sequence = self.log.next;
        self.log.write(transaction)?;
        // Not before: only a block in the log may be checkpointed (invariant 3).
        self.journal.snapshots.commit();
        // Not earlier: a checkpoint before the transaction is in the log must write these blocks.
        self.journal.snapshots.forget(&transaction.revoked);
        // Last: fsync(2) returns as soon as it sees this number.
        self.journal.committed.store(sequence, Ordering::Release);
        Ok(())
    }

    /// Makes all transactions in the log durable, if they are not.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.log.flush()
    }

    /// Returns whether the log is so full that a checkpoint is due.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.log.used() > self.log.capacity() / 2
            || self.journal.snapshots.committed_len() as u64
                > COMMITTED_SHARE * self.journal.transaction_max
    }

    /// Writes all committed blocks to the file system and empties the log.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        self.log.checkpoint(&self.journal.snapshots)
    }
}
