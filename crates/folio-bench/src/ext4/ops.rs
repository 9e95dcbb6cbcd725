//! The scenario `ext4-ops`: files made and removed, bytes in order and at random, beside the kernel
//! and fuse2fs.

use super::figures::{Table, compare};
use super::fixture::{Contender, Fixture, Truncates};
use super::{Options, hosted, scaled};
use crate::report::Report;
use crate::run::{Run, scratch_in};
use std::time::Instant;

const IMAGE_MIB: u64 = 4096;
const FILES: usize = 10_000;
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 1 << 30;
const PART_BYTES: usize = 1 << 20;
const OVERWRITES: usize = 4000;
const OVERWRITES_PER_FSYNC: usize = 100;
const JOBS: [&str; 7] = [
    "create 0 B",
    "delete 0 B",
    "create 4 KiB",
    "delete 4 KiB",
    "write 1 GiB",
    "overwrite 4 KiB",
    "read 1 GiB",
];

const ROUNDS: u32 = 3;

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let folder = scratch_in(&options.disk_dir())?;
    let workload = WorkloadSize {
        files: scaled(run, FILES),
        large_bytes: scaled(run, LARGE_BYTES),
        overwrites: scaled(run, OVERWRITES),
    };
    let what = "files made and removed, bytes in order and at random, on an image on the disk";
    let mut report = Report::new("ext4-ops", what, &options.disk_dir());
    report.notes = vec![
        format!(
            "{} files in one folder, by open, write and close; with the sync after them in the time",
            workload.files
        ),
        format!(
            "write: {} MiB in parts of 1 MiB, with the fsync after them",
            workload.large_bytes >> 20
        ),
        format!(
            "overwrite: {} times 4 KiB at random places of that file, fsync after each {OVERWRITES_PER_FSYNC}",
            workload.overwrites
        ),
        "read: in order, after a new mount, the image not in the host's memory".to_owned(),
        "fuse2fs reports no bytes written, and has no journal for its fsync to rely on".to_owned(),
    ];
    let mut contenders = vec![Contender::FolioReal("")];
    for (rival, missing) in [
        (Contender::Kernel(""), hosted::kernel_missing()),
        (Contender::Fuse2fs, hosted::fuse2fs_missing()),
    ] {
        match missing {
            None => contenders.push(rival),
            Some(reason) => report.skip(rival.name(), reason),
        }
    }
    contenders.retain(|contender| options.wants(&contender.name()));
    let mut table = Table::new(
        "ext4",
        &JOBS,
        contenders.iter().map(Contender::name).collect(),
    );
    while run.goes_on("ext4-ops", report.repeats, ROUNDS)? {
        for turn in 0..contenders.len() {
            run.check()?;
            let at = (turn + report.repeats as usize) % contenders.len();
            let mut fixture = contenders[at].make_fixture(folder.path(), IMAGE_MIB)?;
            for job in 0..JOBS.len() {
                let before = fixture.written_bytes();
                let seconds = once(&mut fixture, job, workload)?;
                let written = fixture.written_bytes().zip(before);
                let written = written.map(|(now, before)| now.saturating_sub(before));
                table.add(at, job, seconds, written);
            }
            fixture.end()?;
        }
        report.repeats += 1;
    }
    let table = table.to_report("kernel");
    report.verdicts = JOBS
        .iter()
        .filter_map(|job| compare(&table, job, "folio", "kernel", 1.0))
        .collect();
    let against_fuse = JOBS[..4]
        .iter()
        .filter_map(|job| compare(&table, job, "folio", "fuse2fs", 5.0));
    report.verdicts.extend(against_fuse);
    report.tables.push(table);
    Ok(report)
}

/// Sizes and counts of the jobs.
#[derive(Debug, Clone, Copy)]
struct WorkloadSize {
    files: usize,
    large_bytes: usize,
    overwrites: usize,
}

/// Seconds of one job; jobs come in their order, on the same file system.
fn once(fixture: &mut Fixture, job: usize, workload: WorkloadSize) -> Result<f64, String> {
    let large_bytes = workload.large_bytes;
    let names = || (0..workload.files).map(|n| format!("f{n}"));
    match job {
        0 | 2 => {
            let bytes = vec![0x5a; if job == 0 { 0 } else { SMALL_BYTES }];
            timed(|| {
                names().try_for_each(|name| fixture.put(&name, &bytes))?;
                fixture.sync()
            })
        }
        1 | 3 => timed(|| {
            names().try_for_each(|name| fixture.remove(&name))?;
            fixture.sync()
        }),
        4 => timed(|| write_in_order(fixture, large_bytes)),
        5 => timed(|| overwrite(fixture, large_bytes, workload.overwrites)),
        _ => {
            fixture.forget()?;
            timed(|| read_in_order(fixture, large_bytes))
        }
    }
}

fn timed(work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn write_in_order(fixture: &Fixture, large_bytes: usize) -> Result<(), String> {
    let part: Vec<u8> = (0..PART_BYTES).map(|n| (n % 251) as u8 + 1).collect();
    let handle = fixture.open("large", Truncates::Yes)?;
    for offset in (0..large_bytes).step_by(PART_BYTES) {
        let len = PART_BYTES.min(large_bytes - offset);
        fixture.write(&handle, &part[..len], offset as u64)?;
    }
    fixture.fsync(&handle)?;
    fixture.close(handle)
}

fn overwrite(fixture: &Fixture, large_bytes: usize, count: usize) -> Result<(), String> {
    let handle = fixture.open("large", Truncates::No)?;
    // xorshift64*: the same places for every contender.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for n in 1..=count {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        let block = random.wrapping_mul(0x2545_f491_4f6c_dd1d) % (large_bytes / 4096) as u64;
        fixture.write(&handle, &[n as u8; 4096], block * 4096)?;
        if n % OVERWRITES_PER_FSYNC == 0 {
            fixture.fsync(&handle)?;
        }
    }
    fixture.close(handle)
}

fn read_in_order(fixture: &Fixture, large_bytes: usize) -> Result<(), String> {
    let handle = fixture.open("large", Truncates::No)?;
    let mut part = vec![0; PART_BYTES];
    let mut offset = 0;
    while offset < large_bytes {
        match fixture.read(&handle, &mut part, offset as u64)? {
            0 => return Err(format!("the file ends at {offset}")),
            count => offset += count,
        }
    }
    fixture.close(handle)
}
