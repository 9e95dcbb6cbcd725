//! Partitions: windows on a disk, the tables (GPT, MBR) that say where they are, and the choice of
//! one.

use super::{Allocation, Device, Extent, iov};
use crate::base::{Errno, Error, Result};
use gptman::{GPTHeader, GPTPartitionEntry};
use mbrman::{MBRHeader, MBRPartitionEntry};
use std::fmt::Write as _;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom};
use std::sync::Arc;
use uuid::Uuid;

/// Sector sizes that a GPT may count in.
const GPT_SECTOR_BYTES: [u64; 2] = [512, 4096];
/// An MBR counts in these whatever the disk.
const MBR_SECTOR_BYTES: u64 = 512;
/// Most entries read from a GPT; the specification's minimum, and everyone's number, is 128.
const GPT_ENTRIES_MAX: u32 = 1024;
/// Most logical partitions read from an MBR; Linux' minor numbers end at 255.
const LOGICAL_PARTITIONS_MAX: usize = 252;
/// The MBR's type for a disk whose real table is a GPT.
const PROTECTIVE: u8 = 0xee;

/// One entry of a partition table, checked to lie inside the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The number, as in Linux' device names: from 1; logical MBR partitions from 5.
    pub number: u32,
    /// Where it starts on the disk.
    pub start_bytes: u64,
    /// Its size.
    pub len_bytes: u64,
    /// What the table says it is for: "Linux filesystem", or the bare number of an unknown type.
    pub type_name: String,
    /// The label a GPT gives it; else empty.
    pub label: String,
}

/// A window on a device.
pub struct PartitionDevice {
    disk: Arc<dyn Device>,
    start_bytes: u64,
    len_bytes: u64,
}

impl PartitionDevice {
    /// The `len_bytes` of `disk` from `start_bytes` on; EINVAL if they leave the disk.
    pub fn new(disk: Arc<dyn Device>, start_bytes: u64, len_bytes: u64) -> Result<Self> {
        match start_bytes.checked_add(len_bytes) {
            Some(end) if end <= disk.len_bytes() => Ok(Self {
                disk,
                start_bytes,
                len_bytes,
            }),
            _ => Err(Error::new(Errno::INVAL, "the partition leaves the disk")),
        }
    }

    /// The offset on the disk, if all of the range lies in the partition.
    fn on_disk(&self, offset: u64, len_bytes: u64) -> Result<u64> {
        iov::check_range(self.len_bytes, offset, len_bytes)
            .map_err(|error| error.at("partition"))?;
        Ok(self.start_bytes + offset)
    }
}

impl Device for PartitionDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let offset = self.on_disk(offset, iov::len_mut(bufs))?;
        self.disk.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.disk
            .write_vectored_at(bufs, self.on_disk(offset, iov::len(bufs))?)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.disk
            .discard(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.disk
            .write_zeroes(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.disk
            .allocation(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn extent(&self, offset: u64, len_bytes: u64) -> Result<(Extent, u64)> {
        self.disk
            .extent(self.on_disk(offset, len_bytes)?, len_bytes)
    }
}

/// Whether an ext2, ext3 or ext4 file system starts at the start of `device` (its magic number is
/// there).
pub fn holds_ext4(device: &dyn Device) -> Result<bool> {
    const MAGIC_OFFSET: u64 = 1024 + 56;
    const MAGIC: [u8; 2] = 0xef53u16.to_le_bytes();
    let mut magic = [0; 2];
    if device.len_bytes() < MAGIC_OFFSET + 2 {
        return Ok(false);
    }
    device.read_at(&mut magic, MAGIC_OFFSET)?;
    Ok(magic == MAGIC)
}

/// The partitions of `disk` by its GPT or MBR, in the order of their numbers; none if it has no
/// table.
///
/// Errors: EUCLEAN if the table contradicts itself or leaves the disk.
pub fn partitions(disk: &dyn Device) -> Result<Vec<Partition>> {
    let mut boot_sector = [0; MBR_SECTOR_BYTES as usize];
    if disk.len_bytes() < MBR_SECTOR_BYTES {
        return Ok(Vec::new());
    }
    disk.read_at(&mut boot_sector, 0)?;
    let is_mbr = boot_sector[510..] == [0x55, 0xaa];
    let is_protective =
        is_mbr && (0..4).any(|entry| boot_sector[446 + 16 * entry + 4] == PROTECTIVE);
    for sector_bytes in GPT_SECTOR_BYTES {
        if is_protective || has_gpt(disk, sector_bytes)? {
            match gpt(disk, sector_bytes) {
                // With a protective MBR alone, the size of the sectors is still open.
                Err(_) if sector_bytes == GPT_SECTOR_BYTES[0] && !has_gpt(disk, sector_bytes)? => {}
                result => return result.map_err(|error| error.at("GPT")),
            }
        }
    }
    if is_mbr {
        mbr(disk).map_err(|error| error.at("MBR"))
    } else {
        Ok(Vec::new())
    }
}

/// The device that holds the file system: partition `number`; or without a number the whole disk if
/// an ext4 starts there, else the only partition that holds one.
///
/// Errors: ENXIO if there is no such partition or no file system, EINVAL if there are several; both
/// list what is there.
pub fn select(disk: Arc<dyn Device>, number: Option<u32>) -> Result<Arc<dyn Device>> {
    let window = |partition: &Partition| {
        PartitionDevice::new(disk.clone(), partition.start_bytes, partition.len_bytes)
    };
    if let Some(number) = number {
        let found = partitions(&*disk)?;
        let Some(partition) = found.iter().find(|partition| partition.number == number) else {
            return Err(Error::new(
                Errno::NXIO,
                format!("no partition {number}; {}", list(&found)),
            ));
        };
        return Ok(Arc::new(window(partition)?));
    }
    if holds_ext4(&*disk)? {
        return Ok(disk);
    }
    let found = partitions(&*disk)?;
    let mut holders = Vec::new();
    for partition in &found {
        let device = window(partition)?;
        if holds_ext4(&device)? {
            holders.push((partition.clone(), device));
        }
    }
    if holders.len() == 1
        && let Some((_, device)) = holders.pop()
    {
        return Ok(Arc::new(device));
    }
    if holders.is_empty() {
        return Err(Error::new(
            Errno::NXIO,
            format!("no ext4 file system; {}", list(&found)),
        ));
    }
    let holders: Vec<_> = holders
        .into_iter()
        .map(|(partition, _)| partition)
        .collect();
    Err(Error::new(
        Errno::INVAL,
        format!("several ext4 file systems, name one; {}", list(&holders)),
    ))
}

/// "partitions: 1 (100.0 MiB, EFI system), 2 (1.9 GiB, Linux filesystem)".
fn list(partitions: &[Partition]) -> String {
    if partitions.is_empty() {
        return "the disk has no partitions".to_owned();
    }
    let mut text = String::from("partitions:");
    for (index, partition) in partitions.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let mut size = partition.len_bytes as f64 / 1024.0;
        let mut unit = "KiB";
        for larger in ["MiB", "GiB", "TiB"] {
            if size >= 1024.0 {
                (size, unit) = (size / 1024.0, larger);
            }
        }
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "{comma} {} ({size:.1} {unit}, {})",
            partition.number, partition.type_name
        );
    }
    text
}

fn has_gpt(disk: &dyn Device, sector_bytes: u64) -> Result<bool> {
    let mut signature = [0; 8];
    if disk.len_bytes() < 2 * sector_bytes {
        return Ok(false);
    }
    disk.read_at(&mut signature, sector_bytes)?;
    Ok(&signature == b"EFI PART")
}

/// The entries by the primary header, or by the backup at the disk's end if the primary is broken.
fn gpt(disk: &dyn Device, sector_bytes: u64) -> Result<Vec<Partition>> {
    let sectors = disk.len_bytes() / sector_bytes;
    let entries = match gpt_entries(disk, sector_bytes, 1) {
        Ok(entries) => entries,
        Err(primary) => {
            gpt_entries(disk, sector_bytes, sectors.saturating_sub(1)).map_err(|_| primary)?
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
            type_name: gpt_type_name(Uuid::from_bytes_le(entry.partition_type_guid)),
            label: entry.partition_name.as_str().to_owned(),
        });
    }
    Ok(found)
}

/// Reads one header and its entries; all that the crate would trust is checked before it does.
fn gpt_entries(
    disk: &dyn Device,
    sector_bytes: u64,
    sector: u64,
) -> Result<Vec<GPTPartitionEntry>> {
    let corrupt = |error: gptman::Error| Error::corrupt(error.to_string());
    let mut reader = Reader {
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
    header
        .read_partitions(&mut reader, sector_bytes)
        .map_err(corrupt)
}

/// The four primary partitions, and the chain of logical ones in the extended partition.
fn mbr(disk: &dyn Device) -> Result<Vec<Partition>> {
    let header = mbr_header(disk, 0)?;
    let mut found = Vec::new();
    let mut extended = None;
    for (entry, number) in header.iter().map(|(_, entry)| entry).zip(1..) {
        if entry.is_used() && entry.sectors > 0 {
            if entry.is_extended() && extended.is_none() {
                extended = Some(entry.clone());
            } else {
                found.push(mbr_partition(disk, entry, number, 0)?);
            }
        }
    }
    let Some(extended) = extended else {
        return Ok(found);
    };
    // Each boot record of the chain names one partition and the next record, which must lie further
    // on.
    let (base, mut relative) = (u64::from(extended.starting_lba), 0);
    for number in 5.. {
        if found.len() > LOGICAL_PARTITIONS_MAX + 4 {
            return Err(Error::corrupt(
                "more logical partitions than Linux can number",
            ));
        }
        let record = match mbr_header(disk, base + relative) {
            Ok(record) => record,
            // An empty extended partition need not have a boot record.
            Err(_) if relative == 0 => break,
            Err(error) => return Err(error),
        };
        if record.partition_1.is_used() && record.partition_1.sectors > 0 {
            found.push(mbr_partition(
                disk,
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
                "boot record at sector {}: chain goes back",
                base + relative
            )));
        }
        relative = next;
    }
    Ok(found)
}

fn mbr_header(disk: &dyn Device, sector: u64) -> Result<MBRHeader> {
    let place = || format!("boot record at sector {sector}");
    let mut bytes = [0; MBR_SECTOR_BYTES as usize];
    disk.read_at(&mut bytes, sector * MBR_SECTOR_BYTES)
        .map_err(|error| error.at(place()))?;
    // The crate reads from the start of what it is given.
    let mut reader = io::Cursor::new(&bytes[..]);
    MBRHeader::read_from(&mut reader).map_err(|error| Error::corrupt(error.to_string()).at(place()))
}

fn mbr_partition(
    disk: &dyn Device,
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
    let type_name = mbr_type_name(entry.sys);
    Ok(Partition {
        number,
        start_bytes,
        len_bytes,
        type_name,
        label: String::new(),
    })
}

/// UEFI specification, and the Discoverable Partitions Specification for the Linux ones.
fn gpt_type_name(guid: Uuid) -> String {
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

fn mbr_type_name(sys: u8) -> String {
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

/// A device as the crates want to read it.
struct Reader<'a> {
    disk: &'a dyn Device,
    at: u64,
}

impl Read for Reader<'_> {
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

impl Seek for Reader<'_> {
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

#[cfg(test)]
mod tests {
    use super::super::MemoryDevice;
    use super::*;
    use std::io::Cursor;

    const MIB: u64 = 1 << 20;

    fn disk_of(bytes: &[u8]) -> Arc<MemoryDevice> {
        let disk = Arc::new(MemoryDevice::new(bytes.len() as u64));
        disk.write_at(bytes, 0).unwrap();
        disk
    }

    fn gpt_disk() -> Vec<u8> {
        let mut bytes = vec![0; 16 * MIB as usize];
        let mut cursor = Cursor::new(&mut bytes[..]);
        gptman::GPT::write_protective_mbr_into(&mut cursor, 512).unwrap();
        let mut gpt = gptman::GPT::new_from(&mut cursor, 512, [7; 16]).unwrap();
        for number in [1, 2] {
            let guid: Uuid = "0fc63daf-8483-4772-8e79-3d69d8477de4".parse().unwrap();
            gpt[number] = GPTPartitionEntry {
                partition_type_guid: guid.to_bytes_le(),
                unique_partition_guid: [number as u8; 16],
                starting_lba: 2048 * u64::from(number),
                ending_lba: 2048 * u64::from(number) + 2047,
                attribute_bits: 0,
                partition_name: "data".into(),
            };
        }
        gpt.write_into(&mut cursor).unwrap();
        bytes
    }

    #[test]
    fn the_only_ext4_partition_is_chosen() {
        let mut bytes = gpt_disk();
        let refused = select(disk_of(&bytes), None).err().unwrap();
        assert!(
            refused
                .to_string()
                .contains("no ext4 file system; partitions: 1 (1.0 MiB, Linux filesystem)")
        );
        bytes[(2 * MIB) as usize + 1080..][..2].copy_from_slice(&[0x53, 0xef]);
        let device = select(disk_of(&bytes), None).unwrap();
        assert_eq!(device.len_bytes(), MIB);
        assert!(holds_ext4(&*device).unwrap());
        bytes[MIB as usize + 1080..][..2].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(
            select(disk_of(&bytes), None).err().unwrap().errno(),
            Errno::INVAL
        );
        assert!(select(disk_of(&bytes), Some(2)).is_ok());
        assert_eq!(
            select(disk_of(&bytes), Some(3)).err().unwrap().errno(),
            Errno::NXIO
        );
        let found = partitions(&*disk_of(&bytes)).unwrap();
        assert_eq!((found[0].number, found[0].label.as_str()), (1, "data"));
    }

    #[test]
    fn the_backup_table_serves_when_the_first_is_broken() {
        let mut bytes = gpt_disk();
        bytes[512..1024].fill(0);
        assert_eq!(partitions(&*disk_of(&bytes)).unwrap().len(), 2);
    }

    #[test]
    fn logical_partitions_count_from_five() {
        let mut bytes = vec![0; 16 * MIB as usize];
        let entry = |sys: u8, start: u32, sectors: u32| {
            let mut entry = [0; 16];
            entry[4] = sys;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&sectors.to_le_bytes());
            entry
        };
        let mut record = |at: usize, first: [u8; 16], second: [u8; 16]| {
            bytes[at * 512 + 446..][..16].copy_from_slice(&first);
            bytes[at * 512 + 462..][..16].copy_from_slice(&second);
            bytes[at * 512 + 510..][..2].copy_from_slice(&[0x55, 0xaa]);
        };
        record(0, entry(0x83, 2048, 2048), entry(5, 4096, 8192));
        record(4096, entry(0x83, 64, 1000), entry(5, 2048, 2048));
        record(4096 + 2048, entry(0x82, 64, 1000), [0; 16]);
        let found = partitions(&*disk_of(&bytes)).unwrap();
        let got: Vec<_> = found
            .iter()
            .map(|p| (p.number, p.start_bytes / 512, &p.type_name[..]))
            .collect();
        assert_eq!(
            got,
            [
                (1, 2048, "Linux"),
                (5, 4160, "Linux"),
                (6, 6208, "Linux swap")
            ]
        );
        // A chain that comes back to itself.
        bytes[(4096 + 2048) * 512 + 462..][..16].copy_from_slice(&entry(5, 2048, 2048));
        assert_eq!(
            partitions(&*disk_of(&bytes)).unwrap_err().kind(),
            crate::base::ErrorKind::Corrupt
        );
    }

    #[test]
    fn hostile_tables_are_errors_or_answers() {
        let good = gpt_disk();
        let disk = disk_of(&good);
        for at in (0..2 * 512).chain((good.len() - 512)..good.len()) {
            disk.write_at(&[good[at] ^ 0xff], at as u64).unwrap();
            let _ = partitions(&*disk);
            // The header's own checksum made right again, so that each field is believed.
            if (512..512 + 92).contains(&at) {
                let mut header = good[512..1024].to_vec();
                header[at - 512] ^= 0xff;
                header[16..20].fill(0);
                let sum = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&header[..92]);
                header[16..20].copy_from_slice(&sum.to_le_bytes());
                disk.write_at(&header, 512).unwrap();
                let _ = partitions(&*disk);
                disk.write_at(&good[512..1024], 512).unwrap();
            }
            disk.write_at(&good[at..=at], at as u64).unwrap();
        }
        assert_eq!(partitions(&*disk).unwrap().len(), 2);
    }
}
