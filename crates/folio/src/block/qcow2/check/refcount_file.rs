//! The refcounts in the file, read and changed in place.

use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::refcount_block;
use crate::block::qcow2::layout::roots::Roots;
use crate::block::qcow2::layout::table::{OFFSET_MASK, numbers};
use foldhash::HashMap;
use std::io::{IoSlice, IoSliceMut};

/// Memory for blocks, in bytes.
const BLOCKS_BYTES_MAX: usize = 32 << 20;

/// The refcount table, and the blocks read last. Changes reach the file with
/// [`RefcountFile::sync`].
pub(crate) struct RefcountFile<'a> {
    file: &'a dyn ImageFile,
    cluster_bits: u32,
    order: u32,
    max: u64,
    /// Offsets of blocks; zero for a missing or unusable one.
    table: Vec<u64>,
    blocks: HashMap<u64, RefcountBlock>,
}

struct RefcountBlock {
    at: u64,
    bytes: Vec<u8>,
    is_dirty: bool,
}

impl<'a> RefcountFile<'a> {
    /// Reads the table. A damaged table counts as empty, a damaged block as missing;
    /// [`super::count`] reports both.
    pub(crate) fn read(file: &'a dyn ImageFile, roots: &Roots) -> Result<Self> {
        let region = roots.refcount_table;
        let mut table = Vec::new();
        if region.at != 0 && region.at.is_multiple_of(roots.cluster_bytes()) {
            // At most 8 MiB, checked with the header.
            let mut bytes = vec![0; region.len_bytes as usize];
            file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], region.at)?;
            let file_bytes = file.len_bytes()?;
            let is_valid = |at: u64| at.is_multiple_of(roots.cluster_bytes()) && at < file_bytes;
            table = numbers(&bytes)
                .map(|at| {
                    if is_valid(at & OFFSET_MASK) {
                        at & OFFSET_MASK
                    } else {
                        0
                    }
                })
                .collect();
        }
        Ok(Self {
            file,
            cluster_bits: roots.cluster_bits,
            order: roots.refcount_order,
            max: roots.refcount_max(),
            table,
            blocks: HashMap::default(),
        })
    }

    /// Returns the first cluster beyond the table's last entry.
    pub(crate) fn end(&self) -> u64 {
        (self.table.len() as u64) << self.block_bits()
    }

    /// Returns the number of clusters that a block describes, as a power of two.
    pub(crate) fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.order
    }

    /// Returns the first cluster after this one that another block describes.
    pub(crate) fn block_end(&self, cluster: u64) -> u64 {
        (cluster | ((1 << self.block_bits()) - 1)) + 1
    }

    /// Whether a block describes this cluster.
    pub(crate) fn has_block(&self, cluster: u64) -> bool {
        self.block_at(cluster) != 0
    }

    /// Returns the refcount of a cluster; zero without a block.
    pub(crate) fn get(&mut self, cluster: u64) -> Result<u64> {
        let (order, index) = (self.order, cluster & ((1 << self.block_bits()) - 1));
        Ok(self
            .block(cluster)?
            .map_or(0, |block| refcount_block::get(&block.bytes, order, index)))
    }

    /// Returns the first cluster from `cluster` on, inside the file, whose refcount is not zero.
    pub(crate) fn next_in_use(&mut self, mut cluster: u64) -> Result<Option<u64>> {
        let end = self
            .end()
            .min(self.file.len_bytes()?.div_ceil(1 << self.cluster_bits));
        while cluster < end {
            if !self.has_block(cluster) {
                cluster = self.block_end(cluster);
            } else if self.get(cluster)? > 0 {
                return Ok(Some(cluster));
            } else {
                cluster += 1;
            }
        }
        Ok(None)
    }

    /// Sets the refcount of a cluster.
    ///
    /// # Errors
    ///
    /// EFBIG if the value does not fit in its bits, or no block describes the cluster.
    pub(crate) fn set(&mut self, cluster: u64, value: u64) -> Result<()> {
        if value > self.max {
            let what = format!(
                "a refcount of {value} does not fit in {} bits",
                1u32 << self.order
            );
            return Err(Error::new(Errno::FBIG, what));
        }
        let (order, index) = (self.order, cluster & ((1 << self.block_bits()) - 1));
        let Some(block) = self.block(cluster)? else {
            return Err(Error::new(
                Errno::FBIG,
                "no refcount block describes the cluster",
            ));
        };
        refcount_block::put(&mut block.bytes, order, index, value);
        block.is_dirty = true;
        Ok(())
    }

    /// Makes all changes so far durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.write_blocks()?;
        self.file.sync_data()
    }

    fn block_at(&self, cluster: u64) -> u64 {
        self.table
            .get((cluster >> self.block_bits()) as usize)
            .copied()
            .unwrap_or_default()
    }

    fn block(&mut self, cluster: u64) -> Result<Option<&mut RefcountBlock>> {
        let (index, at) = (cluster >> self.block_bits(), self.block_at(cluster));
        if at == 0 {
            return Ok(None);
        }
        if !self.blocks.contains_key(&index) {
            if self.blocks.len() >= (BLOCKS_BYTES_MAX >> self.cluster_bits).max(4) {
                self.write_blocks()?;
                self.blocks.clear();
            }
            let mut bytes = vec![0; 1 << self.cluster_bits];
            self.file
                .read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], at)?;
            self.blocks.insert(
                index,
                RefcountBlock {
                    at,
                    bytes,
                    is_dirty: false,
                },
            );
        }
        Ok(self.blocks.get_mut(&index))
    }

    fn write_blocks(&mut self) -> Result<()> {
        for block in self.blocks.values_mut().filter(|block| block.is_dirty) {
            self.file.write(&[IoSlice::new(&block.bytes)], block.at)?;
            block.is_dirty = false;
        }
        Ok(())
    }
}
