//! The part that `folio warm` and `folio cache restore` share: the budget, the order, the progress
//! bar, the report.

use crate::exit::Outcome;
use crate::output::{FailureRecord, counted, human};
use crate::progress::Progress as Bar;
use crate::session::Session;
use clap::{Args, ValueEnum};
use folio_pagecache::{Found, Memory, Order, Progress, Warm, Warmed};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The interval of redraws and of checks for Ctrl-C.
const REDRAW: Duration = Duration::from_millis(50);

/// Options of commands that read files into memory.
#[derive(Args)]
pub(crate) struct Engine {
    /// Maximum number of bytes to read: a size, or a share of memory such as 50%; always limited to
    /// 90% of the available memory
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = budget)]
    budget: Option<Budget>,
    /// Order of the reads
    #[arg(long, value_enum, default_value_t = OrderOption::Auto)]
    order: OrderOption,
    /// Number of reading threads
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Read nothing, and report what would be read
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderOption {
    /// By place on the disk if the disk seeks, else by inode
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
    let Some(number) = text.strip_suffix('%') else {
        return crate::value_parsers::size(text)
            .map(Budget::Bytes)
            .map_err(String::from);
    };
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Budget::Share(percent / 100.0)),
        _ => Err(format!(
            "invalid budget {text:?}: expected a size or 0% to 100% (e.g. 512M or 50%)"
        )),
    }
}

/// What was read, and what was left out.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WarmReport {
    /// Examined files.
    files: u64,
    /// The ranges to read, in bytes: what is in use.
    size_bytes: u64,
    /// Of that, in memory before.
    resident_before_bytes: u64,
    /// Read.
    pub(crate) read_bytes: u64,
    /// Not read, because not in use: holes of files, and of the disks of images and block devices
    /// also the free blocks of an ext4.
    pub(crate) unused_bytes: u64,
    /// Left out, because of the budget or because memory ran short.
    over_budget_bytes: u64,
    /// Whether memory ran short: further reads would have evicted pages that were just read.
    memory_short: bool,
    /// The budget.
    budget_bytes: u64,
    /// Locked in memory, with --lock.
    pub(crate) locked_bytes: u64,
    /// FIFOs, sockets and devices in trees, which are not opened.
    pub(crate) not_regular: u64,
    /// Files of a saved set that were removed or replaced, with --strict also changed ones.
    pub(crate) changed_files: u64,
    order: Order,
    /// Duration.
    seconds: f64,
    dry_run: bool,
    /// Paths that could not be examined.
    pub(crate) failures: Vec<FailureRecord>,
}

impl Engine {
    /// Returns how many bytes to read: the requested budget, limited by the available memory.
    fn budget_bytes(&self, session: &Session) -> u64 {
        let memory = Memory::here();
        // More would evict pages that were just read.
        let room = memory.available_bytes / 10 * 9;
        let requested = match self.budget {
            None => return room,
            Some(Budget::Bytes(bytes)) => bytes,
            Some(Budget::Share(share)) => (memory.total_bytes as f64 * share) as u64,
        };
        if requested > room && !session.quiet {
            let (requested, room) = (human(requested), human(room));
            session.note(format_args!(
                "the budget of {requested} is cut to {room}: the limit is 90% of the available memory"
            ));
        }
        requested.min(room)
    }

    /// Reads `files` into memory, with a progress bar if one is visible.
    pub(crate) fn run(
        &self,
        files: &Arc<[Found]>,
        session: &Session,
    ) -> Outcome<(Warmed, WarmReport)> {
        let order = match self.order {
            OrderOption::Auto => Order::Auto,
            OrderOption::Inode => Order::Inode,
            OrderOption::Physical => Order::Physical,
        };
        let start = Instant::now();
        let budget_bytes = self.budget_bytes(session);
        let warm = Warm {
            order,
            threads: self.threads.into(),
            budget_bytes: if self.dry_run { 0 } else { budget_bytes },
        };
        let mut warmed = work(warm, files, session);
        session.check_interrupt()?;
        if self.dry_run {
            // Nothing was read; the rest is what the budget would not have allowed.
            warmed.over_budget_bytes = warmed.over_budget_bytes.saturating_sub(budget_bytes);
        }
        let report = WarmReport {
            files: warmed.files,
            size_bytes: warmed.size_bytes,
            resident_before_bytes: warmed.resident_before_bytes,
            read_bytes: warmed.read_bytes,
            unused_bytes: warmed.hole_bytes,
            over_budget_bytes: warmed.over_budget_bytes,
            memory_short: warmed.is_memory_short,
            budget_bytes,
            locked_bytes: 0,
            not_regular: 0,
            changed_files: 0,
            order: warmed.order,
            seconds: start.elapsed().as_secs_f64(),
            dry_run: self.dry_run,
            failures: Vec::new(),
        };
        Ok((warmed, report))
    }
}

/// Reads the files in a thread of its own. Ctrl-C does not wait for it: a read of a busy disk may
/// take seconds, and the end of the process ends it.
fn work(warm: Warm, files: &Arc<[Found]>, session: &Session) -> Warmed {
    let (progress, start) = (Arc::new(Progress::default()), Instant::now());
    let bar = Bar::new(session);
    let (ended, end) = mpsc::channel::<Warmed>();
    let (all, shared) = (files.clone(), progress.clone());
    std::thread::spawn(move || ended.send(warm.run(&all, &shared)));
    let mut shown = 0;
    let warmed = loop {
        match end.recv_timeout(REDRAW) {
            Ok(warmed) => break warmed,
            Err(RecvTimeoutError::Disconnected) => break Warmed::default(),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if session.is_interrupted() {
            progress.stop.store(true, Ordering::Relaxed);
            break Warmed::default();
        }
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (read, expected) = (of(&progress.read_bytes), of(&progress.expected_bytes));
        if expected > 0 {
            bar.expect(expected.min(warm.budget_bytes).max(read));
            bar.add(read - shown);
            shown = read;
        } else if bar.is_shown() {
            let rate = human((read as f64 / start.elapsed().as_secs_f64().max(1e-9)) as u64);
            bar.files(
                of(&progress.files),
                files.len() as u64,
                &format!("{}, {rate}/s", human(read)),
            );
        }
    };
    bar.finish();
    warmed
}

impl WarmReport {
    /// Prints the result, as JSON or as one line.
    pub(crate) fn print(&self, is_json: bool, session: &Session) -> Outcome {
        if is_json {
            return session.print_json(self);
        }
        let mut out = std::io::stdout().lock();
        let (files, size) = (counted(self.files, "file"), human(self.size_bytes));
        let there = human(self.resident_before_bytes);
        if self.dry_run {
            let missing = self.size_bytes - self.resident_before_bytes;
            let missing = human(missing.saturating_sub(self.over_budget_bytes));
            write!(
                out,
                "{files}, {size}: {there} in memory, {missing} to be read"
            )?;
            return self.print_left_out(out);
        }
        let rate = human((self.read_bytes as f64 / self.seconds.max(1e-9)) as u64);
        write!(
            out,
            "{files}, {size}: {there} were in memory, {} read",
            human(self.read_bytes)
        )?;
        write!(out, " in {:.2} s ({rate}/s)", self.seconds)?;
        self.print_left_out(out)
    }

    /// Ends the line with what is left out.
    fn print_left_out(&self, mut out: impl Write) -> Outcome {
        if self.unused_bytes > 0 {
            write!(out, "; {} left out: not in use", human(self.unused_bytes))?;
        }
        if self.over_budget_bytes > 0 {
            let (over, budget) = (human(self.over_budget_bytes), human(self.budget_bytes));
            if self.memory_short {
                write!(
                    out,
                    "; {over} left out: memory ran short before the budget of {budget}"
                )?;
            } else {
                write!(out, "; {over} left out: beyond the budget of {budget}")?;
            }
        }
        if self.changed_files > 0 {
            write!(
                out,
                "; {} left out: removed or replaced since the save",
                counted(self.changed_files, "file")
            )?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_size_or_percentage() {
        assert_eq!(budget("2G"), Ok(Budget::Bytes(2 << 30)));
        assert_eq!(budget("50%"), Ok(Budget::Share(0.5)));
        assert!(budget("150%").is_err() && budget("-1%").is_err() && budget("much").is_err());
    }
}
