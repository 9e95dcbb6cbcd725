//! The caller's view of a running copy: progress, failures of single files, and a stop.

use folio::Error;

/// Receives the events of a copy that continues after failures of single files.
pub trait Observer: Sync {
    /// Bytes of content were copied.
    fn copied(&self, len_bytes: u64);
    /// A file was created.
    fn created(&self);
    /// A file, or an attribute of it, could not be copied.
    fn failed(&self, path: &[u8], error: &Error);
    /// A remark about a file, or about all with an empty path.
    fn note(&self, path: &[u8], remark: &str);
    /// Whether the copy should end early.
    fn is_stopped(&self) -> bool;
}
