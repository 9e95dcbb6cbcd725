//! One file out of an image in a bucket, by whole processes: in place, after a download, and by
//! QEMU and nbdkit.

use super::requests::RequestMeter;
use super::web_server::WebServer;
use crate::command::{self, Meter, inside, tool};
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run};
use crate::random::Random;
use crate::report::{Report, Unit};
use folio::Image;
use folio::block::{Allocation, Device, OpenOptions};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut, Read};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub(super) const TITLE: &str =
    "open a qcow2 of 10 GiB in a bucket, list a directory, read a file of 64 KiB, cold";
pub(super) const JOB: &str = "list and read";
pub(super) const FOLIO: &str = "folio ls, folio cat";
const DOWNLOAD: &str = "download, folio ls, folio cat";
const QEMU: &str = "qemu-io, the same reads";
const NBDKIT: &str = "qemu-io on nbdkit curl, the same reads";

const IMAGE: &str = "disk.qcow2";
/// Files of the directory, and the size of the one that is read.
const FILES: usize = 200;
const FILE_BYTES: usize = 64 << 10;
/// Size of the other file, which the job does not need.
const FILLER_BYTES: usize = 512 << 20;

/// Makes an image of 10 GiB with a directory, and a large file beside it, of bytes that no store
/// compresses.
pub(super) fn make_image(folder: &Path, run: &Run<'_>) -> Outcome {
    let tree = folder.join("tree");
    let mut random = Random::new(1);
    std::fs::create_dir_all(tree.join("etc")).at(&tree)?;
    for number in 0..FILES {
        let path = tree.join(format!("etc/file-{number}"));
        std::fs::write(&path, random.bytes(FILE_BYTES)).at(&path)?;
    }
    let filler = random.bytes(run.sized(FILLER_BYTES, 4 << 20));
    std::fs::write(tree.join("large"), filler).at(&tree)?;
    let mut copy = run.folio();
    copy.args(["cp", "-r"])
        .arg(tree.join("."))
        .arg(inside(&folder.join(IMAGE), "/"));
    command::run(copy.arg("--create=10G"))?;
    std::fs::remove_dir_all(&tree).at(&tree)
}

/// Measures the job and adds its table.
pub(super) fn measure(run: &Run<'_>, folder: &Path, report: &mut Report) -> Outcome {
    let requests = RequestMeter::default();
    let server = WebServer::start(folder, &requests)?;
    let url = server.url(IMAGE);
    let reads = reads(&folder.join(IMAGE))?;
    let contenders = [
        (FOLIO, Ok(in_place(run, &url))),
        (DOWNLOAD, Ok(downloaded(run, &url, folder))),
        (QEMU, qemu_io(&url, &reads)),
        (NBDKIT, nbdkit(&url, &reads)),
    ];
    let mut race = Race::new(TITLE, Unit::Seconds, Some(FOLIO));
    for (name, commands) in contenders {
        // A driver for HTTP may be missing.
        let tried = commands.and_then(|mut commands| {
            command::timed(&mut commands)?;
            Ok(commands)
        });
        let mut commands = match tried {
            Ok(commands) => commands,
            Err(reason) => {
                report.skip(name, reason.to_string());
                continue;
            }
        };
        let requests = &requests;
        race.case(JOB, name, move || {
            requests.take();
            let mut meter = Meter::default();
            for command in &mut commands {
                meter.run(command)?;
            }
            let mut evidence = requests.take().evidence(1);
            let sample = meter.sample();
            evidence.cpu_seconds = sample.evidence.cpu_seconds;
            Ok(sample.with(evidence))
        });
    }
    race.run(run, report)
}

fn in_place(run: &Run<'_>, image: &str) -> Vec<Command> {
    let (mut ls, mut cat) = (run.folio(), run.folio());
    ls.args(["ls", &format!("{image}:/etc")]);
    cat.args(["cat", &format!("{image}:/etc/file-100")]);
    vec![ls, cat]
}

fn downloaded(run: &Run<'_>, url: &str, folder: &Path) -> Vec<Command> {
    let copy = folder.join("copy.qcow2");
    let mut download = run.folio();
    download.args(["cp", url]).arg(&copy);
    let mut commands = vec![download];
    commands.extend(in_place(run, &copy.to_string_lossy()));
    commands
}

fn qemu_io(url: &str, reads: &[String]) -> Outcome<Vec<Command>> {
    let mut qemu_io = tool("qemu-io")?;
    qemu_io.args(["-r", "-f", "qcow2"]);
    for read in reads {
        qemu_io.args(["-c", read]);
    }
    qemu_io.arg(url);
    Ok(vec![qemu_io])
}

fn nbdkit(url: &str, reads: &[String]) -> Outcome<Vec<Command>> {
    let mut nbdkit = tool("nbdkit")?;
    let reads: Vec<String> = reads.iter().map(|read| format!("-c '{read}'")).collect();
    let script = format!("qemu-io -r -f qcow2 {} \"$uri\"", reads.join(" "));
    nbdkit.args(["-r", "-U", "-", "curl", url, "--run", &script]);
    Ok(vec![nbdkit])
}

/// Returns the reads of the disk that the job makes, as commands of qemu-io.
fn reads(image: &Path) -> Outcome<Vec<String>> {
    let recorder = Arc::new(ReadRecorder {
        device: folio::block::open(image, &OpenOptions::default())?,
        reads: Mutex::default(),
    });
    let fs = Image::device(recorder.clone()).read_only().mount()?;
    for entry in fs.read_dir("/etc")? {
        entry?;
    }
    fs.open("/etc/file-100")?.read_to_end(&mut Vec::new())?;
    drop(fs);
    let reads = recorder.reads.lock();
    Ok(reads.clone())
}

/// A disk that records where it is read.
struct ReadRecorder {
    device: Arc<dyn Device>,
    /// Commands of qemu-io.
    reads: Mutex<Vec<String>>,
}

impl Device for ReadRecorder {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> folio::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.reads.lock().push(format!("read {offset} {len}"));
        self.device.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> folio::Result<()> {
        self.device.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> folio::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> folio::Result<()> {
        self.device.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> folio::Result<()> {
        self.device.write_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> folio::Result<(Allocation, u64)> {
        self.device.allocation(offset, len_bytes)
    }
}
