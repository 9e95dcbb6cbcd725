//! The two benchmarks of the page-cache article: whole small files, opened, read or written, and
//! closed.

use super::rounds::{Body, Implementation, Timing};
use super::targets::is_tmpfs;
use crate::outcome::{Context, Outcome};
use crate::race::{Run, scratch_in};
use crate::report::{Report, Table, Unit};
use folio::block::MemoryDevice;
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process};
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Opens the file, reads it, closes it; empties it, writes a piece, closes it.
pub(crate) const READ: &str = "article-read";
pub(crate) const WRITE: &str = "article-write";
pub(crate) const TITLE: &str = "article: 1.5 MB read in 8 KiB; 8 KiB written over an emptied file";
/// 1.5 MB in reads of 8 KiB.
const READS: usize = 192;
const PIECE: usize = 8 << 10;
/// Of the ext4 in memory.
const DEVICE_BYTES: u64 = 256 << 20;

pub(crate) const RAMFS: &str = "folio ramfs";
const EXT4: &str = "folio ext4 in memory";
pub(crate) const TMPFS: &str = "kernel tmpfs";
pub(crate) const DISK: &str = "kernel, disk";

/// Measures these jobs by one thread, on a tmpfs and on a disk, and adds their table.
pub(crate) fn measure(
    jobs: &[&str],
    least_ms: Option<u64>,
    [tmpfs, disk]: [&Path; 2],
    run: &Run<'_>,
    report: &mut Report,
) -> Outcome {
    let process = folio_target()?;
    let (tmpfs_folder, disk_folder) = (scratch_in(tmpfs)?, scratch_in(disk)?);
    let mut kernels = vec![(TMPFS, tmpfs_folder.path())];
    if is_tmpfs(disk) {
        let reason = format!("{} is a tmpfs", disk.display());
        report.skip("article-read, article-write on a disk", reason);
    } else {
        kernels.push((DISK, disk_folder.path()));
    }
    let mut table = Table::new(TITLE, Unit::Seconds, Some(TMPFS), Vec::new());
    for job in jobs {
        let is_read = *job == READ;
        let mut implementations = Vec::new();
        for (name, path) in [(RAMFS, format!("/{job}")), (EXT4, format!("/disk/{job}"))] {
            prepare(&process, &path)?;
            let process = &process;
            implementations.push(Implementation::new(name, move |_, _| {
                Ok(folio_body(process, is_read, path.clone()))
            }));
        }
        for (name, folder) in &kernels {
            let path = folder.join(job);
            std::fs::write(&path, vec![b'x'; READS * PIECE]).at(&path)?;
            let path = CString::new(path.as_os_str().as_bytes()).at(job)?;
            implementations.push(Implementation::new(name, move |_, _| {
                Ok(kernel_body(is_read, path.clone()))
            }));
        }
        let timing = Timing {
            job,
            threads: 1,
            least_ms,
        };
        table
            .rows
            .extend(timing.rows(&implementations, run, report)?);
        let rates = [TMPFS, DISK].map(|kernel| table.ratio(job, kernel, EXT4));
        if let [Some(tmpfs), Some(disk)] = rates {
            report.note(format!("{job}: Folio's ext4 in memory has {tmpfs:.2} times the rate of the kernel's tmpfs, {disk:.2} of its disk's"));
        }
    }
    table.set_ratios();
    report.tables.push(table);
    Ok(())
}

/// A ramfs as `/`, and an ext4 in memory as `/disk`.
fn folio_target() -> folio::Result<Process> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    ext4::format(device.as_ref(), &FormatOptions::default())?;
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755)?;
    kernel.mount_ext4(device, "/disk", &MountOptions::default())?;
    Ok(process)
}

fn prepare(process: &Process, path: &str) -> Outcome {
    let fd = process.open(path, OpenFlags::CREAT | OpenFlags::RDWR, 0o644)?;
    (0..READS).try_for_each(|_| whole(process.write(fd, &[b'x'; PIECE])?))?;
    Ok(process.close(fd)?)
}

fn whole(count: usize) -> Outcome {
    if count == PIECE {
        Ok(())
    } else {
        Err(format!("{count} of {PIECE} bytes").into())
    }
}

fn folio_body<'a>(process: &'a Process, is_read: bool, path: String) -> Body<'a> {
    let mut buffer = vec![b'x'; PIECE];
    let truncate = OpenFlags::WRONLY | OpenFlags::TRUNC;
    let flags = if is_read {
        OpenFlags::empty()
    } else {
        truncate
    };
    Box::new(move |count| {
        for _ in 0..count {
            let fd = process.open(&path, flags, 0)?;
            if is_read {
                (0..READS).try_for_each(|_| whole(process.read(fd, &mut buffer)?))?;
            } else {
                whole(process.write(fd, &buffer)?)?;
            }
            process.close(fd)?;
        }
        Ok(())
    })
}

fn kernel_body<'a>(is_read: bool, path: CString) -> Body<'a> {
    let mut buffer = vec![b'x'; PIECE];
    let truncate = OFlags::WRONLY | OFlags::TRUNC;
    let flags = OFlags::CLOEXEC | if is_read { OFlags::RDONLY } else { truncate };
    Box::new(move |count| {
        for _ in 0..count {
            let fd = rustix::fs::open(&path, flags, Mode::empty())?;
            if is_read {
                (0..READS).try_for_each(|_| whole(rustix::io::read(&fd, &mut buffer[..])?))?;
            } else {
                whole(rustix::io::write(&fd, &buffer)?)?;
            }
        }
        Ok(())
    })
}
