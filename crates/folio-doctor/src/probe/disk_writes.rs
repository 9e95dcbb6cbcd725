//! The disk probe: whether the disk below a file system has to find a place for a block when it is
//! first written, as a sparse or fresh image of a virtual machine and a thin volume do.
//!
//! Both times blocks are written to an area, they are reserved and unwritten in the file system,
//! which therefore does the same for both. In between, `FALLOC_FL_ZERO_RANGE` makes them unwritten
//! again where they are. So the difference is the disk's. Many blocks share a flush, which takes
//! longer than the allocation of one.

use super::blocks::{INLINE, UNKNOWN};
use super::fact::Fact;
use crate::text::reason;
use folio_pagecache::extents;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Areas where writes are timed.
const AREAS: u64 = 12;
/// Blocks that are written in an area.
const BLOCKS: u64 = 64;
/// Bytes from block to block: a cluster of qcow2, so that each needs one of its own.
const STRIDE: u64 = 64 << 10;
/// Bytes of a block.
const BLOCK: usize = 4096;
/// The probe takes at most this part of the free space: a file system that is nearly full has few
/// blocks that were never written.
const SHARE_MAX: u64 = 4;

/// Times of 64 writes of 4 KiB with one fdatasync(2), to one area of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskWrites {
    /// The first ones, unless a deleted file was there.
    pub first_ns: u64,
    /// Over the same blocks.
    pub again_ns: u64,
}

/// Writes into an unnamed file in `folder`.
pub(super) fn probe(folder: &Path) -> Fact<Vec<DiskWrites>> {
    let area_len = BLOCKS * STRIDE;
    let len_bytes = AREAS * area_len;
    let free = rustix::fs::statvfs(folder)
        .map(|found| found.f_bavail.saturating_mul(found.f_frsize))
        .map_err(|error| reason(&error))?;
    if free / SHARE_MAX < len_bytes {
        let why = "too little space is free beside it to find blocks that were never written";
        return Err(why.into());
    }
    let tried = || -> io::Result<Fact<Vec<DiskWrites>>> {
        let file = tempfile::tempfile_in(folder)?;
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len_bytes).is_err() {
            return Ok(Err("the file system cannot reserve space".into()));
        }
        file.sync_all()?;
        let mut found = Vec::new();
        for area in (0..AREAS).map(|number| number * area_len) {
            let first_ns = write_ns(&file, area)?;
            let place = place(&file, area)?;
            let zero = FallocateFlags::ZERO_RANGE;
            if rustix::fs::fallocate(&file, zero, area, area_len).is_err() {
                return Ok(Err(
                    "the file system cannot make a block unwritten again".into()
                ));
            }
            file.sync_all()?;
            let again_ns = write_ns(&file, area)?;
            if place.is_none() || self::place(&file, area)? != place {
                return Ok(Err("the file system moves blocks that are zeroed".into()));
            }
            found.push(DiskWrites { first_ns, again_ns });
        }
        Ok(Ok(found))
    };
    tried().map_err(|error| reason(&error))?
}

/// Writes the blocks of an area, and syncs them; returns the time.
fn write_ns(file: &File, area: u64) -> io::Result<u64> {
    let start = Instant::now();
    for block in 0..BLOCKS {
        file.write_all_at(&[0x5a; BLOCK], area + block * STRIDE)?;
    }
    file.sync_data()?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Returns where on the disk the byte at `at` is; none if that is unknown.
fn place(file: &File, at: u64) -> io::Result<Option<u64>> {
    // A written block between unwritten ones is an extent of its own.
    let found = extents(file, 4 * (AREAS * BLOCKS) as usize)?;
    let extent = found
        .iter()
        .find(|extent| extent.offset <= at && at - extent.offset < extent.len_bytes);
    Ok(extent
        .filter(|extent| extent.flags & (UNKNOWN | INLINE) == 0)
        .map(|extent| extent.place + (at - extent.offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_writes_go_to_one_area() {
        let folder = tempfile::tempdir().unwrap();
        // The file system of the test decides; each reason is a sentence.
        match probe(folder.path()) {
            Ok(found) => {
                assert_eq!(found.len() as u64, AREAS);
                assert!(found.iter().all(|one| one.first_ns > 0 && one.again_ns > 0));
            }
            Err(why) => assert!(why.contains(' '), "{why}"),
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
