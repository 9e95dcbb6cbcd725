//! Digests of a run of blocks, read in pieces, on all cores.

use super::layout::{TreeLayout, TreeLevel};
use super::superblock::VeritySuperblock;
use super::{DIGEST_BYTES, RootHash};
use crate::base::{AlignedBuffer, Errno, Error, Result};
use crate::block::tools::copy::{on_threads, thread_count};
use crate::block::{Allocation, Device};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are read at once: at least one block.
const PIECE_BYTES: usize = 512 << 10;

/// Options of [`super::format()`] and [`super::verify()`].
pub struct HashOptions<'a> {
    /// Number of threads, at most 16; 0 for as many as the machine has cores.
    pub threads: usize,
    /// Called before each hash block; if it returns true, the work fails with EINTR.
    pub is_canceled: &'a (dyn Fn() -> bool + Sync),
    /// Called from any thread with the size of hashed data in bytes.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Default for HashOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 0,
            is_canceled: &|| false,
            progress: &|_| {},
        }
    }
}

/// Blocks to hash: the data, or one level of the tree.
pub(super) struct HashInput<'a> {
    device: &'a dyn Device,
    start_bytes: u64,
    pub(super) block_bytes: u64,
    pub(super) blocks: u64,
    /// The state of the hash after the salt.
    salted: Sha256,
    /// The digest of a block of zeros.
    zero: RootHash,
}

impl<'a> HashInput<'a> {
    pub(super) fn new(
        device: &'a dyn Device,
        start_bytes: u64,
        blocks: u64,
        block_bytes: u32,
        salt: &[u8],
    ) -> Self {
        let salted = Sha256::new_with_prefix(salt);
        let zero = digest(&salted, &vec![0; block_bytes as usize]);
        Self {
            device,
            start_bytes,
            block_bytes: u64::from(block_bytes),
            blocks,
            salted,
            zero,
        }
    }

    /// Returns the offset of a block on the device, in bytes.
    pub(super) fn offset(&self, block: u64) -> u64 {
        self.start_bytes + block * self.block_bytes
    }

    /// Returns the digest of the first block.
    pub(super) fn first_digest(&self) -> Result<RootHash> {
        let mut first = RootHash::default();
        let mut buf = vec![0; self.block_bytes as usize];
        self.digests(0..1, &mut buf, |_, digest| first = digest)?;
        Ok(first)
    }

    /// Calls `take` with each block of `range` and its digest, in order. Holes are not read.
    pub(super) fn digests(
        &self,
        range: Range<u64>,
        buf: &mut [u8],
        mut take: impl FnMut(u64, RootHash),
    ) -> Result<()> {
        let mut block = range.start;
        while block < range.end {
            let offset = self.offset(block);
            let left_bytes = (range.end - block) * self.block_bytes;
            let (kind, len_bytes) = self.device.allocation(offset, left_bytes)?;
            let holes = match kind {
                Allocation::Data => 0,
                Allocation::Hole | Allocation::Zero => len_bytes / self.block_bytes,
            };
            if holes > 0 {
                (block..block + holes).for_each(|block| take(block, self.zero));
                block += holes;
                continue;
            }
            let room = buf.len() as u64 / self.block_bytes * self.block_bytes;
            let piece = &mut buf[..left_bytes.min(room) as usize];
            self.device.read_at(piece, offset)?;
            for bytes in piece.chunks_exact(self.block_bytes as usize) {
                take(block, digest(&self.salted, bytes));
                block += 1;
            }
        }
        Ok(())
    }

    /// Calls `work` for each hash block over these blocks, on several threads: with its number, the
    /// blocks that it has the digests of, and a buffer for [`Self::digests`].
    pub(super) fn for_each_hash_block(
        &self,
        hash_block_bytes: u32,
        options: &HashOptions<'_>,
        work: impl Fn(u64, Range<u64>, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        let per_block = u64::from(hash_block_bytes) / DIGEST_BYTES as u64;
        let count = self.blocks.div_ceil(per_block);
        let next = AtomicU64::new(0);
        let threads = thread_count(options.threads).min(usize::try_from(count).unwrap_or(1));
        on_threads(threads, |stop: &AtomicBool| {
            let mut buf = AlignedBuffer::new(PIECE_BYTES);
            while !stop.load(Ordering::Relaxed) {
                if (options.is_canceled)() {
                    return Err(Error::new(Errno::INTR, "canceled"));
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                let first = number * per_block;
                let range = first..self.blocks.min(first + per_block);
                work(number, range, &mut buf)?;
            }
            Ok(())
        })
    }
}

impl VeritySuperblock {
    pub(super) fn data_input<'a>(&self, data: &'a dyn Device) -> Result<HashInput<'a>> {
        let len_bytes = self
            .data_blocks
            .checked_mul(u64::from(self.data_block_bytes));
        if !len_bytes.is_some_and(|len| (1..=data.len_bytes()).contains(&len)) {
            let what = format!(
                "{} blocks of {} bytes, but the device has {} bytes",
                self.data_blocks,
                self.data_block_bytes,
                data.len_bytes()
            );
            return Err(Error::new(Errno::INVAL, what));
        }
        let size = self.data_block_bytes;
        Ok(HashInput::new(data, 0, self.data_blocks, size, &self.salt))
    }

    pub(super) fn level_input<'a>(&self, hash: &'a dyn Device, level: &TreeLevel) -> HashInput<'a> {
        let (start, blocks) = (level.start_bytes, level.blocks);
        HashInput::new(hash, start, blocks, self.hash_block_bytes, &self.salt)
    }

    /// Returns the root hash of the tree at `offset` of `hash`, by its top block alone; `None` for
    /// a tree over a single block, which is only a superblock.
    ///
    /// # Errors
    ///
    /// EUCLEAN if the tree leaves the device, else the device's errors.
    pub fn root_hash(&self, hash: &dyn Device, offset: u64) -> Result<Option<RootHash>> {
        let layout = TreeLayout::on_device(self, hash, offset)?;
        let top = layout.levels.last();
        top.map(|top| self.level_input(hash, top).first_digest())
            .transpose()
    }
}

fn digest(salted: &Sha256, block: &[u8]) -> RootHash {
    salted.clone().chain_update(block).finalize().into()
}
