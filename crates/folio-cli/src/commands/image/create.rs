//! `folio image create`: a new image that reads as zeros.

use super::words::failed;
use crate::args::size;
use crate::exit::Outcome;
use crate::session::Session;
use clap::Args;
use folio::block::{self, ImageFormat};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  folio image create -f qcow2 disk.qcow2 10G";

/// Make an image
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Create {
    /// The image; it must not exist
    file: PathBuf,
    /// Size of the disk
    #[arg(value_parser = size)]
    size: u64,
    /// Format
    #[arg(short, long, default_value = "raw")]
    format: ImageFormat,
}

/// Runs the command.
pub(crate) fn run(create: &Create, session: &Session) -> Outcome {
    session.check_interrupt()?;
    block::create(&create.file, create.format, create.size)
        .map(drop)
        .map_err(|error| failed(error, &create.file))
}
