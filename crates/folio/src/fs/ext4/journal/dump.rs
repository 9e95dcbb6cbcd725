//! The journal's superblock and its log, for inspection. Replays nothing.

use super::disk::*;
use super::recovery::Recovery;
use super::ring::{JournalBlocks, Ring};
use crate::base::{Error, Result, Timespec};
use crate::block::Device;
use std::sync::Arc;
use zerocopy::FromBytes;

/// The fields of a journal's superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFields {
    /// Names of its features.
    pub features: Vec<String>,
    /// Bytes per block.
    pub block_size: u32,
    /// Number of blocks, with the superblock and the area of fast commits.
    pub blocks: u32,
    /// Number of blocks at its end for fast commits.
    pub fast_commit_blocks: u32,
    /// First block of the log.
    pub first: u32,
    /// Sequence number of the first transaction in the log.
    pub sequence: u32,
    /// Block at which the log starts; 0 if it is empty.
    pub start: u32,
    /// Number of file systems that use the journal.
    pub users: u32,
    /// Its checksum, with features that demand one.
    pub checksum: Option<u32>,
    /// The error that made a mount abort the journal; 0 for none.
    pub errno: i32,
}

impl JournalFields {
    /// Reads the superblock of a journal at `offset` of `device`, in bytes.
    ///
    /// # Errors
    /// EUCLEAN without a journal's superblock there.
    pub(crate) fn read(device: &dyn Device, offset: u64) -> Result<Self> {
        let mut bytes = [0; size_of::<RawJournalSuperblock>()];
        device.read_at(&mut bytes, offset)?;
        let raw = RawJournalSuperblock::read_from_bytes(&bytes)
            .map_err(|_| Error::corrupt("superblock truncated"))?;
        let block_type = raw.header.block_type.get();
        if raw.header.magic.get() != MAGIC
            || !matches!(block_type, TYPE_SUPERBLOCK_V1 | TYPE_SUPERBLOCK_V2)
        {
            return Err(Error::corrupt("superblock: bad magic or type").at("journal"));
        }
        Ok(Self::of_raw(&raw))
    }

    fn of_raw(raw: &RawJournalSuperblock) -> Self {
        let has_features = raw.header.block_type.get() == TYPE_SUPERBLOCK_V2;
        let incompat = raw.feature_incompat.get();
        let has_checksum = has_features && incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0;
        Self {
            features: if has_features {
                feature_names(raw)
            } else {
                Vec::new()
            },
            block_size: raw.block_size.get(),
            blocks: raw.block_count.get(),
            fast_commit_blocks: raw.fast_commit_blocks.get(),
            first: raw.first.get(),
            sequence: raw.sequence.get(),
            start: raw.start.get(),
            users: raw.user_count.get(),
            checksum: has_checksum.then(|| raw.checksum.get()),
            errno: raw.errno.get() as i32,
        }
    }
}

/// Returns the names of a journal's features, in the order of dumpe2fs.
fn feature_names(raw: &RawJournalSuperblock) -> Vec<String> {
    let known = [
        (INCOMPAT_REVOKE, "journal_incompat_revoke"),
        (INCOMPAT_64BIT, "journal_64bit"),
        (INCOMPAT_ASYNC_COMMIT, "journal_async_commit"),
        (INCOMPAT_CSUM_V2, "journal_checksum_v2"),
        (INCOMPAT_CSUM_V3, "journal_checksum_v3"),
        (INCOMPAT_FAST_COMMIT, "journal_fast_commit"),
    ];
    let unnamed = |letter: char, bits: u32| {
        (0..32)
            .filter(move |bit| bits & 1 << bit != 0)
            .map(move |bit| format!("FEATURE_{letter}{bit}"))
    };
    let (compat, incompat) = (raw.feature_compat.get(), raw.feature_incompat.get());
    let named = known.iter().fold(0, |all, (flag, _)| all | flag);
    let mut names = Vec::new();
    if compat & COMPAT_CHECKSUM != 0 {
        names.push("journal_checksum".to_owned());
    }
    names.extend(unnamed('C', compat & !COMPAT_CHECKSUM));
    names.extend(
        known
            .iter()
            .filter(|(flag, _)| incompat & flag != 0)
            .map(|(_, name)| (*name).to_owned()),
    );
    names.extend(unnamed('I', incompat & !named));
    names.extend(unnamed('R', raw.feature_ro_compat.get()));
    names
}

/// The log of a journal, from its start to the first block that does not continue it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDump {
    /// Block of the journal at which the log starts; 0 if it is empty.
    pub start: u32,
    /// Sequence number of the first transaction.
    pub sequence: u32,
    /// Descriptor, revoke and commit blocks, in order.
    pub records: Vec<LogRecord>,
    /// The block that ends the log, and its sequence number if it is a block of another log.
    pub end: Option<(u32, Option<u32>)>,
}

/// A block of the log, except a data block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Its block in the journal.
    pub block: u32,
    /// Sequence number of its transaction.
    pub sequence: u32,
    /// Its kind and content.
    pub kind: LogRecordKind,
    /// Whether its checksum is right; true without checksums.
    pub has_valid_checksum: bool,
}

/// The kind of a block of the log, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRecordKind {
    /// Names the blocks whose copies follow it.
    Descriptor(Vec<LoggedBlock>),
    /// Lists blocks of the file system whose older copies are not replayed.
    Revoke(Vec<u64>),
    /// Ends a transaction, with the time of the commit.
    Commit(Timespec),
}

/// A copy of a block in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedBlock {
    /// The block of the file system.
    pub target: u64,
    /// The block of the journal with the copy.
    pub copy: u32,
    /// Flags of the tag.
    pub flags: u32,
}

/// Reads the log of the journal in `blocks`.
///
/// # Errors
/// EUCLEAN for an inconsistent superblock, EOPNOTSUPP for unknown features, the device's errors.
///
/// debugfs: `logdump`.
pub(crate) fn dump(blocks: JournalBlocks, device: Arc<dyn Device>) -> Result<JournalDump> {
    Ring::open(blocks, device)
        .and_then(|ring| Recovery(ring).dump())
        .map_err(|e| e.at("journal"))
}

impl Recovery {
    fn dump(&self) -> Result<JournalDump> {
        let raw = &self.0.superblock;
        let mut at = raw.start.get();
        let mut dump = JournalDump {
            start: at,
            sequence: raw.sequence.get(),
            records: Vec::new(),
            end: None,
        };
        if at == 0 {
            return Ok(dump);
        }
        let mut sequence = dump.sequence;
        // At most one round, so that a forged log without an end is not read forever.
        let mut left = self.0.end - raw.first.get();
        while left > 0 {
            let Some(block) = self.log_block(at, sequence)? else {
                dump.end = Some((at, self.foreign_sequence(at)?));
                break;
            };
            let (kind, len) = match block.block_type {
                TYPE_DESCRIPTOR => {
                    let tags = self.tags(&block.bytes);
                    let copies = (1..).zip(&tags).map(|(index, tag)| LoggedBlock {
                        target: tag.target,
                        copy: self.0.after(at, index),
                        flags: tag.flags,
                    });
                    let copies: Vec<_> = copies.collect();
                    // A block has fewer tags than bytes.
                    let len = copies.len() as u32 + 1;
                    (LogRecordKind::Descriptor(copies), len)
                }
                TYPE_REVOKE => (LogRecordKind::Revoke(self.revoked(&block.bytes)?), 1),
                _ => (LogRecordKind::Commit(commit_time(&block.bytes)), 1),
            };
            let is_commit = matches!(kind, LogRecordKind::Commit(_));
            dump.records.push(LogRecord {
                block: at,
                sequence,
                kind,
                has_valid_checksum: block.has_valid_checksum,
            });
            sequence = sequence.wrapping_add(u32::from(is_commit));
            at = self.0.after(at, len.min(left));
            left = left.saturating_sub(len);
        }
        Ok(dump)
    }

    /// Returns the sequence number of the block at `at`, if it is a block of any log.
    fn foreign_sequence(&self, at: u32) -> Result<Option<u32>> {
        let bytes = self.0.read(at)?;
        let header = RawHeader::read_from_prefix(&bytes).ok();
        Ok(header
            .filter(|(header, _)| header.magic.get() == MAGIC)
            .map(|(header, _)| header.sequence.get()))
    }
}

fn commit_time(bytes: &[u8]) -> Timespec {
    match RawCommit::read_from_prefix(&bytes[size_of::<RawHeader>()..]) {
        Ok((commit, _)) => {
            let secs = i64::try_from(commit.secs.get()).unwrap_or(i64::MAX);
            Timespec::new(secs, commit.nanos.get().min(999_999_999))
        }
        Err(_) => Timespec::new(0, 0),
    }
}
