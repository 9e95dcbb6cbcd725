//! The name of the backing file in the header: rewritten with everything else that the header's
//! cluster holds kept.

use super::super::image_file::ImageFile;
use super::create::BackingName;
use super::extensions::{self, Extension};
use super::header::{RawHeader, read_raw};
use crate::base::{Errno, Error, Result};
use std::io::{IoSlice, IoSliceMut};
use std::mem::offset_of;

const NAME_BYTES_MAX: usize = 1023;
const FEATURE_NAMES: u32 = 0x6803_f857;
/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Makes the header name another backing file, or none. Extensions that nobody here knows stay.
///
/// What lies behind the first sector is written and durable before the first sector points to it.
/// The new name lies behind the old one if there is room, so that until then the old one is whole.
///
/// Errors: EINVAL for names that do not fit.
pub(super) fn set(file: &dyn ImageFile, backing: Option<&BackingName>) -> Result<()> {
    let mut raw = read_raw(file)?;
    let cluster_bytes = 1usize << raw.cluster_bits.get();
    let name = backing.map_or(&[][..], |backing| backing.name.as_bytes());
    let no_room = || {
        Error::new(
            Errno::INVAL,
            "the name of the backing file does not fit into the header",
        )
    };
    if name.len() > NAME_BYTES_MAX || name.contains(&0) {
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
    let header_len = extensions::header_len(&raw) as usize;
    let mut tail = extensions::bytes(&kept);
    if header_len.next_multiple_of(8) + tail.len() + name.len() > cluster_bytes {
        // It only explains.
        kept.retain(|extension| extension.kind != FEATURE_NAMES);
        tail = extensions::bytes(&kept);
    }
    // The header's own bytes, also those that are newer than we are.
    let mut head = vec![0; header_len.next_multiple_of(8)];
    file.read_or_zeros(&mut [IoSliceMut::new(&mut head[..header_len])], 0)?;
    head.extend(tail);
    let old_end = raw.backing_name_offset.get() as usize + raw.backing_name_len.get() as usize;
    let name_at = match old_end.max(head.len()) {
        behind if raw.backing_name_offset.get() != 0 && behind + name.len() <= cluster_bytes => {
            behind
        }
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

fn write(file: &dyn ImageFile, mut head: Vec<u8>, name: &[u8], name_at: usize) -> Result<()> {
    // Between the end of the extensions and the name nothing is read, so nothing is written there.
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
