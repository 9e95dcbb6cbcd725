//! The scenario `mount`: usual jobs on a mounted image, beside the kernel's loop mount and fuse2fs,
//! and the FUSE requests that each job needs.
//!
//! ```text
//!   mod      contenders, tables, aims
//!   jobs     the jobs, and the fewest requests for each
//! ```

mod jobs;

use crate::hosted::{Hosted, System};
use crate::options::{DiskDir, is_wanted, size};
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, Turn, scratch_in};
use crate::report::{Bound, Report, Sample, Unit};
use crate::sample_tree::SampleTree;
use crate::server::Requests;
use jobs::{Job, Sizes, Work};
use std::path::{Path, PathBuf};

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    disk: DiskDir,
    /// Entries of the tree that tar extracts [default: 3000]
    #[arg(long)]
    entries: Option<usize>,
    /// Size of the file that is written, and then read and written at random [default: 512M]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Files made in one directory [default: 5000]
    #[arg(long)]
    files: Option<usize>,
    /// Only contenders whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only jobs whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    job: Vec<String>,
    /// Also measure folio mount of an image with these -o options
    #[arg(long, value_name = "OPTIONS")]
    with: Option<String>,
    /// Also measure this other build of folio
    #[arg(long, value_name = "FOLIO")]
    beside: Option<PathBuf>,
}

const TIMES: &str = "jobs";
const REQUESTS: &str = "FUSE requests";
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

/// One way to mount a fresh file system.
struct Contender {
    name: String,
    system: System,
    /// Whether it mounts a directory of the host, and not an image.
    is_directory: bool,
    /// Options of -o.
    options: String,
    /// Whether the server counts its requests.
    counts_requests: bool,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = options.disk.path();
    let scratch = scratch_in(&dir)?;
    let usual_bytes = run.sized(512 << 20, 2 << 20);
    let sizes = Sizes {
        entries: options.entries.unwrap_or_else(|| run.sized(3000, 60)),
        large_bytes: options.size.unwrap_or(usual_bytes),
        files: options.files.unwrap_or_else(|| run.sized(5000, 50)),
        writes: run.sized(20_000, 50),
        synced_writes: run.sized(200, 5),
        reads: run.sized(50_000, 50),
    };
    let source = SampleTree::new(scratch.path(), sizes.entries)?;
    let what = format!(
        "a tree of {} entries ({} MiB), a file of {} MiB, {} files in one directory, on fresh file systems",
        source.entries(),
        source.bytes >> 20,
        sizes.large_bytes >> 20,
        sizes.files
    );
    let mut report = Report::new("mount", what, &dir);
    let jobs = wanted_jobs(options, &mut report);
    let mut race = Race::new(TIMES, Unit::Seconds, Some(KERNEL))
        .table(REQUESTS, Unit::Requests, Some(LEAST))
        .leave_out_failures();
    race.contender(LEAST, |turn| {
        for job in &jobs {
            let least = job.least_requests(&source, sizes);
            turn.add_to(1, job.title(), Sample::of(least));
        }
        Ok(())
    });
    for contender in contenders(options, &run.folio) {
        let name = contender.name.clone();
        if !is_wanted(&options.only, &name) {
            continue;
        }
        if let Some(reason) = contender.system.missing() {
            report.skip(name, reason);
            continue;
        }
        let (jobs, source, scratch) = (&jobs, &source, scratch.path());
        race.contender(&name, move |turn| {
            let folder = scratch_in(scratch)?;
            let mut hosted = contender.mount(folder.path(), sizes.image_mib())?;
            for job in jobs {
                run.check()?;
                let work = Work {
                    hosted: &mut hosted,
                    source,
                    sizes,
                };
                let done = once(work, *job, contender.counts_requests, turn).at(job.title());
                done.map_err(|reason| hosted.explain(&reason.to_string()))?;
            }
            Ok(())
        });
    }
    race.run(run, &mut report)?;
    // Only the least possible ones, if no contender counts any.
    let tables = &mut report.tables;
    tables.retain(|table| table.rows.iter().any(|row| row.contender != LEAST));
    judge(&mut report, &jobs);
    report.limit(&LIMITS);
    Ok(report)
}

fn wanted_jobs(options: &Options, report: &mut Report) -> Vec<Job> {
    let mut jobs = Vec::new();
    for job in Job::ALL {
        match job.missing() {
            _ if !is_wanted(&options.job, job.title()) => {}
            Some(reason) => report.skip(job.title(), reason),
            None => jobs.push(job),
        }
    }
    jobs
}

fn contenders(options: &Options, folio: &Path) -> Vec<Contender> {
    let contender = |name: &str, system: System| Contender {
        name: name.to_owned(),
        counts_requests: matches!(system, System::Folio(_)),
        system,
        is_directory: name.ends_with("directory"),
        options: String::new(),
    };
    let folio = System::Folio(folio.to_owned());
    let mut contenders = vec![
        contender(FOLIO, folio.clone()),
        contender("folio mount, directory", folio.clone()),
        contender(KERNEL, System::EXT4),
        contender(FUSE2FS, System::Fuse2fs),
    ];
    if let Some(words) = &options.with {
        contenders.push(Contender {
            options: words.clone(),
            ..contender(&format!("{FOLIO}, -o {words}"), folio)
        });
    }
    if let Some(other) = &options.beside {
        for name in ["the other folio, image", "the other folio, directory"] {
            contenders.push(Contender {
                // It may be older than its counters.
                counts_requests: false,
                ..contender(name, System::Folio(other.clone()))
            });
        }
    }
    contenders
}

impl Contender {
    fn mount(&self, folder: &Path, image_mib: u64) -> Outcome<Hosted> {
        match &self.system {
            System::Folio(program) if self.is_directory => Hosted::directory(program, folder, ""),
            system => Hosted::fresh(system.clone(), folder, image_mib, &self.options),
        }
    }
}

/// Runs a job; adds its figure, and its requests if the contender counts them.
fn once(mut work: Work<'_>, job: Job, counts_requests: bool, turn: &mut Turn) -> Outcome {
    work.prepare(job)?;
    work.sync()?;
    let before = counts_requests
        .then(|| work.hosted.requests())
        .transpose()?;
    let seconds = work.time(job)?;
    work.sync()?;
    turn.add(job.title(), Sample::of(seconds));
    if let Some(before) = before {
        let operations = job.operations(work.source, work.sizes);
        let added = added(&before, work.hosted.requests()?);
        turn.add_to(1, job.title(), requests_sample(&added, operations));
    }
    Ok(())
}

/// Returns the requests between two counts.
fn added(before: &Requests, after: Requests) -> Requests {
    let added = after.into_iter().map(|(name, count)| {
        let earlier = before.get(&name).copied().unwrap_or(0);
        (name, count.saturating_sub(earlier))
    });
    added.filter(|(_, count)| *count > 0).collect()
}

/// Returns the requests for each operation of a job.
fn requests_sample(requests: &Requests, operations: f64) -> Sample {
    let each = requests
        .iter()
        .map(|(name, count)| (name.clone(), *count as f64 / operations));
    Sample {
        requests: each.collect(),
        ..Sample::of(requests.values().sum::<u64>() as f64 / operations)
    }
}

/// Judges the aims: near the kernel's own mount, and ahead of fuse2fs.
fn judge(report: &mut Report, jobs: &[Job]) {
    for (theirs, most, words) in [
        (KERNEL, AIM, format!("within {AIM} of the {KERNEL}'s time")),
        (FUSE2FS, 1.0, format!("ahead of {FUSE2FS}")),
    ] {
        for job in jobs.iter().map(|job| job.title()) {
            let aim = format!("{job}: {FOLIO} {words}");
            report.judge_pair(aim, TIMES, job, [FOLIO, theirs], Bound::AtMost(most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Table};

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
        let counted = added(&before, after);
        assert_eq!(counted, requests_of(&[("LOOKUP", 2), ("WRITE", 2)]));
        let rounds = [counted, requests_of(&[("WRITE", 4)])];
        let row = Row::of_samples("job", "x", &rounds.map(|one| requests_sample(&one, 2.0)));
        assert_eq!(row.rounds, [2.0, 2.0]);
        assert_eq!((row.requests["WRITE"], row.requests["LOOKUP"]), (1.5, 0.5));
    }

    #[test]
    fn missed_aims_are_judged_by_medians() {
        let row = |name: &str, seconds| Row::new(Job::Remove.title(), name, vec![seconds]);
        let rows = vec![row(FOLIO, 3.0), row(KERNEL, 1.0), row(FUSE2FS, 9.0)];
        let mut report = Report::new("mount", "", Path::new("/"));
        report
            .tables
            .push(Table::new(TIMES, Unit::Seconds, Some(KERNEL), rows));
        judge(&mut report, &Job::ALL);
        let met: Vec<bool> = report.verdicts.iter().map(|one| one.is_met).collect();
        assert_eq!(met, [false, true]);
    }
}
