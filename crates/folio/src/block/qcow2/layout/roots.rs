//! The tables that the header points to, read leniently so that a check can examine a damaged
//! image.
//!
//! Offsets are not checked here; only sizes are bounded.

use super::extensions::{self, Extension, number};
use super::features::{AUTOCLEAR_BITMAPS, DATA_FILE, EXTENDED_L2, READABLE};
use super::raw_header::{L1_BYTES_MAX, REFCOUNT_TABLE_BYTES_MAX, RawHeader, read_raw};
use super::snapshot_table::{self, SnapshotEntry};
use crate::base::{Detail, Error, Result};
use crate::block::file::ImageFile;

/// QEMU opens no image whose size needs more L1 entries.
const L1_ENTRIES_MAX: u64 = i32::MAX as u64;

/// A range of the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) at: u64,
    pub(crate) len_bytes: u64,
}

/// An L1 table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct L1 {
    pub(crate) at: u64,
    pub(crate) entries: u64,
}

impl L1 {
    /// Returns the bytes of the table.
    pub(crate) fn region(self) -> Region {
        Region {
            at: self.at,
            len_bytes: self.entries.saturating_mul(8),
        }
    }
}

/// The header's numbers, checked as far as they must be to find the tables.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    pub(crate) version: u32,
    pub(crate) cluster_bits: u32,
    pub(crate) refcount_order: u32,
    /// L2 entries have 16 bytes and describe subclusters.
    pub(crate) is_extended: bool,
    /// Guest data is stored uncompressed in another file.
    pub(crate) has_data_file: bool,
    pub(crate) len_bytes: u64,
    pub(crate) incompatible: u64,
    pub(crate) autoclear: u64,
    pub(crate) l1: L1,
    pub(crate) refcount_table: Region,
    pub(crate) snapshots: Vec<SnapshotEntry>,
    pub(crate) snapshot_table: Region,
    /// The bitmap directory and its number of bitmaps, if it is consistent with the disk.
    pub(crate) bitmaps: Option<(Region, u32)>,
    /// The LUKS header.
    pub(crate) crypto_header: Option<Region>,
}

impl Roots {
    /// Reads the header and the snapshot table.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a number outside its limits, EOPNOTSUPP for features that Folio does not know.
    pub(crate) fn read(file: &dyn ImageFile) -> Result<Self> {
        let raw = read_raw(file)?;
        let bad = |what: String| Err(Error::corrupt(what).at("header"));
        let cluster_bits = raw.cluster_bits.get();
        if !(9..=21).contains(&cluster_bits) {
            return bad(format!("cluster_bits {cluster_bits} is not in 9 to 21"));
        }
        if raw.header_bytes() > 1 << cluster_bits {
            return bad(format!("header length {}", raw.header_len));
        }
        if raw.refcount_order.get() > 6 {
            return bad(format!("refcount_order {} is above 6", raw.refcount_order));
        }
        let incompatible = raw.incompatible.get();
        let unknown = incompatible & !READABLE;
        if unknown != 0 {
            return Err(
                Error::unsupported(format!("incompatible features {unknown:#x}")).at("header"),
            );
        }
        let l1 = L1 {
            at: raw.l1_offset.get(),
            entries: raw.l1_entries.get().into(),
        };
        if l1.region().len_bytes > L1_BYTES_MAX {
            return bad(format!("an L1 table of {} entries", l1.entries));
        }
        let table_bytes = u64::from(raw.refcount_table_clusters.get()) << cluster_bits;
        if table_bytes > REFCOUNT_TABLE_BYTES_MAX {
            return bad(format!(
                "a refcount table of {} clusters",
                raw.refcount_table_clusters
            ));
        }
        let snapshots_at = raw.snapshots_offset.get();
        let (snapshots, snapshot_bytes) =
            snapshot_table::read(file, snapshots_at, raw.snapshots.get())?;
        let autoclear = raw.autoclear.get();
        let mut this = Self {
            version: raw.version.get(),
            cluster_bits,
            refcount_order: raw.refcount_order.get(),
            is_extended: incompatible & EXTENDED_L2 != 0,
            has_data_file: incompatible & DATA_FILE != 0,
            len_bytes: raw.len_bytes.get(),
            incompatible,
            autoclear,
            l1,
            refcount_table: Region {
                at: raw.refcount_table_offset.get(),
                len_bytes: table_bytes,
            },
            snapshots,
            snapshot_table: Region {
                at: snapshots_at,
                len_bytes: snapshot_bytes,
            },
            bitmaps: None,
            crypto_header: None,
        };
        if this.len_bytes / this.l2_covers_bytes() > L1_ENTRIES_MAX {
            return bad("the image is too big".to_owned())
                .map_err(|error| error.about(Detail::DiskTooLarge));
        }
        this.take_extensions(&raw, extensions::read(file, &raw)?)?;
        Ok(this)
    }

    fn take_extensions(&mut self, raw: &RawHeader, found: Vec<Extension>) -> Result<()> {
        for extension in found {
            let bytes = &extension.bytes;
            let short = || {
                Error::corrupt(format!("extension {:#x} is too short", extension.kind)).at("header")
            };
            match extension.kind {
                extensions::BITMAPS if self.autoclear & AUTOCLEAR_BITMAPS != 0 => {
                    let count = number(bytes, 0).ok_or_else(short)? >> 32;
                    let len_bytes = number(bytes, 8).ok_or_else(short)?;
                    let at = number(bytes, 16).ok_or_else(short)?;
                    self.bitmaps = Some((Region { at, len_bytes }, count as u32));
                }
                extensions::CRYPTO_HEADER if raw.crypt_method.get() == 2 => {
                    let at = number(bytes, 0).ok_or_else(short)?;
                    let len_bytes = number(bytes, 8).ok_or_else(short)?;
                    self.crypto_header = Some(Region { at, len_bytes });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the size of a cluster in bytes.
    pub(crate) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the size of an L2 entry in bytes.
    pub(crate) fn l2_entry_bytes(&self) -> usize {
        if self.is_extended { 16 } else { 8 }
    }

    /// Returns the number of guest bytes that one L2 table maps.
    pub(crate) fn l2_covers_bytes(&self) -> u64 {
        (self.cluster_bytes() / self.l2_entry_bytes() as u64) << self.cluster_bits
    }

    /// Returns the largest refcount that fits in its bits.
    pub(crate) fn refcount_max(&self) -> u64 {
        u64::MAX >> (64 - (1u32 << self.refcount_order))
    }
}
