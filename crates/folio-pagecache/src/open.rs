//! Files opened to be looked at: without waiting, and without counting as an access.

use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens what is at `path` for reading. Never waits for the other end of a FIFO that has taken the
/// file's place.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |flags: OFlags| {
        File::options()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
    };
    // Only the owner may leave the time of access alone.
    open(flags | OFlags::NOATIME).or_else(|error| match error.raw_os_error() {
        Some(libc::EPERM) => open(flags),
        _ => Err(error),
    })
}

/// The same for what has to be a regular file still.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, std::fs::Metadata)> {
    let file = open(path)?;
    let found = file.metadata()?;
    match found.is_file() {
        true => Ok((file, found)),
        false => Err(io::Error::other("is no regular file any more")),
    }
}
