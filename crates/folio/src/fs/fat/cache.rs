//! The device with a cache of blocks: tables and directories change a few bytes at a time, and are
//! written in long runs. The data of files passes the cache by.

use crate::base::{Errno, Result};
use crate::block::Device;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const BLOCK_BYTES: u64 = 4096;
/// Blocks in the cache: 16 MiB.
const BLOCKS_MAX: usize = 4096;
/// Blocks that one miss reads.
const READAHEAD_BLOCKS: u64 = 8;
/// Most blocks of one write.
const RUN_BLOCKS_MAX: usize = 1024;

struct CachedBlock {
    bytes: Vec<u8>,
    is_dirty: bool,
}

/// A device, and the blocks of it in memory.
pub(crate) struct BlockCache {
    device: Arc<dyn Device>,
    blocks: BTreeMap<u64, CachedBlock>,
}

impl BlockCache {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            blocks: BTreeMap::new(),
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Reads a part of a table or directory.
    pub(crate) fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.each_part(offset, buf.len(), |block, at, part| {
            buf[part].copy_from_slice(&block.bytes[at]);
        })
    }

    /// Changes a part of a table or directory, on the device at the next [`BlockCache::flush`].
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.each_part(offset, bytes.len(), |block, at, part| {
            block.bytes[at].copy_from_slice(&bytes[part]);
            block.is_dirty = true;
        })
    }

    /// Calls `visit` for each block of a range, with the range in the block and in the caller's.
    fn each_part(
        &mut self,
        offset: u64,
        len: usize,
        mut visit: impl FnMut(&mut CachedBlock, Range<usize>, Range<usize>),
    ) -> Result<()> {
        let end = offset.checked_add(len as u64).ok_or(Errno::IO)?;
        if end > self.device.len_bytes() {
            return Err(Errno::IO.into());
        }
        let mut at = offset;
        while at < end {
            let number = at / BLOCK_BYTES;
            let stop = end.min((number + 1) * BLOCK_BYTES);
            let within = (at % BLOCK_BYTES) as usize;
            let part = (at - offset) as usize..(stop - offset) as usize;
            let block = self.block(number)?;
            visit(block, within..within + part.len(), part);
            at = stop;
        }
        Ok(())
    }

    /// Returns block `number`, and reads it and absent blocks after it.
    fn block(&mut self, number: u64) -> Result<&mut CachedBlock> {
        if !self.blocks.contains_key(&number) {
            self.load(number)?;
        }
        Ok(self.blocks.get_mut(&number).ok_or(Errno::IO)?)
    }

    fn load(&mut self, number: u64) -> Result<()> {
        if self.blocks.len() >= BLOCKS_MAX {
            self.flush()?;
            self.blocks.clear();
        }
        let limit = self.device.len_bytes().div_ceil(BLOCK_BYTES);
        let end = (number + 1..limit.min(number + READAHEAD_BLOCKS))
            .find(|next| self.blocks.contains_key(next))
            .unwrap_or(limit.min(number + READAHEAD_BLOCKS));
        let start = number * BLOCK_BYTES;
        let stop = (end * BLOCK_BYTES).min(self.device.len_bytes());
        let mut bytes = vec![0; stop.saturating_sub(start) as usize];
        self.device.read_at(&mut bytes, start)?;
        for (number, bytes) in (number..end).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let block = CachedBlock {
                bytes: bytes.to_vec(),
                is_dirty: false,
            };
            self.blocks.insert(number, block);
        }
        Ok(())
    }

    /// Calls `visit` for each block in memory that has bytes of a range, with the range in the
    /// block and in the caller's.
    fn each_cached(
        &mut self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(&mut CachedBlock, Range<usize>, Range<usize>),
    ) {
        let end = offset + len;
        let numbers = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        for (number, block) in self.blocks.range_mut(numbers) {
            let start = number * BLOCK_BYTES;
            let (from, to) = (offset.max(start), end.min(start + block.bytes.len() as u64));
            if from < to {
                let at = (from - start) as usize..(to - start) as usize;
                visit(block, at, (from - offset) as usize..(to - offset) as usize);
            }
        }
    }

    /// Reads data from the device; blocks in memory are newer.
    pub(crate) fn read_data(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(buf, offset)?;
        self.each_cached(offset, buf.len() as u64, |block, at, part| {
            buf[part].copy_from_slice(&block.bytes[at]);
        });
        Ok(())
    }

    /// Writes data to the device, and to blocks in memory.
    pub(crate) fn write_data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.device.write_at(bytes, offset)?;
        self.each_cached(offset, bytes.len() as u64, |block, at, part| {
            block.bytes[at].copy_from_slice(&bytes[part]);
        });
        Ok(())
    }

    /// Makes a range read as zeros.
    pub(crate) fn write_zeros(&mut self, offset: u64, len: u64) -> Result<()> {
        self.device.write_zeroes(offset, len)?;
        self.each_cached(offset, len, |block, at, _| block.bytes[at].fill(0));
        Ok(())
    }

    /// Writes all changed blocks, neighbors together. After an error they stay changed.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let dirty = self.blocks.iter().filter(|(_, block)| block.is_dirty);
        let dirty: Vec<u64> = dirty.map(|(number, _)| *number).collect();
        let mut rest = &dirty[..];
        while let [first, ..] = rest {
            let neighbors = rest.iter().zip(*first..);
            let count = neighbors
                .take_while(|(number, next)| *number == next)
                .count();
            let run = &rest[..count.min(RUN_BLOCKS_MAX)];
            rest = &rest[run.len()..];
            let mut bytes = Vec::with_capacity(run.len() * BLOCK_BYTES as usize);
            for block in run.iter().filter_map(|number| self.blocks.get(number)) {
                bytes.extend_from_slice(&block.bytes);
            }
            self.device.write_at(&bytes, first * BLOCK_BYTES)?;
            for number in run {
                self.blocks
                    .entry(*number)
                    .and_modify(|block| block.is_dirty = false);
            }
        }
        Ok(())
    }
}
