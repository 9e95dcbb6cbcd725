//! The aims of the scenario `cache`.

use super::cold;
use super::jobs::{FOLIO, KERNEL, MEMCPY};
use super::rounds::row_name;
use crate::report::{Bound, Report, Table};

/// The aim of a job.
#[derive(Debug, Clone, Copy)]
enum Aim {
    /// With one thread, at least this share of bare memcpy's rate.
    OfMemcpy(f64),
    /// With one thread, at least this multiple of the kernel's rate.
    TimesKernel(f64),
    /// With two threads, at least this multiple of the rate of one.
    Scaling(f64),
    /// With two threads, at least 1.8 times the rate of one, or 0.95 of how bare memcpy scales.
    ScalesAsMemcpy,
    /// At most this multiple of the time in which the host reads the same bytes.
    OfHost(f64),
}

/// Of a lookup, and of what memory bandwidth limits.
const SCALING: f64 = 1.8;
const SCALING_OF_MEMCPY: f64 = 0.95;

const AIMS: [(&str, Aim); 27] = [
    ("pread-4k-random", Aim::OfMemcpy(0.9)),
    ("pread-4k-random", Aim::TimesKernel(2.5)),
    ("pread-4k-random-large", Aim::OfMemcpy(0.9)),
    ("pread-4k-random-large", Aim::TimesKernel(2.5)),
    ("pread-4k-batch", Aim::OfMemcpy(1.2)),
    ("pread-4k-batch-large", Aim::OfMemcpy(1.2)),
    ("pread-1-seq", Aim::TimesKernel(15.0)),
    ("pread-1-random", Aim::TimesKernel(15.0)),
    ("pread-200k-seq", Aim::OfMemcpy(0.95)),
    ("pread-200k-random", Aim::OfMemcpy(0.95)),
    ("pwrite-4k-random", Aim::TimesKernel(2.5)),
    ("stat-1", Aim::TimesKernel(12.0)),
    ("stat-4", Aim::TimesKernel(10.0)),
    ("fstat", Aim::TimesKernel(12.0)),
    ("open-close", Aim::TimesKernel(10.0)),
    ("stat-1", Aim::Scaling(SCALING)),
    ("stat-4", Aim::Scaling(SCALING)),
    ("fstat", Aim::Scaling(SCALING)),
    ("open-close", Aim::Scaling(SCALING)),
    ("pread-1-random", Aim::ScalesAsMemcpy),
    ("pread-4k-random", Aim::ScalesAsMemcpy),
    ("pread-4k-random-large", Aim::ScalesAsMemcpy),
    ("pread-200k-seq", Aim::ScalesAsMemcpy),
    ("pread-200k-random", Aim::ScalesAsMemcpy),
    ("pread-1m-random", Aim::ScalesAsMemcpy),
    ("pwrite-4k-random", Aim::ScalesAsMemcpy),
    (cold::JOB, Aim::OfHost(1.05)),
];

/// Judges each aim by the table that has its job.
pub(super) fn judge(report: &mut Report) {
    for (job, aim) in AIMS {
        let table = report
            .tables
            .iter()
            .find(|table| table.rows.iter().any(|row| row.job == job));
        if let Some((words, figure, bound)) = table.and_then(|table| aim.figure(job, table)) {
            report.judge(format!("{job}: {words}"), Some(figure), bound);
        }
    }
}

impl Aim {
    /// Returns the aim in words, the figure for it, and its limit.
    fn figure(self, job: &str, table: &Table) -> Option<(String, f64, Bound)> {
        let scaling = |contender| {
            let [one, two] = [1, 2].map(|threads| table.row(&row_name(job, threads), contender));
            Some(one?.median / two?.median)
        };
        Some(match self {
            Self::OfMemcpy(least) => (
                format!("at least {least} of memcpy's rate"),
                table.ratio(job, MEMCPY, FOLIO)?,
                Bound::AtLeast(least),
            ),
            Self::TimesKernel(least) => (
                format!("at least {least} times the kernel"),
                table.ratio(job, KERNEL, FOLIO)?,
                Bound::AtLeast(least),
            ),
            Self::Scaling(least) => (
                format!("two threads: at least {least} of one"),
                scaling(FOLIO)?,
                Bound::AtLeast(least),
            ),
            Self::ScalesAsMemcpy => {
                let memcpy = scaling(MEMCPY)?;
                let least = SCALING.min(memcpy * SCALING_OF_MEMCPY);
                let words = format!("two threads: {SCALING}, or as memcpy ({memcpy:.2})");
                (words, scaling(FOLIO)?, Bound::AtLeast(least))
            }
            Self::OfHost(most) => (
                format!("at most {most} of the time of: {}", cold::HOST),
                table.ratio(job, cold::FOLIO, cold::HOST)?,
                Bound::AtMost(most),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Unit};

    #[test]
    fn aims_are_judged_by_figure() {
        let figure = |aim: Aim, folio: f64| {
            let row = |name, seconds| Row::new("stat-1", name, vec![seconds]);
            let rows = vec![row(FOLIO, folio), row(KERNEL, 100.0)];
            let table = Table::new("t", Unit::Seconds, None, rows);
            let (_, figure, bound) = aim.figure("stat-1", &table)?;
            Some((figure, bound.allows(figure)))
        };
        assert_eq!(figure(Aim::TimesKernel(8.0), 10.0), Some((10.0, true)));
        assert_eq!(figure(Aim::TimesKernel(8.0), 20.0), Some((5.0, false)));
        assert!(figure(Aim::OfMemcpy(0.9), 10.0).is_none());
        assert!(figure(Aim::Scaling(1.8), 10.0).is_none());
    }
}
