//! Master boot records, and the chain of boot records of logical partitions.

use super::entry::{Partition, PartitionTable, TableScheme};
use crate::base::{Error, Result};
use crate::block::Device;
use std::ops::Range;

/// Size in bytes of the sectors that an MBR counts, and of a boot record.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Entries of a boot record.
pub(super) const ENTRIES: usize = 4;
/// Largest number of logical partitions read from an MBR; Linux's minor numbers end at 255.
const LOGICAL_PARTITIONS_MAX: usize = 252;
/// Boot records of a chain that name no partition. Linux: `parse_extended`.
const EMPTY_RECORDS_MAX: usize = 100;
/// Number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
const ENTRIES_OFFSET: usize = 446;
const ENTRY_BYTES: usize = 16;
const DISK_ID: Range<usize> = 440..444;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Flag of a partition that a BIOS boots from.
const BOOTABLE: u8 = 0x80;
/// Partition type in the protective MBR of a disk with a GPT.
const PROTECTIVE: u8 = 0xee;
/// Cylinder, head and sector of a place beyond their reach: readers use the numbers of sectors.
const FAR: [u8; 3] = [0xfe, 0xff, 0xff];

pub(super) type Record = [u8; SECTOR_BYTES as usize];

/// The place of an entry: the sector of its boot record, and its index there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) record: u64,
    pub(super) index: usize,
}

impl Slot {
    /// Returns the offset of the entry on the disk, in bytes.
    pub(super) fn offset(self) -> u64 {
        self.record * SECTOR_BYTES + (ENTRIES_OFFSET + ENTRY_BYTES * self.index) as u64
    }
}

/// One used entry.
#[derive(Debug, Clone)]
pub(super) struct MbrEntry {
    /// 1 to 4, or from 5 on for a logical partition.
    pub(super) number: u32,
    pub(super) slot: Slot,
    pub(super) code: u8,
    is_bootable: bool,
    /// Its sectors on the disk.
    pub(super) sectors: Range<u64>,
}

impl MbrEntry {
    pub(super) fn is_extended(&self) -> bool {
        is_extended(self.code)
    }

    pub(super) fn is_logical(&self) -> bool {
        self.number >= FIRST_LOGICAL
    }
}

/// One boot record of the chain in an extended partition.
#[derive(Debug, Clone)]
pub(super) struct ChainRecord {
    /// Number of the extended partition.
    pub(super) extended: u32,
    pub(super) sector: u64,
    /// The entry that leads to it; `None` for the first one.
    pub(super) link: Option<Slot>,
    /// Its entries without use.
    pub(super) free: Vec<usize>,
    pub(super) has_partition: bool,
}

/// A table with all of its records.
#[derive(Debug)]
pub(super) struct MbrTable {
    id: u32,
    pub(super) entries: Vec<MbrEntry>,
    pub(super) chain: Vec<ChainRecord>,
}

fn is_extended(code: u8) -> bool {
    matches!(code, 0x05 | 0x0f | 0x85)
}

/// Reads the record in `sector`; `None` if it has no signature, or is beyond the disk's end.
fn read_record(disk: &dyn Device, sector: u64) -> Result<Option<Record>> {
    let mut record = [0; SECTOR_BYTES as usize];
    if sector >= disk.len_bytes() / SECTOR_BYTES {
        return Ok(None);
    }
    disk.read_at(&mut record, sector * SECTOR_BYTES)
        .map_err(|error| error.at(format!("boot record at sector {sector}")))?;
    Ok((record[510..] == SIGNATURE).then_some(record))
}

/// The fields of one entry.
struct RawEntry {
    boot: u8,
    code: u8,
    start: u64,
    sectors: u64,
}

fn raw_entries(record: &Record) -> [RawEntry; ENTRIES] {
    std::array::from_fn(|index| {
        let entry = &record[ENTRIES_OFFSET + index * ENTRY_BYTES..][..ENTRY_BYTES];
        let word = |at: usize| {
            u64::from(u32::from_le_bytes([
                entry[at],
                entry[at + 1],
                entry[at + 2],
                entry[at + 3],
            ]))
        };
        RawEntry {
            boot: entry[0],
            code: entry[4],
            start: word(8),
            sectors: word(12),
        }
    })
}

/// What the first sector of a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BootSector {
    /// No table: no signature, or the code of a boot sector where the entries would be.
    Other,
    /// A table without a used entry.
    Empty,
    /// A table with an entry that protects a GPT.
    Protective,
    /// A table of partitions.
    Mbr,
}

/// Reads what the first sector is. Linux: `msdos_partition`.
pub(super) fn boot_sector(disk: &dyn Device) -> Result<BootSector> {
    let Some(record) = read_record(disk, 0)? else {
        return Ok(BootSector::Other);
    };
    let entries = raw_entries(&record);
    Ok(if entries.iter().any(|entry| entry.code == PROTECTIVE) {
        BootSector::Protective
    } else if entries.iter().any(|entry| entry.boot & !BOOTABLE != 0) {
        BootSector::Other
    } else if entries.iter().all(|entry| entry.sectors == 0) {
        BootSector::Empty
    } else {
        BootSector::Mbr
    })
}

/// Whether the first sector says that the disk has a GPT.
pub(super) fn is_protective(disk: &dyn Device) -> Result<bool> {
    Ok(boot_sector(disk)? == BootSector::Protective)
}

/// Makes the entry that protects a GPT end in sector `new`, if it is the only one and ended in
/// sector `old`. Writes nothing but its number of sectors.
pub(super) fn enlarge_protective(disk: &dyn Device, old: u64, new: u64) -> Result<()> {
    let Some(record) = read_record(disk, 0)? else {
        return Ok(());
    };
    let entries = raw_entries(&record);
    let mut used = entries.iter().zip(0..).filter(|(entry, _)| entry.code != 0);
    if let (Some((only, index)), None) = (used.next(), used.next())
        && only.code == PROTECTIVE
        && only.start == 1
        && only.sectors == old
    {
        let slot = Slot { record: 0, index };
        let sectors = u32::try_from(new).unwrap_or(u32::MAX);
        disk.write_at(&sectors.to_le_bytes(), slot.offset() + 12)?;
    }
    Ok(())
}

/// Returns the bytes of an entry. `start` counts from the record or the extended partition.
pub(super) fn encode_entry(is_bootable: bool, code: u8, start: u64, sectors: u64) -> [u8; 16] {
    let mut entry = [0; ENTRY_BYTES];
    entry[0] = if is_bootable { BOOTABLE } else { 0 };
    entry[1..4].copy_from_slice(&FAR);
    entry[4] = code;
    entry[5..8].copy_from_slice(&FAR);
    // Callers keep partitions below 2^32 sectors.
    entry[8..12].copy_from_slice(&(start as u32).to_le_bytes());
    entry[12..].copy_from_slice(&(sectors as u32).to_le_bytes());
    entry
}

/// Returns a boot record with these entries.
pub(super) fn new_record(id: [u8; 4], entries: &[[u8; 16]]) -> Record {
    let mut record = [0; SECTOR_BYTES as usize];
    record[DISK_ID].copy_from_slice(&id);
    for (entry, place) in entries
        .iter()
        .zip(record[ENTRIES_OFFSET..].chunks_exact_mut(ENTRY_BYTES))
    {
        place.copy_from_slice(entry);
    }
    record[510..].copy_from_slice(&SIGNATURE);
    record
}

/// Returns the record that protects a GPT on a disk of this size.
pub(super) fn protective_record(disk_sectors: u64) -> Record {
    let sectors = (disk_sectors - 1).min(u64::from(u32::MAX));
    let mut entry = encode_entry(false, PROTECTIVE, 1, sectors);
    // The second sector of the disk, as the UEFI specification demands.
    entry[1..4].copy_from_slice(&[0, 2, 0]);
    entry[5..8].copy_from_slice(&[0xff; 3]);
    new_record([0; 4], &[entry])
}

impl MbrTable {
    /// Reads the four primary entries, and the chains of logical ones. Linux: `parse_extended`.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a chain that returns to itself; else the device's errors.
    pub(super) fn read(disk: &dyn Device) -> Result<Self> {
        let record = read_record(disk, 0)?.ok_or_else(|| Error::corrupt("no boot record"))?;
        let mut id = [0; 4];
        id.copy_from_slice(&record[DISK_ID]);
        let mut table = Self {
            id: u32::from_le_bytes(id),
            entries: Vec::new(),
            chain: Vec::new(),
        };
        for (index, raw) in raw_entries(&record).iter().enumerate() {
            if raw.code != 0 && raw.sectors > 0 {
                let slot = Slot { record: 0, index };
                table.push(index as u32 + 1, slot, raw, 0);
            }
        }
        let extended: Vec<_> = table
            .entries
            .iter()
            .filter(|entry| entry.is_extended())
            .cloned()
            .collect();
        for extended in extended {
            table.read_chain(disk, &extended)?;
        }
        Ok(table)
    }

    fn push(&mut self, number: u32, slot: Slot, raw: &RawEntry, base: u64) {
        self.entries.push(MbrEntry {
            number,
            slot,
            code: raw.code,
            is_bootable: raw.boot & BOOTABLE != 0,
            sectors: base + raw.start..base + raw.start + raw.sectors,
        });
    }

    /// Returns the number of the next logical partition.
    pub(super) fn next_logical(&self) -> u32 {
        let logical = self
            .entries
            .iter()
            .filter(|entry| entry.is_logical())
            .count();
        FIRST_LOGICAL + logical as u32
    }

    fn read_chain(&mut self, disk: &dyn Device, extended: &MbrEntry) -> Result<()> {
        let whole = extended.sectors.clone();
        let (mut at, mut link, mut part) = (whole.start, None, whole.clone());
        let mut empty = 0;
        while let Some(record) = read_record(disk, at)? {
            if self.chain.iter().any(|known| known.sector == at) {
                let what = "the chain of boot records returns to this one";
                return Err(Error::corrupt(what).at(format!("boot record at sector {at}")));
            }
            let raw = raw_entries(&record);
            let before = self.entries.len();
            for (index, entry) in raw.iter().enumerate() {
                let start = at + entry.start;
                let end = start + entry.sectors;
                let is_partition = entry.sectors > 0 && !is_extended(entry.code) && entry.code != 0;
                // OS/2 uses all four entries; elsewhere the last two may be of no use.
                let is_certain = index < 2
                    || entry.start + entry.sectors <= part.end - part.start
                        && start >= whole.start
                        && end <= whole.end;
                if is_partition && is_certain {
                    let slot = Slot { record: at, index };
                    self.push(self.next_logical(), slot, entry, at);
                }
            }
            let has_partition = self.entries.len() > before;
            empty = if has_partition { 0 } else { empty + 1 };
            let free =
                (0..ENTRIES).filter(|index| raw[*index].code == 0 && raw[*index].sectors == 0);
            self.chain.push(ChainRecord {
                extended: extended.number,
                sector: at,
                link,
                free: free.collect(),
                has_partition,
            });
            let is_full = self.next_logical() - FIRST_LOGICAL >= LOGICAL_PARTITIONS_MAX as u32;
            let next = raw
                .iter()
                .position(|entry| is_extended(entry.code) && entry.sectors > 0);
            let Some(index) = next.filter(|_| !is_full && empty < EMPTY_RECORDS_MAX) else {
                break;
            };
            link = Some(Slot { record: at, index });
            at = whole.start + raw[index].start;
            part = at..at + raw[index].sectors;
        }
        Ok(())
    }

    /// Returns the table as a list of partitions, without extended ones. One that begins within the
    /// disk and ends beyond it is shortened, as Linux does; one that begins beyond it is left out.
    pub(super) fn table(&self, disk: &dyn Device) -> PartitionTable {
        let disk_sectors = disk.len_bytes() / SECTOR_BYTES;
        let listed = self
            .entries
            .iter()
            .filter(|entry| !entry.is_extended() && entry.sectors.start < disk_sectors);
        let partition = |entry: &MbrEntry| {
            let (start, end) = (entry.sectors.start, entry.sectors.end.min(disk_sectors));
            Partition {
                number: entry.number,
                start_bytes: start * SECTOR_BYTES,
                len_bytes: (end - start) * SECTOR_BYTES,
                type_id: format!("{:#x}", entry.code),
                type_name: type_name(entry.code),
                uuid: format!("{:08x}-{:02x}", self.id, entry.number),
                is_bootable: entry.is_bootable,
                label: String::new(),
            }
        };
        PartitionTable {
            scheme: TableScheme::Mbr,
            sector_bytes: SECTOR_BYTES,
            id: format!("{:08x}", self.id),
            partitions: listed.map(partition).collect(),
        }
    }
}

fn type_name(sys: u8) -> String {
    let name = match sys {
        0x01 | 0x04 | 0x06 | 0x0b | 0x0c | 0x0e => "FAT",
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
