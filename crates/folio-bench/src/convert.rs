//! The scenario `convert`: an image with a tree and random data into other formats and back, beside
//! qemu-img.

use crate::Common;
use crate::contender::find;
use crate::measure::{Cost, Meter, touch_memory};
use crate::real_tree::{self, Limits};
use crate::report::{Place, Report, Row, Table, Unit, owned};
use crate::run::{Run, scratch_in};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LIMITS: [&str; 5] = [
    "before each run another process uses as much memory as the image is large, and gives it back, so that no contender \
     has to wait for pages of a virtual machine's host",
    "the source is in the host's memory; neither program waits for the disk at the end (qemu-img's cache=unsafe)",
    "the host's writing back goes on behind the measured process, and into the next one: that is why rounds turn",
    "folio's and qemu-img's compressed images differ: levels and encoders are each one's own",
    "one image: how well data packs decides much of this",
];
/// Shares of the image: random data, and the machine's own files.
const RANDOM_PART: u64 = 4;
const TREE_PART: u64 = 4;

/// What is done; the words are those of both programs.
struct Job {
    title: &'static str,
    source: Source,
    options: &'static [&'static str],
    target: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Raw,
    Qcow2,
    Zlib,
    Zstd,
}

const QCOW2: &[&str] = &["-O", "qcow2"];
const RAW: &[&str] = &["-O", "raw"];
const ZLIB: &[&str] = &["-O", "qcow2", "-c"];
const ZSTD: &[&str] = &["-O", "qcow2", "-c", "-o", "compression_type=zstd"];

const JOBS: [Job; 7] = [
    Job {
        title: "raw to raw",
        source: Source::Raw,
        options: RAW,
        target: "out.raw",
    },
    Job {
        title: "raw to qcow2",
        source: Source::Raw,
        options: QCOW2,
        target: "out.qcow2",
    },
    Job {
        title: "qcow2 to raw",
        source: Source::Qcow2,
        options: RAW,
        target: "out.raw",
    },
    Job {
        title: "raw to qcow2, zlib",
        source: Source::Raw,
        options: ZLIB,
        target: "out.qcow2",
    },
    Job {
        title: "raw to qcow2, zstd",
        source: Source::Raw,
        options: ZSTD,
        target: "out.qcow2",
    },
    Job {
        title: "qcow2, zlib, to raw",
        source: Source::Zlib,
        options: RAW,
        target: "out.raw",
    },
    Job {
        title: "qcow2, zstd, to raw",
        source: Source::Zstd,
        options: RAW,
        target: "out.raw",
    },
];

/// What a whole run works on.
struct Bench<'a> {
    run: &'a Run<'a>,
    folder: &'a Path,
    /// Name, program, and what comes before the words of `convert`.
    programs: Vec<(&'static str, PathBuf, &'static [&'static str])>,
}

const ROUNDS: u32 = 5;
const RIVAL: &str = "qemu-img";

/// Runs the scenario and returns its report.
pub(crate) fn measure(common: &Common, run: &Run<'_>) -> Result<Report, String> {
    let size_mib = common.size_mib.unwrap_or_else(|| run.sized(4096, 64));
    let free = Place::of(&common.dir).free_mib;
    if free < size_mib * 3 {
        let (dir, need) = (common.dir.display(), size_mib * 3);
        return Err(format!(
            "{dir} has {free} MiB free, {need} are needed: see --dir and --size-mib"
        ));
    }
    let folder = scratch_in(&common.dir)?;
    let mut programs: Vec<(_, _, &'static [&'static str])> =
        vec![("folio", run.folio.clone(), &["image", "convert"])];
    let mut report = Report::new("convert", "", &common.dir);
    match find(RIVAL) {
        Some(path) => programs.push((RIVAL, path, &["convert"])),
        None => report.skip(RIVAL, "qemu-img is not installed"),
    }
    let bench = Bench {
        run,
        folder: folder.path(),
        programs,
    };
    bench.make_sources(size_mib)?;
    let allocated = fs::metadata(bench.path(Source::Raw))
        .map_err(|error| error.to_string())?
        .blocks()
        >> 11;
    report.what = format!(
        "ext4 of the machine's own files and random data in {size_mib} MiB, {allocated} MiB allocated, into other formats"
    );
    for job in &JOBS {
        let table = bench.measure(job, size_mib, &mut report)?;
        report.tables.push(table);
    }
    report.limits = owned(&LIMITS);
    Ok(report)
}

impl Bench<'_> {
    fn path(&self, source: Source) -> PathBuf {
        self.folder.join(match source {
            Source::Raw => "source.raw",
            Source::Qcow2 => "source.qcow2",
            Source::Zlib => "source-zlib.qcow2",
            Source::Zstd => "source-zstd.qcow2",
        })
    }

    /// Makes the raw image, and from it the other formats by qemu-img if it is installed: the same
    /// for all contenders.
    fn make_sources(&self, size_mib: u64) -> Result<(), String> {
        let tree = self.folder.join("tree");
        fs::create_dir(&tree).map_err(|error| error.to_string())?;
        let limits = Limits {
            files_min: 10,
            files_max: 200_000,
            bytes_max: (size_mib << 20) / TREE_PART,
        };
        real_tree::copy_to(&tree, limits)?;
        let random = || -> io::Result<()> {
            let mut from = File::open("/dev/urandom")?.take((size_mib << 20) / RANDOM_PART);
            io::copy(&mut from, &mut File::create(tree.join("random"))?).map(drop)
        };
        random().map_err(|error| error.to_string())?;
        let raw = self.path(Source::Raw);
        let mut place = raw.clone().into_os_string();
        place.push(":/tree");
        let create = format!("--create={size_mib}M");
        let arguments = [
            OsStr::new("cp"),
            OsStr::new("-a"),
            OsStr::new(&create),
            tree.as_os_str(),
            &place,
        ];
        let (_, program, _) = &self.programs[0];
        Meter::default().run(program.as_os_str(), arguments)?;
        fs::remove_dir_all(&tree).map_err(|error| error.to_string())?;
        // The last one is qemu-img, if it is there.
        let Some((_, program, before)) = self.programs.last() else {
            return Ok(());
        };
        for (source, options) in [
            (Source::Qcow2, QCOW2),
            (Source::Zlib, ZLIB),
            (Source::Zstd, ZSTD),
        ] {
            let words = words(before, options, &raw, &self.path(source));
            Meter::default().run(program.as_os_str(), words)?;
        }
        Ok(())
    }

    fn measure(&self, job: &Job, size_mib: u64, report: &mut Report) -> Result<Table, String> {
        let (source, target) = (self.path(job.source), self.folder.join(job.target));
        warm(&source).map_err(|error| format!("{}: {error}", source.display()))?;
        let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); self.programs.len()];
        let mut round = 0;
        while self.run.goes_on(job.title, round, ROUNDS)? {
            for turn in 0..self.programs.len() {
                let at = (round as usize + turn) % self.programs.len();
                let (name, program, before) = &self.programs[at];
                // The target, a source that is compressed, and what else the host has to find pages
                // for.
                touch_memory(size_mib * 7 / 4)?;
                let mut meter = Meter::default();
                meter.run(
                    program.as_os_str(),
                    words(before, job.options, &source, &target),
                )?;
                costs[at].push(meter.cost);
                if round == 0 {
                    report
                        .notes
                        .push(format!("{}, {name}: {}", job.title, self.judge(&target)?));
                }
                fs::remove_file(&target)
                    .map_err(|error| format!("{}: {error}", target.display()))?;
            }
            round += 1;
        }
        report.repeats = round;
        let rows = self.programs.iter().zip(&costs);
        let rows = rows
            .map(|((name, ..), costs)| Row::of_costs(job.title, name, costs))
            .collect();
        Ok(Table::new(job.title, Unit::Seconds, Some(RIVAL), rows))
    }

    /// What came out, and whether it is what went in.
    fn judge(&self, target: &Path) -> Result<String, String> {
        let found =
            fs::metadata(target).map_err(|error| format!("{}: {error}", target.display()))?;
        let size = format!("{} MiB on the disk", found.blocks() >> 11);
        let Some(qemu_img) = find("qemu-img") else {
            return Ok(format!("{size}, not checked"));
        };
        let raw = self.path(Source::Raw);
        let compare = [OsStr::new("compare"), raw.as_os_str(), target.as_os_str()];
        Meter::default().run(qemu_img.as_os_str(), compare)?;
        if target
            .extension()
            .is_some_and(|extension| extension == "qcow2")
        {
            Meter::default().run(
                qemu_img.as_os_str(),
                [OsStr::new("check"), target.as_os_str()],
            )?;
        }
        Ok(format!("{size}, content right"))
    }
}

fn words(before: &[&str], options: &[&str], source: &Path, target: &Path) -> Vec<OsString> {
    let words = before.iter().chain(options).map(OsString::from);
    words.chain([source.into(), target.into()]).collect()
}

/// Brings a file into the host's memory.
fn warm(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buf = vec![0; 1 << 20];
    while file.read(&mut buf)? > 0 {}
    Ok(())
}
