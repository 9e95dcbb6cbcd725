//! Refcounts as the file has them, read and changed in place.

use super::super::super::image_file::ImageFile;
use super::super::refcount;
use super::super::roots::Roots;
use super::super::table::numbers;
use super::count::OFFSET_MASK;
use crate::base::{Errno, Error, Result};
use foldhash::HashMap;
use std::io::{IoSlice, IoSliceMut};

/// Memory for blocks.
const BLOCKS_BYTES_MAX: usize = 32 << 20;

/// The refcount table, and blocks looked at of late. What is changed is in the file after
/// [`RefcountFile::sync`].
pub(in super::super) struct RefcountFile<'a> {
    file: &'a dyn ImageFile,
    cluster_bits: u32,
    order: u32,
    max: u64,
    /// Offsets of blocks; zero where there is none, or none that can be used.
    table: Vec<u64>,
    blocks: HashMap<u64, Block>,
}

struct Block {
    at: u64,
    bytes: Vec<u8>,
    is_dirty: bool,
}

impl<'a> RefcountFile<'a> {
    /// Reads the table. One that is damaged counts as empty, a block that is as not there:
    /// [`super::count`] tells why.
    pub(in super::super) fn read(file: &'a dyn ImageFile, roots: &Roots) -> Result<Self> {
        let region = roots.refcount_table;
        let mut table = Vec::new();
        if region.at != 0 && region.at.is_multiple_of(roots.cluster_bytes()) {
            // At most 8 MiB, checked with the header.
            let mut bytes = vec![0; region.len_bytes as usize];
            file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], region.at)?;
            let file_bytes = file.len_bytes()?;
            let is_good = |at: u64| at.is_multiple_of(roots.cluster_bytes()) && at < file_bytes;
            table = numbers(&bytes)
                .map(|at| {
                    if is_good(at & OFFSET_MASK) {
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

    /// The first cluster that no table entry reaches.
    pub(in super::super) fn end(&self) -> u64 {
        (self.table.len() as u64) << self.block_bits()
    }

    /// Clusters that a block describes, as a power of two.
    pub(in super::super) fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.order
    }

    /// The first cluster behind this one that another block describes.
    pub(in super::super) fn block_end(&self, cluster: u64) -> u64 {
        (cluster | ((1 << self.block_bits()) - 1)) + 1
    }

    /// Whether there is a block for this cluster.
    pub(in super::super) fn has_block(&self, cluster: u64) -> bool {
        self.block_at(cluster) != 0
    }

    /// The refcount of a cluster; zero where there is no block.
    pub(in super::super) fn get(&mut self, cluster: u64) -> Result<u64> {
        let (order, index) = (self.order, cluster & ((1 << self.block_bits()) - 1));
        Ok(self
            .block(cluster)?
            .map_or(0, |block| refcount::get(&block.bytes, order, index)))
    }

    /// The first cluster from `cluster` on, inside the file, whose refcount is not zero.
    pub(in super::super) fn next_counting(&mut self, mut cluster: u64) -> Result<Option<u64>> {
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

    /// Sets the refcount of a cluster. Errors: EFBIG if it does not fit in its bits, or there is no
    /// block for it.
    pub(in super::super) fn set(&mut self, cluster: u64, value: u64) -> Result<()> {
        if value > self.max {
            let what = format!(
                "a refcount of {value} does not fit in {} bits",
                1u32 << self.order
            );
            return Err(Error::new(Errno::FBIG, what));
        }
        let (order, index) = (self.order, cluster & ((1 << self.block_bits()) - 1));
        let Some(block) = self.block(cluster)? else {
            return Err(Error::new(Errno::FBIG, "there is no refcount block for it"));
        };
        refcount::put(&mut block.bytes, order, index, value);
        block.is_dirty = true;
        Ok(())
    }

    /// Makes everything set so far durable.
    pub(in super::super) fn sync(&mut self) -> Result<()> {
        self.write_blocks()?;
        self.file.sync_data()
    }

    fn block_at(&self, cluster: u64) -> u64 {
        self.table
            .get((cluster >> self.block_bits()) as usize)
            .copied()
            .unwrap_or_default()
    }

    fn block(&mut self, cluster: u64) -> Result<Option<&mut Block>> {
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
                Block {
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
