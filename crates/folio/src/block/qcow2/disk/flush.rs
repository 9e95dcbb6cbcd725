//! Write-back: metadata reaches the file in an order in which a power cut at any moment loses only
//! space.

use super::device::Qcow2Device;
use super::lazy::RefcountWrites;
use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::raw_header::REFCOUNT_TABLE_FIELD;
use crate::block::qcow2::metadata::{Metadata, Release, TableWrite};
use std::io::IoSlice;

/// The dirty tables, as they were when the write-back began.
struct DirtyTables {
    blocks: Vec<TableWrite>,
    refcount_table: Option<RefcountTable>,
    l2: Vec<TableWrite>,
    l1: Vec<(usize, u64)>,
    releases: Vec<Release>,
}

struct RefcountTable {
    bytes: Vec<u8>,
    at: u64,
    clusters: u64,
    is_moved: bool,
}

impl DirtyTables {
    fn take(metadata: &mut Metadata, refcounts: RefcountWrites) -> Self {
        let (blocks, refcount_table) = match refcounts {
            RefcountWrites::Now => Self::take_refcounts(metadata),
            RefcountWrites::AtClose => (Vec::new(), None),
        };
        Self {
            blocks,
            refcount_table,
            l2: metadata.l2.take_dirty(),
            l1: std::mem::take(&mut metadata.dirty_l1)
                .into_iter()
                .map(|i| (i, metadata.l1[i]))
                .collect(),
            releases: std::mem::take(&mut metadata.releases),
        }
    }

    fn take_refcounts(metadata: &mut Metadata) -> (Vec<TableWrite>, Option<RefcountTable>) {
        let refcounts = &mut metadata.refcounts;
        let blocks = refcounts.blocks.take_dirty();
        let refcount_table =
            (refcounts.is_table_dirty || refcounts.is_table_moved).then(|| RefcountTable {
                bytes: refcounts.table_bytes(),
                at: refcounts.table_at,
                clusters: refcounts.table_clusters,
                is_moved: refcounts.is_table_moved,
            });
        refcounts.is_table_dirty = false;
        refcounts.is_table_moved = false;
        // The header names the old refcount table until this write-back ends.
        metadata.releases.append(&mut refcounts.retired);
        (blocks, refcount_table)
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty()
            && self.refcount_table.is_none()
            && self.l2.is_empty()
            && self.l1.is_empty()
    }

    /// Writes data and refcounts, then the tables that point to them, from the leaves to the root.
    fn write(&self, file: &dyn ImageFile, l1_offset: u64) -> Result<()> {
        // Refcounts first: a table in the file must never name a cluster that counts as free.
        for block in &self.blocks {
            block.write(file)?;
        }
        // This also makes the data of every finished write durable.
        file.sync_data()?;
        if let Some(table) = &self.refcount_table {
            table.write(file)?;
        }
        for table in &self.l2 {
            table.write(file)?;
        }
        // L2 tables are durable before an L1 entry names them.
        if !self.l1.is_empty() {
            file.sync_data()?;
            for (index, entry) in &self.l1 {
                file.write(
                    &[IoSlice::new(&entry.to_be_bytes())],
                    l1_offset + *index as u64 * 8,
                )?;
            }
        }
        if self.l2.is_empty() && self.l1.is_empty() {
            Ok(())
        } else {
            file.sync_data()
        }
    }

    /// Ends the write-back: if it failed, the tables are dirty again, else returns the references
    /// to drop.
    fn put_back(self, metadata: &mut Metadata, succeeded: bool) -> Vec<Release> {
        metadata.refcounts.blocks.written(&self.blocks, succeeded);
        metadata.l2.written(&self.l2, succeeded);
        if succeeded {
            return self.releases;
        }
        if let Some(table) = self.refcount_table {
            metadata.refcounts.is_table_dirty = true;
            metadata.refcounts.is_table_moved |= table.is_moved;
        }
        metadata
            .dirty_l1
            .extend(self.l1.iter().map(|(index, _)| index));
        metadata.releases.extend(self.releases);
        Vec::new()
    }
}

impl RefcountTable {
    fn write(&self, file: &dyn ImageFile) -> Result<()> {
        file.write(&[IoSlice::new(&self.bytes)], self.at)?;
        // The table is durable before the header names it, and before a block counts as used.
        file.sync_data()?;
        if self.is_moved {
            let mut field = [0; 12];
            field[..8].copy_from_slice(&self.at.to_be_bytes());
            // At most 16384 clusters: the table has at most 8 MiB.
            field[8..].copy_from_slice(&(self.clusters as u32).to_be_bytes());
            file.write(&[IoSlice::new(&field)], REFCOUNT_TABLE_FIELD)?;
            file.sync_data()?;
        }
        Ok(())
    }
}

impl Qcow2Device {
    /// Makes everything durable, refcounts as well, clears the dirty bit, and releases the space
    /// behind the end of the file.
    pub(in crate::block::qcow2) fn close(&self) -> Result<()> {
        let is_dirty = || self.metadata.lock().is_dirty();
        let written = if is_dirty() {
            self.write_back(RefcountWrites::Now)
        } else {
            Ok(())
        };
        // No write-back and no transfer may set the bit again behind this check.
        let _no_flush = self.flushing.lock();
        let _no_transfer = self.io.write();
        // A write may have changed a table since.
        let cleared = if written.is_ok() && !is_dirty() {
            self.dirty_bit.clear(&*self.file)
        } else {
            Ok(())
        };
        // If this fails, space stays allocated behind the file's end until the file is copied.
        let _ = self.reserve.give_back(&*self.file);
        written.and(cleared)
    }

    /// Makes all finished writes durable, then frees the clusters that no table names any more.
    ///
    /// # Errors
    ///
    /// The files' errors; the tables stay dirty then.
    pub(in crate::block::qcow2) fn write_back(&self, refcounts: RefcountWrites) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        // One snapshot of all tables: an L2 table never goes without the refcounts that it needs.
        let dirty = DirtyTables::take(&mut self.metadata.lock(), refcounts);
        if let Some(data) = &self.data_file
            && let Err(error) = data.file.sync_data()
        {
            dirty.put_back(&mut self.metadata.lock(), false);
            return Err(error);
        }
        if dirty.is_empty() && dirty.releases.is_empty() {
            self.metadata.lock().end_write_back();
            return self.file.sync_data();
        }
        // Before the first table: a program killed from here on leaves refcounts to correct.
        let marked = self.dirty_bit.set(&*self.file);
        let result = marked.and_then(|()| dirty.write(&*self.file, self.l1_offset));
        let releases = {
            let mut metadata = self.metadata.lock();
            let releases = dirty.put_back(&mut metadata, result.is_ok());
            if result.is_ok() {
                metadata.end_write_back();
            }
            releases
        };
        result?;
        if releases.is_empty() {
            return Ok(());
        }
        // Waits for readers that still use an old mapping; then the clusters may be reused.
        drop(self.io.write());
        let mut unused = Vec::new();
        let blocks = {
            let mut metadata = self.metadata.lock();
            for (first, count) in releases {
                metadata
                    .refcounts
                    .release(&*self.file, first, count, &mut unused)?;
            }
            // Still under the lock: no write gets these clusters before their space is released.
            self.punch(&mut unused)?;
            match refcounts {
                RefcountWrites::Now => metadata.refcounts.blocks.take_dirty(),
                RefcountWrites::AtClose => Vec::new(),
            }
        };
        // A power cut before these are durable only leaks the clusters.
        let result = blocks.iter().try_for_each(|block| block.write(&*self.file));
        self.metadata
            .lock()
            .refcounts
            .blocks
            .written(&blocks, result.is_ok());
        result
    }

    /// Releases the host's space of free clusters.
    fn punch(&self, unused: &mut [u64]) -> Result<()> {
        unused.sort_unstable();
        for run in unused.chunk_by(|a, b| a + 1 == *b) {
            if let Some(first) = run.first() {
                let bits = self.geometry.cluster_bits;
                self.file
                    .punch_hole(first << bits, (run.len() as u64) << bits)?;
            }
        }
        Ok(())
    }
}
