//! Master boot records, and the chain of logical partitions.

use super::entry::{Partition, PartitionTable};
use super::types::TableScheme;
use crate::base::{Error, Result};
use crate::block::Device;
use mbrman::{MBRHeader, MBRPartitionEntry};
use std::io;

/// Size in bytes of the sectors that an MBR counts, on every disk.
const MBR_SECTOR_BYTES: u64 = 512;
/// Largest number of logical partitions read from an MBR; Linux's minor numbers end at 255.
const LOGICAL_PARTITIONS_MAX: usize = 252;

/// Reads the four primary partitions, and the chain of logical ones in the extended partition.
pub(super) fn read(disk: &dyn Device) -> Result<PartitionTable> {
    let header = read_record(disk, 0)?;
    let id = u32::from_le_bytes(header.disk_signature);
    let table = |partitions| PartitionTable {
        scheme: TableScheme::Mbr,
        id: format!("{id:08x}"),
        partitions,
    };
    let mut found = Vec::new();
    let mut extended = None;
    for (entry, number) in header.iter().map(|(_, entry)| entry).zip(1..) {
        if entry.is_used() && entry.sectors > 0 {
            if entry.is_extended() && extended.is_none() {
                extended = Some(entry.clone());
            } else {
                found.push(partition(disk, id, entry, number, 0)?);
            }
        }
    }
    let Some(extended) = extended else {
        return Ok(table(found));
    };
    // Each boot record of the chain names one partition and the next record, which must be at a
    // higher sector.
    let (base, mut relative) = (u64::from(extended.starting_lba), 0);
    for number in 5.. {
        if found.len() > LOGICAL_PARTITIONS_MAX + 4 {
            return Err(Error::corrupt(
                "more logical partitions than Linux's device numbers",
            ));
        }
        let record = match read_record(disk, base + relative) {
            Ok(record) => record,
            // An empty extended partition may have no boot record.
            Err(_) if relative == 0 => break,
            Err(error) => return Err(error),
        };
        if record.partition_1.is_used() && record.partition_1.sectors > 0 {
            found.push(partition(
                disk,
                id,
                &record.partition_1,
                number,
                base + relative,
            )?);
        }
        let next = u64::from(record.partition_2.starting_lba);
        if record.partition_2.is_unused() || next == 0 {
            break;
        }
        if next <= relative {
            return Err(Error::corrupt(format!(
                "boot record at sector {}: the next record is not after it",
                base + relative
            )));
        }
        relative = next;
    }
    Ok(table(found))
}

fn read_record(disk: &dyn Device, sector: u64) -> Result<MBRHeader> {
    let at_record = || format!("boot record at sector {sector}");
    let mut bytes = [0; MBR_SECTOR_BYTES as usize];
    disk.read_at(&mut bytes, sector * MBR_SECTOR_BYTES)
        .map_err(|error| error.at(at_record()))?;
    // The crate reads from the start of its reader.
    let mut reader = io::Cursor::new(&bytes[..]);
    MBRHeader::read_from(&mut reader)
        .map_err(|error| Error::corrupt(error.to_string()).at(at_record()))
}

fn partition(
    disk: &dyn Device,
    disk_id: u32,
    entry: &MBRPartitionEntry,
    number: u32,
    base: u64,
) -> Result<Partition> {
    let start_bytes = (base + u64::from(entry.starting_lba)) * MBR_SECTOR_BYTES;
    let len_bytes = u64::from(entry.sectors) * MBR_SECTOR_BYTES;
    if start_bytes + len_bytes > disk.len_bytes() {
        let what = format!(
            "bytes {start_bytes}+{len_bytes} of a disk of {}",
            disk.len_bytes()
        );
        return Err(Error::corrupt(what).at(format!("partition {number}")));
    }
    let type_name = type_name(entry.sys);
    Ok(Partition {
        number,
        start_bytes,
        len_bytes,
        type_id: format!("{:#x}", entry.sys),
        type_name,
        uuid: format!("{disk_id:08x}-{number:02x}"),
        is_bootable: entry.boot & 0x80 != 0,
        label: String::new(),
    })
}

fn type_name(sys: u8) -> String {
    let name = match sys {
        0x01 | 0x04 | 0x06 | 0x0b | 0x0c | 0x0e => "FAT",
        0x05 | 0x0f | 0x85 => "extended",
        0x07 => "NTFS or exFAT",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x8e => "Linux LVM",
        0xef => "EFI system",
        0xfd => "Linux RAID",
        _ => return format!("type {sys:#04x}"),
    };
    name.to_owned()
}
