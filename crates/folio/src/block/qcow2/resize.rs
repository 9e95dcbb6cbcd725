//! A disk of another size in the same file: the L1 table made anew where it must be, then the
//! header that says so.

use super::super::host_file::HostFile;
use super::super::image::Chain;
use super::super::image_file::ImageFile;
use super::change::{Change, entry_bytes, read_entries, write_disk};
use super::check::RefcountFile;
use super::header::{L1_BYTES_MAX, SIZE_FIELD};
use super::roots::{L1, Region, Roots};
use super::table::COPIED;
use super::{Preallocation, Qcow2Device};
use crate::base::{Errno, Error, Result};
use std::io::IoSlice;
use std::path::Path;

const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;

/// Makes the disk in `file`, the image at `path`, `len_bytes` long. What is new reads as zeros;
/// what is cut off is lost.
///
/// Bitmaps, which are for the size there was, are marked as out of step.
///
/// Errors: EOPNOTSUPP for snapshots that do not tell their size (version 2), and for less with an
/// external data file; EFBIG for more than clusters of this size can map.
pub(in crate::block) fn resize(
    file: HostFile,
    path: &Path,
    chain: &mut Chain,
    len_bytes: u64,
    preallocation: Preallocation,
) -> Result<()> {
    let roots = Roots::read(&file)?;
    if roots.version < 3 && !roots.snapshots.is_empty() {
        return Err(Error::unsupported(
            "another size for a disk with snapshots in a version 2 image",
        ));
    }
    let l1_entries = len_bytes.div_ceil(roots.l2_covers_bytes());
    if l1_entries * 8 > L1_BYTES_MAX {
        return Err(Error::new(
            Errno::FBIG,
            "too large for clusters of this size",
        ));
    }
    if len_bytes > roots.len_bytes {
        super::bitmaps::mark_in_use(&file)?;
        return grow(file, path, chain, len_bytes, preallocation);
    }
    if roots.has_data_file {
        return Err(Error::unsupported(
            "a smaller disk with an external data file",
        ));
    }
    if preallocation != Preallocation::Off {
        return Err(Error::new(
            Errno::INVAL,
            "preallocation makes no sense for a smaller disk",
        ));
    }
    if len_bytes == roots.len_bytes {
        return Ok(());
    }
    super::bitmaps::mark_in_use(&file)?;
    shrink(&file, len_bytes)
}

/// First the L1 table has room, then what lies behind the old end reads as zeros, then the header
/// says the new size.
fn grow(
    file: HostFile,
    path: &Path,
    chain: &mut Chain,
    len_bytes: u64,
    preallocation: Preallocation,
) -> Result<()> {
    let mut change = Change::begin(&file)?;
    let mut after = change.roots().clone();
    let (old_bytes, covers) = (after.len_bytes, after.l2_covers_bytes());
    let entries = len_bytes.div_ceil(covers) as usize;
    let old = read_entries(&file, after.l1.region())?;
    let mut l1 = old.clone();
    // Behind the disk's own entries a machine's state may be left: not a part of the disk.
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
    let mut device = Qcow2Device::open(Box::new(file), path, chain)?;
    if let Some(data) = &device.data_file
        && data.file.len_bytes()? < len_bytes
    {
        data.file.set_len(len_bytes)?;
        data.file.sync_data()?;
    }
    // The device may reach behind the end that the header tells, nobody else does yet.
    device.geometry.len_bytes = len_bytes;
    let metadata = device.metadata.get_mut();
    metadata.geometry.len_bytes = len_bytes;
    metadata.l1.resize(entries, 0);
    device.zero_behind(old_bytes)?;
    device.preallocate(
        preallocation,
        old_bytes.next_multiple_of(after.cluster_bytes()),
    )?;
    super::super::Device::flush(&device)?;
    device
        .file
        .write(&[IoSlice::new(&len_bytes.to_be_bytes())], SIZE_FIELD)?;
    device.file.sync_data()
}

impl Qcow2Device {
    /// Makes what would show behind `old_bytes` zeros: the rest of a cluster, and what the backing
    /// file has there.
    fn zero_behind(&self, old_bytes: u64) -> Result<()> {
        let backing_bytes = self
            .backing
            .as_ref()
            .map_or(0, |backing| backing.len_bytes());
        let cluster_end = old_bytes.next_multiple_of(self.geometry.cluster_bytes());
        let end = cluster_end.max(backing_bytes).min(self.geometry.len_bytes);
        match end.checked_sub(old_bytes) {
            None | Some(0) => Ok(()),
            Some(len_bytes) => self.zero(old_bytes, len_bytes, false),
        }
    }
}

/// A new L1 table, and a new L2 table for the one that is cut, without what lies behind the new
/// end; one write of the header makes both visible.
fn shrink(file: &dyn ImageFile, len_bytes: u64) -> Result<()> {
    let mut change = Change::begin(file)?;
    let mut after = change.roots().clone();
    let covers = after.l2_covers_bytes();
    let mut l1 = read_entries(file, after.l1.region())?;
    l1.truncate(len_bytes.div_ceil(covers) as usize);
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
        zero_tail(file, &after, &l2, len_bytes)?;
        *last = change.put_table(&entry_bytes(&l2))?;
    }
    after.l1 = L1 {
        at: change.put_table(&entry_bytes(&l1))?,
        entries: l1.len() as u64,
    };
    after.len_bytes = len_bytes;
    after.refcount_table = change.roots().refcount_table;
    change.commit(&after, &mut |file| write_disk(file, &after))?;
    cut_file(file, &after)
}

/// Zeros behind the new end in the cluster that it cuts, so that they are there when the disk grows
/// again. A cluster that a snapshot has too, or that is compressed, stays: growing sees to it.
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
    match end < old_end {
        true => file
            .set_len(end << roots.cluster_bits)
            .and_then(|()| file.sync_data()),
        false => Ok(()),
    }
}
