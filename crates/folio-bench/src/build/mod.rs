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

use crate::command::{self, find, inside, is_root, timed, tool, touch_memory, used_mib};
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::report::{Bound, Report, Sample, Unit, require_space};
use source::Source;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
const EROFS: &str = "tree into EROFS";
const EROFS_LZ4: &str = "tree into EROFS with lz4";
const EROFS_IMAGE: &str = "container image into EROFS";

const AUTO: &str = "folio, --create auto";
const SIZED: &str = "folio, --create SIZE";
const TOOLS: &str = "skopeo, umoci, mke2fs -d, qemu-img";
const DECOMPRESSOR: &str = "decompressor alone";
const TAR_MKE2FS: &str = "tar -x, mke2fs -d";
const MKE2FS: &str = "mke2fs -d";
const FOLIO_EROFS: &str = "folio, EROFS";
const MKFS_EROFS: &str = "mkfs.erofs";
/// Options of the two programs for an EROFS with lz4, 128 KiB of a file at a time.
const LZ4: [&[&str]; 2] = [&["--compress", "lz4"], &["-zlz4", "-C131072"]];

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

/// What is measured, and where its files are.
struct Bench<'a> {
    run: &'a Run<'a>,
    folder: &'a Path,
    source: Source,
    /// Size of the images that are not as small as the content needs.
    image_mib: u64,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = &options.disk_dir;
    let size_mib = options.size_mib.unwrap_or_else(|| run.sized(500, 8));
    require_space(dir, size_mib * 6 + 256, "--disk-dir and --size-mib")?;
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
    let (layers, bytes) = bench.source.layer_bytes()?;
    let what = format!(
        "{content_mib} MiB of files, in a container image of {layers} layers with {} MiB, an archive, and a tree",
        bytes >> 20
    );
    let mut report = Report::new("build", what, dir);
    bench.measure(&mut report)?;
    bench.judge(&mut report)?;
    bench.judge_erofs(&mut report)?;
    judge(&mut report);
    report.limit(&LIMITS);
    Ok(report)
}

/// The commands of one contender at one job.
struct Case {
    job: &'static str,
    contender: &'static str,
    commands: Vec<Outcome<Command>>,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the tree and the archives; returns the size of the content in MiB.
    fn extract(&self) -> Outcome<u64> {
        (self.run.step)("extracting the container image")?;
        let (image, tree, archive) = (
            self.path("whole.img"),
            self.path("tree"),
            self.path("root.tar"),
        );
        fs::create_dir(&tree).at(&tree)?;
        command::run(&mut self.folio_copy(&self.source.reference, &image, "auto"))?;
        let mut copy = self.run.folio();
        command::run(copy.args(["cp", "-a"]).arg(inside(&image, "/.")).arg(&tree))?;
        let mut tar = tool("tar")?;
        command::run(tar.arg("-cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
        command::run(tool("gzip")?.arg("-nk").arg(&archive))?;
        fs::remove_file(&image).at(&image)?;
        used_mib(&tree)
    }

    fn size(&self) -> String {
        format!("{}M", self.image_mib)
    }

    fn folio_copy(&self, from: &OsStr, image: &Path, size: &str) -> Command {
        let mut copy = self.run.folio();
        copy.args(["cp", "-a", "--create", size])
            .arg(from)
            .arg(inside(image, "/"));
        copy
    }

    fn folio_tar(&self, archive: &str, size: &str) -> Command {
        let mut tar = self.run.folio();
        tar.args(["tar", "--create", size, "-xf"])
            .arg(self.path(archive));
        tar.arg(inside(&self.path("out.img"), "/"));
        tar
    }

    fn mke2fs(&self, tree: &str) -> Outcome<Command> {
        let mut mke2fs = tool("mke2fs")?;
        mke2fs.args(["-q", "-t", "ext4", "-d"]).arg(self.path(tree));
        mke2fs.arg(self.path("out.img")).arg(self.size());
        Ok(mke2fs)
    }

    /// Returns the copy of a source into an EROFS.
    fn folio_erofs(&self, from: &OsStr, options: &[&str]) -> Command {
        let mut copy = self.run.folio();
        copy.args(["cp", "-a", "--create", "auto"]);
        copy.args(options).arg(from);
        copy.arg(inside(&self.path("out.erofs"), "/"));
        copy
    }

    fn mkfs_erofs(&self, options: &[&str]) -> Outcome<Command> {
        let mut mkfs = tool("mkfs.erofs")?;
        mkfs.args(options);
        mkfs.arg(self.path("out.erofs")).arg(self.path("tree"));
        Ok(mkfs)
    }

    fn tar(&self, archive: &str) -> Outcome<Command> {
        let mut tar = tool("tar")?;
        tar.arg("-xf")
            .arg(self.path(archive))
            .arg("-C")
            .arg(self.path("bundle"));
        Ok(tar)
    }

    /// Returns the commands of builders from a container image to a qcow2 image.
    fn tools(&self) -> Vec<Outcome<Command>> {
        let layout = inside(&self.path("copy"), "bench");
        let mut place = OsString::from("oci:");
        place.push(&layout);
        let skopeo = tool("skopeo").map(|mut skopeo| {
            skopeo
                .args(["--insecure-policy", "copy"])
                .arg(&self.source.reference)
                .arg(place);
            skopeo
        });
        let umoci = tool("umoci").map(|mut umoci| {
            umoci
                .arg("unpack")
                .args((!is_root()).then_some("--rootless"));
            umoci.arg("--image").arg(layout).arg(self.path("bundle"));
            umoci
        });
        let qemu_img = tool("qemu-img").map(|mut qemu_img| {
            qemu_img.args(["convert", "-f", "raw", "-O", "qcow2"]);
            qemu_img
                .arg(self.path("out.img"))
                .arg(self.path("out.qcow2"));
            qemu_img
        });
        vec![skopeo, umoci, self.mke2fs("bundle/rootfs"), qemu_img]
    }

    /// Returns the cases of EROFS images.
    fn erofs_cases(&self, decompression: Command) -> Vec<Case> {
        let (source, tree) = (&self.source.reference, self.path("tree/."));
        let case = |job, contender, command| Case {
            job,
            contender,
            commands: vec![command],
        };
        let mut cases = Vec::new();
        for (job, [ours, theirs]) in [(EROFS, [&[][..]; 2]), (EROFS_LZ4, LZ4)] {
            cases.push(case(
                job,
                FOLIO_EROFS,
                Ok(self.folio_erofs(tree.as_os_str(), ours)),
            ));
            cases.push(case(job, MKFS_EROFS, self.mkfs_erofs(theirs)));
        }
        cases.push(case(
            EROFS_IMAGE,
            FOLIO_EROFS,
            Ok(self.folio_erofs(source, &[])),
        ));
        cases.push(case(EROFS_IMAGE, DECOMPRESSOR, Ok(decompression)));
        cases
    }

    /// Returns all cases but those of EROFS images, by job.
    fn cases(&self, decompression: Command) -> Vec<Case> {
        let source = &self.source.reference;
        let (qcow2, raw) = (self.path("out.qcow2"), self.path("out.img"));
        let tree = self.path("tree/.").into_os_string();
        let size = self.size();
        let case = |job, contender, commands| Case {
            job,
            contender,
            commands,
        };
        let mut cases = Vec::new();
        for (job, from, image) in [(QCOW2, source, &qcow2), (RAW, source, &raw)] {
            cases.push(case(
                job,
                SIZED,
                vec![Ok(self.folio_copy(from, image, &size))],
            ));
            cases.push(case(
                job,
                AUTO,
                vec![Ok(self.folio_copy(from, image, "auto"))],
            ));
        }
        cases.push(case(QCOW2, TOOLS, self.tools()));
        cases.push(case(RAW, DECOMPRESSOR, vec![Ok(decompression)]));
        for (job, archive) in [(TAR_GZ, "root.tar.gz"), (TAR, "root.tar")] {
            cases.push(case(job, SIZED, vec![Ok(self.folio_tar(archive, &size))]));
            cases.push(case(job, AUTO, vec![Ok(self.folio_tar(archive, "auto"))]));
            let commands = vec![self.tar(archive), self.mke2fs("bundle")];
            cases.push(case(job, TAR_MKE2FS, commands));
        }
        cases.push(case(
            TREE,
            SIZED,
            vec![Ok(self.folio_copy(&tree, &raw, &size))],
        ));
        cases.push(case(
            TREE,
            AUTO,
            vec![Ok(self.folio_copy(&tree, &raw, "auto"))],
        ));
        cases.push(case(TREE, MKE2FS, vec![self.mke2fs("tree")]));
        cases
    }

    /// Measures all cases in the same rounds, without those whose tools are not installed.
    fn measure(&self, report: &mut Report) -> Outcome {
        let (decompressor, decompression) = self.source.decompression()?;
        report.note(format!("the decompressor alone is {decompressor}"));
        let jobs = [
            (QCOW2, TOOLS),
            (RAW, DECOMPRESSOR),
            (TAR_GZ, TAR_MKE2FS),
            (TAR, TAR_MKE2FS),
            (TREE, MKE2FS),
            (EROFS, MKFS_EROFS),
            (EROFS_LZ4, MKFS_EROFS),
            (EROFS_IMAGE, DECOMPRESSOR),
        ];
        let mut race = Race::new(QCOW2, Unit::Seconds, Some(TOOLS));
        for (job, base) in &jobs[1..] {
            race = race.table(job, Unit::Seconds, Some(base));
        }
        let mut cases = self.cases(decompression);
        cases.extend(self.erofs_cases(self.source.decompression()?.1));
        for case in cases {
            let commands: Outcome<Vec<_>> = case.commands.into_iter().collect();
            let mut commands = match commands {
                Ok(commands) => commands,
                Err(reason) => {
                    report.skip(case.contender, reason.to_string());
                    continue;
                }
            };
            let table = jobs
                .iter()
                .position(|(job, _)| *job == case.job)
                .unwrap_or(0);
            race.contender(case.contender, move |turn| {
                turn.add_to(table, case.job, self.once(&mut commands)?);
                Ok(())
            });
        }
        race.run(self.run, report)
    }

    /// Runs the commands of a contender, after those of the contender before have left nothing.
    fn once(&self, commands: &mut [Command]) -> Outcome<Sample> {
        for file in ["out.img", "out.qcow2", "out.erofs"] {
            let _ = fs::remove_file(self.path(file));
        }
        for folder in ["bundle", "copy"] {
            let _ = fs::remove_dir_all(self.path(folder));
        }
        let first = Path::new(commands[0].get_program());
        if first.file_name().is_some_and(|name| name == "tar") {
            fs::create_dir(self.path("bundle")).at("bundle")?;
        }
        touch_memory(self.image_mib * 2)?;
        timed(commands)
    }

    /// Builds EROFS images by both programs; fsck.erofs judges those of folio.
    fn judge_erofs(&self, report: &mut Report) -> Outcome {
        let image = self.path("out.erofs");
        let build = |mut command: Command| -> Outcome<u64> {
            let _ = fs::remove_file(&image);
            command::run(&mut command)?;
            Ok(fs::metadata(&image).at(&image)?.len())
        };
        if find("mkfs.erofs").is_none() {
            return Ok(());
        }
        let tree = self.path("tree/.");
        for (job, [ours, theirs]) in [(EROFS, [&[][..]; 2]), (EROFS_LZ4, LZ4)] {
            let theirs = build(self.mkfs_erofs(theirs)?)?;
            let ours = build(self.folio_erofs(tree.as_os_str(), ours))?;
            command::run(tool("fsck.erofs")?.arg(&image))?;
            report.note(format!(
                "{job}: fsck.erofs agrees; {ours} bytes, that of mkfs.erofs has {theirs}"
            ));
        }
        Ok(())
    }

    /// Builds once more, and lets e2fsck and qemu-img judge the images.
    fn judge(&self, report: &mut Report) -> Outcome {
        for (name, judge, option) in [
            ("out.img", "e2fsck", "-fn"),
            ("out.qcow2", "qemu-img", "check"),
        ] {
            let image = self.path(name);
            let _ = fs::remove_file(&image);
            command::run(&mut self.folio_copy(&self.source.reference, &image, "auto"))?;
            let Some(program) = find(judge) else {
                report.note(format!("{judge} is not installed: an image is not checked"));
                continue;
            };
            command::run(Command::new(program).arg(option).arg(&image))?;
            let mib = fs::metadata(&image).at(&image)?.len() >> 20;
            report.note(format!("{judge} agrees with {name}, of {mib} MiB"));
        }
        Ok(())
    }
}

/// Compares the rows with the aims.
fn judge(report: &mut Report) {
    let auto = "5 percent more for --create auto";
    let half = "half the time of tar -x and mke2fs -d";
    for (job, ours, theirs, most, words) in [
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
        (TAR_GZ, SIZED, TAR_MKE2FS, 0.5, half),
        (TAR, SIZED, TAR_MKE2FS, 0.5, half),
        (
            EROFS,
            FOLIO_EROFS,
            MKFS_EROFS,
            0.5,
            "half the time of mkfs.erofs",
        ),
        (
            EROFS_LZ4,
            FOLIO_EROFS,
            MKFS_EROFS,
            0.5,
            "half the time of mkfs.erofs",
        ),
        (
            EROFS_IMAGE,
            FOLIO_EROFS,
            DECOMPRESSOR,
            1.0,
            "the time of the decompressor alone",
        ),
        (QCOW2, AUTO, SIZED, 1.05, auto),
        (RAW, AUTO, SIZED, 1.05, auto),
        (TAR_GZ, AUTO, SIZED, 1.05, auto),
        (TAR, AUTO, SIZED, 1.05, auto),
        (TREE, AUTO, SIZED, 1.05, auto),
    ] {
        let aim = format!("{job}: at most {words}");
        report.judge_pair(aim, job, job, [ours, theirs], Bound::AtMost(most));
    }
}
