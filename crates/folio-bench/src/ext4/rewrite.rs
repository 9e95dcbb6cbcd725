//! The scenario `auto-da-alloc`: files rewritten again and again, in each mode of delayed
//! allocation.

use super::figures::{Table, compare};
use super::fixture::{Contender, FOLIO_MOUNT, Fixture};
use super::{Options, hosted, scaled};
use crate::published::{PublishedCase, Today};
use crate::report::{self, Report, Unit};
use crate::run::{Run, scratch_in};
use std::path::Path;
use std::time::Instant;

const FILES: usize = 1024;
const FILE_BYTES: usize = 64 << 10;
const TIMES: usize = 10;
const IMAGE_MIB: u64 = 2048;
const JOBS: [&str; 3] = ["by truncation", "remove between", "by rename"];
/// The modes, as Folio's mount options say them; the kernel has no mode of the first kind.
const COMMIT: &str = "auto_da_alloc=commit";
const CLOSE: &str = "auto_da_alloc=close";
const OFF: &str = "noauto_da_alloc";
const NODELALLOC: &str = "nodelalloc";
const KERNEL: &str = "auto_da_alloc";

const SATA: &str = "SATA disk";
const LIMITED: &str = "128 MiB/s";
const REAL: &str = "real disk";
const ROUNDS: u32 = 3;

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let folder = scratch_in(&options.disk_dir())?;
    let files = scaled(run, FILES);
    let what = format!(
        "{files} files of {} KiB, written {TIMES} times over by open, write and close",
        FILE_BYTES >> 10
    );
    let mut report = Report::new("auto-da-alloc", what, &options.disk_dir());
    report.notes = notes(options);
    let mut jobs = Vec::new();
    for (title, mut contenders) in contenders(&mut report, &run.folio) {
        contenders.retain(|contender| options.wants(&contender.name()));
        let names = contenders.iter().map(Contender::name).collect();
        jobs.push((contenders, Table::new(title, &JOBS, names)));
    }
    while run.goes_on("auto-da-alloc", report.repeats, ROUNDS)? {
        for (contenders, table) in &mut jobs {
            for turn in 0..contenders.len() {
                let at = (turn + report.repeats as usize) % contenders.len();
                for job in 0..JOBS.len() {
                    run.check()?;
                    let (seconds, bytes) = rewritten(&contenders[at], job, files, folder.path())?;
                    table.add(at, job, seconds, bytes);
                }
            }
        }
        report.repeats += 1;
    }
    let base = format!("folio, {CLOSE}");
    report.tables = jobs
        .iter()
        .map(|(_, table)| table.to_report(&base))
        .collect();
    report.verdicts = verdicts(&report.tables);
    report.story = Some(published_case(&report));
    Ok(report)
}

fn notes(options: &Options) -> Vec<String> {
    vec![
        "in the kernel's ext4 auto_da_alloc is what Folio calls auto_da_alloc=close".to_owned(),
        "after a sync of the first versions the clock runs until the last call returns; nothing is synced, so what \
         is not written by then may be lost with the power, files damaged by it are counted by the crash tests"
            .to_owned(),
        "SATA disk: a model of one, with seeks of 8 ms on average, 128 MiB/s and 32 MiB of write cache".to_owned(),
        "128 MiB/s: Folio on the model without seeks, the kernel on a loop device limited to that rate".to_owned(),
        "folio mount pays for each open and close: the kernel sends them to its server, and the first write of each \
         file too; folio is the same ext4 in the measured process"
            .to_owned(),
        format!("real disk: images in {}", options.disk_dir().display()),
    ]
}

/// Returns the contenders of each disk; the kernel's ext4 needs root.
fn contenders(report: &mut Report, folio: &Path) -> [(&'static str, Vec<Contender>); 3] {
    let slow = [COMMIT, CLOSE, OFF, NODELALLOC]
        .map(Contender::FolioSlow)
        .to_vec();
    let mut limited = [COMMIT, CLOSE, OFF, NODELALLOC]
        .map(Contender::FolioLimited)
        .to_vec();
    let mut real = [COMMIT, CLOSE, OFF, NODELALLOC]
        .map(Contender::FolioReal)
        .to_vec();
    let mount = Contender::FolioMount(folio.to_owned());
    match hosted::folio_missing(folio) {
        Some(reason) => report.skip(mount.name(), reason),
        None => real.push(mount),
    }
    match hosted::kernel_missing() {
        Some(reason) => report.skip("the kernel's ext4", reason),
        None => {
            real.extend([KERNEL, OFF, NODELALLOC].map(Contender::Kernel));
            match hosted::throttle_missing() {
                Some(reason) => report.skip("the kernel's ext4 at 128 MiB/s", reason),
                None => limited.extend([KERNEL, OFF, NODELALLOC].map(Contender::KernelLimited)),
            }
        }
    }
    [(SATA, slow), (LIMITED, limited), (REAL, real)]
}

fn published_case(report: &Report) -> PublishedCase {
    let of = |disk: &str, job: &str, contender: &str| {
        Today::of(
            &format!("{contender}; {disk}"),
            report.row(disk, job, contender),
        )
    };
    let folio = |mode: &str| format!("folio, {mode}");
    let kernel = |mode: &str| format!("kernel, {mode}");
    // The seconds of a model and of this machine's disks are never in one chart.
    let here = |job: &str, mode: &str| {
        let theirs = kernel(mode);
        let mount = (mode == KERNEL)
            .then(|| of(REAL, job, FOLIO_MOUNT))
            .flatten();
        [of(LIMITED, job, &theirs), of(REAL, job, &theirs), mount]
    };
    let modeled = |job: &str, modes: [&str; 2]| {
        modes.map(|mode| {
            let today = of(SATA, job, &folio(mode))?;
            Some(if mode == COMMIT { today.cure() } else { today })
        })
    };
    let [truncation, removal, _] = JOBS;
    let case = PublishedCase::new(
        "Delayed allocation",
        "files written over by truncation took seventeen times as long as with noauto_da_alloc",
        "mount with noauto_da_alloc where programs call fsync, or use Folio's ext4, which protects at commit",
    );
    let figures = [
        (
            "64 KiB x 1024 ten times over, by truncation, auto_da_alloc",
            6.0,
            truncation,
            KERNEL,
            [CLOSE, COMMIT],
        ),
        (
            "the same with noauto_da_alloc",
            0.35,
            truncation,
            OFF,
            [OFF, NODELALLOC],
        ),
        (
            "the same with each file removed before",
            0.35,
            removal,
            KERNEL,
            [CLOSE, COMMIT],
        ),
    ];
    figures
        .into_iter()
        .fold(case, |case, (what, published, job, theirs, ours)| {
            case.with(
                &format!("{what}; disks of this machine"),
                Unit::Seconds,
                published,
                here(job, theirs),
            )
            .with(
                &format!("{what}; modeled SATA disk"),
                Unit::Seconds,
                published,
                modeled(job, ours),
            )
        })
}

/// Seconds of one job on a fresh file system, and bytes written meanwhile, where they are counted.
fn rewritten(
    contender: &Contender,
    job: usize,
    files: usize,
    folder: &Path,
) -> Result<(f64, Option<u64>), String> {
    let fixture = contender.make_fixture(folder, IMAGE_MIB)?;
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|n| (n % 251) as u8 + 1).collect();
    let names: Vec<String> = (0..files).map(|n| format!("file-{n}")).collect();
    for name in &names {
        fixture.put(name, &bytes)?;
    }
    fixture.sync()?;
    let before = fixture.written_bytes();
    let start = Instant::now();
    for _ in 0..TIMES {
        for name in &names {
            rewrite(&fixture, job, name, &bytes)?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let written = fixture.written_bytes().zip(before);
    let written = written.map(|(now, before)| now - before);
    fixture.end()?;
    Ok((seconds, written))
}

fn rewrite(fixture: &Fixture, job: usize, name: &str, bytes: &[u8]) -> Result<(), String> {
    match job {
        0 => fixture.put(name, bytes),
        1 => {
            fixture.remove(name)?;
            fixture.put(name, bytes)
        }
        _ => {
            fixture.put("new", bytes)?;
            fixture.rename("new", name)
        }
    }
}

fn verdicts(tables: &[report::Table]) -> Vec<report::Verdict> {
    let folio = |mode: &str| format!("folio, {mode}");
    let kernel = |mode: &str| format!("kernel, {mode}");
    let mut all = Vec::new();
    for (table, factor) in tables.iter().zip([10.0, 10.0, 1.0]) {
        for job in [JOBS[0], JOBS[2]] {
            all.extend(compare(table, job, &folio(COMMIT), &folio(CLOSE), factor));
            all.extend(compare(table, job, &folio(OFF), &folio(CLOSE), factor));
        }
        for job in JOBS {
            let pairs = [
                (COMMIT, KERNEL),
                (CLOSE, KERNEL),
                (OFF, OFF),
                (NODELALLOC, NODELALLOC),
            ];
            all.extend(pairs.iter().filter_map(|(ours, theirs)| {
                compare(table, job, &folio(ours), &kernel(theirs), 1.0)
            }));
        }
    }
    all
}
