//! What the header leads to: the tables that everything else in the file hangs on, read leniently,
//! so that an image with damage can be looked at.

use super::super::image_file::ImageFile;
use super::extensions::{self, Extension, number};
use super::header::{L1_BYTES_MAX, REFCOUNT_TABLE_BYTES_MAX, RawHeader, read_raw};
use super::snapshot_table::{self, Entry};
use crate::base::{Error, Result};

/// Incompatible features that have a meaning here.
pub(super) const DIRTY: u64 = 1 << 0;
pub(super) const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;
/// The bitmaps extension is in step with the disk.
const AUTOCLEAR_BITMAPS: u64 = 1;

/// A range of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) at: u64,
    pub(super) len_bytes: u64,
}

/// An L1 table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct L1 {
    pub(super) at: u64,
    pub(super) entries: u64,
}

impl L1 {
    /// What the table covers.
    pub(super) fn region(self) -> Region {
        Region {
            at: self.at,
            len_bytes: self.entries.saturating_mul(8),
        }
    }
}

/// The header's numbers, checked as far as they must be to find the tables.
#[derive(Debug, Clone)]
pub(super) struct Roots {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(super) refcount_order: u32,
    /// Entries of L2 tables have 16 bytes: subclusters.
    pub(super) is_extended: bool,
    /// Guest data lies in another file, plain.
    pub(super) has_data_file: bool,
    pub(super) len_bytes: u64,
    pub(super) incompatible: u64,
    pub(super) autoclear: u64,
    pub(super) l1: L1,
    pub(super) refcount_table: Region,
    pub(super) snapshots: Vec<Entry>,
    pub(super) snapshot_table: Region,
    /// The bitmap directory and how many bitmaps it tells of, if it is in step with the disk.
    pub(super) bitmaps: Option<(Region, u32)>,
    /// The LUKS header.
    pub(super) crypto_header: Option<Region>,
}

impl Roots {
    /// Reads the header and the snapshot table.
    ///
    /// Errors: EUCLEAN where a number makes no sense, EOPNOTSUPP for features that nobody here
    /// knows.
    pub(super) fn read(file: &dyn ImageFile) -> Result<Self> {
        let raw = read_raw(file)?;
        let bad = |what: String| Err(Error::corrupt(what).at("header"));
        let cluster_bits = raw.cluster_bits.get();
        if !(9..=21).contains(&cluster_bits) {
            return bad(format!("cluster_bits {cluster_bits} is not in 9 to 21"));
        }
        if extensions::header_len(&raw) > 1 << cluster_bits {
            return bad(format!("header length {}", raw.header_len));
        }
        if raw.refcount_order.get() > 6 {
            return bad(format!("refcount_order {} is above 6", raw.refcount_order));
        }
        let incompatible = raw.incompatible.get();
        let unknown =
            incompatible & !(DIRTY | CORRUPT | DATA_FILE | COMPRESSION_TYPE | EXTENDED_L2);
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

    /// Bytes in a cluster.
    pub(super) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes in an entry of an L2 table.
    pub(super) fn l2_entry_bytes(&self) -> usize {
        if self.is_extended { 16 } else { 8 }
    }

    /// Guest bytes that one L2 table maps.
    pub(super) fn l2_covers_bytes(&self) -> u64 {
        (self.cluster_bytes() / self.l2_entry_bytes() as u64) << self.cluster_bits
    }

    /// The largest number that a refcount can be.
    pub(super) fn refcount_max(&self) -> u64 {
        u64::MAX >> (64 - (1u32 << self.refcount_order))
    }
}
