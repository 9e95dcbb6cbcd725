//! The scenario `memcpy`: reads of a file in a ramfs, whose copy loop copies byte by byte or is
//! memcpy.

use crate::cache::jobs::Targets;
use crate::cache::jobs::{BYTES, CALL, COPY_JOBS, FOLIO, FOLIO_C, KERNEL, MEMCPY, RAMFS_BYTES};
use crate::cache::rounds::Timing;
use crate::cache::targets::find_tmpfs;
use crate::options::size;
use crate::outcome::Outcome;
use crate::published::{PublishedCase, Today};
use crate::race::Run;
use crate::report::{Bound, Report, Table, Unit};

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
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let tmpfs = find_tmpfs()?;
    let usual_bytes = run.sized(64 << 20, 2 << 20);
    let set_bytes = options.set_bytes.unwrap_or(usual_bytes);
    let what = format!(
        "a file of {} MiB in memory, read in order, by several copy loops",
        set_bytes >> 20
    );
    let mut report = Report::new("memcpy", what, &tmpfs);
    let targets = Targets::new(set_bytes, &tmpfs)?;
    let mut table = Table::new(TITLE, Unit::Seconds, Some(MEMCPY), Vec::new());
    for job in COPY_JOBS {
        let timing = Timing {
            job: job.name,
            threads: 1,
            least_ms: None,
        };
        table
            .rows
            .extend(timing.rows(&targets.copiers(job), run, &mut report)?);
    }
    table.set_ratios();
    let rate = table.ratio(STORY_JOB, MEMCPY, FOLIO);
    let seconds = |contender| table.row(CALL, contender).map(|row| row.median);
    let more_ns = seconds(FOLIO_C)
        .zip(seconds(FOLIO))
        .map(|(c, rust)| (c - rust) * 1e9);
    report.tables.push(table);
    let aim = format!("{STORY_JOB}: at least 0.95 of memcpy's rate");
    report.judge(aim, rate, Bound::AtLeast(0.95));
    if let Some(more_ns) = more_ns {
        let aim = format!("{CALL}: a call from C at most {C_CALL_NS_MAX} ns above one from Rust");
        report.add_verdict(aim, more_ns <= C_CALL_NS_MAX, difference(more_ns));
    }
    report.story = Some(published_case(&report));
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns a difference of times in words.
fn difference(more_ns: f64) -> String {
    let word = if more_ns < 0.0 { "less" } else { "more" };
    format!("{:.1} ns {word}", more_ns.abs())
}

fn published_case(report: &Report) -> PublishedCase {
    let of = |name: &str| Today::of(name, report.row(TITLE, STORY_JOB, name));
    let cured = of(FOLIO).map(Today::cure);
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
        [cured, of(FOLIO_C), of(KERNEL), of(MEMCPY)],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::tests::quick;

    #[test]
    fn difference_of_times_has_no_sign() {
        let words = [-93.46, 0.0, 12.5].map(difference);
        assert_eq!(words, ["93.5 ns less", "0.0 ns more", "12.5 ns more"]);
    }

    #[test]
    fn every_copy_is_measured() {
        let report = measure(&Options::default(), &quick()).expect("a report");
        assert_eq!(report.tables[0].rows.len(), COPY_JOBS.len() * 6);
        let story = report.story.expect("a story");
        let today = story.figures.iter().map(|figure| figure.today.len());
        assert_eq!(today.collect::<Vec<_>>(), [2, 4]);
    }
}
