//! The cache of L2 tables and refcount blocks.

use super::published::Published;
use crate::base::Result;
use crate::base::sync::atomic::Ordering;
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::l2_entry::{Geometry, L2Entry};
use foldhash::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// MetadataTable bytes are written in pieces of this many.
const WRITE_BYTES: usize = 4096;

/// One cluster of metadata.
pub(crate) struct MetadataTable {
    /// Its offset in the file.
    pub(crate) at: u64,
    bytes: Arc<Vec<u8>>,
    /// The range of bytes that differ from the file.
    dirty: Range<usize>,
    is_writing: bool,
    last_used: u64,
}

impl MetadataTable {
    /// Returns the bytes, with changes that are not in the file yet.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns entry `index` of an L2 table.
    pub(crate) fn entry(&self, geometry: Geometry, index: usize) -> L2Entry {
        if geometry.is_extended() {
            L2Entry {
                word: self.word(index * 2),
                bitmap: self.word(index * 2 + 1),
            }
        } else {
            L2Entry {
                word: self.word(index),
                bitmap: 0,
            }
        }
    }

    /// Sets entry `index` of an L2 table.
    pub(crate) fn set_entry(&mut self, geometry: Geometry, index: usize, entry: L2Entry) {
        if geometry.is_extended() {
            self.set_word(index * 2, entry.word);
            self.set_word(index * 2 + 1, entry.bitmap);
        } else {
            self.set_word(index, entry.word);
        }
    }

    /// Returns 8-byte number `index`.
    fn word(&self, index: usize) -> u64 {
        let bytes = &self.bytes[index * 8..index * 8 + 8];
        // The slice has eight bytes, so the conversion never fails.
        u64::from_be_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Sets 8-byte number `index`.
    fn set_word(&mut self, index: usize, word: u64) {
        self.bytes_mut(index * 8..index * 8 + 8)
            .copy_from_slice(&word.to_be_bytes());
    }

    /// Returns a part of the bytes for changes, and marks it dirty.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.mark(range.clone());
        &mut Arc::make_mut(&mut self.bytes)[range]
    }

    /// Moves the table to another offset, and marks all of it dirty.
    pub(crate) fn move_to(&mut self, at: u64) {
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

/// The dirty part of a table, as it was when the write-back began.
pub(crate) struct TableWrite {
    key: u64,
    at: u64,
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl TableWrite {
    /// Writes it to the file.
    pub(crate) fn write(&self, file: &dyn ImageFile) -> Result<()> {
        let bytes = &self.bytes[self.range.clone()];
        file.write(
            &[std::io::IoSlice::new(bytes)],
            self.at + self.range.start as u64,
        )
    }
}

/// Tables by key. The least recently used are evicted first; dirty ones stay until written back.
pub(crate) struct TableCache {
    tables: HashMap<u64, MetadataTable>,
    clock: u64,
    tables_max: usize,
    published: Arc<Published>,
}

impl TableCache {
    /// Returns an empty cache for about `bytes_max` of tables of `table_bytes` each.
    pub(crate) fn new(table_bytes: usize, bytes_max: usize, published: Arc<Published>) -> Self {
        Self {
            tables: HashMap::default(),
            clock: 0,
            tables_max: (bytes_max / table_bytes).max(4),
            published,
        }
    }

    /// Keeps at most `tables_max` clean tables, so that a test evicts them at once.
    #[cfg(all(test, folio_model_check))]
    pub(crate) fn set_limit(&mut self, tables_max: usize) {
        self.tables_max = tables_max;
        self.published.is_crowded.store(true, Ordering::Release);
    }

    /// Returns the table of this key, if it is in memory.
    pub(crate) fn get(&mut self, key: u64) -> Option<&mut MetadataTable> {
        self.clock += 1;
        let clock = self.clock;
        let table = self.tables.get_mut(&key)?;
        table.last_used = clock;
        Some(table)
    }

    /// Inserts a table that was just read; may evict clean ones.
    pub(crate) fn insert_clean(&mut self, key: u64, at: u64, bytes: Vec<u8>) -> &mut MetadataTable {
        // One search may read many tables before `make_room` runs.
        self.shrink();
        self.clock += 1;
        let table = MetadataTable {
            at,
            bytes: Arc::new(bytes),
            dirty: 0..0,
            is_writing: false,
            last_used: self.clock,
        };
        if self.tables.len() >= self.tables_max {
            self.published.is_crowded.store(true, Ordering::Release);
        }
        self.tables.entry(key).insert_entry(table).into_mut()
    }

    /// Inserts a new table of zeros, all of it dirty.
    pub(crate) fn insert_new(&mut self, key: u64, at: u64, len_bytes: usize) -> &mut MetadataTable {
        let table = self.insert_clean(key, at, vec![0; len_bytes]);
        table.mark(0..len_bytes);
        table
    }

    /// Whether any table is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        self.tables.values().any(|table| !table.dirty.is_empty())
    }

    /// Evicts clean tables until the limit holds; returns whether it holds.
    pub(crate) fn shrink(&mut self) -> bool {
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
        // A quarter more than needed, so that the next tables need no search.
        let excess = self.tables.len() - self.tables_max * 3 / 4;
        for (_, key) in clean.into_iter().take(excess) {
            self.tables.remove(&key);
        }
        self.tables.len() <= self.tables_max
    }

    /// Takes the dirty parts for write-back; their tables stay in memory until
    /// [`TableCache::written`].
    pub(crate) fn take_dirty(&mut self) -> Vec<TableWrite> {
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
                // A change from here on marks the table again, and goes into the next write-back.
                table.dirty = 0..0;
                // Not evicted before it is written: the file has older bytes.
                table.is_writing = true;
            }
        }
        writes.sort_unstable_by_key(|write| write.at);
        writes
    }

    /// Ends a write-back; if it failed, its parts are dirty again.
    pub(crate) fn written(&mut self, writes: &[TableWrite], succeeded: bool) {
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
    fn walk_over_many_tables_keeps_few() {
        let mut cache = TableCache::new(512, 8 * 512, Arc::new(Published::new(1)));
        cache.insert_new(1000, 0, 512);
        for key in 0..100 {
            cache.insert_clean(key, 512 * (key + 1), vec![0; 512]);
            assert!(cache.get(key).is_some() && cache.tables.len() <= 9);
        }
        assert!(cache.get(1000).is_some(), "a dirty table stays");
    }
}
