//! Tables of 8-byte entries: the bits that L1 and L2 entries share, and the decoding of L1 entries.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("L1 table entry", "L2 table entry").

use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use std::io::IoSliceMut;

/// The cluster or table has a refcount of one and may be written in place (OFLAG_COPIED).
pub(crate) const COPIED: u64 = 1 << 63;
/// The cluster is compressed (OFLAG_COMPRESSED).
pub(crate) const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros (version 3); extended entries have a bit for each subcluster instead.
pub(crate) const ZERO: u64 = 1;
/// The bits of an entry that are an offset in the file.
pub(crate) const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// Reserved bits of an L1 entry.
pub(crate) const L1_RESERVED: u64 = !(COPIED | OFFSET_MASK);

/// Decodes an L1 entry: the L2 table's offset in the file, if there is a table, and whether it may
/// be written in place.
///
/// # Errors
///
/// EUCLEAN for reserved bits, or an offset inside a cluster.
pub(crate) fn decode_l1(entry: u64, cluster_bits: u32) -> Result<Option<(u64, bool)>> {
    let host = entry & OFFSET_MASK;
    if entry & L1_RESERVED != 0 || !host.is_multiple_of(1 << cluster_bits) {
        return Err(Error::corrupt(format!("L1 entry {entry:#018x}")));
    }
    Ok((host != 0).then_some((host, entry & COPIED != 0)))
}

/// Reads a table of 8-byte entries.
///
/// # Errors
///
/// EUCLEAN if the file ends inside it, else the file's errors.
pub(crate) fn read_table(file: &dyn ImageFile, at: u64, len_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len_bytes];
    if file.read_some(&mut [IoSliceMut::new(&mut bytes)], at)? < len_bytes as u64 {
        return Err(Error::corrupt("reaches beyond the end of the file"));
    }
    Ok(bytes)
}

/// Decodes big-endian bytes as numbers.
pub(crate) fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_be_bytes(*bytes))
}
