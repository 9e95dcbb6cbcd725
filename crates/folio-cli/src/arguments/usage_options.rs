//! Options that `folio df` and `folio du` share.

use crate::output::human;
use clap::Args;

/// How sizes are printed. `-h` is taken, so help has only its long option.
#[derive(Args)]
pub(crate) struct UsageOptions {
    /// Print sizes like 1.5M; the default is units of 1024 bytes
    #[arg(short)]
    human: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl UsageOptions {
    /// Formats a size in bytes.
    pub(crate) fn size(&self, bytes: u64) -> String {
        if self.human {
            human(bytes)
        } else {
            bytes.div_ceil(1024).to_string()
        }
    }
}
