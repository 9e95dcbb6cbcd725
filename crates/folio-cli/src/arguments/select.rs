//! The host files that a command about the page cache selects.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::Args;
use folio_pagecache::Scan;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Options that select files below the paths.
#[derive(Args, Clone, Default)]
pub(crate) struct Select {
    /// Only files whose path or name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// No files and no directories whose path or name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Follow symbolic links below the paths
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Stay on the file system of each path
    #[arg(long)]
    one_file_system: bool,
}

impl Select {
    /// Returns the scan for the selected files; Ctrl-C stops it.
    pub(crate) fn scan(&self, session: &Session) -> Outcome<Scan> {
        Ok(Scan {
            include: globs(&self.include)?,
            exclude: globs(&self.exclude)?,
            follows_links: self.dereference,
            stays_on_file_system: self.one_file_system,
            stop: Some(session.stop_flag()),
        })
    }
}

fn globs(words: &[String]) -> Outcome<Option<GlobSet>> {
    if words.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for word in words {
        let glob = GlobBuilder::new(word).literal_separator(false).build();
        set.add(glob.map_err(|error| Failure::usage(error.to_string()))?);
    }
    set.build()
        .map(Some)
        .map_err(|error| Failure::usage(error.to_string()))
}
