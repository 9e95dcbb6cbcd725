//! Files brought into the kernel's page cache: in an order that suits the disk, with many requests under way, and each
//! byte counted when it is there.
//!
//! ```text
//!   files --> Order::Inode      each thread: open, what is missing?, WILLNEED, wait, close
//!         \-> Order::Physical   map all (FIEMAP), sort by place on the disk, then the same in that order
//! ```
//!
//! posix_fadvise(2) WILLNEED starts reads without a copy and lets the block layer join them; it silently does only so
//! much at a time (device.rs), and returns before anything is there. So ranges are cut into pieces, the last byte of each
//! is read to wait for it, and what is missing in the end is read plainly.

use crate::device::{Disk, Disks};
use crate::open::open_regular;
use crate::parallel::THREADS;
use crate::residency::{Known, page_bytes, residency_of};
use crate::scan::{Found, reason};
use crate::sys;
use rustix::fs::Advice;
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Pieces that one thread has under way.
const PIECES: usize = 4;
/// Extents of one file that are sorted; the rest follows in the file's order.
const EXTENTS_MAX: usize = 4096;
/// Bytes that one plain read asks for.
const PLAIN_BYTES: usize = 1 << 20;

/// In which order files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Physical where the disk seeks, else by inode.
    #[default]
    Auto,
    /// By inode number, which needs no look at the files before.
    Inode,
    /// By place on the disk.
    Physical,
}

/// How to warm.
#[derive(Debug, Clone, Copy)]
pub struct Warm {
    /// The order of reads.
    pub order: Order,
    /// Threads; 0 is 16.
    pub threads: usize,
    /// Bytes to bring in at most; what is there already does not count.
    pub budget_bytes: u64,
}

/// How far it is; all of it grows while files are read.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files done, whatever came of them.
    pub files: AtomicU64,
    /// Bytes that were brought in.
    pub read_bytes: AtomicU64,
    /// Bytes to be brought in, once that is known; else 0.
    pub expected_bytes: AtomicU64,
    /// Set to stop soon.
    pub stop: AtomicBool,
}

/// What came of it. Bytes are those of files, not of the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Warmed {
    /// Files that were looked at.
    pub files: u64,
    /// Their size.
    pub size_bytes: u64,
    /// What was in memory before.
    pub resident_before_bytes: u64,
    /// What was brought in.
    pub read_bytes: u64,
    /// What was left out because the budget was used up.
    pub over_budget_bytes: u64,
    /// The order that was chosen.
    pub order: Order,
    /// Paths that could not be read, and why.
    pub failures: Vec<(PathBuf, String)>,
}

/// The work of all threads.
struct Crew<'a> {
    files: &'a [Found],
    warm: &'a Warm,
    progress: &'a Progress,
    budget: AtomicU64,
    next: AtomicUsize,
    disks: Mutex<Disks>,
    total: Mutex<Warmed>,
}

/// A part of a file, by its place on a disk.
struct Run {
    device: u64,
    place: u64,
    file: usize,
    range: Range<u64>,
}

impl Warm {
    /// Brings `files` in and tells how far that is. Files that are gone, unreadable or not regular any more are told of;
    /// everything else goes on.
    pub fn run(&self, files: &[Found], progress: &Progress) -> Warmed {
        let crew = Crew {
            files,
            warm: self,
            progress,
            budget: AtomicU64::new(self.budget_bytes),
            next: AtomicUsize::new(0),
            disks: Mutex::default(),
            total: Mutex::default(),
        };
        let is_physical = match self.order {
            Order::Auto => crew.is_on_heads(),
            order => order == Order::Physical,
        };
        lock(&crew.total).order = if is_physical { Order::Physical } else { Order::Inode };
        if is_physical {
            let runs = crew.map();
            crew.next.store(0, Ordering::Relaxed);
            crew.work(|crew, done| crew.read_runs(&runs, done));
        } else {
            crew.work(|crew, done| crew.read_files(done));
        }
        crew.total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Crew<'_> {
    /// Whether the first file lies on a disk that seeks.
    fn is_on_heads(&self) -> bool {
        let first = self.files.iter().find_map(|found| std::fs::metadata(&found.path).ok());
        first.is_some_and(|found| self.disk(found.dev()).seeks)
    }

    fn disk(&self, device: u64) -> Disk {
        lock(&self.disks).of(device)
    }

    /// Has every thread do its share.
    fn work(&self, share: impl Fn(&Self, &mut Warmed) + Sync) {
        let threads = if self.warm.threads == 0 { THREADS } else { self.warm.threads };
        std::thread::scope(|scope| {
            for _ in 0..threads.min(self.files.len()).max(1) {
                scope.spawn(|| {
                    let mut done = Warmed::default();
                    share(self, &mut done);
                    lock(&self.total).add(done);
                });
            }
        });
    }

    /// The next number below `count`.
    fn take(&self, count: usize) -> Option<usize> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        (at < count && !self.progress.stop.load(Ordering::Relaxed)).then_some(at)
    }

    /// As much of `bytes` as the budget allows, in whole pages.
    fn allow(&self, bytes: u64) -> u64 {
        let pages = bytes.next_multiple_of(page_bytes());
        let mut allowed = 0;
        let _ = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            allowed = pages.min(left / page_bytes() * page_bytes());
            Some(left - allowed)
        });
        allowed.min(bytes)
    }

    /// Files one after the other, each from its beginning on.
    fn read_files(&self, done: &mut Warmed) {
        while let Some(at) = self.take(self.files.len()) {
            let found = &self.files[at];
            let path = &found.path;
            let read = open(found).and_then(|(file, missing)| {
                done.note(&missing);
                let disk = self.disk(missing.device);
                match &missing.parts[..] {
                    _ if missing.bytes == 0 => Ok(()),
                    [one] => self.bring(&file, one.clone(), missing.bytes, disk, done),
                    parts => parts.iter().try_for_each(|part| {
                        let lacks = (part.end - part.start).saturating_sub(cached(&file, part)?);
                        self.bring(&file, part.clone(), lacks, disk, done)
                    }),
                }
            });
            done.end_file(path, read);
            self.progress.files.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What has to be read of all files, by place on the disk.
    fn map(&self) -> Vec<Run> {
        let all = Mutex::new(Vec::new());
        self.work(|crew, done| {
            let mut runs = Vec::new();
            while let Some(at) = crew.take(crew.files.len()) {
                let found = &crew.files[at];
                let path = &found.path;
                let mapped = open(found).map(|(file, missing)| {
                    done.note(&missing);
                    if missing.bytes > 0 {
                        crew.progress.expected_bytes.fetch_add(missing.bytes, Ordering::Relaxed);
                        runs.extend(runs_of(at, &file, &missing));
                    }
                });
                done.end_file(path, mapped);
                crew.progress.files.fetch_add(1, Ordering::Relaxed);
            }
            lock(&all).append(&mut runs);
        });
        let mut runs = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        runs.sort_unstable_by_key(|run| (run.device, run.place, run.file));
        runs
    }

    fn read_runs(&self, runs: &[Run], done: &mut Warmed) {
        while let Some(at) = self.take(runs.len()) {
            let run = &runs[at];
            let path = &self.files[run.file].path;
            let read = reopen(path).and_then(|(file, now)| {
                let range = run.range.start..run.range.end.min(now.len());
                let found = cached(&file, &range)?;
                let missing = (range.end.saturating_sub(range.start)).saturating_sub(found);
                self.bring(&file, range, missing, self.disk(run.device), done)
            });
            if let Err(error) = read {
                done.failures.push((path.clone(), reason(&error)));
            }
        }
    }

    /// Brings in what is missing of `range`, `missing` bytes of it, as far as the budget goes.
    fn bring(
        &self,
        file: &File,
        range: Range<u64>,
        missing: u64,
        disk: Disk,
        done: &mut Warmed,
    ) -> io::Result<()> {
        if missing == 0 || range.is_empty() {
            return Ok(());
        }
        let allowed = self.allow(missing);
        done.over_budget_bytes += missing - allowed;
        // What is there may lie anywhere between: where the budget cuts, pages are brought in one after the other.
        let range = if allowed == missing { range } else { first_missing(file, range, allowed)? };
        let mut under_way: VecDeque<Range<u64>> = VecDeque::new();
        let mut at = range.start;
        while at < range.end && !self.progress.stop.load(Ordering::Relaxed) {
            let piece = at..range.end.min(at + disk.piece_bytes);
            rustix::fs::fadvise(
                file,
                piece.start,
                NonZeroU64::new(piece.end - piece.start),
                Advice::WillNeed,
            )?;
            at = piece.end;
            under_way.push_back(piece);
            if under_way.len() == PIECES {
                under_way.pop_front().map_or(Ok(()), |piece| wait(file, &piece))?;
            }
        }
        under_way.iter().try_for_each(|piece| wait(file, piece))?;
        let there = cached(file, &(range.start..at))?;
        if there < at - range.start {
            read_plainly(file, range.start..at)?;
        }
        done.read_bytes += allowed;
        self.progress.read_bytes.fetch_add(allowed, Ordering::Relaxed);
        Ok(())
    }
}

/// What an open file lacks.
struct Missing {
    device: u64,
    size_bytes: u64,
    /// What is meant of it.
    parts: Vec<Range<u64>>,
    /// Of that, what is not in memory.
    bytes: u64,
}

/// Opens a file that is to be read, if it still is a regular one, and tells what of it is not in memory.
fn open(wanted: &Found) -> io::Result<(File, Missing)> {
    let (file, found) = reopen(&wanted.path)?;
    let parts = wanted.parts(found.len());
    let is_whole = wanted.ranges.is_empty();
    let mut missing = Missing { device: found.dev(), size_bytes: 0, parts, bytes: 0 };
    for part in &missing.parts {
        let len = part.end - part.start;
        let there = match is_whole {
            true => match residency_of(&file, 0..found.len())? {
                Known::Is(residency) => residency.resident_bytes,
                // Everything is asked for; the kernel knows what is there.
                Known::NotTold(_) => 0,
            },
            false => cached(&file, part)?,
        };
        missing.size_bytes += len;
        missing.bytes += len.saturating_sub(there);
    }
    Ok((file, missing))
}

/// Opens a file so that only what is asked for comes in: the kernel's own readahead would go beyond the budget.
fn reopen(path: &Path) -> io::Result<(File, Metadata)> {
    let (file, found) = open_regular(path)?;
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
    Ok((file, found))
}

/// The runs of a file by their place; all of it in one where that is not known.
fn runs_of(at: usize, file: &File, missing: &Missing) -> Vec<Run> {
    let run = |place, range| Run { device: missing.device, place, file: at, range };
    let whole = || missing.parts.iter().map(|part| run(0, part.clone())).collect();
    let Ok(extents) = sys::fiemap(file, EXTENTS_MAX) else { return whole() };
    let mut lie: Vec<(u64, Range<u64>)> = extents
        .iter()
        .map(|extent| (extent.place, extent.offset..extent.offset.saturating_add(extent.len_bytes)))
        .collect();
    if let Some((place, last)) = lie.last().cloned().filter(|_| lie.len() == EXTENTS_MAX) {
        lie.push((place + (last.end - last.start), last.end..u64::MAX));
    }
    let mut runs = Vec::new();
    for part in &missing.parts {
        for (place, lies) in &lie {
            let range = part.start.max(lies.start)..part.end.min(lies.end);
            if !range.is_empty() {
                runs.push(run(place + (range.start - lies.start), range));
            }
        }
    }
    runs
}

/// Bytes of `range` that are in memory, or on their way; none where that is not told.
fn cached(file: &File, range: &Range<u64>) -> io::Result<u64> {
    let len = range.end.saturating_sub(range.start);
    match sys::cachestat(file, range.clone()) {
        Ok(found) => Ok((found.cached * page_bytes()).min(len)),
        Err(_) => Ok(0),
    }
}

/// The beginning of `range` in which `bytes` bytes are missing.
fn first_missing(file: &File, range: Range<u64>, bytes: u64) -> io::Result<Range<u64>> {
    let mut left = bytes;
    let mut at = range.start;
    let mut end = None;
    crate::residency::cached_ranges(file, range.clone(), |run| {
        if end.is_none() && run.start - at >= left {
            end = Some(at + left);
        }
        left = left.saturating_sub(run.start - at);
        at = run.end;
    })?;
    Ok(range.start..end.unwrap_or(at + left).min(range.end))
}

/// Waits until a piece that was asked for is there: until its last byte can be read.
fn wait(file: &File, piece: &Range<u64>) -> io::Result<()> {
    file.read_at(&mut [0], piece.end - 1).map(drop)
}

fn read_plainly(file: &File, range: Range<u64>) -> io::Result<()> {
    let mut buf = vec![0; PLAIN_BYTES];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(buf.len() as u64) as usize;
        match file.read_at(&mut buf[..len], at)? {
            0 => break,
            count => at += count as u64,
        }
    }
    Ok(())
}

impl Warmed {
    fn note(&mut self, missing: &Missing) {
        self.size_bytes += missing.size_bytes;
        self.resident_before_bytes += missing.size_bytes - missing.bytes;
    }

    fn end_file(&mut self, path: &Path, read: io::Result<()>) {
        self.files += 1;
        if let Err(error) = read {
            self.failures.push((path.to_owned(), reason(&error)));
        }
    }

    fn add(&mut self, mut other: Self) {
        self.files += other.files;
        self.size_bytes += other.size_bytes;
        self.resident_before_bytes += other.resident_before_bytes;
        self.read_bytes += other.read_bytes;
        self.over_budget_bytes += other.over_budget_bytes;
        self.failures.append(&mut other.failures);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
