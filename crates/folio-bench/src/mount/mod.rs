//! The scenario `mount`: usual jobs on a mounted image, beside the kernel's loop mount and fuse2fs,
//! and the FUSE requests that each job needs.
//!
//! ```text
//!   mod      rounds, tables, aims      options  contenders, jobs and sizes of a run
//!   targets  folio mount of an image and of a directory, the kernel's ext4, fuse2fs
//!   jobs     the jobs, and the fewest requests for each
//!   source   the tree: generated, as an archive, as a repository
//! ```

mod jobs;
mod options;
mod source;
mod targets;

use crate::mounted::Requests;
use crate::report::{Report, Row, Table, Unit, Verdict, middle, owned};
use crate::run::{Run, scratch_in};
use jobs::{Job, Work};
pub(crate) use options::Options;
use options::{NAME, ROUNDS, WorkloadSize};
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use targets::{Contender, Kind, Target};

const FOLIO: &str = "folio mount, image";
const KERNEL: &str = "kernel loop mount";
const FUSE2FS: &str = "fuse2fs";
/// The row of the fewest possible requests.
const LEAST: &str = "least possible";
/// Time that is permitted, as a multiple of the kernel's loop mount.
const AIM: f64 = 1.5;

const LIMITS: [&str; 5] = [
    "nothing but fsync waits for the disk: written data may be in a memory, the kernel's or folio's, when the clock \
     stops; all of it is synced before the next job",
    "a remount drops names and attributes; the image itself stays in the host's page cache, for all contenders",
    "a directory of the host has no image: other programs may change it, and folio mount notices",
    "requests are counted from the start of a job until its data is synced; fuse2fs counts none",
    "tar and git are programs, and their own time is in the figure; all other jobs run in the bench's process",
];

/// Figures of one contender: by job, one for each round.
struct Measured<'a> {
    contender: &'a Contender,
    seconds: BTreeMap<usize, Vec<f64>>,
    requests: BTreeMap<usize, Vec<Requests>>,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let scratch = scratch_in(&options.disk_dir())?;
    let workload = options.workload(run);
    let source = Source::new(scratch.path(), workload.entries)?;
    let mut report = Report::new(NAME, what(&source, workload), &options.disk_dir());
    let jobs = wanted_jobs(options, &mut report);
    let contenders = contenders(options, &run.folio);
    let mut measured = Vec::new();
    for contender in contenders
        .iter()
        .filter(|one| options.wants_contender(&one.name))
    {
        match contender.missing() {
            Some(reason) => report.skip(&contender.name, reason),
            None => measured.push(Measured {
                contender,
                seconds: BTreeMap::new(),
                requests: BTreeMap::new(),
            }),
        }
    }
    while run.goes_on(NAME, report.repeats, ROUNDS)? {
        let mut failed = BTreeSet::new();
        for turn in 0..measured.len() {
            run.check()?;
            let at = (turn + report.repeats as usize) % measured.len();
            let one = &mut measured[at];
            if let Err(reason) = round(one, &jobs, (&source, workload), scratch.path(), run) {
                // An interrupt ends the run; it is not a failure of the contender.
                run.check()?;
                report.skip(&one.contender.name, reason);
                failed.insert(one.contender.name.clone());
            }
        }
        measured.retain(|one| !failed.contains(&one.contender.name));
        report.repeats += 1;
    }
    let times = times(&jobs, &measured);
    report.verdicts = verdicts(&times, &jobs);
    report.tables = vec![times];
    let requests = requests(&jobs, &measured, &source, workload);
    report
        .tables
        .extend((requests.rows.len() > jobs.len()).then_some(requests));
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn what(source: &Source, workload: WorkloadSize) -> String {
    format!(
        "a tree of {} entries ({} MiB), a file of {} MiB, {} files in one directory, on fresh file systems",
        source.entries(),
        source.bytes >> 20,
        workload.large_bytes >> 20,
        workload.files
    )
}

fn wanted_jobs(options: &Options, report: &mut Report) -> Vec<Job> {
    let mut jobs = Vec::new();
    for job in Job::ALL {
        match job.missing() {
            _ if !options.wants_job(job.title()) => {}
            Some(reason) => report.skip(job.title(), reason),
            None => jobs.push(job),
        }
    }
    jobs
}

fn contenders(options: &Options, folio: &Path) -> Vec<Contender> {
    let contender = |name: &str, kind| Contender {
        name: name.to_owned(),
        kind,
        folio: folio.to_owned(),
        words: None,
        counts_requests: true,
    };
    let mut contenders = vec![
        contender(FOLIO, Kind::Image),
        contender("folio mount, directory", Kind::Directory),
        contender(KERNEL, Kind::Kernel),
        contender(FUSE2FS, Kind::Fuse2fs),
    ];
    if let Some(words) = &options.with {
        contenders.push(Contender {
            words: Some(words.clone()),
            ..contender(&format!("{FOLIO}, -o {words}"), Kind::Image)
        });
    }
    if let Some(other) = &options.beside {
        let beside = |name: &str, kind| Contender {
            folio: PathBuf::clone(other),
            // It may be older than its counters.
            counts_requests: false,
            ..contender(name, kind)
        };
        contenders.push(beside("the other folio, image", Kind::Image));
        contenders.push(beside("the other folio, directory", Kind::Directory));
    }
    contenders
}

/// Runs all jobs of one contender on a fresh file system.
fn round(
    measured: &mut Measured<'_>,
    jobs: &[Job],
    (source, workload): (&Source, WorkloadSize),
    scratch: &Path,
    run: &Run<'_>,
) -> Result<(), String> {
    let mut target = Target::new(measured.contender, scratch, workload.image_mib())?;
    for (at, job) in jobs.iter().enumerate() {
        run.check()?;
        let work = Work {
            target: &mut target,
            source,
            workload,
        };
        let done = once(work, *job);
        let (seconds, requests) =
            done.map_err(|reason| target.explain(format!("{}: {reason}", job.title())))?;
        measured.seconds.entry(at).or_default().push(seconds);
        if let Some(requests) = requests {
            measured.requests.entry(at).or_default().push(requests);
        }
    }
    Ok(())
}

/// Runs a job; returns its figure, and its requests if the contender counts them.
fn once(mut work: Work<'_, '_>, job: Job) -> Result<(f64, Option<Requests>), String> {
    work.prepare(job)?;
    work.target.sync()?;
    let before = work.target.requests()?;
    let seconds = work.time(job)?;
    work.target.sync()?;
    let after = work.target.requests()?;
    Ok((seconds, before.zip(after).map(added)))
}

/// Returns the requests between two counts.
fn added((before, after): (Requests, Requests)) -> Requests {
    let added = after.into_iter().map(|(name, count)| {
        let earlier = before.get(&name).copied().unwrap_or(0);
        (name, count.saturating_sub(earlier))
    });
    added.filter(|(_, count)| *count > 0).collect()
}

fn times(jobs: &[Job], measured: &[Measured<'_>]) -> Table {
    let mut rows = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        for one in measured {
            let seconds = one.seconds.get(&at).cloned().unwrap_or_default();
            rows.push(Row::new(job.title(), &one.contender.name, seconds));
        }
    }
    Table::new("jobs", Unit::Seconds, Some(KERNEL), rows)
}

fn requests(
    jobs: &[Job],
    measured: &[Measured<'_>],
    source: &Source,
    workload: WorkloadSize,
) -> Table {
    let mut rows = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        let least = job.least_requests(source, workload);
        rows.push(Row::new(job.title(), LEAST, vec![least]));
        let operations = job.operations(source, workload);
        for one in measured {
            let rounds = one.requests.get(&at);
            rows.extend(
                rounds.map(|rounds| {
                    request_row(job.title(), &one.contender.name, rounds, operations)
                }),
            );
        }
    }
    Table::new("FUSE requests", Unit::Requests, Some(LEAST), rows)
}

/// Returns the row of a contender's requests for each operation of a job.
fn request_row(job: &str, contender: &str, rounds: &[Requests], operations: f64) -> Row {
    let total = |round: &Requests| round.values().sum::<u64>() as f64 / operations;
    let mut row = Row::new(job, contender, rounds.iter().map(total).collect());
    let names: BTreeSet<&String> = rounds.iter().flat_map(BTreeMap::keys).collect();
    let each = names.into_iter().map(|name| {
        let counts = rounds
            .iter()
            .map(|round| round.get(name).copied().unwrap_or(0) as f64);
        (name.clone(), middle(counts.collect()) / operations)
    });
    row.requests = each.collect();
    row
}

/// Returns the aims: near the kernel's own mount, and ahead of fuse2fs.
fn verdicts(times: &Table, jobs: &[Job]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (rival, most, words) in [
        (KERNEL, AIM, format!("within {AIM} of the {KERNEL}'s time")),
        (FUSE2FS, 1.0, format!("ahead of {FUSE2FS}")),
    ] {
        for job in jobs.iter().map(|job| job.title()) {
            let (Some(ours), Some(theirs)) = (times.row(job, FOLIO), times.row(job, rival)) else {
                continue;
            };
            let ratio = ours.median / theirs.median;
            let [our_time, their_time] = [ours, theirs].map(|row| times.unit.figure(row.median));
            verdicts.push(Verdict {
                aim: format!("{job}: {FOLIO} {words}"),
                is_met: ratio <= most,
                figures: format!(
                    "{our_time} against {their_time}, {} times",
                    crate::rows::ratio(ratio)
                ),
            });
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests_of(pairs: &[(&str, u64)]) -> Requests {
        pairs
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    #[test]
    fn only_requests_of_the_job_are_counted() {
        let before = requests_of(&[("LOOKUP", 3), ("INIT", 1)]);
        let after = requests_of(&[("LOOKUP", 5), ("INIT", 1), ("WRITE", 2)]);
        let counted = added((before, after));
        assert_eq!(counted, requests_of(&[("LOOKUP", 2), ("WRITE", 2)]));
        let row = request_row("job", "x", &[counted, requests_of(&[("WRITE", 4)])], 2.0);
        assert_eq!(
            (row.rounds.as_slice(), row.requests["WRITE"]),
            (&[2.0, 2.0][..], 1.5)
        );
        assert_eq!(row.requests["LOOKUP"], 0.5);
    }

    #[test]
    fn missed_aims_are_judged_by_medians() {
        let row = |name: &str, seconds| Row::new(Job::Remove.title(), name, vec![seconds]);
        let rows = vec![row(FOLIO, 3.0), row(KERNEL, 1.0), row(FUSE2FS, 9.0)];
        let times = Table::new("jobs", Unit::Seconds, Some(KERNEL), rows);
        let met: Vec<bool> = verdicts(&times, &Job::ALL)
            .iter()
            .map(|one| one.is_met)
            .collect();
        assert_eq!(met, [false, true]);
    }
}
