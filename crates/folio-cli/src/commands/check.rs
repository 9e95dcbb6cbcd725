//! `folio check`: is the file system in an image as it should be?

use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::output::color::{self, FAILURE, WARNING, paint};
use crate::output::{human, print_json};
use crate::session::{Session, clock};
use crate::value_parsers::size;
use clap::Args;
use folio::block;
use folio::kernel::{
    CheckFinding, CheckListener, CheckOptions, CheckPhase, CheckReport, Severity, check_ext4,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;

const AFTER_HELP: &str = "\
Nothing is written, and nothing is mended: that is the job of e2fsck -f.

A journal that holds something is replayed in memory first, and what a mount would find is checked. With --no-replay
what lies in the image is checked as it is, as e2fsck -fn does; then errors may show that a mount would mend.

Exit codes, as e2fsck's:
  0    no errors (warnings may be there)
  4    errors, which were left as they are
  8    it could not be checked: no ext4, an unknown feature, an image that cannot be used
  16   the command line makes no sense

Examples:
  folio check disk.img
  folio check --json disk.qcow2@2
  folio check --quiet disk.img && echo clean";

/// Check a file system, every structure of it, without writing
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Check {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Check what lies in the image, without what its journal holds
    #[arg(long)]
    no_replay: bool,
    /// Tell this many findings; the rest are counted
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = size)]
    findings: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A finding as JSON tells it.
#[derive(Serialize)]
struct Line {
    severity: &'static str,
    structure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    message: String,
}

/// Prints findings as they come, or gathers them for JSON; draws how far it is.
struct FindingPrinter<'a> {
    session: &'a Session,
    bar: Option<ProgressBar>,
    lines: Option<Vec<Line>>,
    /// The first failure of the standard output.
    failed: Option<std::io::Error>,
}

impl CheckListener for FindingPrinter<'_> {
    fn finding(&mut self, finding: &CheckFinding) {
        if let Some(lines) = &mut self.lines {
            return lines.push(Line {
                severity: finding.severity.name(),
                structure: finding.structure.name(),
                group: finding.location.group,
                inode: finding.location.inode,
                block: finding.location.block,
                message: finding.what.clone(),
            });
        }
        if self.session.quiet && finding.severity == Severity::Warning {
            return;
        }
        let style = if finding.severity == Severity::Warning {
            WARNING
        } else {
            FAILURE
        };
        let severity = paint(color::on_stdout(), style, finding.severity.name());
        let text = format!("{severity}: {finding}");
        let written = self
            .session
            .screen
            .suspend(|| writeln!(std::io::stdout(), "{text}"));
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    fn progress(&mut self, phase: CheckPhase, done: u64, total: u64) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            bar.set_message(phase.name());
            bar.set_length(total);
            bar.set_position(done);
        }
        match self.session.is_interrupted() || self.failed.is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Runs the command.
pub(crate) fn run(check: &Check, session: &Session) -> Outcome {
    let not_checked = |failure: Failure| Failure {
        exit: Exit::NotChecked,
        ..failure
    };
    let place = ImagePath::parse(&check.image)
        .and_then(|place| match place.path.as_os_str() == "/" {
            true => Ok(place),
            false => Err(Failure::usage(format!(
                "{place}: a whole file system is checked; leave the path out"
            ))),
        })
        .map_err(|failure| Failure {
            exit: Exit::CheckUsage,
            ..failure
        })?;
    let device = open_device(&place.image, Access::Read).map_err(not_checked)?;
    let name = place.image_name();
    let device = block::select(device, place.partition)
        .map_err(|error| not_checked(Failure::image(&error.at(name.clone()))))?;
    let options = CheckOptions {
        replays_journal: !check.no_replay,
        findings_max: usize::try_from(check.findings).unwrap_or(usize::MAX),
        clock: clock(),
    };
    let mut told = FindingPrinter {
        session,
        bar: bar(session),
        lines: check.json.then(Vec::new),
        failed: None,
    };
    let checked = check_ext4(&device, &options, &mut told);
    if let Some(bar) = &told.bar {
        bar.finish_and_clear();
    }
    if let Some(error) = told.failed {
        return Err(error.into());
    }
    session.refuse_options()?;
    session.check_interrupt()?;
    let report = checked.map_err(|error| not_checked(Failure::image(&error.at(name.clone()))))?;
    match told.lines {
        Some(lines) => print_json(&to_json(&name, &report, &lines))?,
        None if !session.quiet => writeln!(std::io::stdout(), "{name}: {}", summary(&report))?,
        None => {}
    }
    match report.is_clean() {
        true => Ok(()),
        false => Err(Failure {
            exit: Exit::ErrorsLeft,
            message: String::new(),
        }),
    }
}

fn bar(session: &Session) -> Option<ProgressBar> {
    if !session.shows_progress() {
        return None;
    }
    let bar = session.screen.add(ProgressBar::no_length());
    let style = ProgressStyle::with_template("{bar:30} {msg} {percent}%, {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(100));
    Some(bar)
}

fn to_json(image: &str, report: &CheckReport, findings: &[Line]) -> Value {
    json!({
        "image": image,
        "clean": report.is_clean(),
        "complete": report.is_complete,
        "errors": report.errors,
        "warnings": report.warnings,
        "findings": findings,
        "findings_untold": report.unreported,
        "replayed_transactions": report.replayed_transactions,
        "inodes": report.inode_count,
        "inodes_used": report.inodes_used,
        "directories": report.directories,
        "block_size": report.block_size,
        "blocks": report.block_count,
        "blocks_used": report.blocks_used,
    })
}

fn summary(report: &CheckReport) -> String {
    let count =
        |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = match (report.errors, report.is_complete) {
        (0, true) => "clean".to_owned(),
        (errors, true) => format!("{}; run e2fsck -f to mend them", count(errors, "error")),
        (errors, false) => format!(
            "{}; the check could not go on; run e2fsck -f",
            count(errors, "error")
        ),
    };
    if report.warnings > 0 {
        text.push_str(&format!(", {}", count(report.warnings, "warning")));
    }
    if report.unreported > 0 {
        text.push_str(&format!(", {} not shown", report.unreported));
    }
    if !report.is_complete {
        return text;
    }
    let bytes = |blocks: u64| human(blocks.saturating_mul(report.block_size.into()));
    let (used, all) = (bytes(report.blocks_used), bytes(report.block_count));
    let (inodes, directories) = (report.inodes_used, report.directories);
    format!("{text}; {inodes} inodes in use, {directories} directories, {used} of {all}")
}
