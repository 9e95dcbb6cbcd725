//! The snapshot table: one entry for each internal snapshot.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Snapshots").

use super::extensions;
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use std::io::IoSliceMut;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Limits, the same as QEMU's (block/qcow2.h).
pub(crate) const SNAPSHOTS_MAX: u32 = 65536;
const TABLE_BYTES_MAX: u64 = 64 << 20;
const EXTRA_BYTES_MAX: u32 = 1024;

/// The fixed part of an entry; extra data, id and name follow.
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
pub(crate) struct SnapshotEntry {
    pub(crate) l1_offset: u64,
    pub(crate) l1_entries: u32,
    pub(crate) id: Vec<u8>,
    pub(crate) name: Vec<u8>,
    pub(crate) date_secs: u32,
    pub(crate) date_nanos: u32,
    pub(crate) vm_clock_nanos: u64,
    pub(crate) vm_state_bytes_low: u32,
    /// VM state size (64 bits), disk size, instruction count, and fields of later versions; 8 bytes
    /// each.
    pub(crate) extra: Vec<u8>,
}

impl SnapshotEntry {
    /// Returns the size of the virtual machine's state in bytes.
    pub(crate) fn vm_state_bytes(&self) -> u64 {
        extensions::number(&self.extra, 0).unwrap_or(self.vm_state_bytes_low.into())
    }

    /// Returns the disk's size at that time in bytes, if the entry states it.
    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        extensions::number(&self.extra, 8)
    }

    /// Returns the number of instructions that the machine had executed, if counted.
    pub(crate) fn instructions(&self) -> Option<u64> {
        extensions::number(&self.extra, 16).filter(|count| *count != u64::MAX)
    }
}

/// Reads `count` entries at `at`; returns them and their size in bytes.
///
/// # Errors
///
/// EUCLEAN, with the entry, for a table beyond QEMU's limits or the end of the file.
pub(crate) fn read(file: &dyn ImageFile, at: u64, count: u32) -> Result<(Vec<SnapshotEntry>, u64)> {
    let in_table = |error: Error| error.at(format!("snapshot table at {at:#x}"));
    if count > SNAPSHOTS_MAX {
        return Err(in_table(Error::corrupt(format!("{count} snapshots"))));
    }
    let mut entries = Vec::new();
    let mut done = 0u64;
    let read = |bytes: &mut [u8], done: u64| {
        let want = bytes.len() as u64;
        let read_at = at
            .checked_add(done)
            .ok_or_else(|| Error::corrupt("reaches beyond the largest file"))?;
        match file.read_some(&mut [IoSliceMut::new(bytes)], read_at)? {
            count if count == want => Ok(()),
            _ => Err(Error::corrupt("reaches beyond the end of the file")),
        }
    };
    for index in 0..count {
        let in_entry = |error: Error| in_table(error.at(format!("entry {index}")));
        let mut raw = RawEntry::new_zeroed();
        read(raw.as_mut_bytes(), done).map_err(in_entry)?;
        if raw.extra_len.get() > EXTRA_BYTES_MAX {
            return Err(in_entry(Error::corrupt(format!(
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
            read(bytes, field_at).map_err(in_entry)?;
            field_at += bytes.len() as u64;
        }
        done = field_at.next_multiple_of(8);
        if done > TABLE_BYTES_MAX {
            return Err(in_table(Error::corrupt("more than 64 MiB")));
        }
        entries.push(SnapshotEntry {
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

/// Encodes the table.
///
/// # Errors
///
/// ENAMETOOLONG for an id or name, EFBIG for a table beyond QEMU's limits.
pub(crate) fn encode(entries: &[SnapshotEntry]) -> Result<Vec<u8>> {
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
        return Err(Error::new(Errno::FBIG, "too many snapshots"));
    }
    Ok(bytes)
}
