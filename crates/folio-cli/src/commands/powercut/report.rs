//! The result of the checks, as text and JSON.

use super::cuts::{FailingCut, Judged};
use super::recording::{Call, Contender, Recording};
use crate::output::{color, counted, human, printable};
use folio::block::ImageFormat;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Reasons that are printed.
const REASONS_MAX: usize = 5;
/// Lost writes that are printed.
const LOST_MAX: usize = 8;
/// Changes before the cut that are printed.
const CALLS_MAX: usize = 4;

/// What was found.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PowercutReport {
    /// One run; one for each set of mount options with --compare, and for each call with a fault.
    pub(super) runs: Vec<RunReport>,
}

/// The power cuts of one run of the program.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RunReport {
    /// Whether the program ran on the kernel's ext4.
    kernel: bool,
    /// Format of the file that stores the disk: "raw" or "qcow2".
    format: &'static str,
    /// Mount options.
    options: String,
    /// The fault, such as eio@fsync:3; null without one.
    fault: Option<String>,
    /// How the program failed after the fault, such as "exit status: 1"; null if it succeeded.
    program_failure: Option<String>,
    /// Reason of the check on what the program left after the fault, without a power cut; null if
    /// it succeeded.
    failing_at_end: Option<String>,
    /// Duration of the program.
    run_seconds: f64,
    /// Writes and flushes of the disk's file, from the start of the program to the unmount.
    writes: u64,
    /// States that were checked.
    cuts: u64,
    /// Duration of the checks.
    seconds: f64,
    /// States in which the check failed.
    failing: u64,
    /// Reasons with the number of their states.
    reasons: BTreeMap<String, u64>,
    /// The first failing state, with fewer lost writes where these suffice; null without one.
    first: Option<FirstFailure>,
}

/// A failing state.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FirstFailure {
    /// Writes and flushes of the disk's file before the cut.
    write: u64,
    /// Time from the start of the program to the last change that had begun.
    at_seconds: f64,
    reason: String,
    /// The last changes that had begun, as system calls.
    calls: Vec<CallRecord>,
    /// The lost writes.
    lost: Vec<LostRecord>,
    /// The folder of --replay; null if the state was not saved.
    saved: Option<String>,
}

/// A change that the program made.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CallRecord {
    call: String,
    /// Whether it had not returned.
    in_progress: bool,
}

/// A write that the power cut lost.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostRecord {
    /// Its number.
    write: u64,
    /// Offset in the file.
    offset: u64,
    len_bytes: u64,
    /// Whether a part of its sectors survived.
    torn: bool,
}

impl RunReport {
    pub(super) fn new(
        format: ImageFormat,
        contender: &Contender,
        recording: &Recording,
        judged: &Judged,
        took: Duration,
    ) -> Self {
        let mut reasons = BTreeMap::new();
        for failing in &judged.failing {
            *reasons.entry(failing.reason.clone()).or_default() += 1;
        }
        Self {
            kernel: contender.is_kernel,
            format: format.name(),
            options: contender.options.clone(),
            fault: None,
            program_failure: None,
            failing_at_end: None,
            run_seconds: recording.run_time.as_secs_f64(),
            writes: recording.writes as u64,
            cuts: judged.cuts as u64,
            seconds: took.as_secs_f64(),
            failing: judged.failing.len() as u64,
            reasons,
            first: None,
        }
    }

    /// Adds the fault, and what the check found without a power cut.
    pub(super) fn add_fault(&mut self, recording: &Recording, failing_at_end: Option<String>) {
        self.fault = recording.fault.map(|fault| fault.to_string());
        self.program_failure = recording.failure.clone();
        self.failing_at_end = failing_at_end;
    }

    /// Adds the first failing state, which is saved in a folder.
    pub(super) fn add_first(
        &mut self,
        recording: &Recording,
        failing: &FailingCut,
        saved: Option<&Path>,
    ) {
        // On the kernel's ext4 they are those of its disk.
        let calls = if self.kernel {
            &[]
        } else {
            recording.calls_before(failing.write)
        };
        let in_progress = |call: &Call| call.end.is_none_or(|end| end > failing.write);
        let last = &calls[calls.len().saturating_sub(CALLS_MAX)..];
        let lost = failing.cut.lost();
        self.first = Some(FirstFailure {
            write: failing.write as u64,
            at_seconds: calls.last().map_or(0.0, |call| call.at.as_secs_f64()),
            reason: failing.reason.clone(),
            calls: last
                .iter()
                .map(|call| CallRecord {
                    call: call.text.clone(),
                    in_progress: in_progress(call),
                })
                .collect(),
            lost: lost
                .iter()
                .map(|lost| {
                    let range = lost.entry.range().unwrap_or_default();
                    LostRecord {
                        write: recording.write(lost.moment) as u64,
                        offset: range.start,
                        len_bytes: range.end - range.start,
                        torn: lost.is_torn,
                    }
                })
                .collect(),
            saved: saved.map(|folder| folder.display().to_string()),
        });
    }

    /// Returns whether a check failed.
    pub(super) fn has_failing(&self) -> bool {
        self.failing > 0 || self.failing_at_end.is_some()
    }

    /// Returns whether the first failing state can be replayed.
    pub(super) fn is_saved(&self) -> bool {
        let first = self.first.as_ref();
        first.is_some_and(|first| first.saved.is_some())
    }

    /// Prints the result, and the first failing state.
    pub(super) fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{} in {:.1} s: {} consistent, {} failed the check",
            counted(self.cuts, "power cut"),
            self.seconds,
            self.cuts - self.failing,
            self.failing
        )?;
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons.iter().take(REASONS_MAX) {
            writeln!(out, "  {count:>5}  {}", printable(reason))?;
        }
        if reasons.len() > REASONS_MAX {
            writeln!(out, "  and {} other reasons", reasons.len() - REASONS_MAX)?;
        }
        if let (Some(fault), Some(failure)) = (&self.fault, &self.program_failure) {
            writeln!(out, "{fault}: the program failed ({failure})")?;
        }
        if let Some(reason) = &self.failing_at_end {
            let also = if self.failing > 0 { "also " } else { "" };
            writeln!(out, "{also}without a power cut: {}", printable(reason))?;
        }
        self.first
            .iter()
            .try_for_each(|first| first.print(self, &mut out))
    }

    /// Prints a line of a table: options and fault, and the first reason.
    pub(super) fn print_row(&self) -> io::Result<()> {
        let kernel = self.kernel.then_some("kernel");
        let words = [kernel, Some(&*self.options), self.fault.as_deref()];
        let words: Vec<_> = words
            .into_iter()
            .flatten()
            .filter(|word| !word.is_empty())
            .collect();
        writeln!(
            io::stdout(),
            "{:<24} {:>8.2} s {:>8} {:>8} {:>8}  {}",
            words.join(" "),
            self.run_seconds,
            self.writes,
            self.cuts,
            self.failing,
            self.first_reason()
        )
    }

    /// Returns the reason of the first failing state, else of the one without a power cut.
    fn first_reason(&self) -> String {
        match (&self.first, &self.failing_at_end) {
            (Some(first), _) => printable(&first.reason),
            (None, Some(reason)) => format!("without a cut: {}", printable(reason)),
            (None, None) => String::new(),
        }
    }

    /// Prints the head of the table.
    pub(super) fn print_head() -> io::Result<()> {
        let head = format!(
            "{:<24} {:>10} {:>8} {:>8} {:>8}  {}",
            "options, fault", "run", "writes", "cuts", "failing", "first"
        );
        writeln!(io::stdout(), "{}", color::heading(head))
    }
}

impl FirstFailure {
    fn print(&self, run: &RunReport, out: &mut impl Write) -> io::Result<()> {
        let call = match self.calls.last() {
            // The calls on its file system are not seen.
            None if run.kernel => String::new(),
            None => ", before the first change".to_owned(),
            Some(call) => {
                let place = if call.in_progress { "inside" } else { "after" };
                format!(" ({:.2} s), {place} {}", self.at_seconds, call.call)
            }
        };
        writeln!(
            out,
            "first: after write {} of {}{}: {}",
            self.write,
            run.writes,
            printable(&call),
            printable(&self.reason)
        )?;
        for call in self.calls.iter().rev().skip(1) {
            writeln!(out, "  before that: {}", printable(&call.call))?;
        }
        let shown = self.lost.iter().take(LOST_MAX);
        for lost in shown {
            let part = if lost.torn { ", in part" } else { "" };
            writeln!(
                out,
                "  lost: write {}, {} at {}{part}",
                lost.write,
                human(lost.len_bytes),
                lost.offset
            )?;
        }
        match self.lost.len() {
            0 if run.fault.is_some() => {
                writeln!(
                    out,
                    "  lost: only what was in memory, or what a failed call left there"
                )?;
            }
            0 => writeln!(out, "  lost: only what was still in memory")?,
            count if count > LOST_MAX => {
                writeln!(out, "  lost: {} more writes", count - LOST_MAX)?;
            }
            _ => {}
        }
        match &self.saved {
            Some(folder) => writeln!(out, "reproduce: folio powercut --replay {folder}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_without_a_cut_shows_in_the_row() {
        let mut report = RunReport {
            kernel: false,
            format: "raw",
            options: String::new(),
            fault: Some("eio@fsync:1".to_owned()),
            program_failure: None,
            failing_at_end: None,
            run_seconds: 0.0,
            writes: 1,
            cuts: 1,
            seconds: 0.0,
            failing: 0,
            reasons: BTreeMap::new(),
            first: None,
        };
        assert_eq!((report.has_failing(), &*report.first_reason()), (false, ""));
        report.failing_at_end = Some("3 is lost".to_owned());
        assert!(report.has_failing());
        assert_eq!(report.first_reason(), "without a cut: 3 is lost");
    }
}
