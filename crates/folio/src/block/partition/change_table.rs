//! Changes of a partition table: a partition added or enlarged. The other partitions stay.

use super::cursor::DeviceCursor;
use super::new_table::{
    MBR_BOOTABLE, MBR_PARTITIONS_MAX, NewPartition, NewPartitionTable, SECTOR_BYTES,
};
use super::table::partition_table;
use super::types::TableScheme;
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::Device;
use gptman::GPT;
use mbrman::MBRHeader;
use std::ops::Range;

/// Type of the entry of a protective MBR, which covers a disk with a GPT.
const PROTECTIVE: u8 = 0xEE;

/// A table that was read to be changed.
enum OpenTable {
    Gpt {
        gpt: Box<GPT>,
        /// Its backup belongs at the end of a disk that was enlarged, where it is not yet.
        is_moved: bool,
    },
    /// The four primary entries. The chain of logical partitions is not written.
    Mbr(MBRHeader),
}

/// Returns the ranges of bytes that a partition added to `disk` may use, in order.
///
/// # Errors
///
/// Those of [`PartitionAddition::new`] for a table that cannot be changed.
pub fn free_space(disk: &dyn Device) -> Result<Vec<Range<u64>>> {
    let table = OpenTable::read(disk)?;
    let usable = NewPartitionTable::usable(table.scheme(), disk.len_bytes());
    let mut used: Vec<_> = table.used().into_iter().map(|(_, range)| range).collect();
    used.sort_unstable_by_key(|range| range.start);
    used.push(usable.end..usable.end);
    let mut at = usable.start;
    let mut free = Vec::new();
    for range in used {
        if at < range.start {
            free.push(at..range.start);
        }
        at = at.max(range.end);
    }
    Ok(free)
}

/// A partition that is not in the table yet, so that its content can be written first.
pub struct PartitionAddition {
    table: OpenTable,
    number: u32,
}

impl PartitionAddition {
    /// Plans to add a partition to the table of `disk`, with the lowest free number. Writes nothing
    /// but the backup of a GPT, which moves to the end of a disk that was enlarged: the partition
    /// may use its old place.
    ///
    /// # Errors
    ///
    /// EINVAL if it overlaps another one or leaves the disk, ENOSPC if the table has no free entry,
    /// ENXIO without a table, EOPNOTSUPP for a GPT of other sectors than of 512 bytes; else those
    /// of [`partition_table`].
    pub fn new(disk: &dyn Device, partition: &NewPartition) -> Result<Self> {
        let mut table = OpenTable::read(disk)?;
        let start = partition.start_bytes;
        let end = start.saturating_add(partition.len_bytes);
        let used = table.used();
        let overlaps = used
            .iter()
            .find(|(_, other)| start < other.end && other.start < end);
        let usable = NewPartitionTable::usable(table.scheme(), disk.len_bytes());
        let is_whole =
            start.is_multiple_of(SECTOR_BYTES) && end.is_multiple_of(SECTOR_BYTES) && start < end;
        if !is_whole || start < usable.start || end > usable.end || overlaps.is_some() {
            let of = overlaps.map(|(number, _)| format!(" of partition {number}"));
            let what = format!(
                "bytes {start}..{end} are not free{}",
                of.unwrap_or_default()
            );
            return Err(Error::new(Errno::INVAL, what));
        }
        let number = (1..=table.len())
            .find(|number| used.iter().all(|(used, _)| used != number))
            .ok_or_else(|| Error::new(Errno::NOSPC, "the partition table is full"))?;
        if matches!(table, OpenTable::Gpt { is_moved: true, .. }) {
            table.write(disk)?;
        }
        match &mut table {
            OpenTable::Gpt { gpt, .. } => gpt[number] = partition.gpt_entry()?,
            OpenTable::Mbr(mbr) => mbr[number as usize] = partition.mbr_entry()?,
        }
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

/// Enlarges a partition of `disk` up to the next partition or the end of the disk, to whole pages;
/// returns its size in bytes. Writes nothing if there is no free space behind it. A backup of a GPT
/// moves to the end of a disk that was enlarged.
///
/// # Errors
///
/// ENXIO without a table or without this partition, EOPNOTSUPP for a logical partition and a GPT of
/// other sectors than of 512 bytes; else those of [`partition_table`].
pub fn grow_partition(disk: &dyn Device, number: u32) -> Result<u64> {
    let mut table = OpenTable::read(disk)?;
    let used = table.used();
    let found = used.iter().find(|(used, _)| *used == number);
    let Some((_, range)) = found else {
        if matches!(table, OpenTable::Mbr(_)) && number as usize > MBR_PARTITIONS_MAX {
            return Err(Error::unsupported("enlarging a logical partition"));
        }
        return Err(Error::new(Errno::NXIO, format!("no partition {number}")));
    };
    let usable = NewPartitionTable::usable(table.scheme(), disk.len_bytes());
    let starts = used.iter().map(|(_, other)| other.start);
    let next = starts.filter(|start| *start >= range.end).min();
    let limit = next.unwrap_or(usable.end).min(usable.end);
    // Whole pages, as file systems.
    let end = limit / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    if end <= range.end {
        return Ok(range.end - range.start);
    }
    match &mut table {
        OpenTable::Gpt { gpt, .. } => gpt[number].ending_lba = end / SECTOR_BYTES - 1,
        // Below 2^32 sectors: the usable range ends there.
        OpenTable::Mbr(mbr) => {
            mbr[number as usize].sectors = ((end - range.start) / SECTOR_BYTES) as u32;
        }
    }
    table.write(disk)?;
    Ok(end - range.start)
}

impl OpenTable {
    fn read(disk: &dyn Device) -> Result<Self> {
        let Some(table) = partition_table(disk)? else {
            return Err(Error::new(Errno::NXIO, "the disk has no partition table"));
        };
        let mut cursor = DeviceCursor::new(disk);
        match table.scheme {
            TableScheme::Gpt => {
                let mut gpt = GPT::find_from(&mut cursor).map_err(gpt_failed)?;
                let sector = gpt.sector_size;
                if sector != SECTOR_BYTES {
                    return Err(Error::unsupported(format!(
                        "changing a GPT of {sector}-byte sectors"
                    )));
                }
                check_array(&gpt, disk.len_bytes())?;
                let places = |gpt: &GPT| (gpt.header.primary_lba, gpt.header.backup_lba);
                let before = places(&gpt);
                gpt.header
                    .update_from(&mut cursor, SECTOR_BYTES)
                    .map_err(gpt_failed)?;
                Ok(Self::Gpt {
                    is_moved: places(&gpt) != before,
                    gpt: Box::new(gpt),
                })
            }
            TableScheme::Mbr => {
                let mbr = MBRHeader::read_from(&mut cursor).map_err(mbr_failed)?;
                Ok(Self::Mbr(mbr))
            }
        }
    }

    fn scheme(&self) -> TableScheme {
        match self {
            Self::Gpt { .. } => TableScheme::Gpt,
            Self::Mbr(_) => TableScheme::Mbr,
        }
    }

    /// Returns the number of entries.
    fn len(&self) -> u32 {
        match self {
            Self::Gpt { gpt, .. } => gpt.header.number_of_partition_entries,
            Self::Mbr(_) => MBR_PARTITIONS_MAX as u32,
        }
    }

    /// Returns number and bytes of each used entry, among them an extended partition.
    fn used(&self) -> Vec<(u32, Range<u64>)> {
        let bytes = |start: u64, end: u64| {
            start.saturating_mul(SECTOR_BYTES)..end.saturating_mul(SECTOR_BYTES)
        };
        match self {
            Self::Gpt { gpt, .. } => gpt
                .iter()
                .filter(|(_, entry)| entry.is_used())
                .map(|(number, entry)| {
                    let end = entry.ending_lba.saturating_add(1);
                    (number, bytes(entry.starting_lba, end))
                })
                .collect(),
            Self::Mbr(mbr) => (1..=MBR_PARTITIONS_MAX as u32)
                .map(|number| (number, &mbr[number as usize]))
                .filter(|(_, entry)| entry.is_used() && entry.sectors > 0)
                .map(|(number, entry)| {
                    let start = u64::from(entry.starting_lba);
                    (number, bytes(start, start + u64::from(entry.sectors)))
                })
                .collect(),
        }
    }

    fn write(&mut self, disk: &dyn Device) -> Result<()> {
        let mut cursor = DeviceCursor::new(disk);
        match self {
            Self::Gpt { gpt, .. } => {
                write_protective_mbr(&mut cursor)?;
                gpt.write_into(&mut cursor).map(drop).map_err(gpt_failed)
            }
            Self::Mbr(mbr) => mbr.write_into(&mut cursor).map_err(mbr_failed),
        }
    }
}

/// Refuses an array of entries that has none, or for which the disk has no room at both ends: the
/// crate's arithmetic would overflow.
fn check_array(gpt: &GPT, disk_bytes: u64) -> Result<()> {
    let header = &gpt.header;
    let entries = u64::from(header.number_of_partition_entries);
    let array_bytes = entries * u64::from(header.size_of_partition_entry);
    let needed = 2 * array_bytes.next_multiple_of(SECTOR_BYTES) + 4 * SECTOR_BYTES;
    if entries == 0 || needed > disk_bytes {
        return Err(Error::corrupt(format!("{entries} entries")).at("GPT"));
    }
    Ok(())
}

/// Makes the protective MBR cover the whole disk. A hybrid one, with entries for a BIOS, stays.
fn write_protective_mbr(cursor: &mut DeviceCursor<'_>) -> Result<()> {
    let old = MBRHeader::read_from(cursor).ok();
    let entries: Vec<_> = old
        .iter()
        .flat_map(|old| old.iter().map(|(_, entry)| entry))
        .filter(|entry| entry.is_used())
        .collect();
    let written = match entries[..] {
        [only] if only.sys == PROTECTIVE && only.boot == MBR_BOOTABLE => {
            GPT::write_bootable_protective_mbr_into(cursor, SECTOR_BYTES)
        }
        [only] if only.sys != PROTECTIVE => Ok(()),
        [_, _, ..] => Ok(()),
        _ => GPT::write_protective_mbr_into(cursor, SECTOR_BYTES),
    };
    written.map_err(gpt_failed)
}

fn gpt_failed(error: gptman::Error) -> Error {
    Error::new(Errno::IO, error.to_string()).at("GPT")
}

fn mbr_failed(error: mbrman::Error) -> Error {
    Error::new(Errno::IO, error.to_string()).at("MBR")
}
