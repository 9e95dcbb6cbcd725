//! The scenario `first-write`: the cost of the first write into an image beside a rewrite, in Folio
//! and in QEMU.
//!
//! ```text
//!   mod     kinds of image, rounds, tables      job     one job in a process of its own, as QEMU's is
//!   disk    the same jobs on a model of a disk with seeks
//! ```

mod disk;
mod job;

pub(crate) use job::{Arguments as JobArguments, Job, run as run_job};

use crate::contender::find;
use crate::evidence::forget;
use crate::measure::{Cost, Meter, this_program, touch_memory};
use crate::published::{PublishedCase, Today};
use crate::report::{Place, Report, Row, Table, Unit, owned, with_context};
use crate::rows::ratio;
use crate::run::{Run, scratch_in};
use folio::block::{self, ImageFormat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

const LIMITS: [&str; 7] = [
    "before each run another process uses more memory than the job needs, and gives it back: in a virtual machine unused pages \
     may have to come from the machine's host, at several times the price of a copy",
    "every figure is a whole process: open, work, one flush at the end, close",
    "QEMU's sequential and random writes are qemu-img bench at its best of queue depth 1 and 16; Folio writes one \
     request after the other",
    "QEMU's mkfs is qemu-io writing what Folio's mkfs wrote, in the same pieces, from a list",
    "random: a fixed step over the disk, as qemu-img bench can do it; no block is written twice",
    "no image is in the host's memory before its first write, the written one neither",
    "the host's file system decides much of this: run it on yours",
];

/// Options of the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A folder on a real disk for the images; without it, the system's folder for temporary files
    #[arg(long)]
    pub(crate) disk_dir: Option<PathBuf>,
    /// Size of the disks in MiB; needs twice that on the real disk [default: 8192]
    #[arg(long, value_parser = clap::value_parser!(u64).range(64..1 << 20))]
    pub(crate) size_mib: Option<u64>,
    /// Only this job
    #[arg(long)]
    pub(crate) only: Option<Job>,
}

/// State of the image before the first write.
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
        if self == Self::Qcow2 {
            ImageFormat::Qcow2
        } else {
            ImageFormat::Raw
        }
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

/// Memory that is used before each run: more than any job needs.
const TOUCHED_MIB: u64 = 1536;

const RUNS: [&str; 3] = ["first write", "second write", "third, host's cache dropped"];

const ROUNDS: u32 = 5;
/// Whose time is 1.
const BASE: &str = "written raw, folio";

/// Measures. As a part of `all` it leaves out the third run and what is written in order, and uses
/// smaller disks.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let dir = options.disk_dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = scratch_in(&dir)?;
    let usual = if run.is_part { 1024 } else { 8192 };
    let size_mib = options.size_mib.unwrap_or_else(|| run.sized(usual, 64));
    let free = Place::of(&dir).free_mib;
    if free < size_mib * 2 + run.sized(1024, 64) {
        return Err(format!(
            "{} has {free} MiB free: see --size-mib",
            dir.display()
        ));
    }
    let what = format!("mkfs and writes into fresh and preallocated images of {size_mib} MiB");
    let mut report = Report::new("first-write", what, &dir);
    let mut tools = vec![Tool::Folio];
    match ["qemu-img", "qemu-io"]
        .iter()
        .find(|name| find(name).is_none())
    {
        None => tools.push(Tool::Qemu),
        Some(name) => report.skip("QEMU", format!("{name} is not installed")),
    }
    let runs = if run.is_part { 2 } else { RUNS.len() };
    let bench = Bench {
        run,
        folder: folder.path(),
        size_mib,
        tools,
        runs,
    };
    let is_asked = |job: &Job| match options.only {
        Some(only) => only == *job,
        None => !run.is_part || *job != Job::Sequential,
    };
    let jobs = Job::ALL.into_iter().filter(is_asked);
    let end = run.until;
    let count = jobs.clone().count() as u32;
    for (at, job) in jobs.clone().enumerate() {
        // Each job has its share of what time is left.
        let now = Instant::now();
        let until = end.map(|end| now + end.saturating_duration_since(now) / (count - at as u32));
        let tables = bench.measure(job, until, &mut report)?;
        report.tables.extend(tables);
    }
    // Last, for their memory would count as that of the processes above.
    for job in jobs {
        report
            .tables
            .push(disk::table(job, size_mib, run.is_quick)?);
    }
    report.story = Some(published_case(&report));
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn published_case(report: &Report) -> PublishedCase {
    let title = format!("{}: {}", Job::Mkfs.words(), RUNS[0]);
    let of = |kind: Kind, tool: Tool| report.row(&title, &title, &cell_name(kind, tool));
    let today = |kind: Kind| {
        let times = |tool: Tool| {
            Today::times(
                &format!("{}: {}", tool.name(), kind.name()),
                of(kind, tool),
                of(Kind::Falloc, tool),
            )
        };
        [times(Tool::Qemu), times(Tool::Folio)]
    };
    // 39, 20 and 2 minutes.
    PublishedCase::new(
        "First writes into images",
        "formatting a fresh disk of 100 GB in a KVM guest took 39 minutes on qcow2, 20 on a sparse raw file, 2 on a \
         raw file allocated before",
        "preallocate the image, with folio image create -o preallocation=full or falloc",
    )
    .with(
        "mkfs on a fresh qcow2, as a multiple of the time on a preallocated raw file",
        Unit::Times,
        39.0 / 2.0,
        today(Kind::Qcow2),
    )
    .with("mkfs on a sparse raw file, as a multiple of the same", Unit::Times, 20.0 / 2.0, today(Kind::Sparse))
}

fn cell_name(kind: Kind, tool: Tool) -> String {
    format!("{}, {}", kind.name(), tool.name())
}

struct Bench<'a> {
    run: &'a Run<'a>,
    folder: &'a Path,
    size_mib: u64,
    tools: Vec<Tool>,
    /// Number of the [`RUNS`] to make.
    runs: usize,
}

impl Bench<'_> {
    /// Runs all kinds and tools in turn, so that a slow minute affects all alike.
    fn measure(
        &self,
        job: Job,
        until: Option<Instant>,
        report: &mut Report,
    ) -> Result<Vec<Table>, String> {
        let mut cells: Vec<Cell> = Kind::ALL
            .into_iter()
            .flat_map(|kind| self.tools.iter().map(move |tool| (kind, *tool)))
            .map(|(kind, tool)| Cell {
                kind,
                tool,
                costs: Default::default(),
            })
            .collect();
        let written = self.folder.join("written");
        self.create(&written, Kind::Written)?;
        let depth = if self.tools.contains(&Tool::Qemu) {
            self.best_depth(job)?
        } else {
            1
        };
        let scenario = format!("first-write, {}", job.name());
        let run = Run {
            until,
            folio: self.run.folio.clone(),
            ..*self.run
        };
        let mut round = 0;
        while run.goes_on(&scenario, round, ROUNDS)? {
            for turn in 0..cells.len() {
                run.check()?;
                // Never after the same one: each leaves memory in another state. An odd step meets
                // all of an even number.
                let step = 2 * (round as usize % 4) + 1;
                let at = (turn * step + round as usize) % cells.len();
                self.measure_cell(&mut cells[at], job, depth, &written, round)?;
            }
            round += 1;
        }
        report.repeats = report.repeats.max(round);
        fs::remove_file(&written).map_err(with_context(written.display()))?;
        if self.runs > 2 && cells.iter().any(|cell| cell.costs[2].is_empty()) {
            report.skip(
                format!("{}: the third run", job.words()),
                "dropping the host's page cache needs root",
            );
        }
        Ok(tables(job, &cells, &mut report.notes))
    }

    /// Measures all runs on one image.
    fn measure_cell(
        &self,
        cell: &mut Cell,
        job: Job,
        depth: u32,
        written: &Path,
        round: u32,
    ) -> Result<(), String> {
        let is_written = cell.kind == Kind::Written;
        let image = if is_written {
            written.to_owned()
        } else {
            self.folder.join("image")
        };
        if is_written {
            // As a fresh image: the other tool's last run has left it in memory.
            forget(&[File::open(&image).map_err(with_context(image.display()))?])?;
        } else {
            self.create(&image, cell.kind)?;
        }
        for run in 0..self.runs {
            if run == 2 && !drop_caches(&image)? {
                continue;
            }
            cell.costs[run].push(self.once(job, cell.tool, &image, cell.kind.format(), depth)?);
        }
        if !is_written {
            if round == 0 {
                self.check(cell, &image)?;
            }
            fs::remove_file(&image).map_err(with_context(image.display()))?;
        }
        Ok(())
    }

    /// Makes the image as it is before the first write, with no dirty pages left in the host.
    fn create(&self, path: &Path, kind: Kind) -> Result<(), String> {
        let _ = fs::remove_file(path);
        let bytes = self.size_mib << 20;
        let device =
            block::create(path, kind.format(), bytes).map_err(|error| error.to_string())?;
        device.flush().map_err(|error| error.to_string())?;
        drop(device);
        let mut file = File::options()
            .write(true)
            .open(path)
            .map_err(with_context(path.display()))?;
        match kind {
            Kind::Qcow2 | Kind::Sparse => {}
            Kind::Falloc => {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
                    .map_err(with_context(path.display()))?
            }
            Kind::Written => {
                let ones = vec![1; 1 << 20];
                (0..self.size_mib)
                    .try_for_each(|_| file.write_all(&ones))
                    .map_err(with_context(path.display()))?;
            }
        }
        file.sync_all().map_err(with_context(path.display()))
    }

    /// Runs one job by one tool in a process of its own.
    fn once(
        &self,
        job: Job,
        tool: Tool,
        image: &Path,
        format: ImageFormat,
        depth: u32,
    ) -> Result<Cost, String> {
        let is_quick = self.run.is_quick;
        touch_memory(self.run.sized(TOUCHED_MIB, 16))?;
        let mut meter = Meter::default();
        if tool == Tool::Folio {
            let mut arguments: Vec<OsString> = ["first-write-job", job.name(), format.name()]
                .map(Into::into)
                .into();
            arguments.push(image.into());
            arguments.extend(is_quick.then(|| "--tiny".into()));
            meter.run(this_program()?.as_os_str(), arguments)?;
            return Ok(meter.cost);
        }
        let size_bytes = self.size_mib << 20;
        match job.stride(size_bytes, is_quick) {
            Some(stride) => {
                let [count, depth, step, len] = [
                    stride.count,
                    u64::from(depth),
                    stride.step_bytes,
                    stride.len_bytes,
                ]
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
                let all = arguments
                    .map(OsStr::new)
                    .into_iter()
                    .chain([image.as_os_str()]);
                meter.run(program("qemu-img")?.as_os_str(), all)?;
            }
            None => self.mkfs_by_qemu_io(&mut meter, image, format)?,
        }
        Ok(meter.cost)
    }

    /// Writes what mkfs writes, by one qemu-io.
    fn mkfs_by_qemu_io(
        &self,
        meter: &mut Meter,
        image: &Path,
        format: ImageFormat,
    ) -> Result<(), String> {
        let size_bytes = self.size_mib << 20;
        let list = self.folder.join("qemu-io.list");
        if !list.exists() {
            fs::write(&list, disk::mkfs_as_qemu_io(size_bytes)?)
                .map_err(with_context(list.display()))?;
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
        Ok(())
    }

    /// Returns the faster queue depth of qemu-img bench, by one trial each on a fresh qcow2.
    fn best_depth(&self, job: Job) -> Result<u32, String> {
        if job.stride(self.size_mib << 20, self.run.is_quick).is_none() {
            return Ok(1);
        }
        let image = self.folder.join("image");
        let mut trials = Vec::new();
        for depth in [1, 16] {
            self.create(&image, Kind::Qcow2)?;
            trials.push((
                self.once(job, Tool::Qemu, &image, ImageFormat::Qcow2, depth)?
                    .seconds,
                depth,
            ));
        }
        Ok(trials
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(1, |(_, depth)| depth))
    }

    /// Checks a qcow2 image.
    fn check(&self, cell: &Cell, image: &Path) -> Result<(), String> {
        if cell.kind == Kind::Qcow2 && cell.tool == Tool::Folio && self.tools.contains(&Tool::Qemu)
        {
            let arguments = [OsStr::new("check"), image.as_os_str()];
            Meter::default().run(program("qemu-img")?.as_os_str(), arguments)?;
        }
        Ok(())
    }
}

/// Writes the image out and makes the host forget it; false if that is not allowed here.
fn drop_caches(image: &Path) -> Result<bool, String> {
    File::open(image)
        .and_then(|file| file.sync_all())
        .map_err(with_context(image.display()))?;
    Ok(fs::write("/proc/sys/vm/drop_caches", "3").is_ok())
}

fn program(name: &str) -> Result<PathBuf, String> {
    find(name).ok_or_else(|| format!("{name} is not installed"))
}

/// A table per run, and how the cells that the aims speak of compare.
fn tables(job: Job, cells: &[Cell], notes: &mut Vec<String>) -> Vec<Table> {
    let mut tables = Vec::new();
    for (run, words) in RUNS.into_iter().enumerate() {
        let title = format!("{}: {words}", job.words());
        let measured = cells.iter().filter(|cell| !cell.costs[run].is_empty());
        let rows = measured
            .map(|cell| Row::of_costs(&title, &cell_name(cell.kind, cell.tool), &cell.costs[run]))
            .collect();
        let table = Table::new(title.clone(), Unit::Seconds, Some(BASE), rows);
        let median = |kind, tool| {
            table
                .row(&title, &cell_name(kind, tool))
                .map(|row| row.median)
        };
        let Some(base) = median(Kind::Written, Tool::Folio) else {
            continue;
        };
        for kind in Kind::ALL {
            let (Some(ours), Some(theirs)) = (median(kind, Tool::Folio), median(kind, Tool::Qemu))
            else {
                continue;
            };
            notes.push(format!(
                "{title}, {}: folio is {} of qemu, {} of folio's written raw",
                kind.name(),
                ratio(ours / theirs),
                ratio(ours / base)
            ));
        }
        tables.push(table);
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_on_small_images() {
        let folder = tempfile::tempdir().expect("a folder");
        let quiet = |_: &str| Ok(());
        let run = Run {
            is_quick: true,
            ..Run::new(PathBuf::new(), &quiet)
        };
        let tools = vec![Tool::Folio];
        let bench = Bench {
            run: &run,
            folder: folder.path(),
            size_mib: 64,
            tools,
            runs: 2,
        };
        for job in Job::ALL {
            for kind in Kind::ALL {
                let image = folder.path().join("image");
                bench.create(&image, kind).expect("an image");
                run_job(&JobArguments {
                    job,
                    format: kind.format(),
                    image,
                    tiny: true,
                })
                .expect("a run");
            }
            let table = disk::table(job, 64, true).expect("a table");
            assert_eq!(table.rows.len(), 2);
        }
    }
}
