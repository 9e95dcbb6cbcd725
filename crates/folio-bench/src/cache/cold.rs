//! A file that is not in memory: through Folio's ext4 on a raw image, and by the host from the same
//! bytes.
//!
//! Every page of the file holds its own number, so a scan of the image finds where each page is.
//! The host reads exactly the ranges that Folio reads, in the same order.

use super::options::{Options, WorkloadSize};
use super::table::{COLD_FOLIO, COLD_HOST, Figure, Row, Table};
use super::targets::is_tmpfs;
use crate::report::{Report, with_context};
use crate::run::scratch_in;
use folio::Kernel;
use folio::block::{self, ImageFormat};
use folio::kernel::{FormatOptions, KernelOptions, format_ext4};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const JOB: &str = "cold-read";
const NAME: &str = "/disk/file";
const PAGE: usize = 4096;
const PIECE: usize = 1 << 20;
const MAGIC: [u8; 8] = *b"cold pag";
/// A round that takes longer than this is not repeated as often.
const SLOW_NS: f64 = 3e9;
const SLOW_REPEATS: u32 = 3;

/// A contiguous range of the image: offset and length in bytes.
type Run = (u64, u64);

/// Rounds of cold reads.
pub(crate) fn table(
    options: &Options,
    workload: WorkloadSize,
    disk: &Path,
    repeats: u32,
    report: &mut Report,
) -> Result<Option<Table>, String> {
    if !options.wants(JOB) {
        return Ok(None);
    }
    let bytes = workload.cold_bytes / PIECE as u64 * PIECE as u64;
    let free =
        rustix::fs::statvfs(disk).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    if is_tmpfs(disk) || free < bytes * 2 {
        let (dir, mib) = (disk.display(), bytes >> 19);
        report.skip(
            JOB,
            format!("{dir} is a tmpfs, or has less than {mib} MiB free"),
        );
        return Ok(None);
    }
    let folder = scratch_in(disk)?;
    let image = folder.path().join("image.raw");
    make(&image, bytes).map_err(with_context("making the image"))?;
    let file = File::open(&image).map_err(with_context(image.display()))?;
    let (folio, host) = rounds(&image, &file, bytes, repeats, report)?;
    if std::fs::OpenOptions::new()
        .write(true)
        .open(DROP_CACHES)
        .is_err()
    {
        report.notes.push(format!(
            "{JOB}: not root: the host forgot the image by POSIX_FADV_DONTNEED alone"
        ));
    }
    let row = Row::new(
        JOB,
        1,
        vec![Figure::new(COLD_FOLIO, folio), Figure::new(COLD_HOST, host)],
    );
    if let Some(ratio) = row.ratio(COLD_FOLIO, COLD_HOST) {
        report.notes.push(format!("{JOB}: Folio takes {ratio:.3} of the host's time; the disk may have a cache below it that this program cannot empty"));
    }
    let title = format!("cold, a file of {} MiB in reads of 1 MiB", bytes >> 20);
    Ok(Some(Table {
        title,
        base: COLD_HOST,
        rows: vec![row],
    }))
}

/// Reads the file in turn by Folio and by the host; returns the nanoseconds of each round.
fn rounds(
    image: &Path,
    file: &File,
    bytes: u64,
    repeats: u32,
    report: &mut Report,
) -> Result<(Vec<f64>, Vec<f64>), String> {
    let runs = runs(file, bytes)?;
    report.notes.push(format!(
        "{JOB}: the file has {} runs in the image",
        runs.len()
    ));
    let (mut folio, mut host) = (Vec::new(), Vec::new());
    for round in 0..repeats {
        let is_slow = folio.iter().chain(&host).any(|ns| *ns > SLOW_NS);
        if is_slow && round >= SLOW_REPEATS {
            report.notes.push(format!(
                "{JOB}: only {SLOW_REPEATS} rounds, because the disk is slow"
            ));
            break;
        }
        // In turn, as everywhere.
        if round % 2 == 0 {
            folio.push(by_folio(image, file, bytes)?);
            host.push(by_host(file, &runs)?);
        } else {
            host.push(by_host(file, &runs)?);
            folio.push(by_folio(image, file, bytes)?);
        }
    }
    Ok((folio, host))
}

/// Makes the image, with the file in it.
fn make(image: &Path, bytes: u64) -> folio::Result<()> {
    let device = block::create(image, ImageFormat::Raw, bytes + bytes / 8 + (64 << 20))?;
    format_ext4(
        device.as_ref(),
        &FormatOptions {
            block_size: Some(PAGE as u32),
            ..FormatOptions::default()
        },
    )?;
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755)?;
    kernel.mount_ext4(device, "/disk", &MountOptions::default())?;
    let fd = process.open(NAME, OpenFlags::CREAT | OpenFlags::WRONLY, 0o644)?;
    let mut piece = vec![b'x'; PIECE];
    let mut page_index = 0_u64;
    for _ in 0..bytes / PIECE as u64 {
        for page in piece.chunks_exact_mut(PAGE) {
            page[..8].copy_from_slice(&MAGIC);
            page[8..16].copy_from_slice(&page_index.to_le_bytes());
            page_index += 1;
        }
        process.write(fd, &piece)?;
    }
    process.fsync(fd)?;
    process.close(fd)?;
    kernel.unmount("/disk")
}

/// Returns the number of this page in the file, if it is one of its pages.
fn page_index(page: &[u8]) -> Option<u64> {
    let rest = page.strip_prefix(&MAGIC)?;
    rest.first_chunk().copied().map(u64::from_le_bytes)
}

/// Finds the file's pages in the image, in the file's order.
fn runs(image: &File, bytes: u64) -> Result<Vec<Run>, String> {
    let count = (bytes / PAGE as u64) as usize;
    let mut places = vec![None; count];
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let got = image
            .read_at(&mut piece, offset)
            .map_err(with_context("the image"))?;
        if got == 0 {
            break;
        }
        for (at, page) in piece[..got].chunks_exact(PAGE).enumerate() {
            let place =
                page_index(page).and_then(|index| places.get_mut(usize::try_from(index).ok()?));
            if let Some(place) = place {
                *place = Some(offset + (at * PAGE) as u64);
            }
        }
        offset += got as u64;
    }
    let mut runs: Vec<Run> = Vec::new();
    for place in places {
        let place = place.ok_or("a page of the file is not in the image")?;
        match runs.last_mut() {
            Some((start, len)) if *start + *len == place => *len += PAGE as u64,
            _ => runs.push((place, PAGE as u64)),
        }
    }
    Ok(runs)
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Makes the host forget the image.
fn forget(image: &File) -> Result<(), String> {
    rustix::fs::fsync(image).map_err(with_context("fsync"))?;
    fadvise(image, 0, None, Advice::DontNeed).map_err(with_context("fadvise"))?;
    // Only root may drop caches; other users have the advice alone, and a note says so. A test
    // leaves the machine's caches alone.
    if !cfg!(test) {
        let _ = std::fs::write(DROP_CACHES, "1");
    }
    Ok(())
}

/// Nanoseconds of a cold read through Folio: open, all reads.
fn by_folio(image: &Path, file: &File, bytes: u64) -> Result<f64, String> {
    let options = block::OpenOptions {
        read_only: true,
        ..block::OpenOptions::default()
    };
    let device = block::open(image, &options).map_err(with_context("the image"))?;
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process
        .mkdir("/disk", 0o755)
        .map_err(with_context("folio"))?;
    let mount_options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    kernel
        .mount_ext4(device, "/disk", &mount_options)
        .map_err(with_context("folio"))?;
    let mut piece = vec![0; PIECE];
    forget(file)?;
    let start = Instant::now();
    let fd = process
        .open(NAME, OpenFlags::empty(), 0)
        .map_err(with_context("open"))?;
    let mut done = 0;
    while done < bytes {
        let count = process.read(fd, &mut piece).map_err(with_context("read"))?;
        if count == 0 || page_index(&piece) != Some(done / PAGE as u64) {
            return Err(format!("Folio read something else at byte {done}"));
        }
        done += count as u64;
    }
    let took_ns = start.elapsed().as_nanos() as f64;
    process.close(fd).map_err(with_context("close"))?;
    Ok(took_ns)
}

/// Nanoseconds of a cold read of the same bytes by the host, with read-ahead.
fn by_host(image: &File, runs: &[Run]) -> Result<f64, String> {
    let mut piece = vec![0; PIECE];
    forget(image)?;
    fadvise(image, 0, None, Advice::Sequential).map_err(with_context("fadvise"))?;
    let start = Instant::now();
    for (first, len_bytes) in runs {
        let mut done = 0;
        while done < *len_bytes {
            let len = (len_bytes - done).min(PIECE as u64) as usize;
            let count = rustix::io::pread(image, &mut piece[..len], first + done)
                .map_err(with_context("pread"))?;
            if count == 0 {
                return Err("the image ends early".to_owned());
            }
            done += count as u64;
        }
    }
    let took_ns = start.elapsed().as_nanos() as f64;
    fadvise(image, 0, None, Advice::Normal).map_err(with_context("fadvise"))?;
    Ok(took_ns)
}
