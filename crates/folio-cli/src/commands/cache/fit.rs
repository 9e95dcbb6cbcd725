//! `folio cache fit`: measures how much page cache a workload needs.

use crate::exit::{Failure, Outcome};
use crate::output::color::heading;
use crate::output::{ReportFile, human};
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio_pagecache::{Fit as Measurement, FitReport, Method, Need, Point, Workload, fit_svg};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  folio cache fit -- ./server --data /srv         start a program, measure it, end it
  folio cache fit --pid 812 --for 2m              a running process and its descendants
  folio cache fit --cgroup system.slice/db.service --svg db.svg
  folio cache fit --pid $(docker inspect -f '{{.State.Pid}}' web)

The command lowers the memory of a control group step by step until refaults exceed the limit, then restores it. The
workload is slower meanwhile. This needs root, or a delegated control group:
  systemd-run --user --scope -p Delegate=yes folio cache fit -- COMMAND
Without it, the result is an estimate from the residency of open files.";

/// Measure how much page cache a workload needs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Fit {
    /// Command to start and measure; its output goes to standard error, and SIGTERM ends it
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present_any = ["pid", "cgroup"],
        conflicts_with_all = ["pid", "cgroup"]
    )]
    command: Vec<OsString>,
    /// Measure a running process and its descendants
    #[arg(long, value_name = "PID", conflicts_with = "cgroup")]
    pid: Option<u32>,
    /// Measure a control group: its folder, or its path below the mount
    #[arg(long, value_name = "PATH", conflicts_with = "estimate")]
    cgroup: Option<PathBuf>,
    /// Maximum duration, such as 30s or 2m
    #[arg(long = "for", value_name = "TIME", value_parser = crate::value_parsers::measured_time, default_value = "30s")]
    duration: Duration,
    /// Permitted refaults: pages per second that are read again after their eviction
    #[arg(long, value_name = "REFAULTS_PER_S", value_parser = rate, default_value = "100")]
    limit: f64,
    /// Limit nothing: estimate from the residency of open files
    #[arg(long)]
    estimate: bool,
    /// In an estimate: drop the open files from memory first, for a complete curve
    #[arg(long, conflicts_with = "cgroup")]
    cold: bool,
    /// Write the curve as an SVG image to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FitOutput {
    /// Whether the result is an estimate, because memory was not limited.
    is_estimate: bool,
    /// Why it is an estimate; null if it is none.
    estimate_reason: Option<String>,
    method: Method,
    /// The folder of the control group that was limited; null in an estimate.
    cgroup: Option<String>,
    /// Permitted refaults per second.
    limit_per_s: f64,
    /// Meaning of needed_bytes.
    #[cfg_attr(test, schemars(extend("enum" = ["about", "at-most", "more-than", "unknown"])))]
    bound: &'static str,
    #[serde(skip)]
    need: Need,
    /// The page cache that the workload needs; null if unknown.
    needed_bytes: Option<u64>,
    /// Largest memory of the control group beside the page cache; 0 in an estimate.
    other_bytes: u64,
    /// Sum of both, for memory.high or the limit of a container; null in an estimate.
    limit_bytes: Option<u64>,
    /// Open files whose pages belong to other control groups, and were not limited.
    outside_bytes: u64,
    /// Whether the workload ended before the measurement.
    has_ended_early: bool,
    /// Duration.
    seconds: f64,
    /// The curve, in the order of memory.
    points: Vec<Point>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=1e9).contains(&rate) => Ok(rate),
        _ => Err(format!(
            "invalid rate {text:?}: expected pages per second from 0.1 to 1000000000 (e.g. 100)"
        )),
    }
}

/// Runs the command.
pub(super) fn run(command: &Fit, session: &Session) -> Outcome {
    let workload = match (command.pid, &command.cgroup) {
        (Some(pid), _) => Workload::Process(pid),
        (None, Some(path)) => Workload::Group(path.clone()),
        (None, None) => Workload::Command(command.command.clone()),
    };
    let svg = command.svg.as_deref();
    let svg = svg
        .map(|path| ReportFile::open(path, "<svg "))
        .transpose()?;
    let stop = session.stop_flag();
    let bar = Progress::new(session);
    bar.step("warming up".into());
    let measurement = Measurement {
        limit_per_s: command.limit,
        duration: command.duration,
        is_estimate: command.estimate || command.cold,
        is_cold: command.cold,
        stop: &stop,
        each: &mut |point| {
            let (cache, misses) = (human(point.cache_bytes), point.misses_per_s);
            bar.step(format!("{cache}: {misses:.0} misses/s"));
        },
    };
    let report = measurement.run(&workload);
    bar.finish();
    let report = report.map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::interrupted(),
        _ => Failure::new(format!("{}{error}", command.subject())),
    })?;
    if let Some(svg) = svg {
        svg.write(&fit_svg(&report, command.limit))?;
    }
    let output = FitOutput::new(report, command.limit);
    if command.json {
        session.print_json(&output)
    } else {
        output.print(session)
    }
}

impl Fit {
    /// Returns the command for messages that do not name the workload.
    fn subject(&self) -> String {
        let program = self.command.first();
        program.map_or_else(String::new, |program| format!("{}: ", program.display()))
    }
}

impl FitOutput {
    fn new(report: FitReport, limit_per_s: f64) -> Self {
        let is_estimate = report.method == Method::Residency;
        let needed_bytes = report.need.bytes();
        Self {
            is_estimate,
            estimate_reason: report.estimate_reason,
            method: report.method,
            cgroup: report.group.map(|folder| folder.display().to_string()),
            limit_per_s,
            bound: match report.need {
                Need::About(_) => "about",
                Need::AtMost(_) => "at-most",
                Need::MoreThan(_) => "more-than",
                Need::Unknown => "unknown",
            },
            need: report.need,
            needed_bytes,
            other_bytes: report.other_bytes,
            limit_bytes: needed_bytes
                .filter(|_| !is_estimate)
                .map(|bytes| bytes + report.other_bytes),
            outside_bytes: report.outside_bytes,
            has_ended_early: report.has_ended_early,
            seconds: report.seconds,
            points: report.points,
        }
    }

    fn print(&self, session: &Session) -> Outcome {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        let titles = format!("{:>8} {:>10} {:>8}", "CACHE", "MISSES/S", "STALLED");
        writeln!(out, "{}", heading(titles))?;
        let shown = self.points.iter().map(|point| point.misses_per_s);
        let scale = shown
            .fold(0.0, f64::max)
            .min(5.0 * self.limit_per_s)
            .max(1.0);
        for point in &self.points {
            let share = (point.misses_per_s / scale).min(1.0);
            let bar = "#".repeat((share * 40.0).round() as usize);
            let (cache, misses) = (human(point.cache_bytes), point.misses_per_s);
            let stalled = if self.is_estimate {
                "?".to_owned()
            } else {
                format!("{:.1}%", point.stalled_percent)
            };
            let line = format!("{cache:>8} {misses:>10.1} {stalled:>8}  {bar}");
            writeln!(out, "{}", line.trim_end())?;
        }
        writeln!(out, "{}", self.verdict())?;
        if let Some(bytes) = self.limit_bytes {
            writeln!(
                out,
                "with {} of other memory: a limit of {} for the control group",
                human(self.other_bytes),
                human(bytes)
            )?;
        }
        out.flush()?;
        drop(out);
        if let Some(reason) = &self.estimate_reason {
            session.note(format_args!(
                "estimate from the residency of open files, memory was not limited: {reason}"
            ));
        }
        if self.outside_bytes > 0 {
            session.note(format_args!(
                "{} of open files belong to other control groups and were not limited: \
                 drop them first (folio cache drop FILE), then measure again",
                human(self.outside_bytes)
            ));
        }
        if self.has_ended_early {
            session.note(format_args!(
                "the workload ended after {:.1} s: smaller sizes were not tried",
                self.seconds
            ));
        }
        Ok(())
    }

    fn verdict(&self) -> String {
        let limit = self.limit_per_s;
        let kind = if self.is_estimate { " (estimate)" } else { "" };
        let misses = format!("{limit} misses/s{kind}");
        match self.need {
            Need::About(bytes) => {
                format!("needs {} of page cache for at most {misses}", human(bytes))
            }
            Need::AtMost(bytes) => {
                let size = human(bytes);
                format!(
                    "needs at most {size} of page cache: no smaller size had more than {misses}"
                )
            }
            Need::MoreThan(bytes) => {
                let size = human(bytes);
                format!("needs more than {size} of page cache: it had more than {misses}")
            }
            Need::Unknown => "the need is unknown".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed() {
        assert_eq!(rate("0.5"), Ok(0.5));
        rate("0").expect_err("never reached");
        rate("nan").expect_err("no number");
    }

    #[test]
    fn estimate_is_labeled_and_has_no_limit() {
        let report = FitReport {
            method: Method::Residency,
            estimate_reason: Some("requested".into()),
            group: None,
            need: Need::About(3 << 20),
            other_bytes: 0,
            outside_bytes: 0,
            has_ended_early: false,
            seconds: 2.0,
            points: Vec::new(),
        };
        let output = FitOutput::new(report, 10.0);
        assert!(output.is_estimate && output.limit_bytes.is_none());
        assert!(
            output.verdict().ends_with("(estimate)"),
            "{}",
            output.verdict()
        );
    }
}
