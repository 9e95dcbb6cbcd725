//! `folio cache top`: shows which files fill the page cache.

use crate::exit::Outcome;
use crate::output::color::heading;
use crate::output::{FailureRecord, PathRecord, counted, human};
use crate::progress::Progress;
use crate::session::Session;
use clap::{Args, ValueEnum};
use folio_pagecache::{CachedFile, MemInfo, Mounts, Scan, Top as Found, top};
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  folio cache top                                  files of all mounts, and deleted files that programs still hold
  folio cache top --by folder --depth 3            directories instead of files
  folio cache top /var/lib -n 5 --json

Without paths, the command walks all local file systems, and the files without a name that programs have open or
mapped. Run it as root: the kernel does not report to other users files without write permission, nor other users'
programs. Network file systems and FUSE are walked only if named. Overlays are walked only if they are the root.";

/// Show which files fill the page cache
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Top {
    /// Show only files below these paths
    paths: Vec<PathBuf>,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "LINES", default_value_t = 20)]
    limit: usize,
    /// Show files, or directories with their contents
    #[arg(long, value_enum, default_value_t = By::File)]
    by: By,
    /// With --by folder: level of the directories below the root
    #[arg(long, value_name = "LEVELS", default_value_t = 2)]
    depth: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    File,
    Folder,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TopReport {
    /// Examined files.
    files_seen: u64,
    /// Files with pages in memory.
    files: u64,
    /// In memory.
    resident_bytes: u64,
    /// Of that, dirty.
    dirty_bytes: u64,
    /// Files whose residency the kernel does not report.
    unknown_files: u64,
    /// Cached according to the kernel; null if only some paths were walked.
    cached_bytes: Option<u64>,
    /// Pages of block devices.
    buffers_bytes: Option<u64>,
    /// Cached, but in no file that was found.
    #[serde(rename = "untold_bytes")]
    unexplained_bytes: Option<u64>,
    /// Duration.
    seconds: f64,
    /// Mounts that were not walked.
    left_out: Vec<SkippedMount>,
    entries: Vec<Row>,
    /// Paths that could not be examined.
    failures: Vec<FailureRecord>,
}

/// A mount that was not walked.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SkippedMount {
    #[serde(flatten)]
    path: PathRecord,
    kind: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Row {
    #[serde(flatten)]
    path: PathRecord,
    #[serde(rename = "type")]
    #[cfg_attr(test, schemars(extend("enum" = ["file", "directory"])))]
    kind: &'static str,
    /// Files.
    files: u64,
    /// Their size.
    size_bytes: u64,
    /// In memory.
    resident_bytes: u64,
    /// Of that, dirty.
    dirty_bytes: u64,
    /// A program that holds the file, if no walk found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
}

/// Runs the command.
pub(super) fn run(command: &Top, session: &Session) -> Outcome {
    let start = Instant::now();
    let is_whole = command.paths.is_empty();
    let mounts = if is_whole {
        Mounts::here()
    } else {
        Mounts::default()
    };
    let mut paths = command.paths.clone();
    paths.extend(mounts.near.iter().map(|mount| mount.path.clone()));
    let scan = Scan {
        stays_on_file_system: is_whole,
        stop: Some(session.stop_flag()),
        ..Scan::default()
    };
    let bar = Progress::counting(session);
    let seen = AtomicU64::new(0);
    let found = bar.follow(&seen, || top(&scan, &paths, is_whole, &seen));
    session.check_interrupt()?;
    // On a whole machine files come and go during the walk. Failures matter only for named paths.
    if !is_whole {
        found
            .failures
            .iter()
            .for_each(|(path, reason)| session.fail_on(path, reason));
    }
    let resident_bytes = found.held.iter().map(resident).sum();
    let memory = is_whole.then(MemInfo::now);
    let report = TopReport {
        files_seen: seen.into_inner(),
        files: found.held.len() as u64,
        resident_bytes,
        dirty_bytes: found.held.iter().map(dirty).sum(),
        unknown_files: found.unknown_files,
        cached_bytes: memory.as_ref().map(|memory| memory.cached_bytes),
        buffers_bytes: memory.as_ref().map(|memory| memory.buffers_bytes),
        unexplained_bytes: memory
            .as_ref()
            .map(|memory| memory.cached_bytes.saturating_sub(resident_bytes)),
        seconds: start.elapsed().as_secs_f64(),
        left_out: mounts
            .far
            .iter()
            .map(|mount| SkippedMount {
                path: PathRecord::new(&mount.path),
                kind: mount.kind.clone(),
            })
            .collect(),
        entries: command.lines(&found),
        failures: FailureRecord::list(&found.failures),
    };
    if command.json {
        session.print_json(&report)
    } else {
        report.print(session)
    }
}

fn resident(held: &CachedFile) -> u64 {
    held.state
        .residency()
        .map_or(0, |residency| residency.resident_bytes)
}

fn dirty(held: &CachedFile) -> u64 {
    held.state
        .residency()
        .and_then(|residency| residency.dirty_bytes)
        .unwrap_or(0)
}

impl Top {
    fn lines(&self, found: &Found) -> Vec<Row> {
        let mut lines: Vec<Row> = match self.by {
            By::File => found.held.iter().take(self.limit).map(Row::of).collect(),
            By::Folder => self.folders(found),
        };
        lines.sort_by(|a, b| {
            b.resident_bytes
                .cmp(&a.resident_bytes)
                .then_with(|| a.path.text().cmp(&b.path.text()))
        });
        lines.truncate(self.limit);
        lines
    }

    /// Sums files by their ancestor directory `depth` levels below the root, or by their own
    /// directory if that is higher.
    fn folders(&self, found: &Found) -> Vec<Row> {
        let mut folders: HashMap<PathBuf, Row> = HashMap::new();
        for held in &found.held {
            let path =
                std::path::absolute(&held.state.path).unwrap_or_else(|_| held.state.path.clone());
            let folder = path.parent().map_or(&*path, |parent| parent);
            let folder: PathBuf = folder.components().take(self.depth + 1).collect();
            let line = Row {
                files: 0,
                size_bytes: 0,
                resident_bytes: 0,
                dirty_bytes: 0,
                ..Row::of(held)
            };
            let line = folders.entry(folder.clone()).or_insert_with(|| Row {
                path: PathRecord::new(&folder),
                kind: "directory",
                pid: None,
                program: None,
                ..line
            });
            line.files += 1;
            line.size_bytes += held.state.size_bytes;
            line.resident_bytes += resident(held);
            line.dirty_bytes += dirty(held);
        }
        folders.into_values().collect()
    }
}

impl Row {
    fn of(held: &CachedFile) -> Self {
        Self {
            path: PathRecord::new(&held.state.path),
            kind: "file",
            files: 1,
            size_bytes: held.state.size_bytes,
            resident_bytes: resident(held),
            dirty_bytes: dirty(held),
            pid: held.holder.as_ref().map(|(pid, _)| *pid),
            program: held.holder.as_ref().map(|(_, name)| name.clone()),
        }
    }
}

impl TopReport {
    fn print(&self, session: &Session) -> Outcome {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        let titles = format!("{:>7} {:>7} {:>7}  PATH", "CACHED", "SIZE", "DIRTY");
        writeln!(out, "{}", heading(titles))?;
        for line in &self.entries {
            let (resident, size, dirty) = (
                human(line.resident_bytes),
                human(line.size_bytes),
                human(line.dirty_bytes),
            );
            write!(
                out,
                "{resident:>7} {size:>7} {dirty:>7}  {}",
                line.path.text()
            )?;
            match (&line.program, line.pid, line.kind) {
                (Some(program), Some(pid), _) => writeln!(out, " ({program}, {pid})")?,
                (_, _, "directory") => writeln!(out, " ({})", counted(line.files, "file"))?,
                _ => writeln!(out)?,
            }
        }
        let resident = human(self.resident_bytes);
        write!(
            out,
            "{resident:>7} of {}, {} examined",
            counted(self.files, "file"),
            self.files_seen
        )?;
        writeln!(out, " in {:.1} s", self.seconds)?;
        if let (Some(cached), Some(buffers)) = (self.cached_bytes, self.buffers_bytes) {
            let unexplained = human(self.unexplained_bytes.unwrap_or(0));
            writeln!(
                out,
                "{:>7} are cached according to the kernel; {unexplained} of it belongs to no file that was found",
                human(cached)
            )?;
            writeln!(out, "{:>7} more belong to block devices", human(buffers))?;
        }
        out.flush()?;
        drop(out);
        if session.quiet {
            return Ok(());
        }
        if self.unknown_files > 0 {
            session.note(format_args!(
                "residency unknown for {}: run this command as root",
                counted(self.unknown_files, "file")
            ));
        }
        for mount in &self.left_out {
            let (path, kind) = (mount.path.text(), &mount.kind);
            session.note(format_args!("{path} ({kind}): skipped; name it to walk it"));
        }
        Ok(())
    }
}
