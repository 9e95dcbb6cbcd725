//! The size of an image file, computed before the image is created.

use super::create::too_large;
use crate::base::Result;
use crate::block::image::CreateOptions;
use crate::block::qcow2::layout::bitmaps::{self, DirtyBitmap};
use crate::block::qcow2::layout::raw_header::L1_BYTES_MAX;

/// Returns the size in bytes of an image file with a host cluster for every guest cluster, in the
/// fewest tables that describe them.
///
/// # Errors
///
/// EINVAL for options that contradict each other, EFBIG for a size that clusters of this size
/// cannot map.
pub(crate) fn full_file_bytes(len_bytes: u64, options: &CreateOptions) -> Result<u64> {
    options.check()?;
    let cluster = u64::from(options.cluster_bytes);
    let entry_bytes = if options.extended_l2 { 16 } else { 8 };
    let data = len_bytes.div_ceil(cluster);
    let l2_tables = data.div_ceil(cluster / entry_bytes);
    if l2_tables > L1_BYTES_MAX / 8 {
        return Err(too_large());
    }
    let l1_clusters = (l2_tables * 8).div_ceil(cluster);
    let used = 1 + l1_clusters + l2_tables + data;
    Ok((used + refcount_clusters(used, cluster, options.refcount_bits)) * cluster)
}

/// Returns the number of clusters of the refcount table and its blocks, which describe `used`
/// clusters and themselves.
fn refcount_clusters(used: u64, cluster_bytes: u64, refcount_bits: u32) -> u64 {
    let per_block = cluster_bytes * 8 / u64::from(refcount_bits);
    let mut own = 0;
    loop {
        let blocks = (used + own).div_ceil(per_block);
        let more = blocks + (blocks * 8).div_ceil(cluster_bytes);
        if more == own {
            return own;
        }
        own = more;
    }
}

/// Returns the space in bytes of bitmaps of a disk, as far as their sizes are known: each cluster
/// of their bits may be stored.
pub(crate) fn bitmaps_bytes(found: &[DirtyBitmap], len_bytes: u64, cluster_bytes: u64) -> u64 {
    let mut directory = 0u64;
    let mut space = 0u64;
    for bitmap in found {
        let bits = len_bytes.div_ceil(bitmap.granularity_bytes.max(1));
        let clusters = bits.div_ceil(8).div_ceil(cluster_bytes);
        let table_bytes = (clusters * 8).next_multiple_of(cluster_bytes);
        space = space.saturating_add(clusters.saturating_mul(cluster_bytes));
        space = space.saturating_add(table_bytes);
        directory += bitmaps::entry_bytes(bitmap.name.len() as u64);
    }
    space.saturating_add(directory.next_multiple_of(cluster_bytes))
}
