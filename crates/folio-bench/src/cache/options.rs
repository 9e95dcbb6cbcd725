//! Options of the scenario `cache`, and the sizes of its files.

use std::path::PathBuf;

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Size of the file that is read and written, at least 1M [default: 64M]
    #[arg(long, value_parser = size)]
    pub(crate) set_bytes: Option<u64>,
    /// Size of the file whose pages are read at random in a job of their own [default: 4G]
    #[arg(long, value_parser = size)]
    pub(crate) large_set: Option<u64>,
    /// Size of the file that is read cold [default: 1G]
    #[arg(long, value_parser = size)]
    pub(crate) cold_bytes: Option<u64>,
    /// Only the jobs whose name contains this
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// A folder on a disk; without it, the system's folder for temporary files
    #[arg(long)]
    pub(crate) disk_dir: Option<PathBuf>,
    /// Milliseconds that one measurement lasts at least [default: 30]
    #[arg(long)]
    pub(crate) least_ms: Option<u64>,
}

impl Options {
    /// Returns whether the options select this job.
    pub(crate) fn wants(&self, job: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| job.contains(only.as_str()))
    }
}

/// Sizes of the files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadSize {
    pub(crate) set_bytes: u64,
    pub(crate) large_set: u64,
    pub(crate) cold_bytes: u64,
}

/// A number of bytes: 64M, 4G.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size::Config::new()
        .with_binary()
        .parse_size(text)
        .map_err(|error| error.to_string())?;
    if bytes < 1 << 20 {
        Err("at least 1M".to_owned())
    } else {
        Ok(bytes)
    }
}
