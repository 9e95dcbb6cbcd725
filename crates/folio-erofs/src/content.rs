//! The content of one file: whole blocks go to the image as they come, the rest waits for the
//! inode.
//!
//! ```text
//!   no holes      start_block .. | tail          the tail is behind the inode, or one more block
//!   holes         chunk, hole, chunk, ...        a list of blocks is behind the inode
//! ```

use crate::duplicates::{Duplicates, hash_after};
use crate::format::{BLOCK_BYTES, HOLE};
use crate::output::BlockOutput;
use folio::base::InodeNumber;
use folio::{Errno, Error, Result};

/// The largest number of chunks of a file with holes: larger files have larger chunks.
const CHUNKS_MAX: u64 = 1 << 16;
/// The largest `chunk_bits` that an inode can hold. Linux: `EROFS_CHUNK_FORMAT_BLKBITS_MASK`.
const CHUNK_BITS_MAX: u32 = 31;
/// The largest tail behind an inode, so that there is room for most extended attributes too.
pub(crate) const TAIL_MAX: usize = BLOCK_BYTES - 320;

pub(crate) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The content of a regular file.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) size_bytes: u64,
    pub(crate) data: Data,
}

/// Where the data of a file are.
#[derive(Debug)]
pub(crate) enum Data {
    /// Consecutive blocks, and what follows them.
    Flat { start_block: u32, tail: Vec<u8> },
    /// Chunks of `1 << chunk_bits` blocks, some of them holes.
    Chunks { chunk_bits: u32, blocks: Vec<u32> },
    /// Pieces that are compressed or not, each in consecutive blocks.
    Compressed {
        start_block: u32,
        block_count: u32,
        /// The blocks of each piece; 0 for one that is not compressed.
        pieces: Vec<u16>,
    },
}

/// The file that gets a content.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContentOwner {
    /// A file of the tree.
    Node(usize),
    /// A file of the file system that has the names meanwhile.
    Staged(InodeNumber),
}

impl Content {
    /// The content of an empty file.
    pub(crate) const EMPTY: Self = Self {
        size_bytes: 0,
        data: Data::Flat {
            start_block: HOLE,
            tail: Vec::new(),
        },
    };
}

/// Returns the failure of a write before the position.
pub(crate) fn out_of_order() -> Error {
    let reason = "the content of a file comes in ascending order";
    Error::new(Errno::INVAL, reason)
}

/// Blocks that follow each other both in the file and in the image.
struct Run {
    /// The first block of the file.
    logical: u64,
    start: u32,
    count: u32,
}

/// Receives the content of a file in ascending order.
pub(crate) struct ContentBuilder {
    /// Where the image ended before.
    before: u32,
    chunk_bits: u32,
    /// Where the next byte belongs.
    position: u64,
    /// The bytes since the last whole block.
    partial: Vec<u8>,
    runs: Vec<Run>,
    /// A hash of the blocks.
    hash: u64,
}

impl ContentBuilder {
    /// Begins a file that will have about `size_bytes`.
    ///
    /// # Errors
    ///
    /// EFBIG: it needs larger chunks than an EROFS can have, or the image is full.
    pub(crate) fn new(output: &BlockOutput, size_bytes: u64) -> Result<Self> {
        let chunk_blocks = (size_bytes / BLOCK_BYTES as u64).div_ceil(CHUNKS_MAX);
        let chunk_bits = chunk_blocks.max(1).next_power_of_two().trailing_zeros();
        if chunk_bits > CHUNK_BITS_MAX {
            let reason = "a file of an EROFS has at most 512 PiB";
            return Err(Error::new(Errno::FBIG, reason));
        }
        Ok(Self {
            before: output.next_block()?,
            chunk_bits,
            position: 0,
            partial: Vec::new(),
            runs: Vec::new(),
            hash: 0,
        })
    }

    /// Adds bytes at an offset that is not before the end of the earlier ones. Between them is a
    /// hole.
    ///
    /// # Errors
    ///
    /// EINVAL for another order; the errors of a write of the image.
    pub(crate) fn write(
        &mut self,
        output: &mut BlockOutput,
        bytes: &[u8],
        offset: u64,
    ) -> Result<()> {
        if offset < self.position {
            return Err(out_of_order());
        }
        if offset > self.position {
            let chunk_bytes = self.chunk_bytes();
            let hole_end = offset / chunk_bytes * chunk_bytes;
            if self.position.next_multiple_of(chunk_bytes) < hole_end {
                self.zeros(output, self.position.next_multiple_of(chunk_bytes))?;
                self.position = hole_end;
            }
            self.zeros(output, offset)?;
        }
        self.append(output, bytes)
    }

    fn chunk_bytes(&self) -> u64 {
        (BLOCK_BYTES as u64) << self.chunk_bits
    }

    /// Adds zeros up to an offset.
    fn zeros(&mut self, output: &mut BlockOutput, end: u64) -> Result<()> {
        while self.position < end {
            let len = (end - self.position).min(ZEROS.len() as u64);
            self.append(output, &ZEROS[..len as usize])?;
        }
        Ok(())
    }

    fn append(&mut self, output: &mut BlockOutput, mut bytes: &[u8]) -> Result<()> {
        self.position += bytes.len() as u64;
        if !self.partial.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.partial.len()));
            self.partial.extend_from_slice(now);
            if self.partial.len() < BLOCK_BYTES {
                return Ok(());
            }
            let mut block = std::mem::take(&mut self.partial);
            self.blocks(output, &block, later.len() as u64)?;
            block.clear();
            self.partial = block;
            bytes = later;
        }
        let (whole, rest) = bytes.split_at(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
        self.blocks(output, whole, rest.len() as u64)?;
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// Appends bytes to the image; `behind` bytes before the position are not among them.
    fn blocks(&mut self, output: &mut BlockOutput, bytes: &[u8], behind: u64) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let count = bytes.len().div_ceil(BLOCK_BYTES) as u32;
        let logical = (self.position - behind - bytes.len() as u64) / BLOCK_BYTES as u64;
        let start = output.next_block()?;
        output.append(bytes)?;
        for block in bytes.chunks(BLOCK_BYTES) {
            self.hash = hash_after(self.hash, block);
        }
        match self.runs.last_mut() {
            Some(run) if run.logical + u64::from(run.count) == logical => run.count += count,
            _ => self.runs.push(Run {
                logical,
                start,
                count,
            }),
        }
        Ok(())
    }

    /// Ends the file at `size_bytes`: behind the last byte may be a hole. A size below the bytes so
    /// far discards the content.
    ///
    /// # Errors
    ///
    /// The errors of reads and writes of the image.
    pub(crate) fn finish(
        mut self,
        output: &mut BlockOutput,
        duplicates: &mut Duplicates,
        size_bytes: u64,
    ) -> Result<Content> {
        if size_bytes < self.position {
            output.truncate(self.before);
            return Ok(Content::EMPTY);
        }
        let data_end = self.position.next_multiple_of(self.chunk_bytes());
        self.zeros(output, data_end.min(size_bytes))?;
        let whole = size_bytes / BLOCK_BYTES as u64;
        let is_flat = match &self.runs[..] {
            [] => whole == 0,
            [run] => run.logical == 0 && u64::from(run.count) == whole,
            _ => false,
        };
        if is_flat {
            // A hole behind the last whole block.
            self.zeros(output, size_bytes)?;
        }
        let is_inline = is_flat && (self.runs.is_empty() || self.partial.len() <= TAIL_MAX);
        if !is_inline {
            let tail = std::mem::take(&mut self.partial);
            self.blocks(output, &tail, 0)?;
        }
        let data = if is_flat {
            let start_block = match &self.runs[..] {
                [run] => duplicates.share(output, run.start, run.count, self.hash)?,
                _ => HOLE,
            };
            Data::Flat {
                start_block,
                tail: self.partial,
            }
        } else {
            self.chunks(size_bytes)
        };
        Ok(Content { size_bytes, data })
    }

    fn chunks(&self, size_bytes: u64) -> Data {
        let count = size_bytes.div_ceil(self.chunk_bytes());
        let mut blocks = vec![HOLE; usize::try_from(count).unwrap_or(0)];
        for run in &self.runs {
            let first = (run.logical >> self.chunk_bits) as usize;
            let starts = (run.start..run.start + run.count).step_by(1 << self.chunk_bits);
            for (entry, start) in blocks.iter_mut().skip(first).zip(starts) {
                *entry = start;
            }
        }
        Data::Chunks {
            chunk_bits: self.chunk_bits,
            blocks,
        }
    }
}
