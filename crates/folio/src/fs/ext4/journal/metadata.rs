//! Metadata blocks in the page cache, one mapping per file system. With a journal, dirty blocks go
//! into the transaction that is being closed instead of to the device.

use super::Snapshots;
use crate::base::{Error, PAGE_SIZE, PhysicalBlock, Result};
use crate::block::Device;
use crate::cache::{Mapping, Page, PageReadGuard, PageWriteGuard, Store, Writeback};
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, OnceLock};

/// The store of the metadata mapping. Page `n` of the mapping holds block `n` of the device in its
/// first `block_size` bytes, so that a page never holds an adjacent block of a file. A block larger
/// than a page is in several; such file systems are only read.
struct DeviceStore {
    device: Arc<dyn Device>,
    block_size: usize,
    /// Copies of blocks in the journal that are not yet checkpointed.
    snapshots: OnceLock<Arc<Snapshots>>,
}

impl DeviceStore {
    fn device_offset(&self, offset: u64) -> u64 {
        offset / PAGE_SIZE as u64 * self.page_len() as u64
    }

    /// Returns the bytes of the device that a page holds.
    fn page_len(&self) -> usize {
        self.block_size.min(PAGE_SIZE)
    }

    fn read_device(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let at = self.device_offset(offset);
        if self.page_len() == PAGE_SIZE {
            return self.device.read_vectored_at(bufs, at);
        }
        let mut blocks: SmallVec<[IoSliceMut<'_>; 16]> = bufs
            .iter_mut()
            .flat_map(|buf| buf.chunks_mut(PAGE_SIZE))
            .map(|page| IoSliceMut::new(&mut page[..self.block_size]))
            .collect();
        self.device.read_vectored_at(&mut blocks, at)
    }
}

impl Store for DeviceStore {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let first = offset / PAGE_SIZE as u64;
        let count = (bufs.iter().map(|buf| buf.len()).sum::<usize>() / PAGE_SIZE) as u64;
        // Before the device read: a block checkpointed in between has the same bytes.
        let newer = self
            .snapshots
            .get()
            .map(|snapshots| snapshots.newest(first..first + count));
        self.read_device(offset, bufs)?;
        let mut pages = bufs
            .iter_mut()
            .flat_map(|buf| buf.chunks_mut(PAGE_SIZE))
            .zip(first..);
        for (number, bytes) in newer.unwrap_or_default() {
            if let Some((page, _)) = pages.find(|(_, at)| *at == number) {
                page[..self.block_size].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        if let Some(snapshots) = self.snapshots.get() {
            let pages = bufs
                .iter()
                .flat_map(|buf| buf.chunks(PAGE_SIZE))
                .zip(offset / PAGE_SIZE as u64..);
            for (page, number) in pages {
                snapshots.insert(number, page[..self.block_size].into());
            }
            return Ok(());
        }
        let at = self.device_offset(offset);
        if self.page_len() == PAGE_SIZE {
            return self.device.write_vectored_at(bufs, at);
        }
        let blocks: SmallVec<[IoSlice<'_>; 16]> = bufs
            .iter()
            .flat_map(|buf| buf.chunks(PAGE_SIZE))
            .map(|page| IoSlice::new(&page[..self.block_size]))
            .collect();
        self.device.write_vectored_at(&blocks, at)
    }
}

/// All metadata blocks of one file system.
pub(crate) struct Metadata {
    mapping: Mapping,
    /// Owned here, because the mapping holds its store only while pages are dirty.
    store: Arc<DeviceStore>,
    block_size: usize,
    block_count: u64,
}

impl Metadata {
    /// Creates the mapping of the `block_count` blocks of `device`, each `block_size` bytes.
    pub(crate) fn new(
        writeback: &Arc<Writeback>,
        device: Arc<dyn Device>,
        block_size: usize,
        block_count: u64,
    ) -> Self {
        let store = Arc::new(DeviceStore {
            device,
            block_size,
            snapshots: OnceLock::new(),
        });
        let weak: std::sync::Weak<DeviceStore> = Arc::downgrade(&store);
        let mapping = Mapping::new(
            writeback,
            weak,
            block_count.saturating_mul(block_size.max(PAGE_SIZE) as u64),
        );
        Self {
            mapping,
            store,
            block_size,
            block_count,
        }
    }

    /// Returns block `number`; reads it from the device on a cache miss.
    pub(crate) fn block(&self, number: PhysicalBlock) -> Result<MetadataBlock> {
        self.check(number)?;
        let bytes = if self.block_size > PAGE_SIZE {
            self.large_block(number).map(BlockBytes::Large)
        } else {
            self.mapping.page(number.0).map(BlockBytes::Page)
        };
        Ok(MetadataBlock {
            bytes: bytes.map_err(|e| e.at(format!("block {number}")))?,
            len: self.block_size,
        })
    }

    /// Returns a copy of a block larger than a page.
    fn large_block(&self, number: PhysicalBlock) -> Result<Arc<[u8]>> {
        let mut bytes = vec![0; self.block_size];
        let start = number.0 * self.block_size as u64;
        let mut done = 0;
        while done < bytes.len() {
            match self.mapping.read(start + done as u64, &mut bytes[done..])? {
                0 => return Err(Error::corrupt("past the end of the device")),
                count => done += count,
            }
        }
        Ok(bytes.into())
    }

    /// Returns block `number`, zeroed without reading the device.
    ///
    /// # Errors
    /// EOPNOTSUPP for blocks larger than a page.
    pub(crate) fn new_block(&self, number: PhysicalBlock) -> Result<MetadataBlock> {
        self.check(number)?;
        if self.block_size > PAGE_SIZE {
            return Err(Error::unsupported("writing blocks larger than a page"));
        }
        let page = self.mapping.page_for_overwrite(number.0)?;
        let block = MetadataBlock {
            bytes: BlockBytes::Page(page),
            len: self.block_size,
        };
        block.write().fill(0);
        Ok(block)
    }

    /// Drops freed blocks from the cache, so that stale bytes never overwrite their next use.
    pub(crate) fn forget(&self, blocks: Range<u64>) {
        self.mapping
            .punch(blocks.start * PAGE_SIZE as u64..blocks.end * PAGE_SIZE as u64);
    }

    /// Drops all blocks at unmount. Blocks that are still dirty could not be written.
    pub(crate) fn forget_all(&self) {
        self.mapping.punch(0..u64::MAX);
        // Removes the mapping from the list of dirty mappings.
        let _ = self.mapping.write_back(0..0);
    }

    /// Throttles a change while too many blocks are dirty: writes them back, and fails if too many
    /// stay dirty.
    pub(crate) fn throttle(&self) -> Result<()> {
        self.mapping.throttle()
    }

    /// Redirects dirty blocks to `snapshots`; only [`Metadata::write_back`] writes them from now
    /// on.
    pub(crate) fn use_journal(&self, snapshots: Arc<Snapshots>) {
        // Called once, at mount.
        let _ = self.store.snapshots.set(snapshots);
    }

    /// Returns the number of dirty blocks.
    pub(crate) fn dirty_len(&self) -> u64 {
        self.mapping.dirty_pages()
    }

    /// Writes all dirty metadata blocks to the device, or into the transaction that is being
    /// closed.
    pub(crate) fn write_back(&self) -> Result<()> {
        self.mapping.write_back(0..u64::MAX)
    }

    fn check(&self, number: PhysicalBlock) -> Result<()> {
        if number.0 >= self.block_count {
            let what = format!(
                "block {number} is beyond the file system's {} blocks",
                self.block_count
            );
            return Err(Error::corrupt(what));
        }
        Ok(())
    }
}

/// A metadata block of `block_size` bytes, pinned in the page cache.
#[derive(Clone)]
pub(crate) struct MetadataBlock {
    bytes: BlockBytes,
    len: usize,
}

#[derive(Clone)]
enum BlockBytes {
    Page(Page),
    /// A copy of a block larger than a page, only to read.
    Large(Arc<[u8]>),
}

impl MetadataBlock {
    /// Returns a block of `len` bytes in `page`, for tests.
    #[cfg(test)]
    pub(crate) fn from_page(page: Page, len: usize) -> Self {
        let bytes = BlockBytes::Page(page);
        Self { bytes, len }
    }

    /// Locks the bytes for reading, shared with other readers.
    pub(crate) fn read(&self) -> BlockReadGuard<'_> {
        match &self.bytes {
            BlockBytes::Page(page) => BlockReadGuard::Page(page.read(), self.len),
            BlockBytes::Large(bytes) => BlockReadGuard::Large(bytes),
        }
    }

    /// Locks the bytes for writing and marks the block dirty. A change of a block larger than a
    /// page is lost: no mount for writing has such blocks.
    pub(crate) fn write(&self) -> BlockWriteGuard<'_> {
        match &self.bytes {
            BlockBytes::Page(page) => BlockWriteGuard::Page(page.write(), self.len),
            BlockBytes::Large(bytes) => BlockWriteGuard::Large(bytes.to_vec()),
        }
    }
}

/// Shared access to a block's bytes.
pub(crate) enum BlockReadGuard<'a> {
    Page(PageReadGuard<'a>, usize),
    Large(&'a [u8]),
}

impl Deref for BlockReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Page(guard, len) => &guard[..*len],
            Self::Large(bytes) => bytes,
        }
    }
}

/// Exclusive access to a block's bytes.
pub(crate) enum BlockWriteGuard<'a> {
    Page(PageWriteGuard<'a>, usize),
    Large(Vec<u8>),
}

impl Deref for BlockWriteGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Page(guard, len) => &guard[..*len],
            Self::Large(bytes) => bytes,
        }
    }
}

impl DerefMut for BlockWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Page(guard, len) => &mut guard[..*len],
            Self::Large(bytes) => bytes,
        }
    }
}
