//! `folio check`: checks the file system in an image.

use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::output::color::{self, FAILURE, WARNING, paint};
use crate::output::{human, print_json};
use crate::session::{Session, clock};
use crate::value_parsers::size;
use clap::Args;
use folio::block::{self, Device};
use folio::kernel::{
    CheckFinding, CheckListener, CheckOptions, CheckPhase, CheckReport, Severity, check_ext4,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const AFTER_HELP: &str = "\
The check writes nothing and repairs nothing; use e2fsck -f to repair.

A journal with transactions is replayed in memory first, so that the check sees what a mount would see. With
--no-replay the check reads the image as it is, like e2fsck -fn; it may then report errors that a mount would repair.

Exit codes, as e2fsck's:
  0    no errors (there may be warnings)
  4    errors, not repaired
  8    the check failed to run: not an ext4, an unknown feature, or an unusable image
  16   usage error

Examples:
  folio check disk.img
  folio check --json disk.qcow2@2
  folio check --quiet disk.img && echo clean";

/// Check all structures of a file system, read-only
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Check {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Ignore the journal and check the image as it is
    #[arg(long)]
    no_replay: bool,
    /// Print at most this many findings; the rest are only counted
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = size)]
    findings: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A finding, as JSON.
#[derive(Serialize)]
struct FindingRecord {
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

/// Prints findings as they occur, or collects them for JSON; updates the progress bar.
struct FindingPrinter<'a> {
    session: &'a Session,
    bar: Option<ProgressBar>,
    lines: Option<Vec<FindingRecord>>,
    /// The first failure to write to standard output.
    failed: Option<std::io::Error>,
}

impl CheckListener for FindingPrinter<'_> {
    fn finding(&mut self, finding: &CheckFinding) {
        if let Some(lines) = &mut self.lines {
            return lines.push(FindingRecord {
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
        if self.session.is_interrupted() || self.failed.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
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
        .and_then(|place| {
            if place.path.as_os_str() == "/" {
                Ok(place)
            } else {
                Err(Failure::usage(format!(
                    "{place}: the check covers a whole file system; omit the path"
                )))
            }
        })
        .map_err(|failure| Failure {
            exit: Exit::CheckUsage,
            ..failure
        })?;
    let device = open_device(&place.image, Access::Read).map_err(not_checked)?;
    let name = place.image_name();
    let device = selected(device, place.partition)
        .map_err(|error| not_checked(Failure::image(&error.at(name.clone()))))?;
    let options = CheckOptions {
        replays_journal: !check.no_replay,
        findings_max: usize::try_from(check.findings).unwrap_or(usize::MAX),
        clock: clock(),
    };
    let mut printer = FindingPrinter {
        session,
        bar: bar(session),
        lines: check.json.then(Vec::new),
        failed: None,
    };
    let checked = check_ext4(&device, &options, &mut printer);
    if let Some(bar) = &printer.bar {
        bar.finish_and_clear();
    }
    if let Some(error) = printer.failed {
        return Err(error.into());
    }
    session.refuse_options()?;
    session.check_interrupt()?;
    let report = checked.map_err(|error| not_checked(Failure::image(&error.at(name.clone()))))?;
    match printer.lines {
        Some(lines) => print_json(&to_json(&name, &report, &lines))?,
        None if !session.quiet => writeln!(std::io::stdout(), "{name}: {}", summary(&report))?,
        None => {}
    }
    if report.is_clean() {
        Ok(())
    } else {
        Err(Failure {
            exit: Exit::ErrorsLeft,
            message: String::new(),
        })
    }
}

/// Returns the device to check: the whole disk, too, if it has neither a superblock nor partitions.
/// A backup of the superblock may still be intact.
fn selected(disk: Arc<dyn Device>, partition: Option<u32>) -> folio::Result<Arc<dyn Device>> {
    let is_bare =
        partition.is_none() && !block::holds_ext4(&*disk)? && block::partitions(&*disk)?.is_empty();
    if is_bare {
        Ok(disk)
    } else {
        block::select(disk, partition)
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

fn to_json(image: &str, report: &CheckReport, findings: &[FindingRecord]) -> Value {
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
        (errors, true) => format!("{}; run e2fsck -f to repair", count(errors, "error")),
        (errors, false) => format!(
            "{}; the check stopped early; run e2fsck -f",
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
