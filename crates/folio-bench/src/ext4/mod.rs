//! Scenarios about Folio's ext4 beside the kernel's: `auto-da-alloc` and `ext4-ops`.
//!
//! ```text
//!   rewrite   files written over and over     ops   files made and removed, bytes in order and at random
//!   stand     a fresh file system, mounted by a contender on a disk
//!   hosted    those that the host's kernel mounts: its own ext4 on a loop device, fuse2fs
//!   figures   medians, aims, text, JSON
//! ```

mod figures;
mod hosted;
mod ops;
mod rewrite;
mod stand;

use crate::report::told;
use std::path::PathBuf;

/// What the scenarios take.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..1000))]
    pub(crate) repeats: u32,
    /// A folder on a real disk, where images lie; without it, the system's folder for temporary files.
    #[arg(long)]
    pub(crate) disk_dir: Option<PathBuf>,
    /// Only contenders whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// A hundredth of the files and bytes, to see whether it runs.
    #[arg(long)]
    pub(crate) tiny: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    fn disk_dir(&self) -> PathBuf {
        self.disk_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// A count of files or bytes, or a hundredth of it.
    fn scaled(&self, count: usize) -> usize {
        if self.tiny { count.div_ceil(100) } else { count }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// Runs `auto-da-alloc` and prints its report.
pub(crate) fn run_rewrite(options: &Options) -> Result<(), String> {
    rewrite::report(options)?.print(options.json)
}

/// Runs `ext4-ops` and prints its report.
pub(crate) fn run_ops(options: &Options) -> Result<(), String> {
    ops::report(options)?.print(options.json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> (tempfile::TempDir, Options) {
        let disk = tempfile::tempdir().expect("a folder");
        let disk_dir = Some(disk.path().to_path_buf());
        (disk, Options { repeats: 1, disk_dir, only: Some("folio".to_owned()), tiny: true, json: false })
    }

    #[test]
    fn every_way_to_rewrite_is_measured_on_few_files() {
        let (_disk, options) = options();
        let report = rewrite::report(&options).expect("a report");
        assert!(report.tables.iter().all(|table| table.rows.len() >= 4), "{report:?}");
        report.print(true).expect("JSON");
        report.print(false).expect("text");
    }

    #[test]
    fn every_operation_is_measured_on_few_files() {
        let (_disk, options) = options();
        let report = ops::report(&options).expect("a report");
        assert!(!report.tables.is_empty() && report.tables[0].rows.len() == 1, "{report:?}");
        report.print(false).expect("text");
    }
}
