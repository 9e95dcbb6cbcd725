//! `--try`: the command again, with each cure that can be applied from outside, and without it.
//!
//! ```text
//!   mod.rs            pairs of runs, their medians
//!     |  remount.rs        the cure is another option of the file system
//!     |  cached_mount.rs   the cure is a cache above a server
//! ```
//!
//! Invariants:
//! 1. What a cure changes is as before after the trial, also after Ctrl-C, a panic or a kill.
//! 2. Both runs of a pair are prepared alike: `--setup`, then the file system's dirty pages are
//!    written.

mod cached_mount;
pub(super) mod remount;

use super::workload::WorkloadReport;
use crate::exit::Outcome;
use crate::session::Session;
use crate::user_command::{Ended, Places, Running};
use cached_mount::CachedMount;
use folio_doctor::{
    Check, CommandOutput, Cure, Omission, Recorder, RunOptions, Trial, reason, run_workload,
};
use folio_pagecache::{Order, Progress, Scan, Warm, drop_files};
use remount::Remounter;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const LOSS: &str = "a power cut meanwhile could have lost what the command wrote";

/// How the command runs again.
pub(super) struct Trials<'a> {
    pub(super) words: &'a [OsString],
    pub(super) recorder: Recorder,
    /// How the command ended when it was examined.
    pub(super) status: Option<ExitStatus>,
    /// A command that prepares each run.
    pub(super) setup: Option<&'a str>,
    /// Pairs of runs of each cure.
    pub(super) repeats: u32,
    pub(super) session: &'a Session,
}

/// A cure that is ready to be applied.
enum Applier {
    Omission(Omission, Vec<PathBuf>),
    Remount(Remounter),
    Mount {
        source: PathBuf,
        mount_point: PathBuf,
    },
    Warm(Vec<PathBuf>),
}

/// Seconds without and with the cure.
#[derive(Default)]
struct Times {
    baseline_s: Vec<f64>,
    cured_s: Vec<f64>,
}

impl Trials<'_> {
    /// Tries the cure of each finding, and calls `show` with its number from 1 on.
    pub(super) fn run(
        &self,
        report: &mut WorkloadReport,
        mut show: impl FnMut(usize, &Trial) -> Outcome,
    ) -> Outcome {
        let saves_s = |check: &Check| check.numbers.get("saves_s").and_then(Value::as_f64);
        let all: Vec<_> = report
            .checks
            .iter_mut()
            .map(|check| (check.cure.take(), saves_s(check).unwrap_or(0.0)))
            .collect();
        for (index, check) in report.checks.iter_mut().enumerate() {
            let Some(cure) = &all[index].0 else { continue };
            let has_same = |(other, _): &&(Option<Cure>, f64)| other.as_ref() == Some(cure);
            let trial = match all.iter().position(|found| has_same(&found)) {
                Some(first) if first < index && !matches!(cure, Cure::Unavailable(_)) => {
                    Trial::NotTried {
                        reason: format!("its cure is that of finding {}", first + 1),
                    }
                }
                _ => {
                    let place = check.numbers.get("mount_point").and_then(Value::as_str);
                    let predicted_s: f64 =
                        all.iter().filter(has_same).map(|(_, saves)| saves).sum();
                    self.trial(cure, Path::new(place.unwrap_or(".")), predicted_s)
                }
            };
            self.session.check_interrupt()?;
            show(index + 1, check.trial.insert(trial))?;
        }
        Ok(())
    }

    fn trial(&self, cure: &Cure, place: &Path, predicted_s: f64) -> Trial {
        let measured = Applier::of(cure).and_then(|applier| {
            let (applied, risk) = words(cure);
            // Mounts of a thread of its own are seen by the commands that it starts.
            let times = std::thread::scope(|scope| {
                let pairs = scope.spawn(|| self.pairs(&applier, place));
                pairs
                    .join()
                    .unwrap_or_else(|_| Err("a trial panicked".to_owned()))
            })?;
            let saved_s = middle(&times.baseline_s) - middle(&times.cured_s);
            Ok(Trial::Measured {
                applied,
                risk: risk.to_owned(),
                predicted_s,
                measured_s: (saved_s * 1e3).round() / 1e3,
                baseline_s: times.baseline_s,
                cured_s: times.cured_s,
            })
        });
        measured.unwrap_or_else(|reason| Trial::NotTried { reason })
    }

    fn pairs(&self, applier: &Applier, place: &Path) -> Result<Times, String> {
        if let Applier::Mount { .. } = applier {
            folio_run::unshare_mounts()
                .map_err(|errno| format!("no mount namespace of its own: {errno}"))?;
        }
        let mut times = Times::default();
        for pair in 0..self.repeats {
            // What one run leaves behind is in turn for the other one.
            for is_cured in [pair % 2 == 1, pair % 2 == 0] {
                self.prepare(place)?;
                let seconds = if is_cured {
                    self.cured(applier)?
                } else {
                    if let Applier::Warm(files) = applier {
                        drop_files(&Scan::default(), files, true, &AtomicU64::new(0));
                    }
                    self.once(None)?
                };
                let all = if is_cured {
                    &mut times.cured_s
                } else {
                    &mut times.baseline_s
                };
                all.push((seconds * 1e3).round() / 1e3);
            }
        }
        Ok(times)
    }

    /// Runs the command with the cure; returns its seconds.
    fn cured(&self, applier: &Applier) -> Result<f64, String> {
        match applier {
            Applier::Omission(omission, files) => {
                let seconds = self.once(Some(*omission))?;
                Ok(seconds + sync(files)?)
            }
            Applier::Remount(remounter) => {
                remounter.apply()?;
                let seconds = self.once(None);
                remounter.restore()?;
                seconds
            }
            Applier::Mount {
                source,
                mount_point,
            } => {
                let mount = CachedMount::new(source, mount_point)?;
                let seconds = self.once(None);
                mount.end()?;
                seconds
            }
            Applier::Warm(files) => {
                warm(files);
                self.once(None)
            }
        }
    }

    /// Runs `--setup`, and writes the dirty pages of the file system at `place`.
    fn prepare(&self, place: &Path) -> Result<(), String> {
        if let Some(setup) = self.setup {
            let failed = |error| format!("--setup: {error}");
            let stderr = std::io::stderr().as_fd().try_clone_to_owned();
            let stdout = stderr.map_err(failed)?.into();
            let running = Running::start(setup, Places::default(), stdout, Stdio::inherit());
            let mut running = running.map_err(failed)?;
            let ended = running.wait(None, &|| self.session.is_interrupted());
            match ended.map_err(failed)? {
                Ended::Exited(status) if !status.success() => {
                    return Err(format!("--setup failed: {status}"));
                }
                Ended::Exited(_) | Ended::OutOfTime | Ended::Interrupted => {}
            }
        }
        let folder = File::open(place)
            .map_err(|error| format!("{}: {}", place.display(), reason(&error)))?;
        rustix::fs::syncfs(&folder).map_err(|errno| format!("{}: syncfs: {errno}", place.display()))
    }

    /// Runs the command; returns its seconds.
    fn once(&self, omission: Option<Omission>) -> Result<f64, String> {
        if self.session.is_interrupted() {
            return Err("interrupted".to_owned());
        }
        let folder = std::env::current_dir().map_err(|error| reason(&error))?;
        let options = RunOptions {
            output: CommandOutput::Dropped,
            recorder: self.recorder,
            omission,
            folder: Some(folder),
            may_write: false,
        };
        let found = run_workload(self.words, &options, &self.session.stop_flag());
        let found = found.map_err(|error| reason(&error))?;
        if found.status == self.status {
            return Ok(found.wall_ns as f64 / 1e9);
        }
        let shown = |status: Option<ExitStatus>| status.map(|status| status.to_string());
        Err(format!(
            "run again, the command ended with {}, not {}: --setup COMMAND prepares each run",
            shown(found.status).unwrap_or_default(),
            shown(self.status).unwrap_or_default()
        ))
    }
}

impl Applier {
    fn of(cure: &Cure) -> Result<Self, String> {
        let device = |mount_point: &Path| {
            let found = std::fs::metadata(mount_point);
            let found =
                found.map_err(|error| format!("{}: {}", mount_point.display(), reason(&error)));
            found.map(|found| found.dev())
        };
        Ok(match cure {
            Cure::Unavailable(reason) => return Err((*reason).to_owned()),
            Cure::OmitSyncs { mount_point, files } => {
                Self::Omission(Omission::Syncs(device(mount_point)?), files.clone())
            }
            Cure::OmitSyncFlags { mount_point, files } => {
                Self::Omission(Omission::SyncFlags(device(mount_point)?), files.clone())
            }
            Cure::Remount { .. } | Cure::CacheAttributes { .. }
                if !rustix::process::geteuid().is_root() =>
            {
                return Err("only root may mount".to_owned());
            }
            Cure::Remount {
                mount_point,
                option,
                restored,
            } => Self::Remount(Remounter::start(mount_point, option, restored)?),
            Cure::CacheAttributes {
                mount_point,
                source,
            } => Self::Mount {
                source: source.clone(),
                mount_point: mount_point.clone(),
            },
            Cure::Warm { files } => Self::Warm(files.clone()),
        })
    }
}

/// How a cure is applied, and the risk.
fn words(cure: &Cure) -> (String, &'static str) {
    match cure {
        Cure::OmitSyncs { mount_point, .. } => (
            format!(
                "the syncs of files on {} were left out, and each file was synced once at the end",
                mount_point.display()
            ),
            LOSS,
        ),
        Cure::OmitSyncFlags { mount_point, .. } => (
            format!(
                "O_SYNC and O_DSYNC of files on {} were left out, and each file was synced once at the end",
                mount_point.display()
            ),
            LOSS,
        ),
        Cure::Remount {
            mount_point,
            option,
            restored,
        } => (
            format!(
                "{} was remounted with {option} for each run, and with {restored} after it",
                mount_point.display()
            ),
            "a power cut meanwhile could have lost what any program wrote there",
        ),
        Cure::CacheAttributes {
            mount_point,
            source,
        } => (
            format!(
                "a private mount of {} by folio over {}, with a cache that is valid for 1 s",
                source.display(),
                mount_point.display()
            ),
            "the command saw changes of the server up to 1 s late",
        ),
        Cure::Warm { .. } => (
            "the files were in memory before each run, and only on the disk before each run without the cure"
                .to_owned(),
            "none: the files were read",
        ),
        Cure::Unavailable(_) => (String::new(), ""),
    }
}

/// Syncs files that exist; returns the seconds.
fn sync(files: &[PathBuf]) -> Result<f64, String> {
    let start = Instant::now();
    for path in files {
        let is_synced = path
            .symlink_metadata()
            .is_ok_and(|found| found.is_file() || found.is_dir());
        // Temporary files do not exist any more.
        if let (true, Ok(file)) = (is_synced, File::open(path)) {
            let synced = file.sync_all();
            synced.map_err(|error| format!("{}: sync: {}", path.display(), reason(&error)))?;
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

fn warm(files: &[PathBuf]) {
    let warm = Warm {
        order: Order::Auto,
        threads: 0,
        budget_bytes: u64::MAX,
    };
    warm.run(&Scan::default().files(files).found, &Progress::default());
}

/// The median.
fn middle(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    match times.len() {
        0 => 0.0,
        len if len % 2 == 1 => times[half],
        _ => f64::midpoint(times[half - 1], times[half]),
    }
}
