//! One block of a directory's index as bytes: the root or a node, its checks and its checksum.
//!
//! ```text
//!   root   . .. | info: hash version, levels | limit count | child | hash child | ...  | checksum
//!   node   unused entry over the whole block | limit count | child | hash child | ...  | checksum
//! ```
//!
//! Source: the kernel's ext4 documentation, "Hash Tree Directories".

use super::block;
use super::context::DirectoryContext;
use super::hash::HashVersion;
use crate::base::{Error, LogicalBlock, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The info of the root, after `.` and `..`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRootInfo {
    pub(crate) reserved: U32,
    pub(crate) hash_version: u8,
    pub(crate) info_length: u8,
    pub(crate) indirect_levels: u8,
    pub(crate) unused_flags: u8,
}

pub(crate) const ROOT_INFO_AT: usize = 24;
pub(crate) const ROOT_INFO_LEN: usize = 8;
const _: () = assert!(size_of::<RawRootInfo>() == ROOT_INFO_LEN);

/// One entry of the index. The first has limit and count in place of the hash.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIndexEntry {
    pub(super) hash: U32,
    pub(super) block: U32,
}

pub(super) const INDEX_ENTRY_LEN: usize = 8;
const _: () = assert!(size_of::<RawIndexEntry>() == INDEX_ENTRY_LEN);

/// The tail after the last possible entry, with metadata_csum: reserved u32, checksum u32.
const TAIL_LEN: usize = 8;

/// The byte where the entries of the root start.
pub(crate) const ROOT_ENTRIES_AT: usize = ROOT_INFO_AT + ROOT_INFO_LEN;
/// The byte where the entries of a node start: after the header of an unused directory entry.
pub(crate) const NODE_ENTRIES_AT: usize = 8;

/// The bits of a child's number; the rest is reserved.
const CHILD_MASK: u32 = 0x0fff_ffff;

/// Returns the most levels of index blocks: 2, or 3 with large_dir.
pub(crate) fn levels_max(context: &DirectoryContext) -> usize {
    if context.large_dir { 3 } else { 2 }
}

/// Returns how many entries an index block has room for.
pub(crate) fn limit(context: &DirectoryContext, entries_at: usize) -> usize {
    let tail_len = if context.checksum_seed.is_some() {
        TAIL_LEN
    } else {
        0
    };
    (context.block_size - entries_at - tail_len) / INDEX_ENTRY_LEN
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |four| {
        u32::from_le_bytes([four[0], four[1], four[2], four[3]])
    })
}

/// Returns the number of entries of an index block.
pub(crate) fn count(bytes: &[u8], entries_at: usize) -> usize {
    (read_u32(bytes, entries_at) >> 16) as usize
}

pub(super) fn set_count(
    context: &DirectoryContext,
    bytes: &mut [u8],
    entries_at: usize,
    count: usize,
) {
    let head = U32::new((count as u32) << 16 | limit(context, entries_at) as u32);
    bytes[entries_at..entries_at + 4].copy_from_slice(head.as_bytes());
}

/// Returns the hash of the entry at `position`.
pub(crate) fn key(bytes: &[u8], entries_at: usize, position: usize) -> u32 {
    read_u32(bytes, entries_at + position * INDEX_ENTRY_LEN)
}

/// Returns the child of the entry at `position`.
pub(crate) fn child(bytes: &[u8], entries_at: usize, position: usize) -> LogicalBlock {
    LogicalBlock(read_u32(bytes, entries_at + position * INDEX_ENTRY_LEN + 4) & CHILD_MASK)
}

pub(super) fn set_child(bytes: &mut [u8], entries_at: usize, position: usize, child: LogicalBlock) {
    let at = entries_at + position * INDEX_ENTRY_LEN + 4;
    bytes[at..at + 4].copy_from_slice(&child.0.to_le_bytes());
}

/// Returns the checksum of an index block: over the entries in use, then the tail with its checksum
/// zero.
fn checksum(context: &DirectoryContext, seed: u32, bytes: &[u8], entries_at: usize) -> u32 {
    let used =
        entries_at + count(bytes, entries_at).min(limit(context, entries_at)) * INDEX_ENTRY_LEN;
    let tail = tail_at(context, entries_at);
    let crc = crc32c(seed, &bytes[..used]);
    crc32c(crc32c(crc, &bytes[tail..tail + 4]), &[0; 4])
}

fn tail_at(context: &DirectoryContext, entries_at: usize) -> usize {
    entries_at + limit(context, entries_at) * INDEX_ENTRY_LEN
}

/// Checks the checksum of an index block, with metadata_csum.
pub(crate) fn check_checksum(
    context: &DirectoryContext,
    bytes: &[u8],
    entries_at: usize,
) -> Result<()> {
    let Some(seed) = context.checksum_seed else {
        return Ok(());
    };
    if read_u32(bytes, tail_at(context, entries_at) + 4)
        != checksum(context, seed, bytes, entries_at)
    {
        return Err(Error::corrupt("bad checksum of the index"));
    }
    Ok(())
}

/// Writes the checksum of an index block after a change.
pub(crate) fn seal(context: &DirectoryContext, bytes: &mut [u8], entries_at: usize) {
    let Some(seed) = context.checksum_seed else {
        return;
    };
    let checksum = checksum(context, seed, bytes, entries_at);
    let at = tail_at(context, entries_at) + 4;
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks a whole index block and returns how many entries it has.
fn check(context: &DirectoryContext, bytes: &[u8], entries_at: usize) -> Result<usize> {
    let (limit_found, limit) = (
        (read_u32(bytes, entries_at) & 0xffff) as usize,
        limit(context, entries_at),
    );
    if limit_found != limit {
        return Err(Error::corrupt(format!(
            "index limit {limit_found}, should be {limit}"
        )));
    }
    let count = count(bytes, entries_at);
    if count == 0 || count > limit {
        return Err(Error::corrupt(format!(
            "index count {count} of at most {limit}"
        )));
    }
    check_checksum(context, bytes, entries_at)?;
    let mut previous = 0;
    for position in 1..count {
        let key = key(bytes, entries_at, position);
        if key < previous {
            return Err(Error::corrupt(format!(
                "index entry {position} is out of order"
            )));
        }
        previous = key;
    }
    Ok(count)
}

/// Returns the last entry whose hash is not above `hash`. The first entry has no hash: it covers
/// all hashes below the second.
pub(super) fn search(bytes: &[u8], entries_at: usize, count: usize, hash: u32) -> usize {
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if key(bytes, entries_at, middle) <= hash {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// Checks the root of an index; returns its hash version, its levels and its entries.
pub(super) fn check_root(
    context: &DirectoryContext,
    bytes: &[u8],
) -> Result<(HashVersion, usize, usize)> {
    if block::kind(context, LogicalBlock(0), bytes) != block::BlockKind::IndexRoot {
        return Err(Error::corrupt("not the root of an index"));
    }
    let Ok((info, _)) = RawRootInfo::ref_from_prefix(&bytes[ROOT_INFO_AT..]) else {
        return Err(Error::corrupt("no room for the root of an index"));
    };
    let version = HashVersion::from_disk(info.hash_version)?;
    if usize::from(info.info_length) != ROOT_INFO_LEN || info.unused_flags & 1 != 0 {
        return Err(Error::corrupt("unknown form of the index root"));
    }
    let levels = usize::from(info.indirect_levels) + 1;
    if levels > levels_max(context) {
        return Err(Error::corrupt(format!("index of {levels} levels")));
    }
    Ok((version, levels, check(context, bytes, ROOT_ENTRIES_AT)?))
}

/// Checks a node of an index; returns how many entries it has.
pub(super) fn check_node(context: &DirectoryContext, bytes: &[u8]) -> Result<usize> {
    if block::kind(context, LogicalBlock(u32::MAX), bytes) != block::BlockKind::IndexNode {
        return Err(Error::corrupt("not a node of an index"));
    }
    check(context, bytes, NODE_ENTRIES_AT)
}

/// Fills `bytes` with a node that has `entries`. Limit and count replace the hash of the first.
pub(super) fn write_node(context: &DirectoryContext, bytes: &mut [u8], entries: &[u8]) {
    bytes.fill(0);
    bytes[4..6].copy_from_slice(U16::new(context.block_size as u16).as_bytes());
    bytes[NODE_ENTRIES_AT..NODE_ENTRIES_AT + entries.len()].copy_from_slice(entries);
    set_count(
        context,
        bytes,
        NODE_ENTRIES_AT,
        entries.len() / INDEX_ENTRY_LEN,
    );
    seal(context, bytes, NODE_ENTRIES_AT);
}
