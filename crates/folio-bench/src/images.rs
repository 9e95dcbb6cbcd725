//! The scenarios `image`, `one-dir`, `file` and `small-file`: trees into images and out again, and
//! one small file out of an image.

use crate::command::{self, find, inside, lacking, lacking_root, timed, tool};
use crate::options::Common;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, Turn, scratch_in};
use crate::random::pattern;
use crate::real_tree::{self, Limits};
use crate::report::{Report, Sample, Unit, require_space};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

const BUILD: &str = "tree into a new image";
const EXTRACT: &str = "tree out of an image";

/// What the numbers of trees in images do not mean.
const LIMITS: [&str; 6] = [
    "images and trees are in the folder named above; on a disk, the disk decides more, and nothing here calls fsync",
    "the source is in the host's memory before the first round; reading a cold one costs all contenders the same",
    "folio's and the kernel's times include making the file system, as mke2fs -d's does",
    "mke2fs -d drops sub-second times; debugfs rdump drops those, xattrs, hard links, holes and special files; neither \
     pays for what it drops",
    "resident memory is that of the largest process: folio's holds its page cache, the kernel's page cache is in no figure",
    "one machine, one tree: compare ratios, and run it on yours",
];

/// Where a scenario's tree comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The user's own.
    At(PathBuf),
    /// Copied from the machine's own files.
    Machine,
    /// 20,000 files of 100 bytes in one folder.
    OneFolder,
    /// One file of 500 MB.
    OneFile,
}

/// A tree that is ready to be copied.
#[derive(Debug)]
struct Tree {
    path: PathBuf,
    what: String,
    /// Entries that are not folders.
    files: u64,
    folders: u64,
    /// Bytes of file content.
    bytes: u64,
}

/// Name of the one file of the scenario `file`.
const ONE_FILE: &str = "big";

impl Tree {
    /// Makes the tree, below `folder` unless it is the user's own, and reads it all, so that the
    /// host has it in memory.
    fn prepare(source: &Source, folder: &Path, run: &Run<'_>) -> Outcome<Self> {
        let (path, what) = match source {
            Source::At(path) => (path.canonicalize().at(path)?, "given".to_owned()),
            made => {
                let path = folder.join("tree");
                fs::create_dir(&path).at(&path)?;
                let what = made.make(&path, run)?;
                (path, what)
            }
        };
        let mut tree = Self {
            path: path.clone(),
            what,
            files: 0,
            folders: 0,
            bytes: 0,
        };
        tree.read(&path).at(&path)?;
        Ok(tree)
    }

    fn read(&mut self, folder: &Path) -> io::Result<()> {
        self.folders += 1;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.read(&entry.path())?;
            } else {
                self.files += 1;
                if kind.is_file() {
                    self.bytes += io::copy(&mut fs::File::open(entry.path())?, &mut io::sink())?;
                }
            }
        }
        Ok(())
    }
}

impl Source {
    /// Makes the files in a new folder; returns what they are.
    fn make(&self, folder: &Path, run: &Run<'_>) -> Outcome<String> {
        Ok(match self {
            Self::At(_) | Self::Machine => {
                let limits = Limits {
                    files_min: run.sized(1000, 10),
                    files_max: run.sized(22_000, 200),
                    bytes_max: run.sized(300 << 20, 4 << 20),
                };
                real_tree::copy_to(folder, limits)?;
                "the machine's own headers, documents and toolchain".to_owned()
            }
            Self::OneFolder => {
                let count = run.sized(20_000, 200);
                for index in 0..count {
                    let path = folder.join(format!("file-{index:05}"));
                    fs::write(&path, [b'0' + (index % 10) as u8; 100]).at(&path)?;
                }
                format!("{count} files of 100 bytes in one folder")
            }
            Self::OneFile => {
                let (path, count) = (folder.join(ONE_FILE), run.sized(500, 5));
                // In parts: a child's resident set begins at this process's largest.
                let part = pattern(1_000_000);
                let mut file = fs::File::create(&path).at(&path)?;
                (0..count)
                    .try_for_each(|_| file.write_all(&part))
                    .at(&path)?;
                format!("one file of {count} MB")
            }
        })
    }
}

/// A way to build images, and to extract them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    FolioRaw,
    FolioQcow2,
    /// `mke2fs -d`, and debugfs.
    E2fsprogs,
    /// The kernel's ext4 on a loop device.
    Kernel,
}

impl Method {
    const ALL: [Self; 4] = [
        Self::FolioRaw,
        Self::FolioQcow2,
        Self::E2fsprogs,
        Self::Kernel,
    ];

    fn name(self, table: &str) -> &'static str {
        match self {
            Self::FolioRaw => "folio, raw",
            Self::FolioQcow2 => "folio, qcow2",
            Self::E2fsprogs if table == BUILD => "mke2fs -d, raw",
            Self::E2fsprogs => "debugfs rdump, raw",
            Self::Kernel => "kernel loop mount, raw",
        }
    }

    /// Returns why it cannot run here.
    fn lacks(self, table: &str) -> Option<String> {
        match self {
            Self::FolioRaw | Self::FolioQcow2 => None,
            Self::E2fsprogs if table == BUILD => lacking(&["mke2fs"]),
            Self::E2fsprogs => lacking(&["debugfs"]),
            Self::Kernel => lacking(&["mke2fs", "mount", "umount", "cp"]).or_else(lacking_root),
        }
    }

    /// Returns the place of the tree in the image that it builds.
    fn place(self) -> &'static str {
        match self {
            Self::E2fsprogs => "/",
            _ => "/tree",
        }
    }
}

/// What a whole run works on.
struct Bench<'a> {
    run: &'a Run<'a>,
    folder: &'a Path,
    mount_point: PathBuf,
    tree: Tree,
    size: String,
}

/// Measures a scenario of trees.
pub(crate) fn measure(
    scenario: &str,
    source: &Source,
    common: &Common,
    run: &Run<'_>,
) -> Outcome<Report> {
    let folder = scratch_in(&common.dir)?;
    let tree = Tree::prepare(source, folder.path(), run)?;
    // Two trees, and an image for each contender.
    require_space(&common.dir, (tree.bytes >> 20) * 5 + 512, "--dir")?;
    let usual_mib = (tree.bytes >> 19).max(run.sized(2048, 256));
    let size_mib = common.size_mib.unwrap_or(usual_mib);
    let what = format!(
        "{}: {} files, {} folders, {} MB into an image of {size_mib} MiB and out again",
        tree.what,
        tree.files,
        tree.folders,
        tree.bytes / 1_000_000
    );
    let mut report = Report::new(scenario, what, &common.dir);
    let mount_point = folder.path().join("mount");
    fs::create_dir(&mount_point).at(&mount_point)?;
    let bench = Bench {
        run,
        folder: folder.path(),
        mount_point,
        tree,
        size: format!("{size_mib}M"),
    };
    bench.build(&mut report)?;
    bench.extract(&mut report)?;
    report.limit(&LIMITS);
    Ok(report)
}

impl Bench<'_> {
    fn image(&self, method: Method) -> PathBuf {
        let extension = if method == Method::FolioQcow2 {
            "qcow2"
        } else {
            "img"
        };
        self.folder.join(format!("{method:?}.{extension}"))
    }

    /// Measures one table: each method that can run here, by `turn`.
    fn race(
        &self,
        title: &str,
        turn: impl Fn(Method, &mut Turn) -> Outcome,
        report: &mut Report,
    ) -> Outcome {
        let base = Method::E2fsprogs.name(title);
        let mut race = Race::new(title, Unit::Seconds, Some(base));
        for method in Method::ALL {
            let (name, turn) = (method.name(title), &turn);
            match method.lacks(title) {
                None => race.contender(name, move |figures| turn(method, figures)),
                Some(reason) => report.skip(format!("{title}: {name}"), reason),
            }
        }
        race.run(self.run, report)
    }

    /// Builds in rounds; the images of the last round stay.
    fn build(&self, report: &mut Report) -> Outcome {
        let turn = |method: Method, turn: &mut Turn| {
            let image = self.image(method);
            let _ = fs::remove_file(&image);
            turn.add(BUILD, self.timed(self.building(method, &image)?)?);
            if turn.round == 0 {
                self.check(method, &image, turn)?;
            }
            Ok(())
        };
        self.race(BUILD, turn, report)
    }

    /// Extracts in rounds. Raw: from the image of mke2fs -d if there is one, the same for all.
    fn extract(&self, report: &mut Report) -> Outcome {
        let has_mke2fs = self.image(Method::E2fsprogs).is_file();
        let raw = if has_mke2fs {
            Method::E2fsprogs
        } else {
            Method::FolioRaw
        };
        let name = raw.name(BUILD);
        report.note(format!("raw images are extracted from the image of {name}"));
        let turn = |method: Method, turn: &mut Turn| {
            let is_qcow2 = method == Method::FolioQcow2;
            let builder = if is_qcow2 { method } else { raw };
            let out = self.folder.join("out");
            if method == Method::E2fsprogs {
                fs::create_dir(&out).at(&out)?;
            }
            let commands = self.extracting(method, builder, &out)?;
            turn.add(EXTRACT, self.timed(commands)?);
            if turn.round == 0 {
                self.count(method, &out, turn)?;
            }
            fs::remove_dir_all(&out).at(&out)
        };
        self.race(EXTRACT, turn, report)
    }

    fn timed(&self, mut commands: Vec<Command>) -> Outcome<Sample> {
        let sample = timed(&mut commands);
        if sample.is_err() {
            // A mount that a failed command left.
            let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        }
        sample
    }

    fn building(&self, method: Method, image: &Path) -> Outcome<Vec<Command>> {
        let (tree, size) = (&self.tree.path, &self.size);
        if let Method::FolioRaw | Method::FolioQcow2 = method {
            let mut copy = self.run.folio();
            copy.args(["cp", "-a", "--create", size]).arg(tree);
            copy.arg(inside(image, method.place()));
            return Ok(vec![copy]);
        }
        let mut mke2fs = tool("mke2fs")?;
        mke2fs.args(["-q", "-F", "-t", "ext4"]);
        if method == Method::E2fsprogs {
            mke2fs.arg("-d").arg(tree);
        }
        mke2fs.arg(image).arg(size);
        let mut commands = vec![mke2fs];
        if method == Method::Kernel {
            commands.extend(self.mounted(image, tree, &self.mount_point.join("tree"))?);
        }
        Ok(commands)
    }

    fn extracting(&self, method: Method, builder: Method, out: &Path) -> Outcome<Vec<Command>> {
        let (image, place) = (self.image(builder), builder.place());
        let mut command = match method {
            Method::FolioRaw | Method::FolioQcow2 => self.run.folio(),
            Method::E2fsprogs => tool("debugfs")?,
            Method::Kernel => {
                let inside = self.mount_point.join(place.trim_start_matches('/'));
                return Ok(self.mounted(&image, &inside.join("."), out)?.into());
            }
        };
        if method == Method::E2fsprogs {
            let request = format!("rdump {place} {}", out.display());
            command.args(["-R", &request]).arg(image);
        } else {
            command
                .args(["cp", "-a"])
                .arg(inside(&image, place))
                .arg(out);
        }
        Ok(vec![command])
    }

    /// Returns the commands of a copy while the image is mounted.
    fn mounted(&self, image: &Path, from: &Path, to: &Path) -> Outcome<[Command; 3]> {
        let (mut mount, mut copy, mut unmount) = (tool("mount")?, tool("cp")?, tool("umount")?);
        mount
            .args(["-t", "ext4", "-o", "loop"])
            .arg(image)
            .arg(&self.mount_point);
        copy.arg("-a").arg(from).arg(to);
        unmount.arg(&self.mount_point);
        Ok([mount, copy, unmount])
    }

    /// e2fsck of an image, and how many extents the one large file has.
    fn check(&self, method: Method, image: &Path, turn: &mut Turn) -> Outcome {
        let name = method.name(BUILD);
        let raw = self.folder.join("check.img");
        let mut image = image;
        if method == Method::FolioQcow2 {
            let Ok(mut qemu_img) = tool("qemu-img") else {
                turn.note(format!("{name}: not checked: qemu-img is not installed"));
                return Ok(());
            };
            command::run(qemu_img.arg("check").arg(image))?;
            let mut convert = tool("qemu-img")?;
            command::run(convert.args(["convert", "-O", "raw"]).arg(image).arg(&raw))?;
            image = &raw;
        }
        match tool("e2fsck") {
            Ok(mut e2fsck) => {
                command::run(e2fsck.arg("-fn").arg(image))?;
                turn.note(format!("{name}: e2fsck -fn is clean"));
            }
            Err(reason) => turn.note(format!("{name}: not checked: {reason}")),
        }
        let has_one_file = self.tree.files == 1 && self.tree.path.join(ONE_FILE).is_file();
        if has_one_file && let Ok(mut debugfs) = tool("debugfs") {
            let place = method.place().trim_end_matches('/');
            let request = format!("dump_extents -l {place}/{ONE_FILE}");
            let said = command::run(debugfs.args(["-R", &request]).arg(image))?;
            let extents = said
                .lines()
                .filter(|line| line.contains('/') && line.contains('-'));
            turn.note(format!("{name}: the file has {} extents", extents.count()));
        }
        let _ = fs::remove_file(raw);
        Ok(())
    }

    /// Checks that all files came out: debugfs does not report a failure by its exit status.
    fn count(&self, method: Method, out: &Path, turn: &mut Turn) -> Outcome {
        let mut found = 0;
        let mut open = vec![out.to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).at(&folder)? {
                let entry = entry?;
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(entry.path());
                } else {
                    found += 1;
                }
            }
        }
        let files = self.tree.files;
        if found != files {
            turn.note(format!(
                "{}: extracted {found} of {files} files",
                method.name(EXTRACT)
            ));
        }
        Ok(())
    }
}

const SMALL_LIMITS: [&str; 2] = [
    "the image is in the host's memory; a cold one costs what the disk takes for some ten blocks",
    "debugfs reads the raw image: it knows no qcow2",
];
const FILES: usize = 1000;
const READ_IT: &str = "read it";
const DEBUGFS_CAT: &str = "debugfs cat, raw";

/// Measures the scenario `small-file`.
pub(crate) fn small_file(common: &Common, run: &Run<'_>) -> Outcome<Report> {
    let folder = scratch_in(&common.dir)?;
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).at(&tree)?;
    for number in 0..FILES {
        fs::write(tree.join(format!("file-{number}")), format!("{number}\n")).at(&tree)?;
    }
    let size_mib = common.size_mib.unwrap_or_else(|| run.sized(8192, 64));
    let [qcow2, raw] = ["image.qcow2", "image.raw"].map(|name| folder.path().join(name));
    for image in [&qcow2, &raw] {
        let mut copy = run.folio();
        copy.args(["cp", "-a", &format!("--create={size_mib}M")]);
        command::run(copy.arg(&tree).arg(inside(image, "/")))?;
    }
    // A process this short is mostly chance.
    let runs = run.sized(20, 2);
    let what = format!(
        "one of {FILES} files of a few bytes out of an image of {size_mib} MiB; mean of {runs} processes a round"
    );
    let mut report = Report::new("small-file", what, &common.dir);
    let path = format!("/tree/file-{}", FILES / 2);
    let cat = |image: &Path| {
        let mut folio = run.folio();
        folio.arg("cat").arg(inside(image, &path));
        folio
    };
    let mut readers = vec![
        ("folio cat, qcow2", cat(&qcow2)),
        ("folio cat, raw", cat(&raw)),
    ];
    if let Some(program) = find("debugfs") {
        let mut debugfs = Command::new(program);
        debugfs.args(["-R", &format!("cat {path}")]).arg(&raw);
        readers.push((DEBUGFS_CAT, debugfs));
    } else {
        report.skip(DEBUGFS_CAT, "debugfs is not installed");
    }
    let mut race = Race::new(READ_IT, Unit::Seconds, Some(DEBUGFS_CAT));
    for (name, mut reader) in readers {
        race.case(READ_IT, name, move || {
            let mut meter = command::Meter::default();
            for _ in 0..runs {
                let said = meter.run(&mut reader)?;
                if said != format!("{}\n", FILES / 2) {
                    return Err(format!("{name}: read {said:?}").into());
                }
            }
            let mut sample = meter.sample().map(|seconds| seconds / runs as f64);
            let cpu_seconds = &mut sample.evidence.cpu_seconds;
            *cpu_seconds = cpu_seconds.map(|seconds| seconds / runs as f64);
            Ok(sample)
        });
    }
    race.run(run, &mut report)?;
    report.limit(&SMALL_LIMITS);
    Ok(report)
}
