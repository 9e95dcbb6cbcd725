//! Orphans in memory: the inodes in use that have no name, and the file that lists them on disk.

use crate::base::PhysicalBlock;
use std::collections::BTreeSet;

/// The numbers of inodes in memory without a name. A commit writes them all, so that the next mount
/// frees the inodes that are left.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) numbers: BTreeSet<u32>,
    /// Whether they, or their entries in the table, differ from what was written last.
    pub(crate) is_changed: bool,
}

impl Orphans {
    /// Adds the inode `number`, which has no name.
    pub(crate) fn add(&mut self, number: u32) {
        self.numbers.insert(number);
        self.is_changed = true;
    }

    /// Removes the inode `number`: it has a name again, or is freed.
    pub(crate) fn remove(&mut self, number: u32) {
        self.is_changed |= self.numbers.remove(&number);
    }
}

/// The orphan file (`orphan_file`).
pub(crate) struct OrphanFile {
    pub(crate) blocks: Vec<PhysicalBlock>,
    /// The seed of its blocks' checksums.
    pub(crate) seed: u32,
}
