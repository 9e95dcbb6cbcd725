//! The scenario `nbd`: requests a second through a Unix socket, beside nbdkit and qemu-nbd, with
//! fio as the client.

use crate::command::{self, find, lacking, tool};
use crate::options::ServedDisks;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::random::Random;
use crate::report::{Bound, Report, Sample, Unit};
use crate::server::Server;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

const LIMITS: [&str; 4] = [
    "the image is in the host's memory: what is measured is the servers and the socket, not a disk",
    "server time is what the server's process used, user and system; fio's own is not in it, and fio is often what \
     limits 32 requests at a time",
    "nbdkit serves the raw file: it has no qcow2 of its own",
    "on a busy machine, compare server time; requests a second say more of the scheduler",
];

const REQUESTS: &str = "requests";
const FOLIO_QCOW2: &str = "folio, qcow2";
const NBDKIT: &str = "nbdkit file, raw";

/// Name, program (folio's own is that of the run), and format of the image.
const CONTENDERS: [(&str, &str, &str); 5] = [
    (FOLIO_QCOW2, "folio", "qcow2"),
    ("folio, raw", "folio", "raw"),
    (NBDKIT, "nbdkit", "raw"),
    ("qemu-nbd, qcow2", "qemu-nbd", "qcow2"),
    ("qemu-nbd, raw", "qemu-nbd", "raw"),
];

/// A job of fio.
#[derive(Debug, Clone, Copy)]
struct Job {
    name: &'static str,
    pattern: &'static str,
    block: &'static str,
    depth: u32,
    connections: u32,
}

const fn job(name: &'static str, pattern: &'static str, block: &'static str, depth: u32) -> Job {
    Job {
        name,
        pattern,
        block,
        depth,
        connections: 1,
    }
}

const RANDOM_1: Job = job("read 4k x1", "randread", "4k", 1);
const RANDOM_32: Job = job("read 4k x32", "randread", "4k", 32);
const JOBS: [Job; 6] = [
    RANDOM_1,
    RANDOM_32,
    Job {
        connections: 4,
        ..job("read 4k 4 x8", "randread", "4k", 8)
    },
    job("write 4k x1", "randwrite", "4k", 1),
    job("write 4k x32", "randwrite", "4k", 32),
    job("read 256k x8", "read", "256k", 8),
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &ServedDisks, run: &Run<'_>) -> Outcome<Report> {
    if let Some(reason) = lacking(&["fio", "qemu-img"]) {
        return Err(reason.into());
    }
    let folder = scratch_in(&options.dir)?;
    let (size_mib, seconds) = (options.size_mib(run), options.seconds(run));
    make_images(folder.path(), size_mib)?;
    let what = format!(
        "requests to disks of {size_mib} MiB, fully written, over a Unix socket, {seconds} s each"
    );
    let mut report = Report::new("nbd", what, &options.dir);
    let mut race = Race::new(REQUESTS, Unit::PerSecond, Some(NBDKIT)).table(
        "the server's time for each",
        Unit::Seconds,
        Some(NBDKIT),
    );
    for (name, program, format) in CONTENDERS {
        if program != "folio" && find(program).is_none() {
            report.skip(name, format!("{program} is not installed"));
            continue;
        }
        let socket = folder.path().join("socket");
        let image = folder.path().join(format!("disk.{format}"));
        race.contender(name, move |turn| {
            let _ = fs::remove_file(&socket);
            let command = serving(program, format, &image, &socket, run)?;
            let is_ready = || UnixStream::connect(&socket).is_ok();
            let server = Server::start(command, "does not listen", is_ready)?;
            for job in &JOBS {
                let before = server.cpu_seconds()?;
                let answered = job.run(&socket, size_mib, seconds)?;
                let used = server.cpu_seconds()? - before;
                turn.add(job.name, Sample::of(answered.per_second));
                turn.add_to(1, job.name, Sample::of(used / answered.count));
            }
            Ok(())
        });
    }
    race.run(run, &mut report)?;
    for Job { name, .. } in [RANDOM_1, RANDOM_32] {
        let aim = format!("{name}: folio's qcow2 at the rate of nbdkit's raw file");
        let pair = [FOLIO_QCOW2, NBDKIT];
        report.judge_pair(aim, REQUESTS, name, pair, Bound::AtLeast(1.0));
    }
    report.limit(&LIMITS);
    Ok(report)
}

/// Makes a raw image without zeros, and the same as qcow2.
pub(crate) fn make_images(folder: &Path, size_mib: u64) -> Outcome {
    let [raw, qcow2] = ["disk.raw", "disk.qcow2"].map(|name| folder.join(name));
    let mut file = File::create(&raw).at(&raw)?;
    let mut random = Random::new(1);
    (0..size_mib)
        .try_for_each(|_| file.write_all(&random.bytes(1 << 20)))
        .at(&raw)?;
    let mut qemu_img = tool("qemu-img")?;
    qemu_img.args(["convert", "-f", "raw", "-O", "qcow2"]);
    command::run(qemu_img.arg(raw).arg(qcow2)).map(drop)
}

/// Returns the command that serves `image` at `socket`, in the foreground, for several connections.
fn serving(
    program: &str,
    format: &str,
    image: &Path,
    socket: &Path,
    run: &Run<'_>,
) -> Outcome<Command> {
    if program == "folio" {
        let mut folio = run.folio();
        folio
            .args(["serve", "nbd", "-f", format])
            .arg(image)
            .arg("--socket")
            .arg(socket);
        return Ok(folio);
    }
    let mut peer = tool(program)?;
    if program == "nbdkit" {
        peer.args(["--foreground", "--unix"])
            .arg(socket)
            .arg("file")
            .arg(image);
    } else {
        peer.args(["--persistent", "--shared=8", "--format", format, "--socket"]);
        peer.arg(socket).arg(image);
    }
    Ok(peer)
}

/// What fio reports.
struct Answered {
    per_second: f64,
    count: f64,
}

impl Job {
    fn run(&self, socket: &Path, size_mib: u64, seconds: f64) -> Outcome<Answered> {
        let mut fio = tool("fio")?;
        fio.args(["--name=job", "--ioengine=nbd", "--time_based"])
            .args(["--group_reporting", "--output-format=json"])
            .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
            .arg(format!("--rw={}", self.pattern))
            .arg(format!("--bs={}", self.block))
            .arg(format!("--iodepth={}", self.depth))
            .arg(format!("--numjobs={}", self.connections))
            .arg(format!("--size={size_mib}M"))
            .arg(format!("--runtime={:.0}ms", seconds * 1e3));
        let said = command::run(&mut fio)?;
        // Remarks may precede the JSON.
        let start = said.find('{').unwrap_or(0);
        let report: serde_json::Value = serde_json::from_str(&said[start..]).at("fio")?;
        let direction = if self.pattern.ends_with("read") {
            "read"
        } else {
            "write"
        };
        let figures = &report["jobs"][0][direction];
        match (figures["iops"].as_f64(), figures["total_ios"].as_f64()) {
            (Some(per_second), Some(count)) if count > 0.0 => Ok(Answered { per_second, count }),
            _ => Err(format!("{}: fio did nothing", self.name).into()),
        }
    }
}
