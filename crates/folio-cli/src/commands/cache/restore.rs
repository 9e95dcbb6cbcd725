//! `folio cache restore`: reads the pages of a saved hot set.

use crate::exit::{Failure, Outcome};
use crate::output::{FailureRecord, io_reason};
use crate::session::Session;
use crate::warm_engine::Engine;
use clap::Args;
use folio_pagecache::{Match, load};
use std::fs::File;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  folio cache restore /var/lib/folio/hot-set
  folio cache restore --dry-run web.hot            how much of it is in memory
  folio cache restore --budget 30% web.hot

Files that were removed or replaced are left out. Of a file that was written in place, as databases do, the pages up to
its present size are read; with --strict it is left out if its size or change time differs. Of each file only the hot pages are read, in the order of their places on the disk if the disk seeks, else
by inode.";

/// Read the pages of a saved hot set
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Restore {
    /// The file that folio cache save wrote
    file: PathBuf,
    /// Leave out files whose size or change time differs
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    engine: Engine,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &Restore, session: &Session) -> Outcome {
    let failed = |error: std::io::Error| {
        Failure::new(format!("{}: {}", command.file.display(), io_reason(&error)))
    };
    let rule = if command.strict {
        Match::Unchanged
    } else {
        Match::SameFile
    };
    let opened = File::open(&command.file);
    let (files, saved) = opened.and_then(|set| load(set, rule)).map_err(failed)?;
    let (warmed, mut report) = command.engine.run(&files.into(), session)?;
    warmed
        .failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    report.failures = FailureRecord::list(&warmed.failures);
    report.changed_files = saved.changed;
    report.print(command.json, session)
}
