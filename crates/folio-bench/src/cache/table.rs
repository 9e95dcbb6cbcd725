//! What the scenario prints: rows of contenders, aims met or missed, the machine and the limits of it all.

use super::jobs::{FOLIO, KERNEL, MEMCPY};
use crate::report::{Machine, middle};
use serde::Serialize;

/// What the numbers do not mean.
const LIMITS: [&str; 5] = [
    "the kernel also pays for what a library does not have: the way into it and back, isolation from the caller, \
     checks of user memory, security hooks",
    "bare memcpy knows where the bytes lie: no file, no size, no page that might go away",
    "two threads: nanoseconds are those of both together, so half is perfect; writers keep to parts of their own",
    "ratios are those of medians; a spread as wide as the distance says that there was no silence",
    "one machine: compare ratios, and run it on yours",
];

/// One contender's nanoseconds per operation.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) contender: &'static str,
    pub(crate) median_ns: f64,
    pub(crate) least_ns: f64,
    pub(crate) most_ns: f64,
    pub(crate) rounds_ns: Vec<f64>,
    /// Operations per second as a multiple of those of one thread.
    pub(crate) scaling: Option<f64>,
}

impl Figure {
    /// The median and spread of `rounds_ns`.
    pub(crate) fn new(contender: &'static str, rounds_ns: Vec<f64>) -> Self {
        Self {
            contender,
            median_ns: middle(rounds_ns.clone()),
            least_ns: rounds_ns.iter().copied().fold(f64::INFINITY, f64::min),
            most_ns: rounds_ns.iter().copied().fold(0.0, f64::max),
            rounds_ns,
            scaling: None,
        }
    }
}

/// One job with so many threads.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) job: &'static str,
    pub(crate) threads: u64,
    /// Bytes that one operation moves; 0 for lookups.
    pub(crate) bytes: u64,
    pub(crate) figures: Vec<Figure>,
    /// The kernel's time over Folio's.
    pub(crate) times_kernel: Option<f64>,
    /// Bare memcpy's time over Folio's: the share of its rate.
    pub(crate) of_memcpy: Option<f64>,
}

impl Row {
    /// A row with its ratios.
    pub(crate) fn new(job: &'static str, threads: u64, bytes: u64, figures: Vec<Figure>) -> Self {
        let mut row = Self { job, threads, bytes, figures, times_kernel: None, of_memcpy: None };
        row.times_kernel = row.ratio(KERNEL, FOLIO);
        row.of_memcpy = row.ratio(MEMCPY, FOLIO);
        row
    }

    /// The figure of a contender.
    pub(crate) fn figure(&self, contender: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.contender == contender)
    }

    /// Median time of one contender over another's.
    pub(crate) fn ratio(&self, of: &str, over: &str) -> Option<f64> {
        Some(self.figure(of)?.median_ns / self.figure(over)?.median_ns)
    }
}

/// What a row should reach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Aim {
    /// With one thread, at least this share of bare memcpy's rate.
    OfMemcpy(f64),
    /// With one thread, at least so many times the kernel's rate.
    TimesKernel(f64),
    /// With two threads, at least so many times the rate of one.
    Scaling(f64),
    /// With two threads, at least 1.8 times the rate of one, or 0.95 of how bare memcpy scales.
    ScalesAsMemcpy,
    /// Time of the first contender over the second's at most this.
    AtMost(f64, &'static str, &'static str),
}

/// Of a lookup, and of what memory bandwidth limits.
const SCALING: f64 = 1.8;
const SCALING_OF_MEMCPY: f64 = 0.95;

/// What the rows should reach.
pub(crate) const AIMS: [(&str, Aim); 24] = [
    ("pread-4k-random", Aim::OfMemcpy(0.9)),
    ("pread-4k-random", Aim::TimesKernel(2.5)),
    ("pread-4k-random-large", Aim::OfMemcpy(0.9)),
    ("pread-4k-random-large", Aim::TimesKernel(2.5)),
    ("pread-1-random", Aim::TimesKernel(15.0)),
    ("pread-200k-seq", Aim::OfMemcpy(0.95)),
    ("pread-200k-random", Aim::OfMemcpy(0.95)),
    ("pwrite-4k-random", Aim::TimesKernel(2.5)),
    ("stat-1", Aim::TimesKernel(8.0)),
    ("stat-4", Aim::TimesKernel(8.0)),
    ("fstat", Aim::TimesKernel(8.0)),
    ("open-close", Aim::TimesKernel(8.0)),
    ("stat-1", Aim::Scaling(SCALING)),
    ("stat-4", Aim::Scaling(SCALING)),
    ("fstat", Aim::Scaling(SCALING)),
    ("open-close", Aim::Scaling(SCALING)),
    ("pread-1-random", Aim::ScalesAsMemcpy),
    ("pread-4k-random", Aim::ScalesAsMemcpy),
    ("pread-4k-random-large", Aim::ScalesAsMemcpy),
    ("pread-200k-seq", Aim::ScalesAsMemcpy),
    ("pread-200k-random", Aim::ScalesAsMemcpy),
    ("pread-1m-random", Aim::ScalesAsMemcpy),
    ("pwrite-4k-random", Aim::ScalesAsMemcpy),
    ("cold-read", Aim::AtMost(1.05, super::cold::FOLIO, super::cold::HOST)),
];

/// Whether an aim was reached.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    job: &'static str,
    aim: String,
    figure: f64,
    is_met: bool,
}

impl Aim {
    /// The verdict on `row`, if the aim is about it.
    fn judge(self, row: &Row) -> Option<Verdict> {
        let scaling = |name| row.figure(name).and_then(|figure| figure.scaling);
        let (aim, figure, is_met) = match self {
            Self::OfMemcpy(least) if row.threads == 1 => {
                (format!("at least {least} of memcpy's rate"), row.of_memcpy?, row.of_memcpy? >= least)
            }
            Self::TimesKernel(least) if row.threads == 1 => {
                (format!("at least {least} times the kernel"), row.times_kernel?, row.times_kernel? >= least)
            }
            Self::Scaling(least) if row.threads == 2 => {
                (format!("two threads: at least {least} of one"), scaling(FOLIO)?, scaling(FOLIO)? >= least)
            }
            Self::ScalesAsMemcpy if row.threads == 2 => {
                let (folio, memcpy) = (scaling(FOLIO)?, scaling(MEMCPY)?);
                let least = SCALING.min(memcpy * SCALING_OF_MEMCPY);
                let aim = format!("two threads: {SCALING}, or as memcpy ({memcpy:.2})");
                (aim, folio, folio >= least)
            }
            Self::AtMost(most, of, over) if row.threads == 1 => {
                let ratio = row.ratio(of, over)?;
                (format!("at most {most} of the time of: {over}"), ratio, ratio <= most)
            }
            _ => return None,
        };
        Some(Verdict { job: row.job, aim, figure, is_met })
    }
}

/// Rows with the same contenders.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) contenders: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
}

/// Everything that a run tells.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    pub(crate) machine: Machine,
    pub(crate) huge_pages: String,
    pub(crate) repeats: u32,
    pub(crate) tables: Vec<Table>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) notes: Vec<String>,
    pub(crate) limits: [&'static str; 5],
}

impl Report {
    /// The report of `tables`, judged.
    pub(crate) fn new(machine: Machine, repeats: u32, tables: Vec<Table>, notes: Vec<String>) -> Self {
        let rows = || tables.iter().flat_map(|table| &table.rows);
        let judged = AIMS.iter().flat_map(|(job, aim)| {
            rows().filter(move |row| row.job == *job).filter_map(move |row| aim.judge(row))
        });
        let verdicts = judged.collect();
        Self {
            scenario: "cache",
            machine,
            huge_pages: huge_pages(),
            repeats,
            tables,
            verdicts,
            notes,
            limits: LIMITS,
        }
    }

    /// Prints the report to standard output.
    pub(crate) fn print(&self, json: bool) -> Result<(), String> {
        if json {
            println!("{}", serde_json::to_string_pretty(self).map_err(|error| error.to_string())?);
            return Ok(());
        }
        println!("cache: {}; {} rounds, interleaved", self.machine.words(), self.repeats);
        println!("huge pages: {}", self.huge_pages);
        self.tables.iter().for_each(Table::print);
        println!("\naims");
        for verdict in &self.verdicts {
            let word = if verdict.is_met { "met" } else { "MISSED" };
            println!("{:<22} {:<44} {:>8.2}  {word}", verdict.job, verdict.aim, verdict.figure);
        }
        let met = self.verdicts.iter().filter(|verdict| verdict.is_met).count();
        println!("{met} of {} met", self.verdicts.len());
        println!("\nnotes:");
        self.notes.iter().for_each(|note| println!("- {note}"));
        println!("\nwhat the numbers do not mean:");
        self.limits.iter().for_each(|limit| println!("- {limit}"));
        Ok(())
    }
}

/// What the host does with huge pages, in its own words.
fn huge_pages() -> String {
    let setting = |name: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        std::fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    format!("anonymous {}, shmem and tmpfs {}", setting("enabled"), setting("shmem_enabled"))
}

impl Table {
    fn print(&self) {
        println!("\n{}: median (least..most)", self.title);
        print!("{:<22}{:>3}", "", "thr");
        self.contenders.iter().for_each(|name| print!(" {name:>27}"));
        println!(" {:>9} {:>9}  scaling", "x kernel", "of memcpy");
        let of_these = |row: &&Row| self.contenders.iter().any(|name| row.figure(name).is_some());
        for row in self.rows.iter().filter(of_these) {
            print!("{:<22}{:>3}", row.job, row.threads);
            for name in &self.contenders {
                let text =
                    row.figure(name).map_or_else(|| "-".to_owned(), |figure| spread(figure, row.bytes));
                print!(" {text:>27}");
            }
            let ratio =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            print!(" {:>9} {:>9} ", ratio(row.times_kernel), ratio(row.of_memcpy));
            for figure in row.figures.iter().filter(|figure| self.contenders.contains(&figure.contender)) {
                figure.scaling.iter().for_each(|scaling| print!(" {scaling:.2}"));
            }
            println!();
        }
    }
}

/// Median and spread; whole files of much data as a rate.
fn spread(figure: &Figure, bytes: u64) -> String {
    const RATE_FROM_BYTES: u64 = 512 << 20;
    if bytes >= RATE_FROM_BYTES {
        let rate = |ns: f64| bytes as f64 / ns * 1e3;
        let (middle, least, most) = (rate(figure.median_ns), rate(figure.most_ns), rate(figure.least_ns));
        return format!("{middle:.0} MB/s ({least:.0}..{most:.0})");
    }
    let (unit, name, digits) = match figure.median_ns {
        ns if ns < 100.0 => (1.0, "ns", 1),
        ns if ns < 10_000.0 => (1.0, "ns", 0),
        ns if ns < 1e6 => (1e3, "us", 1),
        _ => (1e6, "ms", 2),
    };
    let [middle, least, most] = [figure.median_ns, figure.least_ns, figure.most_ns].map(|ns| ns / unit);
    format!("{middle:.digits$} {name} ({least:.digits$}..{most:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_judged_by_figure() {
        let figures = |folio: f64| vec![Figure::new(FOLIO, vec![folio]), Figure::new(KERNEL, vec![100.0])];
        let judge = |folio: f64| Aim::TimesKernel(8.0).judge(&Row::new("stat-1", 1, 0, figures(folio)));
        assert!(judge(10.0).is_some_and(|verdict| verdict.is_met && verdict.figure == 10.0));
        assert!(judge(20.0).is_some_and(|verdict| !verdict.is_met));
        assert!(Aim::OfMemcpy(0.9).judge(&Row::new("stat-1", 1, 0, figures(10.0))).is_none());
        assert!(Aim::TimesKernel(8.0).judge(&Row::new("stat-1", 2, 0, figures(10.0))).is_none());
    }
}
