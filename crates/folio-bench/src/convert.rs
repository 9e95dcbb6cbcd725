//! The scenario `convert`: an image with a tree and random data into other formats and back, beside
//! qemu-img.

use crate::command::{self, find, inside, timed, tool, touch_memory};
use crate::options::Common;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::real_tree::{self, Limits};
use crate::report::{Report, Unit, require_space};
use folio::block::ImageFormat;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMITS: [&str; 5] = [
    "before each run another process uses as much memory as the image is large, and gives it back, so that no contender \
     has to wait for pages of a virtual machine's host",
    "the source is in the host's memory; neither program waits for the disk at the end (qemu-img's cache=unsafe)",
    "the host's writing back goes on behind the measured process, and into the next one: that is why rounds turn",
    "folio's and qemu-img's compressed images differ: levels and encoders are each one's own",
    "one image: how well data packs decides much of this",
];
const RIVAL: &str = "qemu-img";

const QCOW2: &[&str] = &["-O", "qcow2"];
const RAW: &[&str] = &["-O", "raw"];
const ZLIB: &[&str] = &["-O", "qcow2", "-c"];
const ZSTD: &[&str] = &["-O", "qcow2", "-c", "-o", "compression_type=zstd"];
const SOURCE: &str = "source.raw";

/// The other sources, and how they are made from the raw one.
const SOURCES: [(&str, &[&str]); 3] = [
    ("source.qcow2", QCOW2),
    ("source-zlib.qcow2", ZLIB),
    ("source-zstd.qcow2", ZSTD),
];

/// Title, source, options of both programs, target.
const JOBS: [(&str, &str, &[&str], &str); 7] = [
    ("raw to raw", SOURCE, RAW, "out.raw"),
    ("raw to qcow2", SOURCE, QCOW2, "out.qcow2"),
    ("qcow2 to raw", "source.qcow2", RAW, "out.raw"),
    ("raw to qcow2, zlib", SOURCE, ZLIB, "out.qcow2"),
    ("raw to qcow2, zstd", SOURCE, ZSTD, "out.qcow2"),
    ("qcow2, zlib, to raw", "source-zlib.qcow2", RAW, "out.raw"),
    ("qcow2, zstd, to raw", "source-zstd.qcow2", RAW, "out.raw"),
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(common: &Common, run: &Run<'_>) -> Outcome<Report> {
    let size_mib = common.size_mib.unwrap_or_else(|| run.sized(4096, 64));
    require_space(&common.dir, size_mib * 3, "--dir and --size-mib")?;
    let scratch = scratch_in(&common.dir)?;
    let folder = scratch.path();
    let mut report = Report::new("convert", "", &common.dir);
    let qemu_img = find(RIVAL);
    if qemu_img.is_none() {
        report.skip(RIVAL, "qemu-img is not installed");
    }
    let convert = |contender: &str, options: &[&str], source: &Path, target: &Path| {
        let mut command = match &qemu_img {
            Some(program) if contender == RIVAL => Command::new(program),
            _ => folio_image(run),
        };
        command.arg("convert").args(options).arg(source).arg(target);
        command
    };
    let raw = folder.join(SOURCE);
    make_source(folder, size_mib, run)?;
    // By qemu-img if it is installed: the same for all contenders.
    for (name, options) in SOURCES {
        command::run(&mut convert(RIVAL, options, &raw, &folder.join(name)))?;
    }
    let allocated_mib = fs::metadata(&raw).at(&raw)?.blocks() >> 11;
    report.what = format!(
        "ext4 of the machine's own files and random data in {size_mib} MiB, {allocated_mib} MiB allocated, into other formats"
    );
    for (title, source, options, target) in JOBS {
        let (source, target) = (folder.join(source), folder.join(target));
        // Brings the source into the host's memory.
        io::copy(&mut File::open(&source).at(&source)?, &mut io::sink()).at(&source)?;
        let mut race = Race::new(title, Unit::Seconds, Some(RIVAL));
        for contender in ["folio", RIVAL] {
            if contender == RIVAL && qemu_img.is_none() {
                continue;
            }
            let mut commands = [convert(contender, options, &source, &target)];
            let (raw, target) = (&raw, &target);
            race.contender(contender, move |turn| {
                // The target, a source that is compressed, and what else the host has to find pages
                // for.
                touch_memory(size_mib * 7 / 4)?;
                turn.add(title, timed(&mut commands)?);
                if turn.round == 0 {
                    turn.note(format!("{title}, {contender}: {}", judge(raw, target)?));
                }
                fs::remove_file(target).at(target)
            });
        }
        race.run(run, &mut report)?;
    }
    report.limit(&LIMITS);
    Ok(report)
}

fn folio_image(run: &Run<'_>) -> Command {
    let mut folio = run.folio();
    folio.arg("image");
    folio
}

/// Makes the raw image: a quarter is random data, a quarter the machine's own files.
fn make_source(folder: &Path, size_mib: u64, run: &Run<'_>) -> Outcome {
    let tree = folder.join("tree");
    make_tree(&tree, size_mib)?;
    let mut copy = run.folio();
    copy.args(["cp", "-a", &format!("--create={size_mib}M")])
        .arg(&tree);
    command::run(copy.arg(inside(&folder.join(SOURCE), "/tree")))?;
    fs::remove_dir_all(&tree).at(&tree)
}

/// Makes a tree for an image of `size_mib` that fills half of it.
pub(crate) fn make_tree(tree: &Path, size_mib: u64) -> Outcome {
    fs::create_dir(tree).at(tree)?;
    let limits = Limits {
        files_min: 10,
        files_max: 200_000,
        bytes_max: (size_mib << 20) / 4,
    };
    real_tree::copy_to(tree, limits)?;
    random_file(&tree.join("random"), (size_mib << 20) / 4)
}

/// Makes a file of random bytes.
pub(crate) fn random_file(path: &Path, len_bytes: u64) -> Outcome {
    let mut from = File::open("/dev/urandom")
        .at("/dev/urandom")?
        .take(len_bytes);
    io::copy(&mut from, &mut File::create(path).at(path)?)
        .map(drop)
        .at(path)
}

/// Returns the size of a target, and whether qemu-img finds in it what went in.
fn judge(raw: &Path, target: &PathBuf) -> Outcome<String> {
    let size_mib = fs::metadata(target).at(target)?.blocks() >> 11;
    let Ok(mut compare) = tool(RIVAL) else {
        return Ok(format!("{size_mib} MiB on the disk, not checked"));
    };
    command::run(compare.arg("compare").arg(raw).arg(target))?;
    if ImageFormat::of_name(target) == ImageFormat::Qcow2 {
        command::run(tool(RIVAL)?.arg("check").arg(target))?;
    }
    Ok(format!("{size_mib} MiB on the disk, content right"))
}
