//! Files in a folder, dropped from the page cache and cached again by a command.

use crate::command::{Meter, touch_memory};
use crate::evidence::{label, mib_per_second};
use crate::outcome::{Context, Outcome};
use crate::random::{Random, pattern};
use crate::report::Sample;
use folio_pagecache::{Scan, drop_files, survey};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
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
    pub(super) fn large(folder: &Path, bytes: u64) -> Outcome<Self> {
        let files = (0..LARGE_FILES).map(|number| (format!("{number}"), bytes / LARGE_FILES));
        Self::make(folder, files)
    }

    pub(super) fn small(folder: &Path, count: u64) -> Outcome<Self> {
        // Sizes that are spread, and the same each time.
        let size = |number: u64| SMALL_LEAST + number.wrapping_mul(7919) % SMALL_MORE;
        let name = |number: u64| format!("{}/{number}", number / FILES_IN_A_FOLDER);
        Self::make(
            folder,
            (0..count).map(|number| (name(number), size(number))),
        )
    }

    /// Makes them, written to the disk when it returns.
    fn make(folder: &Path, files: impl Iterator<Item = (String, u64)>) -> Outcome<Self> {
        let part = pattern(1 << 20);
        let mut bytes = 0;
        for (name, size) in files {
            let path = folder.join(name);
            let parent = path.parent().unwrap_or(folder);
            fs::create_dir_all(parent).at(parent)?;
            let mut file = File::create_new(&path).at(&path)?;
            let mut left = size as usize;
            while left > 0 {
                let piece = &part[..left.min(part.len())];
                file.write_all(piece).at(&path)?;
                left -= piece.len();
            }
            bytes += size;
        }
        sync(folder)?;
        let folder = folder.to_owned();
        Ok(Self { folder, bytes })
    }

    /// Makes `count` files as on a disk in long use: unlinks every second file of those
    /// written first, and writes as many new files into the gaps, several at the same time.
    ///
    /// To be made where blocks are found when write(2) is called (`nodelalloc`): else the kernel
    /// would keep the pieces of a file together.
    pub(super) fn aged(folder: &Path, count: u64) -> Outcome<Self> {
        let part = pattern(1 << 20);
        for number in 0..AGED_FOLDERS {
            let path = folder.join(number.to_string());
            fs::create_dir_all(&path).at(&path)?;
        }
        let path = |number| {
            folder
                .join(scattered(number, AGED_FOLDERS).to_string())
                .join(number.to_string())
        };
        for number in 0..count {
            let path = path(number);
            fs::write(&path, &part[..aged_size(number) as usize]).at(&path)?;
        }
        sync(folder)?;
        for number in (0..count).step_by(2) {
            let path = path(number);
            fs::remove_file(&path).at(&path)?;
        }
        sync(folder)?;
        let later: Vec<u64> = (count..count + count.div_ceil(2)).collect();
        for numbers in later.chunks(AGED_AT_ONCE) {
            let opened = numbers.iter().map(|number| {
                let file = File::create_new(path(*number)).at(path(*number))?;
                Ok((file, &part[..aged_size(*number) as usize]))
            });
            let mut files = opened.collect::<Outcome<Vec<_>>>()?;
            while !files.is_empty() {
                for (file, left) in &mut files {
                    let piece = &left[..left.len().min(AGED_PIECE)];
                    file.write_all(piece).at(folder)?;
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
    pub(super) fn cold(&self) -> Outcome<f64> {
        let folders = slice::from_ref(&self.folder);
        let dropped = drop_files(&Scan::default(), folders, true, &AtomicU64::new(0));
        if let Some((path, reason)) = dropped.failures.first() {
            return Err(format!("{}: {reason}", path.display()).into());
        }
        Ok(self
            .cached()
            .ok_or("the kernel does not report what is in memory")?)
    }

    /// Opens all files; returns each with its size.
    pub(super) fn open(&self) -> Outcome<Vec<(File, u64)>> {
        let files = Scan::default().files(slice::from_ref(&self.folder));
        let open = |path: &Path| {
            let file = File::open(path).at(path)?;
            let len_bytes = file.metadata().at(path)?.len();
            Ok((file, len_bytes))
        };
        files.found.iter().map(|found| open(&found.path)).collect()
    }

    /// Returns the share of it that is cached.
    pub(super) fn cached(&self) -> Option<f64> {
        let folders = slice::from_ref(&self.folder);
        let states = survey(&Scan::default(), folders, &AtomicU64::new(0));
        let mut resident = 0;
        for state in &states.found {
            resident += state.residency()?.resident_bytes;
        }
        Some(resident as f64 / self.bytes.max(1) as f64)
    }

    /// `warmer` brings all of it in, after it was put out of memory, into pages that were in use
    /// just before; in MiB a second.
    pub(super) fn warm(&self, warmer: &Warmer) -> Outcome<Sample> {
        let cached_before = self.cold()?;
        touch_memory((self.bytes >> 20).clamp(16, TOUCHED_MIB_MAX))?;
        let mut sample = self.time(warmer)?;
        sample.evidence.cached_before = Some(cached_before);
        let label = sample
            .label
            .or_else(|| label(self.bytes, sample.evidence, true));
        // Other processes may have evicted some of it again: only the cached share counts.
        let share = sample.evidence.cached_after.unwrap_or(0.0);
        let rate = |seconds| share * mib_per_second(self.bytes, seconds);
        Ok(sample.map(rate).labeled(label))
    }

    /// Runs a command that brings all of it in: seconds.
    pub(super) fn time(&self, warmer: &Warmer) -> Outcome<Sample> {
        let mut meter = Meter::default();
        meter.run(Command::new(&warmer.program).args(&warmer.arguments))?;
        let mut sample = meter.sample();
        sample.evidence.resident_kib = None;
        sample.evidence.cached_after = self.cached();
        let is_whole = sample
            .evidence
            .cached_after
            .is_some_and(|share| share >= 0.99);
        Ok(sample.labeled((!is_whole).then_some("not all of it stayed in memory")))
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

fn aged_size(number: u64) -> u64 {
    let least = AGED_LEAST << scattered(number + 1, AGED_DOUBLED + 1);
    least + scattered(number + 2, least)
}

/// Returns a number below `bound` that looks like one at random and is the same each time.
fn scattered(number: u64, bound: u64) -> u64 {
    Random::new(number).below(bound)
}

/// Writes the whole file system of `folder` to the disk.
fn sync(folder: &Path) -> Outcome {
    rustix::fs::syncfs(File::open(folder).at(folder)?).at(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_as_large_as_they_say() {
        let dir = tempfile::tempdir().expect("a folder");
        let small = Tree::small(&dir.path().join("small"), 450).expect("files");
        let aged = Tree::aged(&dir.path().join("aged"), 101).expect("files");
        for (tree, count) in [(small, 450), (aged, 101)] {
            let files = tree.open().expect("files");
            assert_eq!(files.len(), count);
            assert_eq!(
                files.iter().map(|(_, len_bytes)| len_bytes).sum::<u64>(),
                tree.bytes
            );
            assert!(tree.cached().is_some_and(|share| share <= 1.0));
        }
    }
}
