//! The scenario `first-write`: the cost of the first write into an image beside a rewrite, in Folio
//! and in QEMU.
//!
//! ```text
//!   mod     rounds, tables                      job     one job in a process of its own, as QEMU's is
//!   images  what is written into, fresh and preallocated
//!   disk    the same jobs on a model of a disk with seeks
//!   guest   mkfs and a copy of files in a virtual machine, by QEMU's own drivers and by Folio
//! ```

mod disk;
mod guest;
mod images;
mod job;

pub(crate) use job::{Arguments as JobArguments, Job, run as run_job};

use crate::command::{Meter, is_root, lacking, this_program, tool, touch_memory};
use crate::options::DiskDir;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, Turn, scratch_in};
use crate::report::{Report, Sample, Table, Unit, ratio, require_space};
use images::{Images, Kind, TOUCHED_MIB, Tool, cell_name, published_case};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
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
    #[command(flatten)]
    pub(crate) disk: DiskDir,
    /// Size of the disks in MiB; needs twice that on the real disk [default: 8192, or 4096 in a
    /// virtual machine]
    #[arg(long, value_parser = clap::value_parser!(u64).range(64..1 << 20))]
    pub(crate) size_mib: Option<u64>,
    /// Only this job
    #[arg(long)]
    pub(crate) only: Option<Job>,
    /// In a virtual machine (QEMU), through its own drivers and through folio serve vhost-user-blk
    #[arg(long, conflicts_with = "only")]
    pub(crate) guest: bool,
}

const RUNS: [&str; 3] = ["first write", "second write", "third, host's cache dropped"];

/// Whose time is 1.
const BASE: &str = "written raw, folio";

/// Measures. As a part of `all` it leaves out the third run and what is written in order, and uses
/// smaller disks.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    if options.guest {
        return guest::measure(&options.disk.path(), options.size_mib, run);
    }
    let dir = options.disk.path();
    let folder = scratch_in(&dir)?;
    let usual_mib = run.sized(if run.is_part { 1024 } else { 8192 }, 64);
    let size_mib = options.size_mib.unwrap_or(usual_mib);
    require_space(&dir, size_mib * 2 + run.sized(1024, 64), "--size-mib")?;
    let what = format!("mkfs and writes into fresh and preallocated images of {size_mib} MiB");
    let mut report = Report::new("first-write", what, &dir);
    let mut tools = vec![Tool::Folio];
    match lacking(&["qemu-img", "qemu-io"]) {
        None => tools.push(Tool::Qemu),
        Some(reason) => report.skip("QEMU", reason),
    }
    let bench = Bench {
        run,
        images: Images {
            folder: folder.path(),
            size_mib,
        },
        tools,
        runs: if run.is_part { 2 } else { RUNS.len() },
    };
    let is_wanted = |job: &Job| match options.only {
        Some(only) => only == *job,
        None => !run.is_part || *job != Job::Sequential,
    };
    let jobs: Vec<Job> = Job::ALL.into_iter().filter(is_wanted).collect();
    for (at, job) in jobs.iter().enumerate() {
        // Each job has its share of what time is left.
        let now = Instant::now();
        let jobs_left = (jobs.len() - at) as u32;
        let share = |end: Instant| now + end.saturating_duration_since(now) / jobs_left;
        bench.measure(*job, run.until.map(share), &mut report)?;
    }
    // Last, for their memory would count as that of the processes above.
    for job in jobs {
        report
            .tables
            .push(disk::table(job, size_mib, run.is_quick)?);
    }
    let title = format!("{}: {}", Job::Mkfs.words(), RUNS[0]);
    let row = |kind: Kind, tool: Tool| report.row(&title, &title, &cell_name(kind, tool));
    report.story = Some(published_case(row, Kind::Falloc));
    report.limit(&LIMITS);
    Ok(report)
}

struct Bench<'a> {
    run: &'a Run<'a>,
    images: Images<'a>,
    tools: Vec<Tool>,
    /// Number of the [`RUNS`] to make.
    runs: usize,
}

/// One job by one tool on one image.
struct Work {
    job: Job,
    tool: Tool,
    kind: Kind,
    /// Queue depth of qemu-img bench.
    depth: u32,
}

impl Bench<'_> {
    /// Measures a job on all kinds of images with all tools.
    fn measure(&self, job: Job, until: Option<Instant>, report: &mut Report) -> Outcome {
        self.images.create(Kind::Written)?;
        let has_qemu = self.tools.contains(&Tool::Qemu);
        let depth = if has_qemu { self.best_depth(job)? } else { 1 };
        let titles = RUNS.map(|words| format!("{}: {words}", job.words()));
        let mut race = Race::new(&titles[0], Unit::Seconds, Some(BASE)).shuffled();
        for title in &titles[1..self.runs] {
            race = race.table(title, Unit::Seconds, Some(BASE));
        }
        for kind in Kind::ALL {
            for tool in self.tools.iter().copied() {
                let titles = &titles;
                race.contender(&cell_name(kind, tool), move |turn| {
                    let work = Work {
                        job,
                        tool,
                        kind,
                        depth,
                    };
                    self.measure_image(&work, titles, turn)
                });
            }
        }
        let run = Run {
            until,
            ..self.run.clone()
        };
        let mut tables = race.measure(&run, report)?;
        let written = self.images.path(Kind::Written);
        fs::remove_file(&written).at(&written)?;
        if self.runs > 2 && tables[2].rows.is_empty() {
            let what = format!("{}: the third run", job.words());
            report.skip(what, "dropping the host's page cache needs root");
        }
        tables.retain(|table| !table.rows.is_empty());
        tables.iter().for_each(|table| compare(table, report));
        report.tables.extend(tables);
        Ok(())
    }

    /// Measures all runs on one image.
    fn measure_image(&self, work: &Work, titles: &[String], turn: &mut Turn) -> Outcome {
        let image = self.images.prepare(work.kind)?;
        for (run, title) in titles[..self.runs].iter().enumerate() {
            if run == 2 && !drop_caches(&image)? {
                continue;
            }
            turn.add_to(run, title, self.once(work)?);
        }
        self.images.remove(work.kind, work.tool, turn.round)
    }

    /// Runs one job by one tool in a process of its own.
    fn once(&self, work: &Work) -> Outcome<Sample> {
        let is_quick = self.run.is_quick;
        touch_memory(self.run.sized(TOUCHED_MIB, 16))?;
        let format = work.kind.format().name();
        let image = self.images.path(work.kind);
        let size_bytes = self.images.size_mib << 20;
        let mut command = match (work.tool, work.job.stride(size_bytes, is_quick)) {
            (Tool::Folio, _) => {
                let mut helper = Command::new(this_program()?);
                helper
                    .args(["first-write-job", work.job.name(), format])
                    .arg(image);
                helper.args(is_quick.then_some("--tiny"));
                helper
            }
            (Tool::Qemu, Some(stride)) => {
                let mut qemu_img = tool("qemu-img")?;
                qemu_img.args(["bench", "-q", "-w", "-f", format, "-t", "writeback"]);
                for (option, number) in [
                    ("-c", stride.count),
                    ("-d", u64::from(work.depth)),
                    ("-S", stride.step_bytes),
                    ("-s", stride.len_bytes),
                ] {
                    qemu_img.args([option, &number.to_string()]);
                }
                qemu_img
                    .arg(format!("--flush-interval={}", stride.count))
                    .arg(image);
                qemu_img
            }
            (Tool::Qemu, None) => self.mkfs_by_qemu_io(format, &image)?,
        };
        let mut meter = Meter::default();
        meter.run(&mut command)?;
        Ok(meter.sample())
    }

    /// Writes what mkfs writes, by one qemu-io.
    fn mkfs_by_qemu_io(&self, format: &str, image: &Path) -> Outcome<Command> {
        let list = self.images.folder.join("qemu-io.list");
        if !list.exists() {
            fs::write(&list, disk::mkfs_as_qemu_io(self.images.size_mib << 20)?).at(&list)?;
        }
        let qemu_io = tool("qemu-io")?;
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"exec "$0" -t writeback -f "$1" "$2" <"$3""#]);
        shell
            .arg(qemu_io.get_program())
            .arg(format)
            .arg(image)
            .arg(list);
        Ok(shell)
    }

    /// Returns the faster queue depth of qemu-img bench, by one trial each on a fresh qcow2.
    fn best_depth(&self, job: Job) -> Outcome<u32> {
        if job
            .stride(self.images.size_mib << 20, self.run.is_quick)
            .is_none()
        {
            return Ok(1);
        }
        let mut seconds = Vec::new();
        for depth in [1, 16] {
            self.images.create(Kind::Qcow2)?;
            let work = Work {
                job,
                tool: Tool::Qemu,
                kind: Kind::Qcow2,
                depth,
            };
            seconds.push(self.once(&work)?.value);
        }
        Ok(if seconds[1] < seconds[0] { 16 } else { 1 })
    }
}

/// Writes the image out and makes the host forget it; false if that is not allowed here.
fn drop_caches(image: &Path) -> Outcome<bool> {
    File::open(image)
        .and_then(|file| file.sync_all())
        .at(image)?;
    Ok(is_root() && fs::write("/proc/sys/vm/drop_caches", "3").is_ok())
}

/// Notes how the cells that the aims speak of compare.
fn compare(table: &Table, report: &mut Report) {
    let title = &table.title;
    for kind in Kind::ALL {
        let ours = cell_name(kind, Tool::Folio);
        let of_qemu = table.ratio(title, &ours, &cell_name(kind, Tool::Qemu));
        if let (Some(of_qemu), Some(of_base)) = (of_qemu, table.ratio(title, &ours, BASE)) {
            report.note(format!(
                "{title}, {}: folio is {} of qemu, {} of folio's written raw",
                kind.name(),
                ratio(of_qemu),
                ratio(of_base)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_on_small_images() {
        let folder = tempfile::tempdir().expect("a folder");
        let images = Images {
            folder: folder.path(),
            size_mib: 64,
        };
        for job in Job::ALL {
            for kind in Kind::ALL {
                images.create(kind).expect("an image");
                run_job(&JobArguments {
                    job,
                    format: kind.format(),
                    image: images.path(kind),
                    tiny: true,
                })
                .expect("a run");
            }
            let table = disk::table(job, 64, true).expect("a table");
            assert_eq!(table.rows.len(), 2);
        }
    }
}
