//! Options of the scenario `mount`, its name, and the sizes of its jobs.

use crate::cache::size;
use crate::run::Run;
use std::path::PathBuf;

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A folder on a real disk, for the images; without it, the system's folder for temporary files
    #[arg(long)]
    disk_dir: Option<PathBuf>,
    /// Entries of the tree that tar extracts [default: 3000]
    #[arg(long)]
    entries: Option<usize>,
    /// Size of the file that is written, and then read and written at random [default: 512M]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Files made in one directory [default: 5000]
    #[arg(long)]
    files: Option<usize>,
    /// Only contenders whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only jobs whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    job: Vec<String>,
    /// Also measure folio mount of an image with these -o options
    #[arg(long, value_name = "OPTIONS")]
    pub(super) with: Option<String>,
    /// Also measure this other build of folio
    #[arg(long, value_name = "FOLIO")]
    pub(super) beside: Option<PathBuf>,
}

/// The scenario.
pub(super) const NAME: &str = "mount";
pub(super) const ROUNDS: u32 = 5;

/// Sizes and counts of the jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkloadSize {
    pub(super) entries: usize,
    pub(super) large_bytes: u64,
    pub(super) files: usize,
    /// Writes at random, those with fsync, and reads.
    pub(super) writes: usize,
    pub(super) synced_writes: usize,
    pub(super) reads: usize,
}

impl WorkloadSize {
    /// Returns the size of an image that has room for all jobs.
    pub(super) fn image_mib(self) -> u64 {
        // Two trees and a checkout, of entries that have 14 KiB on average.
        let trees = (self.entries as u64 * 3 * 32) >> 10;
        trees + (self.large_bytes >> 20) * 2 + 256
    }
}

impl Options {
    pub(super) fn disk_dir(&self) -> PathBuf {
        self.disk_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    pub(super) fn workload(&self, run: &Run<'_>) -> WorkloadSize {
        WorkloadSize {
            entries: self.entries.unwrap_or_else(|| run.sized(3000, 60)),
            large_bytes: self.size.unwrap_or_else(|| run.sized(512 << 20, 2 << 20)),
            files: self.files.unwrap_or_else(|| run.sized(5000, 50)),
            writes: run.sized(20_000, 50),
            synced_writes: run.sized(200, 5),
            reads: run.sized(50_000, 50),
        }
    }

    pub(super) fn wants_contender(&self, name: &str) -> bool {
        is_wanted(&self.only, name)
    }

    pub(super) fn wants_job(&self, name: &str) -> bool {
        is_wanted(&self.job, name)
    }
}

/// Returns whether `name` contains one of the words, or there are none.
fn is_wanted(words: &[String], name: &str) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}
