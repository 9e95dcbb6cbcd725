//! The scenario `page-cache`: files as a database has them, read cold and warm, warmed, in tmpfs,
//! and in Folio's cache.

use crate::cache::article::{self, DISK, RAMFS, READ, TMPFS, WRITE};
use crate::cache::{self, effort, size, targets::find_tmpfs, targets::is_tmpfs};
use crate::contender::find;
use crate::evidence::{cached_share, forget, label, rate, watched};
use crate::measure::Meter;
use crate::published::{PublishedCase, Today};
use crate::report::{Evidence, Report, Sample, Table, Unit, owned, with_context};
use crate::run::{Case, Run, interleave, scratch_in};
use crate::shared_folder::targets::{FolioTarget, Target};
use folio_pagecache::{Found, Order, Progress, Warm};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A folder on a real disk, for the files; without it, the system's folder for temporary files
    #[arg(long)]
    disk_dir: Option<PathBuf>,
    /// Size of all files together, at least 1M [default: 256M]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
}

impl Options {
    /// The usual size, on this disk.
    pub(crate) fn on(disk_dir: Option<PathBuf>) -> Self {
        Self {
            disk_dir,
            size: None,
        }
    }
}

const NAME: &str = "page-cache";
const ROUNDS: u32 = 5;
/// A page of InnoDB, what it reads of a table in order, and the article's reads.
const PAGE: usize = 16 << 10;
const EXTENT: usize = 1 << 20;
const STORY_READ: usize = 8 << 10;
const PAGES: u64 = 2000;
/// Names, and 16ths of all bytes.
const FILES: [(&str, u64); 6] = [
    ("ibdata1", 4),
    ("shop-orders.ibd", 4),
    ("shop-items.ibd", 3),
    ("shop-users.ibd", 2),
    ("shop-sessions.ibd", 2),
    ("undo_001", 1),
];

const KERNEL: &str = "kernel";
const FOLIO: &str = "folio, host folder";
const IN_TMPFS: &str = "kernel tmpfs";
const ORDER_COLD: &str = "in order, cold";
const ORDER_WARM: &str = "in order, warm";
const RANDOM_COLD: &str = "a page at random, cold";
const RANDOM_WARM: &str = "a page at random, warm";
const WARM_UP: &str = "until all is in the page cache";

const LIMITS: [&str; 4] = [
    "cold: written and forgotten file by file with POSIX_FADV_DONTNEED, checked; the disk may have a cache below it \
     that this program cannot empty",
    "folio, host folder: the same files through Folio's page cache in this process; cold means a new kernel of Folio's \
     above files that the host has forgotten",
    "how much of the files is cached is counted before and after; a read that has only begun counts",
    "bytes from the device are those that the kernel counts for this process; another program's are not in it",
];

/// The files of one target, open, and how long they are.
struct Files {
    open: Vec<File>,
    paths: Vec<PathBuf>,
    sizes: Vec<u64>,
    /// Removes them at the end.
    folder: tempfile::TempDir,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let dir = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let bytes = options
        .size
        .unwrap_or_else(|| run.sized(256 << 20, 1 << 20));
    let what = format!(
        "{} files as MySQL has them, {} MiB",
        FILES.len(),
        bytes >> 20
    );
    let mut report = Report::new(NAME, what, &dir);
    let tmpfs = find_tmpfs();
    let files = Files::make(&dir, bytes)?;
    let in_tmpfs = tmpfs
        .as_ref()
        .map(|dir| Files::make(dir, bytes))
        .transpose()?;
    if in_tmpfs.is_none() {
        report.skip(
            IN_TMPFS,
            "no tmpfs that may be written: mount one on /dev/shm",
        );
    }
    let is_disk = !is_tmpfs(&dir);
    if !is_disk {
        report.skip(
            "cold reads, the warm-up",
            format!("{} is a tmpfs: see --disk-dir", dir.display()),
        );
    }
    let folio = FolioTarget::new(files.folder.path(), "")?;
    let (rows, rounds) = {
        let mut cases = reads(&files, in_tmpfs.as_ref(), &folio, is_disk);
        interleave(run, "page-cache, in order", &mut cases, ROUNDS)?
    };
    report.repeats = rounds;
    report.tables.push(Table::new(
        "all files",
        Unit::MibPerSecond,
        Some(KERNEL),
        rows,
    ));
    let (rows, _) = {
        let count = run.sized(PAGES, 20);
        let mut cases = pages(&files, in_tmpfs.as_ref(), &folio, is_disk, count);
        interleave(run, "page-cache, at random", &mut cases, ROUNDS)?
    };
    report.tables.push(Table::new(
        "pages of 16 KiB",
        Unit::Seconds,
        Some(KERNEL),
        rows,
    ));
    if is_disk {
        let mut cases = warm_ups(&files, &mut report);
        let (rows, _) = interleave(run, "page-cache, warm-up", &mut cases, ROUNDS)?;
        report
            .tables
            .push(Table::new(WARM_UP, Unit::Seconds, Some("cat"), rows));
    }
    if let Some(tmpfs) = tmpfs {
        (run.step)("page-cache: whole small files")?;
        let options = cache::Options::default();
        let table = article::table(&options, effort(run, None), &tmpfs, &dir, &mut report)?;
        report.tables.extend(table.map(|table| table.to_report()));
    }
    report.story = Some(published_case(&report));
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn published_case(report: &Report) -> PublishedCase {
    let today = |job: &str| {
        let of = |name: &str| report.row(article::TITLE, job, name);
        [
            Today::times("kernel, disk beside tmpfs", of(DISK), of(TMPFS)),
            Today::times("folio ramfs beside kernel tmpfs", of(RAMFS), of(TMPFS)),
        ]
    };
    PublishedCase::new(
        "Page cache and tmpfs",
        "a file in the page cache is read as fast as one in tmpfs; only writing, tmpfs was twice as fast",
        "leave files on the disk, and warm them with folio warm before they are needed",
    )
    .with("1.5 MB read in 8 KiB from a disk's file, cached, beside tmpfs", Unit::Times, 1.0, today(READ))
    .with("8 KiB written over an emptied file of the disk, beside tmpfs", Unit::Times, 2.0, today(WRITE))
}

impl Files {
    /// Makes the files in a new folder; on a disk they are written when it returns.
    fn make(dir: &Path, bytes: u64) -> Result<Self, String> {
        let folder = scratch_in(dir)?;
        let mut files = Self {
            open: Vec::new(),
            paths: Vec::new(),
            sizes: Vec::new(),
            folder,
        };
        // No zeros, so that no contender makes holes.
        let part: Vec<u8> = (0..PAGE).map(|index| (index % 253) as u8 + 1).collect();
        for (name, share) in FILES {
            let path = files.folder.path().join(name);
            let pages = (bytes / 16 * share).div_ceil(PAGE as u64);
            let mut file = File::create_new(&path).map_err(with_context(path.display()))?;
            (0..pages)
                .try_for_each(|_| file.write_all(&part))
                .map_err(with_context(path.display()))?;
            file.sync_data().map_err(with_context(path.display()))?;
            files
                .open
                .push(File::open(&path).map_err(with_context(path.display()))?);
            files.sizes.push(pages * PAGE as u64);
            files.paths.push(path);
        }
        Ok(files)
    }

    fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Reads all files in order.
    fn read(&self, piece: usize) -> Result<(), String> {
        let mut buf = vec![0; piece];
        for path in &self.paths {
            let mut file = File::open(path).map_err(with_context(path.display()))?;
            while file.read(&mut buf).map_err(with_context(path.display()))? > 0 {}
        }
        Ok(())
    }

    /// Maps a random number to a file and to the offset of a page in it.
    fn page(&self, drawn: u64) -> (usize, u64) {
        let mut at = drawn % (self.bytes() / PAGE as u64) * PAGE as u64;
        for (file, size) in self.sizes.iter().enumerate() {
            if at < *size {
                return (file, at);
            }
            at -= size;
        }
        (0, 0)
    }
}

/// xorshift64*: the same pages for every contender.
fn draw(word: &mut u64) -> u64 {
    *word ^= *word >> 12;
    *word ^= *word << 25;
    *word ^= *word >> 27;
    word.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn folio_read(target: &FolioTarget, files: &Files) -> Result<(), String> {
    let mut buf = vec![0; EXTENT];
    for (path, size) in files.paths.iter().zip(&files.sizes) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = target.open(&name)?;
        let mut offset = 0;
        while offset < *size {
            match target.read_at(&file, &mut buf, offset)? {
                0 => return Err(format!("{name}: ends at {offset}")),
                count => offset += count as u64,
            }
        }
        target.close(file)?;
    }
    Ok(())
}

/// All files in order.
fn reads<'a>(
    files: &'a Files,
    in_tmpfs: Option<&'a Files>,
    folio: &'a FolioTarget,
    is_disk: bool,
) -> Vec<Case<'a>> {
    let bytes = files.bytes();
    let mut cases = Vec::new();
    if is_disk {
        cases.push(Case::new(ORDER_COLD, KERNEL, move || {
            forget(&files.open)?;
            let (seconds, evidence) = watched(&files.open, 0, || files.read(EXTENT))?;
            Ok(rate(bytes, seconds, evidence, true))
        }));
        cases.push(Case::new(ORDER_COLD, FOLIO, move || {
            let target = FolioTarget::new(files.folder.path(), "")?;
            forget(&files.open)?;
            let (seconds, evidence) = watched(&files.open, 0, || folio_read(&target, files))?;
            Ok(rate(bytes, seconds, evidence, true))
        }));
    }
    cases.push(Case::new(ORDER_WARM, KERNEL, move || {
        files.read(EXTENT)?;
        let (seconds, evidence) = watched(&files.open, 0, || files.read(EXTENT))?;
        Ok(rate(bytes, seconds, evidence, false))
    }));
    cases.extend(in_tmpfs.map(|files| {
        Case::new(ORDER_WARM, IN_TMPFS, move || {
            let (seconds, evidence) = watched(&files.open, 0, || files.read(EXTENT))?;
            Ok(rate(bytes, seconds, evidence, false))
        })
    }));
    cases.push(Case::new(ORDER_WARM, FOLIO, move || {
        folio_read(folio, files)?;
        let (seconds, evidence) = watched(&[], 0, || folio_read(folio, files))?;
        Ok(rate(bytes, seconds, evidence, false))
    }));
    cases
}

/// Reads `count` pages at random through the kernel.
fn read_pages(files: &Files, count: u64) -> Result<(), String> {
    let (mut word, mut buf) = (SEED, vec![0; PAGE]);
    for _ in 0..count {
        let (file, offset) = files.page(draw(&mut word));
        files.open[file]
            .read_exact_at(&mut buf, offset)
            .map_err(with_context("read"))?;
    }
    Ok(())
}

/// Reads the same pages through Folio.
fn folio_read_pages(target: &FolioTarget, files: &Files, count: u64) -> Result<(), String> {
    let names = files
        .paths
        .iter()
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    let open = names
        .map(|name| target.open(&name))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut word, mut buf) = (SEED, vec![0; PAGE]);
    for _ in 0..count {
        let (file, offset) = files.page(draw(&mut word));
        if target.read_at(&open[file], &mut buf, offset)? != PAGE {
            return Err(format!("a short page at {offset}"));
        }
    }
    open.into_iter().try_for_each(|file| target.close(file))
}

/// Pages at random; seconds for each.
fn pages<'a>(
    files: &'a Files,
    in_tmpfs: Option<&'a Files>,
    folio: &'a FolioTarget,
    is_disk: bool,
    count: u64,
) -> Vec<Case<'a>> {
    let sample = move |(seconds, evidence): (f64, Evidence), is_cold| Sample {
        value: seconds / count as f64,
        evidence,
        // Pages that are read twice come from the device once.
        label: label(
            count.min(files.bytes() / PAGE as u64) * PAGE as u64 / 4,
            evidence,
            is_cold,
        ),
    };
    let mut cases = Vec::new();
    if is_disk {
        cases.push(Case::new(RANDOM_COLD, KERNEL, move || {
            forget(&files.open)?;
            Ok(sample(
                watched(&files.open, count, || read_pages(files, count))?,
                true,
            ))
        }));
        cases.push(Case::new(RANDOM_COLD, FOLIO, move || {
            let target = FolioTarget::new(files.folder.path(), "")?;
            forget(&files.open)?;
            Ok(sample(
                watched(&files.open, count, || {
                    folio_read_pages(&target, files, count)
                })?,
                true,
            ))
        }));
    }
    cases.push(Case::new(RANDOM_WARM, KERNEL, move || {
        files.read(EXTENT)?;
        Ok(sample(
            watched(&files.open, count, || read_pages(files, count))?,
            false,
        ))
    }));
    cases.extend(in_tmpfs.map(|files| {
        Case::new(RANDOM_WARM, IN_TMPFS, move || {
            Ok(sample(
                watched(&files.open, count, || read_pages(files, count))?,
                false,
            ))
        })
    }));
    cases.push(Case::new(RANDOM_WARM, FOLIO, move || {
        folio_read(folio, files)?;
        Ok(sample(
            watched(&[], count, || folio_read_pages(folio, files, count))?,
            false,
        ))
    }));
    cases
}

/// Returns the cases that bring all files into the page cache before a database starts.
fn warm_ups<'a>(files: &'a Files, report: &mut Report) -> Vec<Case<'a>> {
    let case = |name: &str, bring: Box<dyn Fn() -> Result<(), String> + 'a>| {
        Case::new(WARM_UP, name, move || {
            forget(&files.open)?;
            let (value, evidence) = watched(&files.open, 0, &bring)?;
            // Fewer pages than requested may be cached: the label reports it.
            let is_whole = cached_share(&files.open).is_none_or(|share| share > 0.99);
            let label = (!is_whole).then_some("it ended before all was there");
            Ok(Sample {
                value,
                evidence,
                label,
            })
        })
    };
    let mut cases = vec![
        case("cat", Box::new(|| files.read(128 << 10))),
        case(
            "8 KiB at a time, as in the article",
            Box::new(|| files.read(STORY_READ)),
        ),
        case("folio warm", Box::new(|| folio_warm(files))),
    ];
    match find("vmtouch") {
        Some(program) => cases.push(case(
            "vmtouch -t",
            Box::new(move || {
                let options = ["-q", "-t"].map(OsStr::new).into_iter();
                let words = options.chain(files.paths.iter().map(|path| path.as_os_str()));
                Meter::default().run(program.as_os_str(), words).map(drop)
            }),
        )),
        None => report.skip("vmtouch -t", "vmtouch is not installed"),
    }
    cases
}

fn folio_warm(files: &Files) -> Result<(), String> {
    let mut found = Vec::new();
    for (file, path) in files.open.iter().zip(&files.paths) {
        let inode = file.metadata().map_err(with_context(path.display()))?.ino();
        found.push(Found::whole(path.clone(), inode));
    }
    let warm = Warm {
        order: Order::Auto,
        threads: 0,
        budget_bytes: u64::MAX,
    };
    let warmed = warm.run(&found, &Progress::default());
    match warmed.failures.first() {
        Some((path, reason)) => Err(format!("{}: {reason}", path.display())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_drawn_from_the_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = Files::make(dir.path(), 1 << 20).expect("files");
        let mut word = SEED;
        for _ in 0..1000 {
            let (file, offset) = files.page(draw(&mut word));
            assert!(offset + PAGE as u64 <= files.sizes[file] && offset % PAGE as u64 == 0);
        }
        files.read(STORY_READ).expect("read");
    }
}
