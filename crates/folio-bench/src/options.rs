//! Options that several scenarios share.

use crate::race::Run;
use std::path::PathBuf;

/// Options of the scenarios of trees and images.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Folder for images and extracted trees; should be in memory
    #[arg(long, default_value = "/dev/shm")]
    pub(crate) dir: PathBuf,
    /// Size of the images in MiB; without it, as large as suits the scenario
    #[arg(long)]
    pub(crate) size_mib: Option<u64>,
}

/// The folder of scenarios that need a disk.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DiskDir {
    /// A folder on a real disk; without it, the system's folder for temporary files
    #[arg(long)]
    disk_dir: Option<PathBuf>,
}

impl DiskDir {
    /// Returns options with this folder.
    pub(crate) fn at(dir: PathBuf) -> Self {
        let disk_dir = Some(dir);
        Self { disk_dir }
    }

    /// Returns the folder.
    pub(crate) fn path(&self) -> PathBuf {
        self.disk_dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

/// Options of the scenarios of servers of disks.
#[derive(Debug, Clone, clap::Args)]
pub struct ServedDisks {
    /// Folder for the images; should be in memory
    #[arg(long, default_value = "/dev/shm")]
    pub(crate) dir: PathBuf,
    /// Size of the disks in MiB; needs twice that [default: 256]
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..1 << 16))]
    size_mib: Option<u64>,
    /// Seconds of each measurement [default: 2]
    #[arg(long)]
    seconds: Option<f64>,
}

impl ServedDisks {
    /// Returns the size of the disks.
    pub(crate) fn size_mib(&self, run: &Run<'_>) -> u64 {
        self.size_mib.unwrap_or_else(|| run.sized(256, 16))
    }

    /// Returns the seconds of each measurement.
    pub(crate) fn seconds(&self, run: &Run<'_>) -> f64 {
        self.seconds.unwrap_or_else(|| run.sized(2.0, 0.1))
    }
}

/// Returns whether `name` contains one of the words, or there are none.
pub(crate) fn is_wanted<'a>(words: impl IntoIterator<Item = &'a String>, name: &str) -> bool {
    let mut words = words.into_iter().peekable();
    words.peek().is_none() || words.any(|word| name.contains(word.as_str()))
}

/// A number of bytes: 64M, 4G.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let config = parse_size::Config::new().with_binary();
    match config.parse_size(text) {
        Ok(bytes) if bytes < 1 << 20 => Err("at least 1M".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert!(size("3").is_err());
    }

    #[test]
    fn names_contain_one_of_the_words() {
        assert!(is_wanted(&None, "tar") && is_wanted(&["a".to_owned()], "tar"));
        assert!(!is_wanted(&Some("b".to_owned()), "tar"));
    }
}
