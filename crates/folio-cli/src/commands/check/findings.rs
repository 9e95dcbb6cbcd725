//! Findings of a check, printed as they occur or collected for JSON, and its progress.

use crate::output::color::{self, FAILURE, WARNING, paint};
use crate::session::Session;
use folio::ext4::{CheckFinding, CheckListener, CheckPhase, Severity};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;

/// A finding, as JSON.
#[derive(Serialize)]
pub(super) struct FindingRecord {
    pub(super) severity: &'static str,
    pub(super) structure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block: Option<u64>,
    pub(super) message: String,
}

/// Prints findings as they occur, or collects them for JSON; updates the progress bar.
pub(super) struct FindingPrinter<'a> {
    session: &'a Session,
    pub(super) bar: Option<ProgressBar>,
    pub(super) lines: Option<Vec<FindingRecord>>,
    /// The first failure to write to standard output.
    pub(super) failed: Option<std::io::Error>,
}

impl<'a> FindingPrinter<'a> {
    pub(super) fn new(session: &'a Session, is_json: bool) -> Self {
        Self {
            session,
            bar: bar(session),
            lines: is_json.then(Vec::new),
            failed: None,
        }
    }

    /// Prints a finding that reads `text`, or keeps its record.
    pub(super) fn add(&mut self, severity: Severity, record: FindingRecord, text: &dyn Display) {
        if let Some(lines) = &mut self.lines {
            return lines.push(record);
        }
        if self.session.quiet && severity == Severity::Warning {
            return;
        }
        let style = if severity == Severity::Warning {
            WARNING
        } else {
            FAILURE
        };
        let severity = paint(color::on_stdout(), style, severity.name());
        let text = format!("{severity}: {text}");
        let written = self
            .session
            .screen
            .suspend(|| writeln!(std::io::stdout(), "{text}"));
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    /// Shows progress; returns whether to go on.
    pub(super) fn show(&self, phase: &'static str, done: u64, total: u64) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            bar.set_message(phase);
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

impl CheckListener for FindingPrinter<'_> {
    fn finding(&mut self, finding: &CheckFinding) {
        let record = FindingRecord {
            severity: finding.severity.name(),
            structure: finding.structure.name(),
            group: finding.location.group,
            inode: finding.location.inode.map(u64::from),
            block: finding.location.block,
            message: finding.what.clone(),
        };
        self.add(finding.severity, record, finding);
    }

    fn progress(&mut self, phase: CheckPhase, done: u64, total: u64) -> ControlFlow<()> {
        self.show(phase.name(), done, total)
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
