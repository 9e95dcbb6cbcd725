//! Rows of contenders in nanoseconds, what they aim at, and the same as a report's tables.

use super::jobs::{FOLIO, KERNEL, MEMCPY};
use crate::report::{self, Unit, Verdict, middle};

/// The contenders of a cold read.
pub(crate) const COLD_FOLIO: &str = "folio ext4, raw image";
pub(crate) const COLD_HOST: &str = "host, same bytes";

/// Limits of the figures.
pub(crate) const LIMITS: [&str; 5] = [
    "the kernel also pays for what a library does not have: the way into it and back, isolation from the caller, \
     checks of user memory, security hooks",
    "bare memcpy has the address of the bytes: no file, no size, no page that might go away",
    "two threads: nanoseconds are those of both together, so half is perfect; writers keep to parts of their own",
    "ratios are those of medians; a spread as wide as the distance says that there was no silence",
    "one machine: compare ratios, and run it on yours",
];

/// One contender's nanoseconds per operation.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) contender: &'static str,
    pub(crate) median_ns: f64,
    rounds_ns: Vec<f64>,
    /// Operations per second as a multiple of those of one thread.
    pub(crate) scaling: Option<f64>,
}

impl Figure {
    /// Returns the median and spread of `rounds_ns`.
    pub(crate) fn new(contender: &'static str, rounds_ns: Vec<f64>) -> Self {
        Self {
            contender,
            median_ns: middle(rounds_ns.clone()),
            rounds_ns,
            scaling: None,
        }
    }
}

/// One job with a number of threads.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) job: &'static str,
    pub(crate) threads: u64,
    pub(crate) figures: Vec<Figure>,
    /// The kernel's time over Folio's.
    pub(crate) times_kernel: Option<f64>,
    /// Bare memcpy's time over Folio's: the share of its rate.
    pub(crate) of_memcpy: Option<f64>,
}

impl Row {
    /// Returns a row with its ratios.
    pub(crate) fn new(job: &'static str, threads: u64, figures: Vec<Figure>) -> Self {
        let mut row = Self {
            job,
            threads,
            figures,
            times_kernel: None,
            of_memcpy: None,
        };
        row.times_kernel = row.ratio(KERNEL, FOLIO);
        row.of_memcpy = row.ratio(MEMCPY, FOLIO);
        row
    }

    /// Returns the figure of a contender.
    pub(crate) fn figure(&self, contender: &str) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|figure| figure.contender == contender)
    }

    /// Median time of one contender over another's.
    pub(crate) fn ratio(&self, of: &str, over: &str) -> Option<f64> {
        Some(self.figure(of)?.median_ns / self.figure(over)?.median_ns)
    }
}

/// The aim of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Aim {
    /// With one thread, at least this share of bare memcpy's rate.
    OfMemcpy(f64),
    /// With one thread, at least this multiple of the kernel's rate.
    TimesKernel(f64),
    /// With two threads, at least this multiple of the rate of one.
    Scaling(f64),
    /// With two threads, at least 1.8 times the rate of one, or 0.95 of how bare memcpy scales.
    ScalesAsMemcpy,
    /// Time of the first contender over the second's at most this.
    AtMost(f64, &'static str, &'static str),
}

/// Of a lookup, and of what memory bandwidth limits.
const SCALING: f64 = 1.8;
const SCALING_OF_MEMCPY: f64 = 0.95;

/// The aims of the rows.
pub(crate) const AIMS: [(&str, Aim); 27] = [
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
    ("cold-read", Aim::AtMost(1.05, COLD_FOLIO, COLD_HOST)),
];

impl Aim {
    /// Returns the verdict on `row`, if the aim is about it.
    fn judge(self, row: &Row) -> Option<Verdict> {
        let scaling = |name| row.figure(name).and_then(|figure| figure.scaling);
        let (aim, figure, is_met) = match self {
            Self::OfMemcpy(least) if row.threads == 1 => (
                format!("at least {least} of memcpy's rate"),
                row.of_memcpy?,
                row.of_memcpy? >= least,
            ),
            Self::TimesKernel(least) if row.threads == 1 => (
                format!("at least {least} times the kernel"),
                row.times_kernel?,
                row.times_kernel? >= least,
            ),
            Self::Scaling(least) if row.threads == 2 => (
                format!("two threads: at least {least} of one"),
                scaling(FOLIO)?,
                scaling(FOLIO)? >= least,
            ),
            Self::ScalesAsMemcpy if row.threads == 2 => {
                let (folio, memcpy) = (scaling(FOLIO)?, scaling(MEMCPY)?);
                let least = SCALING.min(memcpy * SCALING_OF_MEMCPY);
                let aim = format!("two threads: {SCALING}, or as memcpy ({memcpy:.2})");
                (aim, folio, folio >= least)
            }
            Self::AtMost(most, of, over) if row.threads == 1 => {
                let ratio = row.ratio(of, over)?;
                (
                    format!("at most {most} of the time of: {over}"),
                    ratio,
                    ratio <= most,
                )
            }
            _ => return None,
        };
        Some(Verdict {
            aim: format!("{}: {aim}", row.job),
            is_met,
            figures: crate::rows::ratio(figure),
        })
    }
}

/// Rows with a title.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// Whose time is 1.
    pub(crate) base: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// The verdicts on all rows that an aim is about.
pub(crate) fn judge(tables: &[Table]) -> Vec<Verdict> {
    let rows = || tables.iter().flat_map(|table| &table.rows);
    let judged = AIMS.iter().flat_map(|(job, aim)| {
        rows()
            .filter(move |row| row.job == *job)
            .filter_map(move |row| aim.judge(row))
    });
    judged.collect()
}

impl Table {
    /// In seconds for each operation, as a report has it.
    pub(crate) fn to_report(&self) -> report::Table {
        let mut rows = Vec::new();
        for row in &self.rows {
            let job = match row.threads {
                1 => row.job.to_owned(),
                threads => format!("{}, {threads} threads", row.job),
            };
            for figure in &row.figures {
                let seconds = figure.rounds_ns.iter().map(|ns| ns / 1e9).collect();
                rows.push(report::Row::new(job.clone(), figure.contender, seconds));
            }
        }
        report::Table::new(self.title.clone(), Unit::Seconds, Some(self.base), rows)
    }
}

/// Returns the host's setting of transparent huge pages, as the kernel prints it.
pub(crate) fn huge_pages() -> String {
    let setting = |name: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        std::fs::read_to_string(path)
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    format!(
        "huge pages: anonymous {}, shmem and tmpfs {}",
        setting("enabled"),
        setting("shmem_enabled")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_judged_by_figure() {
        let figures = |folio: f64| {
            vec![
                Figure::new(FOLIO, vec![folio]),
                Figure::new(KERNEL, vec![100.0]),
            ]
        };
        let judge =
            |folio: f64| Aim::TimesKernel(8.0).judge(&Row::new("stat-1", 1, figures(folio)));
        assert!(judge(10.0).is_some_and(|verdict| verdict.is_met && verdict.figures == "10.00"));
        assert!(judge(20.0).is_some_and(|verdict| !verdict.is_met));
        assert!(
            Aim::OfMemcpy(0.9)
                .judge(&Row::new("stat-1", 1, figures(10.0)))
                .is_none()
        );
        assert!(
            Aim::TimesKernel(8.0)
                .judge(&Row::new("stat-1", 2, figures(10.0)))
                .is_none()
        );
    }
}
