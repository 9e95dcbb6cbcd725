//! Scratch folders in memory, for tests with many small syncs.

use tempfile::TempDir;

/// Returns a scratch folder, in memory if possible.
pub fn scratch() -> TempDir {
    let prefix = "folio-scratch-";
    TempDir::with_prefix_in(prefix, "/dev/shm")
        .or_else(|_| TempDir::with_prefix(prefix))
        .unwrap()
}
