//! The scenario `cache`: cached files through Folio, through the kernel, and by bare memcpy.
//!
//! ```text
//!   mod       jobs and threads                 aims     what the rows aim at
//!   targets   the file in each contender       jobs     the operations on it
//!   article   whole small files                cold     a file that is not in memory
//!   rounds    timing of short calls
//! ```

mod aims;
pub(crate) mod article;
mod cold;
pub(crate) mod jobs;
pub(crate) mod rounds;
pub(crate) mod targets;

use crate::options::{DiskDir, is_wanted, size};
use crate::outcome::{Context, Outcome};
use crate::race::Run;
use crate::report::{Place, Report, Table, Unit};
use jobs::{JOBS, Job, LARGE_JOBS, Targets, Work};
use rounds::Timing;
use std::path::Path;

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Size of the file that is read and written, at least 1M [default: 64M]
    #[arg(long, value_parser = size)]
    set_bytes: Option<u64>,
    /// Size of the file whose pages are read at random in a job of their own [default: 4G]
    #[arg(long, value_parser = size)]
    large_set: Option<u64>,
    /// Size of the file that is read cold [default: 1G]
    #[arg(long, value_parser = size)]
    cold_bytes: Option<u64>,
    /// Only the jobs whose name contains this
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    disk: DiskDir,
    /// Milliseconds that one measurement lasts at least [default: 30]
    #[arg(long)]
    least_ms: Option<u64>,
}

const QUICK_BYTES: u64 = 2 << 20;

/// Limits of the figures.
const LIMITS: [&str; 5] = [
    "the kernel also pays for what a library does not have: the way into it and back, isolation from the caller, \
     checks of user memory, security hooks",
    "bare memcpy has the address of the bytes: no file, no size, no page that might go away",
    "two threads: nanoseconds are those of both together, so half is perfect; writers keep to parts of their own",
    "ratios are those of medians; a spread as wide as the distance says that there was no silence",
    "one machine: compare ratios, and run it on yours",
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let tmpfs = targets::find_tmpfs()?;
    let disk = options.disk.path();
    let what = "cached files through Folio, through the kernel, and by bare memcpy";
    let mut report = Report::new("cache", what, &tmpfs);
    report.notes = vec![
        format!("the disk is {}", Place::of(&disk).words()),
        "stat, open: of a path relative to an open folder, for Folio and for the kernel".to_owned(),
        "random offsets cost what the row offset says; every contender pays it".to_owned(),
        "two threads need two processors to themselves".to_owned(),
        huge_pages(),
    ];
    memory(options, run, &tmpfs, &mut report)?;
    let small_files: Vec<_> = [article::READ, article::WRITE]
        .into_iter()
        .filter(|job| is_wanted(&options.only, job))
        .collect();
    if !small_files.is_empty() {
        article::measure(
            &small_files,
            options.least_ms,
            [&tmpfs, &disk],
            run,
            &mut report,
        )?;
    }
    if is_wanted(&options.only, cold::JOB) {
        let usual_bytes = run.sized(1 << 30, QUICK_BYTES);
        let bytes = options.cold_bytes.unwrap_or(usual_bytes);
        cold::measure(bytes, &disk, run, &mut report)?;
    }
    aims::judge(&mut report);
    report.limit(&LIMITS);
    Ok(report)
}

/// The jobs on files that are in memory.
fn memory(options: &Options, run: &Run<'_>, tmpfs: &Path, report: &mut Report) -> Outcome {
    let usual_bytes = run.sized(64 << 20, QUICK_BYTES);
    let set_bytes = options.set_bytes.unwrap_or(usual_bytes);
    let usual_bytes = run.sized(4 << 30, QUICK_BYTES);
    let large_bytes = options.large_set.unwrap_or(usual_bytes);
    let title = format!(
        "in memory, a file of {} MiB; large: {} MiB",
        set_bytes >> 20,
        large_bytes >> 20
    );
    let mut table = Table::new(title, Unit::Seconds, Some(jobs::KERNEL), Vec::new());
    for (jobs, set_bytes) in [(&JOBS[..], set_bytes), (&LARGE_JOBS, large_bytes)] {
        let jobs = jobs.iter().filter(|job| is_wanted(&options.only, job.name));
        let jobs: Vec<_> = jobs.collect();
        if jobs.is_empty() {
            continue;
        }
        if let Err(reason) = room(set_bytes) {
            jobs.iter()
                .for_each(|job| report.skip(job.name, reason.to_string()));
            continue;
        }
        let targets = Targets::new(set_bytes, tmpfs)?;
        for job in jobs {
            if !has_room(*job, set_bytes) {
                report.skip(job.name, "the set is too small");
                continue;
            }
            measure_job(*job, &targets, options.least_ms, run, report, &mut table)?;
        }
    }
    table.set_ratios();
    if !table.rows.is_empty() {
        report.tables.push(table);
    }
    Ok(())
}

/// Returns whether a set is large enough for a job.
fn has_room(job: Job, set_bytes: u64) -> bool {
    match job.work {
        Work::Read { len_bytes, .. } | Work::Write { len_bytes, .. } => {
            len_bytes * 2 <= set_bytes || len_bytes == set_bytes
        }
        _ => true,
    }
}

/// Checks that three sets fit into memory, one per contender, with some room to spare.
fn room(set_bytes: u64) -> Outcome {
    let text = std::fs::read_to_string("/proc/meminfo").at("/proc/meminfo")?;
    let mut lines = text.lines();
    let free = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = free.and_then(|free| free.trim().split(' ').next()?.parse::<u64>().ok());
    let free_mib = free.ok_or("/proc/meminfo has no MemAvailable")? >> 10;
    let need_mib = (set_bytes >> 20) * 13 / 4;
    if free_mib >= need_mib {
        return Ok(());
    }
    Err(format!("three sets need {need_mib} MiB of memory, {free_mib} are free").into())
}

/// A job with one thread, and with two where there are two processors.
fn measure_job(
    job: Job,
    targets: &Targets,
    least_ms: Option<u64>,
    run: &Run<'_>,
    report: &mut Report,
    table: &mut Table,
) -> Outcome {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let implementations = targets.implementations(job);
    for threads in 1..=2 {
        if threads > processors as u64 {
            report.skip(format!("{} with two threads", job.name), "one processor");
            continue;
        }
        let timing = Timing {
            job: job.name,
            threads,
            least_ms,
        };
        table
            .rows
            .extend(timing.rows(&implementations, run, report)?);
    }
    Ok(())
}

/// Returns the host's setting of transparent huge pages, as the kernel prints it.
fn huge_pages() -> String {
    let setting = |name: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        let text = std::fs::read_to_string(path);
        text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
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
    use crate::race::tests::quick;

    #[test]
    fn every_row_is_measured_on_tiny_sets() {
        let disk = tempfile::tempdir().expect("a folder");
        let options = Options {
            disk: DiskDir::at(disk.path().to_path_buf()),
            ..Options::default()
        };
        let report = measure(&options, &quick()).expect("a report");
        let rows = report.tables.iter().flat_map(|table| &table.rows);
        let jobs: Vec<_> = rows.map(|row| &row.job).collect();
        let is_skipped = |job: &str| {
            let mut missing = report.not_measured.iter();
            missing.any(|missing| missing.what.contains(job))
        };
        let names = JOBS.iter().chain(&LARGE_JOBS).map(|job| job.name);
        for job in names.chain([article::READ, article::WRITE, cold::JOB]) {
            let is_measured = jobs.iter().any(|found| *found == job);
            assert!(is_measured || is_skipped(job), "{job}: {jobs:?}");
        }
        assert!(report.verdicts.len() >= 12);
    }
}
