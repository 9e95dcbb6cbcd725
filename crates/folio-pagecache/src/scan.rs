//! Which files: trees walked by several threads, each file once, in the order of inode numbers.

use globset::GlobSet;
use ignore::{WalkBuilder, WalkState};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

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
    /// Threads; 0 lets the library choose.
    pub threads: usize,
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
        Self { path, inode, ranges: Vec::new() }
    }

    /// The parts that are meant of a file that has this size now.
    pub(crate) fn parts(&self, size_bytes: u64) -> Vec<Range<u64>> {
        if self.ranges.is_empty() {
            return std::iter::once(0..size_bytes).collect();
        }
        let cut = |range: &Range<u64>| range.start..range.end.min(size_bytes);
        self.ranges.iter().map(cut).filter(|range| !range.is_empty()).collect()
    }
}

/// What was found, and what could not be looked at.
#[derive(Debug, Default)]
pub struct Files {
    /// Regular files by inode number.
    pub found: Vec<Found>,
    /// Paths, and why not.
    pub failures: Vec<(PathBuf, String)>,
    /// Things that are neither file, directory nor link: they are not opened.
    pub special: u64,
}

impl Scan {
    /// Finds all regular files at and below `paths`. Paths themselves may be links; what lies below them is followed
    /// only if asked.
    pub fn files(&self, paths: &[PathBuf]) -> Files {
        let files = Mutex::new(Files::default());
        for path in paths {
            match std::fs::metadata(path) {
                Err(error) => lock(&files).failures.push((path.clone(), reason(&error))),
                Ok(found) if found.is_file() => {
                    let inode = std::os::unix::fs::MetadataExt::ino(&found);
                    lock(&files).found.push(Found::whole(path.clone(), inode));
                }
                Ok(found) if !found.is_dir() => lock(&files).special += 1,
                Ok(_) => self.walk(path, &files),
            }
        }
        let mut files = files.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        files.found.sort_unstable_by(|a, b| (a.inode, &a.path).cmp(&(b.inode, &b.path)));
        let mut paths = HashSet::new();
        // The same folder may have been named twice.
        files.found.retain(|found| paths.insert(found.path.clone()));
        files
    }

    fn walk(&self, path: &Path, files: &Mutex<Files>) {
        let mut walk = WalkBuilder::new(path);
        walk.standard_filters(false).follow_links(self.follows_links).threads(self.threads);
        walk.same_file_system(self.stays_on_file_system);
        if let Some(exclude) = self.exclude.clone() {
            walk.filter_entry(move |entry| entry.depth() == 0 || !matches(&exclude, entry.path()));
        }
        walk.build_parallel().run(|| {
            // Each thread hands over what it has when it ends.
            let mut mine = Mine { files, found: Files::default() };
            Box::new(move |entry| {
                mine.meet(entry, self.include.as_ref());
                WalkState::Continue
            })
        });
    }
}

/// What one thread has found.
struct Mine<'a> {
    files: &'a Mutex<Files>,
    found: Files,
}

impl Mine<'_> {
    fn meet(&mut self, entry: Result<ignore::DirEntry, ignore::Error>, include: Option<&GlobSet>) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return self.fail(&error),
        };
        // A link that is not followed has the type of a link.
        let Some(kind) = entry.file_type() else { return };
        if kind.is_file() {
            if include.is_none_or(|include| matches(include, entry.path())) {
                let inode = entry.ino().unwrap_or(0);
                self.found.found.push(Found::whole(entry.into_path(), inode));
            }
        } else if !kind.is_dir() && !kind.is_symlink() {
            self.found.special += 1;
        }
    }

    fn fail(&mut self, error: &ignore::Error) {
        let (path, text) = describe(error);
        self.found.failures.push((path, text));
    }
}

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        let mut all = lock(self.files);
        all.found.append(&mut self.found.found);
        all.failures.append(&mut self.found.failures);
        all.special += self.found.special;
    }
}

fn describe(error: &ignore::Error) -> (PathBuf, String) {
    match error {
        ignore::Error::WithPath { path, err } => (path.clone(), describe(err).1),
        ignore::Error::WithDepth { err, .. } => describe(err),
        ignore::Error::Loop { child, .. } => (child.clone(), "a link that leads back to itself".to_owned()),
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
        || path.file_name().is_some_and(|name: &OsStr| globs.is_match(OsStr::from_bytes(name.as_bytes())))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use globset::{Glob, GlobSetBuilder};
    use std::fs;

    fn globs(text: &str) -> Option<GlobSet> {
        GlobSetBuilder::new().add(Glob::new(text).unwrap()).build().ok()
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
            let names =
                files.found.iter().map(|found| found.path.strip_prefix(folder.path()).unwrap().to_owned());
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
        let scan = Scan { include: globs("*.ibd"), ..Scan::default() };
        assert_eq!(names(&scan, &all).0, [PathBuf::from("a/b/two.ibd"), PathBuf::from("a/one.ibd")]);
        let scan = Scan { exclude: globs("b"), ..Scan::default() };
        assert_eq!(names(&scan, &all).0, [PathBuf::from("a/one.ibd")]);
        let scan = Scan { follows_links: true, exclude: globs("link"), ..Scan::default() };
        assert_eq!(names(&scan, &all).0.len(), 5, "the two in b are also below loop");
        drop(socket);
    }
}
