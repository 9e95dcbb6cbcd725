//! One file out of an image in a bucket, by whole processes: in place, after a download, and by
//! QEMU and nbdkit.

use super::requests::RequestMeter;
use super::web_server::WebServer;
use crate::contender::find;
use crate::measure::Meter;
use crate::report::{Report, Sample, Table, Unit, with_context};
use crate::run::{Case, Run, interleave};
use folio::Image;
use folio::block::{Allocation, Device};
use folio::{Error, Result as FolioResult};
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{IoSlice, IoSliceMut, Read};
use std::path::Path;
use std::sync::Arc;

pub(super) const TITLE: &str =
    "open a qcow2 of 10 GiB in a bucket, list a directory, read a file of 64 KiB, cold";
pub(super) const JOB: &str = "list and read";
pub(super) const FOLIO: &str = "folio ls, folio cat";
const DOWNLOAD: &str = "download, folio ls, folio cat";
const QEMU: &str = "qemu-io, the same reads";
const NBDKIT: &str = "qemu-io on nbdkit curl, the same reads";

const IMAGE: &str = "disk.qcow2";
const ROUNDS: u32 = 5;
/// Files of the directory, and the size of the one that is read.
const FILES: usize = 200;
const FILE_BYTES: usize = 64 << 10;
/// Size of the other file, which the job does not need.
const FILLER_BYTES: usize = 512 << 20;

/// Makes an image of 10 GiB with a directory, and a large file beside it.
pub(super) fn make_image(folder: &Path, run: &Run<'_>) -> Result<(), String> {
    let tree = folder.join("tree");
    let failed = |error: std::io::Error| format!("{}: {error}", tree.display());
    std::fs::create_dir_all(tree.join("etc")).map_err(failed)?;
    for number in 0..FILES {
        let path = tree.join(format!("etc/file-{number}"));
        std::fs::write(path, noise(FILE_BYTES, number as u64)).map_err(failed)?;
    }
    let filler = noise(run.sized(FILLER_BYTES, 4 << 20), 7);
    std::fs::write(tree.join("large"), filler).map_err(failed)?;
    let mut place = folder.join(IMAGE).into_os_string();
    place.push(":/");
    let tree_inside = tree.join(".");
    let words = [
        OsStr::new("--quiet"),
        OsStr::new("cp"),
        OsStr::new("-r"),
        tree_inside.as_os_str(),
        &place,
        OsStr::new("--create=10G"),
    ];
    Meter::default().run(run.folio.as_os_str(), words)?;
    std::fs::remove_dir_all(&tree).map_err(failed)
}

/// Returns bytes that no store compresses.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut word = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Measures the job and adds its table.
pub(super) fn measure(run: &Run<'_>, folder: &Path, report: &mut Report) -> Result<(), String> {
    let meter = RequestMeter::default();
    let server = WebServer::start(folder, &meter)?;
    let url = server.url(IMAGE);
    let commands = reading_commands(&folder.join(IMAGE))?;
    let mut contenders = vec![
        (FOLIO, in_place(run, &url)),
        (DOWNLOAD, downloaded(run, &url, folder)),
    ];
    let qemu_io = find("qemu-io");
    match &qemu_io {
        Some(program) => contenders.push((QEMU, qemu(program, &url, &commands))),
        None => report.skip(QEMU, "qemu-io is not installed"),
    }
    match (&qemu_io, find("nbdkit")) {
        (Some(_), Some(program)) => {
            contenders.push((NBDKIT, nbdkit(&program, &url, &commands)));
        }
        _ => report.skip(NBDKIT, "nbdkit or qemu-io is not installed"),
    }
    contenders.retain(|(name, commands)| {
        // A driver for HTTP may be missing.
        let tried = commands
            .iter()
            .try_for_each(|words| command(words, &mut Meter::default()));
        if let Err(reason) = &tried {
            report.skip(*name, reason.clone());
        }
        tried.is_ok()
    });
    let mut cases: Vec<_> = contenders
        .into_iter()
        .map(|(name, commands)| {
            let meter = &meter;
            Case::new(JOB, name, move || {
                meter.take();
                let mut cost = Meter::default();
                for words in &commands {
                    command(words, &mut cost)?;
                }
                let mut evidence = meter.take().evidence(1);
                evidence.cpu_seconds = Some(cost.cost.cpu_seconds);
                Ok(Sample {
                    value: cost.cost.seconds,
                    evidence,
                    label: None,
                })
            })
        })
        .collect();
    let (rows, rounds) = interleave(run, "object-store, cold", &mut cases, ROUNDS)?;
    report.repeats = rounds;
    let table = Table::new(TITLE, Unit::Seconds, Some(FOLIO), rows);
    report.tables.push(table);
    Ok(())
}

type Words = Vec<OsString>;

fn command(words: &Words, meter: &mut Meter) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    meter.run(program, arguments).map(drop)
}

fn in_place(run: &Run<'_>, image: &str) -> Vec<Words> {
    let of = |subcommand: &str, path: &str| {
        let place = format!("{image}:{path}");
        vec![run.folio.clone().into(), subcommand.into(), place.into()]
    };
    vec![of("ls", "/etc"), of("cat", "/etc/file-100")]
}

fn downloaded(run: &Run<'_>, url: &str, folder: &Path) -> Vec<Words> {
    let copy = folder.join("copy.qcow2");
    let mut words: Words = vec![run.folio.clone().into()];
    words.extend(["--quiet", "cp", url].map(OsString::from));
    words.push(copy.clone().into());
    let mut commands = vec![words];
    commands.extend(in_place(run, &copy.to_string_lossy()));
    commands
}

fn qemu(program: &Path, url: &str, reads: &[String]) -> Vec<Words> {
    let mut words: Words = vec![program.into()];
    words.extend(["-r", "-f", "qcow2"].map(OsString::from));
    for read in reads {
        words.extend(["-c", read].map(OsString::from));
    }
    words.push(url.into());
    vec![words]
}

fn nbdkit(program: &Path, url: &str, reads: &[String]) -> Vec<Words> {
    let mut script = "qemu-io -r -f qcow2".to_owned();
    for read in reads {
        let _ = write!(script, " -c '{read}'");
    }
    script += " \"$uri\"";
    let mut words: Words = vec![program.into()];
    words.extend(["-r", "-U", "-", "curl", url, "--run", &script].map(OsString::from));
    vec![words]
}

/// Returns commands of qemu-io for the reads of the disk that the job makes.
fn reading_commands(image: &Path) -> Result<Vec<String>, String> {
    let failed = with_context(image.display());
    let device = folio::block::open(image, &folio::block::OpenOptions::default())
        .map_err(|error: Error| error.to_string())?;
    let recorder = Arc::new(ReadRecorder {
        device,
        reads: Mutex::default(),
    });
    let work = || -> std::io::Result<()> {
        let fs = Image::device(recorder.clone()).read_only().mount()?;
        for entry in fs.read_dir("/etc")? {
            entry?;
        }
        let mut content = Vec::new();
        fs.open("/etc/file-100")?.read_to_end(&mut content)?;
        Ok(())
    };
    work().map_err(failed)?;
    let reads = recorder.reads.lock();
    Ok(reads
        .iter()
        .map(|(offset, len)| format!("read {offset} {len}"))
        .collect())
}

/// A disk that records where it is read.
struct ReadRecorder {
    device: Arc<dyn Device>,
    reads: Mutex<Vec<(u64, u64)>>,
}

impl Device for ReadRecorder {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> FolioResult<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.reads.lock().push((offset, len));
        self.device.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> FolioResult<()> {
        self.device.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> FolioResult<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> FolioResult<()> {
        self.device.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> FolioResult<()> {
        self.device.write_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> FolioResult<(Allocation, u64)> {
        self.device.allocation(offset, len_bytes)
    }
}
