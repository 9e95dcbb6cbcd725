//! Journal recovery: finds the end of the log, collects revokes, writes blocks to the file system.
//! Linux: fs/jbd2/recovery.c.
//!
//! A power cut may leave the last transaction without its commit block: the log ends before it. A
//! bad checksum in a transaction with a commit block is damage, and the journal is refused. But
//! blocks of an older log may follow the end; their commit time is before that of the transaction
//! before them.

use super::disk::*;
use super::fast_commit::{self, FastCommitChange};
use super::ring::{JournalBlocks, Ring};
use crate::base::{Error, Result};
use crate::block::Device;
use crate::fs::ext4::layout::checksum::{crc32, crc32c};
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Replays all complete transactions of the journal on `device`. The caller applies the fast
/// commits and empties the journal. `has_error` says that the superblock before the replay is
/// marked as of a file system with errors, a mark that the replay overwrites.
///
/// # Errors
/// EUCLEAN for an inconsistent journal, EOPNOTSUPP for unknown features. Nothing was written then.
pub(crate) fn recover(
    blocks: JournalBlocks,
    device: Arc<dyn Device>,
    has_error: bool,
) -> Result<Recovered> {
    Ring::open(blocks, device)
        .and_then(|ring| Recovery(ring).run(has_error))
        .map_err(|e| e.at("journal"))
}

/// Empties a journal without replaying it; returns whether it had transactions. Linux:
/// `jbd2_journal_wipe`.
///
/// # Errors
/// EUCLEAN for an inconsistent superblock, EOPNOTSUPP for unknown features.
pub(crate) fn wipe(blocks: JournalBlocks, device: Arc<dyn Device>) -> Result<bool> {
    let wipe = |ring: Ring| {
        let start = ring.superblock.sequence.get();
        if ring.superblock.start.get() == 0 {
            return Ok(false);
        }
        let recovery = Recovery(ring);
        // New transactions get numbers that no block of the old ones has.
        let end = recovery.scan(&mut HashMap::new()).unwrap_or(start);
        let dropped = Recovered {
            ring: recovery.0,
            changes: Vec::new(),
            transactions: 0,
            end: Some(end),
        };
        dropped.empty().map(|()| true)
    };
    Ring::open(blocks, device)
        .and_then(wipe)
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
    /// Returns whether the file system has errors: it was marked before the replay, or the journal
    /// was aborted.
    pub(crate) fn has_error(&self) -> bool {
        *self.ring.error.lock() != 0
    }

    /// Empties the journal, and clears its error, which the caller has put into the superblock. The
    /// caller must have flushed all replayed blocks.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.has_error() {
            *self.ring.error.lock() = 0;
            self.end.get_or_insert(self.ring.superblock.sequence.get());
        }
        self.empty()
    }

    fn empty(mut self) -> Result<()> {
        let Some(end) = self.end else { return Ok(()) };
        self.ring.superblock.start = 0.into();
        // Skips a number, as jbd2 does: blocks of an incomplete transaction `end` may be in the
        // ring, and must not continue the new log.
        self.ring.superblock.sequence = end.wrapping_add(1).into();
        self.ring.write_superblock()?;
        self.ring.device.flush()
    }
}

/// A running recovery.
pub(super) struct Recovery(pub(super) Ring);

/// A block to replay.
pub(super) struct BlockTag {
    pub(super) target: u64,
    pub(super) flags: u32,
    checksum: u32,
}

/// A block of the log, except a data block.
pub(super) struct LogBlock {
    pub(super) bytes: Vec<u8>,
    pub(super) block_type: u32,
    pub(super) has_valid_checksum: bool,
}

/// What a replay does with a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplayPass {
    /// Checks its target and checksum.
    Verify,
    /// Writes it, too.
    Write,
}

/// The state of the scan for the end of the log.
struct LogScan {
    /// Sequence number of the transaction being read.
    sequence: u32,
    /// Its first block with a bad checksum.
    bad_block: Option<u32>,
    /// Its revoked blocks.
    revoked: Vec<Result<Vec<u64>>>,
    /// Checksum of version 1 over its descriptor and data blocks.
    sum: u32,
    /// Commit time of the transaction before, in seconds.
    committed_secs: u64,
    /// The first transaction with a bad checksum, in a log that is read on (async_commit).
    first_bad: Option<u32>,
}

impl Recovery {
    fn run(mut self, has_error: bool) -> Result<Recovered> {
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
        // Before the first write, so that invalid fast commits leave the device unchanged.
        let changes = fast_commit::read(&self.0, end)?;
        // Without checksums only the targets of the blocks can be refused.
        self.replay(end, &revokes, ReplayPass::Verify)?;
        if has_error {
            // Durable before the mark is overwritten, for a replay that a power cut interrupts.
            *self.0.error.lock() = ERROR_IO;
            self.0.write_superblock()?;
            self.0.device.flush()?;
        }
        self.replay(end, &revokes, ReplayPass::Write)?;
        // The log is the only other copy: `finish` empties it.
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
        let mut scan = LogScan {
            sequence: self.0.superblock.sequence.get(),
            bad_block: None,
            revoked: Vec::new(),
            sum: !0,
            committed_secs: 0,
            first_bad: None,
        };
        let mut at = self.0.superblock.start.get();
        // At most one round, so that a forged log without an end is not read forever.
        let mut left = self.0.end - self.0.superblock.first.get();
        while left > 0 {
            left -= 1;
            let Some(block) = self.log_block(at, scan.sequence)? else {
                break;
            };
            if block.block_type != TYPE_COMMIT && !block.has_valid_checksum {
                scan.bad_block.get_or_insert(at);
            }
            let start = at;
            at = self.0.after(at, 1);
            match block.block_type {
                TYPE_DESCRIPTOR => {
                    let count = self.tags(&block.bytes).len() as u32;
                    if count > left {
                        break;
                    }
                    if self.has_sums() {
                        scan.sum = crc32(scan.sum, &block.bytes);
                        for index in 0..count {
                            scan.sum = crc32(scan.sum, &self.0.read(self.0.after(at, index))?);
                        }
                    }
                    left -= count;
                    at = self.0.after(at, count);
                }
                TYPE_REVOKE => scan.revoked.push(self.revoked(&block.bytes)),
                _ => {
                    if !self.scan_commit(&mut scan, &block, start, revokes)? {
                        break;
                    }
                }
            }
        }
        Ok(scan.first_bad.unwrap_or(scan.sequence))
    }

    /// Returns whether commit blocks have checksums of version 1.
    fn has_sums(&self) -> bool {
        let raw = &self.0.superblock;
        self.0.seed.is_none()
            && raw.header.block_type.get() == TYPE_SUPERBLOCK_V2
            && raw.feature_compat.get() & COMPAT_CHECKSUM != 0
    }

    /// Ends the scan of a transaction at its commit block `at`. Returns whether the log continues;
    /// false if the transaction is a remainder of an older log.
    fn scan_commit(
        &self,
        scan: &mut LogScan,
        block: &LogBlock,
        at: u32,
        revokes: &mut HashMap<u64, u32>,
    ) -> Result<bool> {
        let Ok((commit, _)) = RawCommit::read_from_prefix(&block.bytes[size_of::<RawHeader>()..])
        else {
            return Ok(false);
        };
        let (sequence, secs) = (scan.sequence, commit.secs.get());
        let sum = std::mem::replace(&mut scan.sum, !0);
        let is_valid = !self.has_sums() || commit_sum_matches(&commit, sum);
        let is_good = scan.bad_block.is_none() && block.has_valid_checksum && is_valid;
        // Time does not run backwards in one log (jbd2: `last_trans_commit_time`).
        if !is_good && secs < scan.committed_secs {
            return Ok(false);
        }
        let is_async = self.0.features & INCOMPAT_ASYNC_COMMIT != 0;
        let may_skip = is_async && scan.bad_block.is_none();
        let is_after_bad = self.has_sums() && scan.first_bad.is_some();
        if (!is_good && !may_skip) || is_after_bad {
            let at = scan.bad_block.unwrap_or(at);
            let sequence = scan.first_bad.unwrap_or(sequence);
            return Err(Error::corrupt(format!(
                "transaction {sequence}: bad checksum in block {at} of the log: repair with \
                 e2fsck -f, which discards the transaction and those after it"
            )));
        }
        if !is_good {
            scan.first_bad.get_or_insert(sequence);
        }
        for targets in scan.revoked.drain(..) {
            if scan.first_bad.is_none() {
                revokes.extend(targets?.into_iter().map(|target| (target, sequence)));
            }
        }
        scan.committed_secs = secs;
        scan.sequence = sequence.wrapping_add(1);
        Ok(true)
    }

    /// Verifies or writes the blocks of all transactions before `end`, except those revoked by the
    /// same or a later transaction.
    fn replay(&self, end: u32, revokes: &HashMap<u64, u32>, pass: ReplayPass) -> Result<()> {
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
                    for tag in self.tags(&block.bytes) {
                        // A revoke counts in its own transaction, too, as in jbd2: the block is
                        // free at its end.
                        let is_revoked = revokes
                            .get(&tag.target)
                            .is_some_and(|by| by.wrapping_sub(sequence) as i32 >= 0);
                        if !is_revoked {
                            self.replay_block(at, &tag, sequence, pass).map_err(|e| {
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

    fn replay_block(&self, at: u32, tag: &BlockTag, sequence: u32, pass: ReplayPass) -> Result<()> {
        if tag.target >= self.0.blocks.block_count {
            return Err(Error::corrupt("target beyond the end of the file system"));
        }
        if pass == ReplayPass::Verify && self.0.seed.is_none() {
            return Ok(());
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
        if pass == ReplayPass::Verify {
            return Ok(());
        }
        if tag.flags & TAG_ESCAPED != 0 {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        self.0
            .device
            .write_at(&bytes, tag.target * self.0.blocks.block_size as u64)
    }

    /// Reads the block of the log at `at`. Returns `None`, the end of the log, if the block does
    /// not belong to transaction `sequence`.
    pub(super) fn log_block(&self, at: u32, sequence: u32) -> Result<Option<LogBlock>> {
        let bytes = self.0.read(at)?;
        let Ok((header, _)) = RawHeader::read_from_prefix(&bytes) else {
            return Ok(None);
        };
        let block_type = header.block_type.get();
        let is_log = header.magic.get() == MAGIC && header.sequence.get() == sequence;
        if !is_log || !matches!(block_type, TYPE_DESCRIPTOR | TYPE_REVOKE | TYPE_COMMIT) {
            return Ok(None);
        }
        let has_valid_checksum = self.0.seed.is_none_or(|seed| match block_type {
            TYPE_COMMIT => {
                // Of a block partly written, the first sector has all that matters.
                let mut head = bytes[..COMMIT_LEN].to_vec();
                head.resize(bytes.len(), 0);
                [&bytes, &head]
                    .iter()
                    .any(|bytes| has_checksum_at(bytes, COMMIT_CHECKSUM_OFFSET, seed))
            }
            _ => has_checksum_at(&bytes, bytes.len() - 4, seed),
        });
        Ok(Some(LogBlock {
            bytes,
            block_type,
            has_valid_checksum,
        }))
    }

    /// Returns the length of the part of a descriptor or revoke block before its checksum.
    fn tagged_len(&self) -> usize {
        self.0.blocks.block_size - if self.0.seed.is_some() { 4 } else { 0 }
    }

    /// Returns the tags of a descriptor block, up to the last one or the block's end.
    pub(super) fn tags(&self, bytes: &[u8]) -> Vec<BlockTag> {
        let is_v3 = self.0.features & INCOMPAT_CSUM_V3 != 0;
        let mut rest = &bytes[size_of::<RawHeader>()..self.tagged_len()];
        let mut tags = Vec::new();
        while let Some((tag, after)) = if is_v3 {
            self.tag3(rest)
        } else {
            self.tag(rest)
        } {
            let uuid_len = if tag.flags & TAG_SAME_UUID == 0 {
                16
            } else {
                0
            };
            let is_last = tag.flags & TAG_LAST != 0;
            tags.push(tag);
            match after.get(uuid_len..) {
                Some(after) if !is_last => rest = after,
                _ => break,
            }
        }
        tags
    }

    /// Reads a tag with checksums of version 3, which has a place for the high half always.
    fn tag3<'b>(&self, bytes: &'b [u8]) -> Option<(BlockTag, &'b [u8])> {
        let (raw, after) = RawTag3::read_from_prefix(bytes).ok()?;
        let is_64bit = self.0.features & INCOMPAT_64BIT != 0;
        let high = if is_64bit { raw.block_hi.get() } else { 0 };
        let tag = BlockTag {
            target: u64::from(high) << 32 | u64::from(raw.block_lo.get()),
            flags: raw.flags.get(),
            checksum: raw.checksum.get(),
        };
        Some((tag, after))
    }

    /// Reads a tag of the other formats.
    fn tag<'b>(&self, bytes: &'b [u8]) -> Option<(BlockTag, &'b [u8])> {
        let (raw, mut after) = RawTag::read_from_prefix(bytes).ok()?;
        let mut target = u64::from(raw.block_lo.get());
        if self.0.features & INCOMPAT_64BIT != 0 {
            let (high, remaining) = after.split_first_chunk::<4>()?;
            target |= u64::from(u32::from_be_bytes(*high)) << 32;
            after = remaining;
        }
        // Version 2 has two unused bytes after each tag.
        let is_v2 = self.0.features & INCOMPAT_CSUM_V2 != 0;
        let after = after.get(if is_v2 { 2 } else { 0 }..)?;
        let tag = BlockTag {
            target,
            flags: raw.flags.get().into(),
            checksum: raw.checksum.get().into(),
        };
        Some((tag, after))
    }

    pub(super) fn revoked(&self, bytes: &[u8]) -> Result<Vec<u64>> {
        let head = size_of::<RawHeader>();
        let used = u32::from_be_bytes([
            bytes[head],
            bytes[head + 1],
            bytes[head + 2],
            bytes[head + 3],
        ]) as usize;
        if used > self.tagged_len() {
            return Err(Error::corrupt(format!("revoke block claims {used} bytes")));
        }
        let list = bytes.get(head + 4..used).unwrap_or_default();
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

/// Returns whether a block has the checksum at `checksum_at` of its other bytes.
fn has_checksum_at(bytes: &[u8], checksum_at: usize, seed: u32) -> bool {
    let (before, after) = bytes.split_at(checksum_at);
    let crc = crc32c(crc32c(crc32c(seed, before), &[0; 4]), &after[4..]);
    after[..4] == crc.to_be_bytes()
}

/// Returns whether a commit block has the checksum of version 1 of its transaction, or none.
fn commit_sum_matches(commit: &RawCommit, sum: u32) -> bool {
    let stored = (
        commit.checksum_type,
        commit.checksum_size,
        commit.checksum[0].get(),
    );
    stored == (0, 0, 0) || stored == (COMMIT_CRC32, COMMIT_CRC32_LEN, sum)
}
