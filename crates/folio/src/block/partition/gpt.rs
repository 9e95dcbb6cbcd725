//! GUID partition tables (UEFI specification, chapter 5): the two copies of a table, read, checked,
//! and changed in place.

use super::entry::{Partition, PartitionTable, TableScheme};
use super::types::description;
use crate::base::{Error, Result};
use crate::block::Device;
use crc::{CRC_32_ISO_HDLC, Crc};
use std::ops::Range;
use uuid::Uuid;

/// Sector sizes that a GPT may use, in bytes.
const SECTOR_SIZES: [u64; 2] = [512, 4096];
const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Version 1.0, in the header.
const REVISION: u32 = 0x0001_0000;
/// Smallest size of a header, and the size that is written.
const HEADER_BYTES: usize = 92;
/// Smallest size of an entry, and the size that is written.
pub(super) const ENTRY_BYTES: u32 = 128;
const ENTRY_BYTES_MAX: u32 = 4096;
/// Number of entries of a new table.
pub(super) const NEW_ENTRIES: u32 = 128;
/// Largest array that is read. Linux: `KMALLOC_MAX_SIZE`.
const ARRAY_BYTES_MAX: u64 = 4 << 20;
/// Sector of the primary header.
const PRIMARY_LBA: u64 = 1;
/// Attribute of a partition that a BIOS boots from.
const LEGACY_BIOS_BOOTABLE: u64 = 1 << 2;
/// Offset of a label in its entry, and its length, in bytes.
const LABEL: Range<usize> = 56..128;

/// Offsets of the fields of a header.
mod field {
    pub(super) const REVISION: usize = 8;
    pub(super) const HEADER_BYTES: usize = 12;
    pub(super) const HEADER_CRC: usize = 16;
    pub(super) const OWN_LBA: usize = 24;
    pub(super) const OTHER_LBA: usize = 32;
    pub(super) const FIRST_USABLE: usize = 40;
    pub(super) const LAST_USABLE: usize = 48;
    pub(super) const DISK_ID: usize = 56;
    pub(super) const ARRAY_LBA: usize = 72;
    pub(super) const ENTRY_COUNT: usize = 80;
    pub(super) const ENTRY_BYTES: usize = 84;
    pub(super) const ARRAY_CRC: usize = 88;
}

fn crc32(bytes: &[u8]) -> u32 {
    Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// One copy of a table: the sector of its header, and its array of entries.
#[derive(Clone)]
pub(super) struct GptCopy {
    sector_bytes: u64,
    header: Vec<u8>,
    array: Vec<u8>,
}

/// Where an entry of a table says its partition is.
pub(super) struct GptEntry {
    pub(super) number: u32,
    pub(super) sectors: Range<u64>,
}

/// Whether a GPT header is in the second sector, for this sector size in bytes.
fn has_signature(disk: &dyn Device, sector_bytes: u64) -> Result<bool> {
    let mut signature = [0; SIGNATURE.len()];
    if disk.len_bytes() < 2 * sector_bytes {
        return Ok(false);
    }
    disk.read_at(&mut signature, sector_bytes)?;
    Ok(&signature == SIGNATURE)
}

/// Reads the copy that describes the disk: the primary one, else the backup that a damaged primary
/// header names, else the one in the last sector. `None` for a disk without a GPT. A protective MBR
/// proves that the disk has one.
///
/// # Errors
///
/// EUCLEAN if no copy is intact; else the device's errors.
pub(super) fn open(disk: &dyn Device, is_protective: bool) -> Result<Option<GptCopy>> {
    let mut failure = None;
    let mut candidates = Vec::new();
    for sector_bytes in SECTOR_SIZES {
        let has_primary = has_signature(disk, sector_bytes)?;
        if has_primary {
            match GptCopy::read(disk, sector_bytes, PRIMARY_LBA) {
                Ok(copy) => return Ok(Some(copy)),
                Err(error) => failure = failure.or(Some(error)),
            }
            let mut place = [0; 8];
            disk.read_at(&mut place, sector_bytes + field::OTHER_LBA as u64)?;
            candidates.push((sector_bytes, u64::from_le_bytes(place)));
        }
        if has_primary || is_protective {
            let last = (disk.len_bytes() / sector_bytes).saturating_sub(1);
            candidates.push((sector_bytes, last));
        }
    }
    for (sector_bytes, lba) in candidates {
        if let Ok(copy) = GptCopy::read(disk, sector_bytes, lba) {
            return Ok(Some(copy));
        }
    }
    match failure {
        Some(error) => Err(error),
        None if is_protective => Err(Error::corrupt("no header at either end of the disk")),
        None => Ok(None),
    }
}

impl GptCopy {
    /// Reads the copy with its header in sector `lba`; every number is checked.
    pub(super) fn read(disk: &dyn Device, sector_bytes: u64, lba: u64) -> Result<Self> {
        let sectors = disk.len_bytes() / sector_bytes;
        let damaged =
            |what: String| Err(Error::corrupt(what).at(format!("header in sector {lba}")));
        if lba == 0 || lba >= sectors {
            return damaged(format!("the disk has {sectors} sectors"));
        }
        let mut header = vec![0; sector_bytes as usize];
        disk.read_at(&mut header, lba * sector_bytes)?;
        let len = u32_at(&header, field::HEADER_BYTES) as usize;
        if header[..SIGNATURE.len()] != *SIGNATURE {
            return damaged("no signature".to_owned());
        }
        if !(HEADER_BYTES..=header.len()).contains(&len) {
            return damaged(format!("a header of {len} bytes"));
        }
        if header_crc(&header) != u32_at(&header, field::HEADER_CRC) {
            return damaged("wrong checksum of the header".to_owned());
        }
        let own = u64_at(&header, field::OWN_LBA);
        if own != lba {
            return damaged(format!("the header belongs into sector {own}"));
        }
        let (count, size) = (
            u32_at(&header, field::ENTRY_COUNT),
            u32_at(&header, field::ENTRY_BYTES),
        );
        if !(ENTRY_BYTES..=ENTRY_BYTES_MAX).contains(&size) {
            return damaged(format!("entries of {size} bytes"));
        }
        let array_bytes = u64::from(count) * u64::from(size);
        if array_bytes > ARRAY_BYTES_MAX {
            return damaged(format!("{count} entries"));
        }
        let array_lba = u64_at(&header, field::ARRAY_LBA);
        let array = read_array(disk, sector_bytes, array_lba, array_bytes)?;
        if crc32(&array) != u32_at(&header, field::ARRAY_CRC) {
            return damaged("wrong checksum of the entries".to_owned());
        }
        Ok(Self {
            sector_bytes,
            header,
            array,
        })
    }

    /// Returns the empty primary copy of a new table for a disk of this size, which holds both.
    pub(super) fn new(sector_bytes: u64, disk_bytes: u64, id: [u8; 16]) -> Self {
        let array = vec![0; (NEW_ENTRIES * ENTRY_BYTES) as usize];
        let array_sectors = (array.len() as u64).div_ceil(sector_bytes);
        let last = disk_bytes / sector_bytes - 1;
        let mut copy = Self {
            sector_bytes,
            header: vec![0; sector_bytes as usize],
            array,
        };
        copy.header[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
        copy.set_u32(field::REVISION, REVISION);
        copy.set_u32(field::HEADER_BYTES, HEADER_BYTES as u32);
        copy.set_u64(field::OWN_LBA, PRIMARY_LBA);
        copy.set_u64(field::OTHER_LBA, last);
        copy.set_u64(field::FIRST_USABLE, 2 + array_sectors);
        copy.set_u64(field::LAST_USABLE, last - array_sectors - 1);
        copy.header[field::DISK_ID..][..16].copy_from_slice(&id);
        copy.set_u64(field::ARRAY_LBA, 2);
        copy.set_u32(field::ENTRY_COUNT, NEW_ENTRIES);
        copy.set_u32(field::ENTRY_BYTES, ENTRY_BYTES);
        copy
    }

    /// Returns the other copy of the table: its header in the sector that this one names.
    pub(super) fn mirrored(&self, array_lba: u64) -> Self {
        let mut copy = self.clone();
        copy.set_u64(field::OWN_LBA, self.other_lba());
        copy.set_u64(field::OTHER_LBA, self.own_lba());
        copy.set_u64(field::ARRAY_LBA, array_lba);
        copy
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        self.header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(super) fn sector_bytes(&self) -> u64 {
        self.sector_bytes
    }

    pub(super) fn own_lba(&self) -> u64 {
        u64_at(&self.header, field::OWN_LBA)
    }

    pub(super) fn other_lba(&self) -> u64 {
        u64_at(&self.header, field::OTHER_LBA)
    }

    pub(super) fn array_lba(&self) -> u64 {
        u64_at(&self.header, field::ARRAY_LBA)
    }

    /// Returns the sectors that partitions may use, by the header.
    pub(super) fn usable(&self) -> Range<u64> {
        let last = u64_at(&self.header, field::LAST_USABLE);
        u64_at(&self.header, field::FIRST_USABLE)..last.saturating_add(1)
    }

    /// Returns the sectors of the array.
    pub(super) fn array_sectors(&self) -> Range<u64> {
        let first = self.array_lba();
        let count = (self.array.len() as u64).div_ceil(self.sector_bytes);
        first..first.saturating_add(count)
    }

    /// Returns the number of entries, used or not.
    pub(super) fn len(&self) -> u32 {
        u32_at(&self.header, field::ENTRY_COUNT)
    }

    fn entry(&self, number: u32) -> &[u8] {
        let size = u32_at(&self.header, field::ENTRY_BYTES) as usize;
        &self.array[(number as usize - 1) * size..][..size]
    }

    /// Returns the bytes of entry `number`, from 1 on, to be changed.
    pub(super) fn entry_mut(&mut self, number: u32) -> &mut [u8] {
        let size = u32_at(&self.header, field::ENTRY_BYTES) as usize;
        &mut self.array[(number as usize - 1) * size..][..size]
    }

    /// Sets the last sector of entry `number`.
    pub(super) fn set_end(&mut self, number: u32, last: u64) {
        self.entry_mut(number)[40..48].copy_from_slice(&last.to_le_bytes());
    }

    /// Returns number and sectors of each used entry.
    pub(super) fn used(&self) -> Vec<GptEntry> {
        let used = (1..=self.len()).filter(|number| self.entry(*number)[..16] != [0; 16]);
        used.map(|number| {
            let entry = self.entry(number);
            GptEntry {
                number,
                sectors: u64_at(entry, 32)..u64_at(entry, 40).saturating_add(1),
            }
        })
        .collect()
    }

    /// Copies entries and usable sectors from the other copy, if this one has the same shape.
    pub(super) fn take_content(&mut self, other: &Self) -> bool {
        let is_same_shape = self.len() == other.len() && self.array.len() == other.array.len();
        if is_same_shape {
            self.array.copy_from_slice(&other.array);
            let same = field::FIRST_USABLE..field::ARRAY_LBA;
            self.header[same.clone()].copy_from_slice(&other.header[same]);
        }
        is_same_shape
    }

    /// Moves the end of the table `by` sectors towards the end of the disk.
    pub(super) fn move_end(&mut self, by: u64) {
        let is_primary = self.own_lba() == PRIMARY_LBA;
        let moved: &[usize] = if is_primary {
            &[field::OTHER_LBA, field::LAST_USABLE]
        } else {
            &[field::OWN_LBA, field::ARRAY_LBA, field::LAST_USABLE]
        };
        for at in moved {
            self.set_u64(*at, u64_at(&self.header, *at) + by);
        }
    }

    /// Whether the array of entries is in sector `lba` of the disk too.
    pub(super) fn has_array_at(&self, disk: &dyn Device, lba: u64) -> bool {
        let read = read_array(disk, self.sector_bytes, lba, self.array.len() as u64);
        read.is_ok_and(|array| array == self.array)
    }

    /// Writes array and header, with their checksums.
    pub(super) fn write(&mut self, disk: &dyn Device) -> Result<()> {
        self.set_u32(field::ARRAY_CRC, crc32(&self.array));
        let sum = header_crc(&self.header);
        self.set_u32(field::HEADER_CRC, sum);
        disk.write_at(&self.array, self.array_lba() * self.sector_bytes)?;
        disk.write_at(&self.header, self.own_lba() * self.sector_bytes)
    }

    /// Returns the table as a list of partitions. One that begins within the disk and ends beyond
    /// it is shortened, as Linux does for an MBR; one that begins beyond it is left out.
    pub(super) fn table(&self, disk: &dyn Device) -> PartitionTable {
        let sectors = disk.len_bytes() / self.sector_bytes;
        let inside = |entry: &GptEntry| {
            entry.sectors.start < entry.sectors.end && entry.sectors.start < sectors
        };
        let partition = |entry: GptEntry| {
            let raw = self.entry(entry.number);
            let type_guid = guid_at(raw, 0);
            let (start, end) = (entry.sectors.start, entry.sectors.end.min(sectors));
            let type_name = description(type_guid);
            Partition {
                number: entry.number,
                start_bytes: start * self.sector_bytes,
                len_bytes: (end - start) * self.sector_bytes,
                type_id: type_guid.to_string(),
                type_name: type_name.map_or_else(|| type_guid.to_string(), str::to_owned),
                uuid: guid_at(raw, 16).to_string(),
                is_bootable: u64_at(raw, 48) & LEGACY_BIOS_BOOTABLE != 0,
                label: label(&raw[LABEL]),
            }
        };
        PartitionTable {
            scheme: TableScheme::Gpt,
            sector_bytes: self.sector_bytes,
            id: guid_at(&self.header, field::DISK_ID).to_string(),
            partitions: self
                .used()
                .into_iter()
                .filter(inside)
                .map(partition)
                .collect(),
        }
    }
}

/// Computes the checksum of a header, whose own field counts as zero.
fn header_crc(header: &[u8]) -> u32 {
    let mut bytes = header[..u32_at(header, field::HEADER_BYTES) as usize].to_vec();
    bytes[field::HEADER_CRC..][..4].fill(0);
    crc32(&bytes)
}

fn read_array(disk: &dyn Device, sector_bytes: u64, lba: u64, len: u64) -> Result<Vec<u8>> {
    let start = lba.checked_mul(sector_bytes);
    let end = start.and_then(|start| start.checked_add(len));
    let (Some(start), Some(end)) = (start, end) else {
        return Err(Error::corrupt(format!("entries in sector {lba}")));
    };
    if end > disk.len_bytes() || lba == 0 {
        return Err(Error::corrupt(format!("entries in sector {lba}")));
    }
    let mut array = vec![0; len as usize];
    disk.read_at(&mut array, start)?;
    Ok(array)
}

fn guid_at(bytes: &[u8], at: usize) -> Uuid {
    let mut guid = [0; 16];
    guid.copy_from_slice(&bytes[at..at + 16]);
    Uuid::from_bytes_le(guid)
}

fn label(bytes: &[u8]) -> String {
    let units = bytes
        .chunks_exact(2)
        .map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    let text = char::decode_utf16(units.take_while(|unit| *unit != 0));
    text.map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// Returns the bytes of an entry.
pub(super) fn encode_entry(
    type_guid: [u8; 16],
    guid: [u8; 16],
    sectors: Range<u64>,
    attributes: u64,
    label: &str,
) -> [u8; ENTRY_BYTES as usize] {
    let mut entry = [0; ENTRY_BYTES as usize];
    entry[..16].copy_from_slice(&Uuid::from_bytes(type_guid).to_bytes_le());
    entry[16..32].copy_from_slice(&Uuid::from_bytes(guid).to_bytes_le());
    entry[32..40].copy_from_slice(&sectors.start.to_le_bytes());
    entry[40..48].copy_from_slice(&(sectors.end - 1).to_le_bytes());
    entry[48..56].copy_from_slice(&attributes.to_le_bytes());
    for (unit, place) in label.encode_utf16().zip(entry[LABEL].chunks_exact_mut(2)) {
        place.copy_from_slice(&unit.to_le_bytes());
    }
    entry
}
