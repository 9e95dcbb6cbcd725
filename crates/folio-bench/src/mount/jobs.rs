//! The jobs of the scenario, each with the fewest requests that it may need.

use super::options::WorkloadSize;
use super::source::{Random, Source, git};
use super::targets::Target;
use crate::contender::find;
use crate::ext4::hosted::command;
use crate::report::with_context;
use rustix::fs::{AtFlags, CWD, FileType, statat};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// A job, in the order of a round: later ones use the files of earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    TarFresh,
    TarAgain,
    FindWarm,
    FindCold,
    Remove,
    LargeWrite,
    RandomWrites,
    ReadsOne,
    ReadsFour,
    SyncedWrites,
    GitClone,
    GitStatus,
    Create,
}

/// Names in the mounted file system.
const FIRST_TREE: &str = "first-tree";
const SECOND_TREE: &str = "second-tree";
const LARGE: &str = "large";
const CLONE: &str = "clone";
const MANY: &str = "many";

const PAGE: usize = 4 << 10;
const PART: usize = 1 << 20;

impl Job {
    pub(super) const ALL: [Self; 13] = [
        Self::TarFresh,
        Self::TarAgain,
        Self::FindWarm,
        Self::FindCold,
        Self::Remove,
        Self::LargeWrite,
        Self::RandomWrites,
        Self::ReadsOne,
        Self::ReadsFour,
        Self::SyncedWrites,
        Self::GitClone,
        Self::GitStatus,
        Self::Create,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::TarFresh => "tar -x into a fresh file system",
            Self::TarAgain => "tar -x again, beside the first tree",
            Self::FindWarm => "find with stat, warm",
            Self::FindCold => "find with stat, after a mount",
            Self::Remove => "rm -rf",
            Self::LargeWrite => "a file written and fsynced",
            Self::RandomWrites => "4 KiB write at random",
            Self::ReadsOne => "4 KiB read at random, warm",
            Self::ReadsFour => "4 KiB read at random, warm, 4 jobs",
            Self::SyncedWrites => "4 KiB write at random, fsync each",
            Self::GitClone => "git clone --shared",
            Self::GitStatus => "git status",
            Self::Create => "file made in one directory",
        }
    }

    /// Returns why it cannot run here.
    pub(super) fn missing(self) -> Option<String> {
        let program = match self {
            Self::GitClone | Self::GitStatus => "git",
            Self::TarFresh | Self::TarAgain | Self::FindWarm | Self::FindCold | Self::Remove => {
                "tar"
            }
            _ => return None,
        };
        find(program)
            .is_none()
            .then(|| format!("{program} is not installed"))
    }

    /// Whether its figure is the time of one operation, and not of all.
    fn is_each(self) -> bool {
        matches!(
            self,
            Self::RandomWrites
                | Self::ReadsOne
                | Self::ReadsFour
                | Self::SyncedWrites
                | Self::Create
        )
    }

    /// Returns the number of operations: entries, MiB, or calls.
    pub(super) fn operations(self, source: &Source, workload: WorkloadSize) -> f64 {
        let count = match self {
            Self::LargeWrite => workload.large_bytes as usize / PART,
            Self::RandomWrites => workload.writes,
            Self::ReadsOne | Self::ReadsFour => workload.reads,
            Self::SyncedWrites => workload.synced_writes,
            Self::Create => workload.files,
            _ => source.entries(),
        };
        count as f64
    }

    /// Returns the fewest requests for each operation that Linux's FUSE client can send, with any
    /// server: docs/bench.md explains them.
    pub(super) fn least_requests(self, source: &Source, workload: WorkloadSize) -> f64 {
        let of = |for_file: usize, for_folder: usize, for_link: usize| {
            let all =
                for_file * source.files + for_folder * source.folders + for_link * source.links;
            all as f64 / source.entries() as f64
        };
        match self {
            Self::TarFresh | Self::TarAgain => of(6, 5, 4),
            Self::GitClone => of(4, 3, 3),
            Self::FindCold => of(0, 2, 0),
            Self::Remove | Self::LargeWrite => 1.0,
            Self::FindWarm | Self::ReadsOne | Self::ReadsFour | Self::GitStatus => 0.0,
            Self::RandomWrites => runs(workload) as f64 / workload.writes as f64,
            Self::SyncedWrites | Self::Create => 2.0,
        }
    }
}

/// One target with the files that jobs have left in it.
pub(super) struct Work<'a, 'b> {
    pub(super) target: &'a mut Target<'b>,
    pub(super) source: &'a Source,
    pub(super) workload: WorkloadSize,
}

impl Work<'_, '_> {
    /// Runs a job; returns its figure.
    pub(super) fn time(&mut self, job: Job) -> Result<f64, String> {
        let start = Instant::now();
        self.run(job)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(if job.is_each() {
            seconds / job.operations(self.source, self.workload)
        } else {
            seconds
        })
    }

    /// Makes what a job needs, unless an earlier job has left it, and brings it into memory if the
    /// job is about what is there.
    pub(super) fn prepare(&mut self, job: Job) -> Result<(), String> {
        let root = self.target.root();
        match job {
            Job::TarFresh => make_folder(&root.join(FIRST_TREE)),
            Job::TarAgain => {
                self.ensure_tree()?;
                make_folder(&root.join(SECOND_TREE))
            }
            Job::FindWarm => {
                self.ensure_tree()?;
                // The first walk reads the listings, which changes times of access. The second one
                // asks for those.
                (0..2).try_for_each(|_| walk(&root.join(FIRST_TREE)).map(drop))
            }
            Job::Remove => {
                self.ensure_tree()?;
                walk(&root.join(FIRST_TREE)).map(drop)
            }
            Job::FindCold => {
                self.ensure_tree()?;
                self.target.remount()
            }
            Job::RandomWrites | Job::SyncedWrites => self.ensure_large(),
            Job::ReadsOne | Job::ReadsFour => {
                self.ensure_large()?;
                read_in_order(&root.join(LARGE))
            }
            Job::GitClone => self.source.repository().map(drop),
            Job::GitStatus => {
                if !root.join(CLONE).exists() {
                    self.run(Job::GitClone)?;
                }
                make_index_newer(&root.join(CLONE))?;
                (0..2).try_for_each(|_| self.run(Job::GitStatus))
            }
            Job::Create => make_folder(&root.join(MANY)),
            Job::LargeWrite => Ok(()),
        }
    }

    fn run(&self, job: Job) -> Result<(), String> {
        let (root, workload) = (self.target.root(), self.workload);
        let large = root.join(LARGE);
        match job {
            Job::TarFresh => self.extract(&root.join(FIRST_TREE)),
            Job::TarAgain => self.extract(&root.join(SECOND_TREE)),
            Job::FindWarm | Job::FindCold => {
                let found = walk(&root.join(FIRST_TREE))?;
                (found == self.source.entries())
                    .then_some(())
                    .ok_or_else(|| format!("found {found} of {} entries", self.source.entries()))
            }
            Job::Remove => {
                fs::remove_dir_all(root.join(FIRST_TREE)).map_err(with_context(FIRST_TREE))
            }
            Job::LargeWrite => write_in_order(&large, workload.large_bytes),
            Job::RandomWrites => {
                let file = open(&large)?;
                places(workload, workload.writes).try_for_each(|place| write_page(&file, place))
            }
            Job::SyncedWrites => {
                let file = open(&large)?;
                places(workload, workload.synced_writes).try_for_each(|place| {
                    write_page(&file, place)?;
                    file.sync_all().map_err(with_context("fsync"))
                })
            }
            Job::ReadsOne => read_at_random(&large, workload, 1),
            Job::ReadsFour => read_at_random(&large, workload, 4),
            Job::GitClone => {
                let (from, to) = (self.source.repository()?, root.join(CLONE));
                let (from, to) = (from.display().to_string(), to.display().to_string());
                git(&root, &["clone", "--quiet", "--shared", &from, &to]).map(drop)
            }
            Job::GitStatus => {
                let changed = git(&root.join(CLONE), &["status", "--porcelain"])?;
                changed
                    .is_empty()
                    .then_some(())
                    .ok_or_else(|| format!("git status of a fresh clone: {changed}"))
            }
            Job::Create => (0..workload.files).try_for_each(|number| {
                File::create_new(root.join(MANY).join(format!("file-{number:07}")))
                    .map(drop)
                    .map_err(with_context(MANY))
            }),
        }
    }

    fn ensure_tree(&self) -> Result<(), String> {
        let tree = self.target.root().join(FIRST_TREE);
        if tree.exists() {
            return Ok(());
        }
        make_folder(&tree)?;
        self.extract(&tree)
    }

    fn ensure_large(&self) -> Result<(), String> {
        let large = self.target.root().join(LARGE);
        if large.exists() {
            return Ok(());
        }
        write_in_order(&large, self.workload.large_bytes)
    }

    fn extract(&self, to: &Path) -> Result<(), String> {
        let archive = self.source.archive()?;
        let words = [
            "-xf".as_ref(),
            archive.as_os_str(),
            "-C".as_ref(),
            to.as_os_str(),
        ];
        command("tar", words).map(drop)
    }
}

/// Makes a repository's index newer than its files. git reads again all files that changed in the
/// second of the index or later: after a fast clone all of them, after a slow one few.
fn make_index_newer(repository: &Path) -> Result<(), String> {
    let index = open(&repository.join(".git/index"))?;
    let later = SystemTime::now() + Duration::from_secs(2);
    index.set_modified(later).map_err(with_context("index"))
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir(path).map_err(with_context(path.display()))
}

/// Stats every entry of a tree, as find with a test of an attribute does; returns their number. It
/// asks for no creation time, unlike the metadata of std.
fn walk(folder: &Path) -> Result<usize, String> {
    let mut count = 1;
    for entry in fs::read_dir(folder).map_err(with_context(folder.display()))? {
        let path = entry.map_err(with_context(folder.display()))?.path();
        let found = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW);
        let mode = found.map_err(with_context(path.display()))?.st_mode;
        let is_folder = FileType::from_raw_mode(mode).is_dir();
        count += if is_folder { walk(&path)? } else { 1 };
    }
    Ok(count)
}

fn open(path: &Path) -> Result<File, String> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(with_context(path.display()))
}

fn write_in_order(path: &Path, bytes: u64) -> Result<(), String> {
    let part: Vec<u8> = (0..PART).map(|at| (at % 251) as u8 + 1).collect();
    let file = File::create(path).map_err(with_context(path.display()))?;
    for offset in (0..bytes).step_by(PART) {
        let len = PART.min((bytes - offset) as usize);
        file.write_all_at(&part[..len], offset)
            .map_err(with_context("write"))?;
    }
    file.sync_all().map_err(with_context("fsync"))
}

fn write_page(file: &File, page: u64) -> Result<(), String> {
    file.write_all_at(&[page as u8 | 1; PAGE], page * PAGE as u64)
        .map_err(with_context("write"))
}

fn read_in_order(path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(with_context(path.display()))?;
    let copied = std::io::copy(&mut file, &mut std::io::sink());
    copied.map(drop).map_err(with_context("read"))
}

/// Reads pages at random, by so many threads with a file of their own each.
fn read_at_random(path: &Path, workload: WorkloadSize, jobs: usize) -> Result<(), String> {
    let pages = workload.large_bytes / PAGE as u64;
    let read = |seed: usize| {
        let file = File::open(path).map_err(with_context(path.display()))?;
        let (mut random, mut buf) = (Random(seed as u64 + 1), [0; PAGE]);
        (0..workload.reads / jobs).try_for_each(|_| {
            let offset = random.below(pages) * PAGE as u64;
            file.read_exact_at(&mut buf, offset)
                .map_err(with_context("read"))
        })
    };
    if jobs == 1 {
        return read(0);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|seed| scope.spawn(move || read(seed)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let done = thread.join();
            done.unwrap_or_else(|_| Err("a reader panicked".to_owned()))
        })
    })
}

/// Returns the pages that are written at random.
fn places(workload: WorkloadSize, count: usize) -> impl Iterator<Item = u64> {
    let (pages, mut random) = (workload.large_bytes / PAGE as u64, Random(1));
    (0..count).map(move |_| random.below(pages))
}

/// Returns the number of runs of adjacent pages among those of [`Job::RandomWrites`].
fn runs(workload: WorkloadSize) -> usize {
    let mut pages: Vec<u64> = places(workload, workload.writes).collect();
    pages.sort_unstable();
    pages.dedup();
    1 + pages
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count()
}
