//! Contents of files that go to another place than their names.

use folio::base::InodeNumber;
use folio::syscall::Fd;
use folio::{Process, Result};

/// Receives the contents of regular files, one after another, each in ascending order. The file
/// system that the copy writes to gets the names, attributes and sizes, with holes as contents.
pub trait ContentSink: Send + Sync {
    /// Begins the content of a file, and replaces that of an earlier one with this number in the
    /// file system. It will have about `size_bytes`.
    ///
    /// # Errors
    ///
    /// Those of the place.
    fn begin(&self, file: InodeNumber, size_bytes: u64) -> Result<()>;
    /// Drops the content of an earlier file with this number: the file system has it from now on.
    ///
    /// # Errors
    ///
    /// Those of the place.
    fn forget(&self, file: InodeNumber) -> Result<()>;
    /// Writes all `bytes` at `offset`.
    ///
    /// # Errors
    ///
    /// Those of the place.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Ends the content. Behind the last byte may be a hole.
    ///
    /// # Errors
    ///
    /// Those of the place.
    fn end(&self, size_bytes: u64) -> Result<()>;
}

/// The size from which a file cannot be a list of owners: it would stay in memory.
const OWNERS_BYTES_MAX: u64 = 1 << 20;

/// Whether the content of a file stays with its name: a copy may read it, for the names of owners.
fn stays(name: &[u8], size_bytes: u64) -> bool {
    matches!(name, b"passwd" | b"group") && size_bytes < OWNERS_BYTES_MAX
}

/// Decides where the content of the open file `fd` goes, and begins it there. Returns the sink, or
/// `None` if the content stays with its name.
///
/// # Errors
///
/// Those of fstat(2) and of the sink.
pub(crate) fn begin<'a>(
    sink: Option<&'a dyn ContentSink>,
    process: &Process,
    fd: Fd,
    name: &[u8],
    size_bytes: u64,
) -> Result<Option<&'a dyn ContentSink>> {
    let Some(sink) = sink else { return Ok(None) };
    let number = process.fstat(fd)?.number;
    if stays(name, size_bytes) {
        // The name may lead to a file that was written by another name.
        sink.forget(number)?;
        return Ok(None);
    }
    sink.begin(number, size_bytes)?;
    Ok(Some(sink))
}

/// Ends the content in the sink, and gives the file its size. A file without its content gets none:
/// it would read as zeros.
///
/// # Errors
///
/// Those of the sink and of ftruncate(2).
pub(crate) fn end(
    sink: &dyn ContentSink,
    process: &Process,
    fd: Fd,
    size_bytes: u64,
) -> Result<()> {
    sink.end(size_bytes)?;
    process.ftruncate(fd, size_bytes)
}

#[cfg(test)]
mod tests {
    use super::{OWNERS_BYTES_MAX, stays};

    #[test]
    fn large_passwd_goes_to_the_sink() {
        assert!(stays(b"passwd", OWNERS_BYTES_MAX - 1));
        assert!(!stays(b"passwd", OWNERS_BYTES_MAX));
        assert!(!stays(b"shadow", 1));
    }
}
