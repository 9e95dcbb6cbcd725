//! Disk images: which of their bytes have a place already, so that a first write need not find one.

use super::fact::Fact;
use crate::text::reason;
use folio::block::{self, Allocation, OpenOptions};
use folio_pagecache::{ResidencyReport, residency};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Smaller files are not disk images.
const DISK_MIN: u64 = 1 << 20;
/// Runs of clusters that are looked at.
const RUNS_MAX: usize = 1_000_000;
/// Backing files that are looked at.
const CHAIN_MAX: usize = 256;
/// Endings that files of raw disks have.
const RAW_ENDINGS: [&str; 4] = ["img", "raw", "disk", "iso"];

/// What is allocated in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageFacts {
    /// `raw` or `qcow2`.
    pub format: &'static str,
    /// Size of the disk that was looked at.
    pub disk_bytes: u64,
    /// Stored in the image itself. For a raw image, the file's blocks show which parts are
    /// neither holes nor unwritten.
    pub stored_bytes: Option<u64>,
    /// Stored in a backing file alone: a first write copies it.
    pub backing_bytes: Option<u64>,
    /// Bytes in a cluster of qcow2.
    pub cluster_bytes: Option<u64>,
    /// Whether the whole disk was looked at.
    pub is_complete: bool,
    /// The backing files, the nearest first.
    pub backing_files: Vec<BackingFile>,
}

/// A backing file, before anything of it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackingFile {
    /// Its path.
    pub path: PathBuf,
    /// Space of the file on its disk, in bytes.
    pub allocated_bytes: u64,
    /// The part in memory; `None` if unknown.
    pub in_memory_bytes: Option<u64>,
}

/// What is allocated in `file`, if it is a disk image.
pub(super) fn probe(path: &Path, file: &File, size_bytes: u64) -> Option<Fact<ImageFacts>> {
    let mut magic = [0; 4];
    if file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"QFI\xfb" {
        return Some(qcow2(path).map_err(|error| reason(&error)));
    }
    let is_disk = size_bytes >= DISK_MIN && (is_named_disk(path) || holds_file_system(file));
    is_disk.then_some(Ok(ImageFacts {
        format: "raw",
        disk_bytes: size_bytes,
        stored_bytes: None,
        backing_bytes: None,
        cluster_bytes: None,
        is_complete: true,
        backing_files: Vec::new(),
    }))
}

fn is_named_disk(path: &Path) -> bool {
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    RAW_ENDINGS
        .iter()
        .any(|name| ending.eq_ignore_ascii_case(name))
}

/// A boot sector, or the magic number of ext4, xfs or btrfs.
fn holds_file_system(file: &File) -> bool {
    let has = |offset: u64, magic: &[u8]| {
        let mut found = vec![0; magic.len()];
        file.read_exact_at(&mut found, offset).is_ok() && found == magic
    };
    has(510, &[0x55, 0xaa])
        || has(1080, &[0x53, 0xef])
        || has(0, b"XFSB")
        || has(65600, b"_BHRfS_M")
}

fn qcow2(path: &Path) -> folio::Result<ImageFacts> {
    // Without a lock, so that an image in use can be examined; concurrent changes appear in their
    // old or new state.
    let options = OpenOptions {
        read_only: true,
        is_shared: true,
        ..OpenOptions::default()
    };
    let info = block::tools::info(path, &options)?;
    let backing_files = backing_files(info.backing_path, &options)?;
    let device = block::open(path, &options)?;
    let end = device.len_bytes();
    let (mut at, mut stored, mut backing, mut runs) = (0, 0, 0, 0);
    while at < end && runs < RUNS_MAX {
        let (extent, count) = device.map_entry(at, end - at)?;
        let count = count.clamp(1, end - at);
        match (extent.depth, extent.kind) {
            // A cluster that reads as zeros may be reserved or not; only one that is stored is
            // written in place.
            (0, Allocation::Data) => stored += count,
            (_, Allocation::Data) => backing += count,
            _ => {}
        }
        at += count;
        runs += 1;
    }
    Ok(ImageFacts {
        format: "qcow2",
        disk_bytes: at,
        stored_bytes: Some(stored),
        backing_bytes: Some(backing),
        cluster_bytes: info.qcow2.map(|qcow2| qcow2.cluster_bytes),
        is_complete: at == end,
        backing_files,
    })
}

/// Returns the files of a chain that starts at `next`.
fn backing_files(next: Option<PathBuf>, options: &OpenOptions) -> folio::Result<Vec<BackingFile>> {
    let mut files = Vec::new();
    let mut next = next;
    // A chain that is a loop fails when the image is opened.
    while let Some(path) = next.take_if(|_| files.len() < CHAIN_MAX) {
        let info = block::tools::info(&path, options)?;
        let residency = File::open(&path).and_then(|file| residency(&file));
        files.push(BackingFile {
            path,
            allocated_bytes: info.allocated_bytes,
            in_memory_bytes: match residency {
                Ok(ResidencyReport::Known(found)) => Some(found.resident_bytes),
                _ => None,
            },
        });
        next = info.backing_path;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::block::ImageFormat;

    #[test]
    fn an_empty_qcow2_stores_nothing_until_it_is_written() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("disk.qcow2");
        let device = block::create(&path, ImageFormat::Qcow2, 8 << 20).unwrap();
        let look = || {
            probe(&path, &File::open(&path).unwrap(), 0)
                .unwrap()
                .unwrap()
        };
        let found = look();
        assert_eq!(
            (found.format, found.disk_bytes, found.stored_bytes),
            ("qcow2", 8 << 20, Some(0))
        );
        assert!(
            found
                .cluster_bytes
                .is_some_and(|bytes| bytes.is_power_of_two())
        );
        device.write_at(&vec![1; 1 << 20], 0).unwrap();
        device.flush().unwrap();
        drop(device);
        assert_eq!(look().stored_bytes, Some(1 << 20));
    }

    #[test]
    fn raw_disks_are_known_by_name_or_by_what_they_hold() {
        let folder = tempfile::TempDir::new().unwrap();
        let probe_file = |name: &str, at: u64, bytes: &[u8]| {
            let path = folder.path().join(name);
            let file = File::create_new(&path).unwrap();
            file.set_len(2 << 20).unwrap();
            file.write_all_at(bytes, at).unwrap();
            probe(&path, &File::open(&path).unwrap(), 2 << 20)
                .map(|found| found.map(|found| found.format))
        };
        assert_eq!(probe_file("disk.img", 0, b""), Some(Ok("raw")));
        assert_eq!(probe_file("disk", 510, &[0x55, 0xaa]), Some(Ok("raw")));
        assert_eq!(probe_file("volume", 1080, &[0x53, 0xef]), Some(Ok("raw")));
        assert_eq!(probe_file("notes.txt", 0, b"hello"), None);
        assert!(
            probe_file("bad", 0, b"QFI\xfb\xff\xff\xff\xff")
                .unwrap()
                .is_err(),
            "damage is reported"
        );
    }
}
