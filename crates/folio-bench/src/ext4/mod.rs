//! Scenarios about Folio's ext4 beside the kernel's: `auto-da-alloc` and `ext4-ops`.
//!
//! ```text
//!   rewrite   files written over and over     ops   files made and removed, bytes in order and at random
//!   fixture   a fresh file system, mounted by a contender on a disk
//! ```

mod fixture;
pub(crate) mod ops;
pub(crate) mod rewrite;

use crate::options::DiskDir;
use crate::race::Run;
use crate::report::{Bound, Report};

/// Options of the scenarios.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) disk: DiskDir,
    /// Only contenders whose name contains this
    #[arg(long)]
    pub(crate) only: Option<String>,
}

/// A count of files or bytes, or a hundredth of it.
fn scaled(run: &Run<'_>, count: usize) -> usize {
    run.sized(count, count.div_ceil(100))
}

/// Judges whether the first contender is `factor` times as fast as the second.
fn judge(report: &mut Report, table: &str, job: &str, pair: [&str; 2], factor: f64) {
    let [ours, theirs] = pair;
    let aim = match factor {
        1.0 => format!("{table}, {job}: {ours} is no slower than {theirs}"),
        _ => format!("{table}, {job}: {ours} is {factor} times as fast as {theirs}"),
    };
    report.judge_pair(aim, table, job, pair, Bound::AtMost(1.0 / factor));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;
    use crate::race::tests::quick;

    fn measured(measure: fn(&Options, &Run<'_>) -> Outcome<Report>) -> Report {
        let disk = tempfile::tempdir().expect("a folder");
        let options = Options {
            disk: DiskDir::at(disk.path().to_path_buf()),
            only: Some("folio".to_owned()),
        };
        measure(&options, &quick()).expect("a report")
    }

    #[test]
    fn every_way_to_rewrite_is_measured_on_few_files() {
        let report = measured(rewrite::measure);
        let mut tables = report.tables.iter();
        assert!(tables.all(|table| table.rows.len() >= 4 * 3), "{report:?}");
        for figure in report.story.expect("a story").figures {
            // The kernel is not among these contenders.
            assert!(figure.what.ends_with("modeled SATA disk") != figure.today.is_empty());
        }
    }

    #[test]
    fn every_operation_is_measured_on_few_files() {
        let report = measured(ops::measure);
        assert_eq!(
            (report.tables.len(), report.tables[0].rows.len()),
            (1, 14),
            "{report:?}"
        );
    }
}
