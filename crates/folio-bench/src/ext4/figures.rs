//! What the ext4 scenarios print: medians of rounds, the bytes that reached the disk, and whether aims are met.

use crate::report::{Machine, middle};
use serde::Serialize;

/// One contender at one job, all rounds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Cell {
    pub(crate) median_seconds: f64,
    /// Written to the disk while the clock ran, in MiB; median.
    pub(crate) median_written_mib: f64,
    rounds_seconds: Vec<f64>,
    rounds_written_mib: Vec<f64>,
}

/// One contender.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    pub(crate) cells: Vec<Cell>,
}

/// Contenders by jobs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) jobs: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// An aim, and what came out.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) aim: String,
    pub(crate) is_met: bool,
    pub(crate) figures: String,
}

/// Everything that a run tells.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    pub(crate) repeats: u32,
    pub(crate) machine: Machine,
    pub(crate) tables: Vec<Table>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) notes: Vec<String>,
}

impl Cell {
    /// Adds a round.
    pub(crate) fn add(&mut self, seconds: f64, written_bytes: u64) {
        self.rounds_seconds.push(seconds);
        self.rounds_written_mib.push(written_bytes as f64 / f64::from(1 << 20));
        self.median_seconds = middle(self.rounds_seconds.clone());
        self.median_written_mib = middle(self.rounds_written_mib.clone());
    }
}

impl Table {
    /// A table without rounds.
    pub(crate) fn new(title: String, jobs: &[&str], contenders: &[String]) -> Self {
        let cells = vec![Cell::default(); jobs.len()];
        let row = |name: &String| Row { contender: name.clone(), cells: cells.clone() };
        let jobs = jobs.iter().map(|job| (*job).to_owned()).collect();
        Self { title, jobs, rows: contenders.iter().map(row).collect() }
    }

    /// Seconds of a contender at a job, if both are there and were measured.
    pub(crate) fn seconds(&self, contender: &str, job: &str) -> Option<f64> {
        let at = self.jobs.iter().position(|other| other == job)?;
        let row = self.rows.iter().find(|row| row.contender == contender)?;
        let seconds = row.cells[at].median_seconds;
        (seconds > 0.0).then_some(seconds)
    }

    /// Whether `ours` takes at most the time of `theirs`, `factor` times over; `None` if one was not measured.
    pub(crate) fn compare(&self, job: &str, ours: &str, theirs: &str, factor: f64) -> Option<Verdict> {
        let (our_seconds, their_seconds) = (self.seconds(ours, job)?, self.seconds(theirs, job)?);
        let ratio = their_seconds / our_seconds;
        let aim = match factor {
            1.0 => format!("{}, {job}: {ours} is no slower than {theirs}", self.title),
            _ => format!("{}, {job}: {ours} is {factor} times as fast as {theirs}", self.title),
        };
        let figures = format!("{our_seconds:.3} s against {their_seconds:.3} s, {ratio:.2} times");
        Some(Verdict { aim, is_met: ratio >= factor, figures })
    }

    fn print(&self) {
        println!("\n{}: seconds, and MiB written meanwhile", self.title);
        let name = self.rows.iter().map(|row| row.contender.len()).max().unwrap_or(0);
        let widths: Vec<usize> = self.jobs.iter().map(|job| job.len().max(16)).collect();
        print!("{:<name$}", "");
        self.jobs.iter().zip(&widths).for_each(|(job, width)| print!("  {job:>width$}"));
        println!();
        for row in &self.rows {
            print!("{:<name$}", row.contender);
            for (cell, width) in row.cells.iter().zip(&widths) {
                let text = format!("{:.3} {:>7.1}", cell.median_seconds, cell.median_written_mib);
                print!("  {text:>width$}");
            }
            println!();
        }
    }
}

impl Report {
    /// Prints the report to standard output.
    pub(crate) fn print(&self, json: bool) -> Result<(), String> {
        if json {
            println!("{}", serde_json::to_string_pretty(self).map_err(|error| error.to_string())?);
            return Ok(());
        }
        println!("{}: {}; {} rounds, interleaved", self.scenario, self.machine.words(), self.repeats);
        self.tables.iter().for_each(Table::print);
        if !self.verdicts.is_empty() {
            println!("\naims:");
        }
        for verdict in &self.verdicts {
            let word = if verdict.is_met { "met" } else { "NOT MET" };
            println!("- {word}: {}: {}", verdict.aim, verdict.figures);
        }
        println!("\nnotes:");
        self.notes.iter().for_each(|note| println!("- {note}"));
        Ok(())
    }
}
