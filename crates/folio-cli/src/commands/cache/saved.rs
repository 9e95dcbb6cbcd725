//! `folio cache save` and `folio cache restore`: the hot set of some files, kept over a restart.

use crate::commands::select::Select;
use crate::commands::warm::Engine;
use crate::exit::{Failure, Outcome};
use crate::output::{FailureRecord, human};
use crate::session::Session;
use clap::Args;
use folio_pagecache::{load, save_at};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

const SAVE_EXAMPLES: &str = "\
Examples:
  folio cache save /var/lib/folio/hot-set /var/lib/mysql /srv
  folio cache save --exclude '*.log' web.hot /srv/www

The file names the pages that are in memory, not what is in them: a few bytes for each run of pages. It takes the place
of an older one only when it is complete and on the disk. contrib/systemd has a pair of units that save at shutdown
and restore at boot.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  folio cache restore /var/lib/folio/hot-set
  folio cache restore --dry-run web.hot            how much of it is in memory
  folio cache restore --budget 30% web.hot

Files that are gone, or whose size or time of change is another one, are left out: what was hot in them says nothing
any more. Of the others the pages that were hot are read, and no more, in the order of their places on the disk where
the disk seeks, else by inode.";

/// Keep which pages of files are in memory
#[derive(Args)]
#[command(after_help = SAVE_EXAMPLES)]
pub(super) struct Save {
    /// Where to keep it
    file: PathBuf,
    /// Files and folders
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    select: Select,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bring back the pages that were kept
#[derive(Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(super) struct Restore {
    /// Where it was kept
    file: PathBuf,
    #[command(flatten)]
    engine: Engine,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Told {
    files: u64,
    hot_bytes: u64,
    file_bytes: u64,
    unknown_files: u64,
    not_regular: u64,
    seconds: f64,
    failures: Vec<FailureRecord>,
}

/// Runs `save`.
pub(super) fn save(command: &Save, session: &Session) -> Outcome {
    let start = Instant::now();
    let mut files = command.select.scan(session)?.files(&command.paths);
    session.check_interrupt()?;
    let place = |error: std::io::Error| {
        Failure::new(format!("{}: {}", command.file.display(), words(&error)))
    };
    let kept = save_at(&files.found, &command.file).map_err(place)?;
    files.failures.extend(kept.failures);
    files.failures.sort();
    files
        .failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    let told = Told {
        files: kept.files,
        hot_bytes: kept.bytes,
        file_bytes: std::fs::metadata(&command.file).map_or(0, |found| found.len()),
        unknown_files: kept.not_told,
        not_regular: files.special,
        seconds: start.elapsed().as_secs_f64(),
        failures: FailureRecord::list(&files.failures),
    };
    if command.json {
        return session.print_json(&told);
    }
    let mut out = std::io::stdout().lock();
    write!(
        out,
        "{} in memory of {}: kept",
        human(told.hot_bytes),
        crate::output::files(told.files)
    )?;
    write!(
        out,
        " in {} ({})",
        command.file.display(),
        human(told.file_bytes)
    )?;
    match told.unknown_files {
        0 => writeln!(out)?,
        count => writeln!(
            out,
            "; of {} the kernel does not tell",
            crate::output::files(count)
        )?,
    }
    Ok(out.flush()?)
}

/// Runs `restore`.
pub(super) fn restore(command: &Restore, session: &Session) -> Outcome {
    let place = |error: std::io::Error| {
        Failure::new(format!("{}: {}", command.file.display(), words(&error)))
    };
    let (files, kept) = File::open(&command.file).and_then(load).map_err(place)?;
    let (warmed, mut told) = command.engine.run(&files, session)?;
    warmed
        .failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    told.failures = FailureRecord::list(&warmed.failures);
    told.changed_files = kept.changed;
    told.tell(command.json, session)
}

fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
