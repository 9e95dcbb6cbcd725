//! The jobs of each target: the article's program, and typical uses of a shared folder.

use super::targets::Target;
use crate::report::with_context;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sizes and counts of the jobs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadSize {
    /// Size of the large file.
    pub(crate) large_mib: usize,
    /// Folders of the tree, and small files in each.
    pub(crate) folders: usize,
    pub(crate) files_each: usize,
    /// Reads at random, reads of the article's file, stats, changes by the host.
    reads: usize,
    article_reads: usize,
    stats: usize,
    changes: usize,
}

impl WorkloadSize {
    /// Sizes of a whole measurement.
    pub(crate) const WHOLE: Self = Self {
        large_mib: 256,
        folders: 100,
        files_each: 100,
        reads: 20_000,
        article_reads: 1000,
        stats: 20_000,
        changes: 11,
    };
    /// To see that it runs.
    pub(crate) const QUICK: Self = Self {
        large_mib: 2,
        folders: 4,
        files_each: 5,
        reads: 50,
        article_reads: 10,
        stats: 50,
        changes: 2,
    };
}

/// The large file.
pub(crate) const LARGE: &str = "large";
/// The file that is read and statted again and again, as the article's program does, and its size
/// in bytes.
pub(crate) const ARTICLE_FILE: &str = "story";
const ARTICLE_BYTES: usize = 64 << 10;
/// The folder of small files.
pub(crate) const TREE: &str = "tree";
const SMALL_BYTES: usize = 1000;
/// The file that changes.
const CHANGING: &str = "changing";

const SEQUENTIAL: usize = 1 << 20;
/// How long a change may take until it is given up.
const UNSEEN: Duration = Duration::from_secs(5);

/// One column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// The large file in order, not in the host's memory.
    ReadCold,
    /// The same, in memory.
    ReadWarm,
    /// 4 KiB of it at random, in memory.
    RandomWarm,
    /// 1 KiB of an open file, again and again.
    SmallWarm,
    /// Open, read 64 KiB, close, again and again.
    ArticleRead,
    /// stat of one path, again and again.
    ArticleStat,
    /// Attributes of every file in a tree, for the first time.
    WalkFirst,
    /// The same again.
    WalkAgain,
    /// Until a change that the host made is read.
    ChangeSeen,
    /// The longest of those.
    ChangeSeenMost,
}

impl Job {
    pub(crate) const ALL: [Self; 10] = [
        Self::ReadCold,
        Self::ReadWarm,
        Self::RandomWarm,
        Self::SmallWarm,
        Self::ArticleRead,
        Self::ArticleStat,
        Self::WalkFirst,
        Self::WalkAgain,
        Self::ChangeSeen,
        Self::ChangeSeenMost,
    ];

    /// What is done.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::ReadCold => "in order, cold",
            Self::ReadWarm => "in order, warm",
            Self::RandomWarm => "4 KiB at random, warm",
            Self::SmallWarm => "1 KiB of an open file",
            Self::ArticleRead => "open, read 64 KiB, close",
            Self::ArticleStat => "stat of one path",
            Self::WalkFirst => "find -ls, first time",
            Self::WalkAgain => "find -ls, again",
            Self::ChangeSeen => "a change by the host is seen",
            Self::ChangeSeenMost => "the same, longest",
        }
    }

    /// Returns a figure of this job in the report's unit: MiB a second, or seconds.
    pub(crate) fn in_report_unit(self, figure: f64) -> f64 {
        match self {
            Self::ReadCold | Self::ReadWarm => figure,
            Self::RandomWarm | Self::SmallWarm | Self::ArticleRead | Self::ArticleStat => {
                figure / 1e6
            }
            Self::WalkFirst | Self::WalkAgain | Self::ChangeSeen | Self::ChangeSeenMost => {
                figure / 1e3
            }
        }
    }

    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, Self::ReadCold | Self::ReadWarm)
    }
}

/// Makes the folder that all contenders share.
pub(crate) fn make_source(source: &Path, workload: WorkloadSize) -> Result<(), String> {
    let write =
        |name: &str, bytes: &[u8]| fs::write(source.join(name), bytes).map_err(with_context(name));
    let bytes: Vec<u8> = (0..workload.large_mib << 20)
        .map(|index| (index % 251) as u8)
        .collect();
    write(LARGE, &bytes)?;
    write(ARTICLE_FILE, &bytes[..ARTICLE_BYTES])?;
    write(CHANGING, &version(0))?;
    for folder in 0..workload.folders {
        let name = format!("{TREE}/{folder:03}");
        fs::create_dir_all(source.join(&name)).map_err(with_context(&name))?;
        for file in 0..workload.files_each {
            write(&format!("{name}/{file:03}"), &bytes[..SMALL_BYTES])?;
        }
    }
    Ok(())
}

/// All jobs in one target but the last two; the figures in the order of [`Job::ALL`]. `None` for
/// what cannot be measured here: cold reads where the host's caches may not be dropped.
pub(crate) fn run(
    target: &dyn Target,
    workload: WorkloadSize,
    drops_caches: bool,
) -> Result<Vec<Option<f64>>, String> {
    let is_cold = drops_caches && target.is_dropped();
    let read_cold = if is_cold {
        drop_caches()?;
        Some(read(target, workload)?)
    } else {
        None
    };
    read(target, workload)?;
    let read_warm = Some(read(target, workload)?.max(read(target, workload)?));
    let random = Some(random_reads(target, workload)?);
    let small = Some(small_reads(target, workload)?);
    let article_read = Some(article_reads(target, workload)?);
    let article_stat = Some(stats(target, workload)?);
    if is_cold {
        drop_caches()?;
    }
    let walk_first = walk(target, workload)?;
    let walk_first = target.is_dropped().then_some(walk_first);
    let walk_again = Some(walk(target, workload)?);
    Ok(vec![
        read_cold,
        read_warm,
        random,
        small,
        article_read,
        article_stat,
        walk_first,
        walk_again,
    ])
}

fn drop_caches() -> Result<(), String> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(with_context("drop_caches"))
}

fn per(start: Instant, count: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / count as f64
}

/// MiB a second.
fn read(target: &dyn Target, workload: WorkloadSize) -> Result<f64, String> {
    let file = target.open(LARGE)?;
    let mut buf = vec![0; SEQUENTIAL];
    let start = Instant::now();
    for part in 0..workload.large_mib {
        let count = target.read_at(&file, &mut buf, (part * SEQUENTIAL) as u64)?;
        if count != SEQUENTIAL || buf[1] != ((part * SEQUENTIAL + 1) % 251) as u8 {
            return Err(format!("{LARGE}: part {part} is not what was written"));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    target.close(file)?;
    Ok(workload.large_mib as f64 / seconds)
}

/// Microseconds each.
fn random_reads(target: &dyn Target, workload: WorkloadSize) -> Result<f64, String> {
    let file = target.open(LARGE)?;
    let mut buf = vec![0; 4096];
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let start = Instant::now();
    for _ in 0..workload.reads {
        // xorshift
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        let page = word % (workload.large_mib as u64 * 256);
        if target.read_at(&file, &mut buf, page * 4096)? != buf.len() {
            return Err(format!("{LARGE}: page {page} is short"));
        }
    }
    let each = per(start, workload.reads);
    target.close(file)?;
    Ok(each)
}

/// Microseconds each.
fn small_reads(target: &dyn Target, workload: WorkloadSize) -> Result<f64, String> {
    let file = target.open(ARTICLE_FILE)?;
    let mut buf = vec![0; 1024];
    let start = Instant::now();
    for _ in 0..workload.reads {
        if target.read_at(&file, &mut buf, 4096)? != buf.len() {
            return Err(format!("{ARTICLE_FILE}: short"));
        }
    }
    let each = per(start, workload.reads);
    target.close(file)?;
    Ok(each)
}

fn article_reads(target: &dyn Target, workload: WorkloadSize) -> Result<f64, String> {
    let mut buf = vec![0; ARTICLE_BYTES];
    let start = Instant::now();
    for _ in 0..workload.article_reads {
        let file = target.open(ARTICLE_FILE)?;
        let count = target.read_at(&file, &mut buf, 0)?;
        target.close(file)?;
        if count != ARTICLE_BYTES {
            return Err(format!("{ARTICLE_FILE}: {count} bytes"));
        }
    }
    Ok(per(start, workload.article_reads))
}

fn stats(target: &dyn Target, workload: WorkloadSize) -> Result<f64, String> {
    let start = Instant::now();
    for _ in 0..workload.stats {
        if target.stat(ARTICLE_FILE)? != ARTICLE_BYTES as u64 {
            return Err(format!("{ARTICLE_FILE}: of another size"));
        }
    }
    Ok(per(start, workload.stats))
}

/// Milliseconds of `find -ls`.
fn walk(target: &dyn Target, workload: WorkloadSize) -> Result<f64, String> {
    let start = Instant::now();
    let mut files = 0;
    let mut open = vec![TREE.to_owned()];
    while let Some(folder) = open.pop() {
        for (name, is_directory) in target.list(&folder)? {
            let path = format!("{folder}/{name}");
            let size = target.stat(&path)?;
            if is_directory {
                open.push(path);
            } else if size == SMALL_BYTES as u64 {
                files += 1;
            }
        }
    }
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    if files == workload.folders * workload.files_each {
        Ok(milliseconds)
    } else {
        Err(format!("{files} files in the tree"))
    }
}

/// Returns the content of a version. All have the same length: only times and contents differ.
fn version(number: usize) -> Vec<u8> {
    format!("version {number:08}").into_bytes()
}

/// Changes the file as the host, in place: neither name nor size changes.
pub(crate) fn change(source: &Path, number: usize) -> Result<(), String> {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(source.join(CHANGING))
        .map_err(with_context(CHANGING))?;
    std::os::unix::fs::FileExt::write_all_at(&file, &version(number), 0)
        .map_err(with_context(CHANGING))
}

/// Reads the file that changes, until standard input says that it changes.
fn watch(target: &dyn Target) -> Result<(), String> {
    look(target)?;
    std::thread::sleep(Duration::from_millis(20));
    look(target).map(drop)
}

/// Opens the file, reads and closes; returns the bytes.
fn look(target: &dyn Target) -> Result<Vec<u8>, String> {
    let mut buf = vec![0; 64];
    let file = target.open(CHANGING)?;
    let count = target.read_at(&file, &mut buf, 0)?;
    target.close(file)?;
    buf.truncate(count);
    Ok(buf)
}

/// Returns whether a reader that polls without a pause finds a version before the time limit.
fn sees(target: &dyn Target, number: usize) -> Result<bool, String> {
    let (wanted, start) = (version(number), Instant::now());
    while look(target)? != wanted {
        if start.elapsed() > UNSEEN {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the milliseconds from a write by the host until a reader has it: median and longest.
/// `None` for a reader that has not seen a change after seconds.
pub(crate) fn changes(
    target: &dyn Target,
    workload: WorkloadSize,
    source: &Path,
) -> Result<Vec<Option<f64>>, String> {
    let mut delays = Vec::new();
    for number in 1..=workload.changes {
        watch(target)?;
        change(source, number)?;
        let start = Instant::now();
        if !sees(target, number)? {
            return Ok(vec![None, None]);
        }
        delays.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(middle_and_most(delays))
}

pub(crate) fn middle_and_most(delays: Vec<f64>) -> Vec<Option<f64>> {
    let most = delays.iter().copied().fold(0.0, f64::max);
    vec![Some(crate::report::middle(delays)), Some(most)]
}

/// Before the figures of a guest, before the number of the change that it waits for, and of one
/// that it has seen or not.
pub(crate) const FIGURES: &str = "@figures ";
pub(crate) const READY: &str = "@ready ";
pub(crate) const SEEN: &str = "@seen ";
pub(crate) const NOT_SEEN: &str = "@not-seen ";

/// Runs all jobs in a guest, at a folder that it has mounted. The host makes the changes when the
/// guest requests them.
pub(crate) fn run_in_guest(root: &Path) -> Result<(), String> {
    let target = super::targets::HostTarget::native(root);
    let figures = run(&target, WorkloadSize::WHOLE, true)?;
    println!(
        "{FIGURES}{}",
        serde_json::to_string(&figures).map_err(|error| error.to_string())?
    );
    for number in 1..=WorkloadSize::WHOLE.changes {
        watch(&target)?;
        println!("{READY}{number}");
        if sees(&target, number)? {
            println!("{SEEN}{number}");
        } else {
            println!("{NOT_SEEN}{number}");
            break;
        }
    }
    Ok(())
}
