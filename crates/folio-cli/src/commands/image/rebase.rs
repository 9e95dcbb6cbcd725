//! `folio image rebase`: replaces the backing file of an overlay.

use super::overlay::OverlayArgs;
use crate::arguments::image_options::SourceCacheOptions;
use crate::exit::{Failure, Outcome};
use crate::session::Session;
use crate::value_parsers::image_format;
use clap::Args;
use folio::block::{self, BackingName, ImageFormat};

const AFTER_HELP: &str = "\
The content of the image stays the same: data in which the old and the new backing file differ is copied into the image
first. With -u only the name changes, and no backing file is opened; use it for a backing file that was moved.

Examples:
  folio image rebase -b new-base.qcow2 -F qcow2 overlay.qcow2
  folio image rebase -b \"\" overlay.qcow2                       no backing file
  folio image rebase -u -b moved/base.raw -F raw overlay.qcow2";

/// Replace the backing file of an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Rebase {
    /// Name of the new backing file, stored as given: a relative name is relative to the image's
    /// directory; "" for none
    #[arg(short = 'b', value_name = "NAME")]
    name: String,
    /// Format of the new backing file
    #[arg(short = 'F', value_name = "FORMAT", value_parser = image_format())]
    backing_format: Option<ImageFormat>,
    /// Change only the name
    #[arg(short = 'u')]
    rename_only: bool,
    /// Accepted without effect: the image must not be in use
    #[arg(short = 'U', long, hide = true)]
    force_share: bool,
    #[command(flatten)]
    source_cache: SourceCacheOptions,
    #[command(flatten)]
    overlay: OverlayArgs,
}

/// Runs the command.
pub(crate) fn run(rebase: &Rebase, session: &Session) -> Outcome {
    let name = (!rebase.name.is_empty()).then(|| BackingName {
        name: rebase.name.clone(),
        format: rebase.backing_format,
    });
    if session.is_qemu_img() && name.as_ref().is_some_and(|name| name.format.is_none()) {
        return Err(Failure::usage(format!(
            "Could not change the backing file to '{}': backing format must be specified",
            rebase.name
        )));
    }
    rebase.overlay.run(session, &|path, options| {
        if rebase.rename_only {
            block::tools::rename_backing(path, name.as_ref(), options)
        } else {
            block::tools::rebase(path, name.as_ref(), options)
        }
    })
}
