//! The extents of a file on its file system, from FIEMAP.

use super::fact::Fact;
use crate::text::reason;
use folio_pagecache::{Extent, extents};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Maximum number of extents examined; the rest of the file is unknown.
const EXTENTS_MAX: usize = 200_000;

/// `FIEMAP_EXTENT_*` of linux/fiemap.h.
pub(crate) const UNKNOWN: u32 = 0x2;
pub(crate) const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const ENCRYPTED: u32 = 0x80;
pub(crate) const INLINE: u32 = 0x200;
pub(crate) const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// Bytes of a file by what the file system has for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Of the file, as far as it was looked at.
    pub size_bytes: u64,
    /// Disk space that the file takes, by stat(2).
    pub allocated_bytes: u64,
    /// Nothing is there: reads as zeros, a write has to find a place.
    pub hole_bytes: u64,
    /// A place is reserved, nothing is written: a write has to be noted in the extent tree.
    pub unwritten_bytes: u64,
    /// Written to memory alone, without a place yet.
    pub delayed_bytes: u64,
    /// Stored compressed.
    pub compressed_bytes: u64,
    /// Stored together with other files: a write has to copy.
    pub shared_bytes: u64,
    /// Runs of extents that follow each other on the device as they do in the file.
    pub fragments: u64,
    /// Bytes in these.
    pub placed_bytes: u64,
    /// Whether the whole file was looked at.
    pub is_complete: bool,
}

/// Reads the extents of `file`.
pub(super) fn probe(file: &File, size_bytes: u64) -> Fact<Blocks> {
    let found = match extents(file, EXTENTS_MAX) {
        Ok(found) => found,
        Err(error) => return Err(why(&error)),
    };
    let allocated_bytes = file
        .metadata()
        .map_or(0, |metadata| metadata.blocks().saturating_mul(512));
    Ok(Blocks {
        allocated_bytes,
        ..Blocks::of(&found, size_bytes, found.len() < EXTENTS_MAX)
    })
}

fn why(error: &std::io::Error) -> String {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
            "the file system does not report the extents of a file (no FIEMAP)".to_owned()
        }
        _ => format!("FIEMAP: {}", reason(error)),
    }
}

impl Blocks {
    /// Sums up the extents of a file, in its order.
    pub(crate) fn of(found: &[Extent], size_bytes: u64, is_complete: bool) -> Self {
        let mut sum = Self {
            is_complete,
            ..Self::default()
        };
        let mut at = 0;
        let mut before: Option<&Extent> = None;
        for extent in found {
            // What is reserved beyond the end is none of the file.
            let end = extent
                .offset
                .saturating_add(extent.len_bytes)
                .min(size_bytes);
            let len_bytes = end.saturating_sub(extent.offset.max(at));
            sum.hole_bytes += extent.offset.min(size_bytes).saturating_sub(at);
            at = at.max(end);
            let has = |flag: u32| extent.flags & flag != 0;
            for (flag, bytes) in [
                (UNWRITTEN, &mut sum.unwritten_bytes),
                (DELALLOC, &mut sum.delayed_bytes),
                (SHARED, &mut sum.shared_bytes),
            ] {
                *bytes += if has(flag) { len_bytes } else { 0 };
            }
            if has(ENCODED) && !has(ENCRYPTED) {
                sum.compressed_bytes += len_bytes;
            }
            if len_bytes == 0 || has(UNKNOWN | DELALLOC | INLINE | ENCODED) {
                continue;
            }
            sum.placed_bytes += len_bytes;
            if !before.is_some_and(|before| follows(before, extent)) {
                sum.fragments += 1;
            }
            before = Some(extent);
        }
        if is_complete {
            sum.hole_bytes += size_bytes.saturating_sub(at);
            at = size_bytes;
        }
        sum.size_bytes = at;
        sum
    }

    /// Bytes that have a place and were written.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.size_bytes
            .saturating_sub(self.hole_bytes + self.delayed_bytes)
    }
}

/// Whether a disk reads on without a seek: at once, or after a gap that the file has as well.
fn follows(before: &Extent, next: &Extent) -> bool {
    let gap = next.offset.wrapping_sub(before.offset);
    next.place == before.place.wrapping_add(before.len_bytes)
        || next.place.wrapping_sub(before.place) == gap
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, place: u64, len_bytes: u64, flags: u32) -> Extent {
        let mut extent = Extent::default();
        (extent.offset, extent.place, extent.len_bytes, extent.flags) =
            (offset, place, len_bytes, flags);
        extent
    }

    const K: u64 = 1024;

    #[test]
    fn holes_are_what_no_extent_covers() {
        let found = [
            extent(0, 100 * K, 4 * K, 0),
            extent(16 * K, 116 * K, 4 * K, 0),
        ];
        let sum = Blocks::of(&found, 64 * K, true);
        assert_eq!(
            (sum.hole_bytes, sum.fragments, sum.placed_bytes),
            (56 * K, 1, 8 * K)
        );
        assert_eq!(Blocks::of(&[], 64 * K, true).hole_bytes, 64 * K);
        assert_eq!(
            Blocks::of(&[], 0, true),
            Blocks {
                is_complete: true,
                ..Blocks::default()
            }
        );
        let cut = Blocks::of(&found, 64 * K, false);
        assert_eq!(
            (cut.size_bytes, cut.hole_bytes),
            (20 * K, 12 * K),
            "what was not looked at is no hole"
        );
    }

    #[test]
    fn reserved_extent_ends_at_the_file_size() {
        let sum = Blocks::of(&[extent(0, 0, 128 * K, UNWRITTEN)], 5 * K, true);
        assert_eq!(
            (sum.unwritten_bytes, sum.hole_bytes, sum.mapped_bytes()),
            (5 * K, 0, 5 * K)
        );
    }

    #[test]
    fn fragments_are_runs_on_the_device() {
        let scattered: Vec<_> = (0..10)
            .map(|n| extent(n * 4 * K, (100 - n) * 64 * K, 4 * K, 0))
            .collect();
        assert_eq!(Blocks::of(&scattered, 40 * K, true).fragments, 10);
        let split: Vec<_> = (0..10)
            .map(|n| extent(n * 4 * K, K + n * 4 * K, 4 * K, 0))
            .collect();
        assert_eq!(
            Blocks::of(&split, 40 * K, true).fragments,
            1,
            "extents that follow each other"
        );
    }

    #[test]
    fn flags_are_counted_in_bytes() {
        let found = [
            extent(0, 0, 4 * K, DELALLOC | UNKNOWN),
            extent(4 * K, 8 * K, 4 * K, ENCODED),
            extent(8 * K, 0, 4 * K, ENCODED | ENCRYPTED),
            extent(12 * K, 64 * K, 4 * K, SHARED),
        ];
        let sum = Blocks::of(&found, 16 * K, true);
        assert_eq!(
            (sum.delayed_bytes, sum.compressed_bytes, sum.shared_bytes),
            (4 * K, 4 * K, 4 * K)
        );
        assert_eq!((sum.fragments, sum.mapped_bytes()), (1, 12 * K));
    }

    #[test]
    fn invalid_extents_are_harmless() {
        let wild = [
            extent(u64::MAX, u64::MAX, u64::MAX, 0),
            extent(0, u64::MAX, u64::MAX, 0),
        ];
        let sum = Blocks::of(&wild, 8 * K, true);
        assert!(
            sum.size_bytes <= 8 * K && sum.hole_bytes <= 16 * K,
            "{sum:?}"
        );
    }
}
