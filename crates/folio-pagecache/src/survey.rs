//! The state of many files: how much of each is in memory, and what remains after it was dropped.

use crate::open::open_regular;
use crate::residency::{Known, Residency, look};
use crate::scan::{Scan, Walked};
use rustix::fs::Advice;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file and what of it is in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its path, as the path that was asked for begins.
    pub path: PathBuf,
    /// Device and inode number: the same for all names of a file.
    pub id: (u64, u64),
    /// Size in bytes.
    pub size_bytes: u64,
    /// What of it is in memory.
    pub known: Known,
}

/// A file, and what of it was in memory before and after it was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The file as it is now.
    pub after: State,
    /// What of it was in memory.
    pub before: Known,
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

    /// The state of a file that is reached by one path and told of by another.
    pub(crate) fn look(path: &Path) -> io::Result<Self> {
        let (file, found) = open_regular(path)?;
        Self::new(path, &file, &found)
    }

    /// What is known of it.
    pub fn residency(&self) -> Option<&Residency> {
        match &self.known {
            Known::Is(residency) => Some(residency),
            Known::NotTold(_) => None,
        }
    }
}

/// Looks at all files that `scan` finds at and below `paths`, sorted by path; `seen` grows
/// meanwhile.
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

/// Asks the kernel to forget all files that `scan` finds at and below `paths` (posix_fadvise(2),
/// DONTNEED), and tells what stayed: pages that were changed and not written, unless `is_synced`
/// has them written first, pages that a program has mapped or locked, and those that are just being
/// used.
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

fn drop_file(path: &Path, is_synced: bool) -> io::Result<Dropped> {
    let (file, found) = open_regular(path)?;
    let before = State::new(path, &file, &found)?;
    let is_clean = before
        .residency()
        .is_some_and(|told| told.resident_bytes == 0);
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

/// Whether something waits to be written, as far as that is told.
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
    fn trees_are_told_of_sorted_and_dropped_once_they_are_written() {
        // tmpfs has nowhere to drop to.
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
