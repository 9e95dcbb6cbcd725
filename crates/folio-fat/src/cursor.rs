//! A device as `std::io` has it. `fatfs` reads and writes a few bytes at a time, so that blocks are
//! cached here, and written in long runs.

use folio::Error;
use folio::block::Device;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::rc::Rc;
use std::sync::Arc;

const BLOCK_BYTES: usize = 4096;
/// Blocks in the cache: 16 MiB.
const BLOCKS_MAX: usize = 4096;
/// Blocks that one miss reads.
const READAHEAD_BLOCKS: u64 = 8;

/// A directory entry, and its fields.
const ENTRY_BYTES: usize = 32;
const ATTRIBUTES_AT: usize = 11;
/// The halves of the number of the first cluster.
const CLUSTER_FIELDS: [usize; 2] = [20, 26];
/// Attributes of an entry that is a part of a long name.
const LONG_NAME: u8 = 0x0f;
/// First byte of an unused entry.
const DELETED: u8 = 0xe5;
const DOT: &[u8] = b".          ";
const DOT_DOT: &[u8] = b"..         ";
const SECTOR_BYTES: usize = 512;

struct CachedBlock {
    bytes: Vec<u8>,
    is_dirty: bool,
}

/// The device, and the blocks in the cache.
pub(crate) struct BlockCache {
    device: Arc<dyn Device>,
    blocks: BTreeMap<u64, CachedBlock>,
}

/// A position on a device.
pub(crate) struct DeviceCursor {
    cache: Rc<RefCell<BlockCache>>,
    at: u64,
}

impl DeviceCursor {
    pub(crate) fn new(cache: &Rc<RefCell<BlockCache>>) -> Self {
        Self {
            cache: cache.clone(),
            at: 0,
        }
    }
}

impl BlockCache {
    pub(crate) fn new(device: Arc<dyn Device>) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            device,
            blocks: BTreeMap::new(),
        }))
    }

    /// Returns the part of block `number` that is on the device.
    fn block_len(&self, number: u64) -> usize {
        let left = self
            .device
            .len_bytes()
            .saturating_sub(number * BLOCK_BYTES as u64);
        left.min(BLOCK_BYTES as u64) as usize
    }

    /// Reads block `number`, and absent blocks after it, into the cache.
    fn load(&mut self, number: u64) -> io::Result<()> {
        if self.blocks.contains_key(&number) {
            return Ok(());
        }
        if self.blocks.len() >= BLOCKS_MAX {
            self.write_back()?;
            self.blocks.clear();
        }
        let end = (number + 1..number + READAHEAD_BLOCKS)
            .find(|next| self.blocks.contains_key(next) || self.block_len(*next) == 0)
            .unwrap_or(number + READAHEAD_BLOCKS);
        let len: usize = (number..end).map(|number| self.block_len(number)).sum();
        let mut bytes = vec![0; len];
        let read = self.device.read_at(&mut bytes, number * BLOCK_BYTES as u64);
        read.map_err(io::Error::other)?;
        for (number, bytes) in (number..end).zip(bytes.chunks(BLOCK_BYTES)) {
            let block = CachedBlock {
                bytes: bytes.to_vec(),
                is_dirty: false,
            };
            self.blocks.insert(number, block);
        }
        Ok(())
    }

    /// Writes all dirty blocks, neighbors together.
    pub(crate) fn write_back(&mut self) -> io::Result<()> {
        let mut run: Vec<u8> = Vec::new();
        let mut start = 0;
        let write = |start: u64, run: &mut Vec<u8>| {
            let offset = start * BLOCK_BYTES as u64;
            let written = if run.is_empty() {
                Ok(())
            } else {
                self.device.write_at(run, offset)
            };
            run.clear();
            written.map_err(io::Error::other)
        };
        let mut next = 0;
        for (number, block) in self.blocks.iter_mut().filter(|(_, block)| block.is_dirty) {
            if *number != next || run.len() >= BLOCKS_MAX / 4 * BLOCK_BYTES {
                write(start, &mut run)?;
                start = *number;
            }
            run.extend_from_slice(&block.bytes);
            block.is_dirty = false;
            next = number + 1;
        }
        write(start, &mut run)
    }
}

impl BlockCache {
    /// Corrects the entries `.` and `..` of a directory that `fatfs` has just created: its version
    /// 0.3 adds long names to them, which other systems reject. Only blocks that changed since the
    /// last write-back are examined. `is_in_root`: the entry `..` has cluster 0, which is the root.
    pub(crate) fn repair_dot_entries(&mut self, is_in_root: bool) {
        for block in self.blocks.values_mut().filter(|block| block.is_dirty) {
            for sector in block.bytes.chunks_exact_mut(SECTOR_BYTES) {
                let is_long = |at: usize| sector[at + ATTRIBUTES_AT] == LONG_NAME;
                let has_long_dots = is_long(0)
                    && sector[ENTRY_BYTES..].starts_with(DOT)
                    && is_long(2 * ENTRY_BYTES)
                    && sector[3 * ENTRY_BYTES..].starts_with(DOT_DOT);
                if has_long_dots {
                    sector.copy_within(ENTRY_BYTES..2 * ENTRY_BYTES, 0);
                    sector.copy_within(3 * ENTRY_BYTES..4 * ENTRY_BYTES, ENTRY_BYTES);
                    sector[2 * ENTRY_BYTES..4 * ENTRY_BYTES].fill(0);
                    sector[2 * ENTRY_BYTES] = DELETED;
                    sector[3 * ENTRY_BYTES] = DELETED;
                    if is_in_root {
                        for field in CLUSTER_FIELDS {
                            sector[ENTRY_BYTES..][field..field + 2].fill(0);
                        }
                    }
                }
            }
        }
    }
}

impl Read for DeviceCursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (number, at) = place(self.at);
        let mut cache = self.cache.borrow_mut();
        let count = buf.len().min(cache.block_len(number).saturating_sub(at));
        if count > 0 {
            cache.load(number)?;
            if let Some(block) = cache.blocks.get(&number) {
                buf[..count].copy_from_slice(&block.bytes[at..at + count]);
            }
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for DeviceCursor {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut cache = self.cache.borrow_mut();
        if cache.device.is_read_only() {
            return Err(io::Error::other(Error::from(folio::Errno::ROFS)));
        }
        let (number, at) = place(self.at);
        let count = buf.len().min(cache.block_len(number).saturating_sub(at));
        if count > 0 {
            cache.load(number)?;
            if let Some(block) = cache.blocks.get_mut(&number) {
                block.bytes[at..at + count].copy_from_slice(&buf[..count]);
                block.is_dirty = true;
            }
        }
        self.at += count as u64;
        Ok(count)
    }

    /// Does nothing: `fatfs` flushes after each file, and a sync writes the cache back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for DeviceCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self
                .cache
                .borrow()
                .device
                .len_bytes()
                .checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

fn place(at: u64) -> (u64, usize) {
    (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize)
}
