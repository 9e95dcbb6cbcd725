//! Opens files for examination: without blocking, and without updating the access time.

use rustix::fs::{OFlags, SeekFrom};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens the file at `path` for reading. Does not block on a FIFO that has replaced the file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |flags: OFlags| {
        File::options()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
    };
    // Only the owner may use O_NOATIME.
    open(flags | OFlags::NOATIME).or_else(|error| match error.raw_os_error() {
        Some(libc::EPERM) => open(flags),
        _ => Err(error),
    })
}

/// As [`open`], for a file that must still be a regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let file = open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        Ok((file, found))
    } else {
        Err(io::Error::other("no longer a regular file"))
    }
}

/// A regular file or block device, open for reading.
pub(crate) struct Source {
    pub(crate) file: File,
    pub(crate) found: Metadata,
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// Device number of the disk that holds the bytes.
    pub(crate) device: u64,
}

impl Source {
    /// Opens the regular file or block device at `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let found = file.metadata()?;
        let size_bytes = if found.is_file() {
            found.len()
        } else if found.file_type().is_block_device() {
            rustix::fs::seek(&file, SeekFrom::End(0))?
        } else {
            return Err(io::Error::other("no longer a regular file"));
        };
        let device = disk_of(&found);
        Ok(Self {
            file,
            found,
            size_bytes,
            device,
        })
    }
}

/// Returns the device number of the disk below a file; of a block device its own.
pub(crate) fn disk_of(found: &Metadata) -> u64 {
    if found.file_type().is_block_device() {
        found.rdev()
    } else {
        found.dev()
    }
}
