//! Parallel tree walks: the regular files of trees, each once, in the order of inode numbers.

use crate::parallel::THREADS;
use globset::GlobSet;
use ignore::{WalkBuilder, WalkState};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Filters of a walk.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Includes only files whose path or name matches one of these globs; all files if there is
    /// none.
    pub include: Option<GlobSet>,
    /// Excludes files and folders whose path or name matches one of these globs.
    pub exclude: Option<GlobSet>,
    /// Whether symbolic links below the paths are followed.
    pub follows_links: bool,
    /// Whether the walk stays on the file system of each path.
    pub stays_on_file_system: bool,
    /// Ends the walk early when set.
    pub stop: Option<Arc<AtomicBool>>,
}

/// A regular file found by a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Path of the file, below the path that was asked for.
    pub path: PathBuf,
    /// Inode number, which in many file systems follows the location on disk.
    pub inode: u64,
    /// Selected byte ranges, in order; empty selects the whole file.
    pub ranges: Vec<Range<u64>>,
}

impl Found {
    /// Selects a whole file.
    pub fn whole(path: PathBuf, inode: u64) -> Self {
        Self {
            path,
            inode,
            ranges: Vec::new(),
        }
    }

    /// Returns the selected byte ranges of a file with the given size.
    pub(crate) fn parts(&self, size_bytes: u64) -> Vec<Range<u64>> {
        if self.ranges.is_empty() {
            return std::iter::once(0..size_bytes).collect();
        }
        self.clipped(size_bytes)
    }

    /// Returns the ranges up to a size.
    pub(crate) fn clipped(&self, size_bytes: u64) -> Vec<Range<u64>> {
        let cut = |range: &Range<u64>| range.start..range.end.min(size_bytes);
        self.ranges
            .iter()
            .map(cut)
            .filter(|range| !range.is_empty())
            .collect()
    }
}

/// The result of a walk.
#[derive(Debug)]
pub struct Walked<T> {
    /// Results for the regular files.
    pub found: Vec<T>,
    /// Paths that could not be examined, each with the reason.
    pub failures: Vec<(PathBuf, String)>,
    /// Count of files that are not regular files, directories or links; they are not opened.
    pub special: u64,
}

/// Regular files by inode number.
pub type Files = Walked<Found>;

impl<T> Default for Walked<T> {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            failures: Vec::new(),
            special: 0,
        }
    }
}

impl<T> Walked<T> {
    /// Adds the result for one file.
    fn take(&mut self, path: &Path, made: io::Result<Option<T>>) {
        match made {
            Ok(made) => self.found.extend(made),
            Err(error) => self.failures.push((path.to_owned(), reason(&error))),
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.found.append(&mut other.found);
        self.failures.append(&mut other.failures);
        self.special += other.special;
    }
}

impl Scan {
    /// Finds all regular files at and below `paths`. A path may itself be a symbolic link; links
    /// below it are followed only on request.
    pub fn files(&self, paths: &[PathBuf]) -> Files {
        let mut files = self.each(paths, |path, inode| {
            Ok(Some(Found::whole(path.to_owned(), inode.unwrap_or(0))))
        });
        files
            .found
            .sort_unstable_by(|a, b| (a.inode, &a.path).cmp(&(b.inode, &b.path)));
        let mut paths = HashSet::new();
        // The same folder may be given twice.
        files.found.retain(|found| paths.insert(found.path.clone()));
        files
    }

    /// Returns whether the filters accept a file with this path.
    pub fn takes(&self, path: &Path) -> bool {
        let is_left_out = |exclude: &GlobSet| path.ancestors().any(|path| matches(exclude, path));
        self.include
            .as_ref()
            .is_none_or(|include| matches(include, path))
            && !self.exclude.as_ref().is_some_and(is_left_out)
    }

    /// Calls `look` with path and inode number of each regular file at and below `paths`, from
    /// several threads and in no order; twice for a file below two of the paths.
    pub(crate) fn each<T: Send>(
        &self,
        paths: &[PathBuf],
        look: impl Fn(&Path, Option<u64>) -> io::Result<Option<T>> + Sync,
    ) -> Walked<T> {
        let all = Mutex::new(Walked::default());
        for path in paths {
            match std::fs::metadata(path) {
                Err(error) => lock(&all).failures.push((path.clone(), reason(&error))),
                Ok(found) if found.is_file() => {
                    let made = look(path, Some(std::os::unix::fs::MetadataExt::ino(&found)));
                    lock(&all).take(path, made);
                }
                Ok(found) if !found.is_dir() => lock(&all).special += 1,
                Ok(_) => self.walk(path, &all, &look),
            }
        }
        all.into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn walk<T: Send>(
        &self,
        path: &Path,
        all: &Mutex<Walked<T>>,
        look: &(impl Fn(&Path, Option<u64>) -> io::Result<Option<T>> + Sync),
    ) {
        let mut walk = WalkBuilder::new(path);
        walk.standard_filters(false)
            .follow_links(self.follows_links)
            .threads(THREADS);
        walk.same_file_system(self.stays_on_file_system);
        if let Some(exclude) = self.exclude.clone() {
            walk.filter_entry(move |entry| entry.depth() == 0 || !matches(&exclude, entry.path()));
        }
        walk.build_parallel().run(|| {
            // Each thread adds its results when it ends.
            let mut mine = Mine {
                all,
                found: Walked::default(),
            };
            Box::new(move |entry| {
                if self
                    .stop
                    .as_ref()
                    .is_some_and(|stop| stop.load(Ordering::Relaxed))
                {
                    return WalkState::Quit;
                }
                mine.meet(entry, self.include.as_ref(), look);
                WalkState::Continue
            })
        });
    }
}

/// Results of one thread.
struct Mine<'a, T> {
    all: &'a Mutex<Walked<T>>,
    found: Walked<T>,
}

impl<T> Mine<'_, T> {
    fn meet(
        &mut self,
        entry: Result<ignore::DirEntry, ignore::Error>,
        include: Option<&GlobSet>,
        look: &impl Fn(&Path, Option<u64>) -> io::Result<Option<T>>,
    ) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return self.found.failures.push(describe(&error)),
        };
        // A link that is not followed keeps the type of a link.
        let Some(kind) = entry.file_type() else {
            return;
        };
        let path = entry.path();
        if kind.is_file() {
            if include.is_none_or(|include| matches(include, path)) {
                self.found.take(path, look(path, entry.ino()));
            }
        } else if !kind.is_dir() && !kind.is_symlink() {
            self.found.special += 1;
        }
    }
}

impl<T> Drop for Mine<'_, T> {
    fn drop(&mut self) {
        lock(self.all).append(&mut self.found);
    }
}

fn describe(error: &ignore::Error) -> (PathBuf, String) {
    match error {
        ignore::Error::WithPath { path, err } => (path.clone(), describe(err).1),
        ignore::Error::WithDepth { err, .. } => describe(err),
        ignore::Error::Loop { child, .. } => {
            (child.clone(), "a link that leads back to itself".to_owned())
        }
        ignore::Error::Io(error) => (PathBuf::new(), reason(error)),
        other => (PathBuf::new(), other.to_string()),
    }
}

/// Returns the error text without the errno that Rust appends.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Matches globs with a slash against the path, and other globs also against the name.
fn matches(globs: &GlobSet, path: &Path) -> bool {
    globs.is_match(path)
        || path
            .file_name()
            .is_some_and(|name: &OsStr| globs.is_match(OsStr::from_bytes(name.as_bytes())))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use globset::{Glob, GlobSetBuilder};
    use std::fs;

    fn globs(text: &str) -> Option<GlobSet> {
        GlobSetBuilder::new()
            .add(Glob::new(text).unwrap())
            .build()
            .ok()
    }

    #[test]
    fn walk_finds_files_once_and_skips_links() {
        let folder = tempfile::TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        for name in ["a/one.ibd", "a/b/two.ibd", "a/b/three.log"] {
            fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc", at("a/link")).unwrap();
        std::os::unix::fs::symlink("b", at("a/loop")).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(at("a/socket")).unwrap();
        let names = |scan: &Scan, paths: &[PathBuf]| {
            let files = scan.files(paths);
            let names = files
                .found
                .iter()
                .map(|found| found.path.strip_prefix(folder.path()).unwrap().to_owned());
            let mut names: Vec<_> = names.collect();
            names.sort();
            (names, files.special, files.failures.len())
        };
        let all = [at("a")];
        let (found, special, failures) = names(&Scan::default(), &all);
        assert_eq!((found.len(), special, failures), (3, 1, 0), "{found:?}");
        let twice = [at("a"), at("a/b"), at("a/one.ibd"), at("no")];
        let (found, _, failures) = names(&Scan::default(), &twice);
        assert_eq!((found.len(), failures), (3, 1));
        let scan = Scan {
            include: globs("*.ibd"),
            ..Scan::default()
        };
        assert_eq!(
            names(&scan, &all).0,
            [PathBuf::from("a/b/two.ibd"), PathBuf::from("a/one.ibd")]
        );
        let scan = Scan {
            exclude: globs("b"),
            ..Scan::default()
        };
        assert_eq!(names(&scan, &all).0, [PathBuf::from("a/one.ibd")]);
        let scan = Scan {
            follows_links: true,
            exclude: globs("link"),
            ..Scan::default()
        };
        assert_eq!(
            names(&scan, &all).0.len(),
            5,
            "the two in b are also below loop"
        );
        drop(socket);
    }
}
