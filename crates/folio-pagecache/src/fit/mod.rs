//! The memory that a workload needs: the smallest page cache at which misses stay below a limit.
//!
//! ```text
//!   mod.rs       the choice of the method
//!     v
//!   search.rs    steps memory down, then halves      estimate.rs   without a control group
//!     v                                                v
//!   limited.rs   a workload in a group               processes.rs  trees, and their open files
//!     v
//!   group.rs     files of the control group          guard.rs      restores the limit
//!   curve.rs     from points to the memory need      chart.rs      the curve as SVG
//!     v
//!   request.rs   the parameters, waits               report.rs     points, the result
//! ```
//!
//! A limit that was changed is restored, also after SIGKILL of this process. No group is limited
//! that has processes beside those that the caller named.

mod chart;
mod curve;
mod estimate;
mod group;
mod guard;
mod limited;
mod processes;
mod report;
mod request;
mod search;

pub use chart::fit_svg;
use estimate::Files;
use group::Group;
use limited::Limited;
pub use report::{FitReport, Method, Need, Point};
use request::without_stdout;
pub use request::{Fit, Workload};
use rustix::process::{Pid, kill_process_group};
use search::{Search, Subject};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Bytes of open files outside of the group that are worth a note.
const OUTSIDE: u64 = 8 << 20;

impl<'a> Fit<'a> {
    /// Measures a workload.
    ///
    /// # Errors
    ///
    /// `NotFound` if the command, process or group does not exist; `Interrupted` if `stop` ended
    /// it; `Other` if the workload ended before the first measurement. All other failures are
    /// those of the files of the control group.
    pub fn run(mut self, workload: &Workload) -> io::Result<FitReport> {
        let reason = match self.limited(workload)? {
            Ok(limited) => return self.search(limited),
            Err(reason) => reason,
        };
        let report = match workload {
            Workload::Command(words) => {
                let mut child = started(words)?;
                let report = self.estimate(child.id(), reason);
                let group = Pid::from_raw(child.id().cast_signed());
                limited::end(&mut child, |signal| {
                    group.is_some_and(|group| kill_process_group(group, signal).is_ok())
                });
                report
            }
            Workload::Process(pid) => self.estimate(*pid, reason),
            Workload::Group(path) => Err(failure(
                io::ErrorKind::PermissionDenied,
                format!("{}: {reason}", path.display()),
            )),
        };
        self.checked(report?)
    }

    /// Returns the workload in a group that may be limited, or why there is none.
    fn limited(&self, workload: &Workload) -> io::Result<Result<Limited<'a>, String>> {
        let group = match workload {
            Workload::Process(pid) if processes::tree(*pid).is_empty() => {
                let words = format!("process {pid} does not exist");
                return Err(failure(io::ErrorKind::NotFound, words));
            }
            _ if self.is_estimate => return Ok(Err("requested".into())),
            Workload::Command(words) => {
                return Ok(Limited::command(words, self).map_err(no_group));
            }
            Workload::Process(pid) => match own_group(*pid) {
                Ok(group) => group,
                Err(reason) => return Ok(Err(reason)),
            },
            Workload::Group(path) => Group::named(path).ok_or_else(|| {
                let words = format!(
                    "{}: no control group with a memory controller",
                    path.display()
                );
                failure(io::ErrorKind::NotFound, words)
            })?,
        };
        if !group.may_limit() {
            let (folder, file) = (group.folder.display(), group.version.limit);
            return Ok(Err(format!("no permission to write {folder}/{file}")));
        }
        if group.processes().contains(&std::process::id()) {
            let words = "this command is in the group: run it from another one";
            return Ok(Err(words.into()));
        }
        Limited::new(group, self).map(Ok)
    }

    fn search(&mut self, mut limited: Limited<'a>) -> io::Result<FitReport> {
        let start = Instant::now();
        let mut search = Search {
            subject: &mut limited,
            limit_per_s: self.limit_per_s,
            seconds: self.duration.as_secs_f64(),
            points: Vec::new(),
            other_bytes: 0,
            is_filling: false,
            is_growing: false,
            each: &mut *self.each,
        };
        search.run()?;
        let (points, other_bytes) = (search.points, search.other_bytes);
        let last = limited.memory()?;
        if limited.ended().and_then(|status| status.code()) == Some(127) {
            let words = "the command was not found";
            return Err(failure(io::ErrorKind::NotFound, words));
        }
        let open = processes::all_files(limited.group.processes());
        let open = open
            .iter()
            .map(|path| estimate::resident(path))
            .sum::<u64>();
        let outside = open.saturating_sub(last.map_or(open, |last| last.cache_bytes));
        self.checked(FitReport {
            method: limited.group.version.method,
            estimate_reason: None,
            group: Some(limited.group.folder.clone()),
            need: curve::need(&points, self.limit_per_s),
            other_bytes,
            outside_bytes: if outside > OUTSIDE { outside } else { 0 },
            has_ended_early: last.is_none(),
            seconds: start.elapsed().as_secs_f64(),
            points: curve::monotone(&points),
        })
    }

    fn estimate(&mut self, pid: u32, reason: String) -> io::Result<FitReport> {
        let start = Instant::now();
        let mut files = Files::new(pid, self.is_cold);
        let points = self.sample(&mut files)?;
        if points.iter().all(|point| point.cache_bytes == 0) && !points.is_empty() {
            let words = "no open file can be examined: run this command as root";
            return Err(failure(io::ErrorKind::PermissionDenied, words));
        }
        Ok(FitReport {
            method: Method::Residency,
            estimate_reason: Some(reason),
            group: None,
            need: curve::need(&points, self.limit_per_s),
            other_bytes: 0,
            outside_bytes: 0,
            has_ended_early: files.resident_bytes()?.is_none(),
            seconds: start.elapsed().as_secs_f64(),
            points: curve::monotone(&points),
        })
    }

    /// Rejects a report without a curve.
    fn checked(&self, report: FitReport) -> io::Result<FitReport> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if report.points.is_empty() {
            let words = format!(
                "the workload ended after {:.1} s, before the first measurement: repeat it, \
                 e.g. sh -c 'while :; do COMMAND; done'",
                report.seconds
            );
            return Err(failure(io::ErrorKind::Other, words));
        }
        Ok(report)
    }
}

/// Says why a command has no group, and what would give it one.
fn no_group(error: io::Error) -> String {
    format!("no control group can be made ({error}): run this command as root")
}

fn failure(kind: io::ErrorKind, words: impl Into<String>) -> io::Error {
    io::Error::new(kind, words.into())
}

/// Returns the group of a process, if only the process and its descendants are in it.
fn own_group(pid: u32) -> Result<Group, String> {
    let group = Group::of_process(pid)
        .ok_or("the process is in the root control group, which cannot be limited")?;
    let tree = processes::tree(pid);
    if group
        .processes()
        .iter()
        .all(|process| tree.contains(process))
    {
        return Ok(group);
    }
    let folder = group.folder.display();
    Err(format!(
        "other processes are in {folder}: name the group to measure all of them"
    ))
}

/// Starts a command in a process group of its own.
fn started(words: &[OsString]) -> io::Result<Child> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    without_stdout(command.args(arguments).process_group(0))?.spawn()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn command_that_ignores_sigterm_is_killed() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("pids");
        let script = r#"trap '' TERM; sleep 60 & echo $$ $! > "$0"; wait; sleep 60"#;
        let words = ["sh".into(), "-c".into(), script.into(), file.clone().into()];
        let fit = Fit {
            limit_per_s: 1.0,
            duration: Duration::from_secs(1),
            is_estimate: true,
            is_cold: false,
            stop: &AtomicBool::new(false),
            each: &mut |_| {},
        };
        let start = Instant::now();
        fit.run(&Workload::Command(words.to_vec())).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
        let text = std::fs::read_to_string(file).unwrap();
        for pid in text.split_whitespace() {
            assert!(processes::tree(pid.parse().unwrap()).is_empty(), "{text}");
        }
    }
}
