//! The scenarios `read`, `stat` and `write`: calls on a path of the user's, cold and warm, beside
//! the device and memory.

use crate::evidence::{forget, label, mib_per_second, rate, watched};
use crate::options::size;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::random::Random;
use crate::report::{Report, Sample, Unit};
use folio::AlignedBuffer;
use rustix::fs::{AtFlags, CWD, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What `read` and `write` take.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The file to read, or the folder whose files are read or in which one is written
    path: PathBuf,
    /// Bytes at most, at least 1M [default: 1G for read, 256M for write]
    #[arg(long, value_parser = size)]
    limit: Option<u64>,
}

/// What `stat` takes.
#[derive(Debug, Clone, clap::Args)]
pub struct StatOptions {
    /// The file, or the folder whose tree is walked
    path: PathBuf,
}

const PIECE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
const SMALL_READS: u64 = 2000;
const STATS: u64 = 20_000;
const SYNCS: u64 = 100;
/// Files of a tree at most.
const FILES_MAX: usize = 100_000;
/// Files that are open at once at most: below the usual limit of a process.
const OPEN_MAX: usize = 900;
const DIRECT: &str = "O_DIRECT";
const IN_ORDER: &str = "in order";
const AT_RANDOM: &str = "4 KiB at random";
const OVERWRITES: &str = "4 KiB over old ones, at random";

const READ_LIMITS: [&str; 4] = [
    "cold: written and forgotten file by file with POSIX_FADV_DONTNEED, and checked; afterwards the files are in memory",
    "a cache below the file system (a server's, a host's, the disk's) is not emptied: bytes from the device are counted \
     at this machine's devices",
    "at the speed of memory the device is not measured, whatever the figure",
    "O_DIRECT, where the file system has it: one request of 1 MiB after the other, which is not all that a device can do",
];
const WRITE_LIMITS: [&str; 3] = [
    "written without a sync goes to memory; that is its speed",
    "the file is the bench's own, and removed",
    "bytes to the device are counted when a page becomes dirty, written or not",
];
const STAT_LIMITS: [&str; 2] = [
    "names and attributes are in memory after the first round: the figures do not separate the first from the rest",
    "switches for each stat show the origin of the answer: 0 is the kernel's memory, more is a server",
];

/// Files below a path, open.
struct Tree {
    files: Vec<File>,
    paths: Vec<PathBuf>,
    bytes: u64,
    /// Bytes of a file that are read at most.
    limit: u64,
    /// What was left out.
    beyond: usize,
}

impl Tree {
    /// Opens the file, or regular files below the folder until they have `limit` bytes.
    fn open(path: &Path, limit: u64) -> Outcome<Self> {
        let mut tree = Self {
            files: Vec::new(),
            paths: Vec::new(),
            bytes: 0,
            limit,
            beyond: 0,
        };
        let mut open = vec![path.to_owned()];
        while let Some(path) = open.pop() {
            let found = std::fs::symlink_metadata(&path).at(&path)?;
            if found.is_dir() {
                open.extend(names(&path)?.into_iter().rev());
            } else if found.is_file() && found.len() > 0 {
                let is_full = tree.bytes + found.len() > limit || tree.files.len() >= OPEN_MAX;
                if is_full && !tree.files.is_empty() {
                    tree.beyond += 1;
                    continue;
                }
                tree.files.push(File::open(&path).at(&path)?);
                tree.bytes += found.len().min(limit);
                tree.paths.push(path);
            }
        }
        if tree.files.is_empty() {
            return Err(format!("{}: no regular file with bytes in it", path.display()).into());
        }
        Ok(tree)
    }

    /// Reads all files in order, in pieces of 1 MiB, `limit` bytes of each at most, with `flags`
    /// added to those of open.
    fn read(&self, limit: u64, flags: OFlags) -> Outcome {
        let mut buf = AlignedBuffer::new(PIECE);
        for path in &self.paths {
            let file = open(File::options().read(true), path, flags)?;
            let mut file = file.take(limit);
            while file.read(&mut buf).at(path)? > 0 {}
        }
        Ok(())
    }

    /// Reads pieces of 4 KiB, file by file in turn, at random places.
    fn read_small(&self, count: u64) -> Outcome {
        let (mut random, mut buf) = (Random::new(1), vec![0; SMALL]);
        let size = |file: &File| Ok(file.metadata()?.len().min(self.limit));
        let sizes = self.files.iter().map(size).collect::<Outcome<Vec<u64>>>()?;
        for at in 0..count as usize {
            let at = at % sizes.len();
            let pages = sizes[at].div_ceil(SMALL as u64).max(1);
            let offset = random.below(pages) * SMALL as u64;
            self.files[at].read_at(&mut buf, offset).at("read")?;
        }
        Ok(())
    }

    /// Drops the files from memory or brings them there, and watches `work`.
    fn watch(
        &self,
        is_cold: bool,
        operations: u64,
        work: impl FnOnce() -> Outcome,
    ) -> Outcome<Sample> {
        let files: Vec<&File> = self.files.iter().collect();
        if is_cold {
            forget(&files)?;
        } else {
            self.read(self.limit, OFlags::empty())?;
        }
        watched(&files, operations, work)
    }

    fn in_order(&self, is_cold: bool, flags: OFlags) -> Outcome<Sample> {
        let sample = self.watch(is_cold, 0, || self.read(self.limit, flags))?;
        Ok(rate(self.bytes, sample, is_cold))
    }

    fn at_random(&self, is_cold: bool, reads: u64) -> Outcome<Sample> {
        let sample = self.watch(is_cold, reads, || self.read_small(reads))?;
        let pages = reads.min(self.bytes / SMALL as u64);
        let label = label(pages * SMALL as u64 / 4, sample.evidence, is_cold);
        Ok(sample.map(|seconds| seconds / reads as f64).labeled(label))
    }
}

fn open(options: &mut std::fs::OpenOptions, path: &Path, flags: OFlags) -> Outcome<File> {
    options
        .custom_flags(flags.bits() as i32)
        .open(path)
        .at(path)
}

fn names(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).at(folder)?;
    let paths = entries.map(|entry| Ok(entry.at(folder)?.path()));
    let mut paths = paths.collect::<Outcome<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Measures reads of a path.
pub(crate) fn read(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let limit = options.limit.unwrap_or_else(|| run.sized(1 << 30, 1 << 20));
    let tree = &Tree::open(&options.path, limit)?;
    let (count, mib) = (tree.files.len(), tree.bytes >> 20);
    let what = format!("{}: {count} files, {mib} MiB", options.path.display());
    let mut report = Report::new("read", what, parent(&options.path));
    if tree.beyond > 0 {
        let what = format!("{} more files", tree.beyond);
        report.skip(what, "--limit, or files that may be open at once");
    }
    let mut race = Race::new(IN_ORDER, Unit::MibPerSecond, Some("cold"));
    race.case(IN_ORDER, "cold", || tree.in_order(true, OFlags::empty()));
    race.case(IN_ORDER, "warm", || tree.in_order(false, OFlags::empty()));
    match tree.read(limit.min(PIECE as u64), OFlags::DIRECT) {
        Ok(()) => race.case(IN_ORDER, DIRECT, || tree.in_order(true, OFlags::DIRECT)),
        Err(error) => report.skip(DIRECT, error.to_string()),
    }
    race.case(IN_ORDER, "memcpy, the limit of memory", || {
        Ok(copied(tree.bytes))
    });
    race.run(run, &mut report)?;
    let reads = run.sized(SMALL_READS, 20);
    let mut race = Race::new(AT_RANDOM, Unit::Seconds, Some("cold"));
    race.case(AT_RANDOM, "cold", || tree.at_random(true, reads));
    race.case(AT_RANDOM, "warm", || tree.at_random(false, reads));
    race.run(run, &mut report)?;
    report.limit(&READ_LIMITS);
    Ok(report)
}

/// Copies as many bytes from memory to memory, at most 64 MiB at a time.
fn copied(bytes: u64) -> Sample {
    let len = bytes.clamp(1, 64 << 20) as usize;
    let (from, mut to) = (vec![1_u8; len], vec![0_u8; len]);
    to.copy_from_slice(&from);
    let start = std::time::Instant::now();
    to.copy_from_slice(std::hint::black_box(&from));
    let seconds = start.elapsed().as_secs_f64();
    std::hint::black_box(&to);
    Sample::of(mib_per_second(len as u64, seconds)).labeled(Some("memory speed"))
}

/// Returns the parent folder of a path, or the path itself if it is a folder.
fn parent(path: &Path) -> &Path {
    if path.is_dir() {
        return path;
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Measures stats of a path.
pub(crate) fn stat(options: &StatOptions, run: &Run<'_>) -> Outcome<Report> {
    const SAME: &str = "one path, again and again";
    let path = &options.path;
    let is_folder = std::fs::symlink_metadata(path).at(path)?.is_dir();
    let mut report = Report::new("stat", format!("{}", path.display()), parent(path));
    let count = run.sized(STATS, 50);
    let file = open(File::options().read(true), path, OFlags::PATH)?;
    let each = |count: u64, work: &dyn Fn() -> Outcome| {
        let sample = watched(&[], count, work)?;
        Ok(sample.map(|seconds| seconds / count as f64))
    };
    let mut race = Race::new("time of each", Unit::Seconds, None);
    race.case(SAME, "stat", || {
        each(count, &|| (0..count).try_for_each(|_| stat_of(path)))
    });
    race.case(SAME, "fstat", || {
        let fstat = || rustix::fs::fstat(&file).map(drop).at("fstat");
        each(count, &|| (0..count).try_for_each(|_| fstat()))
    });
    if is_folder {
        let paths = tree_paths(path, run.sized(FILES_MAX, 1000))?;
        report.note(format!("the tree has {} entries", paths.len()));
        race.case("each path of the tree", "stat", move || {
            let count = (paths.len() as u64).max(1);
            each(count, &|| paths.iter().try_for_each(|path| stat_of(path)))
        });
    }
    race.run(run, &mut report)?;
    report.limit(&STAT_LIMITS);
    Ok(report)
}

fn stat_of(path: &Path) -> Outcome {
    let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).at(path)?;
    std::hint::black_box(found);
    Ok(())
}

/// Returns paths below a folder, at most so many.
fn tree_paths(folder: &Path, most: usize) -> Outcome<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for path in names(&folder)? {
            if paths.len() >= most {
                return Ok(paths);
            }
            if std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                open.push(path.clone());
            }
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Measures writes in a folder, to a file of its own.
pub(crate) fn write(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    const SYNCED: &str = "and fdatasync";
    const NOT_SYNCED: &str = "memory speed: nothing is synced";
    let folder = &options.path;
    let usual_bytes = run.sized(256 << 20, 1 << 20);
    let pieces = options.limit.unwrap_or(usual_bytes) / PIECE as u64;
    if !folder.is_dir() {
        let folder = folder.display();
        return Err(
            format!("{folder}: not a folder; the bench writes a file of its own in one").into(),
        );
    }
    let what = format!("{}: a file of {pieces} MiB", folder.display());
    let mut report = Report::new("write", what, folder);
    let scratch = scratch_in(folder)?;
    let path = &scratch.path().join("file");
    let in_order = |flags: OFlags, syncs: bool| {
        let _ = std::fs::remove_file(path);
        let sample = watched(&[], 0, || written(path, pieces, flags, syncs))?;
        Ok(sample.map(|seconds| mib_per_second(pieces << 20, seconds)))
    };
    let mut race = Race::new(IN_ORDER, Unit::MibPerSecond, Some("written and synced"));
    race.case(IN_ORDER, "written", || {
        in_order(OFlags::empty(), false).map(|sample: Sample| sample.labeled(Some(NOT_SYNCED)))
    });
    race.case(IN_ORDER, "written and synced", || {
        in_order(OFlags::empty(), true)
    });
    match written(path, 1, OFlags::DIRECT, false) {
        Ok(()) => race.case(IN_ORDER, "O_DIRECT and synced", || {
            in_order(OFlags::DIRECT, true)
        }),
        Err(error) => report.skip(DIRECT, error.to_string()),
    }
    race.run(run, &mut report)?;
    written(path, pieces, OFlags::empty(), true)?;
    let count = run.sized(SYNCS, 3);
    let at_random = |syncs| {
        let sample = watched(&[], count, || overwritten(path, pieces, count, syncs))?;
        Ok(sample.map(|seconds| seconds / count as f64))
    };
    let mut race = Race::new("time of each", Unit::Seconds, Some(SYNCED));
    race.case(OVERWRITES, SYNCED, || at_random(true));
    race.case(OVERWRITES, "no sync", || {
        at_random(false).map(|sample: Sample| sample.labeled(Some(NOT_SYNCED)))
    });
    race.run(run, &mut report)?;
    report.limit(&WRITE_LIMITS);
    Ok(report)
}

fn written(path: &Path, pieces: u64, flags: OFlags, syncs: bool) -> Outcome {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let file = open(options, path, flags)?;
    let mut buf = AlignedBuffer::new(PIECE);
    buf.fill(0x5a);
    let mut offsets = (0..pieces).map(|piece| piece * PIECE as u64);
    offsets
        .try_for_each(|offset| file.write_all_at(&buf, offset))
        .at("write")?;
    if syncs {
        file.sync_data().at("fdatasync")?;
    }
    Ok(())
}

fn overwritten(path: &Path, pieces: u64, count: u64, syncs: bool) -> Outcome {
    let file = open(File::options().write(true), path, OFlags::empty())?;
    let (mut random, buf) = (Random::new(1), vec![0xa5; SMALL]);
    for _ in 0..count {
        let page = random.below((pieces * (PIECE / SMALL) as u64).max(1));
        file.write_all_at(&buf, page * SMALL as u64).at("write")?;
        if syncs {
            file.sync_data().at("fdatasync")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a", "b", "empty"] {
            let bytes = if name == "empty" { 0 } else { 5000 };
            std::fs::write(folder.path().join(name), vec![1; bytes]).expect("written");
        }
        let tree = Tree::open(folder.path(), 7000).expect("a tree");
        assert_eq!((tree.files.len(), tree.bytes, tree.beyond), (1, 5000, 1));
        tree.read(7000, OFlags::empty()).expect("read");
        tree.read_small(10).expect("read");
        assert!(Tree::open(&folder.path().join("empty"), 1).is_err());
        assert!(Tree::open(&folder.path().join("none"), 1).is_err());
        assert_eq!(tree_paths(folder.path(), 2).expect("paths").len(), 2);
    }

    #[test]
    fn buffers_begin_at_a_page() {
        assert_eq!(AlignedBuffer::new(PIECE).as_ptr().align_offset(SMALL), 0);
    }
}
