//! The bytes of a FAT: its boot sector, and the places that follow from it.
//!
//! Source: Microsoft FAT Specification (2004); Linux: fs/fat/inode.c (`fat_read_bpb`).

use super::width::FatWidth;
use crate::base::{Error, Result};

/// Bytes of the boot sector that are read.
pub(crate) const BOOT_BYTES: usize = 512;
/// Bytes of a directory entry.
pub(crate) const ENTRY_BYTES: usize = 32;
/// The first number of a cluster; the entries before it have other uses.
pub(crate) const CLUSTER_MIN: u32 = 2;
/// Offset of the number of free clusters in the information sector; the next free one follows.
pub(crate) const INFO_FREE_AT: usize = 488;
/// The signatures of the information sector, and their offsets.
pub(crate) const INFO_SIGNATURES: [(usize, &[u8; 4]); 2] = [(0, b"RRaA"), (484, b"rrAa")];
/// The bit of the boot sector's state byte that a mount sets and an unmount clears.
pub(crate) const STATE_DIRTY: u8 = 1;
/// Most bytes of a cluster: 128 sectors of 4096 bytes.
const CLUSTER_BYTES_MAX: u64 = 128 * 4096;

/// The place of the root directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootPlace {
    /// Before the clusters, with a fixed number of slots.
    Fixed { offset: u64, slots: u32 },
    /// A chain of clusters, as of any directory.
    Cluster(u32),
}

/// The places of a FAT's parts, in bytes of the device.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    pub(crate) width: FatWidth,
    pub(crate) cluster_bytes: u64,
    /// Clusters that hold data; the last one has this number plus 1.
    pub(crate) cluster_count: u32,
    pub(crate) table_offset: u64,
    /// Bytes of one copy of the table.
    pub(crate) table_bytes: u64,
    pub(crate) table_count: u8,
    /// The copy that is read.
    pub(crate) table_active: u8,
    pub(crate) root: RootPlace,
    pub(crate) data_offset: u64,
    /// The information sector of a FAT32.
    pub(crate) info_offset: Option<u64>,
    /// The state byte of the boot sector.
    pub(crate) state_offset: u64,
}

/// Returns the two bytes of `bytes` at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the four bytes of `bytes` at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// Returns an EUCLEAN error: `what` contradicts the format.
pub(crate) fn damaged(what: &'static str) -> Error {
    Error::corrupt(what).at("fat")
}

impl Geometry {
    /// Checks a boot sector.
    ///
    /// # Errors
    ///
    /// EUCLEAN if a number in it is invalid.
    pub(crate) fn parse(boot: &[u8; BOOT_BYTES]) -> Result<Self> {
        let sector = u64::from(u16_at(boot, 11));
        let (sectors_per_cluster, table_count) = (u64::from(boot[13]), boot[16]);
        if !sector.is_power_of_two() || !(512..=4096).contains(&sector) {
            return Err(damaged("invalid sector size in the boot sector"));
        }
        let cluster_bytes = sector * sectors_per_cluster;
        if !sectors_per_cluster.is_power_of_two() || cluster_bytes > CLUSTER_BYTES_MAX {
            return Err(damaged("invalid cluster size in the boot sector"));
        }
        let reserved = u64::from(u16_at(boot, 14));
        if reserved == 0 || table_count == 0 {
            return Err(damaged("the boot sector names no table"));
        }
        let is_fat32 = u16_at(boot, 22) == 0;
        let either = |short: usize, long: usize| match u16_at(boot, short) {
            0 => u64::from(u32_at(boot, long)),
            short => u64::from(short),
        };
        let table_sectors = either(22, 36);
        let root_bytes = u64::from(u16_at(boot, 17)) * ENTRY_BYTES as u64;
        let root_sector = reserved + u64::from(table_count) * table_sectors;
        let data_sector = root_sector + root_bytes.div_ceil(sector);
        let clusters = either(19, 32)
            .checked_sub(data_sector)
            .ok_or_else(|| damaged("the tables in the boot sector exceed the file system"))?
            / sectors_per_cluster;
        let width = match clusters {
            _ if is_fat32 => FatWidth::Fat32,
            0..=4084 => FatWidth::Fat12,
            _ => FatWidth::Fat16,
        };
        // The table may be larger or smaller than the area for data.
        let entries = table_sectors * sector * 8 / u64::from(width.bits());
        let clusters = clusters.min(entries.saturating_sub(CLUSTER_MIN.into()));
        if clusters == 0 || clusters > width.clusters_max().into() {
            return Err(damaged("invalid number of clusters in the boot sector"));
        }
        let cluster_count = clusters as u32;
        let root = if is_fat32 {
            RootPlace::Cluster(u32_at(boot, 44))
        } else {
            RootPlace::Fixed {
                offset: root_sector * sector,
                slots: (root_bytes / ENTRY_BYTES as u64) as u32,
            }
        };
        let clusters = CLUSTER_MIN..CLUSTER_MIN + cluster_count;
        if matches!(root, RootPlace::Cluster(cluster) if !clusters.contains(&cluster)) {
            return Err(damaged("the root directory is outside of the file system"));
        }
        // Bit 7 of the flags says that only one copy of the table is in use.
        let flags = if is_fat32 { boot[40] } else { 0 };
        let active = if flags & 0x80 == 0 { 0 } else { flags & 0x0f };
        let info_sector = u64::from(u16_at(boot, 48));
        Ok(Self {
            width,
            cluster_bytes,
            cluster_count,
            table_offset: reserved * sector,
            table_bytes: table_sectors * sector,
            table_count,
            table_active: active.min(table_count - 1),
            root,
            data_offset: data_sector * sector,
            info_offset: (is_fat32 && (1..reserved).contains(&info_sector))
                .then_some(info_sector * sector),
            state_offset: if is_fat32 { 65 } else { 37 },
        })
    }

    /// Returns the number behind that of the last cluster.
    pub(crate) fn cluster_end(&self) -> u32 {
        CLUSTER_MIN + self.cluster_count
    }

    /// Returns the place of a cluster, whose number is valid.
    pub(crate) fn cluster_offset(&self, cluster: u32) -> u64 {
        let index = u64::from(cluster).saturating_sub(CLUSTER_MIN.into());
        self.data_offset + index * self.cluster_bytes
    }

    /// Returns the number of clusters that hold `len_bytes`.
    pub(crate) fn clusters_of(&self, len_bytes: u64) -> u32 {
        len_bytes.div_ceil(self.cluster_bytes).min(u32::MAX.into()) as u32
    }
}
