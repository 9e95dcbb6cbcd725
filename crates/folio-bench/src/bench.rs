//! The rounds: every contender once per round, in turn, so that a slow minute hits all alike.

use crate::Common;
use crate::contender::{Contender, Job, Programs, find};
use crate::measure::{Cost, Meter};
use crate::report::{Place, Report, Row, Table, Unit, owned};
use crate::run::{Run, scratch_in};
use crate::tree::{self, Source, Tree};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Where a contender's build places the tree, and where mke2fs -d does.
const PLACE: &str = "/tree";
const ROOT: &str = "/";

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
const ROUNDS: u32 = 5;

/// What a whole run works on.
struct Bench<'a> {
    scenario: &'a str,
    run: &'a Run<'a>,
    programs: Programs,
    folder: &'a Path,
    tree: Tree,
    size_mib: u64,
}

/// Measures a scenario.
pub(crate) fn measure(
    scenario: &str,
    source: &Source,
    common: &Common,
    run: &Run<'_>,
) -> Result<Report, String> {
    let programs = Programs {
        folio: run.folio.clone(),
    };
    let folder = scratch_in(&common.dir)?;
    let tree = tree::prepare(source, folder.path(), run.is_quick)?;
    let size_mib = common
        .size_mib
        .unwrap_or_else(|| (tree.bytes >> 19).max(run.sized(2048, 256)));
    room(&Place::of(&common.dir), &tree, common)?;
    let bench = Bench {
        scenario,
        run,
        programs,
        folder: folder.path(),
        tree,
        size_mib,
    };
    let what = format!(
        "{}: {} files, {} folders, {} MB into an image of {size_mib} MiB and out again",
        bench.tree.what,
        bench.tree.files,
        bench.tree.folders,
        bench.tree.bytes / 1_000_000
    );
    let mut report = Report::new(scenario, what, &common.dir);
    let build = bench.build(&mut report)?;
    let extract = bench.extract(&mut report)?;
    report.tables = vec![build, extract];
    report.limits = owned(&LIMITS);
    Ok(report)
}

/// Refuses a folder that is too small: two trees, and an image per contender that is kept.
fn room(place: &Place, tree: &Tree, common: &Common) -> Result<(), String> {
    let need_mib = (tree.bytes >> 20) * 5 + 512;
    if place.free_mib < need_mib {
        let free = place.free_mib;
        return Err(format!(
            "{} has {free} MiB free, {need_mib} are needed: see --dir",
            common.dir.display()
        ));
    }
    Ok(())
}

/// The place in the image that a contender built.
fn place(contender: Contender) -> &'static str {
    if contender == Contender::Mke2fs {
        ROOT
    } else {
        PLACE
    }
}

impl Bench<'_> {
    fn job<'a>(
        &'a self,
        from: &'a Path,
        to: &'a Path,
        place: &'a str,
        mount_point: &'a Path,
    ) -> Job<'a> {
        Job {
            programs: &self.programs,
            from,
            to,
            place,
            mount_point,
            size_mib: self.size_mib,
        }
    }

    fn image(&self, contender: Contender) -> PathBuf {
        let name = format!("{contender:?}").to_lowercase();
        self.folder.join(if contender.is_qcow2() {
            format!("{name}.qcow2")
        } else {
            format!("{name}.img")
        })
    }

    fn mount_point(&self) -> Result<PathBuf, String> {
        let path = self.folder.join("mount");
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Builds in rounds; the images of the last round stay.
    fn build(&self, report: &mut Report) -> Result<Table, String> {
        let mut rows = present("build", &Contender::BUILDERS, report);
        let mount_point = self.mount_point()?;
        let mut round = 0;
        while self.run.goes_on(self.scenario, round, ROUNDS)? {
            for index in turn(rows.len(), round) {
                let (contender, costs) = &mut rows[index];
                let image = self.image(*contender);
                let _ = fs::remove_file(&image);
                let mut meter = Meter::default();
                let job = self.job(&self.tree.path, &image, place(*contender), &mount_point);
                contender.build(&job, &mut meter)?;
                costs.push(meter.cost);
                if round == 0 {
                    report.notes.extend(self.check(*contender, &image)?);
                }
            }
            round += 1;
        }
        report.repeats = round;
        Ok(table("tree into a new image", Contender::Mke2fs, &rows))
    }

    /// Extracts in rounds. Raw: from the image of mke2fs -d if there is one, the same for all.
    fn extract(&self, report: &mut Report) -> Result<Table, String> {
        let mut rows = present("extract", &Contender::EXTRACTORS, report);
        let mount_point = self.mount_point()?;
        let theirs = self.image(Contender::Mke2fs);
        let raw = if theirs.is_file() {
            Contender::Mke2fs
        } else {
            Contender::FolioRaw
        };
        report.notes.push(format!(
            "raw images are extracted from the image of {}",
            raw.name()
        ));
        let mut round = 0;
        while self.run.goes_on(self.scenario, round, ROUNDS)? {
            for index in turn(rows.len(), round) {
                let (contender, costs) = &mut rows[index];
                let builder = if contender.is_qcow2() {
                    Contender::FolioQcow2
                } else {
                    raw
                };
                let image = self.image(builder);
                let out = self.folder.join("out");
                let mut meter = Meter::default();
                let job = self.job(&image, &out, place(builder), &mount_point);
                contender.extract(&job, &mut meter)?;
                costs.push(meter.cost);
                if round == 0 {
                    report.notes.extend(self.count(*contender, &out)?);
                }
                fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
            }
            round += 1;
        }
        Ok(table("tree out of an image", Contender::Debugfs, &rows))
    }

    /// e2fsck of an image, and how many extents the one large file has.
    fn check(&self, contender: Contender, image: &Path) -> Result<Vec<String>, String> {
        let name = contender.name();
        let raw = self.folder.join("check.img");
        let mut notes = Vec::new();
        let image = if contender.is_qcow2() {
            let Some(qemu_img) = find("qemu-img") else {
                return Ok(vec![format!(
                    "{name}: not checked: qemu-img is not installed"
                )]);
            };
            Meter::default().run(
                qemu_img.as_os_str(),
                [OsStr::new("check"), image.as_os_str()],
            )?;
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
            let arguments = ["-R", &request]
                .map(OsStr::new)
                .into_iter()
                .chain([image.as_os_str()]);
            let said = Meter::default().run(debugfs.as_os_str(), arguments)?;
            let extents = said
                .lines()
                .filter(|line| line.contains('/') && line.contains('-'))
                .count();
            notes.push(format!("{name}: the file has {extents} extents"));
        }
        let _ = fs::remove_file(raw);
        Ok(notes)
    }

    /// Checks that all files came out: debugfs does not report a failure by its exit status.
    fn count(&self, contender: Contender, out: &Path) -> Result<Option<String>, String> {
        let mut got = 0;
        let mut open = vec![out.to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in
                fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?
            {
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

/// Returns the contenders that can run here; the report gets the reason for each missing one.
fn present(job: &str, all: &[Contender], report: &mut Report) -> Vec<(Contender, Vec<Cost>)> {
    let mut rows = Vec::new();
    for &contender in all {
        match contender.missing() {
            None => rows.push((contender, Vec::new())),
            Some(reason) => report.skip(format!("{job} with {}", contender.name()), reason),
        }
    }
    rows
}

/// Indices in an order that starts one later each round.
fn turn(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| (index + round as usize) % count.max(1))
}

fn table(title: &str, base: Contender, rows: &[(Contender, Vec<Cost>)]) -> Table {
    let rows = rows
        .iter()
        .map(|(contender, costs)| Row::of_costs(title, contender.name(), costs))
        .collect();
    Table::new(title, Unit::Seconds, Some(base.name()), rows)
}
