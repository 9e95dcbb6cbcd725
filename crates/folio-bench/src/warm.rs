//! The scenario `warm`: large files, and a tree of small ones, from the disk into the page cache, by `folio warm` and its
//! rivals, beside what the disk itself can do.

use crate::cache::size;
use crate::contender::find;
use crate::evidence::label;
use crate::measure::Meter;
use crate::report::{Evidence, Report, Sample, Table, Unit, Verdict, owned, told};
use crate::run::{Run, Way, interleave, scratch_in};
use folio_pagecache::{Scan, drop_files, survey};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// What the scenario takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A folder on a real disk, where the files lie; without it, the system's folder for temporary files
    #[arg(long)]
    disk_dir: Option<PathBuf>,
    /// Size of all large files together, at least 8M [default: 2G]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Small files [default: 100000]
    #[arg(long)]
    files: Option<u64>,
}

const NAME: &str = "warm";
const ROUNDS: u32 = 3;
const LARGE_FILES: u64 = 8;
const FILES_IN_A_FOLDER: u64 = 200;
/// Small files have so many bytes at least, and so many more at most.
const SMALL_LEAST: u64 = 200;
const SMALL_MORE: u64 = 16 << 10;

const JOB: &str = "until all is in the page cache";
const FOLIO: &str = "folio warm";
const VMTOUCH: &str = "vmtouch -t";
const DEVICE: &str = "the device (fio, direct)";
const LARGE: &str = "large files";
const SMALL: &str = "small files";

const LIMITS: [&str; 4] = [
    "cold: the files are put out of memory one by one with POSIX_FADV_DONTNEED, checked; their names and inodes stay, so \
     the tree is found faster than after a restart",
    "below the disk may lie a cache that nobody here can empty",
    "commands are timed as a whole, with the time that they take to start",
    "whether a disk seeks makes all the difference: on one that does, the order of reads decides",
];

/// Measures.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let dir = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let bytes = options.size.unwrap_or_else(|| run.sized(2 << 30, 8 << 20)).max(8 << 20);
    let count = options.files.unwrap_or_else(|| run.sized(100_000, 400)).max(1);
    let what = format!("{LARGE_FILES} files of {} MiB, and {count} small ones", (bytes / LARGE_FILES) >> 20);
    let mut report = Report::new(NAME, what, &dir);
    let folder = scratch_in(&dir)?;
    (run.step)("warm: files are made")?;
    let large = Tree::large(&folder.path().join("large"), bytes)?;
    let small = Tree::small(&folder.path().join("small"), count)?;
    let vmtouch = find("vmtouch");
    if vmtouch.is_none() {
        report.skip(VMTOUCH, "vmtouch is not installed");
    }
    for (title, tree) in [(LARGE, &large), (SMALL, &small)] {
        if tree.cold()? > 0.05 {
            report.skip(title, "the files cannot be put out of memory here: see --disk-dir");
            continue;
        }
        let mut ways = vec![tree.way(FOLIO, &run.folio, &["warm", "--quiet"])];
        if let Some(program) = &vmtouch {
            ways.push(tree.way(VMTOUCH, program, &["-q", "-t"]));
        }
        let device = if title == LARGE { fio(tree) } else { None };
        match (device, title == LARGE) {
            (Some(_), _) => ways.push(Way::new(JOB, DEVICE, || {
                let value = fio(tree).ok_or("fio: no figure")?;
                Ok(Sample { value, ..Sample::default() })
            })),
            (None, true) => report.skip(DEVICE, "fio is not installed, or cannot read directly here"),
            (None, false) => {}
        }
        let (rows, rounds) = interleave(run, &format!("warm, {title}"), &mut ways, ROUNDS)?;
        report.repeats = rounds;
        let base = vmtouch.is_some().then_some(VMTOUCH);
        report.tables.push(Table::new(title, Unit::MibPerSecond, base, rows));
    }
    judge(&mut report);
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn judge(report: &mut Report) {
    let aims = [(LARGE, DEVICE, 0.9), (SMALL, VMTOUCH, 3.0)];
    for (title, rival, least) in aims {
        let of = |contender| report.row(title, JOB, contender).map(|row| row.median);
        let (Some(folio), Some(rival_rate)) = (of(FOLIO), of(rival)) else { continue };
        let ratio = folio / rival_rate.max(1e-9);
        report.verdicts.push(Verdict {
            aim: format!("{title}: folio warm at {least} times the rate of {rival}, or more"),
            is_met: ratio >= least,
            figures: format!("{ratio:.2}"),
        });
    }
}

/// Files in a folder.
struct Tree {
    folder: PathBuf,
    bytes: u64,
}

impl Tree {
    fn large(folder: &Path, bytes: u64) -> Result<Self, String> {
        let files = (0..LARGE_FILES).map(|number| (format!("{number}"), bytes / LARGE_FILES));
        Self::make(folder, files)
    }

    fn small(folder: &Path, count: u64) -> Result<Self, String> {
        // Sizes that are spread, and the same each time.
        let size = |number: u64| SMALL_LEAST + number.wrapping_mul(7919) % SMALL_MORE;
        let name = |number: u64| format!("{}/{number}", number / FILES_IN_A_FOLDER);
        Self::make(folder, (0..count).map(|number| (name(number), size(number))))
    }

    /// Makes them, written to the disk when it returns.
    fn make(folder: &Path, files: impl Iterator<Item = (String, u64)>) -> Result<Self, String> {
        let part: Vec<u8> =
            (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut bytes = 0;
        for (name, size) in files {
            let path = folder.join(name);
            let parent = path.parent().unwrap_or(folder);
            std::fs::create_dir_all(parent).map_err(told(parent.display()))?;
            let mut file = std::fs::File::create_new(&path).map_err(told(path.display()))?;
            let mut left = size as usize;
            while left > 0 {
                let piece = &part[..left.min(part.len())];
                std::io::Write::write_all(&mut file, piece).map_err(told(path.display()))?;
                left -= piece.len();
            }
            bytes += size;
        }
        rustix::fs::syncfs(std::fs::File::open(folder).map_err(told(folder.display()))?)
            .map_err(told(folder.display()))?;
        Ok(Self { folder: folder.to_owned(), bytes })
    }

    /// Puts all of it out of memory, and tells which share of it is there all the same.
    fn cold(&self) -> Result<f64, String> {
        let dropped =
            drop_files(&Scan::default(), std::slice::from_ref(&self.folder), true, &AtomicU64::new(0));
        if let Some((path, reason)) = dropped.failures.first() {
            return Err(format!("{}: {reason}", path.display()));
        }
        self.cached().ok_or_else(|| "the kernel does not tell what is in memory".to_owned())
    }

    /// Which share of it is in memory.
    fn cached(&self) -> Option<f64> {
        let states = survey(&Scan::default(), std::slice::from_ref(&self.folder), &AtomicU64::new(0));
        let mut resident = 0;
        for state in &states.found {
            resident += state.residency()?.resident_bytes;
        }
        Some(resident as f64 / self.bytes.max(1) as f64)
    }

    /// A command that brings all of it in.
    fn way<'a>(&'a self, name: &str, program: &'a Path, words: &'a [&'a str]) -> Way<'a> {
        Way::new(JOB, name, move || {
            let cached_before = self.cold()?;
            let mut meter = Meter::default();
            let arguments = words.iter().map(OsStr::new).chain([self.folder.as_os_str()]);
            meter.run(program.as_os_str(), arguments)?;
            let cached_after = self.cached();
            // Others on the machine may have pushed some of it out again: only what is there was brought.
            let share = cached_after.unwrap_or(0.0);
            let evidence = Evidence {
                cached_before: Some(cached_before),
                cached_after,
                cpu_seconds: Some(meter.cost.cpu_seconds),
                ..Evidence::default()
            };
            let value = share * self.bytes as f64 / f64::from(1 << 20) / meter.cost.seconds.max(1e-9);
            let is_partly = (share < 0.99).then_some("not all of it stayed in memory");
            Ok(Sample { value, evidence, label: is_partly.or_else(|| label(self.bytes, evidence, true)) })
        })
    }
}

/// What the device delivers past the page cache, in MiB a second; `None` if fio cannot tell.
fn fio(tree: &Tree) -> Option<f64> {
    let program = find("fio")?;
    tree.cold().ok()?;
    let names: Vec<String> =
        (0..LARGE_FILES).map(|number| tree.folder.join(number.to_string()).display().to_string()).collect();
    let files = format!("--filename={}", names.join(":"));
    let words = [
        "--name=device",
        "--readonly",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
        "--ioengine=io_uring",
        "--iodepth=8",
        "--file_service_type=sequential",
        "--output-format=json",
    ];
    let said = Meter::default().run(program.as_os_str(), words.into_iter().chain([files.as_str()])).ok()?;
    let said: serde_json::Value = serde_json::from_str(said.get(said.find('{')?..)?).ok()?;
    let read = &said["jobs"][0]["read"];
    let (bytes, milliseconds) = (read["io_bytes"].as_f64()?, read["runtime"].as_f64()?);
    (bytes > 0.0).then(|| bytes / f64::from(1 << 20) / (milliseconds / 1e3).max(1e-3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_as_large_as_they_say() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::small(&dir.path().join("small"), 450).expect("files");
        let states = survey(&Scan::default(), std::slice::from_ref(&tree.folder), &AtomicU64::new(0));
        assert_eq!(states.found.len(), 450);
        assert_eq!(states.found.iter().map(|state| state.size_bytes).sum::<u64>(), tree.bytes);
        assert!(tree.cached().is_some_and(|share| share <= 1.0));
    }
}
