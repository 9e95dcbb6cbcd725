//! Copies of metadata blocks, made when their transaction is closed and kept until the checkpoint.
//!
//! ```text
//!   page cache --copy--> committing --commit record durable--> committed --checkpoint--> device
//!   file data  ------->  running, then the same (data=journal)
//! ```
//!
//! A block's page may be evicted after the copy; a later read takes the newest copy from here.

use crate::base::lock::RwLock;
use crate::cache::ObjectCharge;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Copies of blocks, by number.
pub(crate) type BlockCopies = BTreeMap<u64, Arc<[u8]>>;

/// The copies of blocks that are newer than the file system's blocks on the device.
pub(crate) struct Snapshots {
    maps: RwLock<SnapshotMaps>,
}

struct SnapshotMaps {
    /// File blocks of the running transaction (`data=journal`).
    running: BlockCopies,
    /// Blocks of the transaction that is being written to the log.
    committing: BlockCopies,
    /// The newest copy of each block of the transactions in the log.
    committed: BlockCopies,
    charge: ObjectCharge,
}

/// Bytes of an entry of a map, besides the copy.
const ENTRY_BYTES: usize = size_of::<(u64, Arc<[u8]>)>() * 2;

impl SnapshotMaps {
    /// Charges the copies, all of which have `block_size` bytes.
    fn count(&mut self, block_size: usize) {
        let copies = self.running.len() + self.committing.len() + self.committed.len();
        self.charge.resize(copies * (block_size + ENTRY_BYTES));
    }
}

impl Snapshots {
    /// Returns no copies; later ones are charged to `charge`.
    pub(super) fn new(charge: ObjectCharge) -> Self {
        Self {
            maps: RwLock::new(SnapshotMaps {
                running: BlockCopies::new(),
                committing: BlockCopies::new(),
                committed: BlockCopies::new(),
                charge,
            }),
        }
    }

    /// Returns the newest copies of the blocks in `range`.
    pub(crate) fn newest(&self, range: Range<u64>) -> Vec<(u64, Arc<[u8]>)> {
        let maps = self.maps.read();
        let committed = maps.committed.range(range.clone());
        let mut found: BlockCopies = committed
            .map(|(number, bytes)| (*number, bytes.clone()))
            .collect();
        // From the oldest to the newest: a later copy replaces an earlier one.
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

    /// Adds a copy to the transaction that is being closed.
    pub(crate) fn insert(&self, number: u64, bytes: Arc<[u8]>) {
        let mut maps = self.maps.write();
        let block_size = bytes.len();
        maps.committing.insert(number, bytes);
        maps.count(block_size);
    }

    /// Adds a file block to the running transaction if that has fewer than `blocks_max` blocks.
    /// Adds it in any case if an older copy of the block is not yet checkpointed, which would
    /// otherwise overwrite this one. Returns whether the block was added.
    pub(crate) fn insert_data(&self, number: u64, bytes: &[u8], blocks_max: u64) -> bool {
        let mut maps = self.maps.write();
        let SnapshotMaps {
            running,
            committing,
            committed,
            ..
        } = &mut *maps;
        let has_older_copy = [&*running, committing, committed]
            .iter()
            .any(|map| map.contains_key(&number));
        let is_added = has_older_copy || (running.len() as u64) < blocks_max;
        if is_added {
            running.insert(number, bytes.into());
            maps.count(bytes.len());
        }
        is_added
    }

    /// Returns the number of file blocks in the running transaction.
    pub(crate) fn data_len(&self) -> u64 {
        self.maps.read().running.len() as u64
    }

    /// Closes the running transaction and returns its blocks, except those in `freed`. The copies
    /// are shared.
    pub(crate) fn close(&self, freed: &[Range<u64>]) -> BlockCopies {
        let mut maps = self.maps.write();
        let mut running = std::mem::take(&mut maps.running);
        // The block may have its next use when these copies are checkpointed.
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

    /// Marks the closed transaction's copies as committed to the log.
    pub(super) fn commit(&self) {
        let mut maps = self.maps.write();
        let committing = std::mem::take(&mut maps.committing);
        maps.committed.extend(committing);
    }

    /// Returns the copies that the next checkpoint must write.
    pub(super) fn committed(&self) -> BlockCopies {
        self.maps.read().committed.clone()
    }

    /// Returns the blocks of `range` that are in the log.
    pub(crate) fn logged_in(&self, range: Range<u64>) -> Vec<u64> {
        self.maps
            .read()
            .committed
            .range(range)
            .map(|(number, _)| *number)
            .collect()
    }

    /// Drops the copies of freed blocks, which must not be written any more.
    pub(super) fn forget(&self, numbers: &[u64]) {
        let mut maps = self.maps.write();
        for number in numbers {
            maps.committed.remove(number);
        }
    }

    /// Drops all committed copies after a checkpoint.
    pub(super) fn clear_committed(&self) {
        let mut maps = self.maps.write();
        let block_size = maps.committed.values().next().map_or(0, |copy| copy.len());
        maps.committed.clear();
        maps.count(block_size);
    }

    /// Returns the number of copies that the next checkpoint must write.
    pub(super) fn committed_len(&self) -> usize {
        self.maps.read().committed.len()
    }
}
