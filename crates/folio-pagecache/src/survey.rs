//! Residency of many files, and dropping them from the cache.

use crate::open::open_regular;
use crate::residency::{Residency, ResidencyReport, look};
use crate::scan::{Scan, Walked};
use rustix::fs::Advice;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file and its residency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Path of the file, below the path that was asked for.
    pub path: PathBuf,
    /// Device and inode number: the same for all names of a file.
    pub id: (u64, u64),
    /// Size in bytes.
    pub size_bytes: u64,
    /// Residency, if it can be determined.
    pub known: ResidencyReport,
}

/// A dropped file, with its residency before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The file after the drop.
    pub after: State,
    /// Residency before the drop.
    pub before: ResidencyReport,
}

impl State {
    fn new(path: &Path, file: &File, found: &Metadata) -> io::Result<Self> {
        let known = look(file, found, 0..found.len())?;
        Ok(Self {
            path: path.to_owned(),
            id: (found.dev(), found.ino()),
            size_bytes: found.len(),
            known,
        })
    }

    /// Returns the state of the file at `path`.
    pub(crate) fn look(path: &Path) -> io::Result<Self> {
        let (file, found) = open_regular(path)?;
        Self::new(path, &file, &found)
    }

    /// Returns the residency, if it is known.
    pub fn residency(&self) -> Option<&Residency> {
        match &self.known {
            ResidencyReport::Known(residency) => Some(residency),
            ResidencyReport::Unknown(_) => None,
        }
    }
}

/// Returns the state of all files that `scan` finds at and below `paths`, sorted by path. `seen`
/// counts the files examined so far.
pub fn survey(scan: &Scan, paths: &[PathBuf], seen: &AtomicU64) -> Walked<State> {
    let mut all = scan.each(paths, |path, _| {
        seen.fetch_add(1, Ordering::Relaxed);
        State::look(path).map(Some)
    });
    all.found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    all.found.dedup_by(|a, b| a.path == b.path);
    all.failures.sort();
    all
}

/// Drops the cached pages of all files that `scan` finds at and below `paths` (posix_fadvise(2),
/// DONTNEED), and reports what remains: dirty pages, unless `is_synced` writes them first, pages
/// that a program has mapped or locked, and pages in use.
pub fn drop_files(
    scan: &Scan,
    paths: &[PathBuf],
    is_synced: bool,
    seen: &AtomicU64,
) -> Walked<Dropped> {
    let mut all = scan.each(paths, |path, _| {
        seen.fetch_add(1, Ordering::Relaxed);
        drop_file(path, is_synced).map(Some)
    });
    all.found
        .sort_unstable_by(|a, b| a.after.path.cmp(&b.after.path));
    all.found.dedup_by(|a, b| a.after.path == b.after.path);
    all.failures.sort();
    all
}

pub(crate) fn drop_file(path: &Path, is_synced: bool) -> io::Result<Dropped> {
    let (file, found) = open_regular(path)?;
    let before = State::new(path, &file, &found)?;
    let is_clean = before
        .residency()
        .is_some_and(|found| found.resident_bytes == 0);
    if is_clean {
        return Ok(Dropped {
            before: before.known,
            after: before,
        });
    }
    if is_synced && before.residency().is_none_or(has_unwritten) {
        rustix::fs::fdatasync(&file)?;
    }
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let after = State::new(path, &file, &found)?;
    Ok(Dropped {
        before: before.known,
        after,
    })
}

/// Returns whether pages may be dirty: true if the kernel does not report it.
fn has_unwritten(residency: &Residency) -> bool {
    match (residency.dirty_bytes, residency.writeback_bytes) {
        (Some(dirty), Some(writeback)) => dirty + writeback > 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survey_is_sorted_and_drop_needs_a_sync() {
        // Pages of tmpfs cannot be dropped.
        let folder = tempfile::TempDir::new_in(".").unwrap();
        for name in ["b", "a", "c"] {
            std::fs::write(folder.path().join(name), vec![7; 100_000]).unwrap();
        }
        let paths = [folder.path().to_owned(), folder.path().join("a")];
        let seen = AtomicU64::new(0);
        let all = survey(&Scan::default(), &paths, &seen);
        let names: Vec<_> = all
            .found
            .iter()
            .map(|state| state.path.file_name().unwrap())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(seen.into_inner(), 4);
        assert!(
            all.found
                .iter()
                .all(|state| state.residency().unwrap().resident_bytes == 100_000)
        );
        let dropped = drop_files(&Scan::default(), &paths, true, &AtomicU64::new(0));
        for file in &dropped.found {
            assert_eq!(
                file.after.residency().unwrap().resident_bytes,
                0,
                "{file:?}"
            );
        }
        assert_eq!((dropped.found.len(), dropped.failures.len()), (3, 0));
    }
}
