//! The scenario `memcpy`: reads of a file in a ramfs, whose copy loop copies byte by byte or is
//! memcpy.

use crate::cache::jobs::{BYTES, CALL, COPY_JOBS, FOLIO, FOLIO_C, KERNEL, MEMCPY, RAMFS_BYTES};
use crate::cache::rounds::measure as timed;
use crate::cache::table::{Figure, Row, Table};
use crate::cache::{effort, make_targets, size, targets::find_tmpfs};
use crate::published::{PublishedCase, Today};
use crate::report::{Report, Unit, Verdict, owned, with_context};
use crate::run::Run;

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Size of the file, at least 1M [default: 64M]
    #[arg(long, value_parser = size)]
    set_bytes: Option<u64>,
}

const LIMITS: [&str; 5] = [
    "the file is read in order, over and over; what of it is in the processor's caches, all contenders find alike",
    "the story's figures are those of another machine: compare how many times, not how long; today's pieces are of \
     200 KiB",
    "the kernel also pays for the way into it and back; memcpy and the byte-wise copy alone have no file",
    "folio, from C: the same file by folio_pread() of libfolio",
    "folio, copied byte by byte: Folio's ramfs with borrowed pages, and the article's loop in place of its copy",
];
const TITLE: &str = "read from a ramfs";
/// The article's job: 200 KB at a time.
const STORY_JOB: &str = "pread-200k-seq";
/// What a call from C may cost beyond one from Rust.
const C_CALL_NS_MAX: f64 = 10.0;

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let tmpfs = find_tmpfs().ok_or("no tmpfs that may be written: mount one on /dev/shm")?;
    let set_bytes = options
        .set_bytes
        .unwrap_or_else(|| run.sized(64 << 20, 2 << 20));
    let what = format!(
        "a file of {} MiB in memory, read in order, by several copy loops",
        set_bytes >> 20
    );
    let mut report = Report::new("memcpy", what, &tmpfs);
    let effort = effort(run, None);
    report.repeats = effort.repeats;
    let targets = make_targets(set_bytes, &tmpfs)?;
    let mut rows = Vec::new();
    for job in COPY_JOBS {
        (run.step)(&format!("memcpy: {}", job.name))?;
        let contenders = targets.copiers(job);
        let rounds = timed(&contenders, 1, effort).map_err(with_context(job.name))?;
        let names = contenders.iter().map(|contender| contender.name);
        let figures = names
            .zip(rounds)
            .map(|(name, rounds)| Figure::new(name, rounds))
            .collect();
        rows.push(Row::new(job.name, 1, figures));
    }
    report.verdicts.extend(
        rows.iter()
            .find(|row| row.job == STORY_JOB)
            .and_then(verdict),
    );
    report
        .verdicts
        .extend(rows.iter().find(|row| row.job == CALL).and_then(c_verdict));
    report.tables.push(
        Table {
            title: TITLE.to_owned(),
            base: MEMCPY,
            rows,
        }
        .to_report(),
    );
    report.story = Some(published_case(&report));
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn verdict(row: &Row) -> Option<Verdict> {
    let ratio = row.ratio(MEMCPY, FOLIO)?;
    let aim = format!("{STORY_JOB}: at least 0.95 of memcpy's rate");
    Some(Verdict {
        aim,
        is_met: ratio >= 0.95,
        figures: crate::rows::ratio(ratio),
    })
}

fn c_verdict(row: &Row) -> Option<Verdict> {
    let more_ns = row.figure(FOLIO_C)?.median_ns - row.figure(FOLIO)?.median_ns;
    let aim = format!("{CALL}: a call from C at most {C_CALL_NS_MAX} ns above one from Rust");
    Some(Verdict {
        aim,
        is_met: more_ns <= C_CALL_NS_MAX,
        figures: difference(more_ns),
    })
}

/// Returns a difference of times in words.
fn difference(more_ns: f64) -> String {
    let word = if more_ns < 0.0 { "less" } else { "more" };
    format!("{:.1} ns {word}", more_ns.abs())
}

fn published_case(report: &Report) -> PublishedCase {
    let of = |name: &str| Today::of(name, report.row(TITLE, STORY_JOB, name));
    PublishedCase::new(
        "Copy loops",
        "reads from the ramfs of a library OS were slow because its memcpy went byte by byte",
        "copy with the platform's memcpy, as Folio does",
    )
    .with(
        "200 KB read from the ramfs, copied byte by byte",
        Unit::Seconds,
        513e-6,
        [of(RAMFS_BYTES), of(BYTES)],
    )
    .with(
        "the same with a good memcpy",
        Unit::Seconds,
        74e-6,
        [
            of(FOLIO).map(Today::cure),
            of(FOLIO_C),
            of(KERNEL),
            of(MEMCPY),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn difference_of_times_has_no_sign() {
        let words = [-93.46, 0.0, 12.5].map(difference);
        assert_eq!(words, ["93.5 ns less", "0.0 ns more", "12.5 ns more"]);
    }

    #[test]
    fn every_copy_is_measured() {
        let quiet = |_: &str| Ok(());
        let run = Run {
            is_quick: true,
            repeats: Some(1),
            ..Run::new(PathBuf::new(), &quiet)
        };
        let report = measure(&Options::default(), &run).expect("a report");
        assert_eq!(report.tables[0].rows.len(), COPY_JOBS.len() * 6);
        let story = report.story.expect("a story");
        assert_eq!(
            story
                .figures
                .iter()
                .map(|figure| figure.today.len())
                .collect::<Vec<_>>(),
            [2, 4]
        );
    }
}
