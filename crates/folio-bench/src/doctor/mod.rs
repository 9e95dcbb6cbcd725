//! The scenario `doctor`: injected faults that `folio doctor` must name, healthy commands that it
//! must not blame, its predictions beside measured cures, and its overhead.
//!
//! ```text
//!   mod       the run: each set-up on its place, and the verdicts
//!   setup     a set-up: a command on a place, its causes, its cure
//!   faults    the set-ups with a fault        healthy   those without
//!   place     file systems to put them on     overhead  commands with and without the recorder
//! ```

mod faults;
mod healthy;
mod overhead;
mod place;
mod setup;

use crate::command::lacking;
use crate::options::{DiskDir, is_wanted};
use crate::outcome::{Context, Outcome};
use crate::race::{Run, scratch_in};
use crate::report::{Report, Row, Table, Unit};
use folio_pagecache::median;
use place::OpenPlace;
use setup::{Cure, Setup, Subject};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    disk: DiskDir,
    /// Only set-ups whose name, or whose place, contains one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

const FAULTS: &str = "first finding is right";
const HEALTHY: &str = "no finding";
const SAVINGS: &str = "savings";
const DOCTOR: &str = "folio doctor";
/// Share of the faults that are named right, at least: 57 of 60.
const NAMED_MIN: f64 = 57.0 / 60.0;
/// Largest distance of a prediction from the measured saving.
const PREDICTION_ERROR_MAX: f64 = 0.2;
/// Pairs of runs with and without a cure.
const CURE_PAIRS: usize = 2;
/// A quick run takes one set-up of this many.
const QUICK_STEP: usize = 12;

/// What came of one set-up.
#[derive(Default)]
struct Found {
    /// The causes of all faults, the costliest first.
    causes: Vec<String>,
    /// Part of the time that the first cure saves, as predicted.
    predicted_share: Option<f64>,
    /// What `folio doctor --try` found of it.
    tried: Option<Saving>,
}

/// Seconds that a cure saves.
#[derive(Clone, Copy)]
struct Saving {
    predicted_s: f64,
    measured_s: f64,
}

/// What came of all.
#[derive(Default)]
struct Tally {
    /// By cause: how many were named right, and how many there were.
    named: BTreeMap<&'static str, [usize; 2]>,
    /// By place: how many had no finding, and how many there were.
    clean: BTreeMap<String, [usize; 2]>,
    savings: Vec<Row>,
    good_predictions: usize,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = options.disk.path();
    let scratch = scratch_in(&dir)?;
    let mut setups = faults::setups();
    setups.extend(healthy::setups());
    setups.retain(|setup| is_wanted(&options.only, &setup.title()));
    // One place after the other, as few are mounted at a time.
    setups.sort_by_key(|setup| setup.place);
    if run.is_quick {
        setups = setups.into_iter().step_by(QUICK_STEP).collect();
    }
    let what = format!(
        "{} commands, each with one known fault or none",
        setups.len()
    );
    let mut report = Report::new("doctor", what, &dir);
    report.repeats = 1;
    let mut tally = Tally::default();
    let mut place: Option<OpenPlace> = None;
    for setup in &setups {
        (run.step)(&format!("doctor: {}", setup.title()))?;
        let missing = lacking(setup.needs).or_else(|| setup.place.missing(&run.folio));
        if let Some(reason) = missing {
            report.skip(setup.title(), reason);
            continue;
        }
        if place.as_ref().is_none_or(|open| open.place != setup.place) {
            drop(place.take());
            place = Some(OpenPlace::open(setup.place, scratch.path(), run)?);
        }
        let Some(place) = &place else { continue };
        let folder = place.root.join(setup.name.replace([' ', '/'], "-"));
        std::fs::create_dir_all(&folder).at(&folder)?;
        let scene = Scene {
            setup,
            place,
            run,
            folder,
        };
        if let Err(reason) = scene.judge(&mut tally, &mut report) {
            report.skip(setup.title(), reason.to_string());
        }
        if let Err(error) = std::fs::remove_dir_all(&scene.folder) {
            report.note(format!("{}: not removed: {error}", scene.folder.display()));
        }
    }
    drop(place);
    tally.add_to(&mut report);
    if options.only.is_empty() {
        overhead::measure(scratch.path(), run, &mut report)?;
    }
    report.limit(&[
        "each command ran once before, so that its program and its files are in memory",
        "a finding is a fault: notes are not counted",
    ]);
    Ok(report)
}

/// A set-up in its folder.
struct Scene<'a> {
    setup: &'a Setup,
    place: &'a OpenPlace,
    run: &'a Run<'a>,
    folder: std::path::PathBuf,
}

impl Scene<'_> {
    /// Runs a script in the folder; returns its seconds.
    fn shell(&self, script: &str) -> Outcome<f64> {
        let start = Instant::now();
        let output = self.command("sh").args(["-c", script]).output();
        let output = output.at(self.setup.name)?;
        if output.status.success() {
            return Ok(start.elapsed().as_secs_f64());
        }
        let (title, says) = (self.setup.title(), String::from_utf8_lossy(&output.stderr));
        Err(format!("{title}: {}: {}", output.status, says.trim()).into())
    }

    /// Writes the dirty pages of the run before, as `folio doctor --try` does.
    fn sync(&self) -> Outcome {
        self.shell("sync -f .").map(drop)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.place.command(program.as_ref());
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.env("LC_ALL", "C").env("FOLIO", &self.run.folio);
        command
    }

    fn examine(&self) -> Outcome<Found> {
        let mut doctor = self.command(&self.run.folio);
        doctor.args(["doctor", "--json", "--write-probe"]);
        match self.setup.subject {
            Subject::Command => {
                // What it reads is in memory afterwards.
                self.shell(&self.setup.command)?;
                self.sync()?;
                if let (Cure::Tried, true) = (&self.setup.cure, !self.setup.causes.is_empty()) {
                    doctor.arg("--try");
                }
                doctor.args(["--", "sh", "-c", &self.setup.command]);
            }
            Subject::Path => {
                doctor.arg(&self.setup.command);
            }
        }
        let output = doctor.output().at(&self.run.folio)?;
        let report = serde_json::from_slice(&output.stdout).map_err(|error| {
            let says = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("{}: {error}: {}", self.setup.title(), says.trim())
        })?;
        Ok(Found::read(&report))
    }

    fn judge(&self, tally: &mut Tally, report: &mut Report) -> Outcome {
        self.shell(&self.setup.prepare)?;
        let found = self.examine()?;
        let (setup, title) = (self.setup, self.setup.title());
        let first = found.causes.first().map(String::as_str);
        let Some(&cause) = setup.causes.first() else {
            let count = tally.clean.entry(setup.place.name()).or_default();
            count[1] += 1;
            match first {
                None => count[0] += 1,
                Some(first) => report.note(format!("false alarm: {title}: {first}")),
            }
            return Ok(());
        };
        let count = tally.named.entry(cause).or_default();
        count[1] += 1;
        if !first.is_some_and(|first| setup.causes.contains(&first)) {
            let found = first.unwrap_or("nothing");
            report.note(format!("missed: {title}: {found}, not {cause}"));
            return Ok(());
        }
        count[0] += 1;
        if let Some(saving) = self.measure_cure(&found)? {
            tally.add_saving(&title, saving);
        }
        Ok(())
    }

    /// Returns what the cure saves, if there is one. The predicted share is that of the runs
    /// without it, as with `--try`: the run that was examined had the recorder, and its own moment.
    fn measure_cure(&self, found: &Found) -> Outcome<Option<Saving>> {
        let (Cure::Command(cured), Some(share)) = (&self.setup.cure, found.predicted_share) else {
            return Ok(found.tried);
        };
        let [mut before, mut after] = [Vec::new(), Vec::new()];
        for _ in 0..CURE_PAIRS {
            self.sync()?;
            before.push(self.shell(&self.setup.command)?);
            self.sync()?;
            after.push(self.shell(cured)?);
        }
        let before_s = median(before);
        Ok(Some(Saving {
            predicted_s: share * before_s,
            measured_s: before_s - median(after),
        }))
    }
}

impl Found {
    fn read(report: &serde_json::Value) -> Self {
        let workload = report["workload"]["checks"].as_array();
        let paths = report["paths"].as_array().into_iter().flatten();
        let paths = paths.filter_map(|path| path["checks"].as_array());
        let checks = workload.into_iter().chain(paths).flatten();
        let faults: Vec<_> = checks.filter(|check| check["verdict"] == "fault").collect();
        let cause = |check: &&serde_json::Value| check["cause"].as_str().map(str::to_owned);
        let first = faults.first();
        let saves_s = first.and_then(|check| check["numbers"]["saves_s"].as_f64());
        let wall_s = report["workload"]["wall_s"].as_f64();
        let trial = |name: &str| first?["trial"][name].as_f64();
        let tried = trial("predicted_s").zip(trial("measured_s"));
        Self {
            causes: faults.iter().filter_map(cause).collect(),
            predicted_share: saves_s
                .zip(wall_s)
                .map(|(saves_s, wall_s)| saves_s / wall_s),
            tried: tried.map(|(predicted_s, measured_s)| Saving {
                predicted_s,
                measured_s,
            }),
        }
    }
}

impl Tally {
    fn add_saving(&mut self, title: &str, saving: Saving) {
        let (predicted, measured) = (saving.predicted_s, saving.measured_s);
        let is_good = (predicted - measured).abs() <= PREDICTION_ERROR_MAX * measured.abs();
        self.good_predictions += usize::from(is_good);
        for (contender, seconds) in [("measured", measured), ("predicted", predicted)] {
            self.savings.push(Row::new(title, contender, vec![seconds]));
        }
    }

    fn add_to(self, report: &mut Report) {
        let sum = |counts: &mut dyn Iterator<Item = [usize; 2]>| {
            counts.fold([0, 0], |sum, count| [sum[0] + count[0], sum[1] + count[1]])
        };
        let share = |[right, all]: [usize; 2]| right as f64 / all.max(1) as f64;
        let row = |job: &str, count| Row::new(job, DOCTOR, vec![share(count)]);
        let named = sum(&mut self.named.values().copied());
        let clean = sum(&mut self.clean.values().copied());
        let rows = self.named.iter().map(|(cause, count)| row(cause, *count));
        let named_table = Table::new(FAULTS, Unit::Share, None, rows.collect());
        let rows = self.clean.iter().map(|(place, count)| row(place, *count));
        let clean_table = Table::new(HEALTHY, Unit::Share, None, rows.collect());
        let pairs = self.savings.len() / 2;
        let savings = Table::new(SAVINGS, Unit::Seconds, Some("measured"), self.savings);
        let tables = [named_table, clean_table, savings].into_iter();
        report
            .tables
            .extend(tables.filter(|table| !table.rows.is_empty()));
        let of = |[right, all]: [usize; 2]| format!("{right} of {all}");
        if named[1] > 0 {
            let aim = "19 of 20 faults are named right as the first finding";
            report.add_verdict(aim, share(named) >= NAMED_MIN, of(named));
        }
        if clean[1] > 0 {
            let aim = "healthy commands have no finding";
            report.add_verdict(aim, clean[0] == clean[1], of(clean));
        }
        if pairs > 0 {
            let good = [self.good_predictions, pairs];
            let aim = "predicted savings are within a fifth of the measured ones";
            report.add_verdict(aim, good[0] == pairs, of(good));
        }
    }
}
