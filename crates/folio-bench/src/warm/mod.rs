//! The scenario `warm`: large files, and a tree of small ones, from the disk into the page cache,
//! by `folio warm` and its rivals, beside what the disk itself can do; and an aged tree from a disk
//! that seeks, which is modeled.
//!
//! ```text
//!   mod.rs      the scenario            tree.rs          files, cold, brought in by a command
//!   again.rs    reads of these files afterwards
//!   seeking.rs  a disk that seeks       device_file.rs   the backing file of its loop device
//! ```

mod again;
mod device_file;
mod seeking;
mod tree;

use self::seeking::SeekingDisk;
use self::tree::{JOB, LARGE_FILES, Tree, Warmer};
use crate::command::{self, find, tool};
use crate::evidence::mib_per_second;
use crate::options::{DiskDir, size};
use crate::outcome::Outcome;
use crate::race::{Race, Run, scratch_in};
use crate::report::{Bound, Report, Sample, Unit};
use std::cell::RefCell;
use std::path::Path;

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    #[command(flatten)]
    disk: DiskDir,
    /// Size of all large files together, at least 8M [default: 2G]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Small files [default: 100000]
    #[arg(long)]
    files: Option<u64>,
    /// Files on the modeled disk that seeks [default: 2000]
    #[arg(long)]
    seeking_files: Option<u64>,
}

const ROUNDS: u32 = 3;

const FOLIO: &str = "folio warm";
const RESTORE: &str = "folio cache restore";
const VMTOUCH: &str = "vmtouch -t";
const DEVICE: &str = "the device (fio, direct)";
const CAT: &str = "cat";
const LARGE: &str = "large files";
const AGAIN: &str = "large files, read again after each command";
const AT_RANDOM: &str = "large files, read at random after each command";
const SMALL: &str = "small files";
const SEEKING: &str = "aged files on a disk that seeks (modeled SATA disk, 7200 turns a minute)";

const LIMITS: [&str; 8] = [
    "reads after a command show its pages: the kernel copies from large folios faster than from single pages, and only \
     its own readahead brings them; of three passes the fastest counts",
    "cold: the files are put out of memory one by one with POSIX_FADV_DONTNEED, checked; their names and inodes stay, so \
     the tree is found faster than after a restart",
    "before each run another process uses as much memory and gives it back: in a virtual machine unused pages \
     may have to come from the machine's host first; fio reads into the same few pages again and again",
    "the disk may have a cache below it that this program cannot empty",
    "commands are timed as a whole, with the time that they take to start",
    "whether a disk seeks makes all the difference: on one that does, the order of reads decides",
    "the disk that seeks is a model that lets its callers wait: 1 to 17 ms a move and half a turn, 128 MiB/s, a queue of \
     32; the kernel's ext4 is on it by way of FUSE and a loop device",
    "cold, on that disk: mounted anew, so that folders and inodes have to be found as well",
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = options.disk.path();
    let bytes = options
        .size
        .unwrap_or_else(|| run.sized(2 << 30, 0))
        .max(8 << 20);
    let count = options
        .files
        .unwrap_or_else(|| run.sized(100_000, 400))
        .max(1);
    let what = format!(
        "{LARGE_FILES} files of {} MiB, and {count} small ones",
        (bytes / LARGE_FILES) >> 20
    );
    let mut report = Report::new("warm", what, &dir);
    let scratch = scratch_in(&dir)?;
    let folder = scratch.path();
    (run.step)("warm: files are made")?;
    let large = Tree::large(&folder.join("large"), bytes)?;
    let small = Tree::small(&folder.join("small"), count)?;
    if find("vmtouch").is_none() {
        report.skip(VMTOUCH, "vmtouch is not installed");
    }
    for (title, tree) in [(LARGE, &large), (SMALL, &small)] {
        if tree.cold()? > 0.05 {
            report.skip(
                title,
                "the files cannot be put out of memory here: see --disk-dir",
            );
            continue;
        }
        let mut race = Race::new(title, Unit::MibPerSecond, base()).rounds(ROUNDS);
        for warmer in warmers(run, tree, &folder.join("hot-set"))? {
            race.case(JOB, warmer.name, move || tree.warm(&warmer));
        }
        if title == LARGE && device_rate(tree).is_some() {
            race.case(JOB, DEVICE, || {
                Ok(Sample::of(device_rate(tree).ok_or("fio: no figure")?))
            });
        } else if title == LARGE {
            report.skip(DEVICE, "fio is not installed, or cannot read directly here");
        }
        race.run(run, &mut report)?;
    }
    if report.table(LARGE).is_some() {
        read_again(run, &large, &folder.join("hot-set"), &mut report)?;
    }
    seek(options, run, folder, &mut report)?;
    judge(&mut report);
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns the contender that ratios refer to.
fn base() -> Option<&'static str> {
    find("vmtouch").map(|_| VMTOUCH)
}

/// Returns the commands that cache a tree; its hot set is kept in `set`.
fn warmers(run: &Run<'_>, tree: &Tree, set: &Path) -> Outcome<Vec<Warmer>> {
    let folder = &tree.folder;
    command::run(run.folio().arg("warm").arg(folder))?;
    command::run(run.folio().args(["cache", "save"]).arg(set).arg(folder))?;
    let mut warmers = vec![
        Warmer::new(FOLIO, &run.folio, &["--quiet", "warm"], folder),
        Warmer::new(RESTORE, &run.folio, &["--quiet", "cache", "restore"], set),
    ];
    let vmtouch = find("vmtouch");
    warmers.extend(vmtouch.map(|program| Warmer::new(VMTOUCH, &program, &["-q", "-t"], folder)));
    Ok(warmers)
}

/// Reads the large files after each of these commands, and after cat.
fn read_again(run: &Run<'_>, large: &Tree, set: &Path, report: &mut Report) -> Outcome {
    let mut warmers = warmers(run, large, set)?;
    let script = "find \"$0\" -type f -exec cat {} + > /dev/null";
    warmers.push(Warmer::new(
        CAT,
        Path::new("sh"),
        &["-c", script],
        &large.folder,
    ));
    let mut race = Race::new(AGAIN, Unit::MibPerSecond, Some(CAT)).rounds(ROUNDS);
    for warmer in &warmers {
        race.case(again::IN_ORDER, warmer.name, || {
            again::in_order(large, warmer)
        });
    }
    race.run(run, report)?;
    let mut race = Race::new(AT_RANDOM, Unit::Seconds, Some(CAT)).rounds(ROUNDS);
    for warmer in &warmers {
        race.case(again::RANDOM, warmer.name, || {
            again::at_random(large, warmer)
        });
    }
    race.run(run, report)
}

/// On a disk that seeks.
fn seek(options: &Options, run: &Run<'_>, folder: &Path, report: &mut Report) -> Outcome {
    if let Some(reason) = seeking::missing() {
        report.skip(SEEKING, reason);
        return Ok(());
    }
    (run.step)("warm: a disk that seeks is made")?;
    let usual_count = run.sized(2000, 40);
    let count = options.seeking_files.unwrap_or(usual_count).max(1);
    // Where a superuser may not mount, as in a container, the other figures are still measured.
    let disk = match SeekingDisk::new(folder, count) {
        Ok(disk) => RefCell::new(disk),
        Err(reason) => {
            report.skip(SEEKING, reason.to_string());
            return Ok(());
        }
    };
    let warmers = warmers(run, &disk.borrow().tree, &folder.join("hot-set"))?;
    let mut race = Race::new(SEEKING, Unit::MibPerSecond, base()).rounds(ROUNDS);
    for warmer in warmers {
        let disk = &disk;
        race.case(JOB, warmer.name, move || {
            disk.borrow_mut().cold()?;
            let disk = disk.borrow();
            let before = disk.counters();
            let mut sample = disk.tree.time(&warmer)?;
            let after = disk.counters();
            let read_bytes = after.read_bytes - before.read_bytes;
            sample.evidence.cached_before = Some(0.0);
            sample.evidence.device_read_bytes = Some(read_bytes as f64);
            sample.evidence.seeks = Some((after.seeks - before.seeks) as f64);
            Ok(sample.map(|seconds| mib_per_second(read_bytes.min(disk.tree.bytes), seconds)))
        });
    }
    race.run(run, report)
}

fn judge(report: &mut Report) {
    for (title, job, ours, rival, least) in [
        (LARGE, JOB, FOLIO, DEVICE, 0.9),
        (AGAIN, again::IN_ORDER, FOLIO, CAT, 0.9),
        (AGAIN, again::IN_ORDER, RESTORE, CAT, 0.9),
        (SMALL, JOB, FOLIO, VMTOUCH, 3.0),
        (SEEKING, JOB, FOLIO, VMTOUCH, 10.0),
        (SMALL, JOB, RESTORE, FOLIO, 0.9),
        (SEEKING, JOB, RESTORE, FOLIO, 0.9),
    ] {
        let ratio = report
            .table(title)
            .and_then(|table| table.ratio(job, ours, rival));
        let aim = format!("{title}: {ours} at {least} times the rate of {rival}, or more");
        report.judge(aim, ratio, Bound::AtLeast(least));
    }
}

/// Returns the device's rate past the page cache, in MiB a second; `None` if fio cannot measure it.
fn device_rate(tree: &Tree) -> Option<f64> {
    let mut fio = tool("fio").ok()?;
    tree.cold().ok()?;
    let names: Vec<String> = (0..LARGE_FILES)
        .map(|number| tree.folder.join(number.to_string()).display().to_string())
        .collect();
    fio.args([
        "--name=device",
        "--readonly",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
    ]);
    fio.args([
        "--ioengine=io_uring",
        "--iodepth=8",
        "--file_service_type=sequential",
    ]);
    fio.args([
        "--output-format=json",
        &format!("--filename={}", names.join(":")),
    ]);
    let said = command::run(&mut fio).ok()?;
    let said: serde_json::Value = serde_json::from_str(said.get(said.find('{')?..)?).ok()?;
    let read = &said["jobs"][0]["read"];
    let (bytes, milliseconds) = (read["io_bytes"].as_u64()?, read["runtime"].as_f64()?);
    (bytes > 0).then(|| mib_per_second(bytes, (milliseconds / 1e3).max(1e-3)))
}
