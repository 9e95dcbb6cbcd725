//! GUID partition tables (UEFI specification, chapter 5).

use super::cursor::DeviceCursor;
use super::entry::{Partition, PartitionTable};
use super::types::{TableScheme, description};
use crate::base::{Error, Result};
use crate::block::Device;
use gptman::{GPTHeader, GPTPartitionEntry};
use std::io::{Seek, SeekFrom};
use uuid::Uuid;

/// Largest number of entries read from a GPT; the specification's minimum, and the usual number, is
/// 128.
const GPT_ENTRIES_MAX: u32 = 1024;
/// Attribute of a partition that a BIOS boots from.
const LEGACY_BIOS_BOOTABLE: u64 = 1 << 2;

/// Whether a GPT header is in the second sector, for this sector size in bytes.
pub(super) fn has_gpt(disk: &dyn Device, sector_bytes: u64) -> Result<bool> {
    let mut signature = [0; 8];
    if disk.len_bytes() < 2 * sector_bytes {
        return Ok(false);
    }
    disk.read_at(&mut signature, sector_bytes)?;
    Ok(&signature == b"EFI PART")
}

/// Reads the partitions by the primary header, or by the backup at the disk's end if the primary is
/// damaged.
pub(super) fn read(disk: &dyn Device, sector_bytes: u64) -> Result<PartitionTable> {
    let sectors = disk.len_bytes() / sector_bytes;
    let (disk_guid, entries) = match read_entries(disk, sector_bytes, 1) {
        Ok(found) => found,
        Err(primary) => {
            read_entries(disk, sector_bytes, sectors.saturating_sub(1)).map_err(|_| primary)?
        }
    };
    let mut found = Vec::new();
    for (entry, number) in entries.iter().zip(1..) {
        if !entry.is_used() {
            continue;
        }
        let (first, last) = (entry.starting_lba, entry.ending_lba);
        if first > last || last >= sectors {
            let what = format!("sectors {first} to {last} of a disk of {sectors}");
            return Err(Error::corrupt(what).at(format!("partition {number}")));
        }
        let type_guid = Uuid::from_bytes_le(entry.partition_type_guid);
        found.push(Partition {
            number,
            start_bytes: first * sector_bytes,
            len_bytes: (last - first + 1) * sector_bytes,
            type_id: type_guid.to_string(),
            type_name: description(type_guid).map_or_else(|| type_guid.to_string(), str::to_owned),
            uuid: Uuid::from_bytes_le(entry.unique_partition_guid).to_string(),
            is_bootable: entry.attribute_bits & LEGACY_BIOS_BOOTABLE != 0,
            label: entry.partition_name.as_str().to_owned(),
        });
    }
    Ok(PartitionTable {
        scheme: TableScheme::Gpt,
        id: Uuid::from_bytes_le(disk_guid).to_string(),
        partitions: found,
    })
}

/// Reads one header and its entries; returns the disk's GUID and the entries. Every number that the
/// crate would use unchecked is checked first.
fn read_entries(
    disk: &dyn Device,
    sector_bytes: u64,
    sector: u64,
) -> Result<([u8; 16], Vec<GPTPartitionEntry>)> {
    let corrupt = |error: gptman::Error| Error::corrupt(error.to_string());
    let mut reader = DeviceCursor::new(disk);
    let sought = reader.seek(SeekFrom::Start(sector * sector_bytes));
    sought.map_err(|error| Error::io("seek", error))?;
    let header = GPTHeader::read_from(&mut reader).map_err(corrupt)?;
    if header.number_of_partition_entries > GPT_ENTRIES_MAX {
        return Err(Error::corrupt(format!(
            "{} entries",
            header.number_of_partition_entries
        )));
    }
    if !(128..=4096).contains(&header.size_of_partition_entry) {
        return Err(Error::corrupt(format!(
            "entries of {} bytes",
            header.size_of_partition_entry
        )));
    }
    if header.partition_entry_lba >= disk.len_bytes() / sector_bytes {
        return Err(Error::corrupt(format!(
            "entries at sector {}",
            header.partition_entry_lba
        )));
    }
    let entries = header
        .read_partitions(&mut reader, sector_bytes)
        .map_err(corrupt)?;
    Ok((header.disk_guid, entries))
}
