//! `folio image rebase` and `commit`: overlays and their backing files.

use super::words::{Backing, failed};
use crate::exit::Outcome;
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio::block::{self, BackingName, Committed, ImageFormat, OverlayOptions};
use folio::{Errno, Error};
use std::io::Write;
use std::path::{Path, PathBuf};

const REBASE_HELP: &str = "\
The image reads as before: what the old and the new backing file do not have in common is copied into it first. With -u
only the name is changed, which is right for a file that was moved, and no backing file is opened.

Examples:
  folio image rebase -b new-base.qcow2 -F qcow2 overlay.qcow2
  folio image rebase -b \"\" overlay.qcow2                       stands alone
  folio image rebase -u -b moved/base.raw -F raw overlay.qcow2";

const COMMIT_HELP: &str = "\
The backing file gets all that the image holds, and the image is empty then; with -d it stays as it is. Other images on
the same backing file read something else afterwards.

Examples:
  folio image commit overlay.qcow2
  folio image commit -d overlay.qcow2";

/// Put another backing file under an image
#[derive(Args)]
#[command(after_help = REBASE_HELP)]
pub(crate) struct Rebase {
    /// The image
    file: PathBuf,
    /// Name of the new backing file, written as it is: a relative one counts from the image's
    /// folder; "" for none
    #[arg(short = 'b', value_name = "NAME")]
    name: String,
    /// Format of the new backing file
    #[arg(short = 'F', value_name = "FORMAT", value_parser = crate::args::format())]
    backing_format: Option<ImageFormat>,
    /// Change the name only
    #[arg(short = 'u')]
    rename_only: bool,
    /// Format of the image; found by its first bytes if not given
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::args::format())]
    format: Option<ImageFormat>,
    /// Show progress; on a terminal it is shown anyway
    #[arg(short = 'p')]
    progress: bool,
    #[command(flatten)]
    backing: Backing,
}

/// Write what an image holds into its backing file
#[derive(Args)]
#[command(after_help = COMMIT_HELP)]
pub(crate) struct Commit {
    /// The image
    file: PathBuf,
    /// Do not empty the image
    #[arg(short = 'd')]
    keep: bool,
    /// Format of the image; found by its first bytes if not given
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::args::format())]
    format: Option<ImageFormat>,
    /// Show progress; on a terminal it is shown anyway
    #[arg(short = 'p')]
    progress: bool,
    #[command(flatten)]
    backing: Backing,
}

/// Runs `rebase`.
pub(crate) fn rebase(rebase: &Rebase, session: &Session) -> Outcome {
    let name = (!rebase.name.is_empty()).then(|| BackingName {
        name: rebase.name.clone(),
        format: rebase.backing_format,
    });
    let path = &rebase.file;
    work(
        session,
        path,
        rebase.format,
        &rebase.backing,
        &|options| match rebase.rename_only {
            true => block::rename_backing(path, name.as_ref(), options),
            false => block::rebase(path, name.as_ref(), options),
        },
    )
}

/// Runs `commit`.
pub(crate) fn commit(commit: &Commit, session: &Session) -> Outcome {
    let then = if commit.keep {
        Committed::Kept
    } else {
        Committed::Emptied
    };
    let path = &commit.file;
    work(session, path, commit.format, &commit.backing, &|options| {
        block::commit(path, then, options)
    })?;
    if !session.quiet {
        writeln!(std::io::stdout(), "Image committed.")?;
    }
    Ok(())
}

fn work(
    session: &Session,
    path: &Path,
    format: Option<ImageFormat>,
    backing: &Backing,
    run: &dyn Fn(&OverlayOptions<'_>) -> Result<(), Error>,
) -> Outcome {
    session.check_interrupt()?;
    let progress = Progress::new(session);
    let options = OverlayOptions {
        format,
        policy: backing.policy(),
        is_cancelled: &|| session.is_interrupted(),
        progress: &|len_bytes| progress.add(len_bytes),
    };
    let done = run(&options);
    progress.finish();
    match done {
        Err(error) if error.errno() == Errno::INTR => session.check_interrupt(),
        other => other.map_err(|error| failed(error, path)),
    }
}
