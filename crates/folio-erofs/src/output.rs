//! The image file as a sequence of blocks, written from its start to its end.

use crate::format::BLOCK_BYTES;
use folio::{Errno, Error, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are gathered for one write.
const PENDING_BYTES: usize = 1 << 20;
/// Bytes that are written at once, without a copy.
const DIRECT_BYTES: usize = 128 << 10;

/// Appends blocks to the image file. The first block is written last.
pub(crate) struct BlockOutput {
    file: File,
    /// Blocks that are not in the file yet.
    pending: Vec<u8>,
    /// Where they start, in bytes.
    start: u64,
}

fn failed(error: io::Error) -> Error {
    Error::io("write the image", error)
}

impl BlockOutput {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            pending: Vec::with_capacity(PENDING_BYTES),
            start: BLOCK_BYTES as u64,
        }
    }

    /// Returns the number of the next block.
    ///
    /// # Errors
    ///
    /// EFBIG: beyond 16 TiB.
    pub(crate) fn next_block(&self) -> Result<u32> {
        let block = (self.start + self.pending.len() as u64) / BLOCK_BYTES as u64;
        match u32::try_from(block) {
            // The last number means a hole.
            Ok(block) if block < u32::MAX => Ok(block),
            _ => {
                let reason = "an EROFS has at most 16 TiB";
                Err(Error::new(Errno::FBIG, reason))
            }
        }
    }

    /// Appends bytes, and zeros up to the end of the block.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.next_block()?;
        if bytes.len() >= DIRECT_BYTES && bytes.len().is_multiple_of(BLOCK_BYTES) {
            self.flush()?;
            self.file.write_all_at(bytes, self.start).map_err(failed)?;
            self.start += bytes.len() as u64;
            return Ok(());
        }
        if self.pending.len() + bytes.len() > PENDING_BYTES {
            self.flush()?;
        }
        self.pending.extend_from_slice(bytes);
        let len = self.pending.len().next_multiple_of(BLOCK_BYTES);
        self.pending.resize(len, 0);
        Ok(())
    }

    /// Drops the blocks from `block` on.
    pub(crate) fn truncate(&mut self, block: u32) {
        let end = place(block);
        match end.checked_sub(self.start) {
            Some(len) => self.pending.truncate(len as usize),
            // Later blocks overwrite what is in the file.
            None => {
                self.pending.clear();
                self.start = end;
            }
        }
    }

    /// Whether `count` blocks at `a` and at `b` are equal.
    pub(crate) fn are_equal(&mut self, a: u32, b: u32, count: u32) -> Result<bool> {
        let mut other = Vec::new();
        let mut is_equal = true;
        self.each_part(a, count, |file, part, at| {
            other.resize(part.len(), 0);
            read_exact_at(file, &mut other, place(b) + at)?;
            is_equal = part == other;
            Ok(is_equal)
        })?;
        Ok(is_equal)
    }

    /// Moves `count` blocks down, from `from` to `to`.
    pub(crate) fn move_blocks(&mut self, from: u32, to: u32, count: u32) -> Result<()> {
        if from == to {
            return Ok(());
        }
        self.each_part(from, count, |file, part, at| {
            file.write_all_at(part, place(to) + at).map_err(failed)?;
            Ok(true)
        })
    }

    /// Reads `count` blocks in parts, each with its distance from the first one, while `step`
    /// returns true.
    fn each_part(
        &mut self,
        first: u32,
        count: u32,
        mut step: impl FnMut(&File, &[u8], u64) -> Result<bool>,
    ) -> Result<()> {
        self.flush()?;
        let (mut at, len) = (0, place(count));
        let mut buffer = vec![0; len.min(PENDING_BYTES as u64) as usize];
        while at < len {
            let part = (len - at).min(PENDING_BYTES as u64) as usize;
            let part = &mut buffer[..part];
            read_exact_at(&self.file, part, place(first) + at)?;
            if !step(&self.file, part, at)? {
                break;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file
            .write_all_at(&self.pending, self.start)
            .map_err(failed)?;
        self.start += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Gives the file its size, and writes the first block after all other blocks, on the device
    /// too: after a crash of the host, an image with a superblock is complete.
    pub(crate) fn finish(&mut self, first: &[u8; BLOCK_BYTES]) -> Result<()> {
        self.flush()?;
        self.file.set_len(self.start).map_err(failed)?;
        self.file.sync_data().map_err(failed)?;
        self.file.write_all_at(first, 0).map_err(failed)?;
        self.file.sync_all().map_err(failed)
    }
}

fn read_exact_at(file: &File, buffer: &mut [u8], place: u64) -> Result<()> {
    let read = file.read_exact_at(buffer, place);
    read.map_err(|error| Error::io("read the image", error))
}

fn place(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}
