//! The header's bytes, exactly, and the places of its fields.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header").

use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use std::io::IoSliceMut;
use std::mem::offset_of;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "QFI" and 0xfb.
pub(crate) const MAGIC: u32 = 0x5146_49fb;
/// Size of a version 2 header in bytes.
pub(crate) const V2_BYTES: usize = 72;
/// Smallest size of a version 3 header in bytes.
pub(crate) const V3_BYTES_MIN: usize = 104;
/// Limits, the same as QEMU's (block/qcow2.h).
pub(crate) const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Largest refcount width: 64 bits, as a power of two.
pub(crate) const REFCOUNT_ORDER_MAX: u32 = 6;
/// Largest size of an L1 table in bytes.
pub(crate) const L1_BYTES_MAX: u64 = 32 << 20;
/// Largest size of a refcount table in bytes.
pub(crate) const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// Longest name of a backing file in bytes.
pub(crate) const BACKING_NAME_BYTES_MAX: usize = 1023;

/// The bytes, exactly.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub(crate) magic: U32,
    pub(crate) version: U32,
    pub(crate) backing_name_offset: U64,
    pub(crate) backing_name_len: U32,
    pub(crate) cluster_bits: U32,
    pub(crate) len_bytes: U64,
    pub(crate) crypt_method: U32,
    pub(crate) l1_entries: U32,
    pub(crate) l1_offset: U64,
    pub(crate) refcount_table_offset: U64,
    pub(crate) refcount_table_clusters: U32,
    pub(crate) snapshots: U32,
    pub(crate) snapshots_offset: U64,
    pub(crate) incompatible: U64,
    pub(crate) compatible: U64,
    pub(crate) autoclear: U64,
    pub(crate) refcount_order: U32,
    pub(crate) header_len: U32,
    pub(crate) compression_type: u8,
    pub(crate) padding: [u8; 7],
}

const _: () = assert!(size_of::<RawHeader>() == 112);
const _: () = assert!(offset_of!(RawHeader, incompatible) == V2_BYTES);
const _: () = assert!(offset_of!(RawHeader, compression_type) == V3_BYTES_MIN);

/// Offset in the file of the disk's size, the encryption method and the number of L1 entries: 16
/// bytes in one sector.
pub(crate) const SIZE_FIELD: u64 = offset_of!(RawHeader, len_bytes) as u64;
/// Offset in the file of the refcount table's offset and size in clusters: 12 bytes in one sector.
pub(crate) const REFCOUNT_TABLE_FIELD: u64 = offset_of!(RawHeader, refcount_table_offset) as u64;
/// Offset in the file of the number of snapshots and their table's offset: 12 bytes in one sector.
pub(crate) const SNAPSHOTS_FIELD: u64 = offset_of!(RawHeader, snapshots) as u64;
/// Offset in the file of the incompatible features.
pub(crate) const INCOMPATIBLE_FIELD: u64 = offset_of!(RawHeader, incompatible) as u64;
/// Offset in the file of the autoclear features.
pub(crate) const AUTOCLEAR_FIELD: u64 = offset_of!(RawHeader, autoclear) as u64;

impl RawHeader {
    /// Returns the size of the header itself in bytes, unchecked: the extensions follow it.
    pub(crate) fn header_bytes(&self) -> u64 {
        match self.version.get() {
            2 => V2_BYTES as u64,
            _ => self.header_len.get().into(),
        }
    }
}

/// Reads the header; fields that version 2 lacks get the values that it implies.
///
/// # Errors
///
/// EUCLEAN for bytes that are not a qcow2 header, EOPNOTSUPP for another version.
pub(crate) fn read_raw(file: &dyn ImageFile) -> Result<RawHeader> {
    let mut raw = RawHeader::new_zeroed();
    let count = file.read_some(&mut [IoSliceMut::new(raw.as_mut_bytes())], 0)? as usize;
    let version = raw.version.get();
    if raw.magic.get() != MAGIC || count < V2_BYTES {
        return Err(Error::corrupt("not a qcow2 header").at("header"));
    }
    match version {
        2 => {
            // The bytes after a version 2 header are not header fields; the version implies these.
            raw.as_mut_bytes()[V2_BYTES..].fill(0);
            raw.refcount_order = 4.into();
        }
        3 if count >= V3_BYTES_MIN => {
            if (raw.header_len.get() as usize) < size_of::<RawHeader>() {
                raw.compression_type = 0;
            }
        }
        3 => return Err(Error::corrupt("the file ends inside the header").at("header")),
        _ => return Err(Error::unsupported(format!("version {version}"))),
    }
    Ok(raw)
}
