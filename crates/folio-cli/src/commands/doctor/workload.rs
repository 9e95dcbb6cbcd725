//! `folio doctor -- COMMAND` and `--pid`: the parts of its time, and what saves some of it.

use crate::exit::{Exit, Failure, Outcome};
use crate::manual::notes;
use crate::output::color::{self, FAILURE, WARNING, paint};
use crate::output::{NamePrinter, counted};
use crate::session::Session;
use folio_doctor::{
    Check, Cost, FileCost, Part, Recorder, RunOptions, Timeline, Trial, Unreached, Verdict,
    Workload, attach_workload, judge_workload, reason, run_workload,
};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// Column of the second line of a finding.
const DETAIL_COLUMN: usize = 3;
/// Nanoseconds of a file in the report.
const FILE_COST_MIN_NS: u64 = 1_000_000;
/// Lines about files.
const FILES_MAX: usize = 5;
/// Part of the wall time of a file that has a line.
const FILE_SHARE_MIN: f64 = 0.05;

/// The result for a command.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct WorkloadReport {
    command: Vec<String>,
    /// The process, if it ran already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    pub(super) recorder: Recorder,
    /// Its exit code; null if a signal ended it, or if it goes on.
    exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    pub(super) wall_s: f64,
    /// They sum to `wall_s`.
    pub(super) parts: Vec<PartReport>,
    /// Processes that were recorded.
    pub(super) processes: usize,
    /// Calls that were not recorded, as the ring was full.
    dropped_records: u64,
    /// Programs that were not recorded, and their part of the time.
    unreached: Vec<Unreached>,
    /// Mount points of file systems that did not answer after the command, so that nothing was
    /// measured on them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unanswered: Vec<String>,
    costs: Vec<CostReport>,
    /// The files with the most time on the critical path, the costliest first.
    pub(super) files: Vec<FileReport>,
    pub(super) checks: Vec<Check>,
    #[serde(skip)]
    pub(super) timeline: Timeline,
    /// How the command ended.
    #[serde(skip)]
    pub(super) status: Option<ExitStatus>,
}

/// A part of the time.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PartReport {
    pub(super) part: Part,
    pub(super) seconds: f64,
    pub(super) percent: f64,
}

/// The calls of one part on one mount that took long.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CostReport {
    part: Part,
    mount_point: String,
    fs_type: String,
    calls: u64,
    files: usize,
    wait_s: f64,
    bytes: u64,
    device_bytes: u64,
    /// The file with the longest wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    example: Option<String>,
}

/// A file with the time of its calls.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct FileReport {
    pub(super) path: String,
    pub(super) mount_point: String,
    pub(super) fs_type: String,
    /// The part with most of its time.
    pub(super) part: Part,
    /// Calls that took at least 16 microseconds, or 5 if they ask for attributes, and small calls.
    pub(super) calls: u64,
    /// Bytes that they moved.
    pub(super) bytes: u64,
    /// Time that they did not run.
    pub(super) wait_s: f64,
    /// Their waits, and the whole time of small calls.
    pub(super) cost_s: f64,
}

/// The figures of a finding; 0 what it does not have.
pub(super) struct Figures {
    pub(super) cost_s: f64,
    pub(super) share_percent: f64,
    pub(super) saves_s: f64,
}

impl Figures {
    pub(super) fn of(check: &Check) -> Self {
        let value = |name: &str| check.numbers.get(name)?.as_f64();
        Self {
            cost_s: value("cost_s").unwrap_or(0.0),
            share_percent: value("share_percent").unwrap_or(0.0),
            saves_s: value("saves_s").unwrap_or(0.0),
        }
    }
}

/// Runs the command.
pub(super) fn run(
    words: &[OsString],
    options: &RunOptions,
    session: &Session,
) -> Outcome<WorkloadReport> {
    let program = words[0].display();
    let found = run_workload(words, options, &session.stop_flag()).map_err(|error| {
        let message = format!("{program}: cannot be run: {}", reason(&error));
        Failure::exiting(Exit::NotProbed, message)
    })?;
    if found.has_lost_privileges {
        session.note(format_args!(
            "{program}: ran without the rights of its owner: tracing ignores set-user-id"
        ));
    }
    let words = words.iter().map(|word| word.display().to_string());
    Ok(WorkloadReport::new(words.collect(), None, &found))
}

/// Traces a process that runs already: for a time, until it ends, or until Ctrl-C.
pub(super) fn attach(pid: u32, limit: Duration, session: &Session) -> Outcome<WorkloadReport> {
    if let (Ok(own), Ok(its)) = (mount_namespace("self"), mount_namespace(&pid.to_string()))
        && own != its
    {
        session.note(format_args!(
            "process {pid}: its mounts are those of another namespace, a container: paths and mounts of the report \
             are looked up in this one"
        ));
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let mut words: Vec<_> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    if words.is_empty() {
        words.push(format!("process {pid}"));
    }
    let found = attach_workload(pid, limit, &session.stop_flag()).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::PermissionDenied => {
                "it belongs to another user, is traced already, or kernel.yama.ptrace_scope \
                 forbids it: run this command as root"
                    .to_owned()
            }
            _ => reason(&error),
        };
        let message = format!("process {pid}: cannot be traced: {why}");
        Failure::exiting(Exit::NotProbed, message)
    })?;
    Ok(WorkloadReport::new(words, Some(pid), &found))
}

/// Returns the identity of a process's mount namespace (namespaces(7)).
fn mount_namespace(process: &str) -> std::io::Result<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt"))
}

fn seconds(ns: u64) -> f64 {
    (ns as f64 / 1e6).round() / 1e3
}

impl WorkloadReport {
    pub(super) fn faults(&self) -> usize {
        let checks = self.checks.iter();
        checks
            .filter(|check| check.verdict == Verdict::Fault)
            .count()
    }

    /// How the command ended, if it did not succeed.
    pub(super) fn failure(&self) -> Option<String> {
        let program = &self.command[0];
        match (self.exit_code, self.signal) {
            (Some(0), _) => None,
            (Some(code), _) => Some(format!(
                "{program}: the command ended with exit code {code}"
            )),
            (None, Some(signal)) => Some(format!("{program}: signal {signal} ended the command")),
            (None, None) => None,
        }
    }

    /// Returns the command as a line for a shell.
    pub(super) fn line(&self) -> String {
        let words = self.command.iter().map(String::as_str);
        // A word with a zero byte is not of a command.
        shlex::try_join(words).unwrap_or_else(|_| self.command.join(" "))
    }

    /// Returns how the command ended.
    pub(super) fn ending(&self) -> String {
        match (self.exit_code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "it goes on".to_owned(),
        }
    }

    /// Returns a line for each program, and for all calls, that were not recorded, and for each
    /// file system that did not answer.
    pub(super) fn unknown_lines(&self) -> impl Iterator<Item = String> {
        let why = match self.recorder {
            Recorder::Preload => "static, set-user-id, or without a C library; --trace records it",
            Recorder::Ptrace => "its system calls are of another architecture",
        };
        let programs = self.unreached.iter().map(move |program| {
            let (seconds, name) = (shown(program.seconds), &program.program);
            format!("? {seconds} s in {name}, which was not recorded: {why}")
        });
        let dropped = (self.dropped_records > 0).then_some(self.dropped_records);
        let dropped =
            dropped.map(|calls| format!("? {calls} calls were not recorded: too many at once"));
        let unanswered = self.unanswered.iter().map(|mount_point| {
            format!(
                "? {mount_point} does not answer: nothing was measured on it after the command, and \
                 its findings are less certain"
            )
        });
        programs.chain(dropped).chain(unanswered)
    }

    fn new(command: Vec<String>, pid: Option<u32>, found: &Workload) -> Self {
        let percent = |ns: u64| (ns as f64 * 1000.0 / found.wall_ns.max(1) as f64).round() / 10.0;
        let parts = found.parts.iter().map(|(part, ns)| PartReport {
            part: *part,
            seconds: seconds(*ns),
            percent: percent(*ns),
        });
        let cost = |cost: &Cost| {
            let mount = &found.mounts[cost.mount].file_system;
            CostReport {
                part: cost.part,
                mount_point: mount.mount_point.display().to_string(),
                fs_type: mount.fs_type.clone(),
                calls: cost.calls,
                files: cost.files.len(),
                wait_s: seconds(cost.wait_ns),
                bytes: cost.bytes,
                device_bytes: cost.device_bytes,
                example: cost.example.as_ref().map(|path| path.display().to_string()),
            }
        };
        let file = |file: &FileCost| {
            let mount = &found.mounts[file.mount].file_system;
            FileReport {
                path: file.path.display().to_string(),
                mount_point: mount.mount_point.display().to_string(),
                fs_type: mount.fs_type.clone(),
                part: file.part,
                calls: file.calls,
                bytes: file.bytes,
                wait_s: seconds(file.wait_ns),
                cost_s: seconds(file.cost_ns),
            }
        };
        let unanswered = found.mounts.iter().filter(|mount| !mount.is_answering);
        let unanswered =
            unanswered.map(|mount| mount.file_system.mount_point.display().to_string());
        let files = found.files.iter();
        let files = files.filter(|file| file.cost_ns >= FILE_COST_MIN_NS);
        Self {
            command,
            pid,
            recorder: found.recorder,
            exit_code: found.status.and_then(|status| status.code()),
            signal: found.status.and_then(|status| status.signal()),
            wall_s: seconds(found.wall_ns),
            parts: parts.collect(),
            processes: found.processes,
            dropped_records: found.dropped,
            unreached: found.unreached.clone(),
            unanswered: unanswered.collect(),
            costs: found.costs.iter().map(cost).collect(),
            files: files.map(file).collect(),
            checks: judge_workload(found),
            timeline: found.timeline.clone(),
            status: found.status,
        }
    }
}

/// Prints the report on standard output.
pub(super) fn print(report: &WorkloadReport) -> Outcome {
    let names = NamePrinter::on_stdout();
    let width = crate::output::stdout_width().unwrap_or(usize::MAX);
    let mut out = std::io::stdout().lock();
    out.write_all(
        names
            .text(&format(report, width, color::on_stdout()))
            .as_bytes(),
    )?;
    writeln!(out, "{}", counted(report.faults() as u64, "fault"))?;
    Ok(out.flush()?)
}

/// Prints what the trial of a finding's cure found.
pub(super) fn print_trial(number: usize, trial: &Trial) -> Outcome {
    let width = crate::output::stdout_width().unwrap_or(usize::MAX);
    let mut text = format!("{number}. ");
    for (index, line) in trial_lines(trial).iter().enumerate() {
        if index > 0 {
            text.push_str(&" ".repeat(DETAIL_COLUMN));
        }
        notes::wrap(&mut text, line, DETAIL_COLUMN, width);
    }
    let text = NamePrinter::on_stdout().text(&text);
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Returns what a trial found, line by line.
pub(super) fn trial_lines(trial: &Trial) -> Vec<String> {
    match trial {
        Trial::NotTried { reason } => vec![format!("not tried: {reason}")],
        Trial::Measured {
            applied,
            risk,
            baseline_s,
            cured_s,
            predicted_s,
            measured_s,
        } => {
            let (saves, predicted) = (shown(*measured_s), shown(*predicted_s));
            let times = |times: &[f64]| {
                let words: Vec<_> = times.iter().map(|time| shown(*time)).collect();
                words.join(", ")
            };
            let (without, with) = (times(baseline_s), times(cured_s));
            vec![
                format!("tried: saves {saves} s, predicted {predicted} s"),
                format!("seconds without the cure: {without}; with it: {with}"),
                applied.clone(),
                format!("risk taken: {risk}"),
            ]
        }
    }
}

/// `24.0`, or with three digits below one second.
pub(super) fn shown(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{seconds:.3}")
    } else {
        format!("{seconds:.1}")
    }
}

fn format(report: &WorkloadReport, width: usize, is_colored: bool) -> String {
    let mut text = format!("wall {} s", shown(report.wall_s));
    let mut column = text.len();
    for part in report.parts.iter().filter(|part| part.seconds >= 0.001) {
        let word = format!("   {} {}", part.part.name(), shown(part.seconds));
        column += word.len();
        if column > width {
            text.push('\n');
            column = word.len();
        }
        text.push_str(&word);
    }
    text.push('\n');
    for (index, check) in report.checks.iter().enumerate() {
        add(&mut text, index + 1, check, width, is_colored);
    }
    for line in report.unknown_lines() {
        notes::wrap(&mut text, &line, DETAIL_COLUMN, width);
    }
    add_files(&mut text, report);
    text
}

/// Adds the files that take most time, if several do: findings name the costliest one.
fn add_files(text: &mut String, report: &WorkloadReport) {
    let is_large =
        |file: &&FileReport| file.cost_s >= 0.001 && file.cost_s >= report.wall_s * FILE_SHARE_MIN;
    let files = report.files.iter().take(FILES_MAX).filter(is_large);
    let files: Vec<_> = files.collect();
    if files.len() < 2 {
        return;
    }
    text.push_str("files\n");
    for file in files {
        let (cost, calls) = (shown(file.cost_s), counted(file.calls, "call"));
        let (part, path) = (file.part.name(), &file.path);
        let _ = writeln!(text, "   {cost:>7} s  {part:<15} {calls:>12}  {path}");
    }
}

fn add(text: &mut String, number: usize, check: &Check, width: usize, is_colored: bool) {
    let figures = Figures::of(check);
    let (cost, share) = (figures.cost_s, figures.share_percent);
    let style = if check.verdict == Verdict::Fault {
        FAILURE
    } else {
        WARNING
    };
    let _ = write!(text, "{}. ", paint(is_colored, style, number));
    let kind = if check.verdict == Verdict::Fault {
        ""
    } else {
        " [note]"
    };
    let sentence = format!("{} s ({share:.0} %)  {}{kind}", shown(cost), check.says);
    notes::wrap(text, &sentence, DETAIL_COLUMN, width);
    let detail = " ".repeat(DETAIL_COLUMN);
    text.push_str(&detail);
    notes::wrap(text, &check.evidence, DETAIL_COLUMN, width);
    let lead = match figures.saves_s {
        saves if saves > 0.0 => format!("saves about {} s", shown(saves)),
        _ => "to change it".to_owned(),
    };
    for remedy in &check.remedies {
        // Not wrapped: it is to be copied.
        let _ = writeln!(text, "{detail}{lead}: {remedy}");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use folio_doctor::Certainty;

    /// A report in which each name is `words`.
    pub(in super::super) fn report_of(words: &str) -> WorkloadReport {
        let file = || FileReport {
            path: words.to_owned(),
            mount_point: words.to_owned(),
            fs_type: words.to_owned(),
            part: Part::Fsync,
            calls: 20,
            bytes: 4096,
            wait_s: 0.5,
            cost_s: 0.5,
        };
        let numbers = [("cost_s", 1.0), ("share_percent", 50.0), ("saves_s", 0.9)];
        let check = Check {
            layer: "file-system",
            cause: "fsync-waits",
            verdict: Verdict::Fault,
            certainty: Some(Certainty::Certain),
            says: words.to_owned(),
            evidence: words.to_owned(),
            numbers: numbers
                .map(|(name, value)| (name.to_owned(), value.into()))
                .into_iter()
                .collect(),
            remedies: vec![format!("{words}  # {words}")],
            cure: None,
            trial: None,
        };
        WorkloadReport {
            command: vec![words.to_owned(); 2],
            pid: None,
            recorder: Recorder::Preload,
            exit_code: Some(0),
            signal: None,
            wall_s: 2.0,
            parts: vec![PartReport {
                part: Part::Fsync,
                seconds: 2.0,
                percent: 100.0,
            }],
            processes: 1,
            dropped_records: 1,
            unreached: vec![Unreached {
                program: words.to_owned(),
                seconds: 0.1,
            }],
            unanswered: vec![words.to_owned()],
            costs: Vec::new(),
            files: vec![file(), file()],
            checks: vec![check],
            timeline: Timeline::default(),
            status: None,
        }
    }

    #[test]
    fn files_are_listed_if_there_are_several() {
        let mut report = report_of("/srv/a");
        let lines = |report: &WorkloadReport| format(report, 80, false).lines().count();
        let all = lines(&report);
        report.files.truncate(1);
        assert_eq!(lines(&report), all - 3);
    }
}
