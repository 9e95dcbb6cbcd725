//! The scenario `build`: container images, archives and trees into images, beside the tools that
//! builders use.
//!
//! ```text
//!   mod.rs       jobs, contenders, aims
//!     v
//!   source.rs    the container image
//!     v
//!   content.rs   its files
//! ```

mod content;
mod source;

use crate::contender::find;
use crate::measure::{Meter, touch_memory};
use crate::report::{Place, Report, Row, Table, Unit, Verdict, owned, with_context};
use crate::rows::{Evidence, Sample};
use crate::run::{Case, Run, interleave, scratch_in};
use source::Source;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "build";
const ROUNDS: u32 = 5;
/// Size of the content.
const SIZE_MIB: u64 = 500;
const QUICK_SIZE_MIB: u64 = 8;

const LIMITS: [&str; 5] = [
    "images and trees are in the folder named above; in memory, nothing waits for a disk",
    "before each measurement another process uses memory and gives it back, so that all contenders get the same pages",
    "the tools' own steps follow each other; a pipe between them could overlap some",
    "the decompressor alone writes to /dev/null and verifies no digest; it decompresses one layer after another, on one \
     core",
    "one image: sizes of files and how well they compress decide much of this",
];

const QCOW2: &str = "container image into qcow2";
const RAW: &str = "container image into raw";
const TAR_GZ: &str = "tar.gz into raw";
const TAR: &str = "tar into raw";
const TREE: &str = "tree into raw";

const AUTO: &str = "folio, --create auto";
const SIZED: &str = "folio, --create SIZE";
const TOOLS: &str = "skopeo, umoci, mke2fs -d, qemu-img";
const DECOMPRESSOR: &str = "decompressor alone";
const TAR_MKE2FS: &str = "tar -x, mke2fs -d";
const MKE2FS: &str = "mke2fs -d";

/// What is built, and where.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The container image, as oci:DIR:TAG; without it, one of 500 MB that is made here
    #[arg(long)]
    source: Option<String>,
    /// Where images and trees are made; should be in memory
    #[arg(long, alias = "dir", default_value = "/dev/shm")]
    disk_dir: PathBuf,
    /// Content of the image that is made, in MiB
    #[arg(long, conflicts_with = "source")]
    size_mib: Option<u64>,
}

/// One command line.
type Step = (OsString, Vec<OsString>);

/// What is measured, and where its files are.
struct Bench<'a> {
    run: &'a Run<'a>,
    folder: &'a Path,
    source: Source,
    /// Size of the images that are not as small as the content needs.
    image_mib: u64,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let dir = &options.disk_dir;
    let size_mib = options.size_mib;
    let size_mib = size_mib.unwrap_or_else(|| run.sized(SIZE_MIB, QUICK_SIZE_MIB));
    let (free, need) = (Place::of(dir).free_mib, size_mib * 6 + 256);
    if free < need {
        let dir = dir.display();
        return Err(format!(
            "{dir} has {free} MiB free, {need} are needed: see --disk-dir and --size-mib"
        ));
    }
    let scratch = scratch_in(dir)?;
    let source = match &options.source {
        Some(reference) => Source::at(reference)?,
        None => Source::make(scratch.path(), size_mib, run)?,
    };
    let mut bench = Bench {
        run,
        folder: scratch.path(),
        source,
        image_mib: 0,
    };
    let content_mib = bench.extract()?;
    bench.image_mib = content_mib + content_mib / 4 + 64;
    let mut report = Report::new(NAME, "", dir);
    let (layers, bytes) = bench.source.layer_bytes()?;
    report.what = format!(
        "{content_mib} MiB of files, in a container image of {layers} layers with {} MiB, an archive, and a tree",
        bytes >> 20
    );
    let mut cases = bench.cases(&mut report)?;
    let (rows, rounds) = interleave(run, NAME, &mut cases, ROUNDS)?;
    drop(cases);
    report.repeats = rounds;
    report.notes = bench.judge()?;
    report.tables = tables(&rows);
    report.verdicts = verdicts(&report);
    report.limits = owned(&LIMITS);
    Ok(report)
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the tree and the archives; returns the size of the content in MiB.
    fn extract(&self) -> Result<u64, String> {
        (self.run.step)("extracting the container image")?;
        let image = self.path("whole.img");
        let mut from = image.clone().into_os_string();
        from.push(":/.");
        fs::create_dir(self.path("tree")).map_err(with_context("tree"))?;
        for (program, words) in [
            self.folio_copy(&self.source.reference, &image, "auto"),
            folio(
                self.run,
                ["cp".into(), "-a".into(), from, self.path("tree").into()],
            ),
            tar([
                "-cf".into(),
                self.path("root.tar").into(),
                "-C".into(),
                self.path("tree").into(),
                ".".into(),
            ]),
            (
                "gzip".into(),
                vec!["-nk".into(), self.path("root.tar").into()],
            ),
        ] {
            Meter::default().run(&program, words)?;
        }
        fs::remove_file(&image).map_err(with_context("whole.img"))?;
        let tree = self.path("tree");
        let du = Meter::default().run(OsStr::new("du"), [OsStr::new("-sm"), tree.as_os_str()])?;
        let mib = du
            .split_whitespace()
            .next()
            .and_then(|mib| mib.parse().ok());
        mib.ok_or_else(|| format!("du: unexpected output {du:?}"))
    }

    fn size(&self) -> String {
        format!("{}M", self.image_mib)
    }

    fn folio_copy(&self, from: &OsStr, image: &Path, size: &str) -> Step {
        let words = ["cp", "-a", "--create", size].map(OsString::from);
        let words = words.into_iter().chain([from.to_owned(), root_of(image)]);
        folio(self.run, words)
    }

    fn folio_tar(&self, archive: &str, size: &str) -> Step {
        let words = ["tar", "--create", size, "-xf"].map(OsString::from);
        let places = [self.path(archive).into(), root_of(&self.path("out.img"))];
        folio(self.run, words.into_iter().chain(places))
    }

    fn mke2fs(&self, tree: &str) -> Step {
        let words = ["-q", "-t", "ext4", "-d"].map(OsString::from);
        let image = self.path("out.img").into_os_string();
        let rest = [self.path(tree).into(), image, self.size().into()];
        ("mke2fs".into(), words.into_iter().chain(rest).collect())
    }

    /// Returns the steps of builders from a container image to a qcow2 image.
    fn tools(&self) -> Vec<Step> {
        let mut copy = OsString::from("oci:");
        copy.push(self.path("copy"));
        copy.push(":bench");
        let mut layout = self.path("copy").into_os_string();
        layout.push(":bench");
        let mut unpack = vec![OsString::from("unpack")];
        if !rustix::process::geteuid().is_root() {
            unpack.push("--rootless".into());
        }
        unpack.extend(["--image".into(), layout, self.path("bundle").into()]);
        let convert = ["convert", "-f", "raw", "-O", "qcow2"].map(OsString::from);
        let images = ["out.img", "out.qcow2"].map(|name| self.path(name).into_os_string());
        let copied = [
            "--insecure-policy".into(),
            "copy".into(),
            self.source.reference.clone(),
            copy,
        ];
        vec![
            ("skopeo".into(), copied.to_vec()),
            ("umoci".into(), unpack),
            self.mke2fs("bundle/rootfs"),
            (
                "qemu-img".into(),
                convert.into_iter().chain(images).collect(),
            ),
        ]
    }

    /// Returns all cases, without those whose tools are not installed.
    fn cases(&self, report: &mut Report) -> Result<Vec<Case<'_>>, String> {
        let source = &self.source.reference;
        let (qcow2, raw) = (self.path("out.qcow2"), self.path("out.img"));
        let size = self.size();
        let copies = |from: &OsStr| {
            [
                (SIZED, vec![self.folio_copy(from, &raw, &size)]),
                (AUTO, vec![self.folio_copy(from, &raw, "auto")]),
            ]
        };
        let archives = |archive: &str| {
            let unpack = [
                "-xf".into(),
                self.path(archive).into(),
                "-C".into(),
                self.path("bundle").into(),
            ];
            [
                (SIZED, vec![self.folio_tar(archive, &size)]),
                (AUTO, vec![self.folio_tar(archive, "auto")]),
                (TAR_MKE2FS, vec![tar(unpack), self.mke2fs("bundle")]),
            ]
        };
        let mut tree = self.path("tree").into_os_string();
        tree.push("/.");
        let (decompressor, words) = self.source.decompression()?;
        let alone = (DECOMPRESSOR, vec![(OsString::from("sh"), words)]);
        report
            .notes
            .push(format!("the decompressor alone is {decompressor}"));
        let qcow2 = [
            (AUTO, vec![self.folio_copy(source, &qcow2, "auto")]),
            (SIZED, vec![self.folio_copy(source, &qcow2, &size)]),
            (TOOLS, self.tools()),
        ];
        let jobs: [(&str, Vec<(&str, Vec<Step>)>); 5] = [
            (QCOW2, qcow2.into()),
            (RAW, copies(source).into_iter().chain([alone]).collect()),
            (TAR_GZ, archives("root.tar.gz").into()),
            (TAR, archives("root.tar").into()),
            (
                TREE,
                copies(&tree)
                    .into_iter()
                    .chain([(MKE2FS, vec![self.mke2fs("tree")])])
                    .collect(),
            ),
        ];
        let mut cases = Vec::new();
        for (job, contenders) in jobs {
            for (contender, steps) in contenders {
                match steps.iter().find(|(program, _)| !is_installed(program)) {
                    Some((program, _)) => {
                        let program = program.to_string_lossy();
                        report.skip(contender, format!("{program} is not installed"));
                    }
                    None => cases.push(Case::new(job, contender, move || self.once(&steps))),
                }
            }
        }
        Ok(cases)
    }

    /// Runs the steps of a contender, after those of the contender before have left nothing.
    fn once(&self, steps: &[Step]) -> Result<Sample, String> {
        for file in ["out.img", "out.qcow2"] {
            let _ = fs::remove_file(self.path(file));
        }
        for folder in ["bundle", "copy"] {
            let _ = fs::remove_dir_all(self.path(folder));
        }
        if steps.iter().any(|(program, _)| program == "tar") {
            fs::create_dir(self.path("bundle")).map_err(with_context("bundle"))?;
        }
        touch_memory(self.image_mib * 2)?;
        let mut meter = Meter::default();
        for (program, words) in steps {
            meter.run(program, words)?;
        }
        let evidence = Evidence {
            cpu_seconds: Some(meter.cost.cpu_seconds),
            resident_kib: Some(meter.cost.resident_kib as f64),
            ..Evidence::default()
        };
        Ok(Sample {
            value: meter.cost.seconds,
            evidence,
            label: None,
        })
    }

    /// Builds once more, and lets e2fsck and qemu-img judge the images.
    fn judge(&self) -> Result<Vec<String>, String> {
        let source = &self.source.reference;
        let (qcow2, raw) = (self.path("out.qcow2"), self.path("out.img"));
        let mut notes = Vec::new();
        for (image, judge, words) in [
            (&raw, "e2fsck", &["-fn"][..]),
            (&qcow2, "qemu-img", &["check"]),
        ] {
            let _ = fs::remove_file(image);
            let (program, copy) = self.folio_copy(source, image, "auto");
            Meter::default().run(&program, copy)?;
            let Some(program) = find(judge) else {
                notes.push(format!("{judge} is not installed: an image is not checked"));
                continue;
            };
            let words = words.iter().map(OsStr::new).chain([image.as_os_str()]);
            Meter::default().run(program.as_os_str(), words)?;
            let bytes = fs::metadata(image)
                .map_err(with_context(image.display()))?
                .len();
            notes.push(format!(
                "{judge} agrees with {}, of {} MiB",
                name_of(image),
                bytes >> 20
            ));
        }
        Ok(notes)
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn root_of(image: &Path) -> OsString {
    let mut place = image.to_owned().into_os_string();
    place.push(":/");
    place
}

fn folio(run: &Run<'_>, words: impl IntoIterator<Item = OsString>) -> Step {
    let quiet = OsString::from("--quiet");
    let words = [quiet].into_iter().chain(words);
    (run.folio.clone().into(), words.collect())
}

fn tar(words: impl IntoIterator<Item = OsString>) -> Step {
    ("tar".into(), words.into_iter().collect())
}

fn is_installed(program: &OsStr) -> bool {
    Path::new(program).is_file() || program.to_str().is_some_and(|name| find(name).is_some())
}

/// Splits the rows by job, each with its base.
fn tables(rows: &[Row]) -> Vec<Table> {
    let bases = [
        (QCOW2, TOOLS),
        (RAW, DECOMPRESSOR),
        (TAR_GZ, TAR_MKE2FS),
        (TAR, TAR_MKE2FS),
        (TREE, MKE2FS),
    ];
    let table = |(job, base): (&str, &str)| {
        let rows = rows.iter().filter(|row| row.job == job).cloned();
        Table::new(job, Unit::Seconds, Some(base), rows.collect())
    };
    bases.into_iter().map(table).collect()
}

/// Compares the rows with the aims.
fn verdicts(report: &Report) -> Vec<Verdict> {
    let aims = [
        (
            QCOW2,
            AUTO,
            TOOLS,
            1.0 / 3.0,
            "a third of the time of the tools",
        ),
        (
            RAW,
            SIZED,
            DECOMPRESSOR,
            1.3,
            "1.3 times the decompressor alone",
        ),
        (
            TAR_GZ,
            SIZED,
            TAR_MKE2FS,
            0.5,
            "half the time of tar -x and mke2fs -d",
        ),
        (
            TAR,
            SIZED,
            TAR_MKE2FS,
            0.5,
            "half the time of tar -x and mke2fs -d",
        ),
        (QCOW2, AUTO, SIZED, 1.05, "5 percent more for --create auto"),
        (RAW, AUTO, SIZED, 1.05, "5 percent more for --create auto"),
        (
            TAR_GZ,
            AUTO,
            SIZED,
            1.05,
            "5 percent more for --create auto",
        ),
        (TAR, AUTO, SIZED, 1.05, "5 percent more for --create auto"),
        (TREE, AUTO, SIZED, 1.05, "5 percent more for --create auto"),
    ];
    let verdict = |(job, contender, base, most, words): (&str, &str, &str, f64, &str)| {
        let figure = report.row(job, job, contender)?.median;
        let base = report.row(job, job, base)?.median;
        Some(Verdict {
            aim: format!("{job}: at most {words}"),
            is_met: figure <= base * most,
            figures: format!(
                "{} of {}, {} times",
                Unit::Seconds.figure(figure),
                Unit::Seconds.figure(base),
                crate::rows::ratio(figure / base)
            ),
        })
    };
    aims.into_iter().filter_map(verdict).collect()
}
