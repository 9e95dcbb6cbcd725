//! A new FAT file system.

use crate::cursor::{BlockCache, DeviceCursor};
use crate::volume::Volume;
use fatfs::{FatType, FormatVolumeOptions};
use folio::base::Clock;
use folio::block::Device;
use folio::{Errno, Error, Result};
use std::sync::Arc;

/// Bytes of a label.
const LABEL_LEN_MAX: usize = 11;
/// A FAT32 needs this many clusters; with fewer, readers take it for a FAT16.
const FAT32_CLUSTERS_MIN: u64 = 65_525;
/// Sectors before the tables of a FAT32, of 512 bytes.
const FAT32_RESERVED_SECTORS: u64 = 32;
const SECTOR_BYTES: u64 = 512;
/// The largest FAT32: sectors have numbers of 32 bits.
const DEVICE_BYTES_MAX: u64 = SECTOR_BYTES << 32;

/// The width of the entries of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FatWidth {
    /// FAT32, as firmware expects of an EFI system partition on a disk.
    #[default]
    Fat32,
    /// FAT16, for small partitions.
    Fat16,
    /// FAT12.
    Fat12,
}

impl FatWidth {
    /// Returns the width of the FAT on `device`, which follows from its number of clusters.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it is damaged, else the device's errors.
    pub fn of(device: &Arc<dyn Device>) -> Result<Self> {
        let volume = Volume::open(device.clone(), true, Clock::System)?;
        Ok(match volume.call(|fat| Ok(fat.fat_type()))? {
            FatType::Fat32 => Self::Fat32,
            FatType::Fat16 => Self::Fat16,
            FatType::Fat12 => Self::Fat12,
        })
    }

    /// Returns the name: `fat32`, `fat16` or `fat12`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fat32 => "fat32",
            Self::Fat16 => "fat16",
            Self::Fat12 => "fat12",
        }
    }
}

/// Options of a new FAT.
#[derive(Debug, Clone, Default)]
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
    let mut format = FormatVolumeOptions::new().volume_id(options.volume_id);
    match options.width {
        FatWidth::Fat32 => {
            let Some(cluster) = fat32_cluster(len) else {
                let least = FAT32_CLUSTERS_MIN * SECTOR_BYTES / 1024 + 550;
                return refuse(format!(
                    "{len} bytes are too few for a FAT32: at least {least}K are needed; use fat16"
                ));
            };
            format = format.fat_type(FatType::Fat32).bytes_per_cluster(cluster);
        }
        FatWidth::Fat16 => format = format.fat_type(FatType::Fat16),
        FatWidth::Fat12 => format = format.fat_type(FatType::Fat12),
    }
    if !label.is_empty() {
        let mut bytes = [b' '; LABEL_LEN_MAX];
        bytes[..label.len()].copy_from_slice(label.to_ascii_uppercase().as_bytes());
        format = format.volume_label(bytes);
    }
    device.write_zeroes(0, len)?;
    let cache = BlockCache::new(device.clone());
    fatfs::format_volume(DeviceCursor::new(&cache), format)
        .and_then(|()| cache.borrow_mut().write_back())
        .map_err(|error| match folio::Errno::from_io_error(&error) {
            Some(errno) => Error::new(errno, error.to_string()),
            None => Error::new(Errno::INVAL, error.to_string()),
        })?;
    // Records the number of free clusters.
    Volume::open(device.clone(), false, Clock::System)?.close()
}

/// Returns the largest cluster, at most that of mkfs.fat, with which a FAT32 has enough clusters.
fn fat32_cluster(len: u64) -> Option<u32> {
    let gib = len >> 30;
    let most: u32 = match gib {
        0..8 => 4096,
        8..16 => 8192,
        16..32 => 16384,
        _ => 32768,
    };
    let clusters = |cluster: u32| {
        // Two tables with four bytes per cluster.
        let data = len.saturating_sub(FAT32_RESERVED_SECTORS * SECTOR_BYTES);
        data / (u64::from(cluster) + 8)
    };
    let sizes = std::iter::successors(Some(most), |size| (*size > 512).then_some(size / 2));
    sizes
        .into_iter()
        .find(|size| clusters(*size) >= FAT32_CLUSTERS_MIN + 16)
}
