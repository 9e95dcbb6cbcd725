//! A new partition table: GPT with a protective MBR, or MBR.

use super::entry::TableScheme;
use super::gpt::{self, GptCopy};
use super::mbr;
use super::types::PartitionType;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use uuid::Uuid;

/// Bytes of the entries of a GPT.
const GPT_ARRAY_BYTES: u64 = gpt::NEW_ENTRIES as u64 * gpt::ENTRY_BYTES as u64;
/// Longest label of a GPT, in UTF-16 code units.
const LABEL_LEN_MAX: usize = 36;
/// Attribute of a partition that a BIOS boots from, in a GPT.
const GPT_LEGACY_BIOS_BOOTABLE: u64 = 1 << 2;

/// A partition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPartition {
    /// Offset of its first byte, a multiple of the sector size.
    pub start_bytes: u64,
    /// Its size in bytes, a multiple of the sector size.
    pub len_bytes: u64,
    /// Its type.
    pub partition_type: PartitionType,
    /// Its UUID in a GPT, as text prints it.
    pub uuid: [u8; 16],
    /// Its label in a GPT, at most 36 characters.
    pub label: String,
    /// Attribute bits of a GPT.
    pub attributes: u64,
    /// A BIOS boots from it.
    pub is_bootable: bool,
}

/// A partition table to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPartitionTable {
    /// GPT or MBR.
    pub scheme: TableScheme,
    /// Bytes per sector: 512, or 4096 in a GPT.
    pub sector_bytes: u64,
    /// The UUID of the disk in a GPT, as text prints it; an MBR has the first four bytes as its
    /// number, in the order of digits.
    pub id: [u8; 16],
    /// The partitions, numbered from 1.
    pub partitions: Vec<NewPartition>,
}

impl NewPartitionTable {
    /// Returns the range of bytes that partitions may use on a disk of `disk_bytes` bytes.
    pub fn usable(scheme: TableScheme, sector_bytes: u64, disk_bytes: u64) -> std::ops::Range<u64> {
        let sectors = disk_bytes / sector_bytes;
        match scheme {
            TableScheme::Gpt => {
                // The protective MBR; header and entries at each end of the disk.
                let copy = 1 + GPT_ARRAY_BYTES.div_ceil(sector_bytes);
                let end = sectors.saturating_sub(copy);
                (1 + copy) * sector_bytes..end * sector_bytes
            }
            TableScheme::Mbr => sector_bytes..sectors.min(u64::from(u32::MAX)) * sector_bytes,
        }
    }

    /// Writes the table to `disk`, over its old one.
    ///
    /// # Errors
    ///
    /// EINVAL for partitions that overlap, leave the disk, have no whole sectors, or that the table
    /// cannot describe; nothing is written then. Else the device's errors.
    pub fn write(&self, disk: &dyn Device) -> Result<()> {
        self.check(disk.len_bytes())?;
        match self.scheme {
            TableScheme::Gpt => self.write_gpt(disk),
            TableScheme::Mbr => self.write_mbr(disk),
        }
    }

    fn check(&self, disk_bytes: u64) -> Result<()> {
        let sector = self.sector_bytes;
        let is_known = match self.scheme {
            TableScheme::Gpt => matches!(sector, 512 | 4096),
            TableScheme::Mbr => sector == mbr::SECTOR_BYTES,
        };
        if !is_known {
            let what = format!("sectors of {sector} bytes: expected 512, or 4096 in a GPT");
            return Err(Error::new(Errno::INVAL, what));
        }
        let usable = Self::usable(self.scheme, sector, disk_bytes);
        if usable.is_empty() {
            let what = format!("a disk of {disk_bytes} bytes has no room for the table");
            return Err(Error::new(Errno::INVAL, what));
        }
        let mut in_order: Vec<_> = self.partitions.iter().zip(1_u32..).collect();
        in_order.sort_by_key(|(partition, _)| partition.start_bytes);
        let mut after = usable.start;
        for (partition, number) in in_order {
            let refuse = |what: String| {
                Err(Error::new(Errno::INVAL, what).at(format!("partition {number}")))
            };
            let (start, len) = (partition.start_bytes, partition.len_bytes);
            let Some(end) = start.checked_add(len) else {
                return refuse("its end is beyond 2^64 bytes".to_owned());
            };
            if len == 0 || start % sector != 0 || len % sector != 0 {
                return refuse(format!(
                    "bytes {start}+{len} are not whole sectors of {sector}"
                ));
            }
            if start < after {
                return refuse(format!(
                    "starts at byte {start}, but {after} is the first free one"
                ));
            }
            if end > usable.end {
                let most = usable.end;
                return refuse(format!(
                    "ends at byte {end}, but partitions end at {most} at most"
                ));
            }
            if partition.label.encode_utf16().count() > LABEL_LEN_MAX {
                let what = format!(
                    "label {:?} is too long: at most 36 characters",
                    partition.label
                );
                return refuse(what);
            }
            after = end;
        }
        let most = match self.scheme {
            TableScheme::Gpt => gpt::NEW_ENTRIES as usize,
            TableScheme::Mbr => mbr::ENTRIES,
        };
        if self.partitions.len() > most {
            let what = format!(
                "{} partitions, at most {most} allowed",
                self.partitions.len()
            );
            return Err(Error::new(Errno::INVAL, what));
        }
        Ok(())
    }

    fn write_gpt(&self, disk: &dyn Device) -> Result<()> {
        let (sector, id) = (self.sector_bytes, Uuid::from_bytes(self.id).to_bytes_le());
        let mut primary = GptCopy::new(sector, disk.len_bytes(), id);
        for (partition, number) in self.partitions.iter().zip(1..) {
            let entry = partition.gpt_entry(sector)?;
            primary.entry_mut(number).copy_from_slice(&entry);
        }
        let mut backup = primary.mirrored(primary.usable().end);
        disk.write_at(&mbr::protective_record(disk.len_bytes() / sector), 0)?;
        primary.write(disk)?;
        backup.write(disk)
    }

    fn write_mbr(&self, disk: &dyn Device) -> Result<()> {
        let mut id = [self.id[0], self.id[1], self.id[2], self.id[3]];
        id.reverse();
        let entries: Result<Vec<_>> = self
            .partitions
            .iter()
            .map(NewPartition::mbr_entry)
            .collect();
        disk.write_at(&mbr::new_record(id, &entries?), 0)
    }
}

impl NewPartition {
    pub(super) fn gpt_entry(&self, sector_bytes: u64) -> Result<[u8; gpt::ENTRY_BYTES as usize]> {
        let bootable = if self.is_bootable {
            GPT_LEGACY_BIOS_BOOTABLE
        } else {
            0
        };
        let end = (self.start_bytes + self.len_bytes) / sector_bytes;
        Ok(gpt::encode_entry(
            self.partition_type.guid()?,
            self.uuid,
            self.start_bytes / sector_bytes..end,
            self.attributes | bootable,
            &self.label,
        ))
    }

    fn mbr_entry(&self) -> Result<[u8; 16]> {
        Ok(mbr::encode_entry(
            self.is_bootable,
            self.partition_type.mbr_code()?,
            self.start_bytes / mbr::SECTOR_BYTES,
            self.len_bytes / mbr::SECTOR_BYTES,
        ))
    }
}
