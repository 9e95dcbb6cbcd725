//! The scenario `object-store`: images and volumes in a store with the latency of a remote one.
//!
//! ```text
//!   cold.rs      one file out of an image, by whole processes, beside a download, QEMU and nbdkit
//!   reads.rs     in order, at random, and again from the part cache, beside ranged GETs
//!   volumes.rs   fsync, a tree, takeover, idleness, stored bytes, beside PUTs
//!      v
//!   web_server.rs   remote_store.rs    a server and a store in memory, both with latency
//!   requests.rs     counts of their requests    latency.rs   of a GET and of a PUT
//! ```

mod cold;
mod latency;
mod reads;
mod remote_store;
mod requests;
mod volumes;
mod web_server;

use self::latency::{GET, PUT};
use crate::report::{Report, Verdict, owned};
use crate::run::{Run, scratch_in};
use std::path::PathBuf;

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Folder for the image, a copy of it and its parts; should be in memory
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Measure only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

/// A part of the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// One file out of an image, by whole processes
    Cold,
    /// Reads in order, at random, and again
    Reads,
    /// Volumes
    Volumes,
}

const LIMITS: [&str; 4] = [
    "latency is injected and bandwidth is not limited: a download takes longer from a real store",
    "the processes of the first table read from a web server on loopback; the other tables from a store in the memory \
     of this process, whose answers cost no copy by the kernel and no TLS",
    "qemu-io reads the places of the disk that Folio's ext4 reads, known in advance; it knows no file systems",
    "parts on disk are in the host's page cache, as the local file is",
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let what = format!(
        "images and volumes in a store whose GET takes {} ms and whose PUT takes {} ms",
        GET.as_millis(),
        PUT.as_millis()
    );
    let mut report = Report::new("object-store", what, &options.dir);
    let folder = scratch_in(&options.dir)?;
    let has = |part| options.only.is_empty() || options.only.contains(&part);
    if has(Part::Cold) || has(Part::Reads) {
        (run.step)("object-store: an image is made")?;
        cold::make_image(folder.path(), run)?;
    }
    if has(Part::Cold) {
        cold::measure(run, folder.path(), &mut report)?;
    }
    if has(Part::Reads) {
        reads::measure(run, folder.path(), &mut report)?;
    }
    if has(Part::Volumes) {
        volumes::measure(run, &mut report)?;
    }
    report.repeats = report
        .tables
        .iter()
        .flat_map(|table| &table.rows)
        .map(|row| row.rounds.len() as u32)
        .max()
        .unwrap_or(0);
    judge(&mut report);
    report.limits = owned(&LIMITS);
    Ok(report)
}

/// An aim for a figure: at most, or at least, a limit.
struct Aim {
    what: String,
    figure: Option<f64>,
    limit: f64,
    is_least: bool,
}

impl Aim {
    fn at_most(what: &str, figure: Option<f64>, limit: f64) -> Self {
        Self {
            what: what.to_owned(),
            figure,
            limit,
            is_least: false,
        }
    }

    fn at_least(what: &str, figure: Option<f64>, limit: f64) -> Self {
        Self {
            is_least: true,
            ..Self::at_most(what, figure, limit)
        }
    }

    /// None if nothing was measured.
    fn verdict(self) -> Option<Verdict> {
        let figure = self.figure?;
        let (bound, is_met) = if self.is_least {
            ("or more", figure >= self.limit)
        } else {
            ("or less", figure <= self.limit)
        };
        Some(Verdict {
            aim: format!("{}: {} {bound}", self.what, self.limit),
            is_met,
            figures: crate::rows::ratio(figure),
        })
    }
}

fn judge(report: &mut Report) {
    let mut aims = cold_aims(report);
    aims.extend(read_aims(report));
    aims.extend(volume_aims(report));
    report.verdicts = aims.into_iter().filter_map(Aim::verdict).collect();
}

fn cold_aims(report: &Report) -> Vec<Aim> {
    let row = report.row(cold::TITLE, cold::JOB, cold::FOLIO);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    vec![
        Aim::at_most(
            "one file out of an image: GETs in sequence",
            row.and_then(|row| row.evidence.requests_in_sequence),
            12.0,
        ),
        Aim::at_most(
            "one file out of an image: MiB received",
            row.and_then(|row| row.evidence.received_bytes).map(mib),
            8.0,
        ),
    ]
}

fn read_aims(report: &Report) -> Vec<Aim> {
    use reads::{AGAIN, AT_RANDOM, AT_RANDOM_RATE, FILE, FOLIO, IN_ORDER, OBJECT, READ};
    let ratio = |table, job| report.row(table, job, FOLIO).and_then(|row| row.ratio);
    let one = report.row(AT_RANDOM, READ, FOLIO);
    let rate = report.row(AT_RANDOM_RATE, READ, FOLIO);
    let speedup = one.zip(rate).map(|(one, rate)| one.median * rate.median);
    let requests = one.and_then(|row| row.evidence.requests);
    vec![
        Aim::at_least(
            "the object in order, times the rate of ranged GETs",
            ratio(IN_ORDER, OBJECT),
            0.85,
        ),
        Aim::at_least(
            "a file in order, times the rate of ranged GETs",
            ratio(IN_ORDER, FILE),
            0.85,
        ),
        Aim::at_least(
            "the object again, times the rate of a local image",
            ratio(AGAIN, OBJECT),
            0.9,
        ),
        Aim::at_least(
            "a file again, times the rate in a local image",
            ratio(AGAIN, FILE),
            0.9,
        ),
        Aim::at_most("GETs of a read of 4 KiB at random", requests, 1.0),
        Aim::at_most(
            "a read of 4 KiB at random, times a ranged GET",
            ratio(AT_RANDOM, READ),
            1.1,
        ),
        Aim::at_least("32 reads at a time, times the rate of one", speedup, 25.0),
    ]
}

fn volume_aims(report: &Report) -> Vec<Aim> {
    use volumes::{FSYNC, IDLE, SIZES, STORED, TAKEOVER, TREE, VOLUME};
    let opened = report.row(TAKEOVER, "open", VOLUME);
    let tree = report
        .tables
        .iter()
        .find(|table| table.title.starts_with(TREE));
    let tree = tree.and_then(|table| table.row("files", VOLUME)?.ratio);
    let median = |table, job| report.row(table, job, VOLUME).map(|row| row.median);
    let mut aims: Vec<_> = SIZES
        .iter()
        .map(|(size, _)| {
            let ratio = report.row(FSYNC, size, VOLUME).and_then(|row| row.ratio);
            Aim::at_most(&format!("fsync of {size}, times one PUT"), ratio, 1.15)
        })
        .collect();
    aims.extend([
        Aim::at_most("a tree into a volume, times PUTs of 8 MiB", tree, 1.3),
        Aim::at_most(
            "takeover: requests in sequence",
            opened.and_then(|row| row.evidence.requests_in_sequence),
            20.0,
        ),
        Aim::at_most("takeover: seconds", opened.map(|row| row.median), 2.0),
        Aim::at_most("idle: requests a minute", median(IDLE, "idle"), 0.0),
        Aim::at_most(
            "stored bytes, times logical ones",
            median(STORED, "the tree"),
            1.3,
        ),
    ]);
    aims
}
