//! The two benchmarks of the page-cache article: whole small files, opened, read or written, and
//! closed.

use super::options::Options;
use super::rounds::{Body, Contender, Effort, measure};
use super::table::{Figure, Row, Table};
use super::targets::is_tmpfs;
use crate::report::{Report, with_context};
use crate::run::scratch_in;
use folio::block::MemoryDevice;
use folio::kernel::{FormatOptions, KernelOptions, format_ext4};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, Process};
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

/// Both benchmarks, one thread.
pub(crate) fn table(
    options: &Options,
    effort: Effort,
    tmpfs: &Path,
    disk: &Path,
    report: &mut Report,
) -> Result<Option<Table>, String> {
    let wanted: Vec<_> = [READ, WRITE]
        .into_iter()
        .filter(|job| options.wants(job))
        .collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let process = folio_target()?;
    let (tmpfs_folder, disk_folder) = (scratch_in(tmpfs)?, scratch_in(disk)?);
    let mut kernels = vec![(TMPFS, tmpfs_folder.path())];
    if is_tmpfs(disk) {
        report.skip(
            "article-read, article-write on a disk",
            format!("{} is a tmpfs", disk.display()),
        );
    } else {
        kernels.push((DISK, disk_folder.path()));
    }
    let mut rows = Vec::new();
    for job in wanted {
        let mut contenders = Vec::new();
        for (name, path) in [(RAMFS, format!("/{job}")), (EXT4, format!("/disk/{job}"))] {
            prepare(&process, &path)?;
            let process = &process;
            contenders.push(Contender::new(name, move |_, _| {
                Ok(folio_body(process, job, path.clone()))
            }));
        }
        for (name, folder) in &kernels {
            let path = folder.join(job);
            std::fs::write(&path, vec![b'x'; READS * PIECE])
                .map_err(with_context(path.display()))?;
            let path = CString::new(path.as_os_str().as_bytes()).map_err(with_context(job))?;
            contenders.push(Contender::new(name, move |_, _| {
                Ok(kernel_body(job, path.clone()))
            }));
        }
        let rounds = measure(&contenders, 1, effort).map_err(with_context(job))?;
        let names = contenders.iter().map(|contender| contender.name);
        let figures = names
            .zip(rounds)
            .map(|(name, rounds)| Figure::new(name, rounds))
            .collect();
        let mut row = Row::new(job, 1, figures);
        row.times_kernel = row.ratio(TMPFS, RAMFS);
        if let (Some(ext4), Some(disk)) = (row.ratio(TMPFS, EXT4), row.ratio(DISK, EXT4)) {
            report.notes.push(format!("{job}: Folio's ext4 in memory has {ext4:.2} times the rate of the kernel's tmpfs, {disk:.2} of its disk's"));
        }
        rows.push(row);
    }
    Ok(Some(Table {
        title: TITLE.to_owned(),
        base: TMPFS,
        rows,
    }))
}

/// A ramfs as `/`, and an ext4 in memory as `/disk`.
fn folio_target() -> Result<Process, String> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    format_ext4(device.as_ref(), &FormatOptions::default()).map_err(with_context("folio"))?;
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process
        .mkdir("/disk", 0o755)
        .map_err(with_context("folio"))?;
    kernel
        .mount_ext4(device, "/disk", &MountOptions::default())
        .map_err(with_context("folio"))?;
    Ok(process)
}

fn prepare(process: &Process, path: &str) -> Result<(), String> {
    let fd = process
        .open(path, OpenFlags::CREAT | OpenFlags::RDWR, 0o644)
        .map_err(with_context("folio"))?;
    for _ in 0..READS {
        let count = process
            .write(fd, &[b'x'; PIECE])
            .map_err(with_context("folio"))?;
        whole(count)?;
    }
    process.close(fd).map_err(with_context("folio"))
}

fn whole(count: usize) -> Result<(), String> {
    if count == PIECE {
        Ok(())
    } else {
        Err(format!("{count} of {PIECE} bytes"))
    }
}

fn folio_body<'a>(process: &'a Process, job: &str, path: String) -> Body<'a> {
    let mut buffer = vec![b'x'; PIECE];
    let is_read = job == READ;
    Box::new(move |count| {
        for _ in 0..count {
            let flags = if is_read {
                OpenFlags::empty()
            } else {
                OpenFlags::WRONLY | OpenFlags::TRUNC
            };
            let fd = process
                .open(&path, flags, 0)
                .map_err(with_context("open"))?;
            if is_read {
                for _ in 0..READS {
                    whole(
                        process
                            .read(fd, &mut buffer)
                            .map_err(with_context("read"))?,
                    )?;
                }
            } else {
                whole(process.write(fd, &buffer).map_err(with_context("write"))?)?;
            }
            process.close(fd).map_err(with_context("close"))?;
        }
        Ok(())
    })
}

fn kernel_body<'a>(job: &str, path: CString) -> Body<'a> {
    let mut buffer = vec![b'x'; PIECE];
    let is_read = job == READ;
    Box::new(move |count| {
        for _ in 0..count {
            let flags = if is_read {
                OFlags::RDONLY
            } else {
                OFlags::WRONLY | OFlags::TRUNC
            };
            let fd = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(with_context("open"))?;
            if is_read {
                for _ in 0..READS {
                    whole(rustix::io::read(&fd, &mut buffer[..]).map_err(with_context("read"))?)?;
                }
            } else {
                whole(rustix::io::write(&fd, &buffer).map_err(with_context("write"))?)?;
            }
        }
        Ok(())
    })
}
