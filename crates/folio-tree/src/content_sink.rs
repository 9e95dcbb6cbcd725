//! Contents of files that go to another place than their names.

use folio::Result;
use folio::base::InodeNumber;

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

/// Whether the content of a file stays with its name: a copy may read it, for the names of owners.
pub(crate) fn stays(name: &[u8]) -> bool {
    matches!(name, b"passwd" | b"group")
}
