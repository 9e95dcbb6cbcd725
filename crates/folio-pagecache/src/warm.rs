//! Files brought into the kernel's page cache: in an order that suits the disk, with many requests
//! under way, and each byte counted when it is there.
//!
//! ```text
//!   files --> Order::Inode      each thread: a batch of files; open, what is missing?, WILLNEED; then wait, close
//!         \-> Order::Physical   map all (FIEMAP), sort by place on the disk, then the same in that order
//! ```
//!
//! posix_fadvise(2) WILLNEED starts reads without a copy and lets the block layer join them; it
//! silently does only so much at a time (device.rs), and returns before anything is there. So
//! ranges are cut into pieces, the last byte of each is read to wait for it, and what is missing in
//! the end is read plainly. Holes are left out: they are read from no disk.

use crate::device::{Disk, Disks};
use crate::memory::Memory;
use crate::open::open_regular;
use crate::parallel::{self, THREADS};
use crate::residency::{cached_ranges, page_bytes, resident_in};
use crate::scan::{Found, reason};
use crate::sys;
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;
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

/// Large pieces that one thread has under way.
const PIECES: u64 = 4;
/// Files, or runs, that one thread has under way, and bytes after which it takes no more of them.
const BATCH: usize = 16;
const BATCH_BYTES: u64 = 4 << 20;
/// Pieces of one file under way that are small, as those of a hot set.
const PIECES_MAX: usize = 64;
/// Files up to which it is told in advance how many bytes there are to read.
const EXPECTED_FILES_MAX: usize = 4096;
/// The share of all memory that has to be left, and bytes after which it is looked whether it is:
/// not more than that.
const RESERVE_SHARE: u64 = 50;
const LOOK_BYTES_MAX: u64 = 64 << 20;
/// Runs of data of one file that are told apart; what follows is read with its holes.
const DATA_RUNS_MAX: usize = 4096;
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
    /// What was left out because the budget was used up, or because memory ran short.
    pub over_budget_bytes: u64,
    /// Whether memory ran short: others took it meanwhile, and more would have pushed out what had
    /// been brought in.
    pub is_memory_short: bool,
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
    /// How much memory there is now.
    memory: &'a (dyn Fn() -> Memory + Sync),
    look_bytes: u64,
    budget: AtomicU64,
    /// Bytes that were asked for and were missing.
    asked: AtomicU64,
    is_short: AtomicBool,
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
    /// Brings `files` in and tells how far that is. Files that are gone, unreadable or not regular
    /// any more are told of; everything else goes on.
    pub fn run(&self, files: &[Found], progress: &Progress) -> Warmed {
        self.run_within(&Memory::here, files, progress)
    }

    /// The same with what `memory` says of it.
    fn run_within(
        &self,
        memory: &(dyn Fn() -> Memory + Sync),
        files: &[Found],
        progress: &Progress,
    ) -> Warmed {
        let crew = Crew {
            files,
            warm: self,
            progress,
            memory,
            look_bytes: (memory().total_bytes / RESERVE_SHARE).clamp(1, LOOK_BYTES_MAX),
            budget: AtomicU64::new(self.budget_bytes),
            asked: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            disks: Mutex::default(),
            total: Mutex::default(),
        };
        let is_physical = match self.order {
            Order::Auto => crew.is_on_heads(),
            order => order == Order::Physical,
        };
        lock(&crew.total).order = if is_physical {
            Order::Physical
        } else {
            Order::Inode
        };
        if is_physical {
            let runs = crew.map();
            crew.next.store(0, Ordering::Relaxed);
            crew.work(|crew, done| crew.read_runs(&runs, done));
        } else {
            crew.expect();
            crew.work(|crew, done| crew.read_files(done));
        }
        let mut total = crew
            .total
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        total.is_memory_short = crew.is_short.into_inner();
        total
    }
}

impl Crew<'_> {
    /// Whether the first file lies on a disk that seeks.
    fn is_on_heads(&self) -> bool {
        let first = self
            .files
            .iter()
            .find_map(|found| std::fs::metadata(&found.path).ok());
        first.is_some_and(|found| self.disk(found.dev()).seeks)
    }

    fn disk(&self, device: u64) -> Disk {
        lock(&self.disks).of(device)
    }

    /// Has every thread do its share.
    fn work(&self, share: impl Fn(&Self, &mut Warmed) + Sync) {
        let threads = if self.warm.threads == 0 {
            THREADS
        } else {
            self.warm.threads
        };
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

    /// Counts what there is to read, if that is soon done.
    fn expect(&self) {
        if self.files.len() <= EXPECTED_FILES_MAX {
            let missing = parallel::map(self.files, |found| {
                open(found).map_or(0, |(_, missing)| missing.bytes)
            });
            self.progress
                .expected_bytes
                .store(missing.iter().sum(), Ordering::Relaxed);
        }
    }

    /// Whether there is memory for `bytes` more; others may have taken it since the budget was
    /// made.
    fn has_room(&self, bytes: u64) -> bool {
        let before = self.asked.fetch_add(bytes, Ordering::Relaxed);
        let asked = before.saturating_add(bytes);
        if asked / self.look_bytes > before / self.look_bytes {
            let memory = (self.memory)();
            // What was brought in counts as available: it would be the first to go.
            let kept = asked.saturating_add(memory.total_bytes / RESERVE_SHARE);
            if memory.available_bytes < kept {
                self.budget.store(0, Ordering::Relaxed);
                self.is_short.store(true, Ordering::Relaxed);
            }
        }
        !self.is_short.load(Ordering::Relaxed)
    }

    /// As much of `bytes` as the budget allows, in whole pages.
    fn allow(&self, bytes: u64) -> u64 {
        let pages = bytes.next_multiple_of(page_bytes());
        let mut allowed = 0;
        let _ = self
            .budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                allowed = pages.min(left / page_bytes() * page_bytes());
                Some(left - allowed)
            });
        allowed.min(bytes)
    }

    /// Files in batches: all of a batch are asked for before the first is waited for.
    fn read_files(&self, done: &mut Warmed) {
        self.read(self.files.len(), done, |done, at| {
            let found = &self.files[at];
            let job = open(found).and_then(|(file, missing)| {
                done.note(&missing);
                Job::new(self, file, missing, done)
            });
            (&found.path, true, job)
        });
    }

    /// Has the jobs with numbers below `count` done, which `start` makes.
    fn read<'a>(
        &'a self,
        count: usize,
        done: &mut Warmed,
        start: impl Fn(&mut Warmed, usize) -> (&'a PathBuf, bool, io::Result<Job>),
    ) {
        loop {
            let (mut batch, mut bytes) = (Vec::with_capacity(BATCH), 0);
            while batch.len() < BATCH && bytes < BATCH_BYTES {
                let Some(at) = self.take(count) else { break };
                let (path, is_file, job) = start(done, at);
                bytes += job.as_ref().map_or(0, |job| job.allowed);
                batch.push((path, is_file, job));
            }
            if batch.is_empty() {
                return;
            }
            for (path, is_file, job) in batch {
                let read = job.and_then(|job| job.finish(self, done));
                if let Err(error) = read {
                    done.failures.push((path.clone(), reason(&error)));
                }
                if is_file {
                    done.files += 1;
                    self.progress.files.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// What has to be read of all files, by place on the disk.
    fn map(&self) -> Vec<Run> {
        let all = Mutex::new(Vec::new());
        self.work(|crew, done| {
            let mut runs = Vec::new();
            while let Some(at) = crew.take(crew.files.len()) {
                let found = &crew.files[at];
                let mapped = open(found).map(|(file, missing)| {
                    done.note(&missing);
                    if missing.bytes > 0 {
                        crew.progress
                            .expected_bytes
                            .fetch_add(missing.bytes, Ordering::Relaxed);
                        runs.extend(runs_of(at, &file, &missing));
                    }
                });
                if let Err(error) = mapped {
                    done.failures.push((found.path.clone(), reason(&error)));
                }
                done.files += 1;
                crew.progress.files.fetch_add(1, Ordering::Relaxed);
            }
            lock(&all).append(&mut runs);
        });
        let mut runs = all
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        runs.sort_unstable_by_key(|run| (run.device, run.place, run.file));
        runs
    }

    fn read_runs(&self, runs: &[Run], done: &mut Warmed) {
        self.read(runs.len(), done, |done, at| {
            let run = &runs[at];
            let path = &self.files[run.file].path;
            let job = reopen(path).and_then(|(file, now)| {
                let part = run.range.start..run.range.end.min(now.len());
                let missing = Missing::of(&file, &now, vec![part])?;
                Job::new(self, file, missing, done)
            });
            (path, false, job)
        });
    }
}

/// Parts of a file that are being brought in.
struct Job {
    file: File,
    found: Metadata,
    piece_bytes: u64,
    /// Not asked for so far.
    parts: VecDeque<Range<u64>>,
    /// Asked for, and not waited for so far.
    under_way: VecDeque<Range<u64>>,
    /// All that was asked for.
    asked: Vec<Range<u64>>,
    /// All that is to be asked for.
    wanted_bytes: u64,
    /// Bytes that the budget was charged with, and those of them that were told.
    allowed: u64,
    told: u64,
    /// Whether the rest is left out.
    is_cut: bool,
    /// Whether nothing was in memory before: then no earlier readahead left a mark at which reading
    /// would go on by itself, beyond the budget.
    is_cold: bool,
}

impl Job {
    /// Asks for the beginning of what is missing, as far as the budget goes.
    fn new(crew: &Crew<'_>, file: File, missing: Missing, done: &mut Warmed) -> io::Result<Self> {
        let disk = crew.disk(missing.device);
        let mut job = Self {
            file,
            found: missing.found,
            piece_bytes: disk.piece_bytes,
            parts: VecDeque::new(),
            under_way: VecDeque::new(),
            asked: Vec::new(),
            wanted_bytes: 0,
            allowed: 0,
            told: 0,
            is_cut: false,
            is_cold: missing.is_cold,
        };
        for (part, lacks) in missing.parts {
            let allowed = crew.allow(lacks);
            done.over_budget_bytes += lacks - allowed;
            job.allowed += allowed;
            if allowed == lacks && lacks > 0 {
                job.parts.push_back(part);
            } else if allowed > 0 {
                // What is there may lie anywhere between: the budget counts only what is not.
                job.parts
                    .push_back(first_missing(&job.file, &job.found, part, allowed)?);
            }
        }
        job.wanted_bytes = job.parts.iter().map(|part| part.end - part.start).sum();
        job.ask(crew)?;
        Ok(job)
    }

    /// Asks for as many pieces as may be under way.
    fn ask(&mut self, crew: &Crew<'_>) -> io::Result<()> {
        let mut bytes: u64 = self
            .under_way
            .iter()
            .map(|piece| piece.end - piece.start)
            .sum();
        while bytes < self.piece_bytes * PIECES && self.under_way.len() < PIECES_MAX {
            let Some(part) = self.parts.front_mut() else {
                break;
            };
            let piece = part.start..part.end.min(part.start + self.piece_bytes);
            part.start = piece.end;
            if part.is_empty() {
                self.parts.pop_front();
            }
            let len_bytes = piece.end - piece.start;
            if crew.progress.stop.load(Ordering::Relaxed)
                || !crew.has_room(self.missing_in(len_bytes))
            {
                self.parts.clear();
                self.is_cut = true;
                break;
            }
            rustix::fs::fadvise(
                &self.file,
                piece.start,
                NonZeroU64::new(len_bytes),
                Advice::WillNeed,
            )?;
            bytes += len_bytes;
            match self.asked.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => self.asked.push(piece.clone()),
            }
            self.under_way.push_back(piece);
        }
        Ok(())
    }

    /// How much of so many bytes is missing, if that is spread evenly.
    fn missing_in(&self, len_bytes: u64) -> u64 {
        let missing =
            u128::from(len_bytes) * u128::from(self.allowed) / u128::from(self.wanted_bytes.max(1));
        u64::try_from(missing).unwrap_or(len_bytes).min(len_bytes)
    }

    /// Waits for all that was asked for, asking for the rest meanwhile.
    fn finish(mut self, crew: &Crew<'_>, done: &mut Warmed) -> io::Result<()> {
        while let Some(piece) = self.under_way.pop_front() {
            self.wait(&piece)?;
            self.tell(piece.end - piece.start, crew, done);
            self.ask(crew)?;
        }
        for asked in std::mem::take(&mut self.asked) {
            let there = resident_in(&self.file, &self.found, &asked)?.unwrap_or(0);
            if there < asked.end - asked.start
                && (self.is_cold || sys::populate(&self.file, asked.clone()).is_err())
            {
                read_plainly(&self.file, asked)?;
            }
        }
        // Pieces hold what was there before, too.
        let left = self.allowed - self.told;
        match self.is_cut {
            true => done.over_budget_bytes += left,
            false => self.tell(left, crew, done),
        }
        Ok(())
    }

    /// Waits until a piece is there: until its last byte can be read.
    fn wait(&self, piece: &Range<u64>) -> io::Result<()> {
        let last = piece.end - 1..piece.end;
        if self.is_cold || sys::populate(&self.file, last.clone()).is_err() {
            self.file.read_at(&mut [0], last.start)?;
        }
        Ok(())
    }

    fn tell(&mut self, bytes: u64, crew: &Crew<'_>, done: &mut Warmed) {
        let bytes = bytes.min(self.allowed - self.told);
        self.told += bytes;
        done.read_bytes += bytes;
        crew.progress.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What an open file lacks.
struct Missing {
    device: u64,
    found: Metadata,
    size_bytes: u64,
    /// What is meant of it, and how many bytes of each are not in memory.
    parts: Vec<(Range<u64>, u64)>,
    /// The sum of those.
    bytes: u64,
    /// Whether it is known that nothing of the whole file is in memory.
    is_cold: bool,
}

impl Missing {
    fn of(file: &File, found: &Metadata, parts: Vec<Range<u64>>) -> io::Result<Self> {
        let mut this = Self {
            device: found.dev(),
            found: found.clone(),
            size_bytes: 0,
            parts: Vec::new(),
            bytes: 0,
            is_cold: false,
        };
        this.is_cold = resident_in(file, found, &(0..found.len()))? == Some(0);
        for part in parts {
            let len_bytes = part.end.saturating_sub(part.start);
            // Where it is not told, everything is asked for; the kernel knows what is there.
            let there = if this.is_cold {
                Some(0)
            } else {
                resident_in(file, found, &part)?
            };
            let lacks = len_bytes.saturating_sub(there.unwrap_or(0));
            this.size_bytes += len_bytes;
            this.bytes += lacks;
            this.parts.push((part, lacks));
        }
        Ok(this)
    }
}

/// Opens a file that is to be read, if it still is a regular one, and tells what of it is not in
/// memory.
fn open(wanted: &Found) -> io::Result<(File, Missing)> {
    let (file, found) = reopen(&wanted.path)?;
    let mut parts = wanted.parts(found.len());
    if wanted.ranges.is_empty() && found.blocks().saturating_mul(512) < found.len() {
        parts = data_ranges(&file, found.len()).unwrap_or(parts);
    }
    let missing = Missing::of(&file, &found, parts)?;
    Ok((file, missing))
}

/// Where a sparse file has data; `None` if the file system cannot tell.
fn data_ranges(file: &File, size_bytes: u64) -> Option<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        if ranges.len() == DATA_RUNS_MAX {
            ranges.push(at..size_bytes);
            break;
        }
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))
            .ok()?
            .min(size_bytes);
        if end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Some(ranges)
}

/// Opens a file so that only what is asked for comes in: the kernel's own readahead would go beyond
/// the budget.
fn reopen(path: &Path) -> io::Result<(File, Metadata)> {
    let (file, found) = open_regular(path)?;
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
    Ok((file, found))
}

/// The runs of a file by their place; all of it in one where that is not known.
fn runs_of(at: usize, file: &File, missing: &Missing) -> Vec<Run> {
    let run = |place, range| Run {
        device: missing.device,
        place,
        file: at,
        range,
    };
    let parts: Vec<_> = missing
        .parts
        .iter()
        .filter(|(_, lacks)| *lacks > 0)
        .map(|(part, _)| part.clone())
        .collect();
    let whole = || parts.iter().map(|part| run(0, part.clone())).collect();
    let Ok(extents) = sys::fiemap(file, EXTENTS_MAX) else {
        return whole();
    };
    let mut lie: Vec<(u64, Range<u64>)> = extents
        .iter()
        .map(|extent| {
            (
                extent.place,
                extent.offset..extent.offset.saturating_add(extent.len_bytes),
            )
        })
        .collect();
    if let Some((place, last)) = lie.last().cloned().filter(|_| lie.len() == EXTENTS_MAX) {
        lie.push((place + (last.end - last.start), last.end..u64::MAX));
    }
    let mut runs = Vec::new();
    for part in &parts {
        for (place, lies) in &lie {
            let range = part.start.max(lies.start)..part.end.min(lies.end);
            if !range.is_empty() {
                runs.push(run(place + (range.start - lies.start), range));
            }
        }
    }
    runs
}

/// The beginning of `range` in which `bytes` bytes are missing.
fn first_missing(
    file: &File,
    found: &Metadata,
    range: Range<u64>,
    bytes: u64,
) -> io::Result<Range<u64>> {
    // Where nothing is told, mincore(2) says that everything is there.
    if resident_in(file, found, &range)?.is_none() {
        return Ok(range.start..range.end.min(range.start + bytes));
    }
    let mut left = bytes;
    let mut at = range.start;
    let mut end = None;
    cached_ranges(file, range.clone(), |run| {
        if end.is_none() && run.start - at >= left {
            end = Some(at + left);
        }
        left = left.saturating_sub(run.start - at);
        at = run.end;
    })?;
    Ok(range.start..end.unwrap_or(at + left).min(range.end))
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
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::{Known, residency};
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;
    const FILES: u64 = 12;

    /// Files of 4 MiB each that are not in memory, on a file system that can do without them.
    fn cold(folder: &TempDir) -> Vec<Found> {
        let file = |number: u64| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, vec![number as u8; 4 << 20]).unwrap();
            let file = File::open(&path).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            Found::whole(path, number)
        };
        (0..FILES).map(file).collect()
    }

    /// Bytes of the files in memory; `None` where that is not told.
    fn resident(files: &[Found]) -> Option<u64> {
        files.iter().try_fold(0, |sum, found| {
            match residency(&File::open(&found.path).unwrap()).unwrap() {
                Known::Is(told) => Some(sum + told.resident_bytes),
                Known::NotTold(_) => None,
            }
        })
    }

    /// Warms files of 48 MiB, and looks at memory every 2 MiB: 100 MiB in all, of which so much is
    /// available from one look on.
    fn warm(order: Order, available_mib: u64, from_look: u64) -> Option<Warmed> {
        let folder = TempDir::new_in("/var/tmp").unwrap();
        let files = cold(&folder);
        if resident(&files) != Some(0) {
            return None;
        }
        let looks = AtomicU64::new(0);
        let memory = || {
            let is_taken = looks.fetch_add(1, Ordering::Relaxed) >= from_look;
            let available_bytes = if is_taken {
                available_mib * MIB
            } else {
                100 * MIB
            };
            Memory {
                total_bytes: 100 * MIB,
                available_bytes,
            }
        };
        let progress = Progress::default();
        let warmed = Warm {
            order,
            threads: 3,
            budget_bytes: u64::MAX,
        }
        .run_within(&memory, &files, &progress);
        let left_out = warmed.over_budget_bytes;
        assert_eq!(
            (warmed.files, warmed.read_bytes + left_out),
            (FILES, FILES * 4 * MIB),
            "{warmed:?}"
        );
        assert_eq!(progress.read_bytes.into_inner(), warmed.read_bytes);
        // It stays, but for pages that the kernel takes by itself, and nothing else has come.
        let there = resident(&files).expect("it was told before");
        assert!(
            (warmed.read_bytes * 3 / 4..=warmed.read_bytes).contains(&there),
            "{there}, {warmed:?}"
        );
        assert_eq!(warmed.is_memory_short, left_out > 0, "{warmed:?}");
        assert!(warmed.failures.is_empty(), "{warmed:?}");
        Some(warmed)
    }

    #[test]
    fn nothing_is_brought_in_that_would_push_out_the_rest() {
        for order in [Order::Inode, Order::Physical] {
            // (available MiB, from which look on), and MiB that are read: at least, at most.
            for ((available_mib, from_look), (least, most)) in [
                ((100, 0), (48, 48)),
                ((52, 0), (48, 48)),
                ((30, 0), (20, 30)),
                ((30, 5), (20, 30)),
                ((4, 0), (0, 4)),
                // A look every 2 MiB, or with every piece: those are of 4 MiB at most here.
                ((0, 6), (1, 24)),
                ((0, 0), (0, 2)),
            ] {
                let Some(warmed) = warm(order, available_mib, from_look) else {
                    return eprintln!("skipped: files in /var/tmp are always in memory");
                };
                let read_mib = warmed.read_bytes / MIB;
                let what = format!("{order:?}, {available_mib} from look {from_look}: {warmed:?}");
                assert!((least..=most).contains(&read_mib), "{what}");
            }
        }
    }
}
