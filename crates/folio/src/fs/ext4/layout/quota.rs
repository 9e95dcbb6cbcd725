//! Quota files (format `vfsv1`, version 2 revision 1) as bytes: a tree of blocks of 1 KiB.
//!
//! ```text
//!   block 0   magic, version, info        blocks of 1 KiB with all block sizes
//!   block 1   256 numbers of blocks  ->  256 numbers  ->  256 numbers  ->  256 numbers  ->  entries
//! ```
//!
//! The four bytes of an owner's number, the highest first, select the path through the tree. Blocks
//! of entries with room are a list. Linux: fs/quota/quota_tree.h, quotaio_v2.h.

use super::disk::{INODE_BASE_LEN, RawInode};
use crate::base::{Error, Result};
use std::mem::{offset_of, size_of};

/// Bytes of a block of a quota file.
pub(crate) const BLOCK_LEN: usize = 1024;
/// Levels of the tree above the entries.
pub(crate) const DEPTH: u32 = 4;
/// The root of the tree.
pub(crate) const ROOT_BLOCK: u32 = 1;
/// Bytes of the header before a block's entries.
pub(crate) const BLOCK_HEAD_LEN: usize = 16;
/// Bytes of an entry.
pub(crate) const ENTRY_LEN: usize = 72;
/// The version in the header.
pub(crate) const VERSION: u32 = 1;
/// Entries of a block.
const BLOCK_ENTRIES: u16 = ((BLOCK_LEN - BLOCK_HEAD_LEN) / ENTRY_LEN) as u16;

/// Offsets of the header's counts: blocks, first free block, first block of entries with room.
const BLOCKS_AT: usize = 20;
const FREE_BLOCK_AT: usize = 24;
const FREE_ENTRY_AT: usize = 28;
/// Offsets in an entry.
const INODES_AT: usize = 24;
const BYTES_AT: usize = 48;
const INODE_TIME_AT: usize = 64;

/// The kinds of owners, each with its own quota file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QuotaKind {
    /// `i_uid`.
    User,
    /// `i_gid`.
    Group,
    /// `i_projid`.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of the kernel's numbers.
    pub(crate) const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// Returns the word for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }

    /// Returns the magic number of the kind's file.
    pub(crate) fn magic(self) -> u32 {
        match self {
            Self::User => 0xD9C0_1F11,
            Self::Group => 0xD9C0_1927,
            Self::Project => 0xD9C0_3F14,
        }
    }
}

/// Returns the owners of an inode, in the order of [`QuotaKind::ALL`]. An inode without the field
/// belongs to project 0.
pub(crate) fn owners(raw: &RawInode) -> [u32; 3] {
    let id = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
    [
        id(raw.uid_lo.get(), raw.uid_high.get()),
        id(raw.gid_lo.get(), raw.gid_high.get()),
        if has_project(raw) {
            raw.projid.get()
        } else {
            0
        },
    ]
}

/// Whether the inode has the field `i_projid`.
pub(crate) fn has_project(raw: &RawInode) -> bool {
    let end = offset_of!(RawInode, projid) + size_of::<u32>();
    INODE_BASE_LEN + usize::from(raw.extra_isize.get()) >= end
}

/// Returns the little-endian word at byte `at`; 0 past the end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
}

/// Writes the word at byte `at`.
pub(crate) fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn set_long(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The counts of a quota file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaHeader {
    /// Blocks in use or on the list of free blocks.
    pub(crate) blocks: u32,
    /// First block of the list of free blocks; 0 for none.
    pub(crate) free_block: u32,
    /// First block of the list of blocks of entries with room; 0 for none.
    pub(crate) free_entry: u32,
}

impl QuotaHeader {
    /// Decodes block 0; `None` if it is not the header of a file of `kind`.
    pub(crate) fn parse(bytes: &[u8], kind: QuotaKind) -> Option<Self> {
        (word(bytes, 0) == kind.magic() && word(bytes, 4) == VERSION).then(|| Self {
            blocks: word(bytes, BLOCKS_AT),
            free_block: word(bytes, FREE_BLOCK_AT),
            free_entry: word(bytes, FREE_ENTRY_AT),
        })
    }

    /// Writes the counts into block 0.
    pub(crate) fn store(self, bytes: &mut [u8]) {
        set_word(bytes, BLOCKS_AT, self.blocks);
        set_word(bytes, FREE_BLOCK_AT, self.free_block);
        set_word(bytes, FREE_ENTRY_AT, self.free_entry);
    }
}

/// Returns the byte in a block of the tree at `level` (0 is the root) of the number of the block
/// that leads to the owner `id`.
pub(crate) fn reference_at(id: u32, level: u32) -> usize {
    4 * (id >> (8 * (DEPTH - 1 - level)) & 0xFF) as usize
}

/// The header of a block of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryBlockHead {
    /// The next block of the list, free or with room.
    pub(crate) next: u32,
    /// The block before it in the list of blocks with room.
    pub(crate) previous: u32,
    /// Used entries.
    pub(crate) entries: u16,
}

impl EntryBlockHead {
    /// Decodes the start of a block of entries.
    ///
    /// # Errors
    /// EUCLEAN for more entries than fit.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let entries = u16::from_le_bytes([bytes[8], bytes[9]]);
        if entries > BLOCK_ENTRIES {
            return Err(Error::corrupt(format!("{entries} entries in a block")));
        }
        Ok(Self {
            next: word(bytes, 0),
            previous: word(bytes, 4),
            entries,
        })
    }

    /// Writes the start of a block of entries.
    pub(crate) fn store(self, bytes: &mut [u8]) {
        set_word(bytes, 0, self.next);
        set_word(bytes, 4, self.previous);
        bytes[8..10].copy_from_slice(&self.entries.to_le_bytes());
    }

    /// Whether the block has room for no further entry.
    pub(crate) fn is_full(self) -> bool {
        self.entries >= BLOCK_ENTRIES
    }
}

/// Returns the bytes of the entries in a block, each with its offset.
pub(crate) fn entries(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let starts = (BLOCK_HEAD_LEN..).step_by(ENTRY_LEN);
    starts.zip(bytes[BLOCK_HEAD_LEN..].chunks_exact(ENTRY_LEN))
}

/// Whether an entry is free.
pub(crate) fn is_free(entry: &[u8]) -> bool {
    entry.iter().all(|byte| *byte == 0)
}

/// The bytes and inodes of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QuotaUsage {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl QuotaUsage {
    /// Returns the usage that an entry counts.
    pub(crate) fn load(entry: &[u8]) -> Self {
        Self {
            bytes: long(entry, BYTES_AT),
            inodes: long(entry, INODES_AT),
        }
    }

    /// Writes the usage of the owner `id` into its entry.
    pub(crate) fn store(self, entry: &mut [u8], id: u32) {
        set_word(entry, 0, id);
        set_long(entry, BYTES_AT, self.bytes);
        set_long(entry, INODES_AT, self.inodes);
        if is_free(entry) {
            // Owner 0 without usage: as in Linux, a time that means nothing marks the entry as
            // used.
            set_long(entry, INODE_TIME_AT, 1);
        }
    }
}
