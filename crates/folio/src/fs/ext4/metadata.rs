//! Metadata blocks, held in the page cache by one mapping per device.

use crate::base::{PAGE_SIZE, PhysicalBlock, Result};
use crate::block::Device;
use crate::cache::{Mapping, Page, PageReadGuard, PageWriteGuard, Store, Writeback};
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// The device behind the metadata mapping: page `n` is bytes `n * PAGE_SIZE..` of the device.
struct DeviceStore {
    device: Arc<dyn Device>,
}

impl Store for DeviceStore {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let stored = self.device.len_bytes().saturating_sub(offset);
        if stored >= len {
            return self.device.read_vectored_at(bufs, offset);
        }
        // The device ends inside the last page: what lies past it is zeros.
        let mut at = offset;
        for buf in bufs {
            let here = (self.device.len_bytes().saturating_sub(at)).min(buf.len() as u64) as usize;
            self.device.read_at(&mut buf[..here], at)?;
            buf[here..].fill(0);
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        if self.device.len_bytes().saturating_sub(offset) >= len {
            return self.device.write_vectored_at(bufs, offset);
        }
        let mut at = offset;
        for buf in bufs {
            let here = (self.device.len_bytes().saturating_sub(at)).min(buf.len() as u64) as usize;
            self.device.write_at(&buf[..here], at)?;
            at += buf.len() as u64;
        }
        Ok(())
    }
}

/// All metadata blocks of one file system.
pub(super) struct Metadata {
    mapping: Mapping,
    /// Kept here because the mapping holds its store only while pages are dirty.
    _store: Arc<DeviceStore>,
    block_size: usize,
    block_count: u64,
}

impl Metadata {
    pub(super) fn new(
        writeback: &Arc<Writeback>,
        device: Arc<dyn Device>,
        block_size: usize,
        block_count: u64,
    ) -> Self {
        let len = device.len_bytes();
        let store = Arc::new(DeviceStore { device });
        let weak: std::sync::Weak<DeviceStore> = Arc::downgrade(&store);
        let mapping = Mapping::new(writeback, weak, len);
        Self { mapping, _store: store, block_size, block_count }
    }

    /// The block `number`, read if it is not in memory.
    pub(super) fn block(&self, number: PhysicalBlock) -> Result<MetadataBlock> {
        self.pin(number, |page| self.mapping.page(page))
    }

    /// The block `number` zeroed, without reading what was there.
    pub(super) fn new_block(&self, number: PhysicalBlock) -> Result<MetadataBlock> {
        // Smaller blocks share their page with neighbours that must be kept.
        let block = match self.block_size == PAGE_SIZE {
            true => self.pin(number, |page| self.mapping.page_for_overwrite(page))?,
            false => self.block(number)?,
        };
        block.write().fill(0);
        Ok(block)
    }

    /// Forgets blocks that were freed, so that stale bytes are never written over their next use.
    pub(super) fn forget(&self, blocks: Range<u64>) {
        let size = self.block_size as u64;
        self.mapping.punch(blocks.start * size..blocks.end * size);
    }

    /// Brings blocks in ahead of their use.
    pub(super) fn read_ahead(&self, first: PhysicalBlock, count: u64) {
        let size = self.block_size as u64;
        let page = first.0 * size / PAGE_SIZE as u64;
        let end = ((first.0 + count) * size).div_ceil(PAGE_SIZE as u64);
        self.mapping.read_ahead(page, end.saturating_sub(page));
    }

    /// Writes every dirty metadata block to the device.
    pub(super) fn write_back(&self) -> Result<()> {
        self.mapping.write_back(0..u64::MAX)
    }

    fn pin(&self, number: PhysicalBlock, page: impl FnOnce(u64) -> Result<Page>) -> Result<MetadataBlock> {
        if number.0 >= self.block_count {
            let what = format!("block {number} lies beyond the file system's {} blocks", self.block_count);
            return Err(crate::base::Error::corrupt(what));
        }
        let offset = number.0 * self.block_size as u64;
        let start = (offset % PAGE_SIZE as u64) as usize;
        Ok(MetadataBlock { page: page(offset / PAGE_SIZE as u64)?, start, len: self.block_size, number })
    }
}

/// A metadata block pinned in the page cache, `block_size` bytes long.
#[derive(Clone)]
pub(super) struct MetadataBlock {
    page: Page,
    start: usize,
    len: usize,
    number: PhysicalBlock,
}

impl MetadataBlock {
    /// A block of `len` bytes at `start` within `page`; for tests of code that works on blocks.
    #[cfg(test)]
    pub(super) fn from_page(page: Page, start: usize, len: usize, number: PhysicalBlock) -> Self {
        Self { page, start, len, number }
    }

    /// Where on the device the block lies.
    pub(super) fn number(&self) -> PhysicalBlock {
        self.number
    }

    /// The bytes, shared with other readers. Never hold two guards at once: neighbours may share a page.
    pub(super) fn read(&self) -> BlockReadGuard<'_> {
        BlockReadGuard { guard: self.page.read(), start: self.start, len: self.len }
    }

    /// The bytes, exclusively; dirty from now on. Never hold two guards at once: neighbours may share a page.
    pub(super) fn write(&self) -> BlockWriteGuard<'_> {
        BlockWriteGuard { guard: self.page.write(), start: self.start, len: self.len }
    }
}

/// Shared access to a block's bytes.
pub(super) struct BlockReadGuard<'a> {
    guard: PageReadGuard<'a>,
    start: usize,
    len: usize,
}

impl Deref for BlockReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.guard[self.start..self.start + self.len]
    }
}

/// Exclusive access to a block's bytes.
pub(super) struct BlockWriteGuard<'a> {
    guard: PageWriteGuard<'a>,
    start: usize,
    len: usize,
}

impl Deref for BlockWriteGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.guard[self.start..self.start + self.len]
    }
}

impl DerefMut for BlockWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.guard[self.start..self.start + self.len]
    }
}
