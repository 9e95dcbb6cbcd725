//! Refcounts: the clusters of the file in use, and the allocation of free ones.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Host cluster management"). A missing refcount
//! block is placed at the first cluster it describes, and so describes itself.

use super::published::Published;
use super::table_cache::{MetadataTable, TableCache};
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::raw_header::REFCOUNT_TABLE_BYTES_MAX;
use crate::block::qcow2::layout::refcount_block::{get, put};
use crate::block::qcow2::layout::table::{numbers, read_table};
use std::sync::Arc;

/// Memory for refcount blocks.
const BLOCKS_BYTES_MAX: usize = 32 << 20;

/// A run of clusters that were just allocated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocated {
    /// Offset of the first in the file, in bytes.
    pub(crate) host: u64,
    /// Number of clusters.
    pub(crate) count: u64,
    /// Never written before: they read as zeros.
    pub(crate) is_fresh: bool,
}

/// The refcount table and its blocks.
pub(crate) struct Refcounts {
    cluster_bits: u32,
    order: u32,
    /// Offsets of the blocks; zero for one that does not exist.
    pub(crate) table: Vec<u64>,
    /// Offset of the table in the file, once it is written.
    pub(crate) table_at: u64,
    pub(crate) table_clusters: u64,
    /// The table differs from the file's.
    pub(crate) is_table_dirty: bool,
    /// The table grew, and the header does not name its new offset yet.
    pub(crate) is_table_moved: bool,
    pub(crate) blocks: TableCache,
    /// Clusters of tables replaced by larger ones: first and count.
    pub(crate) retired: Vec<(u64, u64)>,
    /// No cluster below is free.
    first_free: u64,
    /// End of the file's last cluster, or of the clusters allocated beyond it.
    pub(crate) host_end: u64,
    /// Clusters of the metadata that existed at open, in order. A refcount of zero for one of these
    /// is wrong.
    metadata_clusters: Vec<u64>,
}

impl Refcounts {
    /// Reads the table. `metadata_clusters` holds metadata other than the table and its
    /// blocks.
    ///
    /// # Errors
    ///
    /// EUCLEAN if two structures share a cluster and the file may be written.
    pub(crate) fn read(
        file: &dyn ImageFile,
        header: &Header,
        metadata_clusters: Vec<u64>,
        published: Arc<Published>,
    ) -> Result<Self> {
        let at = header.refcount_table_offset;
        let len_bytes = (header.refcount_table_clusters << header.cluster_bits) as usize;
        let bytes = read_table(file, at, len_bytes)
            .map_err(|error| error.at(format!("refcount table at {at:#x}")))?;
        let table: Vec<u64> = numbers(&bytes).collect();
        let mut this = Self {
            cluster_bits: header.cluster_bits,
            order: header.refcount_order,
            table,
            table_at: at,
            table_clusters: header.refcount_table_clusters,
            is_table_dirty: false,
            is_table_moved: false,
            blocks: TableCache::new(1 << header.cluster_bits, BLOCKS_BYTES_MAX, published),
            retired: Vec::new(),
            first_free: 0,
            // The file may end inside its last cluster; writes to the rest of it allocate nothing.
            host_end: file.len_bytes()?.next_multiple_of(1 << header.cluster_bits),
            metadata_clusters,
        };
        let first = at >> header.cluster_bits;
        this.metadata_clusters
            .extend(first..first + header.refcount_table_clusters);
        this.metadata_clusters.extend(
            this.table
                .iter()
                .filter(|at| **at != 0)
                .map(|at| at >> header.cluster_bits),
        );
        this.metadata_clusters.sort_unstable();
        let shared = this
            .metadata_clusters
            .windows(2)
            .find(|pair| pair[0] == pair[1]);
        if let (Some(pair), false) = (shared, file.is_read_only()) {
            // A block named by a million entries would also be searched a million times.
            let host = pair[0] << header.cluster_bits;
            return Err(Error::corrupt(format!(
                "the cluster at {host:#x} holds two tables"
            )));
        }
        Ok(this)
    }

    /// Allocates up to `count_max` consecutive free clusters.
    ///
    /// # Errors
    ///
    /// EFBIG if the file cannot grow further, EUCLEAN if a metadata cluster counts as free.
    pub(crate) fn allocate(&mut self, file: &dyn ImageFile, count_max: u64) -> Result<Allocated> {
        let mut start = self.first_free;
        loop {
            let block = start >> self.block_bits();
            if self.table.get(block as usize).is_none_or(|at| *at == 0) {
                self.add_block(file, block)?;
            }
            let index = start & (self.block_entries() - 1);
            let (order, entries) = (self.order, self.block_entries());
            let bytes = self.block(file, block)?.bytes();
            let Some(found) = (index..entries).find(|i| get(bytes, order, *i) == 0) else {
                start = (block + 1) << self.block_bits();
                self.first_free = start;
                continue;
            };
            let end = (found..entries.min(found.saturating_add(count_max)))
                .find(|i| get(bytes, order, *i) != 0)
                .unwrap_or(entries.min(found.saturating_add(count_max)));
            let first = (block << self.block_bits()) + found;
            let count = end - found;
            // Before the refcounts change: a damaged image must not lose a table.
            self.check_free(first, count)?;
            self.set_run(file, first, count)?;
            self.first_free = first + count;
            return Ok(self.mark_allocated(first, count));
        }
    }

    /// Adds a reference to a cluster that is in use.
    ///
    /// # Errors
    ///
    /// EFBIG if its refcount is at the maximum.
    pub(crate) fn share(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<()> {
        if self.is_full(file, cluster)? {
            return Err(Error::new(
                Errno::FBIG,
                "the refcount of a cluster is at its maximum",
            ));
        }
        let (order, index) = (self.order, cluster & (self.block_entries() - 1));
        let table = self.block(file, cluster >> self.block_bits())?;
        let refcount = get(table.bytes(), order, index);
        set(table, order, index, refcount + 1);
        Ok(())
    }

    /// Whether the refcount of a cluster is at its maximum.
    pub(crate) fn is_full(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<bool> {
        let (order, index) = (self.order, cluster & (self.block_entries() - 1));
        let table = self.block(file, cluster >> self.block_bits())?;
        Ok(get(table.bytes(), order, index) == u64::MAX >> (64 - (1u32 << order)))
    }

    /// Counts the clusters below `end` that are in use, up to `count_max`.
    pub(crate) fn count_used(
        &mut self,
        file: &dyn ImageFile,
        end: u64,
        count_max: u64,
    ) -> Result<u64> {
        let (order, bits, entries) = (self.order, self.block_bits(), self.block_entries());
        let mut used = 0;
        for index in 0..self.table.len() {
            let first = (index as u64) << bits;
            if first >= end || used >= count_max {
                break;
            }
            if self.table[index] == 0 {
                continue;
            }
            let bytes = self.block(file, index as u64)?.bytes();
            let in_use =
                (0..entries.min(end - first)).filter(|entry| get(bytes, order, *entry) != 0);
            used += in_use.count() as u64;
            self.blocks.shrink();
        }
        Ok(used)
    }

    /// Drops one reference of each of `count` clusters, and appends those without any to `unused`.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a cluster that counts as free already.
    pub(crate) fn release(
        &mut self,
        file: &dyn ImageFile,
        first: u64,
        count: u64,
        unused: &mut Vec<u64>,
    ) -> Result<()> {
        for cluster in first..first + count {
            let block = cluster >> self.block_bits();
            let index = cluster & (self.block_entries() - 1);
            let (order, cluster_bits) = (self.order, self.cluster_bits);
            if self.table.get(block as usize).is_none_or(|at| *at == 0) {
                return Err(underflow(cluster << cluster_bits));
            }
            let table = self.block(file, block)?;
            let refcount = get(table.bytes(), order, index);
            let Some(less) = refcount.checked_sub(1) else {
                return Err(underflow(cluster << cluster_bits));
            };
            set(table, order, index, less);
            if less == 0 {
                self.first_free = self.first_free.min(cluster);
                if let Ok(index) = self.metadata_clusters.binary_search(&cluster) {
                    self.metadata_clusters.remove(index);
                }
                unused.push(cluster);
            }
        }
        Ok(())
    }

    /// Encodes the table.
    pub(crate) fn table_bytes(&self) -> Vec<u8> {
        self.table.iter().flat_map(|at| at.to_be_bytes()).collect()
    }

    fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.order
    }

    fn block_entries(&self) -> u64 {
        1 << self.block_bits()
    }

    fn mark_allocated(&mut self, first: u64, count: u64) -> Allocated {
        let (host, end) = (
            first << self.cluster_bits,
            (first + count) << self.cluster_bits,
        );
        let is_fresh = host >= self.host_end;
        self.host_end = self.host_end.max(end);
        Allocated {
            host,
            count,
            is_fresh,
        }
    }

    /// Returns the block, from memory or from the file.
    fn block(&mut self, file: &dyn ImageFile, block: u64) -> Result<&mut MetadataTable> {
        // The borrow checker cannot see that an early return ends the first borrow.
        if self.blocks.get(block).is_none() {
            let at = self.table.get(block as usize).copied().unwrap_or(0);
            let place = || format!("refcount block at {at:#x}");
            if at == 0 || at % (1 << self.cluster_bits) != 0 {
                return Err(Error::corrupt("not at a cluster's start").at(place()));
            }
            let bytes =
                read_table(file, at, 1 << self.cluster_bits).map_err(|error| error.at(place()))?;
            return Ok(self.blocks.insert_clean(block, at, bytes));
        }
        self.blocks.get(block).ok_or_else(|| Errno::IO.into())
    }

    /// Adds the missing block of a range; grows the table if it must.
    fn add_block(&mut self, file: &dyn ImageFile, block: u64) -> Result<()> {
        if block >= self.table.len() as u64 {
            return self.grow_table(file, block);
        }
        let cluster = block << self.block_bits();
        self.check_free(cluster, 1)?;
        // The block before its refcounts: it describes its own cluster.
        self.put_block(block, cluster);
        self.set_run(file, cluster, 1)?;
        self.mark_allocated(cluster, 1);
        Ok(())
    }

    fn put_block(&mut self, block: u64, cluster: u64) {
        let at = cluster << self.cluster_bits;
        self.blocks.insert_new(block, at, 1 << self.cluster_bits);
        self.table[block as usize] = at;
        self.is_table_dirty = true;
    }

    /// Grows the table by half and moves it to the end of the file, behind the blocks that describe
    /// it there.
    fn grow_table(&mut self, file: &dyn ImageFile, block: u64) -> Result<()> {
        let per_cluster = 1u64 << (self.cluster_bits - 3);
        let clusters_max = REFCOUNT_TABLE_BYTES_MAX >> self.cluster_bits;
        let first_block = self.table.len() as u64;
        let wanted = (block + 1).div_ceil(per_cluster);
        let mut clusters = (self.table_clusters * 3 / 2 + 1).max(wanted);
        // Room for the blocks that describe the table itself.
        clusters += clusters
            .div_ceil(self.block_entries() - 1)
            .div_ceil(per_cluster);
        let clusters = clusters.min(clusters_max);
        if clusters <= self.table_clusters || wanted > clusters {
            return Err(Error::new(
                Errno::FBIG,
                "the refcount table cannot grow further",
            ));
        }
        let blocks = clusters.div_ceil(self.block_entries() - 1);
        if first_block + blocks > clusters * per_cluster {
            return Err(Error::new(
                Errno::FBIG,
                "the refcount table cannot grow further",
            ));
        }
        let start = first_block << self.block_bits();
        self.check_free(start, blocks + clusters)?;
        self.table.resize((clusters * per_cluster) as usize, 0);
        for index in 0..blocks {
            self.put_block(first_block + index, start + index);
        }
        self.set_run(file, start, blocks + clusters)?;
        self.mark_allocated(start, blocks + clusters);
        // Freed once the header names the new table.
        self.retired
            .push((self.table_at >> self.cluster_bits, self.table_clusters));
        self.table_at = (start + blocks) << self.cluster_bits;
        self.table_clusters = clusters;
        self.is_table_moved = true;
        Ok(())
    }

    fn set_run(&mut self, file: &dyn ImageFile, first: u64, count: u64) -> Result<()> {
        let (order, bits, entries) = (self.order, self.block_bits(), self.block_entries());
        let mut cluster = first;
        while cluster < first + count {
            let block = cluster >> bits;
            let end = ((block + 1) << bits).min(first + count);
            let table = self.block(file, block)?;
            for cluster in cluster..end {
                set(table, order, cluster & (entries - 1), 1);
            }
            cluster = end;
        }
        Ok(())
    }

    /// Rejects free clusters that hold metadata or are beyond the largest offset.
    fn check_free(&self, first: u64, count: u64) -> Result<()> {
        if (first + count) >> (56 - self.cluster_bits) != 0 {
            return Err(Error::new(Errno::FBIG, "the file cannot grow further"));
        }
        let next = self
            .metadata_clusters
            .partition_point(|cluster| *cluster < first);
        match self.metadata_clusters.get(next) {
            Some(cluster) if *cluster < first + count => {
                let at = cluster << self.cluster_bits;
                Err(Error::corrupt(format!(
                    "the cluster at {at:#x} holds metadata but has a refcount of zero"
                )))
            }
            _ => Ok(()),
        }
    }
}

fn underflow(host: u64) -> Error {
    Error::corrupt(format!(
        "the cluster at {host:#x} is in use but has a refcount of zero"
    ))
}

fn set(table: &mut MetadataTable, order: u32, index: u64, value: u64) {
    // A whole entry, or the byte that several entries share.
    let (at, width) = match order {
        0..=2 => (index as usize / (8 >> order), 1),
        _ => (index as usize * (1 << (order - 3)), 1 << (order - 3)),
    };
    let within = if order <= 2 { index % (8 >> order) } else { 0 };
    put(table.bytes_mut(at..at + width), order, within, value);
}
