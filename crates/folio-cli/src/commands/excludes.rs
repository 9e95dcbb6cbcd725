//! `--exclude` and `--exclude-from`: names that a command leaves out, by the rules of .gitignore.

use crate::exit::{Failure, Outcome};
use clap::Args;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The options.
#[derive(Args, Default)]
pub(crate) struct ExcludeOptions {
    /// Leave out what matches, as in .gitignore: *.o and build/ at any depth, /tmp at the top; with
    /// a ! in front, include it again; repeatable
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Read patterns from a file, one per line, before those of --exclude; repeatable
    #[arg(long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,
}

/// The patterns of a command.
#[derive(Debug)]
pub(crate) struct Excludes(Gitignore);

impl ExcludeOptions {
    /// Whether there are no patterns.
    pub(crate) fn is_empty(&self) -> bool {
        self.exclude.is_empty() && self.exclude_from.is_empty()
    }

    /// Reads the patterns, for the rest of the process; `None` without any.
    pub(crate) fn read(&self) -> Outcome<Option<&'static Excludes>> {
        if self.is_empty() {
            return Ok(None);
        }
        // Paths are relative to the source.
        let mut builder = GitignoreBuilder::new("");
        for file in &self.exclude_from {
            if let Some(error) = builder.add(file) {
                return Err(Failure::usage(format!("{}: {error}", file.display())));
            }
        }
        for pattern in &self.exclude {
            builder
                .add_line(None, pattern)
                .map_err(|error| Failure::usage(format!("--exclude {pattern:?}: {error}")))?;
        }
        let built = builder.build();
        built
            .map(|built| Some(&*Box::leak(Box::new(Excludes(built)))))
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

impl Excludes {
    /// Whether the command leaves out a path, which is relative to its source.
    pub(crate) fn contains(&self, relative: &[u8], is_directory: bool) -> bool {
        let start = relative.iter().take_while(|byte| **byte == b'/').count();
        let path = Path::new(OsStr::from_bytes(&relative[start..]));
        self.0.matched(path, is_directory).is_ignore()
    }
}

/// Whether the patterns leave out the entry of an archive: the file itself, or a directory above.
pub(crate) fn exclude_entry(excludes: Option<&Excludes>, path: &[u8], is_directory: bool) -> bool {
    let Some(excludes) = excludes else {
        return false;
    };
    let parts = path.split(|byte| *byte == b'/');
    let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    (1..=parts.len())
        .any(|len| excludes.contains(&parts[..len].join(&b'/'), is_directory || len < parts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_follow_gitignore() {
        let options = ExcludeOptions {
            exclude: ["*.o", "!keep.o", "/tmp", "build/", "a/**/z"]
                .map(str::to_owned)
                .to_vec(),
            exclude_from: Vec::new(),
        };
        let excludes = options.read().unwrap().unwrap();
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
