//! `folio cache drop`: drops files from the kernel's page cache.

use crate::arguments::select::Select;
use crate::exit::Outcome;
use crate::output::{FailureRecord, PathRecord, counted, human};
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio_pagecache::{Dropped, ResidencyReport, UnknownReason, drop_files};
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

const EXAMPLES: &str = "\
Examples:
  folio cache drop /var/backups                    after a backup has read them
  folio cache drop --sync /srv/index               write dirty pages first
  folio cache drop --include '*.log' /var/log

No data is lost: dirty pages stay in memory, and so do pages that a program has mapped, locked or in use.";
/// Maximum number of files listed that are still in memory.
const NAMED: usize = 20;

/// Drop files from the page cache
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Drop {
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Write dirty pages first (fdatasync), so that they can be dropped too
    #[arg(long)]
    sync: bool,
    #[command(flatten)]
    select: Select,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DropReport {
    /// Files.
    files: u64,
    /// Dropped files whose residency is unknown.
    unknown_files: u64,
    /// Their size.
    size_bytes: u64,
    /// In memory before.
    resident_before_bytes: u64,
    /// Dropped.
    dropped_bytes: u64,
    /// Still in memory.
    stayed_bytes: u64,
    /// FIFOs, sockets and devices, which are not opened.
    not_regular: u64,
    stayed: Vec<StillCached>,
    /// Paths that could not be examined.
    failures: Vec<FailureRecord>,
}

/// A file that is partly still in memory.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StillCached {
    #[serde(flatten)]
    path: PathRecord,
    /// Still in memory.
    resident_bytes: u64,
    #[cfg_attr(test, schemars(extend("enum" = ["not-written", "in-use"])))]
    reason: &'static str,
}

/// Runs the command.
pub(super) fn run(drop: &Drop, session: &Session) -> Outcome {
    let scan = drop.select.scan(session)?;
    let bar = Progress::counting(session);
    let seen = AtomicU64::new(0);
    let all = bar.follow(&seen, || drop_files(&scan, &drop.paths, drop.sync, &seen));
    session.check_interrupt()?;
    all.failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    let mut report = DropReport {
        not_regular: all.special,
        failures: FailureRecord::list(&all.failures),
        ..DropReport::default()
    };
    let mut ids = HashSet::new();
    for file in all.found.iter().filter(|file| ids.insert(file.after.id)) {
        report.add(file);
    }
    report
        .stayed
        .sort_by_key(|stayed| std::cmp::Reverse(stayed.resident_bytes));
    if drop.json {
        session.print_json(&report)
    } else {
        report.print(drop.sync)
    }
}

impl DropReport {
    fn add(&mut self, file: &Dropped) {
        self.files += 1;
        self.size_bytes += file.after.size_bytes;
        let (ResidencyReport::Known(before), Some(after)) = (file.before, file.after.residency())
        else {
            self.unknown_files += 1;
            return;
        };
        self.resident_before_bytes += before.resident_bytes;
        self.dropped_bytes += before.resident_bytes.saturating_sub(after.resident_bytes);
        self.stayed_bytes += after.resident_bytes;
        if after.resident_bytes > 0 {
            let unwritten = after.dirty_bytes.unwrap_or(0) + after.writeback_bytes.unwrap_or(0);
            let reason = if unwritten > 0 {
                "not-written"
            } else {
                "in-use"
            };
            let path = PathRecord::new(&file.after.path);
            self.stayed.push(StillCached {
                path,
                resident_bytes: after.resident_bytes,
                reason,
            });
        }
    }

    fn print(&self, is_synced: bool) -> Outcome {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        let (before, dropped) = (human(self.resident_before_bytes), human(self.dropped_bytes));
        write!(
            out,
            "{}, {before} in memory: {dropped} dropped",
            counted(self.files, "file")
        )?;
        match self.stayed_bytes {
            0 => writeln!(out)?,
            bytes => writeln!(out, ", {} stayed", human(bytes))?,
        }
        for stayed in self.stayed.iter().take(NAMED) {
            let reason = match stayed.reason {
                "not-written" if is_synced => "modified again meanwhile",
                "not-written" => "dirty; use --sync to write it first",
                _ => "mapped, locked or in use by a program",
            };
            writeln!(
                out,
                "{:>7}  {} ({reason})",
                human(stayed.resident_bytes),
                stayed.path.text()
            )?;
        }
        if self.stayed.len() > NAMED {
            writeln!(
                out,
                "         and {} more",
                counted((self.stayed.len() - NAMED) as u64, "file")
            )?;
        }
        if self.unknown_files > 0 {
            writeln!(
                out,
                "{} dropped; residency unknown: {}",
                counted(self.unknown_files, "file"),
                UnknownReason::Rights
            )?;
        }
        Ok(out.flush()?)
    }
}
