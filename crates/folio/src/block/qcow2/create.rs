//! New images: the same bytes for the same size and options.

use super::super::image_file::ImageFile;
use super::header::{MAGIC, RawHeader, l1_entries};
use crate::base::{Errno, Error, Result};
use std::io::IoSlice;
use zerocopy::{FromZeros, IntoBytes};

/// Version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Version 2: no zero clusters; for QEMU before 1.1.
    V0_10,
    /// Version 3.
    #[default]
    V1_1,
}

/// What a new image is like.
#[derive(Debug, Clone, Copy)]
pub struct CreateOptions {
    /// Bytes in a cluster: a power of two from 512 to 2 MiB.
    pub cluster_bytes: u32,
    /// Version of the format.
    pub compat: Compat,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { cluster_bytes: 64 << 10, compat: Compat::V1_1 }
    }
}

/// Writes a new, empty image into an empty file: header, refcount table, refcount blocks, L1 table.
pub(super) fn write(file: &dyn ImageFile, len_bytes: u64, options: &CreateOptions) -> Result<()> {
    let cluster = u64::from(options.cluster_bytes);
    if !cluster.is_power_of_two() || !(512..=2 << 20).contains(&cluster) {
        return Err(Error::new(Errno::INVAL, "a cluster has 512 bytes to 2 MiB, a power of two"));
    }
    let bits = cluster.trailing_zeros();
    let l1_bytes = l1_entries(len_bytes, bits) * 8;
    if l1_bytes > 32 << 20 {
        return Err(Error::new(Errno::FBIG, "too large for clusters of this size"));
    }
    let l1_clusters = l1_bytes.div_ceil(cluster).max(1);
    // 16-bit refcounts. One cluster of table; it grows when the file does.
    let per_block = cluster / 2;
    let blocks = (2 + l1_clusters).div_ceil(per_block - 1);
    let table_clusters = (blocks * 8).div_ceil(cluster);
    let used = 1 + table_clusters + blocks + l1_clusters;
    if used > blocks * per_block {
        return Err(Error::new(Errno::FBIG, "too large for clusters of this size"));
    }
    let l1_offset = (1 + table_clusters + blocks) << bits;
    let mut table = vec![0; (table_clusters << bits) as usize];
    for (index, slot) in table.chunks_exact_mut(8).take(blocks as usize).enumerate() {
        slot.copy_from_slice(&((1 + table_clusters + index as u64) << bits).to_be_bytes());
    }
    let mut counts = vec![0; (blocks << bits) as usize];
    for count in counts.chunks_exact_mut(2).take(used as usize) {
        count[1] = 1;
    }
    file.write(&[IoSlice::new(&table), IoSlice::new(&counts)], cluster)?;
    file.set_len(l1_offset + (l1_clusters << bits))?;
    let header = header(len_bytes, bits, l1_offset, table_clusters, options.compat);
    // Version 2 ends its header here; zeros behind it are the end of the extensions.
    let header_len = if options.compat == Compat::V0_10 { 72 } else { size_of::<RawHeader>() };
    file.write(&[IoSlice::new(&header.as_bytes()[..header_len])], 0)
}

fn header(len_bytes: u64, bits: u32, l1_offset: u64, table_clusters: u64, compat: Compat) -> RawHeader {
    let mut raw = RawHeader::new_zeroed();
    raw.magic = MAGIC.into();
    raw.version = if compat == Compat::V0_10 { 2 } else { 3 }.into();
    raw.cluster_bits = bits.into();
    raw.len_bytes = len_bytes.into();
    // Both are below 2^22 by the limits on their tables.
    raw.l1_entries = (l1_entries(len_bytes, bits) as u32).into();
    raw.refcount_table_clusters = (table_clusters as u32).into();
    raw.l1_offset = l1_offset.into();
    raw.refcount_table_offset = (1u64 << bits).into();
    raw.refcount_order = 4.into();
    raw.header_len = (size_of::<RawHeader>() as u32).into();
    raw
}
