//! Changes the name of the backing file in the header, and keeps all else in the header's cluster.

use super::extensions::{self, Extension};
use super::raw_header::{BACKING_NAME_BYTES_MAX, RawHeader, read_raw};
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::image::BackingName;
use std::io::{IoSlice, IoSliceMut};
use std::mem::offset_of;

/// Size of a sector in bytes: a disk writes it whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Makes the header name another backing file, or none. Unknown extensions stay.
///
/// Everything after the first sector is durable before the first sector points to it. The new name
/// is placed after the old one if there is room, so that the old one stays whole until then.
///
/// # Errors
///
/// EINVAL for a name that does not fit.
pub(crate) fn set(file: &dyn ImageFile, backing: Option<&BackingName>) -> Result<()> {
    let mut raw = read_raw(file)?;
    let cluster_bytes = 1usize << raw.cluster_bits.get();
    let name = backing.map_or(&[][..], |backing| backing.name.as_bytes());
    let no_room = || {
        Error::new(
            Errno::INVAL,
            "the name of the backing file does not fit into the header",
        )
    };
    if name.len() > BACKING_NAME_BYTES_MAX || name.contains(&0) {
        return Err(no_room());
    }
    let mut kept = extensions::read(file, &raw)?;
    kept.retain(|extension| extension.kind != extensions::BACKING_FORMAT);
    if let Some(format) = backing.and_then(|backing| backing.format) {
        let bytes = format.name().as_bytes().to_vec();
        kept.insert(
            0,
            Extension {
                kind: extensions::BACKING_FORMAT,
                bytes,
            },
        );
    }
    let header_len = raw.header_bytes() as usize;
    let mut tail = extensions::encode(&kept);
    if header_len.next_multiple_of(8) + tail.len() + name.len() > cluster_bytes {
        // The feature name table is optional: it serves error messages only.
        kept.retain(|extension| extension.kind != extensions::FEATURE_NAMES);
        tail = extensions::encode(&kept);
    }
    // The header's own bytes, with fields of later versions.
    let mut head = vec![0; header_len.next_multiple_of(8)];
    file.read_or_zeros(&mut [IoSliceMut::new(&mut head[..header_len])], 0)?;
    head.extend(tail);
    let old_end = raw.backing_name_offset.get() as usize + raw.backing_name_len.get() as usize;
    let name_at = match old_end.max(head.len()) {
        after if raw.backing_name_offset.get() != 0 && after + name.len() <= cluster_bytes => after,
        _ => head.len(),
    };
    if name_at + name.len() > cluster_bytes {
        return Err(no_room());
    }
    raw.backing_name_offset = if name.is_empty() { 0 } else { name_at as u64 }.into();
    // At most 1023.
    raw.backing_name_len = (name.len() as u32).into();
    let at = offset_of!(RawHeader, backing_name_offset);
    head[at..at + 8].copy_from_slice(raw.backing_name_offset.as_ref());
    head[at + 8..at + 12].copy_from_slice(raw.backing_name_len.as_ref());
    write(file, head, name, name_at)
}

/// Writes the header's cluster: all but the first sector, then the first sector.
fn write(file: &dyn ImageFile, mut head: Vec<u8>, name: &[u8], name_at: usize) -> Result<()> {
    // No reader uses the bytes between the extensions and the name, so they are not written.
    if name_at < SECTOR_BYTES {
        head.resize(name_at, 0);
        head.extend(name);
    } else {
        file.write(&[IoSlice::new(name)], name_at as u64)?;
    }
    let first = head.len().min(SECTOR_BYTES);
    if head.len() > first {
        file.write(&[IoSlice::new(&head[first..])], first as u64)?;
    }
    file.sync_data()?;
    file.write(&[IoSlice::new(&head[..first])], 0)?;
    file.sync_data()
}
