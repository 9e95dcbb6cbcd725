//! The scenario `python`: foliofs on an image beside plain Python on mounts, and beside the readers
//! of ext4 on PyPI.
//!
//! `jobs.py` runs the jobs of one contender, in a Python process of its own.

use crate::command::{self, find, inside, tool};
use crate::hosted::{Hosted, System};
use crate::options::DiskDir;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::report::{Bound, Report, Sample, Unit};
use serde::Deserialize;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("jobs.py");
const BLOCK_BYTES: usize = 4096;
const FILES_PER_FOLDER: usize = 100;
/// Room for metadata and for files that end in the middle of a block.
const ROOM_MIB: u64 = 64;

const FOLIOFS: &str = "foliofs, image";
const KERNEL: &str = "Python, kernel's ext4";
const HOST: &str = "Python, host's folder";
const FUSE2FS: &str = "Python, fuse2fs";
const EXT4: &str = "ext4 of PyPI, image";
const DISSECT: &str = "dissect.extfs of PyPI, image";

const PREADS: &str = "pread of 4 KiB";
const OPENS: &str = "open and read a small file";
const STATS: &str = "stat a file";
const WALK: &str = "walk, for each file";

const LIMITS: [&str; 4] = [
    "all is warm: each process does each job once before its clock runs; order of offsets and files is random",
    "foliofs has a page cache of its own, which the warm-up fills; all other contenders use the kernel's",
    "a reader of PyPI makes as many operations as begin within two seconds; it has no pread, but seek and read",
    "the loop of Python itself is in each figure",
];

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A Python with foliofs, and with ext4 and dissect.extfs to be beside
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    #[command(flatten)]
    disk: DiskDir,
}

const TABLE: &str = "each operation";
const JOBS: [&str; 4] = [PREADS, OPENS, STATS, WALK];

/// A way to read the tree.
struct Reader {
    /// The class in `jobs.py`.
    class: &'static str,
    place: PathBuf,
    /// Seconds for each job.
    limit: f64,
}

/// Output of `jobs.py`: seconds of each operation.
#[derive(Deserialize)]
struct Figures {
    preads: f64,
    files: f64,
    stats: f64,
    walk: f64,
}

/// Sizes of a run.
#[derive(Clone, Copy)]
struct Sizes {
    preads: usize,
    files: usize,
    large_bytes: usize,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let python = Python::find(&options.python)?;
    let dir = options.disk.path();
    let scratch = scratch_in(&dir)?;
    let sizes = Sizes {
        preads: run.sized(1_000_000, 200),
        files: run.sized(20_000, 200),
        large_bytes: run.sized(64 << 20, 1 << 20),
    };
    let what = format!(
        "{} preads of a file of {} MiB, {} files opened and read, and their tree walked",
        sizes.preads,
        sizes.large_bytes >> 20,
        sizes.files
    );
    let mut report = Report::new("python", what, &dir);
    report.notes = python.notes.clone();
    let root = scratch.path().join("root");
    let bytes = make_tree(&root, sizes)?;
    let image = make_image(run, &root, bytes)?;
    let script = scratch.path().join("jobs.py");
    fs::write(&script, SCRIPT).at(&script)?;
    // Unmounted before the folder is removed.
    let mut mounts = Vec::new();
    let readers = readers(&python, [&root, &image], run, &mut mounts, &mut report);
    let base = if readers.iter().any(|(name, _)| *name == KERNEL) {
        KERNEL
    } else {
        HOST
    };
    let mut race = Race::new(TABLE, Unit::Seconds, Some(base)).rounds(3);
    for (name, reader) in &readers {
        race.contender(name, |turn| {
            let figures = python.run_jobs(&script, reader, sizes)?;
            let seconds = [figures.preads, figures.files, figures.stats, figures.walk];
            for (job, seconds) in JOBS.into_iter().zip(seconds) {
                turn.add(job, Sample::of(seconds));
            }
            Ok(())
        });
    }
    race.run(run, &mut report)?;
    judge(&mut report, base);
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns the readers that can run here, of a tree and of its image.
fn readers(
    python: &Python,
    [root, image]: [&Path; 2],
    run: &Run<'_>,
    mounts: &mut Vec<Hosted>,
    report: &mut Report,
) -> Vec<(&'static str, Reader)> {
    let folder = image.parent().unwrap_or(image);
    let reader = |class, place: &Path, limit| Reader {
        class,
        place: place.to_owned(),
        limit,
    };
    let mut readers = vec![
        (FOLIOFS, reader("foliofs", image, 60.0)),
        (HOST, reader("plain", root, 60.0)),
    ];
    for (name, system) in [(KERNEL, System::EXT4), (FUSE2FS, System::Fuse2fs)] {
        let missing = system.missing().map(Into::into);
        let mount = || Hosted::reader(system, folder, image);
        match missing.map_or_else(mount, Err) {
            Ok(mounted) => {
                readers.push((name, reader("plain", &mounted.mount_point, 60.0)));
                mounts.push(mounted);
            }
            Err(reason) => report.skip(name, reason.to_string()),
        }
    }
    for (name, class, package) in [
        (EXT4, "ext4", "ext4"),
        (DISSECT, "dissect", "dissect.extfs"),
    ] {
        match python.missing(package) {
            Some(reason) => report.skip(name, reason),
            None => readers.push((name, reader(class, image, run.sized(2.0, 0.1)))),
        }
    }
    readers
}

/// An interpreter that imports foliofs.
struct Python {
    path: PathBuf,
    notes: Vec<String>,
}

/// Prints the versions, and whether foliofs is optimized.
const ABOUT: &str = "import foliofs, importlib.metadata, sys\n\
    print(sys.version.split()[0], importlib.metadata.version('foliofs'), \
    foliofs._native.is_optimized)";

impl Python {
    fn find(wanted: &Path) -> Outcome<Self> {
        let shown = wanted.display();
        let found = match wanted.components().count() {
            1 => find(&wanted.to_string_lossy()),
            _ => Some(wanted.to_owned()),
        };
        let path = found.ok_or_else(|| format!("--python {shown}: not found on PATH"))?;
        let about = evaluate(&path, ABOUT).map_err(|reason| {
            let reason = reason.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            format!(
                "--python {shown}: {reason}: name a Python that has the wheel of bindings/python"
            )
        })?;
        let mut about = about.split_whitespace();
        let mut next = || about.next().unwrap_or_default().to_owned();
        let (version, foliofs, is_optimized) = (next(), next(), next());
        let mut notes = vec![format!("Python {version}, foliofs {foliofs}")];
        if is_optimized != "True" {
            let note = "foliofs is not optimized: its figures are meaningless; build the wheel by \
                        bindings/python/build-wheel";
            notes.push(note.to_owned());
        }
        Ok(Self { path, notes })
    }

    /// Returns why a package cannot be measured.
    fn missing(&self, package: &str) -> Option<String> {
        let imported = evaluate(&self.path, &format!("import {package}"));
        let missing = imported.is_err();
        missing.then(|| format!("{package} is not installed: pip install {package}"))
    }

    fn run_jobs(&self, script: &Path, reader: &Reader, sizes: Sizes) -> Outcome<Figures> {
        let mut jobs = Command::new(&self.path);
        jobs.arg(script).arg(reader.class).arg(&reader.place);
        jobs.arg(sizes.preads.to_string())
            .arg(reader.limit.to_string());
        let output = command::run(jobs.arg(sizes.files.to_string()))?;
        serde_json::from_str(&output).at(output.trim())
    }
}

fn evaluate(python: &Path, code: &str) -> Outcome<String> {
    command::run(Command::new(python).args(["-c", code]))
}

/// Makes `large`, and the small files in `tree`; returns their bytes.
fn make_tree(root: &Path, sizes: Sizes) -> Outcome<u64> {
    fs::create_dir_all(root.join("tree")).at(root)?;
    let large = fs::File::create(root.join("large")).at(root)?;
    let mut large = std::io::BufWriter::new(large);
    let mut block = [0; BLOCK_BYTES];
    for number in 0..sizes.large_bytes / BLOCK_BYTES {
        block.fill(number as u8);
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
        large.write_all(&block).at(root)?;
    }
    large.flush().at(root)?;
    let mut bytes = sizes.large_bytes as u64;
    for number in 0..sizes.files {
        let folder = root.join(format!("tree/{}", number / FILES_PER_FOLDER));
        if number % FILES_PER_FOLDER == 0 {
            fs::create_dir(&folder).at(&folder)?;
        }
        // Up to 5 KiB.
        let content = format!("{number}\n").repeat(100 + number % 700);
        fs::write(folder.join(number.to_string()), &content).at(&folder)?;
        bytes += content.len().next_multiple_of(BLOCK_BYTES) as u64;
    }
    Ok(bytes)
}

/// Makes an image of the tree: by mke2fs, or by Folio where it is missing.
fn make_image(run: &Run<'_>, root: &Path, bytes: u64) -> Outcome<PathBuf> {
    let image = root.with_file_name("image.img");
    let size = format!("{}M", (bytes >> 20) + (bytes >> 22) + ROOM_MIB);
    if let Ok(mut mke2fs) = tool("mke2fs") {
        mke2fs
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(root)
            .arg(&image);
        command::run(mke2fs.arg(&size))?;
    } else {
        let mut copy = run.folio();
        copy.args(["cp", "-a", "--create", &size])
            .arg(root.join("."));
        command::run(copy.arg(inside(&image, "/")))?;
    }
    Ok(image)
}

/// Judges the aims: not slower than plain Python, and ten times ahead of the readers of PyPI.
fn judge(report: &mut Report, base: &str) {
    for (theirs, most, words) in [
        (base, 1.0, "not slower than"),
        (EXT4, 0.1, "a tenth of the time of"),
        (DISSECT, 0.1, "a tenth of the time of"),
    ] {
        for job in JOBS {
            let aim = format!("{job}: {words} {theirs}");
            report.judge_pair(aim, TABLE, job, [FOLIOFS, theirs], Bound::AtMost(most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Table};

    #[test]
    fn aims_of_missing_contenders_are_left_out() {
        let rows = |name: &'static str, preads: f64| {
            let seconds = |job| if job == PREADS { preads } else { 1.0 };
            JOBS.map(|job| Row::new(job, name, vec![seconds(job)]))
        };
        let rows = [rows(FOLIOFS, 1.0), rows(DISSECT, 11.0)].concat();
        let mut report = Report::new("python", "", Path::new("/"));
        report
            .tables
            .push(Table::new(TABLE, Unit::Seconds, Some(HOST), rows));
        judge(&mut report, HOST);
        let met: Vec<bool> = report
            .verdicts
            .iter()
            .map(|verdict| verdict.is_met)
            .collect();
        assert_eq!(met, [true, false, false, false]);
        assert!(report.verdicts[0].aim.contains(DISSECT));
    }

    #[test]
    fn python_without_foliofs_is_refused() {
        let error = |path: &str| {
            Python::find(Path::new(path))
                .err()
                .expect("refused")
                .to_string()
        };
        assert_eq!(
            error("no-such-python"),
            "--python no-such-python: not found on PATH"
        );
        let refused = error("/bin/false");
        assert!(
            refused.starts_with("--python /bin/false: ") && refused.contains("wheel"),
            "{refused}"
        );
    }
}
