//! A new partition table: GPT with a protective MBR, or MBR.

use super::cursor::DeviceCursor;
use super::types::{PartitionType, TableScheme};
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use gptman::{GPT, GPTPartitionEntry};
use mbrman::{CHS, MBR, MBRPartitionEntry};
use uuid::Uuid;

/// Bytes per sector of tables that are written.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Sectors of a GPT: header and 128 entries, at each end of the disk; the protective MBR before.
const GPT_SECTORS: u64 = 33;
/// Primary partitions of an MBR.
pub(super) const MBR_PARTITIONS_MAX: usize = 4;
/// Longest label of a GPT, in UTF-16 code units.
const LABEL_LEN_MAX: usize = 36;
/// Flag of a partition that a BIOS boots from, in an MBR.
pub(super) const MBR_BOOTABLE: u8 = 0x80;
/// The same attribute in a GPT.
const GPT_LEGACY_BIOS_BOOTABLE: u64 = 1 << 2;

/// A partition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPartition {
    /// Offset of its first byte, a multiple of 512.
    pub start_bytes: u64,
    /// Its size in bytes, a multiple of 512.
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
    /// The UUID of the disk in a GPT, as text prints it; an MBR has the first four bytes as its
    /// number, in the order of digits.
    pub id: [u8; 16],
    /// The partitions, numbered from 1.
    pub partitions: Vec<NewPartition>,
}

impl NewPartitionTable {
    /// Returns the range of bytes that partitions may use on a disk of `disk_bytes` bytes.
    pub fn usable(scheme: TableScheme, disk_bytes: u64) -> std::ops::Range<u64> {
        let sectors = disk_bytes / SECTOR_BYTES;
        match scheme {
            TableScheme::Gpt => {
                let end = sectors.saturating_sub(GPT_SECTORS);
                (1 + GPT_SECTORS) * SECTOR_BYTES..end * SECTOR_BYTES
            }
            TableScheme::Mbr => SECTOR_BYTES..sectors.min(u64::from(u32::MAX)) * SECTOR_BYTES,
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
        let usable = Self::usable(self.scheme, disk_bytes);
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
            if len == 0 || start % SECTOR_BYTES != 0 || len % SECTOR_BYTES != 0 {
                return refuse(format!("bytes {start}+{len} are not whole sectors of 512"));
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
            TableScheme::Gpt => 128,
            TableScheme::Mbr => MBR_PARTITIONS_MAX,
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
        let mut cursor = DeviceCursor::new(disk);
        let failed = |error: gptman::Error| Error::new(Errno::IO, error.to_string()).at("GPT");
        GPT::write_protective_mbr_into(&mut cursor, SECTOR_BYTES).map_err(failed)?;
        let id = Uuid::from_bytes(self.id).to_bytes_le();
        let mut gpt = GPT::new_from(&mut cursor, SECTOR_BYTES, id).map_err(failed)?;
        for (partition, number) in self.partitions.iter().zip(1..) {
            gpt[number] = partition.gpt_entry()?;
        }
        gpt.write_into(&mut cursor).map(drop).map_err(failed)
    }

    fn write_mbr(&self, disk: &dyn Device) -> Result<()> {
        let failed = |error: mbrman::Error| Error::new(Errno::IO, error.to_string()).at("MBR");
        let mut cursor = DeviceCursor::new(disk);
        let mut id = [self.id[0], self.id[1], self.id[2], self.id[3]];
        id.reverse();
        let mut mbr = MBR::new_from(&mut cursor, SECTOR_BYTES as u32, id).map_err(failed)?;
        for (partition, number) in self.partitions.iter().zip(1..) {
            mbr[number] = partition.mbr_entry()?;
        }
        mbr.write_into(&mut cursor).map_err(failed)
    }
}

impl NewPartition {
    pub(super) fn gpt_entry(&self) -> Result<GPTPartitionEntry> {
        let bootable = if self.is_bootable {
            GPT_LEGACY_BIOS_BOOTABLE
        } else {
            0
        };
        Ok(GPTPartitionEntry {
            partition_type_guid: Uuid::from_bytes(self.partition_type.guid()?).to_bytes_le(),
            unique_partition_guid: Uuid::from_bytes(self.uuid).to_bytes_le(),
            starting_lba: self.start_bytes / SECTOR_BYTES,
            ending_lba: (self.start_bytes + self.len_bytes) / SECTOR_BYTES - 1,
            attribute_bits: self.attributes | bootable,
            partition_name: self.label.as_str().into(),
        })
    }

    pub(super) fn mbr_entry(&self) -> Result<MBRPartitionEntry> {
        // Sectors beyond the reach of cylinders, heads and sectors: readers use the numbers below.
        let far = CHS::new(1023, 254, 63);
        Ok(MBRPartitionEntry {
            boot: if self.is_bootable { MBR_BOOTABLE } else { 0 },
            first_chs: far,
            sys: self.partition_type.mbr_code()?,
            last_chs: far,
            // Checked to be below 2^32 sectors.
            starting_lba: (self.start_bytes / SECTOR_BYTES) as u32,
            sectors: (self.len_bytes / SECTOR_BYTES) as u32,
        })
    }
}
