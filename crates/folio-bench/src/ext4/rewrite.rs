//! The scenario `auto-da-alloc`: files written over and over, and what each mode of delayed allocation makes of it.

use super::figures::{Report, Table};
use super::stand::{Contender, Stand};
use super::{Options, hosted, told};
use crate::report::Machine;
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

/// Measures.
pub(crate) fn report(options: &Options) -> Result<Report, String> {
    let folder = tempfile::Builder::new().prefix("folio-bench-").tempdir_in(options.disk_dir());
    let folder = folder.map_err(told(options.disk_dir().display()))?;
    let machine = Machine::here(folder.path());
    let files = options.scaled(FILES);
    let mut notes = vec![
        format!("{files} files of {} KiB, written {TIMES} times over by open, write and close", FILE_BYTES >> 10),
        "in the kernel's ext4 auto_da_alloc is what Folio calls auto_da_alloc=close".to_owned(),
        "after a sync of the first versions the clock runs until the last call returns; nothing is synced, so what \
         is not written by then may be lost with the power, files damaged by it are counted by the crash tests"
            .to_owned(),
        "SATA disk: a model of one, with seeks of 8 ms on average, 128 MiB/s and 32 MiB of write cache".to_owned(),
        "128 MiB/s: Folio on the model without seeks, the kernel on a loop device limited to that rate".to_owned(),
        format!("real disk: images in {} ({})", options.disk_dir().display(), machine.dir_file_system()),
    ];
    notes.extend(unoptimised());
    let slow = [COMMIT, CLOSE, OFF, NODELALLOC].map(Contender::FolioSlow).to_vec();
    let mut limited = [COMMIT, CLOSE, OFF, NODELALLOC].map(Contender::FolioLimited).to_vec();
    let mut real = [COMMIT, CLOSE, OFF, NODELALLOC].map(Contender::FolioReal).to_vec();
    match hosted::kernel_missing() {
        Some(reason) => notes.push(format!("not measured: the kernel's ext4: {reason}")),
        None => {
            real.extend([KERNEL, OFF, NODELALLOC].map(Contender::Kernel));
            match hosted::throttle_missing() {
                Some(reason) => notes.push(format!("not measured: the kernel's ext4 at 128 MiB/s: {reason}")),
                None => limited.extend([KERNEL, OFF, NODELALLOC].map(Contender::KernelLimited)),
            }
        }
    }
    let mut tables = Vec::new();
    for (title, mut contenders) in [("SATA disk", slow), ("128 MiB/s", limited), ("real disk", real)] {
        contenders.retain(|contender| options.wants(&contender.name()));
        let names: Vec<_> = contenders.iter().map(Contender::name).collect();
        let mut table = Table::new(title.to_owned(), &JOBS, &names);
        for round in 0..options.repeats as usize {
            for turn in 0..contenders.len() {
                let at = (turn + round) % contenders.len();
                for job in 0..JOBS.len() {
                    let (seconds, bytes) = measure(&contenders[at], job, files, folder.path())?;
                    table.rows[at].cells[job].add(seconds, bytes);
                }
            }
        }
        tables.push(table);
    }
    let verdicts = verdicts(&tables);
    Ok(Report { scenario: "auto-da-alloc", repeats: options.repeats, machine, tables, verdicts, notes })
}

/// The word for a build whose figures mean little.
pub(super) fn unoptimised() -> Option<String> {
    cfg!(debug_assertions).then(|| "NOT AN OPTIMISED BUILD: run it with cargo run --release".to_owned())
}

/// Seconds of one job on a fresh file system, and bytes written meanwhile.
fn measure(
    contender: &Contender,
    job: usize,
    files: usize,
    folder: &std::path::Path,
) -> Result<(f64, u64), String> {
    let stand = contender.stand(folder, IMAGE_MIB)?;
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|n| (n % 251) as u8 + 1).collect();
    let names: Vec<String> = (0..files).map(|n| format!("file-{n}")).collect();
    for name in &names {
        stand.put(name, &bytes)?;
    }
    stand.sync()?;
    let before = stand.written_bytes();
    let start = Instant::now();
    for _ in 0..TIMES {
        for name in &names {
            rewrite(&stand, job, name, &bytes)?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let written = stand.written_bytes() - before;
    stand.end()?;
    Ok((seconds, written))
}

fn rewrite(stand: &Stand, job: usize, name: &str, bytes: &[u8]) -> Result<(), String> {
    match job {
        0 => stand.put(name, bytes),
        1 => {
            stand.remove(name)?;
            stand.put(name, bytes)
        }
        _ => {
            stand.put("new", bytes)?;
            stand.rename("new", name)
        }
    }
}

fn verdicts(tables: &[Table]) -> Vec<super::figures::Verdict> {
    let folio = |mode: &str| format!("folio, {mode}");
    let kernel = |mode: &str| format!("kernel, {mode}");
    let mut all = Vec::new();
    for (table, factor) in tables.iter().zip([10.0, 10.0, 1.0]) {
        for job in [JOBS[0], JOBS[2]] {
            all.extend(table.compare(job, &folio(COMMIT), &folio(CLOSE), factor));
            all.extend(table.compare(job, &folio(OFF), &folio(CLOSE), factor));
        }
        for job in JOBS {
            let pairs = [(COMMIT, KERNEL), (CLOSE, KERNEL), (OFF, OFF), (NODELALLOC, NODELALLOC)];
            all.extend(
                pairs
                    .iter()
                    .filter_map(|(ours, theirs)| table.compare(job, &folio(ours), &kernel(theirs), 1.0)),
            );
        }
    }
    all
}
