//! `-U`: reading an image that another program uses.

use crate::session::Session;
use clap::Args;

/// The option of commands that read images.
#[derive(Args)]
pub(crate) struct ForceShare {
    /// Read an image even if another program writes it; what changes meanwhile may appear as errors
    #[arg(short = 'U', long)]
    force_share: bool,
}

impl ForceShare {
    /// Whether the option is given.
    pub(crate) fn is_given(&self) -> bool {
        self.force_share
    }

    /// Opens all images for reading without their locks from now on, if the option is given.
    pub(crate) fn apply(&self, session: &Session) {
        if self.force_share {
            session.share_images();
        }
    }
}
