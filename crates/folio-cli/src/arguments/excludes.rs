//! `--exclude` and `--exclude-from`: names that a command leaves out, by the rules of .gitignore.

use crate::exit::{Failure, Outcome};
use clap::Args;
use folio_tree::Excludes;
use std::path::PathBuf;
use std::sync::Arc;

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

impl ExcludeOptions {
    /// Whether there are no patterns.
    pub(crate) fn is_empty(&self) -> bool {
        self.exclude.is_empty() && self.exclude_from.is_empty()
    }

    /// Reads the patterns; `None` without any.
    pub(crate) fn read(&self) -> Outcome<Option<Arc<Excludes>>> {
        if self.is_empty() {
            return Ok(None);
        }
        let excludes = Excludes::new(&self.exclude_from, &self.exclude);
        let excludes = excludes.map_err(|error| {
            let mut files = self
                .exclude_from
                .iter()
                .map(|file| file.display().to_string());
            let is_of_file = files.any(|file| error.place() == Some(&file));
            let dashes = if is_of_file { "" } else { "--" };
            Failure::usage(format!("{dashes}{error}"))
        })?;
        Ok(Some(Arc::new(excludes)))
    }
}

/// Whether the patterns leave out the entry of an archive.
pub(crate) fn exclude_entry(
    excludes: Option<&Arc<Excludes>>,
    path: &[u8],
    is_directory: bool,
) -> bool {
    excludes.is_some_and(|excludes| excludes.contains_entry(path, is_directory))
}
