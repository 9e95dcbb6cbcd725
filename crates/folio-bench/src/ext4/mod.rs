//! Scenarios about Folio's ext4 beside the kernel's: `auto-da-alloc` and `ext4-ops`.
//!
//! ```text
//!   rewrite   files written over and over     ops   files made and removed, bytes in order and at random
//!   fixture   a fresh file system, mounted by a contender on a disk
//!   hosted    file systems that the host's kernel mounts: its own ext4 on a loop device, fuse2fs
//!   figures   rounds and aims
//! ```

mod figures;
mod fixture;
pub(crate) mod hosted;
pub(crate) mod ops;
pub(crate) mod rewrite;

use crate::run::Run;
use std::path::PathBuf;

/// Options of the scenarios.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A folder on a real disk for the images; without it, the system's folder for temporary files
    #[arg(long)]
    pub(crate) disk_dir: Option<PathBuf>,
    /// Only contenders whose name contains this
    #[arg(long)]
    pub(crate) only: Option<String>,
}

impl Options {
    fn disk_dir(&self) -> PathBuf {
        self.disk_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    fn wants(&self, name: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    }
}

/// A count of files or bytes, or a hundredth of it.
fn scaled(run: &Run<'_>, count: usize) -> usize {
    run.sized(count, count.div_ceil(100))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn measured(measure: fn(&Options, &Run<'_>) -> Result<Report, String>) -> Report {
        let disk = tempfile::tempdir().expect("a folder");
        let disk_dir = Some(disk.path().to_path_buf());
        let quiet = |_: &str| Ok(());
        let run = Run {
            is_quick: true,
            repeats: Some(1),
            ..Run::new(PathBuf::new(), &quiet)
        };
        measure(
            &Options {
                disk_dir,
                only: Some("folio".to_owned()),
            },
            &run,
        )
        .expect("a report")
    }

    #[test]
    fn every_way_to_rewrite_is_measured_on_few_files() {
        let report = measured(rewrite::measure);
        assert!(
            report.tables.iter().all(|table| table.rows.len() >= 4 * 3),
            "{report:?}"
        );
        assert!(
            report
                .story
                .is_some_and(|story| story.figures.iter().all(|figure| {
                    // The kernel is not among these contenders.
                    figure.what.ends_with("modeled SATA disk") != figure.today.is_empty()
                }))
        );
    }

    #[test]
    fn every_operation_is_measured_on_few_files() {
        let report = measured(ops::measure);
        assert!(
            report.tables.len() == 1 && report.tables[0].rows.len() == 7,
            "{report:?}"
        );
    }
}
