//! Extended attributes as bytes: after the inode's fields, and in a block of their own.
//!
//! ```text
//!   inode:  | fields, i_extra_isize | magic | entry | entry | 0 ...   value | value |
//!   block:  | header, 32 bytes              | entry | entry | 0 ...   value | value |
//!     entry: name length, name index, value offset, value inode, value size, hash, name
//! ```
//!
//! Values are stored from the end down. Their offsets count from the first entry in an inode, and
//! from the start of a block. A value too large for both may be in an inode of its own (ea_inode).
//! Source: the kernel's ext4 documentation, "Extended Attributes"; Linux: fs/ext4/xattr.c.

use crate::base::{Errno, Error, InodeNumber, PhysicalBlock, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The magic number before the entries, in an inode and in a block.
pub(crate) const MAGIC: u32 = 0xEA02_0000;

/// Bytes of the header in an inode: the magic alone.
const INODE_HEADER_LEN: usize = 4;

/// The header of a block of attributes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawBlockHeader {
    pub(crate) magic: U32,
    pub(crate) reference_count: U32,
    pub(crate) blocks: U32,
    pub(crate) hash: U32,
    pub(crate) checksum: U32,
    pub(crate) reserved: [U32; 3],
}

pub(crate) const BLOCK_HEADER_LEN: usize = 32;
const _: () = assert!(size_of::<RawBlockHeader>() == BLOCK_HEADER_LEN);
const CHECKSUM_AT: usize = offset_of!(RawBlockHeader, checksum);
const _: () = assert!(CHECKSUM_AT == 16);

/// The header before an attribute's name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawEntry {
    pub(crate) name_len: u8,
    pub(crate) name_index: u8,
    pub(crate) value_offset: U16,
    pub(crate) value_inode: U32,
    pub(crate) value_size: U32,
    pub(crate) hash: U32,
}

const ENTRY_LEN: usize = 16;
const _: () = assert!(size_of::<RawEntry>() == ENTRY_LEN);
/// Four zero bytes end the entries.
const TERMINATOR_LEN: usize = 4;

/// Prefixes that are stored as a number. A prefix is before the shorter ones that it starts with.
const PREFIXES: [(u8, &[u8]); 8] = [
    (1, b"user."),
    (INDEX_ACL_ACCESS, b"system.posix_acl_access"),
    (INDEX_ACL_DEFAULT, b"system.posix_acl_default"),
    (8, b"system.richacl"),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
    (INDEX_SYSTEM, b"system."),
];

/// Name index of `system.posix_acl_access`, whose value on disk is in [`super::acl`]'s short form.
pub(crate) const INDEX_ACL_ACCESS: u8 = 2;
/// Name index of `system.posix_acl_default`.
pub(crate) const INDEX_ACL_DEFAULT: u8 = 3;
/// Name index of the other `system.` attributes.
pub(crate) const INDEX_SYSTEM: u8 = 7;
/// The suffix of the attribute (of index 7) that continues an inline file.
pub(crate) const INLINE_DATA_SUFFIX: &[u8] = b"data";

/// The longest suffix of a name, in bytes.
const SUFFIX_LEN_MAX: usize = 255;

/// An attribute's value, or its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum XattrValue {
    /// Beside the entry.
    Inline(Vec<u8>),
    /// In the data of another inode. `hash` is that of the entry, over the name and the value's
    /// checksum.
    EaInode {
        number: InodeNumber,
        size_bytes: u32,
        hash: u32,
    },
}

/// An extended attribute as stored, with its prefix as a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xattr {
    /// The number of the name's prefix.
    pub(crate) index: u8,
    /// The name after the prefix.
    pub(crate) suffix: Vec<u8>,
    /// The value.
    pub(crate) value: XattrValue,
}

impl Xattr {
    /// Returns the name that programs use ("user.color"); `None` for an unknown prefix.
    pub(crate) fn full_name(&self) -> Option<Vec<u8>> {
        let (_, prefix) = PREFIXES
            .into_iter()
            .find(|(index, _)| *index == self.index)?;
        Some([prefix, &self.suffix].concat())
    }

    /// Whether this is `system.data`, which continues an inline file.
    pub(crate) fn is_inline_data(&self) -> bool {
        self.index == INDEX_SYSTEM && self.suffix == INLINE_DATA_SUFFIX
    }

    pub(super) fn value_len(&self) -> usize {
        match &self.value {
            XattrValue::Inline(bytes) => bytes.len(),
            XattrValue::EaInode { .. } => 0,
        }
    }

    /// Returns the bytes that the attribute needs for its name and a value beside the entry.
    pub(super) fn stored_len(&self) -> usize {
        entry_len(self.suffix.len()) + self.value_len().next_multiple_of(4)
    }
}

/// Returns the bytes of an entry, without its value.
pub(crate) fn entry_len(suffix_len: usize) -> usize {
    (ENTRY_LEN + suffix_len).next_multiple_of(4)
}

/// Splits a full name into the number of its prefix and the rest.
///
/// # Errors
/// EOPNOTSUPP for an unknown prefix, EINVAL for a prefix alone, ERANGE for a rest over 255 bytes.
pub(crate) fn split_name(full_name: &[u8]) -> Result<(u8, &[u8])> {
    for (index, prefix) in PREFIXES {
        let Some(suffix) = full_name.strip_prefix(prefix) else {
            continue;
        };
        if prefix.ends_with(b".") == suffix.is_empty() {
            // "user." is not a name, and "system.posix_acl_accessory" is not an ACL.
            if suffix.is_empty() {
                return Err(Errno::INVAL.into());
            }
            continue;
        }
        if suffix.len() > SUFFIX_LEN_MAX {
            return Err(Errno::RANGE.into());
        }
        return Ok((index, suffix));
    }
    Err(Errno::OPNOTSUPP.into())
}

/// Decodes the attributes in an inode. `area`: the bytes after the fields that `i_extra_isize`
/// counts.
///
/// # Errors
/// EUCLEAN for damaged entries.
pub(crate) fn parse_inode_area(area: &[u8]) -> Result<Vec<Xattr>> {
    match U32::ref_from_prefix(area) {
        Ok((magic, entries)) if magic.get() == MAGIC => {
            parse(entries, 0).map_err(|error| error.at("extended attributes in the inode"))
        }
        _ => Ok(Vec::new()),
    }
}

/// A block of attributes, which inodes with equal attributes may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XattrBlock {
    /// The number of inodes that share the block.
    pub(crate) reference_count: u32,
    /// The attributes.
    pub(crate) xattrs: Vec<Xattr>,
}

/// Decodes the attributes in the block `number`. `checksum_seed`: the file system's, with
/// metadata_csum.
///
/// # Errors
/// EUCLEAN for a damaged block.
pub(crate) fn parse_block(
    bytes: &[u8],
    number: PhysicalBlock,
    checksum_seed: Option<u32>,
) -> Result<XattrBlock> {
    check_block(bytes, number, checksum_seed)
        .map_err(|error| error.at(format!("xattr block {number}")))
}

fn check_block(
    bytes: &[u8],
    number: PhysicalBlock,
    checksum_seed: Option<u32>,
) -> Result<XattrBlock> {
    let header = match RawBlockHeader::ref_from_prefix(bytes) {
        Ok((header, _)) if header.magic.get() == MAGIC => header,
        _ => return Err(Error::corrupt("bad magic")),
    };
    if header.blocks.get() != 1 {
        return Err(Error::corrupt(format!("spans {} blocks", header.blocks)));
    }
    if checksum_seed
        .is_some_and(|seed| header.checksum.get() != block_checksum(bytes, number, seed))
    {
        return Err(Error::corrupt("bad checksum"));
    }
    let reference_count = header.reference_count.get();
    if reference_count == 0 {
        return Err(Error::corrupt("reference count is 0"));
    }
    Ok(XattrBlock {
        reference_count,
        xattrs: parse(bytes, BLOCK_HEADER_LEN)?,
    })
}

/// Returns the checksum of the block `number`.
pub(crate) fn block_checksum(bytes: &[u8], number: PhysicalBlock, seed: u32) -> u32 {
    let crc = crc32c(seed, &number.0.to_le_bytes());
    let crc = crc32c(crc, &bytes[..CHECKSUM_AT]);
    crc32c(crc32c(crc, &[0; 4]), &bytes[CHECKSUM_AT + 4..])
}

/// Sets the number of inodes that share the block. The caller calls [`seal_block`] afterwards.
pub(crate) fn set_reference_count(bytes: &mut [u8], reference_count: u32) {
    let at = offset_of!(RawBlockHeader, reference_count);
    bytes[at..at + 4].copy_from_slice(&reference_count.to_le_bytes());
}

/// Writes the checksum of a block of attributes for block `number`.
pub(crate) fn seal_block(bytes: &mut [u8], number: PhysicalBlock, checksum_seed: Option<u32>) {
    let checksum = checksum_seed.map_or(0, |seed| block_checksum(bytes, number, seed));
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Decodes the attributes whose entries start at `entries_at`. Value offsets count from the start
/// of `bytes`.
fn parse(bytes: &[u8], entries_at: usize) -> Result<Vec<Xattr>> {
    let mut raw_entries = Vec::new();
    let mut at = entries_at;
    loop {
        let damaged = |what: &str| Error::corrupt(format!("entry at byte {at}: {what}"));
        let rest = bytes.get(at..).unwrap_or_default();
        match rest.first_chunk::<TERMINATOR_LEN>() {
            Some([0, 0, 0, 0]) => break,
            Some(_) => {}
            None => return Err(damaged("entries without an end")),
        }
        let Ok((raw, after)) = RawEntry::ref_from_prefix(rest) else {
            return Err(damaged("no room for an entry"));
        };
        let Some(suffix) = after.get(..usize::from(raw.name_len)) else {
            return Err(damaged("name exceeds the area"));
        };
        if suffix.contains(&0) {
            return Err(damaged("name with a zero byte"));
        }
        raw_entries.push((at, raw, suffix));
        at += entry_len(suffix.len());
    }
    let values_from = at + TERMINATOR_LEN;
    raw_entries
        .into_iter()
        .map(|(at, raw, suffix)| {
            let value = parse_value(bytes, raw, values_from)
                .map_err(|what| Error::corrupt(format!("entry at byte {at}: {what}")))?;
            Ok(Xattr {
                index: raw.name_index,
                suffix: suffix.to_vec(),
                value,
            })
        })
        .collect()
}

fn parse_value(
    bytes: &[u8],
    raw: &RawEntry,
    values_from: usize,
) -> Result<XattrValue, &'static str> {
    if raw.value_inode.get() != 0 {
        let number = InodeNumber(raw.value_inode.get().into());
        return Ok(XattrValue::EaInode {
            number,
            size_bytes: raw.value_size.get(),
            hash: raw.hash.get(),
        });
    }
    let (offset, size) = (
        usize::from(raw.value_offset.get()),
        raw.value_size.get() as usize,
    );
    if size == 0 {
        return Ok(XattrValue::Inline(Vec::new()));
    }
    if offset < values_from {
        return Err("value overlaps the entries");
    }
    let value = offset
        .checked_add(size)
        .and_then(|end| bytes.get(offset..end));
    value
        .map(|value| XattrValue::Inline(value.to_vec()))
        .ok_or("value exceeds the area")
}

/// The encoded attributes of one inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XattrLayout {
    /// The bytes after the inode's fields; zeros if the inode has no attributes.
    pub(crate) inode_area: Vec<u8>,
    /// The block, if one is needed: for one inode, and without its checksum ([`seal_block`]).
    pub(crate) block: Option<Vec<u8>>,
}

/// Encodes attributes: in the inode as far as they fit, the rest in a block.
///
/// # Errors
/// ENOSPC if they do not fit.
pub(crate) fn lay_out(
    xattrs: &[Xattr],
    inode_area_len: usize,
    block_size: usize,
) -> Result<XattrLayout> {
    let inode_room = inode_room(inode_area_len).unwrap_or(0);
    let block_room = block_size - BLOCK_HEADER_LEN - TERMINATOR_LEN;
    let mut order: Vec<&Xattr> = xattrs.iter().collect();
    // Attributes that every open reads come first. If the block is then too full, another order
    // may fit.
    order.sort_by_key(|xattr| !matches!(xattr.index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT | 6));
    let split = split_between(&order, inode_room, block_room).or_else(|| {
        order.sort_by_key(|xattr| xattr.stored_len());
        split_between(&order, inode_room, block_room)
    });
    let split = split.or_else(|| {
        order.reverse();
        split_between(&order, inode_room, block_room)
    });
    let Some((mut in_inode, mut in_block)) = split else {
        return Err(Errno::NOSPC.into());
    };

    let inode_area = write_inode_area(&mut in_inode, inode_area_len);
    let block = (!in_block.is_empty()).then(|| {
        let mut bytes = vec![0; block_size];
        let hash = write(&mut bytes, BLOCK_HEADER_LEN, &mut in_block, true);
        let header = RawBlockHeader {
            magic: U32::new(MAGIC),
            reference_count: U32::new(1),
            blocks: U32::new(1),
            hash: U32::new(hash),
            checksum: U32::ZERO,
            reserved: [U32::ZERO; 3],
        };
        bytes[..BLOCK_HEADER_LEN].copy_from_slice(header.as_bytes());
        bytes
    });
    Ok(XattrLayout { inode_area, block })
}

/// Encodes the attributes of the inode alone, where `xattrs` are all that it has in its area.
///
/// # Errors
/// ENOSPC if they do not fit.
pub(crate) fn lay_out_inode_area(xattrs: &[Xattr], area_len: usize) -> Result<Vec<u8>> {
    let used: usize = xattrs.iter().map(Xattr::stored_len).sum();
    if !xattrs.is_empty() && inode_room(area_len).is_none_or(|room| used > room) {
        return Err(Errno::NOSPC.into());
    }
    Ok(write_inode_area(
        &mut xattrs.iter().collect::<Vec<_>>(),
        area_len,
    ))
}

/// Returns the longest value of `system.data` that fits into the inode beside `xattrs`, a multiple
/// of four; `None` if not even an empty one does.
pub(crate) fn inline_data_max(xattrs: &[Xattr], area_len: usize) -> Option<usize> {
    let others = xattrs.iter().filter(|xattr| !xattr.is_inline_data());
    let used: usize = others.map(Xattr::stored_len).sum();
    let left = inode_room(area_len)?.checked_sub(used + entry_len(INLINE_DATA_SUFFIX.len()))?;
    Some(left / 4 * 4)
}

/// Returns the bytes that entries and values can use in an area of an inode.
fn inode_room(area_len: usize) -> Option<usize> {
    area_len.checked_sub(INODE_HEADER_LEN + TERMINATOR_LEN)
}

/// Writes the area of an inode. They fit: the caller counted them.
fn write_inode_area(xattrs: &mut [&Xattr], area_len: usize) -> Vec<u8> {
    let mut area = vec![0; area_len];
    if !xattrs.is_empty() {
        area[..INODE_HEADER_LEN].copy_from_slice(&MAGIC.to_le_bytes());
        write(&mut area[INODE_HEADER_LEN..], 0, xattrs, false);
    }
    area
}

/// Distributes attributes in the given order. `system.data` must be in the inode.
fn split_between<'a>(
    order: &[&'a Xattr],
    inode_room: usize,
    block_room: usize,
) -> Option<(Vec<&'a Xattr>, Vec<&'a Xattr>)> {
    let (mut in_inode, mut in_block) = (Vec::new(), Vec::new());
    let (mut inode_left, mut block_left) = (inode_room, block_room);
    let (first, rest): (Vec<_>, Vec<_>) = order
        .iter()
        .copied()
        .partition(|xattr| xattr.is_inline_data());
    for xattr in first.into_iter().chain(rest) {
        let len = xattr.stored_len();
        if len <= inode_left {
            inode_left -= len;
            in_inode.push(xattr);
        } else if len <= block_left && !xattr.is_inline_data() {
            block_left -= len;
            in_block.push(xattr);
        } else {
            return None;
        }
    }
    Some((in_inode, in_block))
}

/// Writes entries from `entries_at` on and values from the end of `bytes` down. They fit: the
/// caller counted them. Returns the hash over all entries; 0 unless `is_block`, because the kernel
/// leaves the hashes in an inode zero.
fn write(bytes: &mut [u8], entries_at: usize, xattrs: &mut [&Xattr], is_block: bool) -> u32 {
    // The order in which the kernel searches a block.
    xattrs.sort_by(|a, b| {
        (a.index, a.suffix.len(), &a.suffix).cmp(&(b.index, b.suffix.len(), &b.suffix))
    });
    let (mut at, mut values_at, mut hashes) = (entries_at, bytes.len(), Vec::new());
    // Values end at a multiple of four of their offset.
    values_at -= values_at % 4;
    for xattr in xattrs {
        let mut raw = RawEntry {
            name_len: xattr.suffix.len() as u8,
            name_index: xattr.index,
            value_offset: U16::ZERO,
            value_inode: U32::ZERO,
            value_size: U32::ZERO,
            hash: U32::ZERO,
        };
        match &xattr.value {
            XattrValue::Inline(value) => {
                values_at -= value.len().next_multiple_of(4);
                bytes[values_at..values_at + value.len()].copy_from_slice(value);
                if !value.is_empty() {
                    raw.value_offset.set(values_at as u16);
                }
                raw.value_size.set(value.len() as u32);
                raw.hash.set(if is_block {
                    entry_hash(&xattr.suffix, value)
                } else {
                    0
                });
            }
            XattrValue::EaInode {
                number,
                size_bytes,
                hash,
            } => {
                // The number has 32 bits: it was read from an entry, or allocated by `Space`.
                raw.value_inode.set(number.0 as u32);
                raw.value_size.set(*size_bytes);
                raw.hash.set(*hash);
            }
        }
        bytes[at..at + ENTRY_LEN].copy_from_slice(raw.as_bytes());
        bytes[at + ENTRY_LEN..at + ENTRY_LEN + xattr.suffix.len()].copy_from_slice(&xattr.suffix);
        at += entry_len(xattr.suffix.len());
        hashes.push(raw.hash.get());
    }
    if is_block { block_hash(&hashes) } else { 0 }
}

/// Returns the hash of one entry (`e_hash`): the name by bytes, then the value by little-endian
/// words, padded with zeros.
pub(crate) fn entry_hash(suffix: &[u8], value: &[u8]) -> u32 {
    let name = suffix
        .iter()
        .fold(0_u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte));
    value.chunks(4).fold(name, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Returns the hash of a block (`h_hash`); 0, "do not share", if an entry has none.
fn block_hash(entry_hashes: &[u32]) -> u32 {
    if entry_hashes.contains(&0) {
        return 0;
    }
    entry_hashes
        .iter()
        .fold(0, |hash, entry| hash.rotate_left(16) ^ entry)
}
