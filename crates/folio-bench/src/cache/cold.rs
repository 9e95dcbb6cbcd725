//! A file that is not in memory: through Folio's ext4 on a raw image, and by the host from the same
//! bytes.
//!
//! Every page of the file holds its own number, so a scan of the image finds where each page is.
//! The host reads exactly the ranges that Folio reads, in the same order.

use super::targets::is_tmpfs;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::report::{Place, Report, Sample, Unit};
use folio::block::{self, ImageFormat};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

pub(super) const JOB: &str = "cold-read";
pub(super) const FOLIO: &str = "folio ext4, raw image";
pub(super) const HOST: &str = "host, same bytes";
const NAME: &str = "/disk/file";
const PAGE: usize = 4096;
const PIECE: usize = 1 << 20;
const MAGIC: [u8; 8] = *b"cold pag";

/// A contiguous range of the image, in bytes.
struct Extent {
    offset: u64,
    len_bytes: u64,
}

/// Measures cold reads of a file of `bytes`.
pub(super) fn measure(bytes: u64, disk: &Path, run: &Run<'_>, report: &mut Report) -> Outcome {
    let bytes = bytes / PIECE as u64 * PIECE as u64;
    if is_tmpfs(disk) || Place::of(disk).free_mib < bytes >> 19 {
        let (dir, mib) = (disk.display(), bytes >> 19);
        report.skip(
            JOB,
            format!("{dir} is a tmpfs, or has less than {mib} MiB free"),
        );
        return Ok(());
    }
    let folder = scratch_in(disk)?;
    let image = folder.path().join("image.raw");
    make(&image, bytes).at("making the image")?;
    let file = File::open(&image).at(&image)?;
    let extents = extents(&file, bytes)?;
    report.note(format!(
        "{JOB}: the file has {} runs in the image",
        extents.len()
    ));
    let title = format!("cold, a file of {} MiB in reads of 1 MiB", bytes >> 20);
    let mut race = Race::new(&title, Unit::Seconds, Some(HOST));
    race.case(JOB, FOLIO, || {
        by_folio(&image, &file, bytes).map(Sample::of)
    });
    race.case(JOB, HOST, || by_host(&file, &extents).map(Sample::of));
    race.run(run, report)?;
    if File::options().write(true).open(DROP_CACHES).is_err() {
        report.note(format!(
            "{JOB}: not root: the host forgot the image by POSIX_FADV_DONTNEED alone"
        ));
    }
    if let Some(ratio) = report
        .table(&title)
        .and_then(|table| table.ratio(JOB, FOLIO, HOST))
    {
        report.note(format!("{JOB}: Folio takes {ratio:.3} of the host's time; the disk may have a cache below it that this program cannot empty"));
    }
    Ok(())
}

/// Makes the image, with the file in it.
fn make(image: &Path, bytes: u64) -> folio::Result<()> {
    let device = block::create(image, ImageFormat::Raw, bytes + bytes / 8 + (64 << 20))?;
    let options = FormatOptions {
        block_size: Some(PAGE as u32),
        ..FormatOptions::default()
    };
    ext4::format(device.as_ref(), &options)?;
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
fn extents(image: &File, bytes: u64) -> Outcome<Vec<Extent>> {
    let mut places = vec![None; (bytes / PAGE as u64) as usize];
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let len = image.read_at(&mut piece, offset).at("the image")?;
        if len == 0 {
            break;
        }
        for (at, page) in (offset..)
            .step_by(PAGE)
            .zip(piece[..len].chunks_exact(PAGE))
        {
            let index = page_index(page).and_then(|index| usize::try_from(index).ok());
            if let Some(place) = index.and_then(|index| places.get_mut(index)) {
                *place = Some(at);
            }
        }
        offset += len as u64;
    }
    let mut extents: Vec<Extent> = Vec::new();
    for place in places {
        let offset = place.ok_or("a page of the file is not in the image")?;
        match extents.last_mut() {
            Some(last) if last.offset + last.len_bytes == offset => last.len_bytes += PAGE as u64,
            _ => extents.push(Extent {
                offset,
                len_bytes: PAGE as u64,
            }),
        }
    }
    Ok(extents)
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Makes the host forget the image.
fn forget(image: &File) -> Outcome {
    crate::evidence::forget(&[image])?;
    // Only root may drop caches; other users have the advice alone, and a note says so. A test
    // leaves the machine's caches alone.
    if !cfg!(test) {
        let _ = std::fs::write(DROP_CACHES, "1");
    }
    Ok(())
}

/// Seconds of a cold read through Folio: open, all reads.
fn by_folio(image: &Path, file: &File, bytes: u64) -> Outcome<f64> {
    let options = block::OpenOptions {
        read_only: true,
        ..block::OpenOptions::default()
    };
    let device = block::open(image, &options).at("the image")?;
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755)?;
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    kernel.mount_ext4(device, "/disk", &options)?;
    let mut piece = vec![0; PIECE];
    forget(file)?;
    let start = Instant::now();
    let fd = process.open(NAME, OpenFlags::empty(), 0)?;
    let mut done = 0;
    while done < bytes {
        let count = process.read(fd, &mut piece)?;
        if count == 0 || page_index(&piece) != Some(done / PAGE as u64) {
            return Err(format!("Folio read something else at byte {done}").into());
        }
        done += count as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    process.close(fd)?;
    Ok(seconds)
}

/// Seconds of a cold read of the same bytes by the host, with read-ahead.
fn by_host(image: &File, extents: &[Extent]) -> Outcome<f64> {
    let mut piece = vec![0; PIECE];
    forget(image)?;
    fadvise(image, 0, None, Advice::Sequential).at("fadvise")?;
    let start = Instant::now();
    for extent in extents {
        let mut done = 0;
        while done < extent.len_bytes {
            let len = (extent.len_bytes - done).min(PIECE as u64) as usize;
            match image
                .read_at(&mut piece[..len], extent.offset + done)
                .at("pread")?
            {
                0 => return Err("the image ends early".into()),
                count => done += count as u64,
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    fadvise(image, 0, None, Advice::Normal).at("fadvise")?;
    Ok(seconds)
}
