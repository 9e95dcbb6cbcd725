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
use crate::cache::size;
use crate::contender::find;
use crate::measure::Meter;
use crate::report::{Report, Sample, Table, Unit, Verdict, owned};
use crate::run::{Case, Run, interleave, scratch_in};
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A folder on a real disk for the files; without it, the system's folder for temporary files
    #[arg(long)]
    disk_dir: Option<PathBuf>,
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

const NAME: &str = "warm";
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
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let dir = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let bytes = options
        .size
        .unwrap_or_else(|| run.sized(2 << 30, 8 << 20))
        .max(8 << 20);
    let count = options
        .files
        .unwrap_or_else(|| run.sized(100_000, 400))
        .max(1);
    let what = format!(
        "{LARGE_FILES} files of {} MiB, and {count} small ones",
        (bytes / LARGE_FILES) >> 20
    );
    let mut report = Report::new(NAME, what, &dir);
    let folder = scratch_in(&dir)?;
    (run.step)("warm: files are made")?;
    let large = Tree::large(&folder.path().join("large"), bytes)?;
    let small = Tree::small(&folder.path().join("small"), count)?;
    let vmtouch = find("vmtouch");
    if vmtouch.is_none() {
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
        let set = folder.path().join("hot-set");
        let warmers = warmers(run, vmtouch.as_deref(), tree, &set)?;
        let mut cases: Vec<_> = warmers.into_iter().map(|warmer| tree.way(warmer)).collect();
        let device = if title == LARGE { fio(tree) } else { None };
        match (device, title == LARGE) {
            (Some(_), _) => cases.push(Case::new(JOB, DEVICE, || {
                let value = fio(tree).ok_or("fio: no figure")?;
                Ok(Sample {
                    value,
                    ..Sample::default()
                })
            })),
            (None, true) => {
                report.skip(DEVICE, "fio is not installed, or cannot read directly here")
            }
            (None, false) => {}
        }
        let (rows, rounds) = interleave(run, &format!("warm, {title}"), &mut cases, ROUNDS)?;
        report.repeats = rounds;
        let base = vmtouch.is_some().then_some(VMTOUCH);
        report
            .tables
            .push(Table::new(title, Unit::MibPerSecond, base, rows));
    }
    if report.tables.iter().any(|table| table.title == LARGE) {
        let set = folder.path().join("hot-set");
        let warmers = warmers(run, vmtouch.as_deref(), &large, &set)?;
        read_again(run, &large, warmers, &mut report)?;
    }
    seek(options, run, folder.path(), vmtouch.as_deref(), &mut report)?;
    judge(&mut report);
    report.limits = owned(&LIMITS);
    Ok(report)
}

/// Returns the commands that cache a tree; its hot set is kept in `set`.
fn warmers(
    run: &Run<'_>,
    vmtouch: Option<&Path>,
    tree: &Tree,
    set: &Path,
) -> Result<Vec<Warmer>, String> {
    let folio = run.folio.as_path();
    let path = |path: &Path| path.as_os_str().to_owned();
    let warm = ["warm", "--quiet"]
        .map(OsString::from)
        .into_iter()
        .chain([path(&tree.folder)]);
    let save = ["cache", "save", "--quiet"].map(OsString::from).into_iter();
    let mut meter = Meter::default();
    meter.run(folio.as_os_str(), warm)?;
    meter.run(
        folio.as_os_str(),
        save.chain([path(set), path(&tree.folder)]),
    )?;
    let mut warmers = vec![
        Warmer::new(FOLIO, folio, &["warm", "--quiet"], &tree.folder),
        Warmer::new(RESTORE, folio, &["cache", "restore", "--quiet"], set),
    ];
    warmers
        .extend(vmtouch.map(|program| Warmer::new(VMTOUCH, program, &["-q", "-t"], &tree.folder)));
    Ok(warmers)
}

/// Reads the large files after each of these commands, and after cat.
fn read_again(
    run: &Run<'_>,
    large: &Tree,
    mut warmers: Vec<Warmer>,
    report: &mut Report,
) -> Result<(), String> {
    let script = "find \"$0\" -type f -exec cat {} + > /dev/null";
    let words = ["-c", script];
    warmers.push(Warmer::new(CAT, Path::new("sh"), &words, &large.folder));
    let mut cases = again::in_order(large, &warmers);
    let (rows, _) = interleave(run, &format!("warm, {AGAIN}"), &mut cases, ROUNDS)?;
    let table = Table::new(AGAIN, Unit::MibPerSecond, Some(CAT), rows);
    report.tables.push(table);
    let mut cases = again::at_random(large, &warmers);
    let (rows, _) = interleave(run, &format!("warm, {AT_RANDOM}"), &mut cases, ROUNDS)?;
    let table = Table::new(AT_RANDOM, Unit::Seconds, Some(CAT), rows);
    report.tables.push(table);
    Ok(())
}

/// On a disk that seeks.
fn seek(
    options: &Options,
    run: &Run<'_>,
    folder: &Path,
    vmtouch: Option<&Path>,
    report: &mut Report,
) -> Result<(), String> {
    if let Some(reason) = seeking::missing() {
        report.skip(SEEKING, reason);
        return Ok(());
    }
    (run.step)("warm: a disk that seeks is made")?;
    let count = options
        .seeking_files
        .unwrap_or_else(|| run.sized(2000, 40))
        .max(1);
    // Where a superuser may not mount, as in a container, the other figures are still measured.
    let disk = match SeekingDisk::new(folder, count) {
        Ok(disk) => RefCell::new(disk),
        Err(reason) => {
            report.skip(SEEKING, reason);
            return Ok(());
        }
    };
    let warmers = warmers(run, vmtouch, &disk.borrow().tree, &folder.join("hot-set"))?;
    let way = |warmer: Warmer| {
        let disk = &disk;
        Case::new(JOB, warmer.name, move || {
            disk.borrow_mut().cold()?;
            let disk = disk.borrow();
            let before = disk.counters();
            let mut sample = disk.tree.time(&warmer)?;
            let after = disk.counters();
            let read_bytes = (after.read_bytes - before.read_bytes) as f64;
            let brought_bytes = read_bytes.min(disk.tree.bytes as f64);
            sample.value = brought_bytes / f64::from(1 << 20) / sample.value.max(1e-9);
            sample.evidence.cached_before = Some(0.0);
            sample.evidence.device_read_bytes = Some(read_bytes);
            sample.evidence.seeks = Some((after.seeks - before.seeks) as f64);
            Ok(sample)
        })
    };
    let mut cases: Vec<_> = warmers.into_iter().map(way).collect();
    let (rows, _) = interleave(run, "warm, a disk that seeks", &mut cases, ROUNDS)?;
    let base = vmtouch.is_some().then_some(VMTOUCH);
    report
        .tables
        .push(Table::new(SEEKING, Unit::MibPerSecond, base, rows));
    Ok(())
}

fn judge(report: &mut Report) {
    let aims = [
        (LARGE, JOB, FOLIO, DEVICE, 0.9),
        (AGAIN, again::IN_ORDER, FOLIO, CAT, 0.9),
        (AGAIN, again::IN_ORDER, RESTORE, CAT, 0.9),
        (SMALL, JOB, FOLIO, VMTOUCH, 3.0),
        (SEEKING, JOB, FOLIO, VMTOUCH, 10.0),
        (SMALL, JOB, RESTORE, FOLIO, 0.9),
        (SEEKING, JOB, RESTORE, FOLIO, 0.9),
    ];
    for (title, job, ours, rival, least) in aims {
        let of = |contender| report.row(title, job, contender).map(|row| row.median);
        let (Some(rate), Some(rival_rate)) = (of(ours), of(rival)) else {
            continue;
        };
        let ratio = rate / rival_rate.max(1e-9);
        report.verdicts.push(Verdict {
            aim: format!("{title}: {ours} at {least} times the rate of {rival}, or more"),
            is_met: ratio >= least,
            figures: crate::rows::ratio(ratio),
        });
    }
}

/// Returns the device's rate past the page cache, in MiB a second; `None` if fio cannot measure it.
fn fio(tree: &Tree) -> Option<f64> {
    let program = find("fio")?;
    tree.cold().ok()?;
    let names: Vec<String> = (0..LARGE_FILES)
        .map(|number| tree.folder.join(number.to_string()).display().to_string())
        .collect();
    let files = format!("--filename={}", names.join(":"));
    let words = [
        "--name=device",
        "--readonly",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
        "--ioengine=io_uring",
        "--iodepth=8",
        "--file_service_type=sequential",
        "--output-format=json",
    ];
    let said = Meter::default()
        .run(
            program.as_os_str(),
            words.into_iter().chain([files.as_str()]),
        )
        .ok()?;
    let said: serde_json::Value = serde_json::from_str(said.get(said.find('{')?..)?).ok()?;
    let read = &said["jobs"][0]["read"];
    let (bytes, milliseconds) = (read["io_bytes"].as_f64()?, read["runtime"].as_f64()?);
    (bytes > 0.0).then(|| bytes / f64::from(1 << 20) / (milliseconds / 1e3).max(1e-3))
}
