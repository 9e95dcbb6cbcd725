//! The journal (jbd2): metadata changes reach the device all together or not at all.
//!
//! ```text
//!   operation -> handle.rs          what belongs together is in one transaction
//!                   | commit (../commit.rs): everything stops, dirty blocks are copied
//!                   v
//!               snapshot.rs         copies on their way
//!                   | log.rs        written to the log in one piece, then to their places (checkpoint)
//!                   v
//!   log:  | superblock | D data data R C | D data C | ...        D descriptor, R revoke, C commit
//!           start, sequence --^                       ^-- the first block that continues nothing: the end
//!                   | recovery.rs fast_commit.rs   after a crash, before anything else is read
//!                   v
//!                 device            ring.rs disk.rs: where the log lies, its bytes
//! ```
//!
//! Neighbours: `Ext4` decides when to commit and what is in a transaction; below is the device.
//! Knows no inode. Format: the kernel's Documentation/filesystems/ext4/journal.rst.
//!
//! Unlike jbd2 there is one copy of a block per transaction, made when it is closed, and no buffer
//! belongs to two: memory is copied faster than buffers are tracked. docs/design/journal.md says
//! more.
//!
//! Lock order: `Journal::log`; operations, stores (handle.rs); everything of `Ext4`; `Snapshots`.
//!
//! Invariants:
//! 1. Only transactions whose commit block is whole are replayed, in order, each block at most once
//!    per pass.
//! 2. The log is emptied only after everything in it has been flushed to its place.
//! 3. A block reaches its place only after the transaction that changed it is durable in the log.
//! 4. A freed block is used again only after the transaction that freed it is durable; copies of it
//!    in the log are revoked by that transaction, and never written to its place after it.
//! 5. Data is on the device before a transaction says where.

mod disk;
mod fast_commit;
mod handle;
mod log;
pub(crate) mod metadata;
mod recovery;
mod ring;
mod snapshot;

pub(crate) use fast_commit::Change;
pub(crate) use handle::{Gate, Handle, is_within_operation};
pub(crate) use log::Transaction;
pub(crate) use recovery::recover;
pub(crate) use ring::JournalBlocks;
pub(crate) use snapshot::Snapshots;

use crate::base::{Errno, Error, Result};
use crate::block::Device;
use log::Log;
use parking_lot::{Mutex, MutexGuard};
use ring::Ring;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Share of the log that one transaction may take, as jbd2 has it.
const TRANSACTION_SHARE: u32 = 4;
/// Blocks in a transaction at most, whatever the log's size: its copies are memory beside the page
/// cache.
const TRANSACTION_MAX: u32 = 4096;
/// Blocks that may wait for a checkpoint, for the same reason.
const COMMITTED_MAX: usize = 8192;

/// The journal of a file system that is written. Linux: `journal_t`.
pub(crate) struct Journal {
    pub(crate) gate: Gate,
    pub(crate) snapshots: Arc<Snapshots>,
    log: Mutex<Log>,
    /// Sequence number of the transaction that changes go into.
    running: AtomicU32,
    /// Sequence number of the newest durable transaction.
    committed: AtomicU32,
    /// Blocks from which a transaction is closed.
    transaction_max: u64,
    is_aborted: AtomicBool,
}

/// The right to commit, which one thread has.
pub(crate) struct Committer<'a> {
    journal: &'a Journal,
    log: MutexGuard<'a, Log>,
}

impl Journal {
    /// Takes over a replayed journal. A transaction has about `blocks_max` blocks at most.
    /// `has_checksums`, `is_64bit`: the file system's features; `has_barriers`: whether the device
    /// is flushed around commits.
    pub(crate) fn new(
        blocks: JournalBlocks,
        device: Arc<dyn Device>,
        blocks_max: u64,
        has_checksums: bool,
        is_64bit: bool,
        has_barriers: bool,
    ) -> Result<Self> {
        let ring = Ring::open(blocks, device)?;
        let log = Log::new(ring, has_checksums, is_64bit, has_barriers)?;
        let next = log.next;
        let transaction_max =
            u64::from((log.capacity() / TRANSACTION_SHARE).min(TRANSACTION_MAX)).min(blocks_max);
        Ok(Self {
            gate: Gate::default(),
            snapshots: Arc::default(),
            log: Mutex::new(log),
            running: AtomicU32::new(next),
            committed: AtomicU32::new(next.wrapping_sub(1)),
            transaction_max,
            is_aborted: AtomicBool::new(false),
        })
    }

    /// Sequence number of the transaction that changes go into; stays the same while a handle is
    /// held.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Acquire)
    }

    /// Whether transaction `sequence` is durable. Numbers wrap around.
    pub(crate) fn is_committed(&self, sequence: u32) -> bool {
        self.committed
            .load(Ordering::Acquire)
            .wrapping_sub(sequence) as i32
            >= 0
    }

    /// Blocks from which a transaction is closed.
    pub(crate) fn transaction_max(&self) -> u64 {
        self.transaction_max
    }

    /// Waits for the commit that is under way, and becomes the one who commits.
    pub(crate) fn committer(&self) -> Committer<'_> {
        Committer {
            journal: self,
            log: self.log.lock(),
        }
    }

    /// Nothing is written any more: the log, and what is in memory, cannot be trusted.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    /// EROFS once the journal was aborted.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_aborted.load(Ordering::Acquire) {
            Err(Error::new(Errno::ROFS, "the journal has been aborted"))
        } else {
            Ok(())
        }
    }
}

impl Committer<'_> {
    /// Lets no operation begin, waits until none is under way, then calls `settle`, while data can
    /// still be written; then stops that, too, and calls `close`, which makes the transaction.
    /// Afterwards everything goes on, in the next transaction.
    pub(crate) fn close(
        &mut self,
        settle: impl FnOnce(),
        close: impl FnOnce() -> Result<Option<Transaction>>,
    ) -> Result<Option<Transaction>> {
        let stopped = self.journal.gate.stop_operations();
        settle();
        let _stopped = stopped.stop_stores();
        self.journal.check()?;
        let transaction = close()?;
        if transaction.is_some() {
            self.journal
                .running
                .store(self.log.next.wrapping_add(1), Ordering::Release);
        }
        Ok(transaction)
    }

    /// Makes a closed transaction durable.
    pub(crate) fn write(&mut self, transaction: &Transaction) -> Result<()> {
        if !self.log.has_room_for(transaction) {
            self.log.checkpoint(&self.journal.snapshots)?;
        }
        let sequence = self.log.next;
        self.log.write(transaction)?;
        self.journal.snapshots.commit();
        self.journal.snapshots.forget(&transaction.revoked);
        self.journal.committed.store(sequence, Ordering::Release);
        Ok(())
    }

    /// Whether so much is in the log that it should be emptied.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.log.used() > self.log.capacity() / 2
            || self.journal.snapshots.committed_len() > COMMITTED_MAX
    }

    /// Brings everything that is committed to its place and empties the log.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        self.log.checkpoint(&self.journal.snapshots)
    }
}
