//! `folio cache status`: shows how much of files and trees is in memory.

use super::totals::{Entry, Totals, head, unknown};
use super::watch::{Watch, clear};
use crate::arguments::select::Select;
use crate::exit::Outcome;
use crate::output::color::heading;
use crate::output::{FailureRecord, PathRecord, printable};
use crate::progress::Progress;
use crate::session::Session;
use clap::{Args, ValueEnum};
use folio_pagecache::{State, Walked, survey};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  folio cache status /var/lib/mysql                each file, and the total
  folio cache status --tree --sort cached /srv     each directory with its contents
  folio cache status --summarize --watch 1 /srv    the total, every second
  folio cache status --json /srv/index | jq .resident_bytes

EVICTED was in memory before; RECENTLY is the part that a little more memory would have kept.

? marks values that the kernel does not report: all values of other users' files without write permission. On overlays
and before Linux 6.5 it reports only CACHED.";

/// Show how much of files and trees is in memory
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Status {
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Show directories with their contents instead of files
    #[arg(long)]
    tree: bool,
    /// With --tree, show at most this many levels
    #[arg(long, value_name = "LEVELS", requires = "tree")]
    max_depth: Option<usize>,
    /// Show only the total
    #[arg(short, long, conflicts_with = "tree")]
    summarize: bool,
    /// Order of the rows
    #[arg(long, value_enum, default_value_t = Sort::Path)]
    sort: Sort,
    /// Show only the first rows
    #[arg(short = 'n', long, value_name = "LINES")]
    limit: Option<usize>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    watch: Watch,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// By name
    Path,
    /// Most cached bytes first
    Cached,
    /// Most uncached bytes first
    Missing,
    /// Largest first
    Size,
    /// Most dirty bytes first
    Dirty,
    /// Most evicted bytes first
    Evicted,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StatusReport<'a> {
    #[serde(flatten)]
    totals: &'a Totals,
    /// FIFOs, sockets and devices, which are not opened.
    not_regular: u64,
    /// Duration.
    seconds: f64,
    entries: Vec<Entry>,
    /// Paths that could not be examined.
    failures: Vec<FailureRecord>,
}

/// Runs the command.
pub(super) fn run(status: &Status, session: &Session) -> Outcome {
    let scan = status.select.scan(session)?;
    status.watch.repeat(session, |round| {
        let start = Instant::now();
        let bar = Progress::counting(session);
        let seen = AtomicU64::new(0);
        let all = bar.follow(&seen, || survey(&scan, &status.paths, &seen));
        if session.is_interrupted() {
            return Ok(());
        }
        // Failures to read are printed in the first round only.
        if round == 0 {
            all.failures
                .iter()
                .for_each(|(path, reason)| session.fail_on(path, reason));
        }
        let totals = Totals::sum(&all.found);
        let mut lines = if status.summarize {
            Vec::new()
        } else {
            status.lines(&all.found)
        };
        if let Some(limit) = status.limit {
            lines.truncate(limit);
        }
        let seconds = start.elapsed().as_secs_f64();
        if !status.json {
            return status.print(lines, &totals);
        }
        let report = status.report(&all, &totals, lines, seconds);
        if status.watch.is_on() {
            session.print_json_line(&report)
        } else {
            session.print_json(&report)
        }
    })
}

/// A row of the table: a file, or a directory with its contents.
struct Row<'a> {
    path: &'a Path,
    state: Option<&'a State>,
    totals: Totals,
}

impl Status {
    /// Returns the rows in order.
    fn lines<'a>(&'a self, states: &'a [State]) -> Vec<Row<'a>> {
        let mut lines = if self.tree {
            self.folders(states)
        } else {
            files(states)
        };
        let key = |totals: &Totals| match self.sort {
            Sort::Path => 0,
            Sort::Cached => totals.resident_bytes,
            Sort::Missing => totals.size_bytes - totals.resident_bytes,
            Sort::Size => totals.size_bytes,
            Sort::Dirty => totals.dirty_bytes.unwrap_or(0),
            Sort::Evicted => totals.evicted_bytes.unwrap_or(0),
        };
        lines.sort_by(|a, b| {
            key(&b.totals)
                .cmp(&key(&a.totals))
                .then_with(|| a.path.cmp(b.path))
        });
        lines
    }

    /// Returns the directories between the given paths and the files, each with its contents.
    fn folders<'a>(&'a self, states: &'a [State]) -> Vec<Row<'a>> {
        let mut folders: HashMap<&Path, Totals> = HashMap::new();
        let mut seen = HashSet::new();
        for state in states.iter().filter(|state| seen.insert(state.id)) {
            let totals = Totals::of(state);
            let roots = self
                .paths
                .iter()
                .filter(|root| state.path.starts_with(root));
            let Some(root) = roots.min_by_key(|root| root.components().count()) else {
                continue;
            };
            let top = root.components().count();
            for folder in state
                .path
                .ancestors()
                .skip(usize::from(state.path != *root))
            {
                let depth = folder.components().count();
                if depth < top {
                    break;
                }
                if self.max_depth.is_none_or(|most| depth - top <= most) {
                    folders
                        .entry(folder)
                        .or_insert_with(Totals::none)
                        .add(&totals);
                }
            }
        }
        folders
            .into_iter()
            .map(|(path, totals)| Row {
                path,
                state: None,
                totals,
            })
            .collect()
    }

    fn print(&self, lines: Vec<Row<'_>>, totals: &Totals) -> Outcome {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        if self.watch.is_on() {
            clear(&mut out)?;
        }
        writeln!(out, "{}", heading(head()))?;
        for line in lines {
            writeln!(
                out,
                "{}",
                line.totals
                    .line(&printable(&line.path.display().to_string()))
            )?;
        }
        let unknown = match totals.unknown_files {
            0 => String::new(),
            count => format!(", {count} with unknown residency"),
        };
        writeln!(
            out,
            "{}",
            totals.line(&format!(
                "{}{unknown}",
                crate::output::counted(totals.files, "file")
            ))
        )?;
        Ok(out.flush()?)
    }

    fn report<'a>(
        &self,
        all: &Walked<State>,
        totals: &'a Totals,
        lines: Vec<Row<'_>>,
        seconds: f64,
    ) -> StatusReport<'a> {
        let entries = lines
            .into_iter()
            .map(|line| Entry {
                path: PathRecord::new(line.path),
                kind: if line.state.is_some() {
                    "file"
                } else {
                    "directory"
                },
                unknown: line.state.and_then(unknown),
                totals: line.totals,
            })
            .collect();
        let failures = FailureRecord::list(&all.failures);
        StatusReport {
            totals,
            not_regular: all.special,
            seconds,
            entries,
            failures,
        }
    }
}

fn files<'a>(states: &'a [State]) -> Vec<Row<'a>> {
    let line = |state: &'a State| Row {
        path: &state.path,
        state: Some(state),
        totals: Totals::of(state),
    };
    states.iter().map(line).collect()
}
