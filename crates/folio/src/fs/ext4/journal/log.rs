//! The log writer: appends transactions and checkpoints them. Linux: fs/jbd2/commit.c,
//! checkpoint.c.
//!
//! ```text
//!   | revokes | descriptor, data ... | descriptor, data ... |  flush  | commit |  flush
//!    blocks not to replay      blocks of the transaction               makes it valid
//! ```

use super::disk::*;
use super::ring::Ring;
use super::snapshot::{BlockCopies, Snapshots};
use crate::base::{Error, Result, Timespec};
use crate::fs::ext4::layout::checksum::crc32c;
use std::borrow::Cow;
use std::io::IoSlice;
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

/// Blocks in one device write of a checkpoint, at most.
const RUN_MAX: usize = 1024;

/// The log of a writable journal. A lock in `Journal` guards it, so one transaction is written at a
/// time.
pub(super) struct Log {
    ring: Ring,
    /// Ring position of the next block.
    head: u32,
    /// Blocks in use.
    used: u32,
    /// Sequence number of the next transaction.
    pub(super) next: u32,
    /// The device keeps writes in order only if it is flushed between them.
    needs_order: bool,
    /// The device keeps them in order by itself, and a flush makes them durable.
    needs_flush: bool,
    /// A closed transaction that is not in the log yet. A device without space may keep it here.
    pub(super) closed: Option<Transaction>,
    /// Whether the log may hold a transaction that no flush has made durable.
    is_unflushed: bool,
    /// Whether the superblock on the device may show an empty log, although this one is not.
    is_start_stale: bool,
}

/// A closed transaction. Linux: `transaction_t`.
pub(crate) struct Transaction {
    /// The changed blocks, by number.
    pub(crate) blocks: BlockCopies,
    /// Blocks whose copies in the log must not be replayed.
    pub(crate) revoked: Vec<u64>,
    /// Blocks that can be used again once the transaction is durable.
    pub(crate) freed: Vec<Range<u64>>,
    /// The time at which the transaction was closed.
    pub(crate) time: Timespec,
}

impl Log {
    /// Opens a replayed, empty journal for writing. `wants_checksums` and `is_64bit` are features
    /// of the file system.
    pub(super) fn new(
        mut ring: Ring,
        wants_checksums: bool,
        is_64bit: bool,
        has_barriers: bool,
    ) -> Result<Self> {
        if ring.superblock.header.block_type.get() != TYPE_SUPERBLOCK_V2 {
            return Err(Error::unsupported("writing a journal of version 1"));
        }
        if ring.superblock.start.get() != 0 {
            return Err(Error::unsupported(
                "writing a journal that was not replayed; mount without noload",
            ));
        }
        // FAST_COMMIT stays: without it the kernel would count the area into the ring. ASYNC_COMMIT
        // goes: this writer flushes before each commit block.
        let mut features = ring.features & INCOMPAT_FAST_COMMIT | INCOMPAT_REVOKE;
        features |= if is_64bit { INCOMPAT_64BIT } else { 0 };
        if wants_checksums {
            features |= INCOMPAT_CSUM_V3;
            ring.superblock.checksum_type = CHECKSUM_CRC32C;
        }
        ring.features = features;
        ring.seed = wants_checksums.then(|| crc32c(!0, &ring.superblock.uuid));
        ring.superblock.feature_incompat = features.into();
        // jbd2 rejects checksums of version 1 beside version 3.
        ring.superblock.feature_compat =
            (ring.superblock.feature_compat.get() & !COMPAT_CHECKSUM).into();
        let next = ring.superblock.sequence.get();
        let head = ring.superblock.first.get();
        let is_ordered = ring.device.has_atomic_flushes();
        Ok(Self {
            ring,
            head,
            used: 0,
            next,
            needs_order: has_barriers && !is_ordered,
            needs_flush: has_barriers && is_ordered,
            closed: None,
            is_unflushed: false,
            is_start_stale: false,
        })
    }

    /// Returns the capacity of the log in blocks.
    pub(super) fn capacity(&self) -> u32 {
        // One block stays free to distinguish a full log from an empty one.
        self.ring.end - self.ring.superblock.first.get() - 1
    }

    /// Returns the number of blocks in use.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Makes the transactions in the log durable, unless the mount has no barriers.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.is_unflushed {
            self.ring.device.flush()?;
            self.is_unflushed = false;
        }
        Ok(())
    }

    /// Keeps later writes behind all earlier ones.
    fn order(&self) -> Result<()> {
        if self.needs_order {
            self.ring.device.flush()
        } else {
            Ok(())
        }
    }

    fn block_size(&self) -> usize {
        self.ring.blocks.block_size
    }

    /// Returns the length of the checksum at the end of descriptor and revoke blocks, in bytes.
    fn tail_len(&self) -> usize {
        if self.ring.seed.is_some() { 4 } else { 0 }
    }

    fn tag_len(&self) -> usize {
        if self.ring.features & INCOMPAT_CSUM_V3 != 0 {
            size_of::<RawTag3>()
        } else {
            size_of::<RawTag>()
                + if self.ring.features & INCOMPAT_64BIT != 0 {
                    4
                } else {
                    0
                }
        }
    }

    fn tags_per_block(&self) -> usize {
        // The first tag of a block is followed by a UUID.
        (self.block_size() - size_of::<RawHeader>() - self.tail_len() - 16) / self.tag_len()
    }

    fn revokes_per_block(&self) -> usize {
        let len = if self.ring.features & INCOMPAT_64BIT != 0 {
            8
        } else {
            4
        };
        (self.block_size() - size_of::<RawHeader>() - 4 - self.tail_len()) / len
    }

    /// Returns the number of log blocks that a transaction takes.
    fn len_of(&self, transaction: &Transaction) -> u64 {
        let data = transaction.blocks.len();
        let descriptors = data.div_ceil(self.tags_per_block());
        let revokes = transaction.revoked.len().div_ceil(self.revokes_per_block());
        (data + descriptors + revokes + 1) as u64
    }

    /// Returns whether a transaction fits into the free part of the log.
    pub(super) fn has_room_for(&self, transaction: &Transaction) -> bool {
        self.len_of(transaction) + u64::from(self.used) <= u64::from(self.capacity())
    }

    /// Writes a transaction. Later writes to the device stay behind it; [`Log::flush`] makes it
    /// durable, with all earlier writes. After an error the same transaction can be written again.
    pub(super) fn write(&mut self, transaction: &Transaction) -> Result<()> {
        if !self.has_room_for(transaction) {
            let (len, capacity) = (self.len_of(transaction), self.capacity());
            return Err(Error::unsupported(format!(
                "transaction of {len} blocks in a journal of {capacity}; use a larger journal"
            )));
        }
        if self.used == 0 {
            // Durable with the first barrier. Before the commit block is written, there is nothing
            // to replay.
            self.ring.superblock.start = self.head.into();
            self.ring.superblock.sequence = self.next.into();
        }
        if self.used == 0 || self.is_start_stale {
            self.ring.write_superblock()?;
            self.is_start_stale = false;
        }
        let mut blocks: Vec<Cow<'_, [u8]>> = Vec::new();
        for numbers in transaction.revoked.chunks(self.revokes_per_block()) {
            blocks.push(Cow::Owned(self.revoke_block(numbers)));
        }
        let entries: Vec<(u64, &[u8])> =
            transaction.blocks.iter().map(|(n, b)| (*n, &**b)).collect();
        for entries in entries.chunks(self.tags_per_block()) {
            let data: Vec<(Cow<'_, [u8]>, bool)> =
                entries.iter().map(|(_, bytes)| escape(bytes)).collect();
            blocks.push(Cow::Owned(self.descriptor_block(entries, &data)));
            blocks.extend(data.into_iter().map(|(bytes, _)| bytes));
        }
        let commit_at = self.ring.after(self.head, blocks.len() as u32);
        // Write a commit block of zeros first. The nonzero bytes of a commit block are in its first
        // sector, so a later power cut leaves all of it or none, even if the device writes single
        // sectors. Linux refuses to mount after a torn commit block.
        blocks.push(Cow::Owned(vec![0; self.block_size()]));
        let end = self.write_blocks(self.head, &blocks)?;
        // All of the transaction before its commit block, which makes recovery replay it.
        self.order()?;
        self.write_blocks(
            commit_at,
            &[Cow::Owned(self.commit_block(transaction.time))],
        )?;
        // The commit block before what relies on it: checkpoints, and new contents of freed blocks.
        self.order()?;
        self.is_unflushed = self.needs_flush;
        self.used += blocks.len() as u32;
        self.head = end;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Writes blocks into the ring from `at` on, in contiguous runs; returns the position after
    /// them.
    fn write_blocks(&self, at: u32, blocks: &[Cow<'_, [u8]>]) -> Result<u32> {
        let mut at = at;
        let mut rest = blocks;
        while !rest.is_empty() {
            let (first, len) = self.ring.blocks.run_at(at)?;
            let count = (len.min(self.ring.end - at) as usize).min(rest.len());
            let slices: Vec<IoSlice<'_>> = rest[..count]
                .iter()
                .map(|block| IoSlice::new(block))
                .collect();
            self.ring
                .device
                .write_vectored_at(&slices, first * self.block_size() as u64)?;
            at = self.ring.after(at, count as u32);
            rest = &rest[count..];
        }
        Ok(at)
    }

    fn header(&self, block_type: u32) -> RawHeader {
        RawHeader {
            magic: MAGIC.into(),
            block_type: block_type.into(),
            sequence: self.next.into(),
        }
    }

    fn new_block(&self, block_type: u32) -> Vec<u8> {
        let mut block = vec![0; self.block_size()];
        block[..size_of::<RawHeader>()].copy_from_slice(self.header(block_type).as_bytes());
        block
    }

    /// Writes the checksum at the end of a descriptor or revoke block.
    fn seal(&self, block: &mut [u8]) {
        if let Some(seed) = self.ring.seed {
            let at = block.len() - 4;
            let crc = crc32c(crc32c(seed, &block[..at]), &[0; 4]);
            block[at..].copy_from_slice(&crc.to_be_bytes());
        }
    }

    fn revoke_block(&self, numbers: &[u64]) -> Vec<u8> {
        let mut block = self.new_block(TYPE_REVOKE);
        let mut at = size_of::<RawHeader>() + 4;
        for number in numbers {
            if self.ring.features & INCOMPAT_64BIT != 0 {
                block[at..at + 8].copy_from_slice(&number.to_be_bytes());
                at += 8;
            } else {
                // Without the 64bit feature, block numbers fit 32 bits.
                block[at..at + 4].copy_from_slice(&(*number as u32).to_be_bytes());
                at += 4;
            }
        }
        block[size_of::<RawHeader>()..][..4].copy_from_slice(&(at as u32).to_be_bytes());
        self.seal(&mut block);
        block
    }

    fn descriptor_block(
        &self,
        entries: &[(u64, &[u8])],
        data: &[(Cow<'_, [u8]>, bool)],
    ) -> Vec<u8> {
        let mut block = self.new_block(TYPE_DESCRIPTOR);
        let mut at = size_of::<RawHeader>();
        for (index, ((number, _), (bytes, is_escaped))) in entries.iter().zip(data).enumerate() {
            let flags = if *is_escaped { TAG_ESCAPED } else { 0 }
                | if index > 0 { TAG_SAME_UUID } else { 0 }
                | if index + 1 == entries.len() {
                    TAG_LAST
                } else {
                    0
                };
            let crc = self.ring.seed.map_or(0, |seed| {
                crc32c(crc32c(seed, &self.next.to_be_bytes()), bytes)
            });
            let (low, high) = (*number as u32, (number >> 32) as u32);
            if self.ring.features & INCOMPAT_CSUM_V3 != 0 {
                let tag = RawTag3 {
                    block_lo: low.into(),
                    flags: flags.into(),
                    block_hi: high.into(),
                    checksum: crc.into(),
                };
                block[at..at + size_of::<RawTag3>()].copy_from_slice(tag.as_bytes());
            } else {
                // All flags fit 4 bits.
                let tag = RawTag {
                    block_lo: low.into(),
                    checksum: 0.into(),
                    flags: (flags as u16).into(),
                };
                block[at..at + size_of::<RawTag>()].copy_from_slice(tag.as_bytes());
                if self.ring.features & INCOMPAT_64BIT != 0 {
                    block[at + size_of::<RawTag>()..][..4].copy_from_slice(&high.to_be_bytes());
                }
            }
            at += self.tag_len();
            if index == 0 {
                block[at..at + 16].copy_from_slice(&self.ring.superblock.uuid);
                at += 16;
            }
        }
        self.seal(&mut block);
        block
    }

    fn commit_block(&self, time: Timespec) -> Vec<u8> {
        let mut block = self.new_block(TYPE_COMMIT);
        let mut commit = RawCommit::new_zeroed();
        commit.secs = (time.secs as u64).into();
        commit.nanos = time.nanos.into();
        block[size_of::<RawHeader>()..][..size_of::<RawCommit>()]
            .copy_from_slice(commit.as_bytes());
        if let Some(seed) = self.ring.seed {
            // Over the whole block, with the checksum field as zero.
            let crc = crc32c(seed, &block);
            block[COMMIT_CHECKSUM_OFFSET..][..4].copy_from_slice(&crc.to_be_bytes());
        }
        block
    }

    /// Writes each committed block to the file system and empties the log.
    pub(super) fn checkpoint(&mut self, snapshots: &Snapshots) -> Result<()> {
        if self.used == 0 {
            return Ok(());
        }
        let blocks: Vec<_> = snapshots.committed().into_iter().collect();
        for run in blocks
            .chunk_by(|a, b| a.0 + 1 == b.0)
            .flat_map(|run| run.chunks(RUN_MAX))
        {
            let slices: Vec<IoSlice<'_>> =
                run.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
            self.ring
                .device
                .write_vectored_at(&slices, run[0].0 * self.block_size() as u64)?;
        }
        // In place before the log is emptied: without the log there is no second copy.
        self.order()?;
        let full = (self.ring.superblock.start, self.ring.superblock.sequence);
        self.ring.superblock.start = 0.into();
        self.ring.superblock.sequence = self.next.into();
        // This is before the log is overwritten.
        let emptied = self.ring.write_superblock().and_then(|()| self.order());
        if let Err(error) = emptied {
            // The next transaction follows those in the log, which are still whole.
            (self.ring.superblock.start, self.ring.superblock.sequence) = full;
            self.is_start_stale = true;
            return Err(error);
        }
        self.is_start_stale = false;
        // Kept until here: after a failure the next checkpoint writes them again.
        snapshots.clear_committed();
        self.used = 0;
        Ok(())
    }
}

/// Replaces the log's magic number at the start of data by zeros, so that recovery does not take
/// the data for a block of the log. Returns the data and whether it was changed.
fn escape(bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
    if bytes.starts_with(&MAGIC.to_be_bytes()) {
        let mut copy = bytes.to_vec();
        copy[..4].fill(0);
        (Cow::Owned(copy), true)
    } else {
        (Cow::Borrowed(bytes), false)
    }
}
