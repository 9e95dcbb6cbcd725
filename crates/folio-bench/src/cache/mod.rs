//! The scenario `cache`: what is in memory, through Folio, through the kernel, and copied bare.
//!
//! ```text
//!   mod       which jobs, how many threads
//!   worlds    the file in each contender       jobs   what is done to it
//!   article   whole small files                cold   a file that is not in memory
//!   rounds    interleaved timing               table  aims, text, JSON
//! ```

mod article;
mod cold;
mod jobs;
mod rounds;
mod table;
mod worlds;

use crate::report::{Machine, told};
use jobs::{JOBS, Job, LARGE_JOB, Work, Worlds};
use rounds::{Effort, measure};
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::{Figure, Report, Row, Table};

/// What the scenario takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1000))]
    pub(crate) repeats: u32,
    /// Size of the file that is read and written, at least 1M.
    #[arg(long, default_value = "64M", value_parser = size)]
    pub(crate) set_bytes: u64,
    /// Size of the file whose pages are read at random in a job of their own.
    #[arg(long, default_value = "4G", value_parser = size)]
    pub(crate) large_set: u64,
    /// Size of the file that is read cold.
    #[arg(long, default_value = "1G", value_parser = size)]
    pub(crate) cold_bytes: u64,
    /// Only the jobs whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// A folder on a disk; without it, the system's folder for temporary files.
    #[arg(long)]
    pub(crate) disk_dir: Option<PathBuf>,
    /// Milliseconds that one measurement lasts at least.
    #[arg(long, default_value_t = 30)]
    pub(crate) least_ms: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of bytes: 64M, 4G.
fn size(text: &str) -> Result<u64, String> {
    let bytes =
        parse_size::Config::new().with_binary().parse_size(text).map_err(|error| error.to_string())?;
    if bytes < 1 << 20 { Err("at least 1M".to_owned()) } else { Ok(bytes) }
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    report(options)?.print(options.json)
}

fn report(options: &Options) -> Result<Report, String> {
    let tmpfs = worlds::find_tmpfs().ok_or("no tmpfs that may be written: mount one on /dev/shm")?;
    let disk = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut notes = vec![
        format!("the kernel's tmpfs is that of {}", tmpfs.display()),
        format!("the disk is {} ({})", disk.display(), Machine::here(&disk).dir_file_system()),
        "stat, open: of a path relative to an open folder, for Folio and for the kernel".to_owned(),
        "random offsets cost what the row offset says; every contender pays it".to_owned(),
    ];
    // Of the last minute, by others: nothing was measured yet.
    if let Ok(load) = std::fs::read_to_string("/proc/loadavg") {
        let minute = load.split(' ').next().unwrap_or_default();
        notes.push(format!(
            "load average before the first round: {minute}; two threads need two processors to themselves"
        ));
    }
    if cfg!(debug_assertions) {
        notes.push("NOT AN OPTIMISED BUILD: run it with cargo run --release".to_owned());
    }
    let effort = Effort { repeats: options.repeats, least: Duration::from_millis(options.least_ms) };
    let mut tables = Vec::new();
    tables.extend(memory(options, effort, &tmpfs, &mut notes)?);
    tables.extend(article::table(options, effort, &tmpfs, &disk, &mut notes)?);
    tables.extend(cold::table(options, &disk, &mut notes)?);
    Ok(Report::new(Machine::here(&tmpfs), options.repeats, tables, notes))
}

impl Options {
    /// Whether this job was asked for.
    fn wants(&self, job: &str) -> bool {
        self.only.as_ref().is_none_or(|only| job.contains(only.as_str()))
    }
}

/// The jobs on files that are in memory.
fn memory(
    options: &Options,
    effort: Effort,
    tmpfs: &Path,
    notes: &mut Vec<String>,
) -> Result<Option<Table>, String> {
    let mut rows = Vec::new();
    let jobs: Vec<_> = JOBS.into_iter().filter(|job| options.wants(job.name)).collect();
    if !jobs.is_empty() {
        let worlds = worlds(options.set_bytes, tmpfs)?;
        for job in jobs {
            match job.work {
                Work::Read { len_bytes, .. } | Work::Write { len_bytes, .. }
                    if len_bytes * 2 > options.set_bytes && len_bytes != options.set_bytes =>
                {
                    notes.push(format!("not measured: {}: the set is too small", job.name));
                }
                _ => rows.extend(threads(&worlds, job, effort, notes)?),
            }
        }
    }
    if options.wants(LARGE_JOB.name) {
        match room(options.large_set) {
            Ok(()) => rows.extend(threads(&worlds(options.large_set, tmpfs)?, LARGE_JOB, effort, notes)?),
            Err(reason) => notes.push(format!("not measured: {}: {reason}", LARGE_JOB.name)),
        }
    }
    let title = format!(
        "in memory, a file of {} MiB; large: {} MiB",
        options.set_bytes >> 20,
        options.large_set >> 20
    );
    let contenders = vec![jobs::FOLIO, jobs::KERNEL, jobs::MEMCPY];
    Ok((!rows.is_empty()).then_some(Table { title, contenders, rows }))
}

fn worlds(set_bytes: u64, tmpfs: &Path) -> Result<Worlds, String> {
    let worlds = Worlds {
        folio: worlds::FolioWorld::new(set_bytes)?,
        kernel: worlds::KernelWorld::new(tmpfs, set_bytes)?,
        memory: worlds::Memory::new(set_bytes)?,
        set_bytes,
    };
    worlds.warm()?;
    Ok(worlds)
}

/// Whether three sets fit into memory, one per contender, with some air.
fn room(set_bytes: u64) -> Result<(), String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(told("/proc/meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free_kib = line.and_then(|line| line.trim().split(' ').next()).and_then(|number| number.parse().ok());
    let free_kib: u64 = free_kib.ok_or("/proc/meminfo has no MemAvailable")?;
    let (need_mib, free_mib) = ((set_bytes >> 20) * 13 / 4, free_kib >> 10);
    if free_mib >= need_mib {
        return Ok(());
    }
    Err(format!("three sets need {need_mib} MiB of memory, {free_mib} are free"))
}

/// A job with one thread, and with two where there are two processors.
fn threads(worlds: &Worlds, job: Job, effort: Effort, notes: &mut Vec<String>) -> Result<Vec<Row>, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        notes.push(format!("not measured: {} with two threads: one processor", job.name));
    }
    let contenders = worlds.contenders(job);
    let bytes = match job.work {
        Work::Read { len_bytes, .. } | Work::Write { len_bytes, .. } => len_bytes,
        _ => 0,
    };
    let mut rows: Vec<Row> = Vec::new();
    for threads in (1..=2).filter(|threads| *threads == 1 || processors >= 2) {
        let rounds = measure(&contenders, threads, effort).map_err(told(job.name))?;
        let names = contenders.iter().map(|contender| contender.name);
        let mut figures: Vec<_> = names.zip(rounds).map(|(name, rounds)| Figure::new(name, rounds)).collect();
        for figure in &mut figures {
            let one = rows.first().and_then(|row| row.figure(figure.contender));
            figure.scaling = one.map(|one| one.median_ns / figure.median_ns);
        }
        let row = Row::new(job.name, threads, bytes, figures);
        for figure in &row.figures {
            if ![jobs::FOLIO, jobs::KERNEL, jobs::MEMCPY].contains(&figure.contender) {
                let ns = figure.median_ns;
                let name = figure.contender;
                let ratio = row.ratio(name, jobs::FOLIO).map(|ratio| format!(", {ratio:.1} times Folio's"));
                let ratio = ratio.unwrap_or_default();
                notes.push(format!("{}, {threads} threads: {name}: {ns:.1} ns{ratio}", job.name));
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_on_tiny_sets() {
        let disk = tempfile::tempdir().expect("a folder");
        let options = Options {
            repeats: 1,
            set_bytes: 2 << 20,
            large_set: 2 << 20,
            cold_bytes: 2 << 20,
            only: None,
            disk_dir: Some(disk.path().to_path_buf()),
            least_ms: 0,
            json: false,
        };
        let report = report(&options).expect("a report");
        let jobs: Vec<_> = report.tables.iter().flat_map(|table| &table.rows).map(|row| row.job).collect();
        for job in JOBS.iter().map(|job| job.name).chain([LARGE_JOB.name, "article-read", "article-write"]) {
            let told = report.notes.iter().any(|note| note.contains(job));
            assert!(jobs.contains(&job) || told, "{job}: {jobs:?}");
        }
        assert!(jobs.contains(&"cold-read") || report.notes.iter().any(|note| note.contains("cold-read")));
        assert!(report.verdicts.len() >= 12);
        report.print(true).expect("JSON");
        report.print(false).expect("text");
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert!(size("3").is_err());
    }
}
