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

    /// Whether the entry lacks fields that version 3 requires: the state's size in 64 bits and the
    /// disk's size.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.disk_bytes().is_none()
    }

    /// Adds the fields that version 3 requires.
    pub(crate) fn complete(&mut self, disk_bytes: u64) {
        let fields = [self.vm_state_bytes(), disk_bytes, u64::MAX];
        let missing = self.extra.len() / 8;
        self.extra.truncate(missing * 8);
        for number in fields.iter().skip(missing) {
            self.extra.extend_from_slice(&number.to_be_bytes());
        }
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
    read_with(file, at, count, &mut |error, _| Err(error))
}

/// Reads the entries as [`read`] does, without the parts that exceed QEMU's limits; returns what it
/// left out.
///
/// # Errors
///
/// EUCLEAN, with the entry, for a table beyond the end of the file.
pub(crate) fn read_within_limits(
    file: &dyn ImageFile,
    at: u64,
    count: u32,
) -> Result<(Vec<SnapshotEntry>, Vec<String>)> {
    let mut omitted = Vec::new();
    let (entries, _) = read_with(file, at, count, &mut |_, what| {
        omitted.push(what);
        Ok(())
    })?;
    Ok((entries, omitted))
}

/// Decides about a part that exceeds a limit, from its error and its description.
type OnExcess<'a> = &'a mut dyn FnMut(Error, String) -> Result<()>;

fn read_with(
    file: &dyn ImageFile,
    at: u64,
    mut count: u32,
    on_excess: OnExcess<'_>,
) -> Result<(Vec<SnapshotEntry>, u64)> {
    let in_table = |error: Error| error.at(format!("snapshot table at {at:#x}"));
    if count > SNAPSHOTS_MAX {
        let error = in_table(Error::corrupt(format!("{count} snapshots")));
        let more = count - SNAPSHOTS_MAX;
        on_excess(
            error,
            format!("{more} overhanging snapshots (there are too many)"),
        )?;
        count = SNAPSHOTS_MAX;
    }
    let mut entries = Vec::new();
    let mut done = 0u64;
    for index in 0..count {
        let in_entry = |error: Error| in_table(error.at(format!("entry {index}")));
        let (entry, extra_len, end) = read_entry(file, at, done).map_err(in_entry)?;
        if extra_len > EXTRA_BYTES_MAX {
            let error = in_entry(Error::corrupt(format!("{extra_len} bytes of extra data")));
            let what = format!(
                "too much extra metadata in snapshot table entry {index} \
                 ({extra_len} > {EXTRA_BYTES_MAX})"
            );
            on_excess(error, what)?;
        }
        if end > TABLE_BYTES_MAX {
            let what = format!(
                "{} overhanging snapshots (snapshot table is too big)",
                count - index
            );
            on_excess(in_table(Error::corrupt("more than 64 MiB")), what)?;
            break;
        }
        done = end;
        entries.push(entry);
    }
    Ok((entries, done))
}

/// Reads the entry at `done` in the table at `at`, with extra data up to the limit. Returns it, the
/// size of its extra data, and the place of the next entry.
fn read_entry(file: &dyn ImageFile, at: u64, done: u64) -> Result<(SnapshotEntry, u32, u64)> {
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
    let mut raw = RawEntry::new_zeroed();
    read(raw.as_mut_bytes(), done)?;
    let extra_len = raw.extra_len.get();
    let field = |len: u32| vec![0; len as usize];
    let mut extra = field(extra_len.min(EXTRA_BYTES_MAX));
    let mut id = field(raw.id_len.get().into());
    let mut name = field(raw.name_len.get().into());
    let extra_at = done + size_of::<RawEntry>() as u64;
    let id_at = extra_at + u64::from(extra_len);
    let name_at = id_at + id.len() as u64;
    read(&mut extra, extra_at)?;
    read(&mut id, id_at)?;
    read(&mut name, name_at)?;
    let end = (name_at + name.len() as u64).next_multiple_of(8);
    let entry = SnapshotEntry {
        l1_offset: raw.l1_offset.get(),
        l1_entries: raw.l1_entries.get(),
        id,
        name,
        date_secs: raw.date_secs.get(),
        date_nanos: raw.date_nanos.get(),
        vm_clock_nanos: raw.vm_clock_nanos.get(),
        vm_state_bytes_low: raw.vm_state_bytes.get(),
        extra,
    };
    Ok((entry, extra_len, end))
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
