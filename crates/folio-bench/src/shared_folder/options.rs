//! Options of the scenario `shared-folder`, its name and its number of rounds.

use std::path::PathBuf;

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Parent of the shared folder; cold reads need a disk
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Only contenders whose name has this in it, and the native one
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// In a virtual machine (QEMU), through virtiofs, beside virtiofsd
    #[arg(long)]
    pub(crate) guest: bool,
    /// The virtiofsd to measure; without it, the one that is installed
    #[arg(long, requires = "guest")]
    pub(crate) virtiofsd: Option<PathBuf>,
}

/// The scenario.
pub(super) const NAME: &str = "shared-folder";
pub(super) const ROUNDS: u32 = 5;
