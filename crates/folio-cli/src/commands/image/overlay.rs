//! Parts that `folio image rebase` and `folio image commit` share.

use crate::arguments::image_options::{BackingOptions, CacheMode, image_failure};
use crate::exit::Outcome;
use crate::image_name::NameOptions;
use crate::progress::Progress;
use crate::session::Session;
use crate::value_parsers::image_format;
use clap::Args;
use folio::block::tools::OverlayOptions;
use folio::block::{self, ImageFormat, OpenOptions};
use folio::{Errno, Error};
use std::path::{Path, PathBuf};

/// Options of commands that work on an overlay and its backing files.
#[derive(Args)]
pub(super) struct OverlayArgs {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    pub(super) file: PathBuf,
    /// Format of the image; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = image_format())]
    format: Option<ImageFormat>,
    /// Show progress, which a terminal does in any case
    #[arg(short = 'p')]
    progress: bool,
    /// Accepted without effect: the result is on the disk at the end
    #[arg(short = 't', value_name = "CACHE", hide = true)]
    cache_mode: Option<CacheMode>,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

impl OverlayArgs {
    /// Runs `work` on the image, with a progress bar, until it ends or Ctrl-C is pressed.
    pub(super) fn run(
        &self,
        session: &Session,
        work: &dyn Fn(&Path, &OverlayOptions<'_>) -> Result<(), Error>,
    ) -> Outcome {
        session.check_interrupt()?;
        let named = self.name.resolve(&self.file, self.format)?;
        let progress = Progress::requested(session, self.progress);
        if let Ok(info) = block::tools::info(&named.path, &OpenOptions::default()) {
            progress.expect(info.len_bytes);
        }
        let options = OverlayOptions {
            format: named.format,
            policy: self.backing.policy(),
            is_canceled: &|| session.is_interrupted(),
            progress: &|len_bytes| progress.add(len_bytes),
        };
        let done = work(&named.path, &options);
        progress.finish();
        match done {
            Ok(()) => {
                progress.complete();
                Ok(())
            }
            Err(error) if error.errno() == Errno::INTR => session.check_interrupt(),
            other => other.map_err(|error| image_failure(error, &named.path)),
        }
    }
}
