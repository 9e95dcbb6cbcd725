//! The scenario `ext4-ops`: files made and removed, bytes in order and at random, beside the kernel and fuse2fs.

use super::figures::{Report, Table};
use super::rewrite::unoptimised;
use super::stand::{Contender, Stand, Truncates};
use super::{Options, hosted, told};
use crate::report::Machine;
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

/// Measures.
pub(crate) fn report(options: &Options) -> Result<Report, String> {
    let folder = tempfile::Builder::new().prefix("folio-bench-").tempdir_in(options.disk_dir());
    let folder = folder.map_err(told(options.disk_dir().display()))?;
    let machine = Machine::here(folder.path());
    let (files, large_bytes) = (options.scaled(FILES), options.scaled(LARGE_BYTES));
    let mut notes = vec![
        format!(
            "{files} files in one folder, by open, write and close; with the sync after them in the time"
        ),
        format!("write: {} MiB in parts of 1 MiB, with the fsync after them", large_bytes >> 20),
        format!(
            "overwrite: {} times 4 KiB at random places of that file, fsync after each {OVERWRITES_PER_FSYNC}",
            options.scaled(OVERWRITES)
        ),
        "read: in order, after a new mount, the image not in the host's memory".to_owned(),
        format!("images in {} ({})", options.disk_dir().display(), machine.dir_file_system()),
        "fuse2fs tells no bytes written, and has no journal for its fsync to rely on".to_owned(),
    ];
    notes.extend(unoptimised());
    let mut contenders = vec![Contender::FolioReal("")];
    for (rival, missing) in
        [(Contender::Kernel(""), hosted::kernel_missing()), (Contender::Fuse2fs, hosted::fuse2fs_missing())]
    {
        match missing {
            None => contenders.push(rival),
            Some(reason) => notes.push(format!("not measured: {}: {reason}", rival.name())),
        }
    }
    contenders.retain(|contender| options.wants(&contender.name()));
    let names: Vec<_> = contenders.iter().map(Contender::name).collect();
    let mut table = Table::new("ext4".to_owned(), &JOBS, &names);
    for round in 0..options.repeats as usize {
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            let mut stand = contenders[at].stand(folder.path(), IMAGE_MIB)?;
            for job in 0..JOBS.len() {
                let before = stand.written_bytes();
                let seconds = measure(&mut stand, job, options)?;
                let written = stand.written_bytes().saturating_sub(before);
                table.rows[at].cells[job].add(seconds, written);
            }
            stand.end()?;
        }
    }
    let mut verdicts: Vec<_> =
        JOBS.iter().filter_map(|job| table.compare(job, "folio", "kernel", 1.0)).collect();
    verdicts.extend(JOBS[..4].iter().filter_map(|job| table.compare(job, "folio", "fuse2fs", 5.0)));
    let tables = vec![table];
    Ok(Report { scenario: "ext4-ops", repeats: options.repeats, machine, tables, verdicts, notes })
}

/// Seconds of one job; jobs come in their order, on the same file system.
fn measure(stand: &mut Stand, job: usize, options: &Options) -> Result<f64, String> {
    let large_bytes = options.scaled(LARGE_BYTES);
    let names = || (0..options.scaled(FILES)).map(|n| format!("f{n}"));
    match job {
        0 | 2 => {
            let bytes = vec![0x5a; if job == 0 { 0 } else { SMALL_BYTES }];
            timed(|| {
                names().try_for_each(|name| stand.put(&name, &bytes))?;
                stand.sync()
            })
        }
        1 | 3 => timed(|| {
            names().try_for_each(|name| stand.remove(&name))?;
            stand.sync()
        }),
        4 => timed(|| write_in_order(stand, large_bytes)),
        5 => timed(|| overwrite(stand, large_bytes, options.scaled(OVERWRITES))),
        _ => {
            stand.forget()?;
            timed(|| read_in_order(stand, large_bytes))
        }
    }
}

fn timed(work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn write_in_order(stand: &Stand, large_bytes: usize) -> Result<(), String> {
    let part: Vec<u8> = (0..PART_BYTES).map(|n| (n % 251) as u8 + 1).collect();
    let handle = stand.open("large", Truncates::Yes)?;
    for offset in (0..large_bytes).step_by(PART_BYTES) {
        let len = PART_BYTES.min(large_bytes - offset);
        stand.write(&handle, &part[..len], offset as u64)?;
    }
    stand.fsync(&handle)?;
    stand.close(handle)
}

fn overwrite(stand: &Stand, large_bytes: usize, count: usize) -> Result<(), String> {
    let handle = stand.open("large", Truncates::No)?;
    // xorshift64*: the same places for every contender.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for n in 1..=count {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        let block = random.wrapping_mul(0x2545_f491_4f6c_dd1d) % (large_bytes / 4096) as u64;
        stand.write(&handle, &[n as u8; 4096], block * 4096)?;
        if n % OVERWRITES_PER_FSYNC == 0 {
            stand.fsync(&handle)?;
        }
    }
    stand.close(handle)
}

fn read_in_order(stand: &Stand, large_bytes: usize) -> Result<(), String> {
    let handle = stand.open("large", Truncates::No)?;
    let mut part = vec![0; PART_BYTES];
    let mut offset = 0;
    while offset < large_bytes {
        match stand.read(&handle, &mut part, offset as u64)? {
            0 => return Err(format!("the file ends at {offset}")),
            count => offset += count,
        }
    }
    stand.close(handle)
}
