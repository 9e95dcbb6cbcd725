//! Image files whose facts are read, and not their disks.

use super::host_file::HostFile;
use super::image_file::ImageFile;
use super::remote::remote;
use crate::base::Result;
use std::path::Path;

/// Opens a file to read facts of its image: remote, or of the host, with or without a lock.
pub(crate) fn open_for_facts(path: &Path, is_shared: bool) -> Result<Box<dyn ImageFile>> {
    Ok(match remote(path) {
        Some(found) => Box::new(found.open(true)?),
        None if is_shared => Box::new(HostFile::open_unlocked(path)?),
        None => Box::new(HostFile::open(path, true)?),
    })
}
