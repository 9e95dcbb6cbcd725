//! The tables of the scenario: reads, calls that are made again and again, and work on trees.

use super::jobs::{Figure, Job};
use super::{iozone, trees};
use crate::race::{Race, Turn};
use crate::report::{Report, Sample, Unit};
use std::collections::BTreeSet;

pub(super) const READS: &str = "reads";
pub(super) const CALLS: &str = "again and again";
/// Whose figures are 1.
pub(super) const NATIVE: &str = "native";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Reads, calls again and again, changes of the host.
    Usual,
    /// The article's table.
    Iozone,
    /// Work on trees.
    Trees,
}

impl Kind {
    /// Returns a race for its tables.
    pub(super) fn race<'a>(self) -> Race<'a> {
        let rates = match self {
            Self::Usual => READS,
            Self::Iozone => iozone::TITLE,
            Self::Trees => return Race::new(trees::TITLE, Unit::Seconds, Some(NATIVE)),
        };
        let rates = Race::new(rates, Unit::MibPerSecond, Some(NATIVE));
        rates.table(CALLS, Unit::Seconds, Some(NATIVE))
    }
}

/// Adds the figures of a contender to these tables.
pub(super) fn add(figures: impl IntoIterator<Item = Figure>, turn: &mut Turn) {
    for Figure { job, value } in figures {
        let table = usize::from(!job.is_rate() && !matches!(job, Job::Tree(_)));
        turn.add_to(table, job.title(), Sample::of(value));
    }
}

/// Returns how much slower than `theirs` a contender is; 1 is as fast.
pub(super) fn slower(report: &Report, job: Job, ours: &str, theirs: &str) -> Option<f64> {
    let of = |title: &str, ours, theirs| report.table(title)?.ratio(job.title(), ours, theirs);
    match job {
        Job::Iozone(_) => of(iozone::TITLE, theirs, ours),
        Job::Tree(_) => of(trees::TITLE, ours, theirs),
        job if job.is_rate() => of(READS, theirs, ours),
        _ => of(CALLS, ours, theirs),
    }
}

/// Removes the delays of contenders that have missed a change.
pub(super) fn drop_unseen(report: &mut Report, unseen: &BTreeSet<&str>) {
    let delays = [Job::ChangeSeen, Job::ChangeSeenMost].map(Job::title);
    for table in &mut report.tables {
        table.rows.retain(|row| {
            !(unseen.contains(row.contender.as_str()) && delays.contains(&row.job.as_str()))
        });
    }
}
