//! Names that a copy leaves out, by the rules of .gitignore.

use folio::{Errno, Error, Result};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Patterns of names. Source: gitignore(5).
#[derive(Debug)]
pub struct Excludes(Gitignore);

impl Excludes {
    /// Reads the patterns of files, one per line, then adds more patterns. A later one overrides an
    /// earlier one. Paths are relative to the source of a copy.
    ///
    /// # Errors
    ///
    /// EINVAL: an invalid pattern; the errors of reading a file.
    pub fn new(files: &[PathBuf], patterns: &[impl AsRef<str>]) -> Result<Self> {
        let mut builder = GitignoreBuilder::new("");
        let invalid = |place: String, error: ignore::Error| {
            let errno = error.io_error().and_then(Errno::from_io_error);
            Error::new(errno.unwrap_or(Errno::INVAL), error.to_string()).at(place)
        };
        for file in files {
            if let Some(error) = builder.add(file) {
                return Err(invalid(file.display().to_string(), error));
            }
        }
        for pattern in patterns {
            let pattern = pattern.as_ref();
            builder
                .add_line(None, pattern)
                .map_err(|error| invalid(format!("exclude {pattern:?}"), error))?;
        }
        let built = builder.build();
        built
            .map(Self)
            .map_err(|error| Error::new(Errno::INVAL, error.to_string()))
    }

    /// Whether a copy leaves out a path, which is relative to its source.
    pub fn contains(&self, relative: &[u8], is_directory: bool) -> bool {
        let start = relative.iter().take_while(|byte| **byte == b'/').count();
        let path = Path::new(OsStr::from_bytes(&relative[start..]));
        self.0.matched(path, is_directory).is_ignore()
    }

    /// Whether the entry of an archive is left out: the file itself, or a directory above.
    pub fn contains_entry(&self, path: &[u8], is_directory: bool) -> bool {
        let parts = path.split(|byte| *byte == b'/');
        let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
        (1..=parts.len())
            .any(|len| self.contains(&parts[..len].join(&b'/'), is_directory || len < parts.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_follow_gitignore() {
        let excludes = Excludes::new(&[], &["*.o", "!keep.o", "/tmp", "build/", "a/**/z"]).unwrap();
        for (path, is_directory, is_excluded) in [
            ("x.o", false, true),
            ("/deep/x.o", false, true),
            ("deep/keep.o", false, false),
            ("tmp", true, true),
            ("deep/tmp", true, false),
            ("build", false, false),
            ("deep/build", true, true),
            ("a/b/c/z", false, true),
        ] {
            let found = excludes.contains(path.as_bytes(), is_directory);
            assert_eq!(found, is_excluded, "{path}");
        }
    }
}
