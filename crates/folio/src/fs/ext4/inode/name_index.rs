//! The index in memory of a large linear directory: the blocks that may have a name, by its hash.

use crate::base::LogicalBlock;
use crate::fs::ext4::layout::checksum::crc32c;
use smallvec::SmallVec;

/// The blocks of one directory that may have a name. Names of equal hash share their blocks,
/// and removed names stay, so the blocks decide.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameIndex {
    /// Hash of a name and its block, sorted.
    entries: Vec<(u32, LogicalBlock)>,
}

impl NameIndex {
    /// Adds a name, out of order: [`NameIndex::finish`] sorts.
    pub(crate) fn push(&mut self, name: &[u8], block: LogicalBlock) {
        self.entries.push((hash(name), block));
    }

    /// Sorts the names that were pushed.
    pub(crate) fn finish(&mut self) {
        self.entries.sort_unstable();
        self.entries.dedup();
        self.entries.shrink_to_fit();
    }

    /// Adds a name in order.
    pub(crate) fn insert(&mut self, name: &[u8], block: LogicalBlock) {
        let entry = (hash(name), block);
        if let Err(place) = self.entries.binary_search(&entry) {
            self.entries.insert(place, entry);
        }
    }

    /// Returns the blocks that may have `name`, in order.
    pub(crate) fn candidates(&self, name: &[u8]) -> SmallVec<[LogicalBlock; 4]> {
        let hash = hash(name);
        let first = self.entries.partition_point(|(known, _)| *known < hash);
        self.entries[first..]
            .iter()
            .take_while(|(known, _)| *known == hash)
            .map(|(_, block)| *block)
            .collect()
    }

    /// Returns the bytes outside of this object.
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(u32, LogicalBlock)>()
    }
}

fn hash(name: &[u8]) -> u32 {
    crc32c(!0, name)
}
