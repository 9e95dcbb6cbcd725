//! The scenario `object-store`: images and volumes in a store with the latency of a remote one.
//!
//! ```text
//!   cold.rs      one file out of an image, by whole processes, beside a download, QEMU and nbdkit
//!   reads.rs     in order, at random, and again from the part cache, beside ranged GETs
//!   volumes.rs   fsync, a tree, takeover, idleness, stored bytes, beside PUTs
//!      v
//!   web_server.rs   remote_store.rs    a server and a store in memory, both with latency
//!   requests.rs     counts of their requests, latency
//! ```

mod cold;
mod reads;
mod remote_store;
mod requests;
mod volumes;
mod web_server;

use crate::outcome::Outcome;
use crate::race::{Run, scratch_in};
use crate::report::{Bound, Report};
use requests::{GET, PUT};
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
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
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
    judge(&mut report);
    report.limit(&LIMITS);
    Ok(report)
}

fn judge(report: &mut Report) {
    let aims = [cold_aims(report), read_aims(report), volume_aims(report)].concat();
    for Aim {
        what,
        figure,
        bound,
    } in aims
    {
        let limit = match bound {
            Bound::AtMost(most) => format!("{most} or less"),
            Bound::AtLeast(least) => format!("{least} or more"),
        };
        report.judge(format!("{what}: {limit}"), figure, bound);
    }
}

/// An aim for a figure, if it was measured.
#[derive(Clone)]
struct Aim {
    what: String,
    figure: Option<f64>,
    bound: Bound,
}

fn at_most(most: f64, what: impl Into<String>, figure: Option<f64>) -> Aim {
    Aim {
        what: what.into(),
        figure,
        bound: Bound::AtMost(most),
    }
}

fn at_least(least: f64, what: &str, figure: Option<f64>) -> Aim {
    Aim {
        bound: Bound::AtLeast(least),
        ..at_most(least, what, figure)
    }
}

fn cold_aims(report: &Report) -> Vec<Aim> {
    let seen = report
        .row(cold::TITLE, cold::JOB, cold::FOLIO)
        .map(|row| row.evidence);
    let in_sequence = seen.and_then(|seen| seen.requests_in_sequence);
    let received = seen.and_then(|seen| seen.received_bytes);
    let received_mib = received.map(|bytes| bytes / f64::from(1 << 20));
    vec![
        at_most(
            12.0,
            "one file out of an image: GETs in sequence",
            in_sequence,
        ),
        at_most(8.0, "one file out of an image: MiB received", received_mib),
    ]
}

fn read_aims(report: &Report) -> Vec<Aim> {
    use reads::{AGAIN, AT_RANDOM, AT_RANDOM_RATE, FILE, FOLIO, IN_ORDER, OBJECT, READ};
    let ratio = |table, job| report.row(table, job, FOLIO).and_then(|row| row.ratio);
    let (in_order, again) = (|job| ratio(IN_ORDER, job), |job| ratio(AGAIN, job));
    let one = report.row(AT_RANDOM, READ, FOLIO);
    let rate = report.row(AT_RANDOM_RATE, READ, FOLIO);
    let speedup = one.zip(rate).map(|(one, rate)| one.median * rate.median);
    let requests = one.and_then(|row| row.evidence.requests);
    let time = ratio(AT_RANDOM, READ);
    vec![
        at_least(
            0.85,
            "the object in order, times the rate of ranged GETs",
            in_order(OBJECT),
        ),
        at_least(
            0.85,
            "a file in order, times the rate of ranged GETs",
            in_order(FILE),
        ),
        at_least(
            0.9,
            "the object again, times the rate of a local image",
            again(OBJECT),
        ),
        at_least(
            0.9,
            "a file again, times the rate in a local image",
            again(FILE),
        ),
        at_most(1.0, "GETs of a read of 4 KiB at random", requests),
        at_most(1.1, "a read of 4 KiB at random, times a ranged GET", time),
        at_least(25.0, "32 reads at a time, times the rate of one", speedup),
    ]
}

fn volume_aims(report: &Report) -> Vec<Aim> {
    use volumes::{FSYNC, IDLE, SIZES, STORED, TAKEOVER, TREE, VOLUME};
    let opened = report.row(TAKEOVER, "open", VOLUME);
    let in_sequence = opened.and_then(|row| row.evidence.requests_in_sequence);
    let mut tables = report.tables.iter();
    let tree = tables.find(|table| table.title.starts_with(TREE));
    let tree = tree.and_then(|table| table.row("files", VOLUME)?.ratio);
    let median = |table, job| report.row(table, job, VOLUME).map(|row| row.median);
    let fsync = SIZES.iter().map(|(size, _)| {
        let ratio = report.row(FSYNC, size, VOLUME).and_then(|row| row.ratio);
        at_most(1.15, format!("fsync of {size}, times one PUT"), ratio)
    });
    let rest = [
        at_most(1.3, "a tree into a volume, times PUTs of 8 MiB", tree),
        at_most(20.0, "takeover: requests in sequence", in_sequence),
        at_most(2.0, "takeover: seconds", opened.map(|row| row.median)),
        at_most(0.0, "idle: requests a minute", median(IDLE, "idle")),
        at_most(
            1.3,
            "stored bytes, times logical ones",
            median(STORED, "the tree"),
        ),
    ];
    fsync.chain(rest).collect()
}
