//! Files in a folder, dropped from the page cache and cached again by a command.

use crate::evidence::label;
use crate::measure::{Meter, touch_memory};
use crate::report::{Evidence, Sample, with_context};
use crate::run::Case;
use folio_pagecache::{Scan, drop_files, survey};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

pub(super) const LARGE_FILES: u64 = 8;
const FILES_IN_A_FOLDER: u64 = 200;
/// The least size of a small file in bytes, and the most bytes above it.
const SMALL_LEAST: u64 = 200;
const SMALL_MORE: u64 = 16 << 10;
/// The job: from cold until all files are cached.
pub(super) const JOB: &str = "until all is in the page cache";
/// Memory that is used before each run, at most.
const TOUCHED_MIB_MAX: u64 = 3 << 10;
/// Number of folders of an aged tree.
const AGED_FOLDERS: u64 = 16;
/// Bytes of the smallest of them, and its number of doublings; the largest has twice the result.
const AGED_LEAST: u64 = 4 << 10;
const AGED_DOUBLED: u64 = 5;
/// So many are written at the same time, so much of each in its turn.
const AGED_AT_ONCE: usize = 8;
const AGED_PIECE: usize = 16 << 10;

/// Files in a folder.
pub(super) struct Tree {
    pub(super) folder: PathBuf,
    pub(super) bytes: u64,
}

impl Tree {
    pub(super) fn large(folder: &Path, bytes: u64) -> Result<Self, String> {
        let files = (0..LARGE_FILES).map(|number| (format!("{number}"), bytes / LARGE_FILES));
        Self::make(folder, files)
    }

    pub(super) fn small(folder: &Path, count: u64) -> Result<Self, String> {
        // Sizes that are spread, and the same each time.
        let size = |number: u64| SMALL_LEAST + number.wrapping_mul(7919) % SMALL_MORE;
        let name = |number: u64| format!("{}/{number}", number / FILES_IN_A_FOLDER);
        Self::make(
            folder,
            (0..count).map(|number| (name(number), size(number))),
        )
    }

    /// Makes them, written to the disk when it returns.
    fn make(folder: &Path, files: impl Iterator<Item = (String, u64)>) -> Result<Self, String> {
        let part = filling();
        let mut bytes = 0;
        for (name, size) in files {
            let path = folder.join(name);
            let parent = path.parent().unwrap_or(folder);
            std::fs::create_dir_all(parent).map_err(with_context(parent.display()))?;
            let mut file =
                std::fs::File::create_new(&path).map_err(with_context(path.display()))?;
            let mut left = size as usize;
            while left > 0 {
                let piece = &part[..left.min(part.len())];
                std::io::Write::write_all(&mut file, piece)
                    .map_err(with_context(path.display()))?;
                left -= piece.len();
            }
            bytes += size;
        }
        sync(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            bytes,
        })
    }

    /// Makes `count` files as on a disk in long use: unlinks every second file of those
    /// written first, and writes as many new files into the gaps, several at the same time.
    ///
    /// To be made where blocks are found when write(2) is called (`nodelalloc`): else the kernel
    /// would keep the pieces of a file together.
    pub(super) fn aged(folder: &Path, count: u64) -> Result<Self, String> {
        let part = filling();
        for number in 0..AGED_FOLDERS {
            let path = folder.join(number.to_string());
            std::fs::create_dir_all(&path).map_err(with_context(path.display()))?;
        }
        let path = |number| {
            folder
                .join(scattered(number, AGED_FOLDERS).to_string())
                .join(number.to_string())
        };
        for number in 0..count {
            let path = path(number);
            std::fs::write(&path, &part[..aged_size(number) as usize])
                .map_err(with_context(path.display()))?;
        }
        sync(folder)?;
        for number in (0..count).step_by(2) {
            let path = path(number);
            std::fs::remove_file(&path).map_err(with_context(path.display()))?;
        }
        sync(folder)?;
        let others: Vec<u64> = (count..count + count.div_ceil(2)).collect();
        for numbers in others.chunks(AGED_AT_ONCE) {
            let opened = numbers.iter().map(|number| {
                let path = path(*number);
                let file =
                    std::fs::File::create_new(&path).map_err(with_context(path.display()))?;
                Ok((file, &part[..aged_size(*number) as usize]))
            });
            let mut files = opened.collect::<Result<Vec<_>, String>>()?;
            while !files.is_empty() {
                for (file, left) in &mut files {
                    let piece = &left[..left.len().min(AGED_PIECE)];
                    std::io::Write::write_all(file, piece)
                        .map_err(with_context(folder.display()))?;
                    *left = &left[piece.len()..];
                }
                files.retain(|(_, left)| !left.is_empty());
            }
        }
        sync(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            bytes: Self::aged_bytes(count),
        })
    }

    /// Returns the total bytes of such a tree.
    pub(super) fn aged_bytes(count: u64) -> u64 {
        let kept = (0..count).filter(|number| number % 2 == 1);
        kept.chain(count..count + count.div_ceil(2))
            .map(aged_size)
            .sum()
    }

    /// Drops all files from the page cache, and returns the share that stayed cached.
    pub(super) fn cold(&self) -> Result<f64, String> {
        let dropped = drop_files(
            &Scan::default(),
            std::slice::from_ref(&self.folder),
            true,
            &AtomicU64::new(0),
        );
        if let Some((path, reason)) = dropped.failures.first() {
            return Err(format!("{}: {reason}", path.display()));
        }
        self.cached()
            .ok_or_else(|| "the kernel does not report what is in memory".to_owned())
    }

    /// Opens all files; returns each with its size.
    pub(super) fn open(&self) -> Result<Vec<(std::fs::File, u64)>, String> {
        let found = Scan::default()
            .files(std::slice::from_ref(&self.folder))
            .found;
        let open = |path: &Path| {
            let file = std::fs::File::open(path)?;
            let len_bytes = file.metadata()?.len();
            Ok((file, len_bytes))
        };
        let files = found.iter().map(|found| {
            open(&found.path)
                .map_err(|error: std::io::Error| format!("{}: {error}", found.path.display()))
        });
        files.collect()
    }

    /// Returns the share of it that is cached.
    pub(super) fn cached(&self) -> Option<f64> {
        let states = survey(
            &Scan::default(),
            std::slice::from_ref(&self.folder),
            &AtomicU64::new(0),
        );
        let mut resident = 0;
        for state in &states.found {
            resident += state.residency()?.resident_bytes;
        }
        Some(resident as f64 / self.bytes.max(1) as f64)
    }

    /// `warmer` brings all of it in, after it was put out of memory, into pages that were in use
    /// just before.
    pub(super) fn way<'a>(&'a self, warmer: Warmer) -> Case<'a> {
        Case::new(JOB, warmer.name, move || {
            let cached_before = self.cold()?;
            touch_memory((self.bytes >> 20).clamp(16, TOUCHED_MIB_MAX))?;
            let mut sample = self.time(&warmer)?;
            let share = sample.evidence.cached_after.unwrap_or(0.0);
            // Other processes may have evicted some of it again: only the cached share counts.
            sample.value = share * self.bytes as f64 / f64::from(1 << 20) / sample.value.max(1e-9);
            sample.evidence.cached_before = Some(cached_before);
            sample.label = sample
                .label
                .or_else(|| label(self.bytes, sample.evidence, true));
            Ok(sample)
        })
    }

    /// Runs a command that brings all of it in: seconds.
    pub(super) fn time(&self, warmer: &Warmer) -> Result<Sample, String> {
        let mut meter = Meter::default();
        meter.run(warmer.program.as_os_str(), &warmer.arguments)?;
        let cached_after = self.cached();
        let evidence = Evidence {
            cached_after,
            cpu_seconds: Some(meter.cost.cpu_seconds),
            ..Evidence::default()
        };
        let is_partly = cached_after.is_none_or(|share| share < 0.99);
        let label = is_partly.then_some("not all of it stayed in memory");
        Ok(Sample {
            value: meter.cost.seconds,
            evidence,
            label,
        })
    }
}

/// A command that brings a tree into the page cache.
#[derive(Clone)]
pub(super) struct Warmer {
    pub(super) name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Warmer {
    /// `program`, called with `words` and a path.
    pub(super) fn new(name: &'static str, program: &Path, words: &[&str], path: &Path) -> Self {
        let arguments = words
            .iter()
            .map(OsString::from)
            .chain([path.into()])
            .collect();
        Self {
            name,
            program: program.to_owned(),
            arguments,
        }
    }
}

/// The content of the files.
fn filling() -> Vec<u8> {
    (0..1 << 20)
        .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

fn aged_size(number: u64) -> u64 {
    let least = AGED_LEAST << scattered(number + 1, AGED_DOUBLED + 1);
    least + scattered(number + 2, least)
}

/// A number below `bound` that looks like one at random and is the same each time: SplitMix64.
pub(super) fn scattered(number: u64, bound: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ mixed >> 31) % bound
}

/// Writes the whole file system of `folder` to the disk.
fn sync(folder: &Path) -> Result<(), String> {
    let opened = std::fs::File::open(folder).map_err(with_context(folder.display()))?;
    rustix::fs::syncfs(opened).map_err(with_context(folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_as_large_as_they_say() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::small(&dir.path().join("small"), 450).expect("files");
        let states = survey(
            &Scan::default(),
            std::slice::from_ref(&tree.folder),
            &AtomicU64::new(0),
        );
        assert_eq!(states.found.len(), 450);
        assert_eq!(
            states
                .found
                .iter()
                .map(|state| state.size_bytes)
                .sum::<u64>(),
            tree.bytes
        );
        assert!(tree.cached().is_some_and(|share| share <= 1.0));
        let tree = Tree::aged(&dir.path().join("aged"), 101).expect("files");
        let states = survey(
            &Scan::default(),
            std::slice::from_ref(&tree.folder),
            &AtomicU64::new(0),
        );
        assert_eq!(states.found.len(), 101);
        assert_eq!(
            states
                .found
                .iter()
                .map(|state| state.size_bytes)
                .sum::<u64>(),
            tree.bytes
        );
    }
}
