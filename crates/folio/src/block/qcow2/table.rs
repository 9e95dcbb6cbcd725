//! Tables of the image in memory: the cache of L2 tables and refcount blocks.

use super::super::image_file::ImageFile;
use crate::base::{Error, Result};
use foldhash::HashMap;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

/// The cluster or table has a refcount of one and may be written in place.
pub(super) const COPIED: u64 = 1 << 63;
/// The bits of an entry that are an offset in the file.
pub(super) const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const L1_RESERVED: u64 = !(COPIED | OFFSET_MASK);
/// Table bytes are written in pieces of this many.
const WRITE_BYTES: usize = 4096;

/// Where an L1 entry's table is, if there is one, and whether it may be written in place.
pub(super) fn decode_l1(entry: u64, cluster_bits: u32) -> Result<Option<(u64, bool)>> {
    let host = entry & OFFSET_MASK;
    if entry & L1_RESERVED != 0 || !host.is_multiple_of(1 << cluster_bits) {
        return Err(Error::corrupt(format!("L1 entry {entry:#018x}")));
    }
    Ok((host != 0).then_some((host, entry & COPIED != 0)))
}

/// Reads a table of 8-byte entries; a file that ends inside it is corrupt.
pub(super) fn read_table(file: &dyn ImageFile, at: u64, len_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len_bytes];
    if file.read_some(&mut [IoSliceMut::new(&mut bytes)], at)? < len_bytes as u64 {
        return Err(Error::corrupt("reaches beyond the end of the file"));
    }
    Ok(bytes)
}

/// Big-endian bytes as numbers.
pub(super) fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_be_bytes(*bytes))
}

/// One cluster of metadata.
pub(super) struct Table {
    /// Where it lies in the file.
    pub(super) at: u64,
    bytes: Arc<Vec<u8>>,
    /// Bytes that the file does not have yet.
    dirty: Range<usize>,
    is_writing: bool,
    last_used: u64,
}

impl Table {
    /// The bytes as the file has or will have them.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number `index` of an L2 table.
    pub(super) fn word(&self, index: usize) -> u64 {
        let bytes = &self.bytes[index * 8..index * 8 + 8];
        // The slice has eight bytes, so the default never comes.
        u64::from_be_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Sets number `index` of an L2 table.
    pub(super) fn set_word(&mut self, index: usize, word: u64) {
        self.bytes_mut(index * 8..index * 8 + 8)
            .copy_from_slice(&word.to_be_bytes());
    }

    /// A part of the bytes to be changed, and written later.
    pub(super) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.mark(range.clone());
        &mut Arc::make_mut(&mut self.bytes)[range]
    }

    /// Moves the table to a new place, where it will be written whole.
    pub(super) fn move_to(&mut self, at: u64) {
        self.at = at;
        self.mark(0..self.bytes.len());
    }

    fn mark(&mut self, range: Range<usize>) {
        self.dirty = if self.dirty.is_empty() {
            range
        } else {
            self.dirty.start.min(range.start)..self.dirty.end.max(range.end)
        };
    }
}

/// A table's dirty part, as it was when the write-back began.
pub(super) struct TableWrite {
    key: u64,
    at: u64,
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl TableWrite {
    /// Writes it to its place.
    pub(super) fn write(&self, file: &dyn ImageFile) -> Result<()> {
        let bytes = &self.bytes[self.range.clone()];
        file.write(
            &[std::io::IoSlice::new(bytes)],
            self.at + self.range.start as u64,
        )
    }
}

/// Tables by key, least recently used out first; dirty ones stay until they are written.
pub(super) struct TableCache {
    tables: HashMap<u64, Table>,
    clock: u64,
    tables_max: usize,
}

impl TableCache {
    /// A cache for about `bytes_max` of tables of `table_bytes` each.
    pub(super) fn new(table_bytes: usize, bytes_max: usize) -> Self {
        Self {
            tables: HashMap::default(),
            clock: 0,
            tables_max: (bytes_max / table_bytes).max(4),
        }
    }

    /// The table of this key, if it is in memory.
    pub(super) fn get(&mut self, key: u64) -> Option<&mut Table> {
        self.clock += 1;
        let clock = self.clock;
        let table = self.tables.get_mut(&key)?;
        table.last_used = clock;
        Some(table)
    }

    /// Puts a table that was just read into memory; others that are clean may leave.
    pub(super) fn insert_clean(&mut self, key: u64, at: u64, bytes: Vec<u8>) -> &mut Table {
        // A search may read many tables before anybody else makes room.
        self.shrink();
        self.clock += 1;
        let table = Table {
            at,
            bytes: Arc::new(bytes),
            dirty: 0..0,
            is_writing: false,
            last_used: self.clock,
        };
        self.tables.entry(key).insert_entry(table).into_mut()
    }

    /// Puts a new table of zeros into memory; it will be written whole.
    pub(super) fn insert_new(&mut self, key: u64, at: u64, len_bytes: usize) -> &mut Table {
        let table = self.insert_clean(key, at, vec![0; len_bytes]);
        table.mark(0..len_bytes);
        table
    }

    /// Whether any table has to be written.
    pub(super) fn is_dirty(&self) -> bool {
        self.tables.values().any(|table| !table.dirty.is_empty())
    }

    /// Drops clean tables until the limit holds; whether it now does.
    pub(super) fn shrink(&mut self) -> bool {
        if self.tables.len() <= self.tables_max {
            return true;
        }
        let mut clean: Vec<(u64, u64)> = self
            .tables
            .iter()
            .filter(|(_, table)| table.dirty.is_empty() && !table.is_writing)
            .map(|(key, table)| (table.last_used, *key))
            .collect();
        clean.sort_unstable();
        // A quarter more than needed, so that the next tables come without a search.
        let excess = self.tables.len() - self.tables_max * 3 / 4;
        for (_, key) in clean.into_iter().take(excess) {
            self.tables.remove(&key);
        }
        self.tables.len() <= self.tables_max
    }

    /// Takes what is dirty for writing; those tables stay in memory until [`TableCache::written`].
    pub(super) fn take_dirty(&mut self) -> Vec<TableWrite> {
        let mut writes = Vec::new();
        for (key, table) in &mut self.tables {
            if !table.dirty.is_empty() {
                let start = table.dirty.start / WRITE_BYTES * WRITE_BYTES;
                let end = table
                    .dirty
                    .end
                    .next_multiple_of(WRITE_BYTES)
                    .min(table.bytes.len());
                writes.push(TableWrite {
                    key: *key,
                    at: table.at,
                    bytes: table.bytes.clone(),
                    range: start..end,
                });
                table.dirty = 0..0;
                table.is_writing = true;
            }
        }
        writes.sort_unstable_by_key(|write| write.at);
        writes
    }

    /// The end of a write-back; what was not written is dirty again.
    pub(super) fn written(&mut self, writes: &[TableWrite], succeeded: bool) {
        for write in writes {
            if let Some(table) = self.tables.get_mut(&write.key) {
                table.is_writing = false;
                if !succeeded {
                    table.mark(write.range.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_over_many_tables_keeps_few() {
        let mut cache = TableCache::new(512, 8 * 512);
        cache.insert_new(1000, 0, 512);
        for key in 0..100 {
            cache.insert_clean(key, 512 * (key + 1), vec![0; 512]);
            assert!(cache.get(key).is_some() && cache.tables.len() <= 9);
        }
        assert!(cache.get(1000).is_some(), "what is dirty stays");
    }
}
