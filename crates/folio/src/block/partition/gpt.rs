//! GUID partition tables (UEFI specification, chapter 5).

use super::entry::{Partition, PartitionTable};
use crate::base::{Error, Result};
use crate::block::Device;
use gptman::{GPTHeader, GPTPartitionEntry};
use std::io::{self, Read, Seek, SeekFrom};
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
        found.push(Partition {
            number,
            start_bytes: first * sector_bytes,
            len_bytes: (last - first + 1) * sector_bytes,
            type_id: Uuid::from_bytes_le(entry.partition_type_guid).to_string(),
            type_name: type_name(Uuid::from_bytes_le(entry.partition_type_guid)),
            uuid: Uuid::from_bytes_le(entry.unique_partition_guid).to_string(),
            is_bootable: entry.attribute_bits & LEGACY_BIOS_BOOTABLE != 0,
            label: entry.partition_name.as_str().to_owned(),
        });
    }
    Ok(PartitionTable {
        scheme: "gpt",
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
    let mut reader = DeviceReader {
        disk,
        at: sector * sector_bytes,
    };
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

/// Returns the name of a partition type. Source: UEFI specification; for Linux's types, the
/// Discoverable Partitions Specification.
fn type_name(guid: Uuid) -> String {
    let text = guid.to_string();
    let name = match text.as_str() {
        "c12a7328-f81f-11d2-ba4b-00a0c93ec93b" => "EFI system",
        "21686148-6449-6e6f-744e-656564454649" => "BIOS boot",
        "0fc63daf-8483-4772-8e79-3d69d8477de4" => "Linux filesystem",
        "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f" => "Linux swap",
        "e6d6d379-f507-44c2-a23c-238f2a3df928" => "Linux LVM",
        "a19d880f-05fc-4d3b-a006-743f0f84911e" => "Linux RAID",
        "933ac7e1-2eb4-4f13-b844-0e14e2aef915" => "Linux home",
        "bc13c2ff-59e6-4262-a352-b275fd6f7172" => "Linux extended boot",
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709" => "Linux root (x86-64)",
        "b921b045-1df0-41c3-af44-4c6f280d3fae" => "Linux root (ARM-64)",
        "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7" => "Microsoft basic data",
        "e3c9e316-0b5c-4db8-817d-f92df00215ae" => "Microsoft reserved",
        _ => return text,
    };
    name.to_owned()
}

/// A device behind the traits that the crate reads from.
struct DeviceReader<'a> {
    disk: &'a dyn Device,
    at: u64,
}

impl Read for DeviceReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.disk.len_bytes().saturating_sub(self.at);
        let count = (buf.len() as u64).min(left) as usize;
        self.disk
            .read_at(&mut buf[..count], self.at)
            .map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for DeviceReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.disk.len_bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
