//! The jobs of the scenario, each with the fewest requests that it may need.

use crate::command::{lacking, run, tool};
use crate::hosted::Hosted;
use crate::outcome::{Context, Outcome};
use crate::random::{Random, pattern};
use crate::sample_tree::{SampleTree, git, walk};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Sizes and counts of the jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) entries: usize,
    pub(super) large_bytes: u64,
    pub(super) files: usize,
    /// Writes at random, those with fsync, and reads.
    pub(super) writes: usize,
    pub(super) synced_writes: usize,
    pub(super) reads: usize,
}

impl Sizes {
    /// Returns the size of an image that has room for all jobs.
    pub(super) fn image_mib(self) -> u64 {
        // Two trees and a checkout, of entries that have 14 KiB on average.
        let trees = (self.entries as u64 * 3 * 32) >> 10;
        trees + (self.large_bytes >> 20) * 2 + 256
    }
}

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
        lacking(&[program])
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
    pub(super) fn operations(self, source: &SampleTree, sizes: Sizes) -> f64 {
        let count = match self {
            Self::LargeWrite => sizes.large_bytes as usize / PART,
            Self::RandomWrites => sizes.writes,
            Self::ReadsOne | Self::ReadsFour => sizes.reads,
            Self::SyncedWrites => sizes.synced_writes,
            Self::Create => sizes.files,
            _ => source.entries(),
        };
        count as f64
    }

    /// Returns the fewest requests for each operation that Linux's FUSE client can send, with any
    /// server: docs/bench.md explains them.
    pub(super) fn least_requests(self, source: &SampleTree, sizes: Sizes) -> f64 {
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
            Self::RandomWrites => runs(sizes) as f64 / sizes.writes as f64,
            Self::SyncedWrites | Self::Create => 2.0,
        }
    }
}

/// One target with the files that jobs have left in it.
pub(super) struct Work<'a> {
    pub(super) hosted: &'a mut Hosted,
    pub(super) source: &'a SampleTree,
    pub(super) sizes: Sizes,
}

impl Work<'_> {
    fn root(&self) -> PathBuf {
        self.hosted.mount_point.clone()
    }

    /// Waits until everything written is on the disk.
    pub(super) fn sync(&self) -> Outcome {
        let root = File::open(self.root()).at("root")?;
        rustix::fs::syncfs(root).at("syncfs")
    }

    /// Runs a job; returns its figure.
    pub(super) fn time(&mut self, job: Job) -> Outcome<f64> {
        let start = Instant::now();
        self.run(job)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(if job.is_each() {
            seconds / job.operations(self.source, self.sizes)
        } else {
            seconds
        })
    }

    /// Makes what a job needs, unless an earlier job has left it, and brings it into memory if the
    /// job is about what is there.
    pub(super) fn prepare(&mut self, job: Job) -> Outcome {
        let root = self.root();
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
                (0..2).try_for_each(|_| walk(&root.join(FIRST_TREE), &mut |_| Ok(())).map(drop))
            }
            Job::Remove => {
                self.ensure_tree()?;
                walk(&root.join(FIRST_TREE), &mut |_| Ok(())).map(drop)
            }
            Job::FindCold => {
                self.ensure_tree()?;
                self.hosted.remount()
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

    fn run(&self, job: Job) -> Outcome {
        let (root, sizes) = (self.root(), self.sizes);
        let large = root.join(LARGE);
        match job {
            Job::TarFresh => self.extract(&root.join(FIRST_TREE)),
            Job::TarAgain => self.extract(&root.join(SECOND_TREE)),
            Job::FindWarm | Job::FindCold => {
                let (found, entries) = (
                    walk(&root.join(FIRST_TREE), &mut |_| Ok(()))?,
                    self.source.entries(),
                );
                if found != entries {
                    return Err(format!("found {found} of {entries} entries").into());
                }
                Ok(())
            }
            Job::Remove => fs::remove_dir_all(root.join(FIRST_TREE)).at(FIRST_TREE),
            Job::LargeWrite => write_in_order(&large, sizes.large_bytes),
            Job::RandomWrites => {
                let file = open(&large)?;
                places(sizes, sizes.writes).try_for_each(|place| write_page(&file, place))
            }
            Job::SyncedWrites => {
                let file = open(&large)?;
                places(sizes, sizes.synced_writes).try_for_each(|place| {
                    write_page(&file, place)?;
                    file.sync_all().at("fsync")
                })
            }
            Job::ReadsOne => read_at_random(&large, sizes, 1),
            Job::ReadsFour => read_at_random(&large, sizes, 4),
            Job::GitClone => {
                let (from, to) = (self.source.repository()?, root.join(CLONE));
                let (from, to) = (from.display().to_string(), to.display().to_string());
                git(&root, &["clone", "--quiet", "--shared", &from, &to]).map(drop)
            }
            Job::GitStatus => {
                let changed = git(&root.join(CLONE), &["status", "--porcelain"])?;
                if !changed.is_empty() {
                    return Err(format!("git status of a fresh clone: {changed}").into());
                }
                Ok(())
            }
            Job::Create => (0..sizes.files).try_for_each(|number| {
                File::create_new(root.join(MANY).join(format!("file-{number:07}")))
                    .map(drop)
                    .at(MANY)
            }),
        }
    }

    fn ensure_tree(&self) -> Outcome {
        let tree = self.root().join(FIRST_TREE);
        if tree.exists() {
            return Ok(());
        }
        make_folder(&tree)?;
        self.extract(&tree)
    }

    fn ensure_large(&self) -> Outcome {
        let large = self.root().join(LARGE);
        if large.exists() {
            return Ok(());
        }
        write_in_order(&large, self.sizes.large_bytes)
    }

    fn extract(&self, to: &Path) -> Outcome {
        let mut tar = tool("tar")?;
        run(tar.arg("-xf").arg(self.source.archive()?).arg("-C").arg(to)).map(drop)
    }
}

/// Makes a repository's index newer than its files. git reads again all files that changed in the
/// second of the index or later: after a fast clone all of them, after a slow one few.
fn make_index_newer(repository: &Path) -> Outcome {
    let index = open(&repository.join(".git/index"))?;
    let later = SystemTime::now() + Duration::from_secs(2);
    index.set_modified(later).at("index")
}

fn make_folder(path: &Path) -> Outcome {
    fs::create_dir(path).at(path)
}

fn open(path: &Path) -> Outcome<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.at(path)
}

fn write_in_order(path: &Path, bytes: u64) -> Outcome {
    let part = pattern(PART);
    let file = File::create(path).at(path)?;
    for offset in (0..bytes).step_by(PART) {
        let len = PART.min((bytes - offset) as usize);
        file.write_all_at(&part[..len], offset).at("write")?;
    }
    file.sync_all().at("fsync")
}

fn write_page(file: &File, page: u64) -> Outcome {
    file.write_all_at(&[page as u8 | 1; PAGE], page * PAGE as u64)
        .at("write")
}

fn read_in_order(path: &Path) -> Outcome {
    let mut file = File::open(path).at(path)?;
    let copied = std::io::copy(&mut file, &mut std::io::sink());
    copied.map(drop).at("read")
}

/// Reads pages at random, by so many threads with a file of their own each.
fn read_at_random(path: &Path, sizes: Sizes, jobs: usize) -> Outcome {
    let pages = sizes.large_bytes / PAGE as u64;
    let read = |seed: usize| {
        let file = File::open(path).at(path)?;
        let (mut random, mut buf) = (Random::new(seed as u64), [0; PAGE]);
        (0..sizes.reads / jobs).try_for_each(|_| {
            let offset = random.below(pages) * PAGE as u64;
            file.read_exact_at(&mut buf, offset).at("read")
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
            done.unwrap_or_else(|_| Err("a reader panicked".into()))
        })
    })
}

/// Returns the pages that are written at random.
fn places(sizes: Sizes, count: usize) -> impl Iterator<Item = u64> {
    let (pages, mut random) = (sizes.large_bytes / PAGE as u64, Random::new(1));
    (0..count).map(move |_| random.below(pages))
}

/// Returns the number of runs of adjacent pages among those of [`Job::RandomWrites`].
fn runs(sizes: Sizes) -> usize {
    let mut pages: Vec<u64> = places(sizes, sizes.writes).collect();
    pages.sort_unstable();
    pages.dedup();
    1 + pages
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count()
}
