//! Refcounts: which clusters of the file are in use, and the choice of free ones.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Host cluster management"). A refcount block that does not
//! exist yet is put at the first cluster it describes, and so describes itself.

use super::super::image_file::ImageFile;
use super::header::{Header, REFCOUNT_TABLE_BYTES_MAX};
use super::table::{TableCache, numbers, read_table};
use crate::base::{Errno, Error, Result};

/// Memory for refcount blocks.
const BLOCKS_BYTES_MAX: usize = 32 << 20;

/// Clusters that were chosen: free until now, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allocated {
    /// Offset of the first in the file.
    pub(super) host: u64,
    /// How many.
    pub(super) count: u64,
    /// Nothing was ever written there: they read as zeros.
    pub(super) is_fresh: bool,
}

/// The refcount table and its blocks.
pub(super) struct Refcounts {
    cluster_bits: u32,
    order: u32,
    /// Offsets of the blocks; zero for one that does not exist.
    pub(super) table: Vec<u64>,
    /// Where the table lies, or will when it is written.
    pub(super) table_at: u64,
    pub(super) table_clusters: u64,
    /// The table differs from the file's.
    pub(super) is_table_dirty: bool,
    /// The table grew and its new place is not in the header yet.
    pub(super) is_table_moved: bool,
    pub(super) blocks: TableCache,
    /// Clusters of tables given up for larger ones: first and count.
    pub(super) retired: Vec<(u64, u64)>,
    /// No cluster below is free.
    first_free: u64,
    /// End of the file's last cluster, or of what was chosen beyond it.
    pub(super) host_end: u64,
    /// Clusters of the metadata that was there at the open, in order. A refcount that calls one of
    /// these free is wrong.
    fences: Vec<u64>,
}

impl Refcounts {
    /// Reads the table; `fences` are the clusters that hold metadata besides the table and its
    /// blocks. No cluster may be two of them, if the file may be written.
    pub(super) fn read(file: &dyn ImageFile, header: &Header, fences: Vec<u64>) -> Result<Self> {
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
            blocks: TableCache::new(1 << header.cluster_bits, BLOCKS_BYTES_MAX),
            retired: Vec::new(),
            first_free: 0,
            // The file may end inside its last cluster, which is written beyond that without being
            // chosen.
            host_end: file.len_bytes()?.next_multiple_of(1 << header.cluster_bits),
            fences,
        };
        let first = at >> header.cluster_bits;
        this.fences
            .extend(first..first + header.refcount_table_clusters);
        this.fences.extend(
            this.table
                .iter()
                .filter(|at| **at != 0)
                .map(|at| at >> header.cluster_bits),
        );
        this.fences.sort_unstable();
        let shared = this.fences.windows(2).find(|pair| pair[0] == pair[1]);
        if let (Some(pair), false) = (shared, file.is_read_only()) {
            // One block that a million entries name would also be searched a million times.
            let host = pair[0] << header.cluster_bits;
            return Err(Error::corrupt(format!(
                "the cluster at {host:#x} holds two tables"
            )));
        }
        Ok(this)
    }

    /// Finds up to `count_max` free clusters in a row and takes them.
    pub(super) fn allocate(&mut self, file: &dyn ImageFile, count_max: u64) -> Result<Allocated> {
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
            self.check_free(first, count)?;
            self.set_run(file, first, count)?;
            self.first_free = first + count;
            return Ok(self.taken(first, count));
        }
    }

    /// Adds a reference to a cluster that is in use; EFBIG if it cannot have more.
    pub(super) fn share(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<()> {
        if self.is_full(file, cluster)? {
            return Err(Error::new(
                Errno::FBIG,
                "a cluster has as many references as its refcount can tell",
            ));
        }
        let (order, index) = (self.order, cluster & (self.block_entries() - 1));
        let table = self.block(file, cluster >> self.block_bits())?;
        let refcount = get(table.bytes(), order, index);
        set(table, order, index, refcount + 1);
        Ok(())
    }

    /// Whether a cluster has as many references as its refcount can tell.
    pub(super) fn is_full(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<bool> {
        let (order, index) = (self.order, cluster & (self.block_entries() - 1));
        let table = self.block(file, cluster >> self.block_bits())?;
        Ok(get(table.bytes(), order, index) == u64::MAX >> (64 - (1u32 << order)))
    }

    /// Takes one reference from each of `count` clusters; those that nobody uses any more go to
    /// `unused`.
    pub(super) fn release(
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
                if let Ok(fence) = self.fences.binary_search(&cluster) {
                    self.fences.remove(fence);
                }
                unused.push(cluster);
            }
        }
        Ok(())
    }

    /// The table as bytes of the file.
    pub(super) fn table_bytes(&self) -> Vec<u8> {
        self.table.iter().flat_map(|at| at.to_be_bytes()).collect()
    }

    fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.order
    }

    fn block_entries(&self) -> u64 {
        1 << self.block_bits()
    }

    fn taken(&mut self, first: u64, count: u64) -> Allocated {
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

    /// The block, from memory or the file.
    fn block(&mut self, file: &dyn ImageFile, block: u64) -> Result<&mut super::table::Table> {
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

    /// Makes the block for a range that has none; growing the table if it must.
    fn add_block(&mut self, file: &dyn ImageFile, block: u64) -> Result<()> {
        if block >= self.table.len() as u64 {
            return self.grow_table(file, block);
        }
        let cluster = block << self.block_bits();
        self.check_free(cluster, 1)?;
        self.put_block(block, cluster);
        self.set_run(file, cluster, 1)?;
        self.taken(cluster, 1);
        Ok(())
    }

    fn put_block(&mut self, block: u64, cluster: u64) {
        let at = cluster << self.cluster_bits;
        self.blocks.insert_new(block, at, 1 << self.cluster_bits);
        self.table[block as usize] = at;
        self.is_table_dirty = true;
    }

    /// Makes the table half as large again and moves it to the end, behind the blocks that describe
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
        self.taken(start, blocks + clusters);
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

    /// A cluster called free must not be one that holds metadata, nor lie where no offset reaches.
    fn check_free(&self, first: u64, count: u64) -> Result<()> {
        if (first + count) >> (56 - self.cluster_bits) != 0 {
            return Err(Error::new(Errno::FBIG, "the file cannot grow further"));
        }
        let next = self.fences.partition_point(|fence| *fence < first);
        match self.fences.get(next) {
            Some(fence) if *fence < first + count => {
                let at = fence << self.cluster_bits;
                Err(Error::corrupt(format!(
                    "the cluster at {at:#x} counts as free but holds metadata"
                )))
            }
            _ => Ok(()),
        }
    }
}

fn underflow(host: u64) -> Error {
    Error::corrupt(format!(
        "the cluster at {host:#x} is used and counts as free"
    ))
}

/// Entry `index` of a block whose entries have `1 << order` bits.
pub(super) fn get(bytes: &[u8], order: u32, index: u64) -> u64 {
    let index = index as usize;
    match order {
        0..=2 => {
            let per_byte = 8 >> order;
            let shift = (index % per_byte) << order;
            u64::from(bytes[index / per_byte] >> shift) & ((1 << (1 << order)) - 1)
        }
        _ => {
            let width = 1 << (order - 3);
            bytes[index * width..(index + 1) * width]
                .iter()
                .fold(0, |value, byte| (value << 8) | u64::from(*byte))
        }
    }
}

fn set(table: &mut super::table::Table, order: u32, index: u64, value: u64) {
    // Whole entries, or the byte that several share.
    let (at, width) = match order {
        0..=2 => (index as usize / (8 >> order), 1),
        _ => (index as usize * (1 << (order - 3)), 1 << (order - 3)),
    };
    let within = if order <= 2 { index % (8 >> order) } else { 0 };
    put(table.bytes_mut(at..at + width), order, within, value);
}

/// Sets entry `index` of a block whose entries have `1 << order` bits.
pub(super) fn put(bytes: &mut [u8], order: u32, index: u64, value: u64) {
    let index = index as usize;
    match order {
        0..=2 => {
            let per_byte = 8 >> order;
            let shift = (index % per_byte) << order;
            let mask = (((1u16 << (1 << order)) - 1) as u8) << shift;
            let byte = &mut bytes[index / per_byte];
            *byte = (*byte & !mask) | ((value as u8) << shift);
        }
        _ => {
            let width = 1 << (order - 3);
            bytes[index * width..(index + 1) * width]
                .copy_from_slice(&value.to_be_bytes()[8 - width..]);
        }
    }
}
