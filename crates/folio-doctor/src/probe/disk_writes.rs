//! The disk probe: whether the disk below a file system has to find a place for a block when it is
//! first written, as a sparse or fresh image of a virtual machine and a thin volume do.
//!
//! Both writes of a place go into reserved, unwritten space of the file system, which therefore
//! does the same for both. After the first one, `FALLOC_FL_ZERO_RANGE` makes the block unwritten
//! again where it is. So the difference is the disk's.

use super::blocks::{INLINE, UNKNOWN};
use super::fact::Fact;
use super::rewrite::sync_write_ns;
use crate::text::reason;
use folio_pagecache::extents;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io;
use std::path::Path;

/// Places where writes are timed.
const PLACES: u64 = 12;
/// Bytes from place to place: the largest cluster of qcow2, so that each has a cluster of its own.
const STRIDE: u64 = 2 << 20;
/// The probe takes at most this share of the free space: a file system that is nearly full has no
/// blocks that were never written.
const SHARE_MAX: u64 = 4;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Times of two writes of 4 KiB with fdatasync(2) to one place of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskWrites {
    /// The first one, unless a deleted file was there.
    pub first_ns: u64,
    /// Over the same block.
    pub again_ns: u64,
}

/// Writes into an unnamed file in `folder`.
pub(super) fn probe(folder: &Path) -> Fact<Vec<DiskWrites>> {
    let len_bytes = PLACES * STRIDE;
    let free = rustix::fs::statvfs(folder)
        .map(|found| found.f_bavail.saturating_mul(found.f_frsize))
        .map_err(|error| reason(&error))?;
    if free / SHARE_MAX < len_bytes {
        return Err(
            "too little space is free beside it to find blocks that were never written".into(),
        );
    }
    let tried = || -> io::Result<Fact<Vec<DiskWrites>>> {
        let file = tempfile::tempfile_in(folder)?;
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len_bytes).is_err() {
            return Ok(Err("the file system cannot reserve space".into()));
        }
        file.sync_all()?;
        let mut found = Vec::new();
        for number in 0..PLACES {
            let at = number * STRIDE;
            let first_ns = sync_write_ns(&file, at)?;
            let place = place(&file, at)?;
            let zeroed = rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, at, BLOCK);
            if zeroed.is_err() {
                return Ok(Err(
                    "the file system cannot make a block unwritten again".into()
                ));
            }
            file.sync_all()?;
            let again_ns = sync_write_ns(&file, at)?;
            if place.is_none() || self::place(&file, at)? != place {
                return Ok(Err("the file system moves blocks that are zeroed".into()));
            }
            found.push(DiskWrites { first_ns, again_ns });
        }
        Ok(Ok(found))
    };
    tried().map_err(|error| reason(&error))?
}

/// Returns where on the disk the byte at `at` is; none if that is unknown.
fn place(file: &File, at: u64) -> io::Result<Option<u64>> {
    // A written block between unwritten ones is an extent of its own.
    let found = extents(file, 4 * PLACES as usize)?;
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
    fn both_writes_go_to_one_place() {
        let folder = tempfile::tempdir().unwrap();
        // The file system of the test decides; each reason is a sentence.
        match probe(folder.path()) {
            Ok(found) => {
                assert_eq!(found.len() as u64, PLACES);
                assert!(found.iter().all(|one| one.first_ns > 0 && one.again_ns > 0));
            }
            Err(why) => assert!(why.contains(' '), "{why}"),
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
