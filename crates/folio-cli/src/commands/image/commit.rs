//! `folio image commit`: writes the data of an overlay into a backing file.

use super::overlay::OverlayArgs;
use crate::exit::Outcome;
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::block;
use folio::block::tools::{AfterCommit, CommitOptions};
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Writes all data of the image into its backing file, then empties the image; with -d the image keeps its data. With -b
the data goes into an image further below, with the data of the images between, and the image keeps its data. Other
images on the same backing file read different data afterwards.

Examples:
  folio image commit overlay.qcow2
  folio image commit -d overlay.qcow2
  folio image commit -b base.qcow2 top.qcow2";

/// Write the data of an image into its backing file
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Commit {
    /// Do not empty the image
    #[arg(short = 'd')]
    keep: bool,
    /// The image of the chain to write to; the default is the backing file
    #[arg(short = 'b', value_name = "BASE", value_parser = crate::image_name::value_parser())]
    base: Option<PathBuf>,
    /// Largest number of bytes to copy in a second; 0 for any
    #[arg(short = 'r', long, value_name = "RATE", value_parser = size, default_value_t = 0, hide_default_value = true)]
    rate_limit: u64,
    #[command(flatten)]
    overlay: OverlayArgs,
}

/// Runs the command.
pub(crate) fn run(commit: &Commit, session: &Session) -> Outcome {
    let mut what = CommitOptions::default();
    what.then = if commit.keep {
        AfterCommit::Keep
    } else {
        AfterCommit::Empty
    };
    what.base = commit.base.clone();
    what.bytes_per_sec = commit.rate_limit;
    let overlay = &commit.overlay;
    overlay.run(session, &|path, options| {
        block::tools::commit(path, &what, options)
    })?;
    if !session.quiet {
        writeln!(std::io::stdout(), "Image committed.")?;
    }
    Ok(())
}
