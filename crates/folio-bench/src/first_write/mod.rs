//! The scenario `first-write`: what the first write into an image costs beside a rewrite, in Folio and in QEMU.
//!
//! ```text
//!   mod     kinds of image, rounds, tables      job     one job in a process of its own, as QEMU's is
//!   disk    the same jobs on a model of a disk with seeks
//! ```

mod disk;
mod job;

pub(crate) use job::{Arguments as JobArguments, Job, run as run_job};

use crate::contender::find;
use crate::measure::{Cost, Meter, touch_memory};
use crate::report::{Machine, Report, Row, Table, told};
use folio::block::{self, ImageFormat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const LIMITS: [&str; 6] = [
    "before each run another process uses 2 GiB of memory and gives it back: in a virtual machine pages that nobody \
     used may have to come from the machine's host, at several times the price of a copy",
    "every figure is a whole process: open, work, one flush at the end, close",
    "QEMU's sequential and random writes are qemu-img bench at its best of queue depth 1 and 16; Folio writes one \
     request after the other",
    "QEMU's mkfs is qemu-io writing what Folio's mkfs wrote, in the same pieces, from a list",
    "random: a fixed step over the disk, as qemu-img bench can do it; no block is written twice",
    "the host's file system decides much of this: run it on yours",
];

/// What the scenario takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: u32,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// A folder on a real disk, where images lie; without it, the system's folder for temporary files.
    #[arg(long)]
    disk_dir: Option<PathBuf>,
    /// Size of the disks in MiB; needs twice that on the real disk.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(64..1 << 20))]
    size_mib: u64,
    /// Only this job.
    #[arg(long)]
    only: Option<Job>,
    /// A hundredth of the bytes, to see whether it runs.
    #[arg(long)]
    tiny: bool,
}

/// What the image was before the first write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Qcow2,
    Sparse,
    Falloc,
    Written,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Qcow2, Self::Sparse, Self::Falloc, Self::Written];

    fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "fresh qcow2",
            Self::Sparse => "sparse raw",
            Self::Falloc => "falloc raw",
            Self::Written => "written raw",
        }
    }

    fn format(self) -> ImageFormat {
        if self == Self::Qcow2 { ImageFormat::Qcow2 } else { ImageFormat::Raw }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Folio,
    Qemu,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Folio => "folio",
            Self::Qemu => "qemu",
        }
    }
}

/// One image: its figures for the first, second and third run.
struct Cell {
    kind: Kind,
    tool: Tool,
    costs: [Vec<Cost>; 3],
}

const RUNS: [&str; 3] = ["first write", "second write", "third, host's cache dropped"];

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let dir = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("folio-bench-").tempdir_in(&dir);
    let folder = folder.map_err(|error| format!("{}: {error}", dir.display()))?;
    let machine = Machine::here(&dir);
    let size_mib = if options.tiny { 64.max(options.size_mib / 100) } else { options.size_mib };
    if machine.dir_free_mib < size_mib * 2 + 1024 {
        return Err(format!("{} has {} MiB free: see --size-mib", dir.display(), machine.dir_free_mib));
    }
    let mut notes = Vec::from([
        "the story: formatting a fresh disk of 100 GB in a KVM guest took 39 minutes on qcow2, 20 on a sparse raw file, \
         2 on a raw file allocated before"
            .to_owned(),
    ]);
    notes.extend(cfg!(debug_assertions).then(|| "NOT AN OPTIMISED BUILD: run it with --release".to_owned()));
    let mut tools = vec![Tool::Folio];
    match ["qemu-img", "qemu-io"].iter().find(|name| find(name).is_none()) {
        None => tools.push(Tool::Qemu),
        Some(name) => notes.push(format!("not measured: QEMU: {name} is not installed")),
    }
    let bench = Bench { options, folder: folder.path(), size_mib, tools };
    let mut tables = Vec::new();
    let jobs = Job::ALL.into_iter().filter(|job| options.only.is_none_or(|only| only == *job));
    for job in jobs.clone() {
        tables.extend(bench.measure(job, &mut notes)?);
    }
    // Last, for their memory would count as that of the processes above.
    for job in jobs {
        tables.push(disk::table(job, size_mib, options.tiny)?);
    }
    let report = Report {
        scenario: "first-write".to_owned(),
        tree: "mkfs (all inode tables written), 1 GiB in pieces of 512 KiB, 50,000 x 4 KiB".to_owned(),
        image_mib: size_mib,
        repeats: options.repeats,
        machine,
        tables,
        notes,
        limits: &LIMITS,
    };
    report.print(options.json)
}

struct Bench<'a> {
    options: &'a Options,
    folder: &'a Path,
    size_mib: u64,
    tools: Vec<Tool>,
}

impl Bench<'_> {
    /// All kinds and tools in turn, so that a slow minute hits all alike.
    fn measure(&self, job: Job, notes: &mut Vec<String>) -> Result<Vec<Table>, String> {
        let mut cells: Vec<Cell> = Kind::ALL
            .into_iter()
            .flat_map(|kind| self.tools.iter().map(move |tool| (kind, *tool)))
            .map(|(kind, tool)| Cell { kind, tool, costs: Default::default() })
            .collect();
        let written = self.folder.join("written");
        self.create(&written, Kind::Written)?;
        let depth = if self.tools.contains(&Tool::Qemu) { self.best_depth(job)? } else { 1 };
        for round in 0..self.options.repeats as usize {
            for turn in 0..cells.len() {
                let at = (turn + round) % cells.len();
                let cell = &mut cells[at];
                let image =
                    if cell.kind == Kind::Written { written.clone() } else { self.folder.join("image") };
                if cell.kind != Kind::Written {
                    self.create(&image, cell.kind)?;
                }
                for run in 0..RUNS.len() {
                    if run == 2 && !drop_caches(&image)? {
                        continue;
                    }
                    cell.costs[run].push(self.once(job, cell.tool, &image, cell.kind.format(), depth)?);
                }
                if cell.kind != Kind::Written {
                    if round == 0 {
                        self.check(cell, &image)?;
                    }
                    fs::remove_file(&image).map_err(told(image.display()))?;
                }
            }
        }
        fs::remove_file(&written).map_err(told(written.display()))?;
        if cells.iter().any(|cell| cell.costs[2].is_empty()) {
            notes.push("not measured: the third run needs root, to drop the host's page cache".to_owned());
        }
        Ok(tables(job, &cells, notes))
    }

    /// The image as it is before the first write, with nothing left for the host to write.
    fn create(&self, path: &Path, kind: Kind) -> Result<(), String> {
        let _ = fs::remove_file(path);
        let bytes = self.size_mib << 20;
        let device = block::create(path, kind.format(), bytes).map_err(|error| error.to_string())?;
        device.flush().map_err(|error| error.to_string())?;
        drop(device);
        let mut file = File::options().write(true).open(path).map_err(told(path.display()))?;
        match kind {
            Kind::Qcow2 | Kind::Sparse => {}
            Kind::Falloc => rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
                .map_err(told(path.display()))?,
            Kind::Written => {
                let ones = vec![1; 1 << 20];
                (0..self.size_mib).try_for_each(|_| file.write_all(&ones)).map_err(told(path.display()))?;
            }
        }
        file.sync_all().map_err(told(path.display()))
    }

    /// One job by one tool in a process of its own.
    fn once(
        &self,
        job: Job,
        tool: Tool,
        image: &Path,
        format: ImageFormat,
        depth: u32,
    ) -> Result<Cost, String> {
        touch_memory(if self.options.tiny { 16 } else { 2048 })?;
        let mut meter = Meter::default();
        if tool == Tool::Folio {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let mut arguments: Vec<OsString> =
                ["first-write-job", job.name(), format.name()].map(Into::into).into();
            arguments.push(image.into());
            arguments.extend(self.options.tiny.then(|| "--tiny".into()));
            meter.run(own.as_os_str(), arguments)?;
            return Ok(meter.cost);
        }
        let size_bytes = self.size_mib << 20;
        match job.stride(size_bytes, self.options.tiny) {
            Some(stride) => {
                let [count, depth, step, len] =
                    [stride.count, u64::from(depth), stride.step_bytes, stride.len_bytes]
                        .map(|n| n.to_string());
                let flush = format!("--flush-interval={count}");
                let arguments = [
                    "bench",
                    "-q",
                    "-w",
                    "-f",
                    format.name(),
                    "-t",
                    "writeback",
                    "-c",
                    &count,
                    "-d",
                    &depth,
                    "-S",
                    &step,
                    "-s",
                    &len,
                    &flush,
                ];
                let all = arguments.map(OsStr::new).into_iter().chain([image.as_os_str()]);
                meter.run(program("qemu-img")?.as_os_str(), all)?;
            }
            None => {
                let list = self.folder.join("qemu-io.list");
                if !list.exists() {
                    fs::write(&list, disk::mkfs_as_qemu_io(size_bytes)?).map_err(told(list.display()))?;
                }
                let script = r#"exec "$0" -t writeback -f "$1" "$2" <"$3""#;
                let arguments = [
                    OsStr::new("-c"),
                    OsStr::new(script),
                    program("qemu-io")?.as_os_str(),
                    OsStr::new(format.name()),
                    image.as_os_str(),
                    list.as_os_str(),
                ]
                .map(OsStr::to_owned);
                meter.run(OsStr::new("sh"), arguments)?;
            }
        }
        Ok(meter.cost)
    }

    /// The queue depth that qemu-img bench is quicker with, by one trial each on a fresh qcow2.
    fn best_depth(&self, job: Job) -> Result<u32, String> {
        if job.stride(self.size_mib << 20, self.options.tiny).is_none() {
            return Ok(1);
        }
        let image = self.folder.join("image");
        let mut trials = Vec::new();
        for depth in [1, 16] {
            self.create(&image, Kind::Qcow2)?;
            trials.push((self.once(job, Tool::Qemu, &image, ImageFormat::Qcow2, depth)?.seconds, depth));
        }
        Ok(trials.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(1, |(_, depth)| depth))
    }

    /// A qcow2 image is still one.
    fn check(&self, cell: &Cell, image: &Path) -> Result<(), String> {
        if cell.kind == Kind::Qcow2 && cell.tool == Tool::Folio && self.tools.contains(&Tool::Qemu) {
            let arguments = [OsStr::new("check"), image.as_os_str()];
            Meter::default().run(program("qemu-img")?.as_os_str(), arguments)?;
        }
        Ok(())
    }
}

/// Writes the image out and makes the host forget it; false if that is not allowed here.
fn drop_caches(image: &Path) -> Result<bool, String> {
    File::open(image).and_then(|file| file.sync_all()).map_err(told(image.display()))?;
    Ok(fs::write("/proc/sys/vm/drop_caches", "3").is_ok())
}

fn program(name: &str) -> Result<PathBuf, String> {
    find(name).ok_or_else(|| format!("{name} is not installed"))
}

/// A table per run, and how the cells that the aims speak of compare.
fn tables(job: Job, cells: &[Cell], notes: &mut Vec<String>) -> Vec<Table> {
    let mut tables = Vec::new();
    for (run, words) in RUNS.into_iter().enumerate() {
        let median = |kind: Kind, tool: Tool| {
            let cell = cells.iter().find(|cell| cell.kind == kind && cell.tool == tool)?;
            (!cell.costs[run].is_empty()).then(|| Row::median(&cell.costs[run]))
        };
        let Some(base) = median(Kind::Written, Tool::Folio) else { continue };
        let row = |cell: &Cell| {
            Row::new(&format!("{}, {}", cell.kind.name(), cell.tool.name()), &cell.costs[run], Some(base))
        };
        tables.push(Table {
            title: format!("{}: {words}", job.words()),
            rival: "written raw, folio".to_owned(),
            rows: cells.iter().map(row).collect(),
        });
        for kind in Kind::ALL {
            let (Some(ours), Some(theirs)) = (median(kind, Tool::Folio), median(kind, Tool::Qemu)) else {
                continue;
            };
            let to_written = ours / base;
            let ratio = ours / theirs;
            notes.push(format!(
                "{}, {words}, {}: folio is {ratio:.2} of qemu, {to_written:.2} of folio's written raw",
                job.words(),
                kind.name()
            ));
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_measured_on_small_images() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            repeats: 1,
            json: true,
            disk_dir: Some(folder.path().to_path_buf()),
            size_mib: 64,
            only: None,
            tiny: true,
        };
        let bench =
            Bench { options: &options, folder: folder.path(), size_mib: 64, tools: vec![Tool::Folio] };
        for job in Job::ALL {
            for kind in Kind::ALL {
                let image = folder.path().join("image");
                bench.create(&image, kind).expect("an image");
                run_job(&JobArguments { job, format: kind.format(), image, tiny: true }).expect("a run");
            }
            let table = disk::table(job, 64, true).expect("a table");
            assert_eq!(table.rows.len(), 2);
        }
    }
}
