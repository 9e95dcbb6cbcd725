//! `folio warm`: files brought into the host kernel's page cache before somebody needs them.

use crate::exit::{Failure, Outcome};
use crate::output::human;
use crate::progress::Progress as Bar;
use crate::session::Session;
use clap::{Args, ValueEnum};
use folio_pagecache::{Locked, Memory, Order, Progress, Scan, Warm, Warmed};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  folio warm /var/lib/mysql                        everything below, before mysqld starts
  folio warm --include '*.ibd' --budget 60% /var/lib/mysql
  folio warm --recipe /etc/folio/warm.txt --json   what a recipe names
  folio warm --lock /srv/index                     keep it in memory until Ctrl-C
  folio warm --dry-run /srv                        what would be read

A recipe has a path on each line; + GLOB and - GLOB are like --include and --exclude, # begins a remark.

What is in memory is not read again. Files are read by 16 threads in the order of their inodes, or, on disks that seek,
in the order of their places on the disk. Links below the paths are not followed unless -L is given.";

/// Bring files into the page cache of the host's kernel
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WarmCommand {
    /// Files and folders
    #[arg(required_unless_present = "recipe")]
    paths: Vec<PathBuf>,
    /// More paths and globs, from a file
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// Bring in so much at most: a size, or a share of memory as 50%; without it, 90% of what is available
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = budget)]
    budget: Option<Budget>,
    /// Only files whose path or name matches; may be repeated
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// No files and no folders whose path or name matches; may be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Follow symbolic links below the paths
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Leave other file systems mounted below the paths alone
    #[arg(long)]
    one_file_system: bool,
    /// The order of reads
    #[arg(long, value_enum, default_value_t = OrderWord::Auto)]
    order: OrderWord,
    /// Threads that read
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Lock the files in memory (mlock), and stay until Ctrl-C
    #[arg(long)]
    lock: bool,
    /// Read nothing, tell what would be read
    #[arg(long, conflicts_with = "lock")]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderWord {
    /// By place where the disk seeks, else by inode
    Auto,
    /// By inode number
    Inode,
    /// By place on the disk
    Physical,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Budget {
    Bytes(u64),
    Share(f64),
}

fn budget(text: &str) -> Result<Budget, String> {
    let Some(number) = text.strip_suffix('%') else { return crate::args::size(text).map(Budget::Bytes) };
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Budget::Share(percent / 100.0)),
        _ => Err(format!("{text:?} is no share of memory; write 50%")),
    }
}

/// What is looked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    paths: Vec<PathBuf>,
    include: Vec<String>,
    exclude: Vec<String>,
}

impl Wanted {
    /// Adds what a recipe names.
    fn add_recipe(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(glob) = line.strip_prefix("+ ") {
                self.include.push(glob.trim().to_owned());
            } else if let Some(glob) = line.strip_prefix("- ") {
                self.exclude.push(glob.trim().to_owned());
            } else {
                self.paths.push(line.into());
            }
        }
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
    set.build().map(Some).map_err(|error| Failure::usage(error.to_string()))
}

#[derive(Serialize)]
struct Told<'a> {
    files: u64,
    size_bytes: u64,
    resident_before_bytes: u64,
    read_bytes: u64,
    over_budget_bytes: u64,
    budget_bytes: u64,
    locked_bytes: u64,
    not_regular: u64,
    order: Order,
    seconds: f64,
    dry_run: bool,
    failures: Vec<ToldFailure<'a>>,
}

#[derive(Serialize)]
struct ToldFailure<'a> {
    path: String,
    reason: &'a str,
}

/// Runs the command.
pub(crate) fn run(command: &WarmCommand, session: &Session) -> Outcome {
    session.refuse_options()?;
    let mut wanted = Wanted {
        paths: command.paths.clone(),
        include: command.include.clone(),
        exclude: command.exclude.clone(),
    };
    if let Some(recipe) = &command.recipe {
        let text = std::fs::read_to_string(recipe);
        wanted.add_recipe(&text.map_err(|error| Failure::new(format!("{}: {error}", recipe.display())))?);
    }
    let start = Instant::now();
    let scan = Scan {
        include: globs(&wanted.include)?,
        exclude: globs(&wanted.exclude)?,
        follows_links: command.dereference,
        stays_on_file_system: command.one_file_system,
        threads: 0,
    };
    let mut files = scan.files(&wanted.paths);
    let memory = Memory::here();
    let budget_bytes = match command.budget {
        _ if command.dry_run => 0,
        None => memory.available_bytes / 10 * 9,
        Some(Budget::Bytes(bytes)) => bytes,
        Some(Budget::Share(share)) => (memory.total_bytes as f64 * share) as u64,
    };
    let order = match command.order {
        OrderWord::Auto => Order::Auto,
        OrderWord::Inode => Order::Inode,
        OrderWord::Physical => Order::Physical,
    };
    let warm = Warm { order, threads: command.threads.into(), budget_bytes };
    let mut warmed = work(&warm, &files.found, session);
    session.check_interrupt()?;
    warmed.failures.append(&mut files.failures);
    warmed.failures.sort();
    let locked = if command.lock { lock(&files.found, &mut warmed) } else { Locks::default() };
    for (path, reason) in &warmed.failures {
        session.fail(format_args!("{}: {reason}", path.display()));
    }
    let told = Told {
        files: warmed.files,
        size_bytes: warmed.size_bytes,
        resident_before_bytes: warmed.resident_before_bytes,
        read_bytes: warmed.read_bytes,
        over_budget_bytes: warmed.over_budget_bytes,
        budget_bytes,
        locked_bytes: locked.bytes,
        not_regular: files.special,
        order: warmed.order,
        seconds: start.elapsed().as_secs_f64(),
        dry_run: command.dry_run,
        failures: warmed
            .failures
            .iter()
            .map(|(path, reason)| ToldFailure { path: path.display().to_string(), reason })
            .collect(),
    };
    match command.json {
        true => session.print_json(&told)?,
        false => tell(&told)?,
    }
    if command.lock {
        stay(locked, session)?;
    }
    Ok(())
}

/// How often the bar is drawn anew, and Ctrl-C looked for.
const REDRAW: Duration = Duration::from_millis(50);

/// Reads, with a bar if somebody sees it.
fn work(warm: &Warm, files: &[folio_pagecache::Found], session: &Session) -> Warmed {
    let progress = Progress::default();
    let bar = Bar::new(session);
    let (ended, end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let progress = &progress;
        let worker = scope.spawn(move || {
            let _ended = ended;
            warm.run(files, progress)
        });
        let mut shown = 0;
        while end.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
            if session.is_interrupted() {
                progress.stop.store(true, Ordering::Relaxed);
            }
            let (read, expected) = (
                progress.read_bytes.load(Ordering::Relaxed),
                progress.expected_bytes.load(Ordering::Relaxed),
            );
            if expected > 0 {
                bar.expect(expected);
            }
            bar.add(read - shown);
            shown = read;
        }
        bar.finish();
        worker.join().unwrap_or_default()
    })
}

/// Files that are held in memory.
#[derive(Default)]
struct Locks {
    held: Vec<Locked>,
    bytes: u64,
}

fn lock(files: &[folio_pagecache::Found], warmed: &mut Warmed) -> Locks {
    let mut locks = Locks::default();
    for found in files {
        let locked = File::open(&found.path).and_then(|file| {
            let size_bytes = file.metadata()?.len();
            locks.held.push(Locked::new(&file, size_bytes)?);
            locks.bytes += size_bytes;
            Ok(())
        });
        if let Err(error) = locked {
            let hint = "; more may be locked after ulimit -l unlimited, or by root";
            let hint = if matches!(error.raw_os_error(), Some(11 | 12 | 1)) { hint } else { "" };
            warmed.failures.push((found.path.clone(), format!("cannot be locked: {error}{hint}")));
            break;
        }
    }
    locks
}

fn stay(locks: Locks, session: &Session) -> Outcome {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !session.quiet {
        session.remark(format_args!("{} locked in memory until Ctrl-C", human(locks.bytes)));
    }
    if !session.is_interrupted() {
        let _ = signals.forever().next();
    }
    drop(locks);
    Ok(())
}

fn tell(told: &Told<'_>) -> Outcome {
    let mut out = std::io::stdout().lock();
    let (files, size) = (told.files, human(told.size_bytes));
    let there = human(told.resident_before_bytes);
    if told.dry_run {
        let missing = human(told.size_bytes - told.resident_before_bytes);
        writeln!(out, "{files} files, {size}: {there} in memory, {missing} to be read")?;
        return Ok(out.flush()?);
    }
    let rate = human((told.read_bytes as f64 / told.seconds.max(1e-9)) as u64);
    write!(out, "{files} files, {size}: {there} were in memory, {} read", human(told.read_bytes))?;
    write!(out, " in {:.2} s ({rate}/s)", told.seconds)?;
    if told.over_budget_bytes > 0 {
        let over = human(told.over_budget_bytes);
        write!(out, "; {over} left out: more than the budget of {}", human(told.budget_bytes))?;
    }
    writeln!(out)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sizes_or_shares() {
        assert_eq!(budget("2G"), Ok(Budget::Bytes(2 << 30)));
        assert_eq!(budget("50%"), Ok(Budget::Share(0.5)));
        assert!(budget("150%").is_err() && budget("-1%").is_err() && budget("much").is_err());
    }

    #[test]
    fn a_recipe_names_paths_and_globs() {
        let mut wanted = Wanted::default();
        wanted.add_recipe("# the database\n/var/lib/mysql\n\n+ *.ibd\n - *.log\n");
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(wanted.paths, [PathBuf::from("/var/lib/mysql")]);
        assert_eq!((wanted.include, wanted.exclude), (words(&["*.ibd"]), words(&["*.log"])));
    }
}
