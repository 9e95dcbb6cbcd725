//! One directory block as bytes: its entries, the checks on them, and the checksum at its end.
//!
//! ```text
//!   | entry | entry | ... | last entry, reaching to the end | tail: checksum |
//!     entry: inode u32, length u16, name length u8, file type u8, name, unused bytes up to the length
//! ```
//!
//! Entries start at multiples of four and leave no gap; one with inode 0 is unused space. The tail,
//! 12 bytes that look like an unused entry, is there only with metadata_csum. Source: the kernel's
//! ext4 documentation, "Directory Entries"; fs/ext4/dir.c for the checks.

use super::context::DirectoryContext;
use super::fold::SoughtName;
use crate::base::{Error, LogicalBlock, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header before every name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntryHeader {
    inode: U32,
    length: U16,
    name_len: u8,
    file_type: u8,
}

const HEADER_LEN: usize = 8;
const _: () = assert!(size_of::<RawEntryHeader>() == HEADER_LEN);

/// The shortest entry: a header and a name of up to four bytes.
pub(super) const ENTRY_LEN_MIN: usize = 12;

/// The checksum tail, shaped like an unused entry.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTail {
    inode: U32,
    length: U16,
    name_len: u8,
    file_type: u8,
    checksum: U32,
}

const TAIL_LEN: usize = 12;
const _: () = assert!(size_of::<RawTail>() == TAIL_LEN);
/// The tail's `file_type`, which no file type uses.
const TAIL_FILE_TYPE: u8 = 0xDE;

/// The longest name, in bytes (`EXT4_NAME_LEN`).
pub(crate) const NAME_LEN_MAX: usize = 255;

/// Returns the bytes that an entry with a name of `name_len` bytes needs.
pub(crate) fn needed_len(name_len: usize) -> usize {
    (HEADER_LEN + name_len).next_multiple_of(4)
}

/// Returns the length of an entry that records `length`, in a region of which `rest_len` bytes are
/// left: 64 KiB need more than 16 bits, and are recorded as 0 or as ones.
#[inline]
fn entry_len(length: u16, rest_len: usize) -> usize {
    const LARGEST: usize = 1 << 16;
    if rest_len == LARGEST && matches!(length, 0 | u16::MAX) {
        LARGEST
    } else {
        length.into()
    }
}

#[cold]
fn bad_entry(offset: usize, what: std::fmt::Arguments<'_>) -> Error {
    Error::corrupt(format!("entry at byte {offset}: {what}"))
}

/// One entry of a block, within bounds and with a valid length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// Its first byte, from the start of the region.
    pub(crate) offset: usize,
    /// Bytes up to the next entry.
    pub(crate) len: usize,
    /// The inode; 0 if unused.
    pub(crate) number: u32,
    /// `EXT4_FT_*`; undefined without the feature filetype.
    pub(crate) file_type: u8,
    /// The name; undefined in an unused entry.
    pub(crate) name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Decodes the entry at `offset` of `region`, at whose end entries end.
    ///
    /// # Errors
    /// EUCLEAN for an invalid entry.
    #[inline]
    pub(crate) fn at(region: &'a [u8], offset: usize) -> Result<Self> {
        let rest = region.get(offset..).unwrap_or_default();
        let Ok((header, after)) = RawEntryHeader::ref_from_prefix(rest) else {
            return Err(bad_entry(offset, format_args!("no room for an entry")));
        };
        let len = entry_len(header.length.get(), rest.len());
        if len < ENTRY_LEN_MIN || !len.is_multiple_of(4) || len > rest.len() {
            return Err(bad_entry(offset, format_args!("bad length {len}")));
        }
        if len < rest.len() && rest.len() - len < ENTRY_LEN_MIN {
            return Err(bad_entry(
                offset,
                format_args!("length {len} leaves no room for the next entry"),
            ));
        }
        let (name_len, number) = (usize::from(header.name_len), header.inode.get());
        if needed_len(name_len) > len {
            let what = format_args!("name of {name_len} bytes does not fit its length {len}");
            return Err(bad_entry(offset, what));
        }
        if number != 0 && name_len == 0 {
            return Err(bad_entry(offset, format_args!("empty name")));
        }
        Ok(Self {
            offset,
            len,
            number,
            file_type: header.file_type,
            name: &after[..name_len],
        })
    }

    /// Whether this is the entry of `name`.
    #[inline]
    fn is_called(&self, name: &SoughtName<'_>) -> bool {
        name.is(self.name) && !self.is_unused()
    }

    /// Whether the space is free.
    pub(crate) fn is_unused(&self) -> bool {
        self.number == 0
    }

    /// Returns the bytes that the entry needs.
    pub(crate) fn used_len(&self) -> usize {
        if self.is_unused() {
            0
        } else {
            needed_len(self.name.len())
        }
    }

    /// Checks that a program could have made the name.
    ///
    /// # Errors
    /// EUCLEAN for a slash or a zero byte, which would break paths.
    pub(crate) fn check_name(&self) -> Result<()> {
        if self.name.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(bad_entry(
                self.offset,
                format_args!("name with a slash or zero byte"),
            ));
        }
        Ok(())
    }
}

/// The entries of a region, in order, unused ones included. Ends after the first error.
pub(crate) struct Entries<'a> {
    region: &'a [u8],
    offset: usize,
}

impl<'a> Entries<'a> {
    /// Returns all entries of `region`.
    pub(crate) fn new(region: &'a [u8]) -> Self {
        Self { region, offset: 0 }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.region.len() {
            return None;
        }
        match Entry::at(self.region, self.offset) {
            Ok(entry) => {
                self.offset += entry.len;
                Some(Ok(entry))
            }
            Err(error) => {
                self.offset = self.region.len();
                Some(Err(error))
            }
        }
    }
}

/// The place of a name in a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot<'a> {
    /// The entry with the name.
    pub(crate) entry: Entry<'a>,
    /// The first byte of the entry before it, if there is one.
    pub(crate) previous: Option<usize>,
}

/// Looks up `name` in `region`.
pub(crate) fn find<'a>(region: &'a [u8], name: &SoughtName<'_>) -> Result<Option<Slot<'a>>> {
    let mut previous = None;
    for entry in Entries::new(region) {
        let entry = entry?;
        if entry.is_called(name) {
            return Ok(Some(Slot { entry, previous }));
        }
        previous = Some(entry.offset);
    }
    Ok(None)
}

/// The place for a new name in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// After the entry at `offset`, which shrinks to `used_len`; the two share `len` bytes.
    At {
        offset: usize,
        used_len: usize,
        len: usize,
    },
    /// No gap is long enough; `free_len` bytes are free in total.
    Full { free_len: usize },
    /// The region already has the name.
    Exists,
}

/// Looks for room for `name` in `region`.
pub(crate) fn find_room(region: &[u8], name: &SoughtName<'_>) -> Result<Room> {
    let needed = needed_len(name.bytes().len());
    let (mut found, mut free_len) = (None, 0);
    for entry in Entries::new(region) {
        let entry = entry?;
        if entry.is_called(name) {
            return Ok(Room::Exists);
        }
        let used_len = entry.used_len();
        free_len += entry.len - used_len;
        if found.is_none() && entry.len - used_len >= needed {
            found = Some(Room::At {
                offset: entry.offset,
                used_len,
                len: entry.len,
            });
        }
    }
    Ok(found.unwrap_or(Room::Full { free_len }))
}

/// An entry to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    /// The inode.
    pub(crate) number: u32,
    /// `EXT4_FT_*`.
    pub(crate) file_type: u8,
    /// The name, at most [`NAME_LEN_MAX`] bytes.
    pub(crate) name: &'a [u8],
}

/// Writes `entry` with length `len` at `offset`; the bytes after the name become zero.
pub(crate) fn write_entry(bytes: &mut [u8], offset: usize, len: usize, entry: &NewEntry<'_>) {
    let header = RawEntryHeader {
        inode: U32::new(entry.number),
        length: U16::new(len as u16),
        name_len: entry.name.len() as u8,
        file_type: entry.file_type,
    };
    let used = needed_len(entry.name.len());
    let place = &mut bytes[offset..offset + used];
    place.fill(0);
    place[..HEADER_LEN].copy_from_slice(header.as_bytes());
    place[HEADER_LEN..HEADER_LEN + entry.name.len()].copy_from_slice(entry.name);
}

/// Writes `entry` into the `room` that [`find_room`] found; returns whether there was any.
pub(crate) fn insert(bytes: &mut [u8], room: Room, entry: &NewEntry<'_>) -> bool {
    let Room::At {
        offset,
        used_len,
        len,
    } = room
    else {
        return false;
    };
    if used_len > 0 {
        set_len(bytes, offset, used_len);
    }
    write_entry(bytes, offset + used_len, len - used_len, entry);
    true
}

/// Frees the entry at `offset`, `len` bytes long. The entry before it, at `previous`, gets its
/// space.
pub(crate) fn remove(bytes: &mut [u8], offset: usize, len: usize, previous: Option<usize>) {
    bytes[offset..offset + len].fill(0);
    match previous {
        Some(previous) => set_len(bytes, previous, offset + len - previous),
        None => set_len(bytes, offset, len),
    }
}

/// Returns whether the entry at `offset` ends at `end`.
pub(crate) fn ends_at(bytes: &[u8], offset: usize, end: usize) -> bool {
    let header = RawEntryHeader::ref_from_prefix(&bytes[offset..]);
    header.is_ok_and(|(header, _)| offset + usize::from(header.length.get()) == end)
}

/// Gives the entry at `offset` the smallest length after which it and the rest of `region` are
/// entries of inodes up to `inode_count`, the last of which ends with the region; returns whether
/// there is one.
pub(crate) fn restore_len(region: &mut [u8], offset: usize, inode_count: u32) -> bool {
    let Ok((header, _)) = RawEntryHeader::ref_from_prefix(&region[offset..]) else {
        return false;
    };
    let is_possible = |entry: &Entry<'_>| {
        entry.is_unused() || (entry.number <= inode_count && entry.check_name().is_ok())
    };
    let (stored, min) = (header.length.get(), needed_len(header.name_len.into()));
    for len in (min..=region.len() - offset).step_by(4) {
        set_len(region, offset, len);
        let mut rest = Entries {
            region: &*region,
            offset,
        };
        if rest.all(|entry| entry.is_ok_and(|entry| is_possible(&entry))) {
            return true;
        }
    }
    set_len(region, offset, stored.into());
    false
}

/// Points the entry at `offset` to another inode.
pub(crate) fn redirect(bytes: &mut [u8], offset: usize, number: u32, file_type: u8) {
    bytes[offset..offset + 4].copy_from_slice(&number.to_le_bytes());
    bytes[offset + 7] = file_type;
}

/// Makes all of `region` one unused entry.
pub(crate) fn write_unused(region: &mut [u8]) {
    region.fill(0);
    set_len(region, 0, region.len());
}

/// Extends the last of the entries in the first `len` bytes of `region`, if there is one, to the
/// end of `region`. The bytes after `len` are zero.
///
/// # Errors
/// EUCLEAN for damaged entries.
pub(super) fn extend_last(region: &mut [u8], len: usize) -> Result<()> {
    let mut last = 0;
    for entry in Entries::new(&region[..len]) {
        last = entry?.offset;
    }
    set_len(region, last, region.len() - last);
    Ok(())
}

/// Sets the length of the entry at `offset`.
pub(crate) fn set_len(bytes: &mut [u8], offset: usize, len: usize) {
    bytes[offset + 4..offset + 6].copy_from_slice(&(len as u16).to_le_bytes());
}

/// Returns the bytes of a leaf that entries can use.
pub(crate) fn region_len(context: &DirectoryContext) -> usize {
    context.block_size
        - if context.checksum_seed.is_some() {
            TAIL_LEN
        } else {
            0
        }
}

/// Checks the checksum of the leaf `bytes`, and returns the part that holds entries.
pub(crate) fn checked_region<'a>(context: &DirectoryContext, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let (region, tail) = bytes.split_at(region_len(context));
    let Some(seed) = context.checksum_seed else {
        return Ok(region);
    };
    match RawTail::ref_from_bytes(tail) {
        Ok(tail) if has_tail(context, bytes) => {
            if tail.checksum.get() != crc32c(seed, region) {
                return Err(Error::corrupt("bad checksum"));
            }
            Ok(region)
        }
        _ => Err(Error::corrupt("no checksum at the end")),
    }
}

/// Returns whether the leaf `bytes` ends with a tail for a checksum, right or wrong.
pub(crate) fn has_tail(context: &DirectoryContext, bytes: &[u8]) -> bool {
    let tail = RawTail::ref_from_bytes(&bytes[region_len(context)..]);
    tail.is_ok_and(|tail| {
        tail.inode.get() == 0
            && usize::from(tail.length.get()) == TAIL_LEN
            && tail.name_len == 0
            && tail.file_type == TAIL_FILE_TYPE
    })
}

/// Writes the checksum of the leaf `bytes` after a change.
pub(crate) fn seal(context: &DirectoryContext, bytes: &mut [u8]) {
    let Some(seed) = context.checksum_seed else {
        return;
    };
    let (region, tail) = bytes.split_at_mut(region_len(context));
    let raw = RawTail {
        inode: U32::ZERO,
        length: U16::new(TAIL_LEN as u16),
        name_len: 0,
        file_type: TAIL_FILE_TYPE,
        checksum: U32::new(crc32c(seed, region)),
    };
    tail.copy_from_slice(raw.as_bytes());
}

/// Fills the leaf `bytes` with `entries`, without gaps and in this order. They fit: the caller
/// counted them. The last one extends to the end.
pub(crate) fn pack<'a>(
    context: &DirectoryContext,
    bytes: &mut [u8],
    entries: impl IntoIterator<Item = NewEntry<'a>>,
) {
    bytes.fill(0);
    let end = region_len(context);
    let (mut last, mut offset) = (0, 0);
    for entry in entries {
        let len = needed_len(entry.name.len());
        write_entry(bytes, offset, len, &entry);
        last = offset;
        offset += len;
    }
    set_len(bytes, last, end - last);
    seal(context, bytes);
}

/// The kind of a directory block, detected from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Entries.
    Leaf,
    /// `.`, `..` and the root of the index.
    IndexRoot,
    /// A node of the index, which looks like an unused entry to a reader without index support.
    IndexNode,
}

/// Detects the kind of the block `block`. Without checksums the first block of an empty directory
/// looks like an index root, and an empty leaf like an index node. Neither has entries that a
/// reader would miss.
pub(crate) fn kind(context: &DirectoryContext, block: LogicalBlock, bytes: &[u8]) -> BlockKind {
    let header = |offset: usize| {
        RawEntryHeader::ref_from_prefix(&bytes[offset..])
            .ok()
            .map(|(header, _)| *header)
    };
    let Some(first) = header(0) else {
        return BlockKind::Leaf;
    };
    let fills = |header: RawEntryHeader, offset| {
        let len = context.block_size - offset;
        entry_len(header.length.get(), len) == len
    };
    if first.inode.get() == 0 && first.name_len == 0 && fills(first, 0) {
        return BlockKind::IndexNode;
    }
    let is_root = block.0 == 0
        && usize::from(first.length.get()) == ENTRY_LEN_MIN
        && header(ENTRY_LEN_MIN).is_some_and(|second| fills(second, ENTRY_LEN_MIN));
    if is_root {
        BlockKind::IndexRoot
    } else {
        BlockKind::Leaf
    }
}
