//! Persistent dirty bitmaps: their directory, and the mark of those that may lack changes.
//!
//! A program that does not update the bitmaps marks them in-use before the disk changes. QEMU
//! leaves the same state after a crash: `qemu-img info` reports the bitmap as in-use, backup
//! programs copy everything again, and no cluster is leaked. Source: QEMU, docs/interop/qcow2.txt
//! ("Bitmaps extension", "Bitmap directory").

use super::roots::{Region, Roots};
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use std::io::{IoSlice, IoSliceMut};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Limits, the same as QEMU's (block/qcow2-bitmap.c).
pub(crate) const COUNT_MAX: u32 = 65535;
const DIRECTORY_BYTES_MAX: u64 = 65535 * 1024;
/// The bitmap may lack changes.
pub(crate) const IN_USE: u32 = 1 << 0;
/// The bitmap records the changes of the disk.
pub(crate) const AUTO: u32 = 1 << 1;
/// The kind of a bitmap of changed blocks.
pub(crate) const DIRTY_TRACKING: u8 = 1;

/// A persistent dirty bitmap: the blocks that changed since a point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyBitmap {
    /// Its name, unique in the image.
    pub name: String,
    /// Size in bytes of the disk's block that one bit describes.
    pub granularity_bytes: u64,
    /// The bitmap was not stored after its last change, so it may lack changes.
    pub is_in_use: bool,
    /// It records all changes of the disk.
    pub is_auto: bool,
}

/// The fixed part of an entry; extra data, the name and padding to a multiple of eight follow.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    table_offset: U64,
    table_entries: U32,
    flags: U32,
    kind: u8,
    granularity_bits: u8,
    name_bytes: U16,
    extra_bytes: U32,
}

const ENTRY_BYTES: u64 = size_of::<RawEntry>() as u64;
const FLAGS_AT: u64 = std::mem::offset_of!(RawEntry, flags) as u64;

/// Returns the size in bytes of a directory entry with a name of `name_bytes`.
pub(crate) fn entry_bytes(name_bytes: u64) -> u64 {
    (ENTRY_BYTES + name_bytes).next_multiple_of(8)
}

/// Marks all bitmaps in-use, durably: they may lack changes from now on.
///
/// # Errors
///
/// EUCLEAN for a corrupt bitmap directory; nothing was changed then.
pub(crate) fn mark_in_use(file: &dyn ImageFile) -> Result<()> {
    let mut entries = read(file, &Roots::read(file)?)?;
    entries.retain(|entry| entry.flags & IN_USE == 0);
    if entries.is_empty() {
        return Ok(());
    }
    for entry in entries {
        let flags = entry.flags | IN_USE;
        file.write(&[IoSlice::new(&flags.to_be_bytes())], entry.flags_at)?;
    }
    file.sync_data()
}

/// Lists the bitmaps of the image in `file`.
///
/// # Errors
///
/// EUCLEAN for a corrupt bitmap directory.
pub(crate) fn list(file: &dyn ImageFile) -> Result<Vec<DirtyBitmap>> {
    let entries = read(file, &Roots::read(file)?)?;
    let bitmap = |entry: BitmapEntry| DirtyBitmap {
        name: String::from_utf8_lossy(&entry.name).into_owned(),
        granularity_bytes: 1u64.checked_shl(entry.granularity_bits.into()).unwrap_or(0),
        is_in_use: entry.flags & IN_USE != 0,
        is_auto: entry.flags & AUTO != 0,
    };
    Ok(entries.into_iter().map(bitmap).collect())
}

/// An entry of the bitmap directory.
#[derive(Debug, Clone)]
pub(crate) struct BitmapEntry {
    /// Offset of the flags in the file; 0 for a new entry.
    flags_at: u64,
    /// The table of its clusters; unchecked.
    pub(crate) table: Region,
    pub(crate) flags: u32,
    pub(crate) kind: u8,
    pub(crate) granularity_bits: u8,
    pub(crate) name: Vec<u8>,
    extra: Vec<u8>,
}

impl BitmapEntry {
    /// An entry for a new bitmap that records changes.
    pub(crate) fn new(name: &str, granularity_bits: u8) -> Self {
        Self {
            flags_at: 0,
            table: Region {
                at: 0,
                len_bytes: 0,
            },
            flags: AUTO,
            kind: DIRTY_TRACKING,
            granularity_bits,
            name: name.as_bytes().to_vec(),
            extra: Vec::new(),
        }
    }
}

/// Encodes the directory. The caller has checked the lengths of new names.
pub(crate) fn encode(entries: &[BitmapEntry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let raw = RawEntry {
            table_offset: entry.table.at.into(),
            // Read from 32 bits, or limited by the size of a bitmap.
            table_entries: ((entry.table.len_bytes / 8) as u32).into(),
            flags: entry.flags.into(),
            kind: entry.kind,
            granularity_bits: entry.granularity_bits,
            // At most 1023, or read from these fields.
            name_bytes: (entry.name.len() as u16).into(),
            extra_bytes: (entry.extra.len() as u32).into(),
        };
        for part in [raw.as_bytes(), &entry.extra, &entry.name] {
            bytes.extend_from_slice(part);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

/// Reads the bitmap directory of the image with these roots; empty if it has none.
///
/// # Errors
///
/// EUCLEAN for a corrupt bitmap directory.
pub(crate) fn read(file: &dyn ImageFile, roots: &Roots) -> Result<Vec<BitmapEntry>> {
    let Some((directory, count)) = roots.bitmaps else {
        return Ok(Vec::new());
    };
    read_directory(file, roots, directory, count)
        .map_err(|error| error.at(format!("bitmap directory at {:#x}", directory.at)))
}

fn read_directory(
    file: &dyn ImageFile,
    roots: &Roots,
    directory: Region,
    count: u32,
) -> Result<Vec<BitmapEntry>> {
    let Region {
        at: start,
        len_bytes,
    } = directory;
    if count > COUNT_MAX || len_bytes > DIRECTORY_BYTES_MAX {
        return Err(Error::corrupt(format!(
            "{count} bitmaps in {len_bytes} bytes"
        )));
    }
    let end = start
        .checked_add(len_bytes)
        .filter(|_| start.is_multiple_of(roots.cluster_bytes()));
    let Some(end) = end.filter(|end| start > 0 && *end <= file.len_bytes().unwrap_or(0)) else {
        return Err(Error::corrupt(
            "not at a cluster's start, or beyond the end of the file",
        ));
    };
    let mut entries = Vec::new();
    let mut at = start;
    for index in 0..count {
        let mut raw = RawEntry::new_zeroed();
        if end - at < ENTRY_BYTES {
            return Err(Error::corrupt(format!("bitmap {index} is cut off")));
        }
        file.read(&mut [IoSliceMut::new(raw.as_mut_bytes())], at)?;
        let (extra_bytes, name_bytes) = (raw.extra_bytes.get(), raw.name_bytes.get());
        let bytes = ENTRY_BYTES + u64::from(extra_bytes) + u64::from(name_bytes);
        if bytes.next_multiple_of(8) > end - at {
            return Err(Error::corrupt(format!("bitmap {index} has {bytes} bytes")));
        }
        let (mut extra, mut name) = (vec![0; extra_bytes as usize], vec![0; name_bytes.into()]);
        let parts = &mut [IoSliceMut::new(&mut extra), IoSliceMut::new(&mut name)];
        file.read(parts, at + ENTRY_BYTES)?;
        entries.push(BitmapEntry {
            flags_at: at + FLAGS_AT,
            table: Region {
                at: raw.table_offset.get(),
                len_bytes: u64::from(raw.table_entries.get()) * 8,
            },
            flags: raw.flags.get(),
            kind: raw.kind,
            granularity_bits: raw.granularity_bits,
            name,
            extra,
        });
        at += bytes.next_multiple_of(8);
    }
    Ok(entries)
}
