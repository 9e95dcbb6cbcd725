//! `folio cache save`: saves which pages of files are in memory, for a restore after a restart.

use crate::arguments::select::Select;
use crate::exit::{Failure, Outcome};
use crate::output::{FailureRecord, human, io_reason};
use crate::session::Session;
use clap::Args;
use folio_pagecache::save_at;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  folio cache save /var/lib/folio/hot-set /var/lib/mysql /srv
  folio cache save --exclude '*.log' web.hot /srv/www

The file lists the pages in memory, not their contents: a few bytes for each run of pages. It replaces an older file
only when it is complete and on the disk, and no file but a hot set. An older one stays if a PATH cannot be read, or nothing is in memory. contrib/systemd has two units that save at shutdown and restore at boot.";

/// Save which pages of files are in memory
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Save {
    /// The file to write
    file: PathBuf,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    select: Select,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SaveReport {
    /// Files with pages in memory.
    files: u64,
    /// In bytes.
    hot_bytes: u64,
    /// Size of the saved file.
    file_bytes: u64,
    /// Files whose residency the kernel does not report.
    unknown_files: u64,
    /// FIFOs, sockets and devices.
    not_regular: u64,
    /// Duration.
    seconds: f64,
    /// Paths that could not be examined.
    failures: Vec<FailureRecord>,
}

/// Returns the failure of a save that left an older set as it was.
fn kept_older(file: &Path, why: &str) -> Failure {
    Failure::new(format!(
        "{}: not saved, the older hot set is kept: {why}; remove it to save anyway",
        file.display()
    ))
}

/// Runs the command.
pub(super) fn run(command: &Save, session: &Session) -> Outcome {
    let start = Instant::now();
    let mut files = command.select.scan(session)?.files(&command.paths);
    session.check_interrupt()?;
    let place = |error: std::io::Error| {
        Failure::new(format!("{}: {}", command.file.display(), io_reason(&error)))
    };
    let is_missing = |path: &PathBuf| files.failures.iter().any(|(failed, _)| failed == path);
    if command.file.exists() && command.paths.iter().any(is_missing) {
        let failures = files.failures.iter();
        failures.for_each(|(path, reason)| session.fail_on(path, reason));
        return Err(kept_older(&command.file, "a path cannot be read"));
    }
    let had_older = command.file.exists();
    let save = || save_at(&files.found, &command.file);
    let kept = session.until_interrupt(|| (), save).map_err(place)?;
    if had_older && kept.files == 0 {
        return Err(kept_older(
            &command.file,
            "nothing of the paths is in memory",
        ));
    }
    files.failures.extend(kept.failures);
    files.failures.sort();
    files
        .failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    let report = SaveReport {
        files: kept.files,
        hot_bytes: kept.bytes,
        file_bytes: std::fs::metadata(&command.file).map_or(0, |found| found.len()),
        unknown_files: kept.unknown,
        not_regular: files.special,
        seconds: start.elapsed().as_secs_f64(),
        failures: FailureRecord::list(&files.failures),
    };
    if command.json {
        return session.print_json(&report);
    }
    let mut out = std::io::stdout().lock();
    write!(
        out,
        "{} of {} in memory: saved",
        human(report.hot_bytes),
        crate::output::counted(report.files, "file")
    )?;
    write!(
        out,
        " in {} ({})",
        command.file.display(),
        human(report.file_bytes)
    )?;
    match report.unknown_files {
        0 => writeln!(out)?,
        count => writeln!(
            out,
            "; residency unknown for {}",
            crate::output::counted(count, "file")
        )?,
    }
    Ok(out.flush()?)
}
