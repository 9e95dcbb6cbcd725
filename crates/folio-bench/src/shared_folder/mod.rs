//! The scenario `shared-folder`: a host folder read and statted again and again, as it is,
//! through mounts, and in this process.
//!
//! ```text
//!   mod      rounds, tables, aims; options and figures are its data
//!   targets  the contenders: native, folio mount, folio in process, bindfs
//!   guest    the same in a virtual machine: folio share beside virtiofsd
//!   jobs     the operations, and how long a change of the host stays unseen
//! ```

// The scenario measures time, and the servers of other projects do not report when they are ready.
#![allow(clippy::disallowed_methods)]

mod figures;
mod guest;
mod jobs;
mod options;
pub(crate) mod targets;

use crate::contender::find;
use crate::published::{PublishedCase, Today};
use crate::report::{Report, Row, Table, Unit, Verdict, owned, with_context};
use crate::run::{Run, scratch_in};
use figures::{Figures, Measured};
pub(crate) use jobs::run_in_guest;
use jobs::{Job, WorkloadSize};
pub(crate) use options::Options;
use options::{NAME, ROUNDS};
use std::path::Path;
use std::process::Command;
use targets::{FolioTarget, HostTarget, How, Target};

/// Name, and how it sees the folder.
const CONTENDERS: [(&str, How); 10] = [
    (NATIVE, How::Native),
    (MOUNT, How::Mount("")),
    (MOUNT_TTL, How::Mount("push=off,ttl=1ms")),
    ("folio mount, passthrough", How::Mount("passthrough=on")),
    (
        "folio mount, cache=writeback",
        How::Mount("cache=writeback"),
    ),
    (MOUNT_NONE, How::Mount("cache=none,push=off,ttl=0")),
    (PROCESS, How::InProcess("")),
    (PROCESS_TTL, How::InProcess("push=off,ttl=1ms")),
    (PROCESS_NONE, How::InProcess("cache=none,push=off,ttl=0")),
    ("bindfs", How::Bindfs),
];
const NATIVE: &str = "native";
const MOUNT: &str = "folio mount";
const MOUNT_TTL: &str = "folio mount, ttl=1ms";
const MOUNT_NONE: &str = "folio mount, cache=none";
const PROCESS: &str = "folio in process";
const PROCESS_TTL: &str = "folio in process, ttl=1ms";
const PROCESS_NONE: &str = "folio in process, cache=none";

const LIMITS: [&str; 5] = [
    "cold reads follow drop_caches, and the disk below may have a cache of its own; Folio's cache in this process is \
     not dropped, so it has no cold figure and no first walk",
    "in process there is no kernel between: that is what linking Folio gives a program, not a faster mount",
    "a reader on the same machine looks for a change: it opens, reads and closes without a pause",
    "one reader; the mounts answer from the kernel's own memory once they are warm",
    "medians of all rounds; the change's second figure is the longest of all rounds",
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let folder = scratch_in(&options.dir)?;
    let source = folder.path().join("source");
    std::fs::create_dir(&source).map_err(with_context(source.display()))?;
    // A guest has one workload size.
    let workload = if options.guest {
        WorkloadSize::WHOLE
    } else {
        run.sized(WorkloadSize::WHOLE, WorkloadSize::QUICK)
    };
    jobs::make_source(&source, workload)?;
    let (large, files) = (workload.large_mib, workload.folders * workload.files_each);
    let what = format!(
        "{large} MiB in order and at random, {files} small files, one file again and again, changes by the host"
    );
    let mut report = Report::new(NAME, what, &options.dir);
    let measured = if options.guest {
        guest::measure(options, run, &source, &mut report)?
    } else {
        on_host(options, run, workload, folder.path(), &mut report)?
    };
    report.tables = tables(&measured);
    if !options.guest {
        report.story = Some(published_case(&report));
    }
    Ok(report)
}

fn tables(measured: &[Figures]) -> Vec<Table> {
    let table = |title: &str, unit: Unit, is_rate: bool| {
        let mut rows = Vec::new();
        for (at, job) in Job::ALL
            .iter()
            .enumerate()
            .filter(|(_, job)| job.is_rate() == is_rate)
        {
            for figures in measured {
                let rounds: Option<Vec<f64>> = figures
                    .rounds
                    .iter()
                    .map(|round| round[at].map(|value| job.in_report_unit(value)))
                    .collect();
                rows.extend(rounds.map(|rounds| Row::new(job.title(), figures.name, rounds)));
            }
        }
        Table::new(title, unit, Some(NATIVE), rows)
    };
    vec![
        table(READS, Unit::MibPerSecond, true),
        table(CALLS, Unit::Seconds, false),
    ]
}

const READS: &str = "reads";
const CALLS: &str = "again and again";

fn published_case(report: &Report) -> PublishedCase {
    let times = |job: Job, name: &str, than: &str| {
        let of = |name: &str| report.row(CALLS, job.title(), name);
        let word = if job == Job::ArticleStat {
            "stats"
        } else {
            "reads"
        };
        Today::times(&format!("{word}: {name}"), of(name), of(than))
    };
    let today = [
        times(Job::ArticleRead, MOUNT_NONE, NATIVE),
        times(Job::ArticleRead, PROCESS_NONE, PROCESS),
        times(Job::ArticleRead, "bindfs", NATIVE),
        times(Job::ArticleRead, MOUNT, NATIVE).map(Today::cure),
        times(Job::ArticleStat, MOUNT_NONE, NATIVE),
        times(Job::ArticleStat, PROCESS_NONE, PROCESS),
        times(Job::ArticleStat, "bindfs", NATIVE),
        times(Job::ArticleStat, MOUNT, NATIVE).map(Today::cure),
    ];
    PublishedCase::new(
        "Shared folders",
        "a virtual machine's shared folder was ten times slower than its rival: reads went past the page cache, and \
         every stat asked the host",
        "share the folder with a server whose pages and attributes the kernel may keep, such as folio mount or folio share",
    )
    .with("the slow folder, as a multiple of the rival's time (today: native, or cached in process)", Unit::Times, 10.0, today)
}

/// On this machine, without a guest.
fn on_host(
    options: &Options,
    run: &Run<'_>,
    workload: WorkloadSize,
    folder: &Path,
    report: &mut Report,
) -> Result<Measured, String> {
    let source = folder.join("source");
    let is_root = rustix::process::geteuid().is_root();
    match (is_root, run.is_quick) {
        (false, _) => report.skip("cold reads", "dropping the host's cache needs root"),
        (true, true) => report.skip("cold reads", "a quick run leaves the host's cache alone"),
        (true, false) => {}
    }
    let mut targets: Vec<(&'static str, Box<dyn Target>, Vec<Vec<Option<f64>>>)> = Vec::new();
    for (name, how) in CONTENDERS {
        if name != NATIVE
            && options
                .only
                .as_ref()
                .is_some_and(|only| !name.contains(only.as_str()))
        {
            continue;
        }
        let mount_point = folder.join(format!("mount-{}", targets.len()));
        match target(how, &run.folio, &source, &mount_point) {
            Ok(target) => targets.push((name, target, Vec::new())),
            Err(reason) => report.skip(name, reason),
        }
    }
    while run.goes_on(NAME, report.repeats, ROUNDS)? {
        let mut failed = Vec::new();
        for turn in 0..targets.len() {
            run.check()?;
            let at = (turn + report.repeats as usize) % targets.len();
            let (name, target, rounds) = &mut targets[at];
            let figures =
                jobs::run(&**target, workload, is_root && !run.is_quick).and_then(|mut figures| {
                    figures.extend(jobs::changes(&**target, workload, &source)?);
                    Ok(figures)
                });
            match figures {
                Ok(figures) => rounds.push(figures),
                // A mount may come and go again: its server has said why.
                Err(reason) => failed.push((*name, target.explain(reason))),
            }
        }
        for (name, reason) in failed {
            report.skip(name, reason);
            targets.retain(|(other, ..)| *other != name);
        }
        report.repeats += 1;
    }
    report.limits = owned(&LIMITS);
    let measured: Measured = targets
        .into_iter()
        .map(|(name, _, rounds)| Figures::new(name, rounds))
        .collect();
    report.verdicts = verdicts(&measured);
    Ok(measured)
}

fn target(
    how: How,
    folio: &Path,
    source: &Path,
    mount_point: &Path,
) -> Result<Box<dyn Target>, String> {
    let mount = |command| {
        HostTarget::mounted(command, mount_point).map(|target| Box::new(target) as Box<dyn Target>)
    };
    match how {
        How::Native => Ok(Box::new(HostTarget::native(source))),
        How::InProcess(options) => Ok(Box::new(FolioTarget::new(source, options)?)),
        How::Mount(options) => {
            let mut command = Command::new(folio);
            command.args(["--quiet", "mount"]);
            if !options.is_empty() {
                command.args(["-o", options]);
            }
            command.arg(source).arg(mount_point);
            mount(command)
        }
        How::Bindfs => {
            let mut command = Command::new(find("bindfs").ok_or("bindfs is not installed")?);
            if !rustix::process::geteuid().is_root() {
                command.arg("--no-allow-other");
            }
            command.arg("-f").arg(source).arg(mount_point);
            mount(command)
        }
    }
}

/// How much slower than `than` a row is; 1 is as fast.
fn slower(rows: &[Figures], name: &str, than: &str, job: Job) -> Option<f64> {
    let at = Job::ALL.iter().position(|other| *other == job)?;
    let of = |name: &str| rows.iter().find(|row| row.name == name)?.middle[at];
    let (ours, theirs) = (of(name)?, of(than)?);
    Some(if job.is_rate() {
        theirs / ours
    } else {
        ours / theirs
    })
}

fn verdicts(rows: &[Figures]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut judge = |aim: String, value: Option<f64>, most: f64, unit: &str| {
        if let Some(value) = value {
            let figures = format!("{}{unit}", crate::rows::ratio(value));
            verdicts.push(Verdict {
                aim,
                is_met: value <= most,
                figures,
            });
        }
    };
    for (job, what) in [
        (Job::ReadWarm, "warm reads in order"),
        (Job::RandomWarm, "warm reads at random"),
        (Job::ArticleRead, "64 KiB opened and read"),
        (Job::ArticleStat, "warm stats"),
    ] {
        let aim = format!("{what} through the mount within 1.05 of the native file system's time");
        judge(aim, slower(rows, MOUNT, NATIVE, job), 1.05, " times");
    }
    let aim = "cold reads in order through the mount within 1.2 of the native file system's time"
        .to_owned();
    judge(
        aim,
        slower(rows, MOUNT, NATIVE, Job::ReadCold),
        1.2,
        " times",
    );
    for (job, what) in [
        (Job::SmallWarm, "reads (1 KiB)"),
        (Job::RandomWarm, "reads (4 KiB at random)"),
        (Job::ArticleStat, "stats"),
    ] {
        let aim = format!("in process, cached {what} at least 10 times as fast as uncached ones");
        judge(
            aim,
            slower(rows, PROCESS, PROCESS_NONE, job),
            0.1,
            " of their time",
        );
    }
    let at = Job::ALL.len() - 1;
    let most = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .map(|row| row.middle[at])
    };
    for (name, limit) in [
        (MOUNT, 5.0),
        (PROCESS, 5.0),
        (MOUNT_TTL, 6.0),
        (PROCESS_TTL, 6.0),
    ] {
        if let Some(value) = most(name) {
            let aim = format!("{name}: a change by the host is seen within {limit} ms");
            judge(
                aim,
                Some(value.unwrap_or(f64::INFINITY)),
                limit,
                " ms at most",
            );
        }
    }
    verdicts
}
