//! Persistent dirty bitmaps: add, remove, clear, enable, disable and merge.
//!
//! A change writes a new directory, and new tables where bits change. The bitmaps extension of the
//! header then points to it in one write. An extension is added, and removed, while its autoclear
//! bit is clear: readers ignore it then.

use super::bitmap_bits::BitmapBits;
use super::change::TableChange;
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::bitmaps::{self, AUTO, BitmapEntry, COUNT_MAX, IN_USE};
use crate::block::qcow2::layout::extensions::{self, Extension};
use crate::block::qcow2::layout::features::AUTOCLEAR_BITMAPS;
use crate::block::qcow2::layout::header_cluster::HeaderCluster;
use crate::block::qcow2::layout::raw_header::AUTOCLEAR_FIELD;
use crate::block::qcow2::layout::roots::{Region, Roots};
use std::io::IoSlice;

/// Longest name in bytes, as in QEMU.
const NAME_BYTES_MAX: usize = 1023;
/// Size of a sector in bytes: a disk writes it whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// A change of a dirty bitmap.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum BitmapChange<'a> {
    /// Creates it.
    Add {
        /// Size in bytes of a block; by default the cluster size, from 4 KiB to 64 KiB.
        granularity_bytes: Option<u64>,
        /// It records changes of the disk.
        is_enabled: bool,
        /// Its bits; all zero if not given.
        bits: Option<&'a BitmapBits>,
    },
    /// Deletes it.
    Remove,
    /// Clears all bits.
    Clear,
    /// From now on it records changes of the disk.
    Enable,
    /// It no longer records changes.
    Disable,
    /// Sets all bits that are set in another bitmap.
    Merge(&'a BitmapBits),
}

/// Changes the bitmap of this name.
///
/// # Errors
///
/// ENOENT if there is none, EEXIST for a second one of that name, EINVAL for an invalid name or
/// granularity and for disks of different sizes, EFBIG for too many bits or bitmaps, EBUSY for a
/// bitmap that is marked in-use, EOPNOTSUPP for an image of version 2, EUCLEAN for an image with
/// errors.
pub(crate) fn change(file: &dyn ImageFile, name: &str, change: &BitmapChange<'_>) -> Result<()> {
    let mut tables = TableChange::begin(file)?;
    let roots = tables.roots().clone();
    if roots.version < 3 {
        return Err(Error::unsupported("bitmaps need compat 1.1"));
    }
    let mut entries = bitmaps::read(file, &roots)?;
    match change {
        BitmapChange::Add {
            granularity_bytes,
            is_enabled,
            bits: wanted,
        } => {
            let mut entry = add(&roots, &entries, name, *granularity_bytes)?;
            if !is_enabled {
                entry.flags &= !AUTO;
            }
            let mut bits = BitmapBits::zeros(&roots, entry.granularity_bits.into())?;
            if let Some(wanted) = wanted {
                bits.merge(wanted)?;
            }
            entries.push(entry);
            store(&mut tables, entries.last_mut(), &bits)?;
        }
        BitmapChange::Remove => {
            let index = find(&entries, name)?;
            entries.remove(index);
        }
        _ => {
            let index = find(&entries, name)?;
            let entry = &mut entries[index];
            check_usable(entry)?;
            match change {
                BitmapChange::Enable => entry.flags |= AUTO,
                BitmapChange::Disable => entry.flags &= !AUTO,
                BitmapChange::Merge(other) => {
                    let mut bits = BitmapBits::read(file, &roots, entry)?;
                    bits.merge(other)?;
                    store(&mut tables, Some(entry), &bits)?;
                }
                _ => {
                    let bits = BitmapBits::zeros(&roots, entry.granularity_bits.into())?;
                    store(&mut tables, Some(entry), &bits)?;
                }
            }
        }
    }
    commit(file, tables, roots, &entries)
}

/// Reads the bits of the bitmap of this name.
///
/// # Errors
///
/// ENOENT if there is none, EBUSY if it is marked in-use, EUCLEAN if it is damaged.
pub(crate) fn read_bits(file: &dyn ImageFile, name: &str) -> Result<BitmapBits> {
    let roots = Roots::read(file)?;
    let entries = bitmaps::read(file, &roots)?;
    let entry = &entries[find(&entries, name)?];
    check_usable(entry)?;
    BitmapBits::read(file, &roots, entry).map_err(|error| error.at(format!("bitmap {name:?}")))
}

fn find(entries: &[BitmapEntry], name: &str) -> Result<usize> {
    let found = entries
        .iter()
        .position(|entry| entry.name == name.as_bytes());
    found.ok_or_else(|| Error::new(Errno::NOENT, format!("no bitmap {name:?}")))
}

fn check_usable(entry: &BitmapEntry) -> Result<()> {
    if entry.flags & IN_USE == 0 && entry.kind == bitmaps::DIRTY_TRACKING {
        return Ok(());
    }
    let why = "the bitmap is marked in-use: it may lack changes, and can only be removed";
    Err(Error::new(Errno::BUSY, why))
}

/// Returns the entry of a new bitmap.
fn add(
    roots: &Roots,
    entries: &[BitmapEntry],
    name: &str,
    granularity_bytes: Option<u64>,
) -> Result<BitmapEntry> {
    let granularity = granularity_bytes.unwrap_or(roots.cluster_bytes().clamp(4 << 10, 64 << 10));
    if !granularity.is_power_of_two() || !(512..=1 << 31).contains(&granularity) {
        let why = "invalid granularity: expected a power of two from 512 bytes to 2 GiB";
        return Err(Error::new(Errno::INVAL, why));
    }
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let why = "invalid name of a bitmap: expected 1 to 1023 bytes";
        return Err(Error::new(Errno::INVAL, why));
    }
    if find(entries, name).is_ok() {
        let why = format!("the bitmap {name:?} exists already");
        return Err(Error::new(Errno::EXIST, why));
    }
    if roots.len_bytes == 0 {
        return Err(Error::new(Errno::INVAL, "a disk of 0 bytes has no blocks"));
    }
    if entries.len() >= COUNT_MAX as usize {
        let why = "the image has the maximum of 65535 bitmaps";
        return Err(Error::new(Errno::FBIG, why));
    }
    // At most 31.
    Ok(BitmapEntry::new(name, granularity.trailing_zeros() as u8))
}

/// Writes the bits into free clusters, and makes the entry point to them.
fn store(
    tables: &mut TableChange<'_>,
    entry: Option<&mut BitmapEntry>,
    bits: &BitmapBits,
) -> Result<()> {
    let Some(entry) = entry else {
        return Ok(());
    };
    let (data, table) = bits.encode();
    let first = if data.is_empty() {
        0
    } else {
        tables.put_table(&data)?
    };
    let table = table(first);
    entry.table = Region {
        at: tables.put_table(&table)?,
        len_bytes: table.len() as u64,
    };
    Ok(())
}

/// Writes the new directory, and the header that points to it.
fn commit(
    file: &dyn ImageFile,
    mut tables: TableChange<'_>,
    before: Roots,
    entries: &[BitmapEntry],
) -> Result<()> {
    let mut after = before.clone();
    after.bitmaps = None;
    if !entries.is_empty() {
        let bytes = bitmaps::encode(entries);
        let at = tables.put_table(&bytes)?;
        let len_bytes = bytes.len() as u64;
        // At most 65535.
        after.bitmaps = Some((Region { at, len_bytes }, entries.len() as u32));
    }
    // The tables above may have needed a larger refcount table, at another place.
    after.refcount_table = tables.roots().refcount_table;
    let with = after.autoclear | AUTOCLEAR_BITMAPS;
    let without = after.autoclear & !AUTOCLEAR_BITMAPS;
    after.autoclear = if entries.is_empty() { without } else { with };
    let Some((directory, count)) = after.bitmaps else {
        // The bit first: without it a reader ignores the extension, whose clusters are free by
        // then.
        tables.commit(&after, &mut |file| set_autoclear(file, without))?;
        return set_extension(file, None);
    };
    let bytes = extension(directory, count);
    if before.bitmaps.is_none() {
        // A stale extension may be there.
        set_autoclear(file, without)?;
        file.sync_data()?;
        set_extension(file, Some(bytes))?;
        return tables.commit(&after, &mut |file| set_autoclear(file, with));
    }
    tables.commit(&after, &mut |file| {
        let at = HeaderCluster::read(file)?.extension_at(extensions::BITMAPS);
        let at = at.ok_or_else(|| Error::corrupt("the bitmaps extension has disappeared"))?;
        let is_atomic = at % SECTOR_BYTES + bytes.len() as u64 <= SECTOR_BYTES;
        if !is_atomic {
            // A power cut before the last write loses the bitmaps, and leaks their clusters.
            set_autoclear(file, without)?;
            file.sync_data()?;
        }
        file.write(&[IoSlice::new(&bytes)], at)?;
        if !is_atomic {
            file.sync_data()?;
            set_autoclear(file, with)?;
        }
        Ok(())
    })
}

/// Encodes the bitmaps extension.
fn extension(directory: Region, count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(count.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(directory.len_bytes.to_be_bytes());
    bytes.extend(directory.at.to_be_bytes());
    bytes
}

/// Replaces or removes the bitmaps extension.
fn set_extension(file: &dyn ImageFile, bytes: Option<Vec<u8>>) -> Result<()> {
    let mut header = HeaderCluster::read(file)?;
    header
        .extensions
        .retain(|extension| extension.kind != extensions::BITMAPS);
    let kind = extensions::BITMAPS;
    header
        .extensions
        .extend(bytes.map(|bytes| Extension { kind, bytes }));
    header.write(file)
}

fn set_autoclear(file: &dyn ImageFile, features: u64) -> Result<()> {
    file.write(&[IoSlice::new(&features.to_be_bytes())], AUTOCLEAR_FIELD)
}
