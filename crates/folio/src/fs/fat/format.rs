//! A new FAT file system.

use super::chain::Chain;
use super::entry::Entry;
use super::layout::{BOOT_BYTES, ENTRY_BYTES, INFO_FREE_AT, INFO_SIGNATURES};
use super::table::Disk;
use super::width::FatWidth;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use std::sync::Arc;

/// Bytes of a label.
const LABEL_LEN_MAX: usize = 11;
/// Clusters between the limit of a width and the number that readers may count.
const CLUSTERS_MARGIN: u64 = 16;
/// Sectors before the tables of a FAT32, at least.
const FAT32_RESERVED_SECTORS: u64 = 32;
const SECTOR_BYTES: u64 = 512;
/// Sectors of the information about a FAT32, and of the copy of both.
const INFO_SECTOR: u64 = 1;
const BACKUP_SECTOR: u64 = 6;
/// Sectors of the root directory of a FAT12 or FAT16: 512 slots.
const ROOT_SECTORS: u64 = 32;
const ROOT_CLUSTER: u32 = 2;
const TABLES: u64 = 2;
/// A disk that is not removable.
const MEDIA: u8 = 0xf8;
/// The largest FAT32: sectors have numbers of 32 bits.
const DEVICE_BYTES_MAX: u64 = SECTOR_BYTES << 32;

impl FatWidth {
    /// Returns the width of the FAT on `device`, which follows from its number of clusters.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it is damaged, else the device's errors.
    pub fn of(device: &Arc<dyn Device>) -> Result<Self> {
        Ok(Disk::open(device.clone())?.geometry.width)
    }
}

/// Options of a new FAT.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FatOptions {
    /// The width.
    pub width: FatWidth,
    /// Volume label, at most 11 bytes of ASCII; stored in capitals.
    pub label: String,
    /// The volume's number, which blkid(8) prints as its UUID.
    pub volume_id: u32,
}

/// Writes an empty FAT to `device`, over its old contents, and flushes the device.
///
/// # Errors
///
/// EINVAL for an invalid label, and for a device too small or too large for the width; nothing is
/// written then. Else the device's errors.
///
/// Counterpart: mkfs.fat(8).
pub fn format(device: &Arc<dyn Device>, options: &FatOptions) -> Result<()> {
    format_device(device, options).map_err(|error| error.at("mkfs.fat"))
}

fn format_device(device: &Arc<dyn Device>, options: &FatOptions) -> Result<()> {
    let refuse = |what: String| Err(Error::new(Errno::INVAL, what));
    let label = &options.label;
    let is_valid = label.len() <= LABEL_LEN_MAX
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b" _-".contains(&b));
    if !is_valid {
        return refuse(format!(
            "invalid label {label:?}: expected at most 11 letters, digits, spaces, _ and -"
        ));
    }
    let len = device.len_bytes();
    if len >= DEVICE_BYTES_MAX {
        return refuse(format!("{len} bytes are too many for a FAT"));
    }
    let Some(plan) = Plan::new(options.width, len / SECTOR_BYTES) else {
        let name = options.width.name();
        if options.width != FatWidth::Fat32 {
            return refuse(format!("{len} bytes are too few or too many for a {name}"));
        }
        let clusters_min = u64::from(options.width.clusters_min());
        let least = clusters_min * SECTOR_BYTES / 1024 + 550;
        return refuse(format!(
            "{len} bytes are too few for a FAT32: at least {least}K are needed; use fat16"
        ));
    };
    device.write_zeroes(0, len)?;
    let boot = plan.boot_sector(options);
    device.write_at(&boot, 0)?;
    if options.width == FatWidth::Fat32 {
        let info = info_sector();
        device.write_at(&info, INFO_SECTOR * SECTOR_BYTES)?;
        device.write_at(&boot, BACKUP_SECTOR * SECTOR_BYTES)?;
        device.write_at(&info, (BACKUP_SECTOR + INFO_SECTOR) * SECTOR_BYTES)?;
    }
    let mut start = vec![0xff; options.width.bits() as usize / 4];
    start[0] = MEDIA;
    if options.width == FatWidth::Fat32 {
        start[3] = 0x0f;
        start[7] = 0x0f;
    }
    for copy in 0..TABLES {
        let sector = plan.reserved + copy * plan.table_sectors;
        device.write_at(&start, sector * SECTOR_BYTES)?;
    }
    // Takes the first cluster for the root of a FAT32, and counts the free ones.
    let mut disk = Disk::open(device.clone())?;
    let mut chain = Chain::default();
    disk.extend(&mut chain, u32::from(options.width == FatWidth::Fat32))?;
    if !label.is_empty() {
        let root = match chain.first() {
            0 => (plan.reserved + TABLES * plan.table_sectors) * SECTOR_BYTES,
            cluster => disk.geometry.cluster_offset(cluster),
        };
        disk.cache.write(root, &Entry::label(&padded(label)).0)?;
    }
    disk.flush(true)
}

/// Returns a label as it is stored.
fn padded(label: &str) -> [u8; LABEL_LEN_MAX] {
    let mut bytes = [b' '; LABEL_LEN_MAX];
    bytes[..label.len()].copy_from_slice(label.to_ascii_uppercase().as_bytes());
    bytes
}

/// The sizes of a new FAT's parts, in sectors. All but the first begin at a multiple of the
/// cluster's size, as those of mkfs.fat do.
struct Plan {
    width: FatWidth,
    sectors: u64,
    cluster: u64,
    reserved: u64,
    table_sectors: u64,
}

impl Plan {
    /// Chooses the sizes: clusters like those of mkfs.fat, smaller or larger ones if the width
    /// needs them.
    fn new(width: FatWidth, sectors: u64) -> Option<Self> {
        let first: u64 = match (width, (sectors * SECTOR_BYTES) >> 30) {
            (FatWidth::Fat32, 0..8) => 8,
            (FatWidth::Fat32, 8..16) => 16,
            (FatWidth::Fat32, 16..32) => 32,
            (FatWidth::Fat32, _) => 64,
            _ => 4,
        };
        let smaller = [1, 2, 4, 8, 16, 32, 64]
            .into_iter()
            .filter(|size| *size < first)
            .rev();
        let larger = [1, 2, 4, 8, 16, 32, 64]
            .into_iter()
            .filter(|size| *size >= first);
        // A FAT32 has always enough bits.
        larger
            .take(if width == FatWidth::Fat32 { 1 } else { 7 })
            .chain(smaller)
            .find_map(|cluster| Self::with_cluster(width, sectors, cluster))
    }

    fn with_cluster(width: FatWidth, sectors: u64, cluster: u64) -> Option<Self> {
        let is_fat32 = width == FatWidth::Fat32;
        let reserved = if is_fat32 { FAT32_RESERVED_SECTORS } else { 1 }.next_multiple_of(cluster);
        let root_sectors = if is_fat32 {
            0
        } else {
            ROOT_SECTORS.next_multiple_of(cluster)
        };
        let left = sectors.checked_sub(reserved + root_sectors)?;
        // Enough entries for the clusters that there would be without a table.
        let table_bits = (left / cluster + 2) * u64::from(width.bits());
        let table_sectors = table_bits
            .div_ceil(SECTOR_BYTES * 8)
            .next_multiple_of(cluster);
        let clusters = left.checked_sub(TABLES * table_sectors)? / cluster;
        let (min, max) = (width.clusters_min(), width.clusters_max());
        let margin = if width == FatWidth::Fat12 {
            0
        } else {
            CLUSTERS_MARGIN
        };
        let range = u64::from(min) + margin..=u64::from(max) - CLUSTERS_MARGIN;
        let plan = Self {
            width,
            sectors,
            cluster,
            reserved,
            table_sectors,
        };
        (range.contains(&clusters) && table_sectors < 1 << 32).then_some(plan)
    }

    fn root_slots(&self) -> u16 {
        let sectors = ROOT_SECTORS.next_multiple_of(self.cluster);
        (sectors * SECTOR_BYTES) as u16 / ENTRY_BYTES as u16
    }

    fn boot_sector(&self, options: &FatOptions) -> [u8; BOOT_BYTES] {
        let is_fat32 = self.width == FatWidth::Fat32;
        let mut boot = [0; BOOT_BYTES];
        let mut set = |at: usize, bytes: &[u8]| boot[at..at + bytes.len()].copy_from_slice(bytes);
        let extended = if is_fat32 { 64 } else { 36 };
        // A jump to an endless loop, for firmware that starts the disk.
        let code = extended + 26;
        set(0, &[0xeb, code as u8 - 2, 0x90]);
        set(code, &[0xeb, 0xfe]);
        set(3, b"MSWIN4.1");
        set(11, &(SECTOR_BYTES as u16).to_le_bytes());
        set(13, &[self.cluster as u8]);
        set(14, &(self.reserved as u16).to_le_bytes());
        set(16, &[TABLES as u8]);
        let short_sectors = u16::try_from(self.sectors).unwrap_or(0);
        if is_fat32 || short_sectors == 0 {
            set(32, &(self.sectors as u32).to_le_bytes());
        } else {
            set(19, &short_sectors.to_le_bytes());
        }
        set(21, &[MEDIA]);
        // Sectors of a track, and heads.
        set(24, &[63, 0, 255, 0]);
        if is_fat32 {
            set(36, &(self.table_sectors as u32).to_le_bytes());
            set(44, &ROOT_CLUSTER.to_le_bytes());
            set(48, &[INFO_SECTOR as u8, 0, BACKUP_SECTOR as u8]);
        } else {
            set(17, &self.root_slots().to_le_bytes());
            set(22, &(self.table_sectors as u16).to_le_bytes());
        }
        // The drive's number, and the signature of the fields that follow.
        set(extended, &[0x80, 0, 0x29]);
        set(extended + 3, &options.volume_id.to_le_bytes());
        let label = if options.label.is_empty() {
            "NO NAME"
        } else {
            &options.label
        };
        set(extended + 7, &padded(label));
        let name = self.width.name().to_ascii_uppercase();
        set(extended + 18, format!("{name:8}").as_bytes());
        set(BOOT_BYTES - 2, &[0x55, 0xaa]);
        boot
    }
}

/// Returns the information sector of a FAT32 whose free clusters are not counted.
fn info_sector() -> [u8; BOOT_BYTES] {
    let mut info = [0; BOOT_BYTES];
    for (at, signature) in INFO_SIGNATURES {
        info[at..at + signature.len()].copy_from_slice(signature);
    }
    info[INFO_FREE_AT..INFO_FREE_AT + 8].fill(0xff);
    info[BOOT_BYTES - 2..].copy_from_slice(&[0x55, 0xaa]);
    info
}
