//! Opens files for examination: without blocking, and without updating the access time.

use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
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
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, std::fs::Metadata)> {
    let file = open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        Ok((file, found))
    } else {
        Err(io::Error::other("no longer a regular file"))
    }
}
