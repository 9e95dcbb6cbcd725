//! Metadata blocks as they were when their transaction was closed, until they are in their places.
//!
//! ```text
//!   page cache --copy--> committing --commit record durable--> committed --checkpoint--> device
//!   file data  ------->  running, then the same (data=journal)
//! ```
//!
//! A block's page may be evicted once it was copied; whoever reads it again finds the newest copy
//! here.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Copies of blocks, by number.
pub(crate) type Blocks = BTreeMap<u64, Arc<[u8]>>;

/// The copies of a journal's blocks that are newer than what the device holds in their places.
#[derive(Default)]
pub(crate) struct Snapshots {
    maps: RwLock<Maps>,
}

#[derive(Default)]
struct Maps {
    /// Blocks of files, of the running transaction (`data=journal`).
    running: Blocks,
    /// Of the transaction that is being written to the log.
    committing: Blocks,
    /// Of transactions in the log, the newest of each block.
    committed: Blocks,
}

impl Snapshots {
    /// The newest copies of the blocks in `range`.
    pub(crate) fn newest(&self, range: Range<u64>) -> Vec<(u64, Arc<[u8]>)> {
        let maps = self.maps.read();
        let committed = maps.committed.range(range.clone());
        let mut found: Blocks = committed
            .map(|(number, bytes)| (*number, bytes.clone()))
            .collect();
        found.extend(
            maps.committing
                .range(range.clone())
                .map(|(number, bytes)| (*number, bytes.clone())),
        );
        found.extend(
            maps.running
                .range(range)
                .map(|(number, bytes)| (*number, bytes.clone())),
        );
        found.into_iter().collect()
    }

    /// Takes a copy into the transaction that is being closed.
    pub(crate) fn insert(&self, number: u64, bytes: Arc<[u8]>) {
        self.maps.write().committing.insert(number, bytes);
    }

    /// Takes a block of a file into the running transaction, if that has fewer than `blocks_max`,
    /// or if a copy of the block is on its way already, which must not overtake this one. Says
    /// whether it did.
    pub(crate) fn insert_data(&self, number: u64, bytes: &[u8], blocks_max: u64) -> bool {
        let mut maps = self.maps.write();
        let Maps {
            running,
            committing,
            committed,
        } = &mut *maps;
        let is_due = [&*running, committing, committed]
            .iter()
            .any(|map| map.contains_key(&number));
        let is_taken = is_due || (running.len() as u64) < blocks_max;
        if is_taken {
            running.insert(number, bytes.into());
        }
        is_taken
    }

    /// Blocks of files in the running transaction.
    pub(crate) fn data_len(&self) -> u64 {
        self.maps.read().running.len() as u64
    }

    /// The running transaction is closed: its blocks, but for those in `freed`; the copies are
    /// shared.
    pub(crate) fn close(&self, freed: &[Range<u64>]) -> Blocks {
        let mut maps = self.maps.write();
        let mut running = std::mem::take(&mut maps.running);
        for range in freed {
            let numbers: Vec<u64> = running
                .range(range.clone())
                .map(|(number, _)| *number)
                .collect();
            numbers
                .iter()
                .for_each(|number| drop(running.remove(number)));
        }
        maps.committing.extend(running);
        maps.committing.clone()
    }

    /// The transaction is in the log.
    pub(super) fn commit(&self) {
        let mut maps = self.maps.write();
        let committing = std::mem::take(&mut maps.committing);
        maps.committed.extend(committing);
    }

    /// What has yet to be brought to its place.
    pub(super) fn committed(&self) -> Blocks {
        self.maps.read().committed.clone()
    }

    /// Whether a block of `range` is in the log.
    pub(crate) fn logged_in(&self, range: Range<u64>) -> Vec<u64> {
        self.maps
            .read()
            .committed
            .range(range)
            .map(|(number, _)| *number)
            .collect()
    }

    /// Blocks that were freed must not be written any more.
    pub(super) fn forget(&self, numbers: &[u64]) {
        let mut maps = self.maps.write();
        for number in numbers {
            maps.committed.remove(number);
        }
    }

    /// Everything committed is in its place.
    pub(super) fn clear_committed(&self) {
        self.maps.write().committed.clear();
    }

    /// How many blocks wait to be brought to their places.
    pub(super) fn committed_len(&self) -> usize {
        self.maps.read().committed.len()
    }
}
