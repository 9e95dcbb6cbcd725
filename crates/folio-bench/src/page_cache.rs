//! The scenario `page-cache`: files as a database has them, read cold and warm, warmed, in tmpfs,
//! and in Folio's cache.

use crate::cache::article::{self, DISK, RAMFS, READ, TMPFS, WRITE};
use crate::cache::targets::{find_tmpfs, is_tmpfs};
use crate::command::{self, tool};
use crate::evidence::{cached_share, forget, label, rate, watched};
use crate::options::{DiskDir, size};
use crate::outcome::{Context, Outcome};
use crate::published::{PublishedCase, Today};
use crate::race::{Race, Run, scratch_in};
use crate::random::{Random, pattern};
use crate::report::{Report, Sample, Unit};
use crate::view::{Access, View};
use folio_pagecache::{Found, Order, Progress, Warm};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) disk: DiskDir,
    /// Size of all files together, at least 1M [default: 256M]
    #[arg(long, value_parser = size)]
    pub(crate) size: Option<u64>,
}

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

/// The files in one folder.
struct Files {
    files: Vec<TableFile>,
    /// Removes them at the end.
    folder: tempfile::TempDir,
}

struct TableFile {
    name: &'static str,
    len_bytes: u64,
    open: File,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = options.disk.path();
    let usual_bytes = run.sized(256 << 20, 1 << 20);
    let bytes = options.size.unwrap_or(usual_bytes);
    let what = format!(
        "{} files as MySQL has them, {} MiB",
        FILES.len(),
        bytes >> 20
    );
    let mut report = Report::new("page-cache", what, &dir);
    let files = Files::make(&dir, bytes)?;
    let tmpfs = find_tmpfs().ok();
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
        let reason = format!("{} is a tmpfs: see --disk-dir", dir.display());
        report.skip("cold reads, the warm-up", reason);
    }
    let in_process = View::in_process(files.folder.path(), "")?;
    let readers = readers(&files, in_tmpfs.as_ref(), &in_process, is_disk);
    let mut race = Race::new("all files", Unit::MibPerSecond, Some(KERNEL));
    for reader in &readers {
        let job = if reader.is_cold {
            ORDER_COLD
        } else {
            ORDER_WARM
        };
        race.case(job, reader.name, || reader.in_order());
    }
    race.run(run, &mut report)?;
    let count = run.sized(PAGES, 20);
    let mut race = Race::new("pages of 16 KiB", Unit::Seconds, Some(KERNEL));
    for reader in &readers {
        let job = if reader.is_cold {
            RANDOM_COLD
        } else {
            RANDOM_WARM
        };
        race.case(job, reader.name, move || reader.at_random(count));
    }
    race.run(run, &mut report)?;
    if is_disk {
        warm_up(&files, run, &mut report)?;
    }
    if let Some(tmpfs) = tmpfs {
        article::measure(&[READ, WRITE], None, [&tmpfs, &dir], run, &mut report)?;
    }
    report.story = Some(published_case(&report));
    report.limit(&LIMITS);
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
    fn make(dir: &Path, bytes: u64) -> Outcome<Self> {
        let folder = scratch_in(dir)?;
        let part = pattern(PAGE);
        let mut files = Vec::new();
        for (name, share) in FILES {
            let path = folder.path().join(name);
            let pages = (bytes / 16 * share).div_ceil(PAGE as u64);
            let mut file = File::create_new(&path).at(&path)?;
            (0..pages)
                .try_for_each(|_| file.write_all(&part))
                .at(&path)?;
            file.sync_data().at(&path)?;
            files.push(TableFile {
                name,
                len_bytes: pages * PAGE as u64,
                open: File::open(&path).at(&path)?,
            });
        }
        Ok(Self { files, folder })
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len_bytes).sum()
    }

    fn open(&self) -> Vec<&File> {
        self.files.iter().map(|file| &file.open).collect()
    }

    fn host(&self) -> View {
        View::Host(self.folder.path().to_owned())
    }

    /// Reads all files in order, in pieces of this size.
    fn read(&self, view: &View, piece: usize) -> Outcome {
        let mut buf = vec![0; piece];
        for TableFile {
            name, len_bytes, ..
        } in &self.files
        {
            let file = view.open(name, Access::Read)?;
            let mut offset = 0;
            while offset < *len_bytes {
                match view.read_at(&file, &mut buf, offset)? {
                    0 => return Err(format!("{name}: ends at {offset}").into()),
                    count => offset += count as u64,
                }
            }
            view.close(file)?;
        }
        Ok(())
    }

    /// Reads `count` pages at random: the same ones for every contender.
    fn read_pages(&self, view: &View, count: u64) -> Outcome {
        let open = self
            .files
            .iter()
            .map(|file| view.open(file.name, Access::Read));
        let open = open.collect::<Outcome<Vec<_>>>()?;
        let (mut random, mut buf) = (Random::new(1), vec![0; PAGE]);
        for _ in 0..count {
            let (file, offset) = self.page(random.below(self.bytes() / PAGE as u64));
            if view.read_at(&open[file], &mut buf, offset)? != PAGE {
                return Err(format!("a short page at {offset}").into());
            }
        }
        open.into_iter().try_for_each(|file| view.close(file))
    }

    /// Maps a page of all files to a file and to its offset in it.
    fn page(&self, number: u64) -> (usize, u64) {
        let mut offset = number * PAGE as u64;
        for (at, file) in self.files.iter().enumerate() {
            if offset < file.len_bytes {
                return (at, offset);
            }
            offset -= file.len_bytes;
        }
        (0, 0)
    }
}

/// A contender that reads files, cold or warm.
struct Reader<'a> {
    name: &'static str,
    files: &'a Files,
    /// Folio's view of the files, if it is Folio's.
    in_process: Option<&'a View>,
    is_cold: bool,
}

fn readers<'a>(
    files: &'a Files,
    in_tmpfs: Option<&'a Files>,
    in_process: &'a View,
    is_disk: bool,
) -> Vec<Reader<'a>> {
    let reader = |name, files, in_process, is_cold| Reader {
        name,
        files,
        in_process,
        is_cold,
    };
    let mut readers = Vec::new();
    if is_disk {
        readers.push(reader(KERNEL, files, None, true));
        readers.push(reader(FOLIO, files, Some(in_process), true));
    }
    readers.push(reader(KERNEL, files, None, false));
    readers.extend(in_tmpfs.map(|files| reader(IN_TMPFS, files, None, false)));
    readers.push(reader(FOLIO, files, Some(in_process), false));
    readers
}

impl Reader<'_> {
    fn in_order(&self) -> Outcome<Sample> {
        let sample = self.watch(0, |view| self.files.read(view, EXTENT))?;
        Ok(rate(self.files.bytes(), sample, self.is_cold))
    }

    fn at_random(&self, count: u64) -> Outcome<Sample> {
        let sample = self.watch(count, |view| self.files.read_pages(view, count))?;
        // Pages that are read twice come from the device once.
        let pages = count.min(self.files.bytes() / PAGE as u64);
        let label = label(pages * PAGE as u64 / 4, sample.evidence, self.is_cold);
        Ok(sample.map(|seconds| seconds / count as f64).labeled(label))
    }

    /// Drops the files from memory or brings them there, and watches `read`.
    fn watch(&self, operations: u64, read: impl Fn(&View) -> Outcome) -> Outcome<Sample> {
        let files = self.files;
        let (host, fresh);
        let view = match self.in_process {
            None => {
                host = files.host();
                &host
            }
            Some(_) if self.is_cold => {
                fresh = View::in_process(files.folder.path(), "")?;
                &fresh
            }
            Some(view) => view,
        };
        let mut seen = files.open();
        if self.is_cold {
            forget(&seen)?;
        } else {
            files.read(view, EXTENT)?;
            if self.in_process.is_some() {
                // Warm in Folio's cache, whatever the kernel has.
                seen.clear();
            }
        }
        watched(&seen, operations, || read(view))
    }
}

/// Measures what brings all files into the page cache before a database starts.
fn warm_up(files: &Files, run: &Run<'_>, report: &mut Report) -> Outcome {
    type Bring<'a> = Box<dyn FnMut() -> Outcome + 'a>;
    let mut contenders: Vec<(&str, Bring<'_>)> = vec![
        ("cat", Box::new(|| files.read(&files.host(), 128 << 10))),
        (
            "8 KiB at a time, as in the article",
            Box::new(|| files.read(&files.host(), STORY_READ)),
        ),
        ("folio warm", Box::new(|| folio_warm(files))),
    ];
    match tool("vmtouch") {
        Ok(mut vmtouch) => {
            let paths = files
                .files
                .iter()
                .map(|file| files.folder.path().join(file.name));
            vmtouch.args(["-q", "-t"]).args(paths);
            let bring = Box::new(move || command::run(&mut vmtouch).map(drop));
            contenders.push(("vmtouch -t", bring));
        }
        Err(reason) => report.skip("vmtouch -t", reason.to_string()),
    }
    let mut race = Race::new(WARM_UP, Unit::Seconds, Some("cat"));
    for (name, mut bring) in contenders {
        race.case(WARM_UP, name, move || {
            let open = files.open();
            forget(&open)?;
            let sample = watched(&open, 0, &mut bring)?;
            // Fewer pages than requested may be cached: the label reports it.
            let is_whole = cached_share(&open).is_none_or(|share| share > 0.99);
            Ok(sample.labeled((!is_whole).then_some("it ended before all was there")))
        });
    }
    race.run(run, report)
}

fn folio_warm(files: &Files) -> Outcome {
    let mut found = Vec::new();
    for file in &files.files {
        let path = files.folder.path().join(file.name);
        let inode = file.open.metadata().at(&path)?.ino();
        found.push(Found::whole(path, inode));
    }
    let warm = Warm {
        order: Order::Auto,
        threads: 0,
        budget_bytes: u64::MAX,
    };
    let warmed = warm.run(&found, &Progress::default());
    match warmed.failures.first() {
        Some((path, reason)) => Err(format!("{}: {reason}", path.display()).into()),
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
        for number in 0..files.bytes() / PAGE as u64 {
            let (file, offset) = files.page(number);
            assert!(offset + PAGE as u64 <= files.files[file].len_bytes);
        }
        let views = [
            files.host(),
            View::in_process(files.folder.path(), "").expect("a view"),
        ];
        for view in views {
            files.read(&view, STORY_READ).expect("read");
            files.read_pages(&view, 100).expect("read");
        }
    }
}
