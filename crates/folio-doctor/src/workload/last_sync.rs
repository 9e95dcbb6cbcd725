//! The last sync: the time that a file system takes for the bytes of many syncs at once.
//!
//! A cure leaves one sync, which moves the same bytes. How fast a disk is cannot be concluded from
//! syncs of few bytes each, so it is measured.

use super::part::{Cost, Part};
use std::io::{self, Write};
use std::time::Instant;

/// Bytes that are written at most; of more the time is in proportion.
const BYTES_MAX: u64 = 32 << 20;

/// Writes as many bytes into an unnamed file beside the file that waited longest, with one sync.
/// Returns the nanoseconds; `None` if nothing is left to sync, or if that failed.
pub(crate) fn measure(cost: &Cost) -> Option<u64> {
    if !matches!(cost.part, Part::Fsync | Part::SyncWrites) {
        return None;
    }
    // Of what was written several times, the last sync moves the last version.
    let sizes = cost.files.iter().filter_map(|file| file.metadata().ok());
    let size_bytes: u64 = sizes
        .filter(|found| found.is_file())
        .map(|found| found.len())
        .sum();
    let bytes = cost.bytes.min(size_bytes);
    let folder = cost.example.as_ref()?.parent()?;
    let written_bytes = bytes.min(BYTES_MAX);
    let write = || -> io::Result<u64> {
        let mut file = tempfile::tempfile_in(folder)?;
        let start = Instant::now();
        io::copy(
            &mut io::Read::take(io::repeat(0x5a), written_bytes),
            &mut file,
        )?;
        file.flush()?;
        file.sync_all()?;
        Ok(start.elapsed().as_nanos() as u64)
    };
    let ns = (bytes > 0).then(write)?.ok()?;
    Some((ns as f64 * (bytes as f64 / written_bytes as f64)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn cost(part: Part, file: PathBuf, bytes: u64) -> Cost {
        Cost {
            files: vec![file.clone()],
            bytes,
            example: Some(file),
            ..Cost::new(part, 0)
        }
    }

    #[test]
    fn last_sync_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        std::fs::write(&file, [7; 5000]).unwrap();
        assert!(measure(&cost(Part::Fsync, file.clone(), 1 << 40)).is_some());
        assert!(measure(&cost(Part::SyncWrites, file.clone(), 4096)).is_some());
        // Nothing was written, or no sync was there.
        assert_eq!(measure(&cost(Part::Fsync, file.clone(), 0)), None);
        assert_eq!(measure(&cost(Part::Writes, file, 4096)), None);
        assert_eq!(
            measure(&cost(Part::Fsync, folder.path().join("none"), 9)),
            None
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
