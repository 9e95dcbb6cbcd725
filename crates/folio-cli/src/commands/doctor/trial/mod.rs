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
//! 3. Where the cure leaves out syncs, both runs of a pair are timed until the file system's dirty
//!    pages are written: by invariant 2 these are pages of the run.

pub(super) mod cached_mount;
pub(super) mod remount;

use super::workload::WorkloadReport;
use crate::exit::Outcome;
use crate::session::Session;
use crate::user_command::{Ended, Places, Running};
use cached_mount::CachedMount;
use folio_doctor::{
    Check, CommandOutput, Cure, Omission, Recorder, RunOptions, Trial, reason, record_workload,
};
use folio_pagecache::median;
use folio_pagecache::{Dropped, Order, Progress, Scan, Warm, drop_files};
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
    Omission(Omission),
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
    /// Tries the cure of each finding, and calls `show` with its number from 1 on. The command does
    /// not run again if it used a file system that does not answer: it would wait without end.
    pub(super) fn run(
        &self,
        report: &mut WorkloadReport,
        mut show: impl FnMut(usize, &Trial) -> Outcome,
    ) -> Outcome {
        let unanswered = report.unanswered.first();
        let refusal =
            unanswered.map(|place| format!("{place} does not answer, so a run may not end"));
        let wall_s = report.wall_s.max(1e-3);
        let saves_s = |check: &Check| check.numbers.get("saves_s").and_then(Value::as_f64);
        let share = |check: &Check| saves_s(check).unwrap_or(0.0) / wall_s;
        let all: Vec<_> = report
            .checks
            .iter_mut()
            .map(|check| (check.cure.take(), share(check)))
            .collect();
        for (index, check) in report.checks.iter_mut().enumerate() {
            let Some(cure) = &all[index].0 else { continue };
            let has_same = |(other, _): &&(Option<Cure>, f64)| other.as_ref() == Some(cure);
            let first = all.iter().position(|found| has_same(&found));
            let trial = match (&refusal, first) {
                (Some(reason), _) => Trial::NotTried {
                    reason: reason.clone(),
                },
                (None, Some(first)) if first < index && !matches!(cure, Cure::Unavailable(_)) => {
                    Trial::NotTried {
                        reason: format!("its cure is that of finding {}", first + 1),
                    }
                }
                _ => {
                    let same = all.iter().filter(has_same);
                    self.trial(cure, same.map(|(_, share)| share).sum())
                }
            };
            self.session.check_interrupt()?;
            show(index + 1, check.trial.insert(trial))?;
        }
        Ok(())
    }

    /// Runs the pairs of a cure that is predicted to save this share of the time.
    fn trial(&self, cure: &Cure, share: f64) -> Trial {
        let measured = Applier::of(cure).and_then(|applier| {
            let (applied, risk, place) = words(cure);
            // Mounts of a thread of its own are seen by the commands that it starts.
            let times = std::thread::scope(|scope| {
                let pairs = scope.spawn(|| self.pairs(&applier, place));
                pairs
                    .join()
                    .unwrap_or_else(|_| Err("a trial panicked".to_owned()))
            })?;
            let baseline_s = median(times.baseline_s.clone());
            let saved_s = baseline_s - median(times.cured_s.clone());
            Ok(Trial::Measured {
                applied,
                risk: risk.to_owned(),
                // The disk and the machine were as fast as in these runs, not as when examined.
                predicted_s: in_ms(share * baseline_s),
                measured_s: in_ms(saved_s),
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
                        chill(files)?;
                    }
                    self.once(None)?
                };
                let seconds = match applier {
                    Applier::Omission(_) => seconds + synced_s(place)?,
                    _ => seconds,
                };
                let all = if is_cured {
                    &mut times.cured_s
                } else {
                    &mut times.baseline_s
                };
                all.push(in_ms(seconds));
            }
        }
        Ok(times)
    }

    /// Runs the command with the cure; returns its seconds.
    fn cured(&self, applier: &Applier) -> Result<f64, String> {
        match applier {
            Applier::Omission(omission) => self.once(Some(*omission)),
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
                let mount = CachedMount::new(source, mount_point, self.session)?;
                let seconds = self.once(None);
                mount.end()?;
                seconds
            }
            Applier::Warm(files) => {
                warm(files)?;
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
        synced_s(place).map(drop)
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
        let found = record_workload(self.words, &options, &self.session.stop_flag());
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
        Ok(match cure {
            Cure::Unavailable(reason) => return Err((*reason).to_owned()),
            Cure::OmitSyncs { mount_point, files } => {
                Self::Omission(Omission::Syncs(device(mount_point, files)?))
            }
            Cure::OmitSyncFlags { mount_point, files } => {
                Self::Omission(Omission::SyncFlags(device(mount_point, files)?))
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
            Cure::Warm { files, .. } => Self::Warm(files.clone()),
        })
    }
}

/// Returns the device number of files on a mount. The preloaded library finds them by it.
fn device(mount_point: &Path, files: &[PathBuf]) -> Result<u64, String> {
    let found = mount_point
        .metadata()
        .map_err(|error| format!("{}: {}", mount_point.display(), reason(&error)))?;
    for path in files {
        // Of a file that does not exist any more, its folder.
        let mut places = path.ancestors();
        let file = places.find_map(|place| place.symlink_metadata().ok());
        if file.is_some_and(|file| file.dev() != found.dev()) {
            return Err(format!(
                "{} has another device number than {}, by which its syncs are found: a subvolume \
                 or an overlay",
                path.display(),
                mount_point.display()
            ));
        }
    }
    Ok(found.dev())
}

/// How a cure is applied, the risk, and the mount.
fn words(cure: &Cure) -> (String, &'static str, &Path) {
    const SYNCED: &str = "both runs were timed until its file system was synced";
    match cure {
        Cure::OmitSyncs { mount_point, .. } => (
            format!(
                "the syncs of files on {} were left out; {SYNCED}",
                mount_point.display()
            ),
            LOSS,
            mount_point,
        ),
        Cure::OmitSyncFlags { mount_point, .. } => (
            format!(
                "O_SYNC and O_DSYNC of files on {} were left out; {SYNCED}",
                mount_point.display()
            ),
            LOSS,
            mount_point,
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
            mount_point,
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
            mount_point,
        ),
        Cure::Warm { mount_point, .. } => (
            "the files were in memory before each run, and only on the disk before each run without the cure"
                .to_owned(),
            "none: the files were read",
            mount_point,
        ),
        Cure::Unavailable(_) => (String::new(), "", Path::new("")),
    }
}

/// Returns seconds without a part of a millisecond.
fn in_ms(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// Writes the dirty pages of the file system at `place`; returns the seconds.
fn synced_s(place: &Path) -> Result<f64, String> {
    let start = Instant::now();
    let folder =
        File::open(place).map_err(|error| format!("{}: {}", place.display(), reason(&error)))?;
    rustix::fs::syncfs(&folder).map_err(|errno| format!("{}: syncfs: {errno}", place.display()))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Drops files from memory.
fn chill(files: &[PathBuf]) -> Result<(), String> {
    let dropped = drop_files(&Scan::default(), files, true, &AtomicU64::new(0));
    if let Some((path, why)) = dropped.failures.first() {
        return Err(format!("{}: {why}", path.display()));
    }
    // Without a report of the kernel, the drop is trusted.
    let resident = |file: &&Dropped| {
        let found = file.after.residency();
        found.is_some_and(|found| found.resident_bytes > 0)
    };
    match dropped.found.iter().find(resident) {
        Some(file) => Err(format!(
            "{} remains in memory: a program has it mapped, or uses it",
            file.after.path.display()
        )),
        None => Ok(()),
    }
}

/// Reads files into memory.
fn warm(files: &[PathBuf]) -> Result<(), String> {
    let warm = Warm {
        order: Order::Auto,
        threads: 0,
        budget_bytes: u64::MAX,
    };
    let files = Scan::default().files(files);
    let warmed = warm.run(&files.found, &Progress::default());
    if let Some((path, why)) = files.failures.iter().chain(&warmed.failures).next() {
        return Err(format!("{}: {why}", path.display()));
    }
    if warmed.over_budget_bytes > 0 {
        return Err("memory is too short for the files".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_another_device_are_refused() {
        let proc = Path::new("/proc");
        let files = ["/proc/version", "/proc/removed/file"].map(PathBuf::from);
        assert!(device(proc, &files).is_ok());
        let error = device(Path::new("/"), &files[1..]).unwrap_err();
        assert!(error.starts_with("/proc/removed/file has another device"));
    }

    #[test]
    fn removed_file_is_neither_dropped_nor_warmed() {
        let folder = tempfile::tempdir().unwrap();
        let files = [folder.path().join("removed")];
        assert!(chill(&files).unwrap_err().contains("removed: "));
        assert!(warm(&files).unwrap_err().contains("removed: "));
    }
}
