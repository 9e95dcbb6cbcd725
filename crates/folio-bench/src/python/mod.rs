//! The scenario `python`: foliofs on an image beside plain Python on mounts, and beside the readers
//! of ext4 on PyPI.
//!
//! `jobs.py` runs the jobs of one contender, in a Python process of its own.

use crate::contender::find;
use crate::ext4::hosted::{Hosted, command, fuse2fs_missing, kernel_missing};
use crate::measure::Meter;
use crate::report::{Report, Row, Table, Unit, Verdict, owned, with_context};
use crate::run::{Run, scratch_in};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const NAME: &str = "python";
const ROUNDS: u32 = 3;
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
    /// A folder on a real disk, for the tree and its image; without it, the system's folder for
    /// temporary files
    #[arg(long)]
    disk_dir: Option<PathBuf>,
}

/// A way to read the tree.
struct Contender {
    name: &'static str,
    /// The class in `jobs.py`.
    class: &'static str,
    place: PathBuf,
    /// Seconds for each job.
    limit: f64,
    figures: Vec<Figures>,
}

/// Output of `jobs.py`: seconds of each operation.
#[derive(Deserialize)]
struct Figures {
    preads: f64,
    files: f64,
    stats: f64,
    walk: f64,
}

impl Figures {
    fn of(&self, job: &str) -> f64 {
        match job {
            PREADS => self.preads,
            OPENS => self.files,
            STATS => self.stats,
            _ => self.walk,
        }
    }
}

/// Sizes of a run.
#[derive(Clone, Copy)]
struct Sizes {
    preads: usize,
    files: usize,
    large_bytes: usize,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let python = Python::find(&options.python)?;
    let dir = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
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
    let mut report = Report::new(NAME, what, &dir);
    report.notes = python.notes.clone();
    let root = scratch.path().join("root");
    let bytes = make_tree(&root, sizes)?;
    let image = make_image(run, &root, bytes)?;
    // Unmounted before the folder is removed.
    let mut mounts = Vec::new();
    let mut contenders = contenders(&python, &root, &image, run, &mut mounts, &mut report);
    let script = scratch.path().join("jobs.py");
    fs::write(&script, SCRIPT).map_err(with_context(script.display()))?;
    while run.goes_on(NAME, report.repeats, ROUNDS)? {
        for turn in 0..contenders.len() {
            run.check()?;
            let at = (turn + report.repeats as usize) % contenders.len();
            let contender = &mut contenders[at];
            let figures = python.run_jobs(&script, contender, sizes);
            contender
                .figures
                .push(figures.map_err(with_context(contender.name))?);
        }
        report.repeats += 1;
    }
    let table = table(&contenders);
    report.verdicts = verdicts(&table);
    report.tables = vec![table];
    report.limits = owned(&LIMITS);
    Ok(report)
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
    fn find(wanted: &Path) -> Result<Self, String> {
        let shown = wanted.display();
        let path = if wanted.components().count() > 1 {
            wanted.to_owned()
        } else {
            find(&wanted.to_string_lossy())
                .ok_or_else(|| format!("--python {shown}: not found on PATH"))?
        };
        let mut python = Self {
            path,
            notes: Vec::new(),
        };
        let about = python.evaluate(ABOUT).map_err(|reason| {
            let reason = reason.lines().last().unwrap_or_default();
            format!(
                "--python {shown}: {reason}: name a Python that has the wheel of bindings/python"
            )
        })?;
        let mut about = about.split_whitespace();
        let mut next = || about.next().unwrap_or_default().to_owned();
        let (version, foliofs, is_optimized) = (next(), next(), next());
        python.notes = vec![format!("Python {version}, foliofs {foliofs}")];
        if is_optimized != "True" {
            let note = "foliofs is not optimized: its figures are meaningless; build the wheel by \
                        bindings/python/build-wheel";
            python.notes.push(note.to_owned());
        }
        Ok(python)
    }

    fn evaluate(&self, code: &str) -> Result<String, String> {
        Meter::default().run(self.path.as_os_str(), ["-c", code])
    }

    /// Returns why a package cannot be measured.
    fn missing(&self, package: &str) -> Option<String> {
        let imported = self.evaluate(&format!("import {package}"));
        imported
            .err()
            .map(|_| format!("{package} is not installed: pip install {package}"))
    }

    fn run_jobs(
        &self,
        script: &Path,
        contender: &Contender,
        sizes: Sizes,
    ) -> Result<Figures, String> {
        let numbers = [
            sizes.preads.to_string(),
            contender.limit.to_string(),
            sizes.files.to_string(),
        ];
        let words = [
            script.as_os_str(),
            OsStr::new(contender.class),
            contender.place.as_os_str(),
        ];
        let words = words.into_iter().chain(numbers.iter().map(OsStr::new));
        let output = Meter::default().run(self.path.as_os_str(), words)?;
        serde_json::from_str(&output).map_err(with_context(output.trim()))
    }
}

/// Makes `large`, and the small files in `tree`; returns their bytes.
fn make_tree(root: &Path, sizes: Sizes) -> Result<u64, String> {
    let failed = |error| format!("{}: {error}", root.display());
    fs::create_dir_all(root.join("tree")).map_err(failed)?;
    let large = fs::File::create(root.join("large")).map_err(failed)?;
    let mut large = std::io::BufWriter::new(large);
    let mut block = [0; BLOCK_BYTES];
    for number in 0..sizes.large_bytes / BLOCK_BYTES {
        block.fill(number as u8);
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
        large.write_all(&block).map_err(failed)?;
    }
    large.flush().map_err(failed)?;
    let mut bytes = sizes.large_bytes as u64;
    for number in 0..sizes.files {
        let folder = root.join(format!("tree/{}", number / FILES_PER_FOLDER));
        if number % FILES_PER_FOLDER == 0 {
            fs::create_dir(&folder).map_err(failed)?;
        }
        // Up to 5 KiB.
        let content = format!("{number}\n").repeat(100 + number % 700);
        fs::write(folder.join(number.to_string()), &content).map_err(failed)?;
        bytes += content.len().next_multiple_of(BLOCK_BYTES) as u64;
    }
    Ok(bytes)
}

/// Makes an image of the tree: by mke2fs, or by Folio where it is missing.
fn make_image(run: &Run<'_>, root: &Path, bytes: u64) -> Result<PathBuf, String> {
    let image = root.with_file_name("image.img");
    let size = format!("{}M", (bytes >> 20) + (bytes >> 22) + ROOM_MIB);
    if find("mke2fs").is_some() {
        let fixed = ["-q", "-F", "-t", "ext4", "-d"].map(OsStr::new);
        let last = [root.as_os_str(), image.as_os_str(), OsStr::new(&size)];
        command("mke2fs", fixed.into_iter().chain(last))?;
    } else {
        let mut to = image.clone().into_os_string();
        to.push(":/");
        let fixed = ["-q", "cp", "-a", "--create", &size].map(OsStr::new);
        let tree = root.join(".");
        let words = fixed.into_iter().chain([tree.as_os_str(), &to]);
        Meter::default().run(run.folio.as_os_str(), words)?;
    }
    Ok(image)
}

/// Returns the contenders that can run here; the report gets the reason for each missing one.
fn contenders(
    python: &Python,
    root: &Path,
    image: &Path,
    run: &Run<'_>,
    mounts: &mut Vec<Hosted>,
    report: &mut Report,
) -> Vec<Contender> {
    let contender = |name, class, place: &Path| Contender {
        name,
        class,
        place: place.to_owned(),
        limit: 60.0,
        figures: Vec::new(),
    };
    let mut found = vec![
        contender(FOLIOFS, "foliofs", image),
        contender(HOST, "plain", root),
    ];
    let folder = image.parent().unwrap_or(image);
    for (name, missing, mount) in [
        (
            KERNEL,
            kernel_missing(),
            Hosted::kernel_reader as fn(&Path, &Path) -> _,
        ),
        (FUSE2FS, fuse2fs_missing(), Hosted::fuse2fs_reader),
    ] {
        match missing.map_or_else(|| mount(folder, image), Err) {
            Ok(mounted) => {
                found.push(contender(name, "plain", &mounted.mount_point));
                mounts.push(mounted);
            }
            Err(reason) => report.skip(name, reason),
        }
    }
    for (name, class, package) in [
        (EXT4, "ext4", "ext4"),
        (DISSECT, "dissect", "dissect.extfs"),
    ] {
        match python.missing(package) {
            Some(reason) => report.skip(name, reason),
            None => found.push(Contender {
                limit: run.sized(2.0, 0.1),
                ..contender(name, class, image)
            }),
        }
    }
    found
}

fn table(contenders: &[Contender]) -> Table {
    let mut rows = Vec::new();
    for job in [PREADS, OPENS, STATS, WALK] {
        for contender in contenders {
            let rounds = contender.figures.iter().map(|figures| figures.of(job));
            rows.push(Row::new(job, contender.name, rounds.collect()));
        }
    }
    let has_kernel = contenders.iter().any(|contender| contender.name == KERNEL);
    let base = if has_kernel { KERNEL } else { HOST };
    Table::new("each operation", Unit::Seconds, Some(base), rows)
}

/// Returns the aims: not slower than plain Python, and ten times ahead of the readers of PyPI.
fn verdicts(table: &Table) -> Vec<Verdict> {
    let base = table.base.as_deref().unwrap_or(HOST);
    let mut verdicts = Vec::new();
    for (rival, most, words) in [
        (base, 1.0, "not slower than"),
        (EXT4, 0.1, "a tenth of the time of"),
        (DISSECT, 0.1, "a tenth of the time of"),
    ] {
        for job in [PREADS, OPENS, STATS, WALK] {
            let (Some(ours), Some(theirs)) = (table.row(job, FOLIOFS), table.row(job, rival))
            else {
                continue;
            };
            let ratio = ours.median / theirs.median;
            let [our_time, their_time] = [ours, theirs].map(|row| Unit::Seconds.figure(row.median));
            verdicts.push(Verdict {
                aim: format!("{job}: {words} {rival}"),
                is_met: ratio <= most,
                figures: format!(
                    "{our_time} against {their_time}, {} times",
                    crate::rows::ratio(ratio)
                ),
            });
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_of_missing_contenders_are_left_out() {
        let contender = |name, seconds| Contender {
            name,
            class: "",
            place: PathBuf::new(),
            limit: 0.0,
            figures: vec![Figures {
                preads: seconds,
                files: 1.0,
                stats: 1.0,
                walk: 1.0,
            }],
        };
        let table = table(&[contender(FOLIOFS, 1.0), contender(DISSECT, 11.0)]);
        let verdicts = verdicts(&table);
        let met: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_met).collect();
        assert_eq!(met, [true, false, false, false]);
        assert!(verdicts[0].aim.contains(DISSECT), "{}", verdicts[0].aim);
    }

    #[test]
    fn python_without_foliofs_is_refused() {
        let error = |path: &str| Python::find(Path::new(path)).err().unwrap_or_default();
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
