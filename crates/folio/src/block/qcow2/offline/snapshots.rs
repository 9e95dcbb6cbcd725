//! Internal snapshots: list, create, apply, delete, as `qemu-img snapshot` does.
//!
//! A snapshot is a copy of the L1 table. Tables and clusters that both name have one more
//! reference, and are copied before they are written.

use super::change::{TableChange, entry_bytes, read_entries, write_disk};
use crate::base::{Errno, Error, Result, Timespec};
use crate::block::file::ImageFile;
use crate::block::qcow2::check::Finding;
use crate::block::qcow2::layout::bitmaps;
use crate::block::qcow2::layout::raw_header::{L1_BYTES_MAX, SNAPSHOTS_FIELD};
use crate::block::qcow2::layout::roots::{L1, Region, Roots};
use crate::block::qcow2::layout::snapshot_table::{self, SNAPSHOTS_MAX, SnapshotEntry};
use crate::block::qcow2::layout::table::COPIED;
use std::io::IoSlice;

/// Longest name in bytes, as in QEMU.
const NAME_BYTES_MAX: usize = 255;

/// An internal snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Unique in the image; QEMU and Folio use consecutive numbers.
    pub id: String,
    /// The user's name for it; not always unique.
    pub name: String,
    /// Size of the virtual machine's state in bytes.
    pub vm_state_bytes: u64,
    /// Time of creation, in seconds since 1970.
    pub date_secs: u32,
    /// Nanoseconds of the time of creation.
    pub date_nanos: u32,
    /// Run time of the virtual machine, in nanoseconds.
    pub vm_clock_nanos: u64,
    /// The disk's size at that time in bytes, if known.
    pub disk_bytes: Option<u64>,
    /// Instructions that the virtual machine had executed, if counted.
    pub instructions: Option<u64>,
}

impl<'a> From<&'a SnapshotEntry> for Snapshot {
    fn from(entry: &'a SnapshotEntry) -> Self {
        // QEMU stores no terminator, but ends a name at one.
        let end = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0);
        let name = |bytes: &'a [u8]| &bytes[..end(bytes).unwrap_or(bytes.len())];
        let text = |bytes| String::from_utf8_lossy(name(bytes)).into_owned();
        Self {
            id: text(&entry.id),
            name: text(&entry.name),
            vm_state_bytes: entry.vm_state_bytes(),
            date_secs: entry.date_secs,
            date_nanos: entry.date_nanos,
            vm_clock_nanos: entry.vm_clock_nanos,
            disk_bytes: entry.disk_bytes(),
            instructions: entry.instructions(),
        }
    }
}

/// Lists the snapshots of the image in `file`, oldest first.
pub(crate) fn list(file: &dyn ImageFile) -> Result<Vec<Snapshot>> {
    Ok(Roots::read(file)?
        .snapshots
        .iter()
        .map(Snapshot::from)
        .collect())
}

/// Creates a snapshot of the disk's present content.
///
/// # Errors
///
/// ENAMETOOLONG, EFBIG for one snapshot too many, EOPNOTSUPP with an external data file, EUCLEAN
/// for an image with errors.
pub(crate) fn create(file: &dyn ImageFile, name: &str, date: Timespec) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(
            Errno::NAMETOOLONG,
            "the name of the snapshot is longer than 255 bytes",
        ));
    }
    let mut change = TableChange::begin(file)?;
    let mut after = change.roots().clone();
    refuse_data_file(&after)?;
    if after.snapshots.len() >= SNAPSHOTS_MAX as usize {
        return Err(Error::new(
            Errno::FBIG,
            "the image has the maximum of 65536 snapshots",
        ));
    }
    let l1: Vec<u64> = read_entries(file, after.l1.region())?
        .iter()
        // Both L1 tables name the L2 tables now, so that neither may be written in place.
        .map(|entry| entry & !COPIED)
        .collect();
    let l1_offset = change.put_table(&entry_bytes(&l1))?;
    let mut extra = Vec::new();
    // No virtual machine state, the disk's size, no instructions, as qemu-img writes them.
    for number in [0, after.len_bytes, 0] {
        extra.extend_from_slice(&number.to_be_bytes());
    }
    after.snapshots.push(SnapshotEntry {
        l1_offset,
        // The table has at most 32 MiB.
        l1_entries: l1.len() as u32,
        id: next_id(&after.snapshots).into_bytes(),
        name: name.as_bytes().to_vec(),
        // The format's dates end in 2106.
        date_secs: u32::try_from(date.secs).unwrap_or_default(),
        date_nanos: date.nanos,
        vm_clock_nanos: 0,
        vm_state_bytes_low: 0,
        extra,
    });
    commit_table(change, after)
}

/// Restores the disk to a snapshot; its present content is lost. `which` is an id, or else a name.
///
/// # Errors
///
/// ENOENT if there is no such snapshot, else those of [`create`].
pub(crate) fn apply(file: &dyn ImageFile, which: &str) -> Result<()> {
    let mut change = TableChange::begin(file)?;
    let mut after = change.roots().clone();
    refuse_data_file(&after)?;
    let by_id = after
        .snapshots
        .iter()
        .find(|entry| entry.id == which.as_bytes());
    let by_name = || {
        after
            .snapshots
            .iter()
            .find(|entry| entry.name == which.as_bytes())
    };
    let entry = by_id.or_else(by_name).ok_or_else(|| missing(which))?;
    let region = L1 {
        at: entry.l1_offset,
        entries: entry.l1_entries.into(),
    }
    .region();
    let len_bytes = entry.disk_bytes().unwrap_or(after.len_bytes);
    // No program records the changed blocks in the bitmaps.
    bitmaps::mark_in_use(file)?;
    let mut l1 = read_entries(file, region)?;
    let needed = len_bytes.div_ceil(after.l2_covers_bytes());
    if needed * 8 > L1_BYTES_MAX {
        return Err(Error::corrupt(format!(
            "a snapshot of a disk of {len_bytes} bytes"
        )));
    }
    if l1.len() < needed as usize {
        l1.resize(needed as usize, 0);
    }
    // The snapshot keeps its tables: the disk copies them before it writes.
    l1.iter_mut().for_each(|entry| *entry &= !COPIED);
    after.l1 = L1 {
        at: change.put_table(&entry_bytes(&l1))?,
        entries: l1.len() as u64,
    };
    after.len_bytes = len_bytes;
    // The refcount table may have moved to make room.
    after.refcount_table = change.roots().refcount_table;
    change.commit(&after, &mut |file| write_disk(file, &after))
}

/// Deletes a snapshot and frees the clusters that only it used. `which` is a name, or else an id.
///
/// # Errors
///
/// ENOENT if there is no such snapshot, EUCLEAN for an image with errors.
pub(crate) fn delete(file: &dyn ImageFile, which: &str) -> Result<()> {
    let change = TableChange::begin(file)?;
    let mut after = change.roots().clone();
    let by_name = after
        .snapshots
        .iter()
        .position(|entry| entry.name == which.as_bytes());
    let by_id = || {
        after
            .snapshots
            .iter()
            .position(|entry| entry.id == which.as_bytes())
    };
    let index = by_name.or_else(by_id).ok_or_else(|| missing(which))?;
    after.snapshots.remove(index);
    commit_table(change, after)
}

/// Completes entries without the disk's size, which version 3 requires: the disk's present size is
/// taken. Returns the number of completed entries.
///
/// # Errors
///
/// EUCLEAN for an image with other errors.
pub(crate) fn complete_entries(
    file: &dyn ImageFile,
    report: &mut dyn FnMut(&Finding),
) -> Result<u64> {
    let is_due = |roots: &Roots| {
        let mut entries = roots.snapshots.iter();
        roots.version >= 3 && entries.any(SnapshotEntry::is_incomplete)
    };
    if !is_due(&Roots::read(file)?) {
        return Ok(0);
    }
    let change = TableChange::begin(file)?;
    let mut after = change.roots().clone();
    let disk_bytes = after.len_bytes;
    let mut completed = Vec::new();
    for (index, entry) in after.snapshots.iter_mut().enumerate() {
        if entry.is_incomplete() {
            entry.complete(disk_bytes);
            completed.push(index);
        }
    }
    commit_table(change, after)?;
    for index in &completed {
        let what = format!("snapshot table entry {index} is incomplete");
        report(&Finding::Repaired(what));
    }
    Ok(completed.len() as u64)
}

/// Writes the new snapshot table, and the header that points to it.
fn commit_table(mut change: TableChange<'_>, mut after: Roots) -> Result<()> {
    let bytes = snapshot_table::encode(&after.snapshots)?;
    after.snapshot_table = if bytes.is_empty() {
        Region {
            at: 0,
            len_bytes: 0,
        }
    } else {
        Region {
            at: change.put_table(&bytes)?,
            len_bytes: bytes.len() as u64,
        }
    };
    after.refcount_table = change.roots().refcount_table;
    let mut fields = [0; 12];
    // At most 65536, and checked.
    fields[..4].copy_from_slice(&(after.snapshots.len() as u32).to_be_bytes());
    fields[4..].copy_from_slice(&after.snapshot_table.at.to_be_bytes());
    change.commit(&after, &mut |file| {
        file.write(&[IoSlice::new(&fields)], SNAPSHOTS_FIELD)
    })
}

/// Returns the largest numeric id plus one.
fn next_id(entries: &[SnapshotEntry]) -> String {
    let numbers = entries
        .iter()
        .filter_map(|entry| std::str::from_utf8(&entry.id).ok()?.parse::<u64>().ok());
    numbers.max().unwrap_or(0).saturating_add(1).to_string()
}

fn refuse_data_file(roots: &Roots) -> Result<()> {
    if roots.has_data_file {
        Err(Error::unsupported(
            "snapshots of an image with an external data file",
        ))
    } else {
        Ok(())
    }
}

fn missing(which: &str) -> Error {
    Error::new(Errno::NOENT, format!("no snapshot {which:?}"))
}
