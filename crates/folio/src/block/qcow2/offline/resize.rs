//! Resizes the disk of an image: a new L1 table where needed, then the size in the header.

use super::change::{TableChange, entry_bytes, read_entries, write_disk};
use super::create::too_large;
use crate::base::{Detail, Error, Result};
use crate::block::Device;
use crate::block::file::ImageFile;
use crate::block::image::Preallocation;
use crate::block::qcow2::check::RefcountFile;
use crate::block::qcow2::disk::Qcow2Device;
use crate::block::qcow2::layout::bitmaps;
use crate::block::qcow2::layout::raw_header::{L1_BYTES_MAX, SIZE_FIELD};
use crate::block::qcow2::layout::roots::{L1, Region, Roots};
use crate::block::qcow2::layout::table::{COMPRESSED, COPIED, OFFSET_MASK};
use std::io::IoSlice;

/// Resizes the disk in `file` to `len_bytes` bytes. The new part reads as zeros; the part cut off
/// is lost. Bitmaps, which are for the old size, are marked in-use. `open` opens the image in
/// `file`, which no device has open yet.
///
/// # Errors
///
/// EOPNOTSUPP for snapshots without a size (version 2), and for a smaller disk with an external
/// data file; EINVAL for preallocation of a smaller disk; EFBIG for a size that clusters of this
/// size cannot map.
pub(crate) fn resize(
    file: &dyn ImageFile,
    len_bytes: u64,
    preallocation: Preallocation,
    open: &mut dyn FnMut() -> Result<Qcow2Device>,
) -> Result<()> {
    let roots = Roots::read(file)?;
    if roots.version < 3 && !roots.snapshots.is_empty() {
        let what = "resizing a version 2 image with snapshots";
        return Err(Error::unsupported(what).about(Detail::SnapshotsOfVersion2));
    }
    let l1_entries = len_bytes.div_ceil(roots.l2_covers_bytes());
    if l1_entries * 8 > L1_BYTES_MAX {
        return Err(too_large());
    }
    if len_bytes > roots.len_bytes {
        // Before the size changes: the bitmaps describe the old one.
        bitmaps::mark_in_use(file)?;
        return grow(file, len_bytes, preallocation, open);
    }
    if roots.has_data_file {
        return Err(Error::unsupported(
            "shrinking an image with an external data file",
        ));
    }
    if preallocation != Preallocation::Off {
        return Err(Preallocation::without_growth());
    }
    if len_bytes == roots.len_bytes {
        return Ok(());
    }
    bitmaps::mark_in_use(file)?;
    shrink(file, len_bytes)
}

/// Grows the L1 table, then makes the new part read as zeros, then writes the new size.
fn grow(
    file: &dyn ImageFile,
    len_bytes: u64,
    preallocation: Preallocation,
    open: &mut dyn FnMut() -> Result<Qcow2Device>,
) -> Result<()> {
    let mut change = TableChange::begin(file)?;
    let mut after = change.roots().clone();
    let (old_bytes, covers) = (after.len_bytes, after.l2_covers_bytes());
    let entries = len_bytes.div_ceil(covers) as usize;
    let old = read_entries(file, after.l1.region())?;
    let mut l1 = old.clone();
    // Entries after the disk's own may name a virtual machine's state, which is not part of the
    // disk.
    l1.truncate(old_bytes.div_ceil(covers) as usize);
    l1.resize(entries.max(old.len()), 0);
    if l1 != old {
        after.l1 = L1 {
            at: change.put_table(&entry_bytes(&l1))?,
            entries: l1.len() as u64,
        };
        after.refcount_table = change.roots().refcount_table;
        change.commit(&after, &mut |file| write_disk(file, &after))?;
    }
    let mut device = open()?;
    if let Some(data) = &device.data_file
        && data.file.len_bytes()? < len_bytes
    {
        data.file.set_len(len_bytes)?;
        data.file.sync_data()?;
    }
    // This device writes beyond the size in the header; no other reader does yet.
    device.geometry.len_bytes = len_bytes;
    let metadata = device.metadata.get_mut();
    metadata.geometry.len_bytes = len_bytes;
    metadata.l1.resize(entries, 0);
    device.zero_grown_part(old_bytes)?;
    device.preallocate(
        preallocation,
        old_bytes.next_multiple_of(after.cluster_bytes()),
    )?;
    // The new part reads as zeros, durably, before the header shows it.
    device.flush()?;
    device
        .file
        .write(&[IoSlice::new(&len_bytes.to_be_bytes())], SIZE_FIELD)?;
    device.file.sync_data()
}

/// Writes a new L1 table and a new last L2 table, without entries beyond the new end; one write of
/// the header makes both visible.
pub(crate) fn shrink(file: &dyn ImageFile, len_bytes: u64) -> Result<()> {
    let mut change = TableChange::begin(file)?;
    let mut after = change.roots().clone();
    let covers = after.l2_covers_bytes();
    let mut l1 = read_entries(file, after.l1.region())?;
    l1.truncate(len_bytes.div_ceil(covers) as usize);
    let mut last_l2 = Vec::new();
    if let Some(last) = l1.last_mut()
        && *last & OFFSET_MASK != 0
        && !len_bytes.is_multiple_of(covers)
    {
        let region = Region {
            at: *last & OFFSET_MASK,
            len_bytes: after.cluster_bytes(),
        };
        let mut l2 = read_entries(file, region)?;
        let clusters = (len_bytes % covers).div_ceil(after.cluster_bytes());
        let kept = clusters as usize * (after.l2_entry_bytes() / 8);
        l2[kept..].fill(0);
        *last = change.put_table(&entry_bytes(&l2))?;
        last_l2 = l2;
    }
    after.l1 = L1 {
        at: change.put_table(&entry_bytes(&l1))?,
        entries: l1.len() as u64,
    };
    after.len_bytes = len_bytes;
    after.refcount_table = change.roots().refcount_table;
    change.commit(&after, &mut |file| write_disk(file, &after))?;
    // Only now: before, the bytes are content of the disk. After a power cut in between, growing
    // zeroes them.
    zero_tail(file, &after, &last_l2, len_bytes)?;
    cut_file(file, &after)
}

/// Zeroes the rest of the cluster that the new end cuts, so that it reads as zeros when the disk
/// grows again. A cluster that is compressed or shared with a snapshot stays; growing zeroes it
/// then.
fn zero_tail(file: &dyn ImageFile, roots: &Roots, l2: &[u64], len_bytes: u64) -> Result<()> {
    let cluster = roots.cluster_bytes();
    let in_cluster = len_bytes % cluster;
    let index =
        (len_bytes % roots.l2_covers_bytes() / cluster) as usize * (roots.l2_entry_bytes() / 8);
    match l2.get(index) {
        Some(entry) if in_cluster != 0 && entry & COPIED != 0 && entry & COMPRESSED == 0 => {
            file.write_zeroes((entry & OFFSET_MASK) + in_cluster, cluster - in_cluster)
        }
        _ => Ok(()),
    }
}

/// Cuts free clusters off the end of the file.
fn cut_file(file: &dyn ImageFile, roots: &Roots) -> Result<()> {
    let mut refcounts = RefcountFile::read(file, roots)?;
    let mut end = file.len_bytes()?.div_ceil(roots.cluster_bytes());
    let old_end = end;
    while end > 1 && refcounts.get(end - 1)? == 0 {
        end -= 1;
    }
    if end == old_end {
        return Ok(());
    }
    file.set_len(end << roots.cluster_bits)?;
    file.sync_data()
}
