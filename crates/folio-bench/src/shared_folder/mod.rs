//! The scenario `shared-folder`: a host folder read and asked for again and again, as it is, through mounts, and in this
//! process.
//!
//! ```text
//!   mod      rounds, table, aims
//!   worlds   who is measured: native, folio mount, folio in process, bindfs
//!   guest    the same in a virtual machine: folio share beside virtiofsd
//!   jobs     what is done, and how long a change of the host stays unseen
//! ```

// What is measured is time, and the servers of others tell nobody when they are ready.
#![allow(clippy::disallowed_methods)]

mod guest;
mod jobs;
mod worlds;

use crate::bench;
use crate::contender::find;
use crate::report::{Machine, Verdict, middle, told};
use jobs::Job;
pub(crate) use jobs::run_in_guest;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use worlds::{FolioWorld, HostWorld, How, World};

/// What the scenario takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: u32,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Where the folder lies; on a disk, or cold reads are none.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Only contenders whose name has this in it, and the native one.
    #[arg(long)]
    only: Option<String>,
    /// In a virtual machine (QEMU), through virtiofs, beside virtiofsd
    #[arg(long)]
    guest: bool,
    /// The virtiofsd to measure; without it, the one that is installed
    #[arg(long, requires = "guest")]
    virtiofsd: Option<PathBuf>,
    /// The folio command to measure; without it, this workspace's is built.
    #[arg(long)]
    folio: Option<PathBuf>,
}

/// Name, and how it sees the folder.
const CONTENDERS: [(&str, How); 10] = [
    (NATIVE, How::Native),
    (MOUNT, How::Mount("")),
    (MOUNT_TTL, How::Mount("push=off,ttl=1ms")),
    ("folio mount, passthrough", How::Mount("passthrough=on")),
    ("folio mount, cache=writeback", How::Mount("cache=writeback")),
    ("folio mount, cache=none", How::Mount("cache=none,push=off,ttl=0")),
    (PROCESS, How::InProcess("")),
    (PROCESS_TTL, How::InProcess("push=off,ttl=1ms")),
    (PROCESS_NONE, How::InProcess("cache=none,push=off,ttl=0")),
    ("bindfs", How::Bindfs),
];
const NATIVE: &str = "native";
const MOUNT: &str = "folio mount";
const MOUNT_TTL: &str = "folio mount, ttl=1ms";
const PROCESS: &str = "folio in process";
const PROCESS_TTL: &str = "folio in process, ttl=1ms";
const PROCESS_NONE: &str = "folio in process, cache=none";

const LIMITS: [&str; 5] = [
    "cold reads follow drop_caches, and the disk below may have a cache of its own; Folio's cache in this process is \
     not dropped, so its cold figure is a warm one after the first round",
    "in process there is no kernel between: that is what linking Folio gives a program, not a faster mount",
    "a change is looked for by a reader who opens, reads and closes without a pause, on the same machine",
    "one reader; the mounts answer from the kernel's own memory once they are warm",
    "medians of all rounds; the change's second figure is the longest of all rounds",
];

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    /// Medians in the order of the jobs; nothing where it cannot be measured or was never seen.
    figures: Vec<Option<f64>>,
    rounds: Vec<Vec<Option<f64>>>,
}

#[derive(Debug, Serialize)]
struct Report {
    scenario: &'static str,
    machine: Machine,
    repeats: u32,
    jobs: [Job; 10],
    rows: Vec<Row>,
    verdicts: Vec<Verdict>,
    notes: Vec<String>,
    limits: &'static [&'static str],
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let folio = bench::folio(options.folio.as_deref())?;
    let folder = tempfile::Builder::new().prefix("folio-bench-").tempdir_in(&options.dir);
    let folder = folder.map_err(told(options.dir.display()))?;
    let source = folder.path().join("source");
    std::fs::create_dir(&source).map_err(told(source.display()))?;
    jobs::make_source(&source)?;
    let (rows, notes, verdicts, limits) = match options.guest {
        true => guest::measure(options, &folio, &source)?,
        false => measure(options, &folio, folder.path(), &source)?,
    };
    let report = Report {
        scenario: "shared-folder",
        machine: Machine::here(&options.dir),
        repeats: options.repeats,
        jobs: Job::ALL,
        verdicts,
        rows,
        notes,
        limits,
    };
    report.print(options.json)
}

/// Rows, notes, aims, and what the numbers do not mean.
type Measured = (Vec<Row>, Vec<String>, Vec<Verdict>, &'static [&'static str]);

/// On this machine, without a guest.
fn measure(options: &Options, folio: &Path, folder: &Path, source: &Path) -> Result<Measured, String> {
    let mut notes = Vec::new();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        notes.push("not measured: cold reads: dropping the host's cache needs root".to_owned());
    }
    let mut worlds: Vec<(&'static str, Box<dyn World>, Vec<Vec<Option<f64>>>)> = Vec::new();
    for (name, how) in CONTENDERS {
        if name != NATIVE && options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let target = folder.join(format!("mount-{}", worlds.len()));
        match world(how, folio, source, &target) {
            Ok(world) => worlds.push((name, world, Vec::new())),
            Err(reason) => notes.push(format!("not measured: {name}: {reason}")),
        }
    }
    for round in 0..options.repeats as usize {
        for turn in 0..worlds.len() {
            let at = (turn + round) % worlds.len();
            let (name, world, rounds) = &mut worlds[at];
            let mut figures = jobs::run(&**world, is_root).map_err(told(*name))?;
            figures.extend(jobs::changes(&**world, source).map_err(told(*name))?);
            rounds.push(figures);
        }
    }
    let rows: Vec<Row> = worlds.into_iter().map(|(name, _, rounds)| row(name, rounds)).collect();
    let verdicts = verdicts(&rows);
    Ok((rows, notes, verdicts, &LIMITS))
}

fn world(how: How, folio: &Path, source: &Path, target: &Path) -> Result<Box<dyn World>, String> {
    let mount = |command| HostWorld::mounted(command, target).map(|world| Box::new(world) as Box<dyn World>);
    match how {
        How::Native => Ok(Box::new(HostWorld::native(source))),
        How::InProcess(options) => Ok(Box::new(FolioWorld::new(source, options)?)),
        How::Mount(options) => {
            let mut command = Command::new(folio);
            command.args(["--quiet", "mount"]);
            if !options.is_empty() {
                command.args(["-o", options]);
            }
            command.arg(source).arg(target);
            mount(command)
        }
        How::Bindfs => {
            let mut command = Command::new(find("bindfs").ok_or("bindfs is not installed")?);
            command.arg("-f").arg(source).arg(target);
            mount(command)
        }
    }
}

fn row(name: &'static str, rounds: Vec<Vec<Option<f64>>>) -> Row {
    let column = |at: usize| rounds.iter().map(move |round| round[at]);
    let figures = Job::ALL.iter().enumerate().map(|(at, job)| {
        let values: Option<Vec<f64>> = column(at).collect();
        values.map(|values| match job {
            Job::ChangeSeenMost => values.into_iter().fold(0.0, f64::max),
            _ => middle(values),
        })
    });
    Row { name, figures: figures.collect(), rounds: rounds.clone() }
}

/// How much slower than `than` a row is; 1 is as fast.
fn slower(rows: &[Row], name: &str, than: &str, job: Job) -> Option<f64> {
    let at = Job::ALL.iter().position(|other| *other == job)?;
    let of = |name: &str| rows.iter().find(|row| row.name == name)?.figures[at];
    let (ours, theirs) = (of(name)?, of(than)?);
    Some(if job.is_rate() { theirs / ours } else { ours / theirs })
}

fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut judge = |aim: String, value: Option<f64>, most: f64, unit: &str| {
        if let Some(value) = value {
            let figures = format!("{value:.2}{unit}");
            verdicts.push(Verdict { aim, is_met: value <= most, figures });
        }
    };
    for (job, what) in [
        (Job::ReadWarm, "warm reads in order"),
        (Job::RandomWarm, "warm reads at random"),
        (Job::StoryRead, "64 KiB opened and read"),
        (Job::StoryStat, "warm stats"),
    ] {
        let aim = format!("{what} through the mount within 1.05 of the native file system's time");
        judge(aim, slower(rows, MOUNT, NATIVE, job), 1.05, " times");
    }
    let aim = "cold reads in order through the mount within 1.2 of the native file system's time".to_owned();
    judge(aim, slower(rows, MOUNT, NATIVE, Job::ReadCold), 1.2, " times");
    for (job, what) in [
        (Job::SmallWarm, "reads (1 KiB)"),
        (Job::RandomWarm, "reads (4 KiB at random)"),
        (Job::StoryStat, "stats"),
    ] {
        let aim = format!("in process, cached {what} at least 10 times as fast as uncached ones");
        judge(aim, slower(rows, PROCESS, PROCESS_NONE, job), 0.1, " of their time");
    }
    let at = Job::ALL.len() - 1;
    let most = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.figures[at]);
    for (name, limit) in [(MOUNT, 5.0), (PROCESS, 5.0), (MOUNT_TTL, 6.0), (PROCESS_TTL, 6.0)] {
        if let Some(value) = most(name) {
            let aim = format!("{name}: a change by the host is seen within {limit} ms");
            judge(aim, Some(value.unwrap_or(f64::INFINITY)), limit, " ms at most");
        }
    }
    verdicts
}

impl Report {
    fn print(&self, json: bool) -> Result<(), String> {
        if json {
            println!("{}", serde_json::to_string_pretty(self).map_err(|error| error.to_string())?);
            return Ok(());
        }
        println!(
            "{}: {} MiB in order and at random, 10,000 small files; in {}; {}; {} rounds, interleaved\n",
            self.scenario,
            jobs::LARGE_MIB,
            self.machine.dir_file_system(),
            self.machine.words(),
            self.repeats
        );
        print!("{:<30}", "");
        self.jobs.iter().for_each(|job| print!(" {:>10}", job.title()));
        println!();
        for row in &self.rows {
            print!("{:<30}", row.name);
            for figure in &row.figures {
                match figure {
                    Some(value) if *value >= 100.0 => print!(" {value:>10.0}"),
                    Some(value) => print!(" {value:>10.3}"),
                    None => print!(" {:>10}", "-"),
                }
            }
            println!();
        }
        Verdict::print_all(&self.verdicts);
        self.notes.iter().for_each(|note| println!("- {note}"));
        println!("\nwhat the numbers do not mean:");
        self.limits.iter().for_each(|limit| println!("- {limit}"));
        Ok(())
    }
}
