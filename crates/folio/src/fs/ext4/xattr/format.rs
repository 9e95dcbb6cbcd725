//! Extended attributes as bytes: those behind the inode's fields and those in a block of their own.
//!
//! ```text
//!   inode:  | fields, i_extra_isize | magic | entry | entry | 0 ...   value | value |
//!   block:  | header, 32 bytes              | entry | entry | 0 ...   value | value |
//!     entry: name length, name index, value offset, value inode, value size, hash, name
//! ```
//!
//! Values lie at the far end and are found by offset, counted from the first entry in an inode and
//! from the start of a block. A value too large for both may be an inode of its own (ea_inode).
//! Source: the kernel's ext4 documentation, "Extended Attributes"; Linux: fs/ext4/xattr.c.

use crate::base::{Errno, Error, InodeNumber, PhysicalBlock, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands before the entries, in an inode and in a block.
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

/// What stands before an attribute's name.
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

/// Prefixes that are stored as a number, longest first where one starts another.
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
pub(crate) const INDEX_SYSTEM: u8 = 7;
/// The attribute (of index 7) that holds the end of an inline file.
pub(crate) const INLINE_DATA_SUFFIX: &[u8] = b"data";

/// The longest suffix a name may have, in bytes.
const SUFFIX_LEN_MAX: usize = 255;

/// Where an attribute's value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Here.
    Inline(Vec<u8>),
    /// The data of another inode. `hash` is the entry's, over the name and the value's own
    /// checksum.
    EaInode {
        number: InodeNumber,
        size_bytes: u32,
        hash: u32,
    },
}

/// An extended attribute as it is stored: its prefix as a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xattr {
    /// The number of the name's prefix.
    pub(crate) index: u8,
    /// The name behind the prefix.
    pub(crate) suffix: Vec<u8>,
    /// The value.
    pub(crate) value: Value,
}

impl Xattr {
    /// The name as a program gives it ("user.colour"); `None` for a prefix no program can ask for.
    pub(crate) fn full_name(&self) -> Option<Vec<u8>> {
        let (_, prefix) = PREFIXES
            .into_iter()
            .find(|(index, _)| *index == self.index)?;
        Some([prefix, &self.suffix].concat())
    }

    /// Whether this is the attribute that holds the end of an inline file.
    pub(crate) fn is_inline_data(&self) -> bool {
        self.index == INDEX_SYSTEM && self.suffix == INLINE_DATA_SUFFIX
    }

    fn value_len(&self) -> usize {
        match &self.value {
            Value::Inline(bytes) => bytes.len(),
            Value::EaInode { .. } => 0,
        }
    }

    /// Bytes the attribute takes, with its name and its value if that is here.
    pub(super) fn stored_len(&self) -> usize {
        entry_len(self.suffix.len()) + self.value_len().next_multiple_of(4)
    }
}

pub(crate) fn entry_len(suffix_len: usize) -> usize {
    (ENTRY_LEN + suffix_len).next_multiple_of(4)
}

/// Splits a full name into the number of its prefix and the rest. EOPNOTSUPP for a prefix without a
/// number, EINVAL for a prefix alone, ERANGE for a rest over 255 bytes.
pub(crate) fn split_name(full_name: &[u8]) -> Result<(u8, &[u8])> {
    for (index, prefix) in PREFIXES {
        let Some(suffix) = full_name.strip_prefix(prefix) else {
            continue;
        };
        if prefix.ends_with(b".") == suffix.is_empty() {
            // "user." names nothing, and "system.posix_acl_accessory" is no ACL.
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

/// The attributes in an inode: `area` is everything behind the fields that `i_extra_isize` counts.
pub(crate) fn parse_inode_area(area: &[u8]) -> Result<Vec<Xattr>> {
    match U32::ref_from_prefix(area) {
        Ok((magic, entries)) if magic.get() == MAGIC => {
            parse(entries, 0).map_err(|error| error.at("extended attributes in the inode"))
        }
        _ => Ok(Vec::new()),
    }
}

/// A block of attributes, which inodes with the same ones may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XattrBlock {
    /// How many inodes share the block.
    pub(crate) reference_count: u32,
    /// The attributes.
    pub(crate) xattrs: Vec<Xattr>,
}

/// The attributes in the block `number`. `checksum_seed` is the file system's, with metadata_csum.
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

pub(crate) fn block_checksum(bytes: &[u8], number: PhysicalBlock, seed: u32) -> u32 {
    let crc = crc32c(seed, &number.0.to_le_bytes());
    let crc = crc32c(crc, &bytes[..CHECKSUM_AT]);
    crc32c(crc32c(crc, &[0; 4]), &bytes[CHECKSUM_AT + 4..])
}

/// Sets how many inodes share the block. [`seal_block`] must follow.
pub(crate) fn set_reference_count(bytes: &mut [u8], reference_count: u32) {
    let at = offset_of!(RawBlockHeader, reference_count);
    bytes[at..at + 4].copy_from_slice(&reference_count.to_le_bytes());
}

/// Writes the checksum of a block of attributes that goes to `number`.
pub(crate) fn seal_block(bytes: &mut [u8], number: PhysicalBlock, checksum_seed: Option<u32>) {
    let checksum = checksum_seed.map_or(0, |seed| block_checksum(bytes, number, seed));
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// The attributes whose entries start at `entries_at`; value offsets count from the start of
/// `bytes`.
fn parse(bytes: &[u8], entries_at: usize) -> Result<Vec<Xattr>> {
    let mut raw_entries = Vec::new();
    let mut at = entries_at;
    loop {
        let wrong = |what: &str| Error::corrupt(format!("entry at byte {at}: {what}"));
        let rest = bytes.get(at..).unwrap_or_default();
        match rest.first_chunk::<TERMINATOR_LEN>() {
            Some([0, 0, 0, 0]) => break,
            Some(_) => {}
            None => return Err(wrong("no end of the entries")),
        }
        let Ok((raw, after)) = RawEntry::ref_from_prefix(rest) else {
            return Err(wrong("no room for an entry"));
        };
        let Some(suffix) = after.get(..usize::from(raw.name_len)) else {
            return Err(wrong("name goes past the end"));
        };
        if suffix.contains(&0) {
            return Err(wrong("name with a zero byte"));
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

fn parse_value(bytes: &[u8], raw: &RawEntry, values_from: usize) -> Result<Value, &'static str> {
    if raw.value_inode.get() != 0 {
        let number = InodeNumber(raw.value_inode.get().into());
        return Ok(Value::EaInode {
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
        return Ok(Value::Inline(Vec::new()));
    }
    if offset < values_from {
        return Err("value lies among the entries");
    }
    let value = offset
        .checked_add(size)
        .and_then(|end| bytes.get(offset..end));
    value
        .map(|value| Value::Inline(value.to_vec()))
        .ok_or("value goes past the end")
}

/// Where a set of attributes goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Everything behind the inode's fields; zeros if there are no attributes in the inode.
    pub(crate) inode_area: Vec<u8>,
    /// The block, unshared and without its checksum ([`seal_block`]), if one is needed.
    pub(crate) block: Option<Vec<u8>>,
}

/// Lays attributes out: in the inode as long as there is room, the others in a block. ENOSPC if
/// neither will do.
pub(crate) fn lay_out(
    xattrs: &[Xattr],
    inode_area_len: usize,
    block_size: usize,
) -> Result<Layout> {
    let inode_room = inode_area_len.saturating_sub(INODE_HEADER_LEN + TERMINATOR_LEN);
    let block_room = block_size - BLOCK_HEADER_LEN - TERMINATOR_LEN;
    let mut order: Vec<&Xattr> = xattrs.iter().collect();
    // What every open asks for stands nearest. Should that leave the block overfull, small ones
    // first may do.
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

    let mut inode_area = vec![0; inode_area_len];
    if !in_inode.is_empty() {
        inode_area[..INODE_HEADER_LEN].copy_from_slice(&MAGIC.to_le_bytes());
        write(&mut inode_area[INODE_HEADER_LEN..], 0, &mut in_inode, false);
    }
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
    Ok(Layout { inode_area, block })
}

/// Shares attributes out in the order given; the end of an inline file must be in the inode.
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

/// Writes entries from `entries_at` on and values from the end of `bytes` down; they fit. Returns
/// the hash over all entries, 0 unless `is_block`: in an inode the kernel leaves hashes zero.
fn write(bytes: &mut [u8], entries_at: usize, xattrs: &mut [&Xattr], is_block: bool) -> u32 {
    // The order in which the kernel searches a block.
    xattrs.sort_by(|a, b| {
        (a.index, a.suffix.len(), &a.suffix).cmp(&(b.index, b.suffix.len(), &b.suffix))
    });
    let (mut at, mut values_at, mut hashes) = (entries_at, bytes.len(), Vec::new());
    // Values end at a multiple of four, counted from where their offsets count.
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
            Value::Inline(value) => {
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
            Value::EaInode {
                number,
                size_bytes,
                hash,
            } => {
                // The number was read from 32 bits, or comes from the file system's own allocator.
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

/// The hash of one entry (`e_hash`): the name by bytes, then the value by little-endian words,
/// padded with zeros.
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

/// The hash of a block (`h_hash`); 0, "not to be shared", if an entry has none.
fn block_hash(entry_hashes: &[u32]) -> u32 {
    if entry_hashes.contains(&0) {
        return 0;
    }
    entry_hashes
        .iter()
        .fold(0, |hash, entry| hash.rotate_left(16) ^ entry)
}
