//! Persistent dirty bitmaps: kept, and marked in-use before the disk changes, because Folio does
//! not update them.
//!
//! QEMU leaves the same state after a crash: `qemu-img info` reports the bitmap as in-use, backup
//! programs copy everything again, and no cluster is leaked. Source: QEMU, docs/interop/qcow2.txt
//! ("Bitmaps extension", "Bitmap directory").

use super::roots::{Region, Roots};
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use std::io::{IoSlice, IoSliceMut};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Limits, the same as QEMU's (block/qcow2-bitmap.c).
const COUNT_MAX: u32 = 65535;
const DIRECTORY_BYTES_MAX: u64 = 65535 * 1024;
/// The bitmap may lack changes.
const IN_USE: u32 = 1 << 0;
/// The bitmap records the changes of the disk.
const AUTO: u32 = 1 << 1;

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

/// Marks all bitmaps in-use, durably: they may lack changes from now on.
///
/// # Errors
///
/// EUCLEAN for a corrupt bitmap directory; nothing was changed then.
pub(crate) fn mark_in_use(file: &dyn ImageFile) -> Result<()> {
    let roots = Roots::read(file)?;
    let Some((directory, count)) = roots.bitmaps else {
        return Ok(());
    };
    let in_directory = |error: Error| error.at(format!("bitmap directory at {:#x}", directory.at));
    let mut entries = read(file, &roots, directory, count).map_err(in_directory)?;
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
    let roots = Roots::read(file)?;
    let Some((directory, count)) = roots.bitmaps else {
        return Ok(Vec::new());
    };
    let entries = read(file, &roots, directory, count)
        .map_err(|error| error.at(format!("bitmap directory at {:#x}", directory.at)))?;
    let bitmap = |entry: BitmapEntry| DirtyBitmap {
        name: String::from_utf8_lossy(&entry.name).into_owned(),
        granularity_bytes: 1u64.checked_shl(entry.granularity_bits.into()).unwrap_or(0),
        is_in_use: entry.flags & IN_USE != 0,
        is_auto: entry.flags & AUTO != 0,
    };
    Ok(entries.into_iter().map(bitmap).collect())
}

/// An entry of the bitmap directory.
struct BitmapEntry {
    /// Offset of the flags in the file.
    flags_at: u64,
    flags: u32,
    granularity_bits: u8,
    name: Vec<u8>,
}

/// Reads the bitmap directory.
fn read(
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
        let mut entry = RawEntry::new_zeroed();
        if end - at < ENTRY_BYTES {
            return Err(Error::corrupt(format!("bitmap {index} is cut off")));
        }
        file.read(&mut [IoSliceMut::new(entry.as_mut_bytes())], at)?;
        let bytes =
            ENTRY_BYTES + u64::from(entry.extra_bytes.get()) + u64::from(entry.name_bytes.get());
        if bytes.next_multiple_of(8) > end - at {
            return Err(Error::corrupt(format!("bitmap {index} has {bytes} bytes")));
        }
        let mut name = vec![0; entry.name_bytes.get().into()];
        let name_at = at + ENTRY_BYTES + u64::from(entry.extra_bytes.get());
        file.read(&mut [IoSliceMut::new(&mut name)], name_at)?;
        entries.push(BitmapEntry {
            flags_at: at + FLAGS_AT,
            flags: entry.flags.get(),
            granularity_bits: entry.granularity_bits,
            name,
        });
        at += bytes.next_multiple_of(8);
    }
    Ok(entries)
}
