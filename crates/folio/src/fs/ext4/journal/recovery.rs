//! Journal recovery: finds the end of the log, collects revokes, writes blocks to the file system.
//! Linux: fs/jbd2/recovery.c.

use super::disk::*;
use super::fast_commit::{self, FastCommitChange};
use super::ring::{JournalBlocks, Ring};
use crate::base::{Error, Result};
use crate::block::Device;
use crate::fs::ext4::layout::checksum::crc32c;
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Replays all complete transactions of the journal on `device`. The caller applies the fast
/// commits and empties the journal.
///
/// # Errors
/// EUCLEAN for an inconsistent journal, EOPNOTSUPP for unknown features. Nothing was written then,
/// except before a bad data checksum, which is found after earlier blocks were replayed.
pub(crate) fn recover(blocks: JournalBlocks, device: Arc<dyn Device>) -> Result<Recovered> {
    Ring::open(blocks, device)
        .and_then(|ring| Recovery(ring).run())
        .map_err(|e| e.at("journal"))
}

/// A journal whose transactions were replayed, but which is not empty yet.
pub(crate) struct Recovered {
    ring: Ring,
    /// Changes of the fast commits after the last transaction.
    pub(crate) changes: Vec<FastCommitChange>,
    /// Number of replayed transactions, without fast commits.
    pub(crate) transactions: u32,
    /// The sequence number after the last transaction; `None` if the journal was empty.
    end: Option<u32>,
}

impl Recovered {
    /// Empties the journal. The caller must have flushed all replayed blocks.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some(end) = self.end else { return Ok(()) };
        self.ring.superblock.start = 0.into();
        self.ring.superblock.sequence = end.wrapping_add(1).into();
        self.ring.write_superblock()?;
        self.ring.device.flush()
    }
}

/// A running recovery.
struct Recovery(Ring);

/// A block to replay.
struct BlockTag {
    target: u64,
    flags: u32,
    checksum: u32,
}

/// A block of the log, except a data block.
struct LogBlock {
    bytes: Vec<u8>,
    block_type: u32,
}

impl Recovery {
    fn run(self) -> Result<Recovered> {
        if self.0.superblock.start.get() == 0 {
            // The fast commits in the area are older than the last full commit.
            return Ok(Recovered {
                ring: self.0,
                changes: Vec::new(),
                transactions: 0,
                end: None,
            });
        }
        let mut revokes = HashMap::new();
        let end = self.scan(&mut revokes)?;
        let changes = fast_commit::read(&self.0, end)?;
        self.replay(end, &revokes)?;
        self.0.device.flush()?;
        let transactions = end.wrapping_sub(self.0.superblock.sequence.get());
        Ok(Recovered {
            ring: self.0,
            changes,
            transactions,
            end: Some(end),
        })
    }

    /// Returns the sequence number after the last complete transaction, and collects the revokes
    /// until there.
    fn scan(&self, revokes: &mut HashMap<u64, u32>) -> Result<u32> {
        let mut sequence = self.0.superblock.sequence.get();
        let mut pending: Vec<u64> = Vec::new();
        let mut at = self.0.superblock.start.get();
        // At most one round, so that a forged log without an end is not read forever.
        let mut left = self.0.end - self.0.superblock.first.get();
        while left > 0 {
            left -= 1;
            let Some(block) = self.log_block(at, sequence)? else {
                break;
            };
            at = self.0.after(at, 1);
            match block.block_type {
                TYPE_DESCRIPTOR => {
                    let count = self.tags(&block.bytes)?.len() as u32;
                    if count > left {
                        break;
                    }
                    left -= count;
                    at = self.0.after(at, count);
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

    /// Writes the blocks of all transactions before `end`, except those revoked by the same or a
    /// later transaction.
    fn replay(&self, end: u32, revokes: &HashMap<u64, u32>) -> Result<()> {
        let mut sequence = self.0.superblock.sequence.get();
        let mut at = self.0.superblock.start.get();
        while sequence != end {
            let start = at;
            let Some(block) = self.log_block(at, sequence)? else {
                return Err(Error::corrupt(format!(
                    "block {start} changed during recovery"
                )));
            };
            at = self.0.after(at, 1);
            match block.block_type {
                TYPE_DESCRIPTOR => {
                    for tag in self.tags(&block.bytes)? {
                        let is_revoked = revokes
                            .get(&tag.target)
                            .is_some_and(|by| by.wrapping_sub(sequence) as i32 >= 0);
                        if !is_revoked {
                            self.replay_block(at, &tag, sequence).map_err(|e| {
                                e.at(format!("block {at}, for block {}", tag.target))
                            })?;
                        }
                        at = self.0.after(at, 1);
                    }
                }
                TYPE_REVOKE => {}
                _ => sequence = sequence.wrapping_add(1),
            }
        }
        Ok(())
    }

    fn replay_block(&self, at: u32, tag: &BlockTag, sequence: u32) -> Result<()> {
        if tag.target >= self.0.blocks.block_count {
            return Err(Error::corrupt("target beyond the end of the file system"));
        }
        let mut bytes = self.0.read(at)?;
        if let Some(seed) = self.0.seed {
            let crc = crc32c(crc32c(seed, &sequence.to_be_bytes()), &bytes);
            let mask = if self.0.features & INCOMPAT_CSUM_V3 != 0 {
                u32::MAX
            } else {
                0xFFFF
            };
            if crc & mask != tag.checksum {
                return Err(Error::corrupt("bad checksum"));
            }
        }
        if tag.flags & TAG_ESCAPED != 0 {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        self.0
            .device
            .write_at(&bytes, tag.target * self.0.blocks.block_size as u64)
    }

    /// Reads the block of the log at `at`. Returns `None`, the end of the log, if the block is torn
    /// or does not belong to transaction `sequence`.
    fn log_block(&self, at: u32, sequence: u32) -> Result<Option<LogBlock>> {
        let bytes = self.0.read(at)?;
        let Ok((header, _)) = RawHeader::read_from_prefix(&bytes) else {
            return Ok(None);
        };
        let block_type = header.block_type.get();
        let is_log = header.magic.get() == MAGIC && header.sequence.get() == sequence;
        if !is_log || !matches!(block_type, TYPE_DESCRIPTOR | TYPE_REVOKE | TYPE_COMMIT) {
            return Ok(None);
        }
        if let Some(seed) = self.0.seed {
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
            // A torn block: power failed during its write, so the transaction was not committed.
            if crc != stored {
                return Ok(None);
            }
        }
        Ok(Some(LogBlock { bytes, block_type }))
    }

    fn tags(&self, bytes: &[u8]) -> Result<Vec<BlockTag>> {
        let is_v3 = self.0.features & INCOMPAT_CSUM_V3 != 0;
        let is_64bit = self.0.features & INCOMPAT_64BIT != 0;
        let mut rest =
            &bytes[size_of::<RawHeader>()..bytes.len() - if self.0.seed.is_some() { 4 } else { 0 }];
        let mut tags = Vec::new();
        let short = || Error::corrupt("descriptor block without a last tag");
        loop {
            let tag = if is_v3 {
                let (raw, after) = RawTag3::read_from_prefix(rest).map_err(|_| short())?;
                rest = after;
                let high = if is_64bit {
                    u64::from(raw.block_hi.get())
                } else {
                    0
                };
                let target = high << 32 | u64::from(raw.block_lo.get());
                BlockTag {
                    target,
                    flags: raw.flags.get(),
                    checksum: raw.checksum.get(),
                }
            } else {
                let (raw, mut after) = RawTag::read_from_prefix(rest).map_err(|_| short())?;
                let mut target = u64::from(raw.block_lo.get());
                if is_64bit {
                    let (high, remaining) = after.split_first_chunk::<4>().ok_or_else(short)?;
                    target |= u64::from(u32::from_be_bytes(*high)) << 32;
                    after = remaining;
                }
                // Version 2 has two unused bytes after each tag.
                let skip = if self.0.features & INCOMPAT_CSUM_V2 != 0 {
                    2
                } else {
                    0
                };
                rest = after.get(skip..).ok_or_else(short)?;
                BlockTag {
                    target,
                    flags: raw.flags.get().into(),
                    checksum: raw.checksum.get().into(),
                }
            };
            if tag.flags & TAG_SAME_UUID == 0 {
                rest = rest.get(16..).ok_or_else(short)?;
            }
            let is_last = tag.flags & TAG_LAST != 0;
            tags.push(tag);
            let left = if is_v3 {
                size_of::<RawTag3>()
            } else {
                size_of::<RawTag>()
            };
            if is_last || rest.len() < left {
                return Ok(tags);
            }
        }
    }

    fn revoked(&self, bytes: &[u8]) -> Result<Vec<u64>> {
        let head = size_of::<RawHeader>();
        let used = u32::from_be_bytes([
            bytes[head],
            bytes[head + 1],
            bytes[head + 2],
            bytes[head + 3],
        ]) as usize;
        let limit = bytes.len() - if self.0.seed.is_some() { 4 } else { 0 };
        let Some(list) = bytes.get(head + 4..used).filter(|_| used <= limit) else {
            return Err(Error::corrupt(format!("revoke block claims {used} bytes")));
        };
        Ok(if self.0.features & INCOMPAT_64BIT != 0 {
            list.chunks_exact(8)
                .map(|b| u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect()
        } else {
            list.chunks_exact(4)
                .map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]).into())
                .collect()
        })
    }
}
