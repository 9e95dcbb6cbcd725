//! Replaying a dirty journal: scan for the end, collect revokes, write blocks to their places.
//! Linux: fs/jbd2/recovery.c.

use super::disk::*;
use crate::base::{Error, Result};
use crate::block::Device;
use crate::fs::ext4::checksum::crc32c;
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// Where the journal's blocks lie on the device, as runs of (first device block, number of blocks) in order.
pub(in crate::fs::ext4) struct JournalBlocks {
    pub(in crate::fs::ext4) block_size: usize,
    /// Blocks of the file system, which bound what the journal may name.
    pub(in crate::fs::ext4) block_count: u64,
    pub(in crate::fs::ext4) runs: Vec<(u64, u32)>,
}

/// Brings everything the journal on `device` holds to its place and empties it. Returns how many transactions
/// were replayed.
///
/// EUCLEAN for a journal that contradicts itself, EOPNOTSUPP for one that asks for what Folio does not do. In
/// either case nothing has been written, except that a bad data checksum is met after earlier blocks were replayed.
pub(in crate::fs::ext4) fn recover(blocks: &JournalBlocks, device: &dyn Device) -> Result<u32> {
    let journal = Journal::open(blocks, device).map_err(|e| e.at("journal"))?;
    journal.run().map_err(|e| e.at("journal"))
}

struct Journal<'a> {
    blocks: &'a JournalBlocks,
    device: &'a dyn Device,
    superblock: RawJournalSuperblock,
    features: u32,
    /// One past the last block of the ring.
    end: u32,
    /// Seed of checksums; with versions 2 and 3.
    seed: Option<u32>,
}

/// One block to replay.
struct Tag {
    target: u64,
    flags: u32,
    checksum: u32,
}

/// A block of the log other than data.
struct LogBlock {
    bytes: Vec<u8>,
    block_type: u32,
}

impl<'a> Journal<'a> {
    fn open(blocks: &'a JournalBlocks, device: &'a dyn Device) -> Result<Self> {
        let available: u64 = blocks.runs.iter().map(|(_, len)| u64::from(*len)).sum();
        let mut bytes = vec![0; blocks.block_size];
        let Some((first, _)) = blocks.runs.first() else { return Err(Error::corrupt("has no blocks")) };
        device.read_at(&mut bytes, first * blocks.block_size as u64)?;
        let (raw, _) = RawJournalSuperblock::read_from_prefix(&bytes)
            .map_err(|_| Error::corrupt("superblock cut short"))?;
        let block_type = raw.header.block_type.get();
        if raw.header.magic.get() != MAGIC || !matches!(block_type, TYPE_SUPERBLOCK_V1 | TYPE_SUPERBLOCK_V2) {
            return Err(Error::corrupt("no superblock"));
        }
        let features = if block_type == TYPE_SUPERBLOCK_V2 { raw.feature_incompat.get() } else { 0 };
        let known = INCOMPAT_REVOKE
            | INCOMPAT_64BIT
            | INCOMPAT_ASYNC_COMMIT
            | INCOMPAT_CSUM_V2
            | INCOMPAT_CSUM_V3
            | INCOMPAT_FAST_COMMIT;
        if features & !known != 0 {
            return Err(Error::unsupported(format!("journal feature bits {:#x}", features & !known)));
        }
        let has_checksums = features & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0;
        if has_checksums && raw.checksum.get() != superblock_checksum(&raw) {
            return Err(Error::corrupt("superblock: bad checksum"));
        }
        let fast = match (features & INCOMPAT_FAST_COMMIT != 0, raw.fast_commit_blocks.get()) {
            (false, _) => 0,
            (true, 0) => FAST_COMMIT_BLOCKS_DEFAULT,
            (true, count) => count,
        };
        let (count, first, start) = (raw.block_count.get(), raw.first.get(), raw.start.get());
        let end = count.saturating_sub(fast);
        let is_sane = raw.block_size.get() as usize == blocks.block_size
            && u64::from(count) <= available
            && first >= 1
            && first < end
            && (start == 0 || (first..end).contains(&start));
        if !is_sane {
            let what =
                format!("superblock: {count} blocks, first {first}, start {start}, {available} available");
            return Err(Error::corrupt(what));
        }
        let seed = has_checksums.then(|| crc32c(!0, &raw.uuid));
        Ok(Self { blocks, device, superblock: raw, features, end, seed })
    }

    fn run(mut self) -> Result<u32> {
        let first_sequence = self.superblock.sequence.get();
        if self.superblock.start.get() == 0 {
            self.refuse_fast_commits(first_sequence)?;
            return Ok(0);
        }
        let mut revokes = HashMap::new();
        let end = self.scan(&mut revokes)?;
        self.refuse_fast_commits(end)?;
        self.replay(end, &revokes)?;
        self.device.flush()?;
        self.superblock.start = 0.into();
        self.superblock.sequence = end.wrapping_add(1).into();
        if self.seed.is_some() {
            self.superblock.checksum = superblock_checksum(&self.superblock).into();
        }
        self.device.write_at(self.superblock.as_bytes(), self.place(0)?)?;
        self.device.flush()?;
        Ok(end.wrapping_sub(first_sequence))
    }

    /// Finds the sequence number after the last whole transaction, and collects what was revoked until then.
    fn scan(&self, revokes: &mut HashMap<u64, u32>) -> Result<u32> {
        let mut sequence = self.superblock.sequence.get();
        let mut pending: Vec<u64> = Vec::new();
        let mut at = self.superblock.start.get();
        // One round at most: a log that never ends has been wrapped around.
        let mut left = self.end - self.superblock.first.get();
        while left > 0 {
            left -= 1;
            let Some(block) = self.log_block(at, sequence)? else { break };
            at = self.after(at, 1);
            match block.block_type {
                TYPE_DESCRIPTOR => {
                    let count = self.tags(&block.bytes)?.len() as u32;
                    if count > left {
                        break;
                    }
                    left -= count;
                    at = self.after(at, count);
                }
                TYPE_REVOKE => pending.extend(self.revoked(&block.bytes)?),
                _ => {
                    for target in pending.drain(..) {
                        revokes.insert(target, sequence);
                    }
                    sequence = sequence.wrapping_add(1);
                }
            }
        }
        Ok(sequence)
    }

    /// Writes the blocks of all transactions before `end`, except where a later or the same one revoked them.
    fn replay(&self, end: u32, revokes: &HashMap<u64, u32>) -> Result<()> {
        let mut sequence = self.superblock.sequence.get();
        let mut at = self.superblock.start.get();
        while sequence != end {
            let place = at;
            let Some(block) = self.log_block(at, sequence)? else {
                return Err(Error::corrupt(format!("block {place} changed while it was read")));
            };
            at = self.after(at, 1);
            match block.block_type {
                TYPE_DESCRIPTOR => {
                    for tag in self.tags(&block.bytes)? {
                        let is_revoked =
                            revokes.get(&tag.target).is_some_and(|by| by.wrapping_sub(sequence) as i32 >= 0);
                        if !is_revoked {
                            self.replay_block(at, &tag, sequence)
                                .map_err(|e| e.at(format!("block {at}, for block {}", tag.target)))?;
                        }
                        at = self.after(at, 1);
                    }
                }
                TYPE_REVOKE => {}
                _ => sequence = sequence.wrapping_add(1),
            }
        }
        Ok(())
    }

    fn replay_block(&self, at: u32, tag: &Tag, sequence: u32) -> Result<()> {
        if tag.target >= self.blocks.block_count {
            return Err(Error::corrupt("beyond the end of the file system"));
        }
        let mut bytes = self.read(at)?;
        if let Some(seed) = self.seed {
            let crc = crc32c(crc32c(seed, &sequence.to_be_bytes()), &bytes);
            let mask = if self.features & INCOMPAT_CSUM_V3 != 0 { u32::MAX } else { 0xFFFF };
            if crc & mask != tag.checksum {
                return Err(Error::corrupt("bad checksum"));
            }
        }
        if tag.flags & TAG_ESCAPED != 0 {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        self.device.write_at(&bytes, tag.target * self.blocks.block_size as u64)
    }

    /// The block of the log at `at`, if it belongs to transaction `sequence` and is whole; `None` ends the log.
    fn log_block(&self, at: u32, sequence: u32) -> Result<Option<LogBlock>> {
        let bytes = self.read(at)?;
        let Ok((header, _)) = RawHeader::read_from_prefix(&bytes) else { return Ok(None) };
        let block_type = header.block_type.get();
        let is_log = header.magic.get() == MAGIC && header.sequence.get() == sequence;
        if !is_log || !matches!(block_type, TYPE_DESCRIPTOR | TYPE_REVOKE | TYPE_COMMIT) {
            return Ok(None);
        }
        if let Some(seed) = self.seed {
            let checksum_at = match block_type {
                TYPE_COMMIT => COMMIT_CHECKSUM_OFFSET,
                _ => bytes.len() - 4,
            };
            let stored = u32::from_be_bytes([
                bytes[checksum_at],
                bytes[checksum_at + 1],
                bytes[checksum_at + 2],
                bytes[checksum_at + 3],
            ]);
            let crc = crc32c(seed, &bytes[..checksum_at]);
            let crc = crc32c(crc32c(crc, &[0; 4]), &bytes[checksum_at + 4..]);
            // A torn block: the power went while it was written, so the transaction was never committed.
            if crc != stored {
                return Ok(None);
            }
        }
        Ok(Some(LogBlock { bytes, block_type }))
    }

    fn tags(&self, bytes: &[u8]) -> Result<Vec<Tag>> {
        let is_v3 = self.features & INCOMPAT_CSUM_V3 != 0;
        let is_64bit = self.features & INCOMPAT_64BIT != 0;
        let mut rest = &bytes[size_of::<RawHeader>()..bytes.len() - if self.seed.is_some() { 4 } else { 0 }];
        let mut tags = Vec::new();
        let short = || Error::corrupt("descriptor block without a last tag");
        loop {
            let tag = if is_v3 {
                let (raw, after) = RawTag3::read_from_prefix(rest).map_err(|_| short())?;
                rest = after;
                let high = if is_64bit { u64::from(raw.block_hi.get()) } else { 0 };
                let target = high << 32 | u64::from(raw.block_lo.get());
                Tag { target, flags: raw.flags.get(), checksum: raw.checksum.get() }
            } else {
                let (raw, mut after) = RawTag::read_from_prefix(rest).map_err(|_| short())?;
                let mut target = u64::from(raw.block_lo.get());
                if is_64bit {
                    let (high, behind) = after.split_first_chunk::<4>().ok_or_else(short)?;
                    target |= u64::from(u32::from_be_bytes(*high)) << 32;
                    after = behind;
                }
                // Version 2 left two bytes behind each tag, which nobody uses.
                let skip = if self.features & INCOMPAT_CSUM_V2 != 0 { 2 } else { 0 };
                rest = after.get(skip..).ok_or_else(short)?;
                Tag { target, flags: raw.flags.get().into(), checksum: raw.checksum.get().into() }
            };
            if tag.flags & TAG_SAME_UUID == 0 {
                rest = rest.get(16..).ok_or_else(short)?;
            }
            let is_last = tag.flags & TAG_LAST != 0;
            tags.push(tag);
            let left = if is_v3 { size_of::<RawTag3>() } else { size_of::<RawTag>() };
            if is_last || rest.len() < left {
                return Ok(tags);
            }
        }
    }

    fn revoked(&self, bytes: &[u8]) -> Result<Vec<u64>> {
        let head = size_of::<RawHeader>();
        let used =
            u32::from_be_bytes([bytes[head], bytes[head + 1], bytes[head + 2], bytes[head + 3]]) as usize;
        let limit = bytes.len() - if self.seed.is_some() { 4 } else { 0 };
        let Some(list) = bytes.get(head + 4..used).filter(|_| used <= limit) else {
            return Err(Error::corrupt(format!("revoke block claims {used} bytes")));
        };
        Ok(match self.features & INCOMPAT_64BIT != 0 {
            true => list
                .chunks_exact(8)
                .map(|b| u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect(),
            false => {
                list.chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
            }
        })
    }

    /// Fast commits after the last full one describe operations, which cannot be replayed here.
    fn refuse_fast_commits(&self, sequence: u32) -> Result<()> {
        const TAG_HEAD: u16 = 9;
        if self.features & INCOMPAT_FAST_COMMIT == 0 || self.end >= self.superblock.block_count.get() {
            return Ok(());
        }
        // Little-endian, unlike the log: tag, length, features, transaction.
        let bytes = self.read(self.end)?;
        let tag = u16::from_le_bytes([bytes[0], bytes[1]]);
        let transaction = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        match tag == TAG_HEAD && transaction == sequence {
            false => Ok(()),
            true => {
                Err(Error::unsupported("replaying fast commits; run e2fsck or mount it once with the kernel"))
            }
        }
    }

    /// The block `count` after `at` in the ring; `count` is at most the ring's length.
    fn after(&self, at: u32, count: u32) -> u32 {
        let next = u64::from(at) + u64::from(count);
        let end = u64::from(self.end);
        let wrapped = if next >= end { next - end + u64::from(self.superblock.first.get()) } else { next };
        wrapped as u32
    }

    fn read(&self, at: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.blocks.block_size];
        self.device.read_at(&mut bytes, self.place(at)?)?;
        Ok(bytes)
    }

    /// Where on the device, in bytes, block `at` of the journal lies.
    fn place(&self, at: u32) -> Result<u64> {
        let mut left = at;
        for (first, len) in &self.blocks.runs {
            if left < *len {
                return Ok((first + u64::from(left)) * self.blocks.block_size as u64);
            }
            left -= len;
        }
        Err(Error::corrupt(format!("block {at} is not mapped")))
    }
}

fn superblock_checksum(raw: &RawJournalSuperblock) -> u32 {
    let bytes = raw.as_bytes();
    let crc = crc32c(!0, &bytes[..SUPERBLOCK_CHECKSUM_OFFSET]);
    crc32c(crc32c(crc, &[0; 4]), &bytes[SUPERBLOCK_CHECKSUM_OFFSET + 4..])
}
