//! Changes of a partition table: a partition added or enlarged. The other partitions stay, and so
//! does every sector that is not of the table.

use super::entry::TableScheme;
use super::gpt_change::GptPair;
use super::mbr;
use super::mbr_change::{MbrChange, gaps};
use super::new_table::NewPartition;
use super::table::partition_table;
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::Device;
use std::ops::Range;

/// A table that was read to be changed.
enum OpenTable {
    Gpt(Box<GptPair>),
    Mbr(MbrChange),
}

/// Returns the ranges of bytes that a partition added to `disk` may use: those between the first
/// and the last sector for partitions that a GPT names; in an MBR those of primary partitions, then
/// those inside the last extended one.
///
/// # Errors
///
/// Those of [`PartitionAddition::new`] for a table that cannot be changed.
pub fn free_space(disk: &dyn Device) -> Result<Vec<Range<u64>>> {
    Ok(OpenTable::read(disk)?.free())
}

/// A partition that is not in the table yet, so that its content can be written first.
pub struct PartitionAddition {
    table: OpenTable,
    number: u32,
}

impl PartitionAddition {
    /// Plans to add a partition to the table of `disk`, with the lowest free number; inside an
    /// extended partition of an MBR as the last logical one. Writes nothing but the backup of a
    /// GPT, which moves to the end of a disk that was enlarged: the partition may use its old
    /// place.
    ///
    /// # Errors
    ///
    /// EINVAL if it overlaps another one or leaves the disk, ENOSPC if the table has no free entry,
    /// ENXIO without a table, EUCLEAN for a damaged table; else the device's errors.
    pub fn new(disk: &dyn Device, partition: &NewPartition) -> Result<Self> {
        let mut table = OpenTable::read(disk)?;
        let sector = table.sector_bytes();
        let start = partition.start_bytes;
        let end = start.saturating_add(partition.len_bytes);
        let free = table.free();
        let is_free = free
            .iter()
            .any(|free| free.start <= start && end <= free.end);
        let is_whole = start.is_multiple_of(sector) && end.is_multiple_of(sector) && start < end;
        if !is_whole || !is_free {
            return Err(not_free(&table, start..end));
        }
        let sectors = start / sector..end / sector;
        let number = match &mut table {
            OpenTable::Gpt(pair) => {
                let used = pair.table().used();
                let number = (1..=pair.table().len())
                    .find(|number| used.iter().all(|used| used.number != *number))
                    .ok_or_else(|| Error::new(Errno::NOSPC, "the partition table is full"))?;
                if pair.is_moved() {
                    pair.write(disk)?;
                }
                let entry = partition.gpt_entry(sector)?;
                pair.change(|copy| {
                    let place = copy.entry_mut(number);
                    place.fill(0);
                    place[..entry.len()].copy_from_slice(&entry);
                });
                number
            }
            OpenTable::Mbr(change) => {
                let code = partition.partition_type.mbr_code()?;
                change.add(sectors, code, partition.is_bootable)?
            }
        };
        Ok(Self { table, number })
    }

    /// Returns the number of the partition.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Writes the table.
    ///
    /// # Errors
    ///
    /// The device's errors.
    pub fn write(mut self, disk: &dyn Device) -> Result<()> {
        self.table.write(disk)
    }
}

fn not_free(table: &OpenTable, range: Range<u64>) -> Error {
    let (start, end, sector) = (range.start, range.end, table.sector_bytes());
    let used = table.used();
    let overlaps = |other: &Range<u64>| {
        start < other.end.saturating_mul(sector) && other.start.saturating_mul(sector) < end
    };
    let other = used.iter().find(|(_, other)| overlaps(other));
    let of = other.map(|(number, _)| format!(" of partition {number}"));
    let what = format!(
        "bytes {start}..{end} are not free sectors of {sector}{}",
        of.unwrap_or_default()
    );
    Error::new(Errno::INVAL, what)
}

/// Enlarges a partition of `disk` up to the next partition or the end of the disk, to whole pages;
/// returns its size in bytes. Writes nothing if there is no free space behind it. A backup of a GPT
/// moves to the end of a disk that was enlarged, and an extended partition grows with its last
/// logical one.
///
/// # Errors
///
/// ENXIO without a table or without this partition, EUCLEAN for a damaged table or a partition that
/// ends beyond the disk; else the device's errors.
pub fn grow_partition(disk: &dyn Device, number: u32) -> Result<u64> {
    let mut table = OpenTable::read(disk)?;
    let sector = table.sector_bytes();
    let used = table.used();
    let missing = || Error::new(Errno::NXIO, format!("no partition {number}"));
    let (_, old) = used
        .iter()
        .find(|(used, _)| *used == number)
        .ok_or_else(missing)?;
    if old.end > disk.len_bytes() / sector {
        let what = "the partition ends beyond the disk: enlarge the disk first";
        return Err(Error::corrupt(what).at(format!("partition {number}")));
    }
    let new = match &mut table {
        OpenTable::Gpt(pair) => grow_in_gpt(pair, number, old, &used),
        OpenTable::Mbr(change) => change.grow(number).ok_or_else(missing)?,
    };
    if new.end > old.end {
        table.write(disk)?;
    }
    Ok((new.end - new.start) * sector)
}

fn grow_in_gpt(
    pair: &mut GptPair,
    number: u32,
    old: &Range<u64>,
    used: &[(u32, Range<u64>)],
) -> Range<u64> {
    let starts = used.iter().map(|(_, other)| other.start);
    let next = starts.filter(|start| *start >= old.end).min();
    let usable = pair.table().usable();
    let limit = next.unwrap_or(usable.end).min(usable.end);
    // Whole pages, as file systems.
    let page = PAGE_SIZE as u64 / pair.sector_bytes();
    let end = limit / page * page;
    if end > old.end {
        pair.change(|copy| copy.set_end(number, end - 1));
    }
    old.start..end.max(old.end)
}

impl OpenTable {
    fn read(disk: &dyn Device) -> Result<Self> {
        let Some(table) = partition_table(disk)? else {
            return Err(Error::new(Errno::NXIO, "the disk has no partition table"));
        };
        Ok(match table.scheme {
            TableScheme::Gpt => {
                let pair = GptPair::read(disk).map_err(|error| error.at("GPT"))?;
                Self::Gpt(Box::new(pair))
            }
            TableScheme::Mbr => Self::Mbr(MbrChange::read(disk).map_err(|error| error.at("MBR"))?),
        })
    }

    fn sector_bytes(&self) -> u64 {
        match self {
            Self::Gpt(pair) => pair.sector_bytes(),
            Self::Mbr(_) => mbr::SECTOR_BYTES,
        }
    }

    /// Returns number and sectors of each used entry, among them an extended partition.
    fn used(&self) -> Vec<(u32, Range<u64>)> {
        match self {
            Self::Gpt(pair) => {
                let used = pair.table().used().into_iter();
                used.map(|entry| (entry.number, entry.sectors)).collect()
            }
            Self::Mbr(change) => change.used(),
        }
    }

    /// Returns the free ranges, in bytes.
    fn free(&self) -> Vec<Range<u64>> {
        let sector = self.sector_bytes();
        let free = match self {
            Self::Gpt(pair) => {
                let used = self.used().into_iter().map(|(_, sectors)| sectors);
                gaps(pair.table().usable(), used.collect())
            }
            Self::Mbr(change) => change.free(),
        };
        free.into_iter()
            .map(|range| range.start * sector..range.end * sector)
            .collect()
    }

    fn write(&mut self, disk: &dyn Device) -> Result<()> {
        match self {
            Self::Gpt(pair) => pair.write(disk),
            Self::Mbr(change) => change.write(disk),
        }
    }
}
