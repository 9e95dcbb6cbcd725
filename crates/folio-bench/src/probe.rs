//! The scenarios `read`, `stat` and `write`: calls on a path of the user's, cold and warm, beside
//! the device and memory.

use crate::cache::size;
use crate::evidence::{forget, label, rate, watched};
use crate::report::{Report, Sample, Table, Unit, owned, with_context};
use crate::run::{Case, Run, interleave, scratch_in};
use folio::AlignedBuffer;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
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

const ROUNDS: u32 = 5;
const PIECE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
const SMALL_READS: u64 = 2000;
const STATS: u64 = 20_000;
const SYNCS: u64 = 100;
/// Files of a tree at most.
const FILES_MAX: usize = 100_000;

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
    /// What was left out.
    beyond: usize,
}

impl Tree {
    /// Opens the file, or regular files below the folder until they have `limit` bytes.
    fn open(path: &Path, limit: u64) -> Result<Self, String> {
        let mut tree = Self {
            files: Vec::new(),
            paths: Vec::new(),
            bytes: 0,
            beyond: 0,
        };
        let mut open = vec![path.to_owned()];
        while let Some(path) = open.pop() {
            let found = std::fs::symlink_metadata(&path).map_err(with_context(path.display()))?;
            if found.is_dir() {
                let mut names = names(&path)?;
                names.reverse();
                open.extend(names);
            } else if found.is_file() && found.len() > 0 {
                let is_first = tree.files.is_empty();
                if !is_first && (tree.bytes + found.len() > limit || tree.files.len() >= OPEN_MAX) {
                    tree.beyond += 1;
                    continue;
                }
                tree.files
                    .push(File::open(&path).map_err(with_context(path.display()))?);
                tree.bytes += found.len().min(limit);
                tree.paths.push(path);
            }
        }
        if tree.files.is_empty() {
            Err(format!(
                "{}: no regular file with bytes in it",
                path.display()
            ))
        } else {
            Ok(tree)
        }
    }

    /// Reads all files in order, in pieces of 1 MiB, with `flags` added to those of open.
    fn read(&self, limit: u64, flags: OFlags) -> Result<(), String> {
        let mut buf = AlignedBuffer::new(PIECE);
        for path in &self.paths {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | flags;
            let file = rustix::fs::open(path, flags, Mode::empty())
                .map_err(with_context(path.display()))?;
            let mut file = File::from(file).take(limit);
            loop {
                let count = file.read(&mut buf).map_err(with_context(path.display()))?;
                if count == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Pieces of 4 KiB, file by file in turn, at random places.
    fn read_small(&self, limit: u64, count: u64) -> Result<(), String> {
        let (mut word, mut buf) = (0x9e37_79b9_7f4a_7c15_u64, vec![0; SMALL]);
        let sizes: Result<Vec<u64>, _> = self
            .files
            .iter()
            .map(|file| file.metadata().map(|found| found.len().min(limit)))
            .collect();
        let sizes = sizes.map_err(with_context("size"))?;
        for at in 0..count as usize {
            // xorshift
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            let (file, size) = (&self.files[at % sizes.len()], sizes[at % sizes.len()]);
            let pages = size.div_ceil(SMALL as u64).max(1);
            file.read_at(&mut buf, word % pages * SMALL as u64)
                .map_err(with_context("read"))?;
        }
        Ok(())
    }
}

/// Files that are open at once at most: below the usual limit of a process.
const OPEN_MAX: usize = 900;

fn names(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(with_context(folder.display()))?;
    let paths: Result<Vec<_>, _> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let mut paths = paths.map_err(with_context(folder.display()))?;
    paths.sort();
    Ok(paths)
}

/// Measures reads of a path.
pub(crate) fn read(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let limit = options.limit.unwrap_or_else(|| run.sized(1 << 30, 1 << 20));
    let tree = Tree::open(&options.path, limit)?;
    let (count, mib) = (tree.files.len(), tree.bytes >> 20);
    let what = format!("{}: {count} files, {mib} MiB", options.path.display());
    let mut report = Report::new("read", what, parent(&options.path));
    if tree.beyond > 0 {
        report.skip(
            format!("{} more files", tree.beyond),
            "--limit, or files that may be open at once",
        );
    }
    let direct = tree.read(limit.min(PIECE as u64), OFlags::DIRECT);
    let (tree, bytes) = (&tree, tree.bytes);
    let in_order = |is_cold: bool, flags: OFlags| {
        move || {
            if is_cold {
                forget(&tree.files)?
            } else {
                tree.read(limit, OFlags::empty())?
            }
            let (seconds, evidence) = watched(&tree.files, 0, || tree.read(limit, flags))?;
            Ok(rate(bytes, seconds, evidence, is_cold))
        }
    };
    let mut cases = vec![
        Case::new("in order", "cold", in_order(true, OFlags::empty())),
        Case::new("in order", "warm", in_order(false, OFlags::empty())),
    ];
    match direct {
        Ok(()) => cases.push(Case::new(
            "in order",
            DIRECT,
            in_order(true, OFlags::DIRECT),
        )),
        Err(error) => report.skip(DIRECT, error),
    }
    cases.push(Case::new(
        "in order",
        "memcpy, the limit of memory",
        move || Ok(copied(bytes)),
    ));
    let (rows, rounds) = interleave(run, "read, in order", &mut cases, ROUNDS)?;
    report.repeats = rounds;
    report.tables.push(Table::new(
        "in order",
        Unit::MibPerSecond,
        Some("cold"),
        rows,
    ));
    let reads = run.sized(SMALL_READS, 20);
    let mut cases = reads_at_random(tree, limit, reads);
    let (rows, _) = interleave(run, "read, at random", &mut cases, ROUNDS)?;
    report.tables.push(Table::new(
        "4 KiB at random",
        Unit::Seconds,
        Some("cold"),
        rows,
    ));
    report.limits = owned(&READ_LIMITS);
    Ok(report)
}

/// Returns the cases of small reads at random, `reads` in each round.
fn reads_at_random(tree: &Tree, limit: u64, reads: u64) -> Vec<Case<'_>> {
    let bytes = tree.bytes;
    let at_random = move |is_cold: bool| {
        move || {
            if is_cold {
                forget(&tree.files)?
            } else {
                tree.read(limit, OFlags::empty())?
            }
            let (seconds, evidence) =
                watched(&tree.files, reads, || tree.read_small(limit, reads))?;
            let label = label(
                reads.min(bytes / SMALL as u64) * SMALL as u64 / 4,
                evidence,
                is_cold,
            );
            Ok(Sample {
                value: seconds / reads as f64,
                evidence,
                label,
            })
        }
    };
    vec![
        Case::new("4 KiB at random", "cold", at_random(true)),
        Case::new("4 KiB at random", "warm", at_random(false)),
    ]
}

const DIRECT: &str = "O_DIRECT";

/// As many bytes from memory to memory, at most 64 MiB at a time.
fn copied(bytes: u64) -> Sample {
    let len = bytes.clamp(1, 64 << 20) as usize;
    let (from, mut to) = (vec![1_u8; len], vec![0_u8; len]);
    to.copy_from_slice(&from);
    let start = std::time::Instant::now();
    to.copy_from_slice(std::hint::black_box(&from));
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    std::hint::black_box(&to);
    Sample {
        value: len as f64 / f64::from(1 << 20) / seconds,
        label: Some("memory speed"),
        ..Sample::default()
    }
}

/// Returns the parent folder of a path, or the path itself if it is a folder.
fn parent(path: &Path) -> &Path {
    let is_folder = path.is_dir();
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if is_folder { path } else { parent }
}

/// Measures stats of a path.
pub(crate) fn stat(options: &StatOptions, run: &Run<'_>) -> Result<Report, String> {
    let path = &options.path;
    let found = std::fs::symlink_metadata(path).map_err(with_context(path.display()))?;
    let mut report = Report::new("stat", format!("{}", path.display()), parent(path));
    let count = run.sized(STATS, 50);
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(with_context(path.display()))?;
    let sample = |count: u64, (seconds, evidence)| Sample {
        value: seconds / count as f64,
        evidence,
        label: None,
    };
    let mut cases = vec![
        Case::new("one path, again and again", "stat", move || {
            let again = || (0..count).try_for_each(|_| stat_of(path));
            Ok(sample(count, watched(&[], count, again)?))
        }),
        Case::new("one path, again and again", "fstat", move || {
            let again = || (0..count).try_for_each(|_| rustix::fs::fstat(&file).map(drop));
            Ok(sample(
                count,
                watched(&[], count, || again().map_err(with_context("fstat")))?,
            ))
        }),
    ];
    if found.is_dir() {
        let paths = tree_paths(path, run.sized(FILES_MAX, 1000))?;
        let count = (paths.len() as u64).max(1);
        report
            .notes
            .push(format!("the tree has {} entries", paths.len()));
        cases.push(Case::new("each path of the tree", "stat", move || {
            let all = || paths.iter().try_for_each(|path| stat_of(path));
            Ok(sample(count, watched(&[], count, all)?))
        }));
    }
    let (rows, rounds) = interleave(run, "stat", &mut cases, ROUNDS)?;
    report.repeats = rounds;
    report
        .tables
        .push(Table::new("time of each", Unit::Seconds, None, rows));
    report.limits = owned(&STAT_LIMITS);
    Ok(report)
}

fn stat_of(path: &Path) -> Result<(), String> {
    let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(with_context(path.display()))?;
    std::hint::black_box(found);
    Ok(())
}

/// Paths below a folder, at most so many.
fn tree_paths(folder: &Path, most: usize) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for path in names(&folder)? {
            if paths.len() >= most {
                return Ok(paths);
            }
            let is_folder = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
            if is_folder {
                open.push(path.clone());
            }
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Returns the cases of small overwrites at random, `syncs` in each round.
fn overwrites(path: &Path, pieces: u64, syncs: u64) -> Vec<Case<'_>> {
    vec![
        Case::new(
            "4 KiB over old ones, at random",
            "and fdatasync",
            move || {
                let (seconds, evidence) =
                    watched(&[], syncs, || overwritten(path, pieces, syncs, true))?;
                Ok(Sample {
                    value: seconds / syncs as f64,
                    evidence,
                    label: None,
                })
            },
        ),
        Case::new("4 KiB over old ones, at random", "no sync", move || {
            let (seconds, evidence) =
                watched(&[], syncs, || overwritten(path, pieces, syncs, false))?;
            Ok(Sample {
                value: seconds / syncs as f64,
                evidence,
                label: Some("memory speed: nothing is synced"),
            })
        }),
    ]
}

/// Measures writes in a folder, to a file of its own.
pub(crate) fn write(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let folder = &options.path;
    let bytes = options
        .limit
        .unwrap_or_else(|| run.sized(256 << 20, 1 << 20));
    let pieces = bytes / PIECE as u64;
    let what = format!("{}: a file of {pieces} MiB", folder.display());
    let mut report = Report::new("write", what, folder);
    if !folder.is_dir() {
        return Err(format!(
            "{}: not a folder; the bench writes a file of its own in one",
            folder.display()
        ));
    }
    let scratch = scratch_in(folder)?;
    let path = &scratch.path().join("file");
    let direct = written(path, 1, OFlags::DIRECT, false);
    let in_order = |flags: OFlags, syncs: bool| {
        move || {
            let _ = std::fs::remove_file(path);
            let (seconds, evidence) = watched(&[], 0, || written(path, pieces, flags, syncs))?;
            let value = pieces as f64 / seconds.max(1e-9);
            let label = (!syncs && flags.is_empty()).then_some("memory speed: nothing is synced");
            Ok(Sample {
                value,
                evidence,
                label,
            })
        }
    };
    let mut cases = vec![
        Case::new("in order", "written", in_order(OFlags::empty(), false)),
        Case::new(
            "in order",
            "written and synced",
            in_order(OFlags::empty(), true),
        ),
    ];
    match direct {
        Ok(()) => cases.push(Case::new(
            "in order",
            "O_DIRECT and synced",
            in_order(OFlags::DIRECT, true),
        )),
        Err(error) => report.skip(DIRECT, error),
    }
    let (rows, rounds) = interleave(run, "write, in order", &mut cases, ROUNDS)?;
    report.repeats = rounds;
    report.tables.push(Table::new(
        "in order",
        Unit::MibPerSecond,
        Some("written and synced"),
        rows,
    ));
    written(path, pieces, OFlags::empty(), true)?;
    let syncs = run.sized(SYNCS, 3);
    let mut cases = overwrites(path, pieces, syncs);
    let (rows, _) = interleave(run, "write, at random", &mut cases, ROUNDS)?;
    report.tables.push(Table::new(
        "time of each",
        Unit::Seconds,
        Some("and fdatasync"),
        rows,
    ));
    report.limits = owned(&WRITE_LIMITS);
    Ok(report)
}

fn written(path: &Path, pieces: u64, flags: OFlags, syncs: bool) -> Result<(), String> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | flags;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
        .map_err(with_context(path.display()))?;
    let file = File::from(file);
    let mut buf = AlignedBuffer::new(PIECE);
    buf.fill(0x5a);
    for piece in 0..pieces {
        file.write_all_at(&buf, piece * PIECE as u64)
            .map_err(with_context("write"))?;
    }
    if syncs {
        file.sync_data().map_err(with_context("fdatasync"))
    } else {
        Ok(())
    }
}

fn overwritten(path: &Path, pieces: u64, count: u64, syncs: bool) -> Result<(), String> {
    let file = File::options()
        .write(true)
        .open(path)
        .map_err(with_context(path.display()))?;
    let (mut word, buf) = (0x9e37_79b9_7f4a_7c15_u64, vec![0xa5; SMALL]);
    for _ in 0..count {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        let page = word % (pieces * (PIECE / SMALL) as u64).max(1);
        file.write_all_at(&buf, page * SMALL as u64)
            .map_err(with_context("write"))?;
        if syncs {
            file.sync_data().map_err(with_context("fdatasync"))?;
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
        tree.read_small(7000, 10).expect("read");
        assert!(Tree::open(&folder.path().join("empty"), 1).is_err());
        assert!(Tree::open(&folder.path().join("none"), 1).is_err());
        assert_eq!(tree_paths(folder.path(), 2).expect("paths").len(), 2);
    }

    #[test]
    fn buffers_begin_at_a_page() {
        assert_eq!(AlignedBuffer::new(PIECE).as_ptr().align_offset(SMALL), 0);
    }
}
