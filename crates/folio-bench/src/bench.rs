//! The rounds: every contender once per round, in turn, so that a slow minute hits all alike.

use crate::Common;
use crate::contender::{Contender, Job, Programs, find};
use crate::measure::{Cost, Meter};
use crate::report::{Machine, Report, Row, TREE_LIMITS, Table};
use crate::tree::{self, Source, Tree};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a contender's build places the tree, and where mke2fs -d does.
const PLACE: &str = "/tree";
const ROOT: &str = "/";

/// What a whole run works on.
struct Bench<'a> {
    common: &'a Common,
    programs: Programs,
    folder: &'a Path,
    tree: Tree,
    size_mib: u64,
}

/// Runs a scenario and prints its report.
pub(crate) fn run(scenario: &str, source: &Source, common: &Common) -> Result<(), String> {
    let programs = Programs { folio: folio(common.folio.as_deref())? };
    let folder = tempfile::Builder::new().prefix("folio-bench-").tempdir_in(&common.dir);
    let folder = folder.map_err(|error| format!("{}: {error}", common.dir.display()))?;
    let tree = tree::prepare(source, folder.path())?;
    let size_mib = common.size_mib.unwrap_or_else(|| (tree.bytes >> 19).max(2048));
    let machine = Machine::here(&common.dir);
    room(&machine, &tree, common)?;
    let bench = Bench { common, programs, folder: folder.path(), tree, size_mib };
    let mut notes = Vec::new();
    let build = bench.build(&mut notes)?;
    let extract = bench.extract(&mut notes)?;
    let report = Report {
        scenario: scenario.to_owned(),
        tree: format!(
            "{}: {} files, {} folders, {} MB",
            bench.tree.what,
            bench.tree.files,
            bench.tree.folders,
            bench.tree.bytes / 1_000_000
        ),
        image_mib: size_mib,
        repeats: common.repeats,
        machine,
        tables: vec![build, extract],
        notes,
        limits: &TREE_LIMITS,
    };
    report.print(common.json)
}

/// The command to measure: the one named, or this workspace's, built now.
pub(crate) fn folio(named: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = named {
        return path.canonicalize().map_err(|error| format!("{}: {error}", path.display()));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let arguments = ["build", "--quiet", "--release", "--package", "folio-cli", "--manifest-path", manifest];
    let status = Command::new(cargo).args(arguments).status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err("folio did not build".to_owned());
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = own.parent().and_then(Path::parent).map(|target| target.join("release/folio"));
    path.filter(|path| path.is_file())
        .ok_or_else(|| "the folio command is not beside this one: name it with --folio".into())
}

/// Refuses a folder that is too small: two trees, and an image per contender that is kept.
fn room(machine: &Machine, tree: &Tree, common: &Common) -> Result<(), String> {
    let need_mib = (tree.bytes >> 20) * 5 + 512;
    if machine.dir_free_mib < need_mib {
        let free = machine.dir_free_mib;
        return Err(format!(
            "{} has {free} MiB free, {need_mib} are needed: see --dir",
            common.dir.display()
        ));
    }
    Ok(())
}

/// The place in the image that a contender built.
fn place(contender: Contender) -> &'static str {
    if contender == Contender::Mke2fs { ROOT } else { PLACE }
}

impl Bench<'_> {
    fn job<'a>(&'a self, from: &'a Path, to: &'a Path, place: &'a str, mount_point: &'a Path) -> Job<'a> {
        Job { programs: &self.programs, from, to, place, mount_point, size_mib: self.size_mib }
    }

    fn image(&self, contender: Contender) -> PathBuf {
        let name = format!("{contender:?}").to_lowercase();
        self.folder.join(if contender.is_qcow2() { format!("{name}.qcow2") } else { format!("{name}.img") })
    }

    fn mount_point(&self) -> Result<PathBuf, String> {
        let path = self.folder.join("mount");
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Builds in rounds; the images of the last round stay.
    fn build(&self, notes: &mut Vec<String>) -> Result<Table, String> {
        let mut rows = present("build", &Contender::BUILDERS, notes);
        let mount_point = self.mount_point()?;
        for round in 0..self.common.repeats {
            for index in turn(rows.len(), round) {
                let (contender, costs) = &mut rows[index];
                let image = self.image(*contender);
                let _ = fs::remove_file(&image);
                let mut meter = Meter::default();
                let job = self.job(&self.tree.path, &image, place(*contender), &mount_point);
                contender.build(&job, &mut meter)?;
                costs.push(meter.cost);
                if round == 0 {
                    notes.extend(self.check(*contender, &image)?);
                }
            }
        }
        Ok(table("tree into a new image", Contender::Mke2fs, rows))
    }

    /// Extracts in rounds. Raw: from the image of mke2fs -d if there is one, the same for all.
    fn extract(&self, notes: &mut Vec<String>) -> Result<Table, String> {
        let mut rows = present("extract", &Contender::EXTRACTORS, notes);
        let mount_point = self.mount_point()?;
        let theirs = self.image(Contender::Mke2fs);
        let raw = if theirs.is_file() { Contender::Mke2fs } else { Contender::FolioRaw };
        notes.push(format!("raw images are extracted from the image of {}", raw.name()));
        for round in 0..self.common.repeats {
            for index in turn(rows.len(), round) {
                let (contender, costs) = &mut rows[index];
                let builder = if contender.is_qcow2() { Contender::FolioQcow2 } else { raw };
                let image = self.image(builder);
                let out = self.folder.join("out");
                let mut meter = Meter::default();
                let job = self.job(&image, &out, place(builder), &mount_point);
                contender.extract(&job, &mut meter)?;
                costs.push(meter.cost);
                if round == 0 {
                    notes.extend(self.count(*contender, &out)?);
                }
                fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
            }
        }
        Ok(table("tree out of an image", Contender::Debugfs, rows))
    }

    /// e2fsck of an image, and how many extents the one large file has.
    fn check(&self, contender: Contender, image: &Path) -> Result<Vec<String>, String> {
        let name = contender.name();
        let raw = self.folder.join("check.img");
        let mut notes = Vec::new();
        let image = if contender.is_qcow2() {
            let Some(qemu_img) = find("qemu-img") else {
                return Ok(vec![format!("{name}: not checked: qemu-img is not installed")]);
            };
            Meter::default().run(qemu_img.as_os_str(), [OsStr::new("check"), image.as_os_str()])?;
            let convert = ["convert", "-O", "raw"].map(OsStr::new);
            let paths = [image.as_os_str(), raw.as_os_str()];
            Meter::default().run(qemu_img.as_os_str(), convert.into_iter().chain(paths))?;
            raw.as_path()
        } else {
            image
        };
        match find("e2fsck") {
            Some(e2fsck) => {
                Meter::default().run(e2fsck.as_os_str(), [OsStr::new("-fn"), image.as_os_str()])?;
                notes.push(format!("{name}: e2fsck -fn is clean"));
            }
            None => notes.push(format!("{name}: not checked: e2fsck is not installed")),
        }
        if self.tree.path.join(tree::ONE_FILE).is_file()
            && self.tree.files == 1
            && let Some(debugfs) = find("debugfs")
        {
            let place = place(contender).trim_end_matches('/');
            let request = format!("dump_extents -l {place}/{}", tree::ONE_FILE);
            let arguments = ["-R", &request].map(OsStr::new).into_iter().chain([image.as_os_str()]);
            let said = Meter::default().run(debugfs.as_os_str(), arguments)?;
            let extents = said.lines().filter(|line| line.contains('/') && line.contains('-')).count();
            notes.push(format!("{name}: the file has {extents} extents"));
        }
        let _ = fs::remove_file(raw);
        Ok(notes)
    }

    /// Whether everything came out: debugfs tells no failure by its exit status.
    fn count(&self, contender: Contender, out: &Path) -> Result<Option<String>, String> {
        let mut got = 0;
        let mut open = vec![out.to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
                let entry = entry.map_err(|error| error.to_string())?;
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => open.push(entry.path()),
                    _ => got += 1,
                }
            }
        }
        let want = self.tree.files;
        Ok((got != want).then(|| format!("{}: extracted {got} of {want} files", contender.name())))
    }
}

/// The contenders that can run here; why the others cannot goes to the notes.
fn present(job: &str, all: &[Contender], notes: &mut Vec<String>) -> Vec<(Contender, Vec<Cost>)> {
    let mut rows = Vec::new();
    for &contender in all {
        match contender.missing() {
            None => rows.push((contender, Vec::new())),
            Some(reason) => notes.push(format!("not measured: {job} with {}: {reason}", contender.name())),
        }
    }
    rows
}

/// Indices in an order that starts one later each round.
fn turn(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| (index + round as usize) % count.max(1))
}

fn table(title: &str, rival: Contender, rows: Vec<(Contender, Vec<Cost>)>) -> Table {
    let base = rows.iter().find(|(contender, _)| *contender == rival).map(|(_, costs)| Row::median(costs));
    let rows = rows.iter().map(|(contender, costs)| Row::new(contender.name(), costs, base)).collect();
    Table { title: title.to_owned(), rival: rival.name().to_owned(), rows }
}
