//! Internal snapshots: list, create, apply, delete, as `qemu-img snapshot` does.
//!
//! A snapshot is a copy of the L1 table; what both lead to has one reference more, and is copied
//! before it is written.

use super::super::image_file::ImageFile;
use super::change::{Change, entry_bytes, read_entries, write_disk};
use super::roots::{L1, Region, Roots};
use super::snapshot_table::{self, Entry, SNAPSHOTS_MAX};
use super::table::COPIED;
use crate::base::{Errno, Error, Result, Timespec};
use std::io::IoSlice;
use std::mem::offset_of;

/// Longest name, as in QEMU.
const NAME_BYTES_MAX: usize = 255;

/// An internal snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Unique in the image; a number as QEMU and Folio pick it.
    pub id: String,
    /// What the user called it; not always unique.
    pub name: String,
    /// Bytes of a machine's state that it holds.
    pub vm_state_bytes: u64,
    /// When it was made: seconds since 1970.
    pub date_secs: u32,
    /// And nanoseconds.
    pub date_nanos: u32,
    /// How long the machine had run, in nanoseconds.
    pub vm_clock_nanos: u64,
    /// The disk's size then, if it is known.
    pub disk_bytes: Option<u64>,
    /// Instructions that the machine had executed, if they were counted.
    pub instructions: Option<u64>,
}

impl From<&Entry> for Snapshot {
    fn from(entry: &Entry) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
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

/// The snapshots of the image in `file`, oldest first.
pub(in crate::block) fn list(file: &dyn ImageFile) -> Result<Vec<Snapshot>> {
    Ok(Roots::read(file)?
        .snapshots
        .iter()
        .map(Snapshot::from)
        .collect())
}

/// Makes a snapshot of what the disk now holds.
pub(in crate::block) fn create(file: &dyn ImageFile, name: &str, date: Timespec) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(
            Errno::NAMETOOLONG,
            "a snapshot's name has at most 255 bytes",
        ));
    }
    let mut change = Change::begin(file)?;
    let mut after = change.roots().clone();
    refuse_data_file(&after)?;
    if after.snapshots.len() >= SNAPSHOTS_MAX as usize {
        return Err(Error::new(Errno::FBIG, "there are 65536 snapshots already"));
    }
    let l1: Vec<u64> = read_entries(file, after.l1.region())?
        .iter()
        .map(|entry| entry & !COPIED)
        .collect();
    let l1_offset = change.put_table(&entry_bytes(&l1))?;
    let mut extra = Vec::new();
    // No machine state; the disk's size; instructions were not counted.
    for number in [0, after.len_bytes, u64::MAX] {
        extra.extend_from_slice(&number.to_be_bytes());
    }
    after.snapshots.push(Entry {
        l1_offset,
        // The table has at most 32 MiB.
        l1_entries: l1.len() as u32,
        id: next_id(&after.snapshots).into_bytes(),
        name: name.as_bytes().to_vec(),
        // The format ends in 2106.
        date_secs: u32::try_from(date.secs).unwrap_or_default(),
        date_nanos: date.nanos,
        vm_clock_nanos: 0,
        vm_state_bytes_low: 0,
        extra,
    });
    commit_table(change, after)
}

/// Makes the disk what it was when the snapshot was made; what it held is lost. `which` is an id,
/// or else a name.
pub(in crate::block) fn apply(file: &dyn ImageFile, which: &str) -> Result<()> {
    let mut change = Change::begin(file)?;
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
    // Nobody would tell bitmaps what changes.
    super::bitmaps::mark_in_use(file)?;
    let mut l1 = read_entries(file, region)?;
    let needed = len_bytes.div_ceil(after.l2_covers_bytes());
    if needed * 8 > super::header::L1_BYTES_MAX {
        return Err(Error::corrupt(format!(
            "a snapshot of a disk of {len_bytes} bytes"
        )));
    }
    if l1.len() < needed as usize {
        l1.resize(needed as usize, 0);
    }
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

/// Deletes a snapshot and gives back what only it held. `which` is a name, or else an id.
pub(in crate::block) fn delete(file: &dyn ImageFile, which: &str) -> Result<()> {
    let change = Change::begin(file)?;
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

/// Writes the new snapshot table, and the header that points to it.
fn commit_table(mut change: Change<'_>, mut after: Roots) -> Result<()> {
    let bytes = snapshot_table::bytes(&after.snapshots)?;
    after.snapshot_table = match bytes.is_empty() {
        true => Region {
            at: 0,
            len_bytes: 0,
        },
        false => Region {
            at: change.put_table(&bytes)?,
            len_bytes: bytes.len() as u64,
        },
    };
    after.refcount_table = change.roots().refcount_table;
    let mut fields = [0; 12];
    // At most 65536, and checked.
    fields[..4].copy_from_slice(&(after.snapshots.len() as u32).to_be_bytes());
    fields[4..].copy_from_slice(&after.snapshot_table.at.to_be_bytes());
    let at = offset_of!(super::header::RawHeader, snapshots) as u64;
    change.commit(&after, &mut |file| file.write(&[IoSlice::new(&fields)], at))
}

/// One more than the largest id that is a number.
fn next_id(entries: &[Entry]) -> String {
    let numbers = entries
        .iter()
        .filter_map(|entry| std::str::from_utf8(&entry.id).ok()?.parse::<u64>().ok());
    numbers.max().unwrap_or(0).saturating_add(1).to_string()
}

fn refuse_data_file(roots: &Roots) -> Result<()> {
    match roots.has_data_file {
        true => Err(Error::unsupported(
            "snapshots of an image with an external data file",
        )),
        false => Ok(()),
    }
}

fn missing(which: &str) -> Error {
    Error::new(Errno::NOENT, format!("no snapshot {which:?}"))
}
