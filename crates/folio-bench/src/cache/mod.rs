//! The scenario `cache`: cached files through Folio, through the kernel, and by bare memcpy.
//!
//! ```text
//!   mod       jobs and threads                 options  sizes of the files
//!   targets   the file in each contender       jobs     the operations on it
//!   article   whole small files                cold     a file that is not in memory
//!   rounds    interleaved timing               table    rows and aims
//! ```

pub(crate) mod article;
mod cold;
pub(crate) mod jobs;
mod options;
pub(crate) mod rounds;
pub(crate) mod table;
pub(crate) mod targets;

use crate::report::{Place, Report, owned, with_context};
use crate::run::Run;
use jobs::{JOBS, Job, LARGE_JOBS, Targets, Work};
pub(crate) use options::Options;
use options::WorkloadSize;
pub(crate) use options::size;
use rounds::{Effort, measure as timed};
use std::path::Path;
use std::time::Duration;
use table::{Figure, Row, Table};

const ROUNDS: u32 = 5;
const LEAST_MS: u64 = 30;
const QUICK_BYTES: u64 = 2 << 20;

/// Returns the number of rounds, and the least duration of each measurement.
pub(crate) fn effort(run: &Run<'_>, least_ms: Option<u64>) -> Effort {
    let least = Duration::from_millis(least_ms.unwrap_or_else(|| run.sized(LEAST_MS, 0)));
    Effort {
        repeats: run.repeats(ROUNDS),
        least,
    }
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let tmpfs =
        targets::find_tmpfs().ok_or("no tmpfs that may be written: mount one on /dev/shm")?;
    let disk = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let workload = WorkloadSize {
        set_bytes: options
            .set_bytes
            .unwrap_or_else(|| run.sized(64 << 20, QUICK_BYTES)),
        large_set: options
            .large_set
            .unwrap_or_else(|| run.sized(4 << 30, QUICK_BYTES)),
        cold_bytes: options
            .cold_bytes
            .unwrap_or_else(|| run.sized(1 << 30, QUICK_BYTES)),
    };
    let what = "cached files through Folio, through the kernel, and by bare memcpy";
    let mut report = Report::new("cache", what, &tmpfs);
    report.notes = vec![
        format!("the disk is {}", Place::of(&disk).words()),
        "stat, open: of a path relative to an open folder, for Folio and for the kernel".to_owned(),
        "random offsets cost what the row offset says; every contender pays it".to_owned(),
        "two threads need two processors to themselves".to_owned(),
        table::huge_pages(),
    ];
    let effort = effort(run, options.least_ms);
    report.repeats = effort.repeats;
    let mut tables = Vec::new();
    tables.extend(memory(options, workload, run, effort, &tmpfs, &mut report)?);
    tables.extend(article::table(options, effort, &tmpfs, &disk, &mut report)?);
    tables.extend(cold::table(
        options,
        workload,
        &disk,
        effort.repeats,
        &mut report,
    )?);
    report.verdicts = table::judge(&tables);
    report.tables = tables.iter().map(Table::to_report).collect();
    report.limits = owned(&table::LIMITS);
    Ok(report)
}

/// The jobs on files that are in memory.
fn memory(
    options: &Options,
    workload: WorkloadSize,
    run: &Run<'_>,
    effort: Effort,
    tmpfs: &Path,
    report: &mut Report,
) -> Result<Option<Table>, String> {
    let mut rows = Vec::new();
    let jobs: Vec<_> = JOBS
        .into_iter()
        .filter(|job| options.wants(job.name))
        .collect();
    if !jobs.is_empty() {
        let targets = make_targets(workload.set_bytes, tmpfs)?;
        for job in jobs {
            (run.step)(&format!("cache: {}", job.name))?;
            match job.work {
                Work::Read { len_bytes, .. } | Work::Write { len_bytes, .. }
                    if len_bytes * 2 > workload.set_bytes && len_bytes != workload.set_bytes =>
                {
                    report.skip(job.name, "the set is too small");
                }
                _ => rows.extend(threads(&targets, job, effort, report)?),
            }
        }
    }
    let large_jobs: Vec<_> = LARGE_JOBS
        .into_iter()
        .filter(|job| options.wants(job.name))
        .collect();
    if !large_jobs.is_empty() {
        match room(workload.large_set) {
            Ok(()) => {
                let targets = make_targets(workload.large_set, tmpfs)?;
                for job in large_jobs {
                    (run.step)(&format!("cache: {}", job.name))?;
                    rows.extend(threads(&targets, job, effort, report)?);
                }
            }
            Err(reason) => large_jobs
                .iter()
                .for_each(|job| report.skip(job.name, reason.clone())),
        }
    }
    let title = format!(
        "in memory, a file of {} MiB; large: {} MiB",
        workload.set_bytes >> 20,
        workload.large_set >> 20
    );
    Ok((!rows.is_empty()).then_some(Table {
        title,
        base: jobs::KERNEL,
        rows,
    }))
}

/// The same bytes in Folio's ramfs, in the kernel's tmpfs and in bare memory, all of it touched.
pub(crate) fn make_targets(set_bytes: u64, tmpfs: &Path) -> Result<Targets, String> {
    let targets = Targets {
        folio: targets::FolioTarget::new(set_bytes)?,
        kernel: targets::KernelTarget::new(tmpfs, set_bytes)?,
        memory: targets::Memory::new(set_bytes)?,
        set_bytes,
    };
    targets.warm()?;
    Ok(targets)
}

/// Checks that three sets fit into memory, one per contender, with some room to spare.
fn room(set_bytes: u64) -> Result<(), String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(with_context("/proc/meminfo"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let free_kib = line
        .and_then(|line| line.trim().split(' ').next())
        .and_then(|number| number.parse().ok());
    let free_kib: u64 = free_kib.ok_or("/proc/meminfo has no MemAvailable")?;
    let (need_mib, free_mib) = ((set_bytes >> 20) * 13 / 4, free_kib >> 10);
    if free_mib >= need_mib {
        return Ok(());
    }
    Err(format!(
        "three sets need {need_mib} MiB of memory, {free_mib} are free"
    ))
}

/// A job with one thread, and with two where there are two processors.
fn threads(
    targets: &Targets,
    job: Job,
    effort: Effort,
    report: &mut Report,
) -> Result<Vec<Row>, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        report.skip(format!("{} with two threads", job.name), "one processor");
    }
    let contenders = targets.contenders(job);
    let mut rows: Vec<Row> = Vec::new();
    for threads in (1..=2).filter(|threads| *threads == 1 || processors >= 2) {
        let rounds = timed(&contenders, threads, effort).map_err(with_context(job.name))?;
        let names = contenders.iter().map(|contender| contender.name);
        let mut figures: Vec<_> = names
            .zip(rounds)
            .map(|(name, rounds)| Figure::new(name, rounds))
            .collect();
        for figure in &mut figures {
            let one = rows.first().and_then(|row| row.figure(figure.contender));
            figure.scaling = one.map(|one| one.median_ns / figure.median_ns);
        }
        rows.push(Row::new(job.name, threads, figures));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn every_row_is_measured_on_tiny_sets() {
        let disk = tempfile::tempdir().expect("a folder");
        let options = Options {
            disk_dir: Some(disk.path().to_path_buf()),
            ..Options::default()
        };
        let quiet = |_: &str| Ok(());
        let run = Run {
            is_quick: true,
            repeats: Some(1),
            ..Run::new(PathBuf::new(), &quiet)
        };
        let report = measure(&options, &run).expect("a report");
        let jobs: Vec<_> = report
            .tables
            .iter()
            .flat_map(|table| &table.rows)
            .map(|row| &row.job)
            .collect();
        let is_skipped = |job: &str| {
            report
                .not_measured
                .iter()
                .any(|missing| missing.what.contains(job))
        };
        let names = JOBS.iter().chain(&LARGE_JOBS).map(|job| job.name);
        for job in names.chain([article::READ, article::WRITE, "cold-read"]) {
            assert!(
                jobs.iter().any(|found| *found == job) || is_skipped(job),
                "{job}: {jobs:?}"
            );
        }
        assert!(report.verdicts.len() >= 12);
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert!(size("3").is_err());
    }
}
