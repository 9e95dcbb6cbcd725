//! The scenario `nbd`: requests a second through a Unix socket, beside nbdkit and qemu-nbd, with
//! fio as the client.

use crate::contender::find;
use crate::measure::Said;
use crate::report::{Report, Row, Table, Unit, Verdict, owned, with_context};
use crate::run::{Run, scratch_in};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Folder for the images; should be in memory
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Size of the disks in MiB; needs twice that [default: 256]
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..1 << 16))]
    size_mib: Option<u64>,
    /// Seconds of each measurement [default: 2]
    #[arg(long)]
    seconds: Option<f64>,
}

const ROUNDS: u32 = 5;

/// Size of the disk, and duration of each measurement.
#[derive(Debug, Clone, Copy)]
struct WorkloadSize {
    size_mib: u64,
    seconds: f64,
}

/// Time limit of a server until it listens.
const READY: Duration = Duration::from_secs(20);

const LIMITS: [&str; 4] = [
    "the image is in the host's memory: what is measured is the servers and the socket, not a disk",
    "server time is what the server's process used, user and system; fio's own is not in it, and fio is often what \
     limits 32 requests at a time",
    "nbdkit serves the raw file: it has no qcow2 of its own",
    "on a busy machine, compare server time; requests a second say more of the scheduler",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    FolioQcow2,
    FolioRaw,
    NbdkitRaw,
    QemuQcow2,
    QemuRaw,
}

impl Contender {
    const ALL: [Self; 5] = [
        Self::FolioQcow2,
        Self::FolioRaw,
        Self::NbdkitRaw,
        Self::QemuQcow2,
        Self::QemuRaw,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::FolioQcow2 => "folio, qcow2",
            Self::FolioRaw => "folio, raw",
            Self::NbdkitRaw => "nbdkit file, raw",
            Self::QemuQcow2 => "qemu-nbd, qcow2",
            Self::QemuRaw => "qemu-nbd, raw",
        }
    }

    /// Returns the server's program; `None` for folio itself.
    fn program(self) -> Option<&'static str> {
        match self {
            Self::FolioQcow2 | Self::FolioRaw => None,
            Self::NbdkitRaw => Some("nbdkit"),
            Self::QemuQcow2 | Self::QemuRaw => Some("qemu-nbd"),
        }
    }

    fn is_qcow2(self) -> bool {
        matches!(self, Self::FolioQcow2 | Self::QemuQcow2)
    }

    /// Returns the command that serves `image` at `socket`, in the foreground, for several
    /// connections.
    fn command(self, folio: &Path, image: &Path, socket: &Path) -> Command {
        let format = if self.is_qcow2() { "qcow2" } else { "raw" };
        let program = self
            .program()
            .and_then(find)
            .unwrap_or_else(|| folio.to_owned());
        let mut command = Command::new(program);
        match self {
            Self::FolioQcow2 | Self::FolioRaw => command
                .args(["--quiet", "serve", "nbd", "-f", format])
                .arg(image)
                .arg("--socket")
                .arg(socket),
            Self::NbdkitRaw => command
                .args(["--foreground", "--unix"])
                .arg(socket)
                .arg("file")
                .arg(image),
            Self::QemuQcow2 | Self::QemuRaw => command
                .args(["--persistent", "--shared=8", "--format", format, "--socket"])
                .arg(socket)
                .arg(image),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// The jobs of fio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    name: &'static str,
    pattern: &'static str,
    block: &'static str,
    depth: u32,
    connections: u32,
}

const RANDOM_1: Job = Job {
    name: "read 4k x1",
    pattern: "randread",
    block: "4k",
    depth: 1,
    connections: 1,
};
const RANDOM_32: Job = Job {
    name: "read 4k x32",
    depth: 32,
    ..RANDOM_1
};
const JOBS: [Job; 6] = [
    RANDOM_1,
    RANDOM_32,
    Job {
        name: "read 4k 4 x8",
        depth: 8,
        connections: 4,
        ..RANDOM_1
    },
    Job {
        name: "write 4k x1",
        pattern: "randwrite",
        ..RANDOM_1
    },
    Job {
        name: "write 4k x32",
        pattern: "randwrite",
        depth: 32,
        ..RANDOM_1
    },
    Job {
        name: "read 256k x8",
        pattern: "read",
        block: "256k",
        depth: 8,
        connections: 1,
    },
];

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Sample {
    per_second: f64,
    /// Processor time of the server for each request.
    server_us: f64,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    if let Some(name) = ["fio", "qemu-img"].iter().find(|name| find(name).is_none()) {
        return Err(format!("{name} is not installed"));
    }
    let folder = scratch_in(&options.dir)?;
    let workload = WorkloadSize {
        size_mib: options.size_mib.unwrap_or_else(|| run.sized(256, 16)),
        seconds: options.seconds.unwrap_or_else(|| run.sized(2.0, 0.1)),
    };
    let (raw, qcow2) = images(folder.path(), workload.size_mib)?;
    let what = format!(
        "requests to disks of {} MiB, fully written, over a Unix socket, {} s each",
        workload.size_mib, workload.seconds
    );
    let mut report = Report::new("nbd", what, &options.dir);
    let mut contenders = Vec::new();
    for contender in Contender::ALL {
        match contender.program().filter(|name| find(name).is_none()) {
            None => contenders.push((contender, vec![Vec::new(); JOBS.len()])),
            Some(name) => report.skip(contender.name(), format!("{name} is not installed")),
        }
    }
    while run.goes_on("nbd", report.repeats, ROUNDS)? {
        for turn in 0..contenders.len() {
            run.check()?;
            let at = (turn + report.repeats as usize) % contenders.len();
            let (contender, samples) = &mut contenders[at];
            let image = if contender.is_qcow2() { &qcow2 } else { &raw };
            let server =
                Server::start(*contender, &run.folio, image, &folder.path().join("socket"))?;
            for (job, samples) in JOBS.iter().zip(samples) {
                samples.push(server.measure(job, workload)?);
            }
            server.stop()?;
        }
        report.repeats += 1;
    }
    report.tables = vec![
        table("requests", Unit::PerSecond, &contenders, |sample| {
            sample.per_second
        }),
        table(
            "the server's time for each",
            Unit::Seconds,
            &contenders,
            |sample| sample.server_us / 1e6,
        ),
    ];
    report.verdicts = [RANDOM_1, RANDOM_32]
        .iter()
        .filter_map(|job| verdict(&report.tables[0], job))
        .collect();
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn table(
    title: &str,
    unit: Unit,
    contenders: &[(Contender, Vec<Vec<Sample>>)],
    of: fn(&Sample) -> f64,
) -> Table {
    let mut rows = Vec::new();
    for (at, job) in JOBS.iter().enumerate() {
        for (contender, samples) in contenders {
            rows.push(Row::new(
                job.name,
                contender.name(),
                samples[at].iter().map(of).collect(),
            ));
        }
    }
    Table::new(title, unit, Some(Contender::NbdkitRaw.name()), rows)
}

/// Makes a raw image full of nonzero bytes, and the same as qcow2.
fn images(folder: &Path, size_mib: u64) -> Result<(PathBuf, PathBuf), String> {
    let (raw, qcow2) = (folder.join("disk.raw"), folder.join("disk.qcow2"));
    let mut file = File::create(&raw).map_err(with_context(raw.display()))?;
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..size_mib {
        let words = (0..1 << 17).flat_map(|_| {
            // xorshift
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_ne_bytes()
        });
        file.write_all(&words.collect::<Vec<u8>>())
            .map_err(with_context(raw.display()))?;
    }
    let convert = ["convert", "-f", "raw", "-O", "qcow2"].map(OsStr::new);
    let paths = [raw.as_os_str(), qcow2.as_os_str()];
    output(Command::new("qemu-img").args(convert.into_iter().chain(paths)))?;
    Ok((raw, qcow2))
}

/// Returns the output of a command, which must succeed.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{name}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(output.stdout)
}

/// A server that listens; it ends with the value.
struct Server {
    name: &'static str,
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(
        contender: Contender,
        folio: &Path,
        image: &Path,
        socket: &Path,
    ) -> Result<Self, String> {
        let _ = fs::remove_file(socket);
        let name = contender.name();
        let failed = |error| format!("{name}: {error}");
        let mut command = contender.command(folio, image, socket);
        let said = Said::by(&mut command)?;
        let child = command.spawn().map_err(failed)?;
        let mut server = Self {
            name,
            child,
            socket: socket.to_owned(),
        };
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            if server.child.try_wait().map_err(failed)?.is_some() || start.elapsed() > READY {
                return Err(said.explain(format!("{name}: does not listen")));
            }
            std::thread::yield_now();
        }
        Ok(server)
    }

    fn measure(&self, job: &Job, workload: WorkloadSize) -> Result<Sample, String> {
        let before = self.cpu_seconds()?;
        let mut fio = Command::new("fio");
        fio.args([
            "--name=job",
            "--ioengine=nbd",
            "--time_based",
            "--group_reporting",
            "--output-format=json",
        ]);
        fio.arg(format!(
            "--uri=nbd+unix:///?socket={}",
            self.socket.display()
        ));
        fio.arg(format!("--rw={}", job.pattern))
            .arg(format!("--bs={}", job.block));
        fio.arg(format!("--iodepth={}", job.depth))
            .arg(format!("--numjobs={}", job.connections));
        fio.arg(format!("--size={}M", workload.size_mib))
            .arg(format!("--runtime={:.0}ms", workload.seconds * 1e3));
        let said = output(&mut fio)?;
        let used = self.cpu_seconds()? - before;
        // Remarks may precede the JSON.
        let start = said.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let report: serde_json::Value =
            serde_json::from_slice(&said[start..]).map_err(|error| format!("fio: {error}"))?;
        let figures = &report["jobs"][0][if job.pattern.ends_with("read") {
            "read"
        } else {
            "write"
        }];
        match (figures["iops"].as_f64(), figures["total_ios"].as_f64()) {
            (Some(per_second), Some(count)) if count > 0.0 => Ok(Sample {
                per_second,
                server_us: used / count * 1e6,
            }),
            _ => Err(format!("{}: fio did nothing", self.name)),
        }
    }

    /// User and system time of the server so far (proc(5), stat).
    fn cpu_seconds(&self) -> Result<f64, String> {
        let path = PathBuf::from(format!("/proc/{}/stat", self.child.id()));
        let text = fs::read_to_string(&path).map_err(with_context(path.display()))?;
        // The name before it may hold anything.
        let fields = text
            .rsplit_once(')')
            .map_or("", |(_, fields)| fields)
            .split_whitespace();
        let ticks: f64 = fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum();
        Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
    }

    fn stop(mut self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.name);
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|e| failed(e.into()))?;
        self.child.wait().map_err(failed)?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Folio's qcow2 beside nbdkit's raw file.
fn verdict(table: &Table, job: &Job) -> Option<Verdict> {
    let of = |contender: Contender| table.row(job.name, contender.name()).map(|row| row.median);
    let (ours, theirs) = (of(Contender::FolioQcow2)?, of(Contender::NbdkitRaw)?);
    Some(Verdict {
        aim: format!(
            "{}: folio's qcow2 at the rate of nbdkit's raw file",
            job.name
        ),
        is_met: ours >= theirs,
        figures: format!(
            "{ours:.0}/s against {theirs:.0}/s, {} times",
            crate::rows::ratio(ours / theirs)
        ),
    })
}
