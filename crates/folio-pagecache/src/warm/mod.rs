//! Warming: reads files into the kernel's page cache, in an order that suits the disk, with many
//! requests in flight, and counts each byte once it is resident.
//!
//! ```text
//!   files --> Order::Inode      each thread: a batch of files; open, find absent pages, WILLNEED; wait, close
//!         \-> Order::Physical   map all files (FIEMAP), sort by disk offset, then the same in that order
//!         \-> stream.rs         afterwards, in the same order: large parts, read in sequence
//! ```
//!
//! posix_fadvise(2) WILLNEED lets small reads overlap and the block layer merge them. It silently
//! limits each request (device.rs), and returns before the pages are resident. So ranges are split
//! into pieces, and reading a piece waits for it; pages still absent at the end are read with
//! read(2) (read.rs). Holes are skipped: they need no disk.
//!
//! WILLNEED brings single pages. Only the kernel's own readahead brings large folios, which later
//! reads copy faster, so large parts are read as any program reads them.

mod read;
mod stream;

use self::read::read;
use crate::device::{Disk, Disks};
use crate::memory::Memory;
use crate::open::{Source, disk_of};
use crate::parallel::{self, THREADS};
use crate::residency::{cached_ranges, page_bytes, resident_in};
use crate::scan::{Found, reason};
use crate::sys;
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Large pieces that one thread has in flight.
const PIECES: u64 = 4;
/// Files or runs that one thread has in flight, and the bytes after which it takes no more.
const BATCH: usize = 16;
const BATCH_BYTES: u64 = 4 << 20;
/// Small pieces of one file in flight, as in a hot set.
const PIECES_MAX: usize = 64;
/// Maximum number of files for which the bytes to read are counted in advance.
const EXPECTED_FILES_MAX: usize = 4096;
/// The share of total memory that must stay available, and the bytes after which this is checked:
/// at most that share.
const RESERVE_SHARE: u64 = 50;
const LOOK_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of data runs of one file; the rest of the file is read with its holes.
const DATA_RUNS_MAX: usize = 4096;
/// Maximum number of sorted extents of one file; the rest follows in file order.
const EXTENTS_MAX: usize = 4096;

/// The order of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Order {
    /// Physical if the disk seeks, else inode.
    #[default]
    #[cfg_attr(feature = "schema", schemars(skip))]
    Auto,
    /// By inode number; needs no pass over the files.
    Inode,
    /// By offset on the disk.
    Physical,
}

/// Options of warming.
#[derive(Debug, Clone, Copy)]
pub struct Warm {
    /// The order of reads.
    pub order: Order,
    /// Threads; 0 is 16.
    pub threads: usize,
    /// Maximum bytes to read; resident bytes do not count.
    pub budget_bytes: u64,
}

/// Progress of warming; the counters grow while files are read.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files finished, including failed ones.
    pub files: AtomicU64,
    /// Bytes brought in.
    pub read_bytes: AtomicU64,
    /// Bytes to bring in, once known; else 0.
    pub expected_bytes: AtomicU64,
    /// Stops warming early when set.
    pub stop: AtomicBool,
}

/// The result of warming. Bytes are those of files, not of the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Warmed {
    /// Files examined.
    pub files: u64,
    /// Their total size in bytes.
    pub size_bytes: u64,
    /// Bytes resident before.
    pub resident_before_bytes: u64,
    /// Bytes brought in.
    pub read_bytes: u64,
    /// Bytes of holes, which are not in `size_bytes` and not read.
    pub hole_bytes: u64,
    /// Bytes skipped because the budget was spent or memory ran short.
    pub over_budget_bytes: u64,
    /// Whether memory ran short: other programs took it meanwhile, and further reads would have
    /// evicted what was brought in.
    pub is_memory_short: bool,
    /// The order chosen.
    pub order: Order,
    /// Paths that could not be read, each with the reason.
    pub failures: Vec<(PathBuf, String)>,
}

/// State shared by all threads.
struct WarmContext<'a> {
    files: &'a [Found],
    warm: &'a Warm,
    progress: &'a Progress,
    /// Returns the memory available now.
    memory: &'a (dyn Fn() -> Memory + Sync),
    look_bytes: u64,
    budget: AtomicU64,
    /// Absent bytes requested so far.
    asked: AtomicU64,
    is_short: AtomicBool,
    next: AtomicUsize,
    disks: Mutex<Disks>,
    /// Parts left for the streams.
    large: Mutex<Vec<Run>>,
    total: Mutex<Warmed>,
}

/// A part of a file, with its offset on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    device: u64,
    /// Offset on the disk; 0 if unknown.
    place: u64,
    file: usize,
    range: Range<u64>,
    /// Of a stream: the end up to which the kernel may read ahead.
    readahead_end: u64,
    /// Of a stream: whether the file is finished with it.
    ends_file: bool,
}

impl Warm {
    /// Reads `files` into memory and updates `progress`. Reports files that were removed, are
    /// unreadable or no longer regular, and goes on with the rest.
    pub fn run(&self, files: &[Found], progress: &Progress) -> Warmed {
        self.run_within(&Memory::here, files, progress)
    }

    /// As [`Warm::run`], with `memory` as the source of available memory.
    fn run_within(
        &self,
        memory: &(dyn Fn() -> Memory + Sync),
        files: &[Found],
        progress: &Progress,
    ) -> Warmed {
        let context = WarmContext {
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
            large: Mutex::default(),
            total: Mutex::default(),
        };
        let seeks = context.is_on_heads();
        let is_physical = match self.order {
            Order::Auto => seeks,
            order => order == Order::Physical,
        };
        lock(&context.total).order = if is_physical {
            Order::Physical
        } else {
            Order::Inode
        };
        if is_physical {
            let runs = context.map();
            context.work(runs.len(), |context, done| context.read_runs(&runs, done));
        } else {
            context.expect();
            context.work(files.len(), |context, done| context.read_files(done));
        }
        context.stream(seeks);
        let mut total = context
            .total
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        total.is_memory_short = context.is_short.into_inner();
        let is_whole = total.failures.is_empty()
            && total.over_budget_bytes == 0
            && !total.is_memory_short
            && !progress.stop.load(Ordering::Relaxed);
        if is_whole {
            // Readahead of one stream may bring pages of another, which then finds them resident.
            total.read_bytes = total.size_bytes - total.resident_before_bytes;
            progress
                .read_bytes
                .store(total.read_bytes, Ordering::Relaxed);
        }
        total
    }
}

impl WarmContext<'_> {
    /// Returns whether the first file is on a disk that seeks.
    fn is_on_heads(&self) -> bool {
        let first = self
            .files
            .iter()
            .find_map(|found| std::fs::metadata(&found.path).ok());
        first.is_some_and(|found| self.disk(disk_of(&found)).seeks)
    }

    fn disk(&self, device: u64) -> Disk {
        lock(&self.disks).of(device)
    }

    fn threads(&self) -> usize {
        if self.warm.threads == 0 {
            THREADS
        } else {
            self.warm.threads
        }
    }

    /// Runs `share` on every thread, on numbers from 0 on.
    fn work(&self, jobs: usize, share: impl Fn(&Self, &mut Warmed) + Sync) {
        self.next.store(0, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..self.threads().min(jobs).max(1) {
                scope.spawn(|| {
                    let mut done = Warmed::default();
                    share(self, &mut done);
                    lock(&self.total).add(done);
                });
            }
        });
    }

    /// Returns the next number below `count`.
    fn take(&self, count: usize) -> Option<usize> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        (at < count && !self.progress.stop.load(Ordering::Relaxed)).then_some(at)
    }

    /// Counts the bytes to read, if there are few files.
    fn expect(&self) {
        if self.files.len() <= EXPECTED_FILES_MAX {
            let missing = parallel::map(self.files, |found| {
                open(found).map_or(0, |missing| missing.bytes)
            });
            self.progress
                .expected_bytes
                .store(missing.iter().sum(), Ordering::Relaxed);
        }
    }

    /// Returns whether memory suffices for `bytes` more; other programs may have taken some since
    /// the budget was computed.
    fn has_room(&self, bytes: u64) -> bool {
        let before = self.asked.fetch_add(bytes, Ordering::Relaxed);
        let asked = before.saturating_add(bytes);
        if asked / self.look_bytes > before / self.look_bytes {
            let memory = (self.memory)();
            // Pages brought in count as available, because the kernel evicts them first.
            let kept = asked.saturating_add(memory.total_bytes / RESERVE_SHARE);
            if memory.available_bytes < kept {
                self.budget.store(0, Ordering::Relaxed);
                self.is_short.store(true, Ordering::Relaxed);
            }
        }
        !self.is_short.load(Ordering::Relaxed)
    }

    /// Takes as much of `bytes` from the budget as it allows, in whole pages.
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

    /// Reads files in batches: requests all of a batch before waiting for the first.
    fn read_files(&self, done: &mut Warmed) {
        self.read(self.files.len(), done, |done, at| {
            let found = &self.files[at];
            let mut is_whole = true;
            let job = open(found).and_then(|mut missing| {
                done.note(&missing);
                is_whole = self.leave_large(at, &mut missing);
                FileRead::new(self, missing, done)
            });
            (&found.path, is_whole, job)
        });
    }

    /// Runs the reads numbered below `count`, each created by `start`.
    fn read<'a>(
        &'a self,
        count: usize,
        done: &mut Warmed,
        start: impl Fn(&mut Warmed, usize) -> (&'a PathBuf, bool, io::Result<FileRead>),
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

    /// Returns the absent runs of all files, sorted by offset on the disk.
    fn map(&self) -> Vec<Run> {
        let all = Mutex::new(Vec::new());
        self.work(self.files.len(), |context, done| {
            let mut runs = Vec::new();
            while let Some(at) = context.take(context.files.len()) {
                let found = &context.files[at];
                let mapped = open(found).map(|mut missing| {
                    done.note(&missing);
                    if missing.bytes > 0 {
                        context
                            .progress
                            .expected_bytes
                            .fetch_add(missing.bytes, Ordering::Relaxed);
                        context.leave_large(at, &mut missing);
                        runs.extend(runs_of(at, &missing));
                    }
                });
                if let Err(error) = mapped {
                    done.failures.push((found.path.clone(), reason(&error)));
                }
                done.files += 1;
                context.progress.files.fetch_add(1, Ordering::Relaxed);
            }
            lock(&all).append(&mut runs);
        });
        let mut runs = all
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        runs.sort_unstable_by_key(|run| (run.device, run.place, run.file, run.range.start));
        runs
    }

    fn read_runs(&self, runs: &[Run], done: &mut Warmed) {
        self.read(runs.len(), done, |done, at| {
            let run = &runs[at];
            let path = &self.files[run.file].path;
            let job = self.exact(path, run.range.clone(), done);
            (path, false, job)
        });
    }
}

impl WarmContext<'_> {
    /// Starts to read exactly this range.
    fn exact(&self, path: &Path, range: Range<u64>, done: &mut Warmed) -> io::Result<FileRead> {
        let source = reopen(path)?;
        let part = range.start..range.end.min(source.size_bytes);
        FileRead::new(self, Missing::of(source, vec![part])?, done)
    }
}

/// A file with reads in flight.
struct FileRead {
    source: Source,
    piece_bytes: u64,
    /// Pieces not requested yet.
    parts: VecDeque<Range<u64>>,
    /// Pieces requested and not waited for.
    under_way: VecDeque<Range<u64>>,
    /// All requested pieces.
    asked: Vec<Range<u64>>,
    /// All ranges to request.
    wanted_bytes: u64,
    /// Bytes charged to the budget, and the part of them reported as progress.
    allowed: u64,
    reported: u64,
    /// Whether the rest is skipped.
    is_cut: bool,
    /// Whether the file had no resident page: then no earlier readahead left a mark at which the
    /// kernel would read on, beyond the budget.
    is_cold: bool,
}

impl FileRead {
    /// Requests the absent pages from the start, as far as the budget allows.
    fn new(context: &WarmContext<'_>, missing: Missing, done: &mut Warmed) -> io::Result<Self> {
        let disk = context.disk(missing.source.device);
        let mut job = Self {
            source: missing.source,
            piece_bytes: disk.piece_bytes,
            parts: VecDeque::new(),
            under_way: VecDeque::new(),
            asked: Vec::new(),
            wanted_bytes: 0,
            allowed: 0,
            reported: 0,
            is_cut: false,
            is_cold: missing.is_cold,
        };
        for (part, lacks) in missing.parts {
            let allowed = context.allow(lacks);
            done.over_budget_bytes += lacks - allowed;
            job.allowed += allowed;
            if allowed == lacks && lacks > 0 {
                job.parts.push_back(part);
            } else if allowed > 0 {
                // Resident pages may be anywhere in the range; the budget counts absent ones only.
                job.parts
                    .push_back(first_missing(&job.source, part, allowed)?);
            }
        }
        job.wanted_bytes = job.parts.iter().map(|part| part.end - part.start).sum();
        job.ask(context)?;
        Ok(job)
    }

    /// Requests pieces up to the limit in flight.
    fn ask(&mut self, context: &WarmContext<'_>) -> io::Result<()> {
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
            if context.progress.stop.load(Ordering::Relaxed)
                || !context.has_room(self.missing_in(len_bytes))
            {
                self.parts.clear();
                self.is_cut = true;
                break;
            }
            rustix::fs::fadvise(
                &self.source.file,
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

    /// Estimates the absent bytes among `len_bytes`, assuming they are spread evenly.
    fn missing_in(&self, len_bytes: u64) -> u64 {
        let missing =
            u128::from(len_bytes) * u128::from(self.allowed) / u128::from(self.wanted_bytes.max(1));
        u64::try_from(missing).unwrap_or(len_bytes).min(len_bytes)
    }

    /// Waits for all requested pieces, and requests the rest meanwhile.
    fn finish(mut self, context: &WarmContext<'_>, done: &mut Warmed) -> io::Result<()> {
        while let Some(piece) = self.under_way.pop_front() {
            self.wait(&piece)?;
            self.report(piece.end - piece.start, context, done);
            self.ask(context)?;
        }
        for asked in std::mem::take(&mut self.asked) {
            let there = resident_in(&self.source.file, &self.source.found, &asked)?.unwrap_or(0);
            if there < asked.end - asked.start {
                self.wait(&asked)?;
            }
        }
        // Pieces include pages that were resident before.
        let left = self.allowed - self.reported;
        if self.is_cut {
            done.over_budget_bytes += left;
        } else {
            self.report(left, context, done);
        }
        Ok(())
    }

    /// Waits until all of a piece is resident, by reading it.
    fn wait(&self, piece: &Range<u64>) -> io::Result<()> {
        let file = &self.source.file;
        if !self.is_cold && sys::populate(file, piece.clone()).is_ok() {
            return Ok(());
        }
        let mut at = piece.start;
        while at < piece.end {
            match read(file, at, piece.end - at)? {
                0 => break,
                count => at += count,
            }
        }
        Ok(())
    }

    fn report(&mut self, bytes: u64, context: &WarmContext<'_>, done: &mut Warmed) {
        let bytes = bytes.min(self.allowed - self.reported);
        self.reported += bytes;
        done.read_bytes += bytes;
        context
            .progress
            .read_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The absent parts of an open file.
struct Missing {
    source: Source,
    size_bytes: u64,
    hole_bytes: u64,
    /// The selected ranges, each with its absent bytes.
    parts: Vec<(Range<u64>, u64)>,
    /// Sum of the absent bytes.
    bytes: u64,
    /// Whether the whole file is known to be absent.
    is_cold: bool,
}

impl Missing {
    fn of(source: Source, parts: Vec<Range<u64>>) -> io::Result<Self> {
        let resident = |range: &Range<u64>| resident_in(&source.file, &source.found, range);
        let is_cold = resident(&(0..source.size_bytes))? == Some(0);
        let (mut size_bytes, mut bytes, mut counted) = (0, 0, Vec::new());
        for part in parts {
            let len_bytes = part.end.saturating_sub(part.start);
            // If residency is unknown, request everything; the kernel skips resident pages.
            let there = if is_cold { Some(0) } else { resident(&part)? };
            let lacks = len_bytes.saturating_sub(there.unwrap_or(0));
            size_bytes += len_bytes;
            bytes += lacks;
            counted.push((part, lacks));
        }
        Ok(Self {
            source,
            size_bytes,
            hole_bytes: 0,
            parts: counted,
            bytes,
            is_cold,
        })
    }
}

/// Opens a file to be read, if it is still regular or a block device, and returns its absent parts.
fn open(wanted: &Found) -> io::Result<Missing> {
    let source = reopen(&wanted.path)?;
    let size_bytes = source.size_bytes;
    if wanted.ranges.is_empty()
        && source.found.blocks().saturating_mul(512) < size_bytes
        && let Some(parts) = data_ranges(&source.file, size_bytes)
    {
        let mut missing = Missing::of(source, parts)?;
        missing.hole_bytes = size_bytes - missing.size_bytes;
        return Ok(missing);
    }
    Missing::of(source, wanted.parts(size_bytes))
}

/// Returns the data ranges of a sparse file; `None` if the file system cannot report them.
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

/// Reopens a file without the kernel's own readahead, which would exceed the budget.
fn reopen(path: &Path) -> io::Result<Source> {
    let source = Source::open(path)?;
    let _ = rustix::fs::fadvise(&source.file, 0, None, Advice::Random);
    Ok(source)
}

/// Returns the runs of a file with their disk offsets; a single run if those are unknown.
fn runs_of(at: usize, missing: &Missing) -> Vec<Run> {
    let run = |place, range| Run {
        device: missing.source.device,
        place,
        file: at,
        range,
        readahead_end: 0,
        ends_file: false,
    };
    let parts: Vec<_> = missing
        .parts
        .iter()
        .filter(|(_, lacks)| *lacks > 0)
        .map(|(part, _)| part.clone())
        .collect();
    let whole = || parts.iter().map(|part| run(0, part.clone())).collect();
    let Ok(extents) = sys::fiemap(&missing.source.file, EXTENTS_MAX) else {
        return whole();
    };
    let mut sorted: Vec<(u64, Range<u64>)> = extents
        .iter()
        .map(|extent| {
            (
                extent.place,
                extent.offset..extent.offset.saturating_add(extent.len_bytes),
            )
        })
        .collect();
    if let Some((place, last)) = sorted
        .last()
        .cloned()
        .filter(|_| sorted.len() == EXTENTS_MAX)
    {
        sorted.push((place + (last.end - last.start), last.end..u64::MAX));
    }
    let mut runs = Vec::new();
    for part in &parts {
        for (place, extent) in &sorted {
            let range = part.start.max(extent.start)..part.end.min(extent.end);
            if !range.is_empty() {
                runs.push(run(place + (range.start - extent.start), range));
            }
        }
    }
    runs
}

/// Returns the start of `range` that contains `bytes` absent bytes.
fn first_missing(source: &Source, range: Range<u64>, bytes: u64) -> io::Result<Range<u64>> {
    // If residency is unknown, mincore(2) reports everything as resident.
    if resident_in(&source.file, &source.found, &range)?.is_none() {
        return Ok(range.start..range.end.min(range.start + bytes));
    }
    let mut left = bytes;
    let mut at = range.start;
    let mut end = None;
    cached_ranges(&source.file, range.clone(), |run| {
        if end.is_none() && run.start - at >= left {
            end = Some(at + left);
        }
        left = left.saturating_sub(run.start - at);
        at = run.end;
    })?;
    Ok(range.start..end.unwrap_or(at + left).min(range.end))
}

impl Warmed {
    fn note(&mut self, missing: &Missing) {
        self.size_bytes += missing.size_bytes;
        self.hole_bytes += missing.hole_bytes;
        self.resident_before_bytes += missing.size_bytes - missing.bytes;
    }

    fn add(&mut self, mut other: Self) {
        self.files += other.files;
        self.size_bytes += other.size_bytes;
        self.hole_bytes += other.hole_bytes;
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
mod tests;
