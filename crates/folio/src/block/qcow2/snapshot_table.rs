//! The snapshot table: what the file remembers of each internal snapshot.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Snapshots").

use super::super::image_file::ImageFile;
use crate::base::{Errno, Error, Result};
use std::io::IoSliceMut;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Limits, the same as QEMU's (block/qcow2.h).
pub(super) const SNAPSHOTS_MAX: u32 = 65536;
const TABLE_BYTES_MAX: u64 = 64 << 20;
const EXTRA_BYTES_MAX: u32 = 1024;

/// What precedes extra data, id and name of an entry.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    l1_offset: U64,
    l1_entries: U32,
    id_len: U16,
    name_len: U16,
    date_secs: U32,
    date_nanos: U32,
    vm_clock_nanos: U64,
    vm_state_bytes: U32,
    extra_len: U32,
}

const _: () = assert!(size_of::<RawEntry>() == 40);

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) l1_offset: u64,
    pub(super) l1_entries: u32,
    pub(super) id: Vec<u8>,
    pub(super) name: Vec<u8>,
    pub(super) date_secs: u32,
    pub(super) date_nanos: u32,
    pub(super) vm_clock_nanos: u64,
    pub(super) vm_state_bytes_low: u32,
    /// Large VM state size, disk size, instruction count, and what later versions add; each 8
    /// bytes.
    pub(super) extra: Vec<u8>,
}

impl Entry {
    /// Bytes of the machine's state that the snapshot holds.
    pub(super) fn vm_state_bytes(&self) -> u64 {
        super::extensions::number(&self.extra, 0).unwrap_or(self.vm_state_bytes_low.into())
    }

    /// The disk's size then, if it is told.
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        super::extensions::number(&self.extra, 8)
    }

    /// Instructions that the machine had executed, if that was counted.
    pub(super) fn instructions(&self) -> Option<u64> {
        super::extensions::number(&self.extra, 16).filter(|count| *count != u64::MAX)
    }
}

/// Reads `count` entries at `at`; returns them and how many bytes they take.
pub(super) fn read(file: &dyn ImageFile, at: u64, count: u32) -> Result<(Vec<Entry>, u64)> {
    let place = |error: Error| error.at(format!("snapshot table at {at:#x}"));
    if count > SNAPSHOTS_MAX {
        return Err(place(Error::corrupt(format!("{count} snapshots"))));
    }
    let mut entries = Vec::new();
    let mut done = 0u64;
    let read = |bytes: &mut [u8], done: u64| {
        let want = bytes.len() as u64;
        let place_at = at
            .checked_add(done)
            .ok_or_else(|| Error::corrupt("reaches beyond any file"))?;
        match file.read_some(&mut [IoSliceMut::new(bytes)], place_at)? {
            count if count == want => Ok(()),
            _ => Err(Error::corrupt("reaches beyond the end of the file")),
        }
    };
    for index in 0..count {
        let inner = |error: Error| place(error.at(format!("entry {index}")));
        let mut raw = RawEntry::new_zeroed();
        read(raw.as_mut_bytes(), done).map_err(inner)?;
        if raw.extra_len.get() > EXTRA_BYTES_MAX {
            return Err(inner(Error::corrupt(format!(
                "{} bytes of extra data",
                raw.extra_len
            ))));
        }
        let field = |len: u32| vec![0; len as usize];
        let mut extra = field(raw.extra_len.get());
        let mut id = field(raw.id_len.get().into());
        let mut name = field(raw.name_len.get().into());
        let mut field_at = done + size_of::<RawEntry>() as u64;
        for bytes in [&mut extra, &mut id, &mut name] {
            read(bytes, field_at).map_err(inner)?;
            field_at += bytes.len() as u64;
        }
        done = field_at.next_multiple_of(8);
        if done > TABLE_BYTES_MAX {
            return Err(place(Error::corrupt("more than 64 MiB")));
        }
        entries.push(Entry {
            l1_offset: raw.l1_offset.get(),
            l1_entries: raw.l1_entries.get(),
            id,
            name,
            date_secs: raw.date_secs.get(),
            date_nanos: raw.date_nanos.get(),
            vm_clock_nanos: raw.vm_clock_nanos.get(),
            vm_state_bytes_low: raw.vm_state_bytes.get(),
            extra,
        });
    }
    Ok((entries, done))
}

/// The table's bytes; EFBIG for one that nobody would read.
pub(super) fn bytes(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let too_long = |_| Error::new(Errno::NAMETOOLONG, "a snapshot's id or name is too long");
    for entry in entries {
        let raw = RawEntry {
            l1_offset: entry.l1_offset.into(),
            l1_entries: entry.l1_entries.into(),
            id_len: u16::try_from(entry.id.len()).map_err(too_long)?.into(),
            name_len: u16::try_from(entry.name.len()).map_err(too_long)?.into(),
            date_secs: entry.date_secs.into(),
            date_nanos: entry.date_nanos.into(),
            vm_clock_nanos: entry.vm_clock_nanos.into(),
            vm_state_bytes: entry.vm_state_bytes_low.into(),
            extra_len: u32::try_from(entry.extra.len()).map_err(too_long)?.into(),
        };
        for part in [raw.as_bytes(), &entry.extra, &entry.id, &entry.name] {
            bytes.extend_from_slice(part);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    if bytes.len() as u64 > TABLE_BYTES_MAX || entries.len() > SNAPSHOTS_MAX as usize {
        return Err(Error::new(Errno::FBIG, "there are too many snapshots"));
    }
    Ok(bytes)
}
