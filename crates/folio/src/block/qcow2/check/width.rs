//! Changes the width of refcounts: writes a new refcount tree behind the end of the file, and one
//! sector of the header makes it the image's.

use super::count::{CountedReferences, count};
use super::finding::FindingSink;
use super::refcount_file::RefcountFile;
use super::repair::align_copied_flags;
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::raw_header::{
    REFCOUNT_TABLE_BYTES_MAX, RawHeader, V3_BYTES_MIN, read_raw,
};
use crate::block::qcow2::layout::refcount_block;
use crate::block::qcow2::layout::roots::{Region, Roots};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Gives the refcounts of an image without errors `1 << order` bits.
///
/// # Errors
///
/// EFBIG if a refcount does not fit, or the refcount table would be too large; nothing was changed
/// then.
pub(crate) fn set_refcount_order(file: &dyn ImageFile, roots: &Roots, order: u32) -> Result<()> {
    let without = Roots {
        refcount_table: Region {
            at: 0,
            len_bytes: 0,
        },
        refcount_order: order,
        ..roots.clone()
    };
    let counted = count(file, &without, &mut FindingSink::new(&mut |_| {}))?;
    // Before the first write: a refcount that does not fit rejects the change.
    check_values(&without, &counted)?;
    let tree = NewTree::plan(&without, &counted, free_end(file, roots, &counted)?)?;
    let refcount_table = tree.write(file, &without, &counted)?;
    let mut raw = read_raw(file)?;
    raw.refcount_order = order.into();
    raw.refcount_table_offset = refcount_table.at.into();
    // The table has at most 8 MiB.
    let clusters = refcount_table.len_bytes >> roots.cluster_bits;
    raw.refcount_table_clusters = (clusters as u32).into();
    let fields = offset_of!(RawHeader, refcount_table_offset)..V3_BYTES_MIN;
    let bytes = &raw.as_bytes()[fields.clone()];
    // One sector: width and place of the tree change at once.
    file.write(&[IoSlice::new(bytes)], fields.start as u64)?;
    file.sync_data()?;
    let after = Roots {
        refcount_table,
        ..without
    };
    let counted = count(file, &after, &mut FindingSink::new(&mut |_| {}))?;
    let mut refcounts = RefcountFile::read(file, &after)?;
    // Leaked clusters are free now.
    align_copied_flags(file, &after, &counted, &mut refcounts, &mut |_| {}).map(drop)
}

/// Returns the first cluster behind all that have references or a refcount: the old tree is among
/// them. On a device the image may end long before the file does.
fn free_end(file: &dyn ImageFile, roots: &Roots, counted: &CountedReferences) -> Result<u64> {
    let mut old = RefcountFile::read(file, roots)?;
    let mut end = counted.counts.used().last().map_or(1, |last| last + 1);
    while let Some(in_use) = old.next_in_use(end)? {
        end = in_use + 1;
    }
    Ok(end)
}

fn check_values(roots: &Roots, counted: &CountedReferences) -> Result<()> {
    let max = roots.refcount_max();
    let mut used = counted.counts.used();
    match used.find(|cluster| counted.counts.get(*cluster) > max) {
        None => Ok(()),
        Some(cluster) => {
            let (at, value) = (cluster << roots.cluster_bits, counted.counts.get(cluster));
            let bits = 1u32 << roots.refcount_order;
            let why =
                format!("the cluster at {at:#x} has {value} references, too many for {bits} bits");
            Err(Error::new(Errno::FBIG, why))
        }
    }
}

/// The place of a new refcount tree: its blocks, then its table.
struct NewTree {
    /// Number of clusters that a block describes, as a power of two.
    block_bits: u32,
    /// Indices of the blocks, in order.
    blocks: BTreeSet<u64>,
    /// The clusters of blocks and table.
    clusters: Range<u64>,
}

impl NewTree {
    fn plan(roots: &Roots, counted: &CountedReferences, start: u64) -> Result<Self> {
        let block_bits = roots.cluster_bits + 3 - roots.refcount_order;
        let mut blocks: BTreeSet<u64> = counted
            .counts
            .used()
            .map(|cluster| cluster >> block_bits)
            .collect();
        let mut table_clusters = 0;
        loop {
            let end = start + blocks.len() as u64 + table_clusters;
            let before = (blocks.len(), table_clusters);
            blocks.extend(start >> block_bits..=end >> block_bits);
            let entries = blocks.last().map_or(0, |last| last + 1);
            table_clusters = (entries * 8).div_ceil(roots.cluster_bytes());
            if table_clusters << roots.cluster_bits > REFCOUNT_TABLE_BYTES_MAX {
                let why = "the refcount table would be larger than 8 MiB";
                return Err(Error::new(Errno::FBIG, why));
            }
            if (blocks.len(), table_clusters) == before {
                return Ok(Self {
                    block_bits,
                    blocks,
                    clusters: start..end,
                });
            }
        }
    }

    /// Writes the tree, durably; returns its table.
    fn write(
        &self,
        file: &dyn ImageFile,
        roots: &Roots,
        counted: &CountedReferences,
    ) -> Result<Region> {
        let cluster = roots.cluster_bytes() as usize;
        let blocks = self.blocks.len() as u64;
        let table_at = (self.clusters.start + blocks) << roots.cluster_bits;
        let end = self.clusters.end << roots.cluster_bits;
        let mut table = vec![0; (end - table_at) as usize];
        for (number, index) in (self.clusters.start..).zip(&self.blocks) {
            let mut bytes = vec![0; cluster];
            for entry in 0..1 << self.block_bits {
                let described = (index << self.block_bits) + entry;
                let value = if self.clusters.contains(&described) {
                    1
                } else {
                    counted.counts.get(described)
                };
                if value > 0 {
                    refcount_block::put(&mut bytes, roots.refcount_order, entry, value);
                }
            }
            let at = number << roots.cluster_bits;
            file.write(&[IoSlice::new(&bytes)], at)?;
            let slot = *index as usize * 8;
            table[slot..slot + 8].copy_from_slice(&at.to_be_bytes());
        }
        file.write(&[IoSlice::new(&table)], table_at)?;
        file.sync_data()?;
        Ok(Region {
            at: table_at,
            len_bytes: table.len() as u64,
        })
    }
}
