//! Calls about open files: open, read, write, seek, list, copy, sync.

use super::process::{AT_FDCWD, Fd, Process};
use super::{Borrowed, OpenFlags, Whence};
use crate::base::{Errno, Result};
use crate::vfs::{self, FallocateMode, FileExtent, FileType, Seek, SeekKind, Start};
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// One name as getdents64(2) tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirent {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub number: u64,
    /// Type, where the directory records it.
    pub file_type: Option<FileType>,
}

impl Process {
    /// open(2).
    pub fn open(&self, path: impl AsRef<Path>, flags: OpenFlags, mode: u16) -> Result<Fd> {
        self.openat(AT_FDCWD, path, flags, mode)
    }

    /// openat(2).
    pub fn openat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        flags: OpenFlags,
        mode: u16,
    ) -> Result<Fd> {
        self.with_path(path.as_ref(), |path| {
            let found = self.with_rcu_walk(dir, path, flags.last_link(), |found| {
                flags
                    .opens_existing(found.dentry.value().file_type(), path)
                    .then(|| found.to_location())
            });
            let context = self.context();
            self.install(match found {
                Some(Ok(Some(location))) => context.open_at(location, flags)?,
                Some(Err(error)) if !flags.may_create() => return Err(error),
                _ => context.open(&self.start_at(dir, path)?, path, flags, mode)?,
            })
        })
    }

    /// read(2).
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize> {
        self.read_from(fd, Start::Position, buf)
    }

    /// pread(2).
    pub fn pread(&self, fd: Fd, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_from(fd, Start::Offset(offset), buf)
    }

    #[inline]
    fn read_from(&self, fd: Fd, start: Start, buf: &mut [u8]) -> Result<usize> {
        match self.with_file(fd, |file| file.read_nowait(start, buf))? {
            Some(count) => Ok(count),
            None => self.file(fd)?.read(start, buf),
        }
    }

    /// Like pread(2) without the copy: holds the file's own bytes in memory, up to `len_bytes` of
    /// them from `offset` on; fewer at the end of the file and after 2 MiB, none at the end. The
    /// errors are those of pread(2).
    ///
    /// ```
    /// # use folio::syscall::{Credentials, OpenFlags};
    /// # let kernel = folio::Kernel::new(folio::KernelOptions::default());
    /// # let process = kernel.process(Credentials::root());
    /// # let fd = process.open("/f", OpenFlags::RDWR | OpenFlags::CREAT, 0o600)?;
    /// process.write(fd, b"many bytes")?;
    /// let borrowed = process.read_borrowed(fd, 5, 100)?;
    /// assert_eq!(borrowed.read().slices().collect::<Vec<_>>(), [b"bytes"]);
    /// # Ok::<(), folio::Error>(())
    /// ```
    pub fn read_borrowed(&self, fd: Fd, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        self.file(fd)?.borrow(offset, len_bytes)
    }

    /// write(2).
    pub fn write(&self, fd: Fd, bytes: &[u8]) -> Result<usize> {
        self.file(fd)?
            .write(self.credentials(), Start::Position, &bytes.into())
    }

    /// pwrite(2). With O_APPEND the bytes go to the end all the same, as in Linux.
    pub fn pwrite(&self, fd: Fd, bytes: &[u8], offset: u64) -> Result<usize> {
        self.file(fd)?
            .write(self.credentials(), Start::Offset(offset), &bytes.into())
    }

    /// lseek(2).
    pub fn lseek(&self, fd: Fd, offset: i64, whence: Whence) -> Result<u64> {
        let seek = match whence {
            Whence::Set => Seek::To(offset.into()),
            Whence::Current => Seek::By(offset),
            Whence::End => Seek::FromEnd(offset),
            Whence::Data => return self.file(fd)?.seek_data(SeekKind::Data, offset),
            Whence::Hole => return self.file(fd)?.seek_data(SeekKind::Hole, offset),
        };
        match self.with_file(fd, |file| file.seek_nowait(seek))? {
            Some(sought) => sought,
            None => self.file(fd)?.seek(seek),
        }
    }

    /// getdents64(2): the next entries of an open directory (`.` and `..` included), at most
    /// `count` of them; empty at the end.
    pub fn getdents(&self, fd: Fd, count: usize) -> Result<Vec<Dirent>> {
        if count == 0 {
            return Err(Errno::INVAL.into());
        }
        let mut entries = Vec::new();
        self.file(fd)?.read_directory(&mut |entry| {
            let (number, file_type) = (entry.number.0, entry.file_type);
            entries.push(Dirent {
                name: entry.name.to_vec(),
                number,
                file_type,
            });
            if entries.len() < count {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(entries)
    }

    /// ftruncate(2).
    pub fn ftruncate(&self, fd: Fd, size_bytes: u64) -> Result<()> {
        self.file(fd)?.truncate(self.credentials(), size_bytes)
    }

    /// fallocate(2).
    pub fn fallocate(
        &self,
        fd: Fd,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.file(fd)?
            .fallocate(self.credentials(), mode, offset, len_bytes)
    }

    /// The FIEMAP ioctl: the runs of the file that touch the bytes `range`. With `is_synced`
    /// (`FIEMAP_FLAG_SYNC`) what is only in memory is written first. EOPNOTSUPP where the file
    /// system has no device.
    pub fn fiemap(&self, fd: Fd, range: Range<u64>, is_synced: bool) -> Result<Vec<FileExtent>> {
        self.file(fd)?.extents(range, is_synced)
    }

    /// fsync(2). A writeback error is told once to each open file.
    pub fn fsync(&self, fd: Fd) -> Result<()> {
        self.file(fd)?.sync(false)
    }

    /// fdatasync(2).
    pub fn fdatasync(&self, fd: Fd) -> Result<()> {
        self.file(fd)?.sync(true)
    }

    /// syncfs(2).
    pub fn syncfs(&self, fd: Fd) -> Result<()> {
        self.file(fd)?.sync_file_system()
    }

    /// sendfile(2).
    pub fn sendfile(
        &self,
        out: Fd,
        input: Fd,
        offset: Option<&mut u64>,
        count: usize,
    ) -> Result<usize> {
        let (out, input) = (self.file(out)?, self.file(input)?);
        input.check_readable()?;
        out.check_writable()?;
        if input.mapping().is_err() || out.flags().contains(OpenFlags::APPEND) {
            return Err(Errno::INVAL.into());
        }
        let start = offset
            .as_deref()
            .map_or(Start::Position, |offset| Start::Offset(*offset));
        let copied = vfs::copy(
            self.credentials(),
            (&input, start),
            (&out, Start::Position),
            count,
        )?;
        if let Some(offset) = offset {
            *offset += copied as u64;
        }
        Ok(copied)
    }

    /// copy_file_range(2).
    pub fn copy_file_range(
        &self,
        input: Fd,
        input_offset: Option<&mut u64>,
        out: Fd,
        out_offset: Option<&mut u64>,
        count: usize,
    ) -> Result<usize> {
        let (input, out) = (self.file(input)?, self.file(out)?);
        let start =
            |offset: Option<&u64>| offset.map_or(Start::Position, |offset| Start::Offset(*offset));
        let from = (&*input, start(input_offset.as_deref()));
        let to = (&*out, start(out_offset.as_deref()));
        let copied = vfs::copy_range(self.credentials(), from, to, count)?;
        for offset in [input_offset, out_offset].into_iter().flatten() {
            *offset += copied as u64;
        }
        Ok(copied)
    }
}
