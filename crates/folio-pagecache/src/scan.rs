//! Which files: trees walked by several threads, each file once, in the order of inode numbers.

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

/// What is looked for.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Only files whose path or name one of these matches; everything if there is none.
    pub include: Option<GlobSet>,
    /// No files and no folders whose path or name one of these matches.
    pub exclude: Option<GlobSet>,
    /// Whether symbolic links below the paths are followed.
    pub follows_links: bool,
    /// Whether other file systems mounted below the paths are left alone.
    pub stays_on_file_system: bool,
    /// Set to end the walk soon.
    pub stop: Option<Arc<AtomicBool>>,
}

/// A regular file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its path, as the path that was asked for begins.
    pub path: PathBuf,
    /// Inode number, which in many file systems tells roughly where it lies.
    pub inode: u64,
    /// The parts of it that are meant, in order, in bytes; all of it if there are none.
    pub ranges: Vec<Range<u64>>,
}

impl Found {
    /// All of a file.
    pub fn whole(path: PathBuf, inode: u64) -> Self {
        Self {
            path,
            inode,
            ranges: Vec::new(),
        }
    }

    /// The parts that are meant of a file that has this size now.
    pub(crate) fn parts(&self, size_bytes: u64) -> Vec<Range<u64>> {
        if self.ranges.is_empty() {
            return std::iter::once(0..size_bytes).collect();
        }
        let cut = |range: &Range<u64>| range.start..range.end.min(size_bytes);
        self.ranges
            .iter()
            .map(cut)
            .filter(|range| !range.is_empty())
            .collect()
    }
}

/// What was found, and what could not be looked at.
#[derive(Debug)]
pub struct Walked<T> {
    /// What was made of the regular files.
    pub found: Vec<T>,
    /// Paths, and why not.
    pub failures: Vec<(PathBuf, String)>,
    /// Things that are neither file, directory nor link: they are not opened.
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
    /// Takes in what was made of one file.
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
    /// Finds all regular files at and below `paths`. Paths themselves may be links; what lies below
    /// them is followed only if asked.
    pub fn files(&self, paths: &[PathBuf]) -> Files {
        let mut files = self.each(paths, |path, inode| {
            Ok(Some(Found::whole(path.to_owned(), inode.unwrap_or(0))))
        });
        files
            .found
            .sort_unstable_by(|a, b| (a.inode, &a.path).cmp(&(b.inode, &b.path)));
        let mut paths = HashSet::new();
        // The same folder may have been named twice.
        files.found.retain(|found| paths.insert(found.path.clone()));
        files
    }

    /// Whether a file with this path would be found below a path that was asked for.
    pub fn takes(&self, path: &Path) -> bool {
        let is_left_out = |exclude: &GlobSet| path.ancestors().any(|path| matches(exclude, path));
        self.include
            .as_ref()
            .is_none_or(|include| matches(include, path))
            && !self.exclude.as_ref().is_some_and(is_left_out)
    }

    /// Calls `look` for all regular files at and below `paths`, from several threads, with their
    /// path and inode number; in no order, and twice for what lies below two of them.
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
            // Each thread hands over what it has when it ends.
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

/// What one thread has found.
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
        // A link that is not followed has the type of a link.
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

/// What went wrong, without the number that Rust adds.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Globs with a slash are for the path, others for the name too.
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
    fn trees_are_found_once_and_links_are_left() {
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
