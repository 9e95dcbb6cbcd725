//! The scenario `auto-da-alloc`: files rewritten again and again, in each mode of delayed
//! allocation.

use super::fixture::{Contender, Disk};
use super::{Options, judge, scaled};
use crate::hosted::{System, throttle_missing};
use crate::options::is_wanted;
use crate::outcome::Outcome;
use crate::published::{PublishedCase, Today};
use crate::race::{Race, Run, scratch_in};
use crate::random::pattern;
use crate::report::{Report, Sample, Unit};
use crate::view::View;
use folio::block::ImageFormat;
use std::path::Path;

const FILES: usize = 1024;
const FILE_BYTES: usize = 64 << 10;
const TIMES: usize = 10;
const IMAGE_MIB: u64 = 2048;
const TRUNCATION: &str = "by truncation";
const REMOVAL: &str = "remove between";
const RENAME: &str = "by rename";
const JOBS: [&str; 3] = [TRUNCATION, REMOVAL, RENAME];
const FOLIO_MOUNT: &str = "folio mount";
/// The modes, as Folio's mount options say them; the kernel has no mode of the first kind.
const COMMIT: &str = "auto_da_alloc=commit";
const CLOSE: &str = "auto_da_alloc=close";
const OFF: &str = "noauto_da_alloc";
const NODELALLOC: &str = "nodelalloc";
const KERNEL: &str = "auto_da_alloc";

const SATA: &str = "SATA disk";
const LIMITED: &str = "128 MiB/s";
const REAL: &str = "real disk";
const DISKS: [(&str, Disk); 3] = [
    (SATA, Disk::Sata),
    (LIMITED, Disk::Limited),
    (REAL, Disk::Image(ImageFormat::Raw)),
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = options.disk.path();
    let folder = scratch_in(&dir)?;
    let files = scaled(run, FILES);
    let what = format!(
        "{files} files of {} KiB, written {TIMES} times over by open, write and close",
        FILE_BYTES >> 10
    );
    let mut report = Report::new("auto-da-alloc", what, &dir);
    report.notes = notes(&dir);
    let base = format!("folio, {CLOSE}");
    let mut race = Race::new(SATA, Unit::Seconds, Some(&base)).rounds(3);
    for (title, _) in &DISKS[1..] {
        race = race.table(title, Unit::Seconds, Some(&base));
    }
    for (table, (_, disk)) in DISKS.into_iter().enumerate() {
        for contender in contenders(disk, &run.folio, &mut report) {
            let name = contender.name();
            let folder = folder.path();
            if !is_wanted(&options.only, &name) {
                continue;
            }
            race.contender(&name, move |turn| {
                for job in JOBS {
                    run.check()?;
                    turn.add_to(table, job, rewritten(&contender, job, files, folder)?);
                }
                Ok(())
            });
        }
    }
    race.run(run, &mut report)?;
    judge_all(&mut report);
    report.story = Some(published_case(&report));
    Ok(report)
}

fn notes(dir: &Path) -> Vec<String> {
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
        format!("real disk: images in {}", dir.display()),
    ]
}

/// Returns the contenders on a disk; the kernel's ext4 needs root.
fn contenders(disk: Disk, folio: &Path, report: &mut Report) -> Vec<Contender> {
    let modes = [COMMIT, CLOSE, OFF, NODELALLOC];
    let mut contenders: Vec<_> = modes.map(|mode| Contender::folio(disk, mode)).into();
    if matches!(disk, Disk::Image(_)) {
        let mount = System::Folio(folio.to_owned());
        match mount.missing() {
            Some(reason) => report.skip(FOLIO_MOUNT, reason),
            None => contenders.push(Contender::hosted(mount, disk, "")),
        }
    }
    let (what, missing) = match disk {
        Disk::Sata => return contenders,
        Disk::Limited => ("the kernel's ext4 at 128 MiB/s", throttle_missing()),
        Disk::Image(_) => ("the kernel's ext4", None),
    };
    match System::EXT4.missing().or(missing) {
        Some(reason) => report.skip(what, reason),
        None => {
            let modes = [KERNEL, OFF, NODELALLOC];
            let kernels = modes.map(|mode| Contender::hosted(System::EXT4, disk, mode));
            contenders.extend(kernels);
        }
    }
    contenders
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
    let case = PublishedCase::new(
        "Delayed allocation",
        "files written over by truncation took seventeen times as long as with noauto_da_alloc",
        "mount with noauto_da_alloc where programs call fsync, or use Folio's ext4, which protects at commit",
    );
    let figures = [
        (
            "64 KiB x 1024 ten times over, by truncation, auto_da_alloc",
            6.0,
            TRUNCATION,
            KERNEL,
            [CLOSE, COMMIT],
        ),
        (
            "the same with noauto_da_alloc",
            0.35,
            TRUNCATION,
            OFF,
            [OFF, NODELALLOC],
        ),
        (
            "the same with each file removed before",
            0.35,
            REMOVAL,
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

/// Measures one job on a fresh file system.
fn rewritten(contender: &Contender, job: &str, files: usize, folder: &Path) -> Outcome<Sample> {
    let fixture = contender.make_fixture(folder, IMAGE_MIB)?;
    let bytes = pattern(FILE_BYTES);
    let names: Vec<String> = (0..files).map(|n| format!("file-{n}")).collect();
    for name in &names {
        fixture.view.put(name, &bytes)?;
    }
    fixture.view.sync()?;
    let sample = fixture.timed(|view| {
        let mut times = (0..TIMES).flat_map(|_| &names);
        times.try_for_each(|name| rewrite(view, job, name, &bytes))
    })?;
    fixture.end()?;
    Ok(sample)
}

fn rewrite(view: &View, job: &str, name: &str, bytes: &[u8]) -> Outcome {
    match job {
        TRUNCATION => view.put(name, bytes),
        REMOVAL => {
            view.remove(name)?;
            view.put(name, bytes)
        }
        _ => {
            view.put("new", bytes)?;
            view.rename("new", name)
        }
    }
}

fn judge_all(report: &mut Report) {
    let folio = |mode: &str| format!("folio, {mode}");
    let kernel = |mode: &str| format!("kernel, {mode}");
    let mut judge = |table, job, ours: String, theirs: String, factor| {
        judge(report, table, job, [&ours, &theirs], factor);
    };
    for ((table, _), factor) in DISKS.into_iter().zip([10.0, 10.0, 1.0]) {
        for job in [TRUNCATION, RENAME] {
            judge(table, job, folio(COMMIT), folio(CLOSE), factor);
            judge(table, job, folio(OFF), folio(CLOSE), factor);
        }
        for job in JOBS {
            for (ours, theirs) in [
                (COMMIT, KERNEL),
                (CLOSE, KERNEL),
                (OFF, OFF),
                (NODELALLOC, NODELALLOC),
            ] {
                judge(table, job, folio(ours), kernel(theirs), 1.0);
            }
        }
    }
}
