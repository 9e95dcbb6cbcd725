//! `folio image commit`: writes the data of an overlay into its backing file.

use super::overlay::OverlayArgs;
use crate::exit::Outcome;
use crate::session::Session;
use clap::Args;
use folio::block::{self, AfterCommit};
use std::io::Write;

const AFTER_HELP: &str = "\
Writes all data of the image into its backing file, then empties the image; with -d the image keeps its data. Other
images on the same backing file read different data afterwards.

Examples:
  folio image commit overlay.qcow2
  folio image commit -d overlay.qcow2";

/// Write the data of an image into its backing file
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Commit {
    /// Do not empty the image
    #[arg(short = 'd')]
    keep: bool,
    #[command(flatten)]
    overlay: OverlayArgs,
}

/// Runs the command.
pub(crate) fn run(commit: &Commit, session: &Session) -> Outcome {
    let then = if commit.keep {
        AfterCommit::Keep
    } else {
        AfterCommit::Empty
    };
    let overlay = &commit.overlay;
    overlay.run(session, &|path, options| block::commit(path, then, options))?;
    if !session.quiet {
        writeln!(std::io::stdout(), "Image committed.")?;
    }
    Ok(())
}
