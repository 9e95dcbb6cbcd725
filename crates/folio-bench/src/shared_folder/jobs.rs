//! The jobs of each target: the article's program, and typical uses of a shared folder.

use crate::outcome::{Context, Outcome};
use crate::random::Random;
use crate::view::{Access, View};
use folio_pagecache::median;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sizes and counts of the jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Size of the large file.
    pub(super) large_mib: usize,
    /// Folders of the tree, and small files in each.
    pub(super) folders: usize,
    pub(super) files_each: usize,
    /// Reads at random, reads of the article's file, stats, changes by the host.
    reads: usize,
    article_reads: usize,
    stats: usize,
    changes: usize,
    /// Size of IOzone's file.
    pub(super) iozone_mib: usize,
    /// Small files that are installed, and entries of the archive.
    pub(super) installed_files: usize,
    pub(super) archive_entries: usize,
}

impl Sizes {
    /// Sizes of a whole measurement.
    pub(super) const WHOLE: Self = Self {
        large_mib: 256,
        folders: 100,
        files_each: 100,
        reads: 20_000,
        article_reads: 1000,
        stats: 20_000,
        changes: 11,
        iozone_mib: 64,
        installed_files: 20_000,
        archive_entries: 3000,
    };
    /// To see that it runs.
    pub(super) const QUICK: Self = Self {
        large_mib: 2,
        folders: 4,
        files_each: 5,
        reads: 50,
        article_reads: 10,
        stats: 50,
        changes: 2,
        iozone_mib: 1,
        installed_files: 60,
        archive_entries: 40,
    };

    /// Returns the sizes of a quick or a whole measurement.
    pub(super) fn of(is_quick: bool) -> Self {
        if is_quick { Self::QUICK } else { Self::WHOLE }
    }

    fn files(&self) -> usize {
        self.folders * self.files_each
    }
}

/// The large file.
const LARGE: &str = "large";
/// The file that is read and statted again and again, as the article's program does, and its size
/// in bytes.
const ARTICLE_FILE: &str = "story";
const ARTICLE_BYTES: usize = 64 << 10;
/// The folder of small files.
const TREE: &str = "tree";
const SMALL_BYTES: usize = 1000;
/// The file that changes.
const CHANGING: &str = "changing";

const SEQUENTIAL: usize = 1 << 20;
/// How long a change may take until it is given up.
const UNSEEN: Duration = Duration::from_secs(5);

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Job {
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
    /// A column of IOzone.
    Iozone(Column),
    /// Work on a tree.
    Tree(TreeJob),
}

impl Job {
    const ALL: [Self; 10] = [
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

    /// All jobs, with the columns of IOzone and those of `--trees`.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let columns = Column::ALL.map(Self::Iozone);
        let trees = TreeJob::ALL.map(Self::Tree);
        Self::ALL.into_iter().chain(columns).chain(trees)
    }

    /// What is done.
    pub(super) fn title(self) -> &'static str {
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
            Self::Iozone(column) => column.title(),
            Self::Tree(job) => job.title(),
        }
    }

    /// Whether more is better.
    pub(super) fn is_rate(self) -> bool {
        matches!(self, Self::ReadCold | Self::ReadWarm | Self::Iozone(_))
    }
}

/// A column of IOzone, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Column {
    Write,
    Rewrite,
    Read,
    Reread,
    RandomRead,
    RandomWrite,
}

impl Column {
    pub(super) const ALL: [Self; 6] = [
        Self::Write,
        Self::Rewrite,
        Self::Read,
        Self::Reread,
        Self::RandomRead,
        Self::RandomWrite,
    ];

    /// IOzone's name of it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random read",
            Self::RandomWrite => "random write",
        }
    }

    pub(super) fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }

    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Rewrite | Self::RandomWrite)
    }
}

/// A job of `--trees`, in the order of a round: later ones use the files of earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TreeJob {
    /// Small files are made.
    Install,
    /// Their attributes, not for the first time.
    FindAgain,
    /// Their contents.
    ReadAll,
    /// tar extracts an archive.
    Extract,
    /// git compares a tree with its index.
    GitStatus,
    /// The small files are removed.
    Remove,
}

impl TreeJob {
    pub(super) const ALL: [Self; 6] = [
        Self::Install,
        Self::FindAgain,
        Self::ReadAll,
        Self::Extract,
        Self::GitStatus,
        Self::Remove,
    ];

    /// What is done.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Install => "small files made",
            Self::FindAgain => "their attributes, again",
            Self::ReadAll => "their contents",
            Self::Extract => "tar -x",
            Self::GitStatus => "git status",
            Self::Remove => "rm -rf",
        }
    }
}

/// A figure of a job: MiB a second, or seconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) job: Job,
    pub(super) value: f64,
}

/// Makes the folder that all contenders share.
pub(super) fn make_source(source: &Path, sizes: Sizes) -> Outcome {
    let write = |name: &str, bytes: &[u8]| fs::write(source.join(name), bytes).at(name);
    let bytes: Vec<u8> = (0..sizes.large_mib << 20)
        .map(|index| (index % 251) as u8)
        .collect();
    write(LARGE, &bytes)?;
    write(ARTICLE_FILE, &bytes[..ARTICLE_BYTES])?;
    write(CHANGING, &version(0))?;
    for folder in 0..sizes.folders {
        let name = format!("{TREE}/{folder:03}");
        fs::create_dir_all(source.join(&name)).at(&name)?;
        for file in 0..sizes.files_each {
            write(&format!("{name}/{file:03}"), &bytes[..SMALL_BYTES])?;
        }
    }
    Ok(())
}

/// Runs all jobs but the last two. Cold reads and the first walk are left out where dropping the
/// host's caches is not permitted, or leaves the files in a cache of this process.
pub(super) fn run(view: &View, sizes: Sizes, drops_caches: bool) -> Outcome<Vec<Figure>> {
    let is_of_host = matches!(view, View::Host(_));
    let mut figures = Vec::new();
    let add = |figures: &mut Vec<Figure>, job, value| figures.push(Figure { job, value });
    if drops_caches && is_of_host {
        drop_caches()?;
        add(&mut figures, Job::ReadCold, read(view, sizes)?);
    }
    read(view, sizes)?;
    add(
        &mut figures,
        Job::ReadWarm,
        read(view, sizes)?.max(read(view, sizes)?),
    );
    add(&mut figures, Job::RandomWarm, random_reads(view, sizes)?);
    add(&mut figures, Job::SmallWarm, small_reads(view, sizes)?);
    figures.extend(article_programs(view, sizes)?);
    if drops_caches && is_of_host {
        drop_caches()?;
    }
    let first = walk(view, sizes)?;
    if is_of_host {
        add(&mut figures, Job::WalkFirst, first);
    }
    add(&mut figures, Job::WalkAgain, walk(view, sizes)?);
    Ok(figures)
}

/// Runs the article's two programs, which read and stat one file again and again.
pub(super) fn article_programs(view: &View, sizes: Sizes) -> Outcome<[Figure; 2]> {
    let figure = |job, value| Figure { job, value };
    Ok([
        figure(Job::ArticleRead, article_reads(view, sizes)?),
        figure(Job::ArticleStat, stats(view, sizes)?),
    ])
}

fn drop_caches() -> Outcome {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").at("drop_caches")
}

/// Returns the seconds of each of `count` operations.
fn each(count: usize, mut work: impl FnMut() -> Outcome) -> Outcome<f64> {
    let start = Instant::now();
    (0..count).try_for_each(|_| work())?;
    Ok(start.elapsed().as_secs_f64() / count as f64)
}

/// Returns MiB a second.
fn read(view: &View, sizes: Sizes) -> Outcome<f64> {
    let file = view.open(LARGE, Access::Read)?;
    let mut buf = vec![0; SEQUENTIAL];
    let mut offset = 0;
    let seconds = each(sizes.large_mib, || {
        let count = view.read_at(&file, &mut buf, offset)?;
        if count != SEQUENTIAL || buf[1] != ((offset + 1) % 251) as u8 {
            return Err(format!("{LARGE}: the part at {offset} is not what was written").into());
        }
        offset += SEQUENTIAL as u64;
        Ok(())
    })?;
    view.close(file)?;
    Ok(1.0 / seconds)
}

fn random_reads(view: &View, sizes: Sizes) -> Outcome<f64> {
    let file = view.open(LARGE, Access::Read)?;
    let (mut buf, mut random) = (vec![0; 4096], Random::new(1));
    let seconds = each(sizes.reads, || {
        let page = random.below(sizes.large_mib as u64 * 256);
        whole(LARGE, view.read_at(&file, &mut buf, page * 4096)?, 4096)
    })?;
    view.close(file)?;
    Ok(seconds)
}

fn small_reads(view: &View, sizes: Sizes) -> Outcome<f64> {
    let file = view.open(ARTICLE_FILE, Access::Read)?;
    let mut buf = vec![0; 1024];
    let seconds = each(sizes.reads, || {
        whole(ARTICLE_FILE, view.read_at(&file, &mut buf, 4096)?, 1024)
    })?;
    view.close(file)?;
    Ok(seconds)
}

fn article_reads(view: &View, sizes: Sizes) -> Outcome<f64> {
    let mut buf = vec![0; ARTICLE_BYTES];
    each(sizes.article_reads, || {
        let file = view.open(ARTICLE_FILE, Access::Read)?;
        let count = view.read_at(&file, &mut buf, 0)?;
        view.close(file)?;
        whole(ARTICLE_FILE, count, ARTICLE_BYTES)
    })
}

fn stats(view: &View, sizes: Sizes) -> Outcome<f64> {
    each(sizes.stats, || {
        whole(
            ARTICLE_FILE,
            view.stat(ARTICLE_FILE)? as usize,
            ARTICLE_BYTES,
        )
    })
}

fn whole(file: &str, count: usize, wanted: usize) -> Outcome {
    if count == wanted {
        Ok(())
    } else {
        Err(format!("{file}: {count} of {wanted} bytes").into())
    }
}

/// Returns the seconds of `find -ls`.
fn walk(view: &View, sizes: Sizes) -> Outcome<f64> {
    let start = Instant::now();
    let mut files = 0;
    let mut open = vec![TREE.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in view.list(&folder)? {
            let path = format!("{folder}/{}", entry.name);
            let size = view.stat(&path)?;
            if entry.is_directory {
                open.push(path);
            } else if size == SMALL_BYTES as u64 {
                files += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if files == sizes.files() {
        Ok(seconds)
    } else {
        Err(format!("{files} files in the tree").into())
    }
}

/// Returns the content of a version. All have the same length: only times and contents differ.
fn version(number: usize) -> Vec<u8> {
    format!("version {number:08}").into_bytes()
}

/// Changes the file as the host, in place: neither name nor size changes.
pub(super) fn change(source: &Path, number: usize) -> Outcome {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(source.join(CHANGING))
        .at(CHANGING)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &version(number), 0).at(CHANGING)
}

/// Reads the file that changes, so that it is cached.
fn watch(view: &View) -> Outcome {
    look(view)?;
    std::thread::sleep(Duration::from_millis(20));
    look(view).map(drop)
}

/// Opens the file, reads and closes; returns the bytes.
fn look(view: &View) -> Outcome<Vec<u8>> {
    let mut buf = vec![0; version(0).len()];
    let file = view.open(CHANGING, Access::Read)?;
    let count = view.read_at(&file, &mut buf, 0)?;
    view.close(file)?;
    buf.truncate(count);
    Ok(buf)
}

/// Returns whether a reader that polls without a pause finds a version before the time limit.
fn sees(view: &View, number: usize) -> Outcome<bool> {
    let (wanted, start) = (version(number), Instant::now());
    while look(view)? != wanted {
        if start.elapsed() > UNSEEN {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the times from a write by the host until a reader has it: median and longest. `None` for
/// a reader that has not seen a change after seconds.
pub(super) fn changes(view: &View, sizes: Sizes, source: &Path) -> Outcome<Option<[Figure; 2]>> {
    let mut delays = Vec::new();
    for number in 1..=sizes.changes {
        watch(view)?;
        change(source, number)?;
        let start = Instant::now();
        if !sees(view, number)? {
            return Ok(None);
        }
        delays.push(start.elapsed().as_secs_f64());
    }
    Ok(Some(middle_and_most(delays)))
}

/// Returns the figures for these delays.
pub(super) fn middle_and_most(delays: Vec<f64>) -> [Figure; 2] {
    let most = delays.iter().copied().fold(0.0, f64::max);
    let figure = |job, value| Figure { job, value };
    [
        figure(Job::ChangeSeen, median(delays)),
        figure(Job::ChangeSeenMost, most),
    ]
}

/// Before the figures of a guest, before the number of the change that it waits for, and of one
/// that it has seen or not.
pub(super) const FIGURES: &str = "@figures ";
pub(super) const READY: &str = "@ready ";
pub(super) const SEEN: &str = "@seen ";
pub(super) const NOT_SEEN: &str = "@not-seen ";

/// Prints in a guest whether it sees the changes that the host makes when the guest requests them.
pub(super) fn see_changes_in_guest(view: &View, sizes: Sizes) -> Outcome {
    for number in 1..=sizes.changes {
        watch(view)?;
        println!("{READY}{number}");
        if sees(view, number)? {
            println!("{SEEN}{number}");
        } else {
            println!("{NOT_SEEN}{number}");
            break;
        }
    }
    Ok(())
}
