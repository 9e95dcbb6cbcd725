//! `folio fork`: a copy of an image in the time of a flush.

use crate::arguments::image_options::{BackingOptions, image_failure};
use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::Args;
use folio::Detail;
use folio::block::{Fork as Forked, ImageFormat, LiveImage, OpenOptions};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
On a host file system that clones files (btrfs, xfs) NEW is a clone. Elsewhere IMAGE must be qcow2: its file gets the
name disk.gen-1.qcow2, for IMAGE disk.qcow2, and IMAGE and NEW are overlays on it. Keep that generation, unchanged, as
long as one of them uses it. An image has at most 16 generations; folio image rebase -b \"\" IMAGE copies them into it.

No program may have the image open. After a power cut IMAGE is complete.

Examples:
  folio fork disk.qcow2 try.qcow2
  folio fork --json disk.qcow2 /srv/try.qcow2";

/// Copy an image at once, by sharing its present content
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Fork {
    /// The image
    image: PathBuf,
    /// The fork; it must not exist
    new: PathBuf,
    /// Format of the image; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    backing: BackingOptions,
}

/// Runs the command.
pub(crate) fn run(fork: &Fork, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let options = OpenOptions {
        format: fork.format,
        backing: fork.backing.policy(),
        ..OpenOptions::default()
    };
    let path = std::path::absolute(&fork.image)?;
    let image = LiveImage::open(&path, &options).map_err(|error| image_failure(error, &path))?;
    let forked = image.fork(&fork.new).map_err(|error| {
        // It names the image or the fork.
        Failure::image(error).hint(
            &Detail::TooManyGenerations,
            "; use folio image rebase -b \"\" for that",
        )
    })?;
    let (image, new) = (fork.image.display(), fork.new.display());
    if fork.json {
        let Forked {
            generation,
            generations,
            ..
        } = &forked;
        let generation = generation.as_ref().map(|path| path.display().to_string());
        session.print_json_alone(&json!({
            "image": image.to_string(),
            "fork": new.to_string(),
            "generation": generation,
            "generations": generations,
        }))?;
    } else if !session.quiet {
        let shared = forked.generation.as_ref().map_or_else(
            || "a clone of its file".to_owned(),
            |path| format!("both are overlays on {}", path.display()),
        );
        writeln!(std::io::stdout(), "{image}: forked to {new}, {shared}")?;
    }
    Ok(())
}
