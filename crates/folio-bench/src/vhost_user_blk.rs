//! The scenario `vhost-user-blk`: requests a second of disks for virtual machines, beside
//! qemu-storage-daemon, with a driver in this process as the client.

use crate::command::{find, lacking, tool};
use crate::nbd::make_images;
use crate::options::ServedDisks;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::random::Random;
use crate::report::{Bound, Report, Sample, Unit};
use crate::server::Server;
use folio_export::vhost_user_blk::client::{Client, ClientOptions, Done, Queue};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMITS: [&str; 3] = [
    "the image is in the host's memory: what is measured is the servers and the queues, not a disk",
    "server time is what the server's process used, user and system; the client has a thread for each queue, and takes \
     processors from the server",
    "on a busy machine, compare server time; requests a second say more of the scheduler",
];

const REQUESTS: &str = "requests";
const FOLIO_QCOW2: &str = "folio, qcow2";
const FOLIO_RAW: &str = "folio, raw";
const QEMU_QCOW2: &str = "qemu-storage-daemon, qcow2";
const QEMU: &str = "qemu-storage-daemon";

/// Name, program (folio's own is that of the run), and format of the image.
const CONTENDERS: [(&str, &str, &str); 4] = [
    (FOLIO_QCOW2, "folio", "qcow2"),
    (FOLIO_RAW, "folio", "raw"),
    (QEMU_QCOW2, QEMU, "qcow2"),
    ("qemu-storage-daemon, raw", QEMU, "raw"),
];

/// A job of the client.
#[derive(Debug, Clone, Copy)]
struct Job {
    name: &'static str,
    is_write: bool,
    len_bytes: u32,
    depth: u16,
    queues: usize,
}

const fn job(name: &'static str, is_write: bool, depth: u16, queues: usize) -> Job {
    Job {
        name,
        is_write,
        len_bytes: 4096,
        depth,
        queues,
    }
}

/// Queues of a server: the most that a job uses.
const QUEUES_MAX: usize = 16;

const JOBS: [Job; 9] = [
    job("read 4k x1", false, 1, 1),
    job("read 4k x32", false, 32, 1),
    job("read 4k 4 x32", false, 32, 4),
    job("read 4k 16 x32", false, 32, 16),
    job("write 4k x1", true, 1, 1),
    job("write 4k x32", true, 32, 1),
    job("write 4k 4 x32", true, 32, 4),
    job("write 4k 16 x32", true, 32, 16),
    Job {
        len_bytes: 256 << 10,
        ..job("read 256k x8", false, 8, 1)
    },
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &ServedDisks, run: &Run<'_>) -> Outcome<Report> {
    if let Some(reason) = lacking(&["qemu-img"]) {
        return Err(reason.into());
    }
    let folder = scratch_in(&options.dir)?;
    let (size_mib, seconds) = (options.size_mib(run), options.seconds(run));
    make_images(folder.path(), size_mib)?;
    let what = format!(
        "random requests to disks of {size_mib} MiB, fully written, by vhost-user-blk, {seconds} s each"
    );
    let mut report = Report::new("vhost-user-blk", what, &options.dir);
    let mut race = Race::new(REQUESTS, Unit::PerSecond, Some(QEMU_QCOW2)).table(
        "the server's time for each",
        Unit::Seconds,
        Some(QEMU_QCOW2),
    );
    for (name, program, format) in CONTENDERS {
        if program != "folio" && find(program).is_none() {
            report.skip(name, format!("{program} is not installed"));
            continue;
        }
        let socket = folder.path().join("socket");
        let image = folder.path().join(format!("disk.{format}"));
        race.contender(name, move |turn| {
            for job in &JOBS {
                // One virtual machine after the other: each job has a server of its own.
                let _ = fs::remove_file(&socket);
                let command = serving(program, format, &image, &socket, run)?;
                let server = Server::start(command, "does not listen", || socket.exists())?;
                let answered = job.run(&socket, Duration::from_secs_f64(seconds), &server)?;
                turn.add(job.name, Sample::of(answered.per_second));
                turn.add_to(1, job.name, Sample::of(answered.server_seconds));
            }
            Ok(())
        });
    }
    race.run(run, &mut report)?;
    for (name, factor) in [
        ("read 4k x1", 1.0),
        ("write 4k x1", 1.0),
        ("read 4k x32", 2.0),
        ("write 4k x32", 2.0),
    ] {
        let aim = format!("{name}: folio's qcow2 at {factor} times QEMU's");
        let pair = [FOLIO_QCOW2, QEMU_QCOW2];
        report.judge_pair(aim, REQUESTS, name, pair, Bound::AtLeast(factor));
    }
    for name in ["read 4k x32", "write 4k x32"] {
        let aim = format!("{name}: folio's qcow2 at the rate of its raw");
        let pair = [FOLIO_QCOW2, FOLIO_RAW];
        report.judge_pair(aim, REQUESTS, name, pair, Bound::AtLeast(0.95));
    }
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns the command that serves `image` at `socket`, in the foreground.
fn serving(
    program: &str,
    format: &str,
    image: &Path,
    socket: &Path,
    run: &Run<'_>,
) -> Outcome<Command> {
    let queues = QUEUES_MAX.to_string();
    if program == "folio" {
        let mut folio = run.folio();
        folio
            .args(["serve", "vhost-user-blk", "-f", format, "--queues", &queues])
            .arg(image)
            .arg("--socket")
            .arg(socket);
        return Ok(folio);
    }
    let mut peer = tool(program)?;
    let export = format!(
        "type=vhost-user-blk,id=e,node-name=disk,writable=on,num-queues={queues},addr.type=unix,addr.path={}",
        socket.display()
    );
    peer.arg("--blockdev")
        .arg(format!(
            "driver=file,node-name=file,filename={}",
            image.display()
        ))
        .arg("--blockdev")
        .arg(format!("driver={format},node-name=disk,file=file"))
        .arg("--export")
        .arg(export);
    Ok(peer)
}

/// What a job measured.
struct Answered {
    per_second: f64,
    /// The server's processor time for a request.
    server_seconds: f64,
}

impl Job {
    fn run(&self, socket: &Path, time: Duration, server: &Server) -> Outcome<Answered> {
        let options = ClientOptions {
            queues: self.queues,
            depth: self.depth,
            data_len_max: self.len_bytes,
        };
        let mut client = Client::connect(socket, options).at(socket)?;
        let len_bytes = client.len_bytes();
        let before = server.cpu_seconds()?;
        let begin = Instant::now();
        let counts: Vec<Outcome<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = client
                .queues()
                .iter_mut()
                .enumerate()
                .map(|(index, queue)| {
                    scope.spawn(move || {
                        let random = Random::new(1 + index as u64);
                        self.ask(queue, len_bytes, random, begin + time)
                            .map_err(|error| error.to_string())
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| match thread.join() {
                Ok(done) => done.map_err(Into::into),
                Err(_) => Err("a thread of the client ended".into()),
            });
            ended.collect()
        });
        let took = begin.elapsed().as_secs_f64();
        let used = server.cpu_seconds()? - before;
        let count = counts.into_iter().sum::<Outcome<u64>>()?;
        if count == 0 {
            return Err(format!("{}: no request was answered", self.name).into());
        }
        Ok(Answered {
            per_second: count as f64 / took,
            server_seconds: used / count as f64,
        })
    }

    /// Keeps `depth` requests of one queue in progress until the time is up; returns their number.
    fn ask(
        &self,
        queue: &mut Queue,
        len_bytes: u64,
        mut random: Random,
        end: Instant,
    ) -> Outcome<u64> {
        let data = vec![0x5a; self.len_bytes as usize];
        let blocks = len_bytes / u64::from(self.len_bytes);
        let (mut in_progress, mut count) = (0_u32, 0_u64);
        loop {
            if Instant::now() < end {
                while queue.free_slots() > 0 {
                    let offset = random.below(blocks) * u64::from(self.len_bytes);
                    if self.is_write {
                        queue.write(offset, &data)?;
                    } else {
                        queue.read(offset, self.len_bytes)?;
                    }
                    in_progress += 1;
                }
                queue.submit()?;
            }
            if in_progress == 0 {
                return Ok(count);
            }
            let mut done = Some(queue.wait_done()?);
            while let Some(Done { status, .. }) = done {
                if status != 0 {
                    return Err(format!("{}: status {status}", self.name).into());
                }
                (in_progress, count) = (in_progress - 1, count + 1);
                done = queue.take_done()?;
            }
        }
    }
}
