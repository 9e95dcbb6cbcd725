//! Calls on open files: open, read, write, seek, list, copy, sync.

use super::process::{AT_FDCWD, Fd, Process};
use super::{Borrowed, OpenFlags, ReadAt, Whence};
use crate::base::{Errno, Result, rcu};
use crate::vfs::{
    self, CopySide, DirectoryEntry, FallocateMode, FileExtent, FileType, HeldFile, OpenFile, Seek,
    SeekKind, Start,
};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

/// One directory entry, as getdents64(2) returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirent {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub number: u64,
    /// File type, if the directory records it.
    pub file_type: Option<FileType>,
}

impl Process {
    /// Opens a file by path, relative to the working directory. `mode` is the permission bits of a
    /// file that `O_CREAT` creates, before the umask. Linux: open(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::openat`].
    pub fn open(&self, path: impl AsRef<Path>, flags: OpenFlags, mode: u16) -> Result<Fd> {
        self.openat(AT_FDCWD, path, flags, mode)
    }

    /// Opens a file by path, relative to `dir`; returns the lowest free descriptor. Linux:
    /// openat(2).
    ///
    /// # Errors
    ///
    /// EEXIST with `O_CREAT | O_EXCL`, EISDIR for a write to a directory, EINVAL for invalid flags,
    /// ELOOP with `O_NOFOLLOW`, ENXIO for devices, pipes and sockets, EMFILE without a free
    /// descriptor, EPERM for `O_NOATIME` of another owner's file, EROFS on a read-only mount,
    /// ENOSPC, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, EBADF
    /// for `dir`.
    pub fn openat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        flags: OpenFlags,
        mode: u16,
    ) -> Result<Fd> {
        self.install(self.open_relative(dir, path.as_ref(), flags, mode)?)
    }

    /// Opens a file by path, relative to `dir`, under the descriptor `fd`, whose file is closed if
    /// it is open: openat(2) and dup2(2) in one.
    ///
    /// # Errors
    ///
    /// The errors of [`Process::openat`], and EBADF for a number that no descriptor has.
    pub fn openat_as(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        flags: OpenFlags,
        mode: u16,
        fd: Fd,
    ) -> Result<()> {
        let file = self.open_relative(dir, path.as_ref(), flags, mode)?;
        self.install_at(fd, Arc::new(file))
    }

    /// Opens the file of a descriptor again, under the descriptor `new`, whose file is closed if it
    /// is open: a new open file, with a position of its own. Linux: open(2) of `/proc/self/fd/N`.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open or no descriptor has the number `new`, else those of
    /// [`Process::openat`] for the file.
    pub fn reopen_as(&self, fd: Fd, flags: OpenFlags, new: Fd) -> Result<()> {
        let location = self.file(fd)?.location().clone();
        let file = self
            .context()
            .open_at(location, flags - OpenFlags::NOFOLLOW)?;
        self.install_at(new, Arc::new(file))
    }

    fn open_relative(&self, dir: Fd, path: &Path, flags: OpenFlags, mode: u16) -> Result<OpenFile> {
        self.with_path(path, |path| {
            let found = self.with_rcu_walk(dir, path, flags.last_link(), |found| {
                flags
                    .opens_existing(found.dentry.value().file_type(), path)
                    .then(|| found.to_location())
            });
            let context = self.context();
            match found {
                Some(Ok(Some(location))) => context.open_at(location, flags),
                Some(Err(error)) if !flags.may_create() => Err(error),
                _ => context.open(&self.start_at(dir, path)?, path, flags, mode),
            }
        })
    }

    /// Returns the access mode and the flags of an open file, without those that only open(2) uses.
    /// Linux: fcntl(2) with F_GETFL.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open.
    pub fn fcntl_getfl(&self, fd: Fd) -> Result<OpenFlags> {
        Ok(self.file(fd)?.flags() - OpenFlags::OF_OPEN)
    }

    /// Sets or clears `APPEND`, `NOATIME`, `NONBLOCK` and `DIRECT` of an open file, for all its
    /// descriptors; ignores the other flags. Linux: fcntl(2) with F_SETFL.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open or is an `O_PATH` descriptor, EPERM for `NOATIME` of another
    /// owner's file, and without `APPEND` for one that can only be appended to.
    pub fn fcntl_setfl(&self, fd: Fd, flags: OpenFlags) -> Result<()> {
        self.file(fd)?.set_flags(self.credentials(), flags)
    }

    /// Reads at the file position into `buf`, and advances the position; returns the number of
    /// bytes, 0 at the end of the file. Linux: read(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for reading, EISDIR for a directory, EIO if the store fails.
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize> {
        self.read_from(fd, Start::Position, buf)
    }

    /// Reads at the byte offset `offset`; keeps the file position. Returns the number of bytes, 0
    /// at the end of the file. Linux: pread(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for reading, EISDIR for a directory, EINVAL for an offset above
    /// `i64::MAX`, EIO if the store fails.
    pub fn pread(&self, fd: Fd, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_from(fd, Start::Offset(offset), buf)
    }

    #[inline(always)]
    fn read_from(&self, fd: Fd, start: Start, buf: &mut [u8]) -> Result<usize> {
        let pin = rcu::pin();
        let file = self.open_file(fd, &pin);
        if let Some(count) = file.and_then(|file| file.read_nowait(start, buf, &pin)) {
            return Ok(count);
        }
        drop(pin);
        self.read_slowly(fd, start, buf)
    }

    /// Reads what is not in memory, or fails.
    #[cold]
    fn read_slowly(&self, fd: Fd, start: Start, buf: &mut [u8]) -> Result<usize> {
        self.file(fd)?.read(start, buf)
    }

    /// Makes many reads, each at a byte offset of its own, in order; keeps the file position. Where
    /// the bytes are in memory, each read loads those of the next one into the processor's caches.
    /// So many small reads at random offsets take less time than as many calls of
    /// [`Process::pread`], whose results they have.
    ///
    /// Sets [`ReadAt::len`] of each read made, and returns their number. It is less than that of
    /// `reads` only if a read failed after another one succeeded; a call with the rest returns the
    /// error. Linux: recvmmsg(2) does the same for sockets.
    ///
    /// # Errors
    ///
    /// The errors of [`Process::pread`], for the first read.
    ///
    /// ```
    /// # use folio::syscall::{Credentials, OpenFlags, ReadAt};
    /// # let kernel = folio::Kernel::new(folio::KernelOptions::default());
    /// # let process = kernel.process(Credentials::root());
    /// # let fd = process.open("/f", OpenFlags::RDWR | OpenFlags::CREAT, 0o600)?;
    /// process.write(fd, b"many bytes")?;
    /// let (mut first, mut second) = ([0; 4], [0; 100]);
    /// let mut reads = [ReadAt::new(0, &mut first), ReadAt::new(5, &mut second)];
    /// assert_eq!(process.pread_batch(fd, &mut reads)?, 2);
    /// assert_eq!(reads[1].len, 5, "up to the end of the file");
    /// assert_eq!((&first, &second[..5]), (b"many", &b"bytes"[..]));
    /// # Ok::<(), folio::Error>(())
    /// ```
    pub fn pread_batch(&self, fd: Fd, reads: &mut [ReadAt<'_>]) -> Result<usize> {
        if reads.is_empty() {
            self.file(fd)?.check_readable()?;
        }
        let mut done = 0;
        while done < reads.len() {
            let pin = rcu::pin();
            let file = self.open_file(fd, &pin);
            done += file.map_or(0, |file| file.read_batch_nowait(&mut reads[done..], &pin));
            drop(pin);
            let Some(read) = reads.get_mut(done) else {
                break;
            };
            // It waits, fails, or comes after as many bytes as one pin may last for.
            match self.pread(fd, read.buf, read.offset) {
                Ok(len) => read.len = len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
    }

    /// Reads like pread(2) without a copy: returns references to the cached bytes, up to
    /// `len_bytes` from byte `offset` on; fewer at the end of the file and after 2 MiB, none at the
    /// end.
    ///
    /// # Errors
    ///
    /// The errors of [`Process::pread`].
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

    /// Writes at the file position, with `O_APPEND` at the end of the file, and advances the
    /// position; returns the number of bytes written, which may be fewer after an error. Linux:
    /// write(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for writing, EFBIG beyond the largest offset, ENOSPC without space, EROFS
    /// on a read-only mount, EPERM for an immutable inode, EIO if the store fails.
    pub fn write(&self, fd: Fd, bytes: &[u8]) -> Result<usize> {
        self.file(fd)?
            .write(self.credentials(), Start::Position, &bytes.into())
    }

    /// Writes at the byte offset `offset`; keeps the file position. With `O_APPEND` writes at the
    /// end, as in Linux. Returns the number of bytes written. Linux: pwrite(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::write`], and EINVAL for an offset above `i64::MAX`.
    pub fn pwrite(&self, fd: Fd, bytes: &[u8], offset: u64) -> Result<usize> {
        self.file(fd)?
            .write(self.credentials(), Start::Offset(offset), &bytes.into())
    }

    /// Writes at the end of the file, whatever the flags; keeps the file position. Returns the
    /// number of bytes written. Linux: pwritev2(2) with `RWF_APPEND`.
    ///
    /// # Errors
    ///
    /// The errors of [`Process::write`].
    pub fn append(&self, fd: Fd, bytes: &[u8]) -> Result<usize> {
        self.file(fd)?.append(self.credentials(), &bytes.into())
    }

    /// Moves the file position; returns the new position in bytes. Linux: lseek(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EINVAL for a position below 0 or above `i64::MAX`, ENXIO if no
    /// data or hole follows.
    pub fn lseek(&self, fd: Fd, offset: i64, whence: Whence) -> Result<u64> {
        let seek = match whence {
            Whence::Set => Seek::To(offset.into()),
            Whence::Current => Seek::By(offset),
            Whence::End => Seek::FromEnd(offset),
            Whence::Data => return self.file(fd)?.seek_data(SeekKind::Data, offset),
            Whence::Hole => return self.file(fd)?.seek_data(SeekKind::Hole, offset),
        };
        let pin = rcu::pin();
        let file = self.open_file(fd, &pin);
        if let Some(sought) = file.and_then(|file| file.seek_nowait(seek)) {
            return sought;
        }
        drop(pin);
        self.file(fd)?.seek(seek)
    }

    /// Returns the next entries of an open directory, including `.` and `..`: at most `count`, none
    /// at the end. Linux: getdents64(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for reading, ENOTDIR unless a directory, EINVAL for a count of 0, ENOENT
    /// if the directory was removed.
    pub fn getdents(&self, fd: Fd, count: usize) -> Result<Vec<Dirent>> {
        if count == 0 {
            return Err(Errno::INVAL.into());
        }
        let mut entries = Vec::new();
        self.getdents_with(fd, &mut |entry| {
            if entries.len() == count {
                return ControlFlow::Break(());
            }
            let (number, file_type) = (entry.number.0, entry.file_type);
            entries.push(Dirent {
                name: entry.name.to_vec(),
                number,
                file_type,
            });
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    /// Returns the remaining entries of an open directory, in the order of the file system, without
    /// `.` and `..`. Linux: readdir(3).
    ///
    /// # Errors
    ///
    /// Those of [`Process::getdents_with`].
    pub fn readdir(&self, fd: Fd) -> Result<Vec<Dirent>> {
        let mut entries = self.getdents(fd, usize::MAX)?;
        entries.retain(|entry| !matches!(&*entry.name, b"." | b".."));
        Ok(entries)
    }

    /// Calls `sink` for the next entries of an open directory, including `.` and `..`, until it
    /// breaks: the entry at which it breaks is the first of the next call. `sink` may not use the
    /// directory. Linux: getdents64(2), `iterate_dir`.
    ///
    /// # Errors
    ///
    /// EBADF unless open for reading, ENOTDIR unless a directory, ENOENT if the directory was
    /// removed.
    pub fn getdents_with(
        &self,
        fd: Fd,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.file(fd)?.read_directory(sink)
    }

    /// Sets the size of an open file in bytes: truncates it, or extends it with a hole. Linux:
    /// ftruncate(2).
    ///
    /// # Errors
    ///
    /// EINVAL unless a regular file open for writing, or for a size above `i64::MAX`; EFBIG, EPERM
    /// for an immutable inode, EROFS on a read-only mount.
    pub fn ftruncate(&self, fd: Fd, size_bytes: u64) -> Result<()> {
        self.file(fd)?.truncate(self.credentials(), size_bytes)
    }

    /// Allocates, frees, zeroes, removes or inserts `len_bytes` bytes at `offset`. Linux:
    /// fallocate(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for writing, EINVAL for an empty or invalid range, EFBIG beyond the
    /// largest offset, ENODEV or ESPIPE unless a regular file, ENOSPC, EOPNOTSUPP if the file
    /// system lacks the mode, EROFS.
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

    /// Returns the open regular file of a descriptor, for code that changes its data in place:
    /// kernels of a device that has the pages of a gpufs.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, or is open with `O_PATH`; EISDIR, EINVAL unless a regular file.
    pub fn hold(&self, fd: Fd) -> Result<HeldFile> {
        HeldFile::new(self.file(fd)?, self.credentials().clone())
    }

    /// Returns the extents of the file that overlap the byte range `range`. With `is_synced`
    /// (`FIEMAP_FLAG_SYNC`) writes back dirty pages first. Linux: the FIEMAP ioctl.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EOPNOTSUPP if the file system has no device.
    pub fn fiemap(&self, fd: Fd, range: Range<u64>, is_synced: bool) -> Result<Vec<FileExtent>> {
        self.file(fd)?.extents(range, is_synced)
    }

    /// Discards the runs of at least `len_min` bytes that no file uses, in the bytes `range` of the
    /// device, for the file system of an open file; returns how many bytes they have. Linux: the
    /// FITRIM ioctl, fstrim(8).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EPERM without privilege, ENOTTY if the file system has no device,
    /// EOPNOTSUPP if the device cannot discard, EINVAL for a range without a block, EROFS.
    pub fn fitrim(&self, fd: Fd, range: Range<u64>, len_min: u64) -> Result<u64> {
        self.file(fd)?.trim(self.credentials(), range, len_min)
    }

    /// Makes data and attributes of the file durable. Linux: fsync(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EIO or ENOSPC if writeback failed. A writeback error is reported
    /// once to each open file.
    pub fn fsync(&self, fd: Fd) -> Result<()> {
        self.file(fd)?.sync(false)
    }

    /// Makes the data of the file durable, and the attributes needed to read it. Linux:
    /// fdatasync(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::fsync`].
    pub fn fdatasync(&self, fd: Fd) -> Result<()> {
        self.file(fd)?.sync(true)
    }

    /// Makes the whole file system of the file durable. Linux: syncfs(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EIO or ENOSPC if writeback failed.
    pub fn syncfs(&self, fd: Fd) -> Result<()> {
        self.file(fd)?.sync_file_system()
    }

    /// Copies up to `count` bytes from `input` to the position of `out`. With `offset`, reads there
    /// and advances it; otherwise reads at the file position. Returns the number of bytes copied.
    /// Linux: sendfile(2).
    ///
    /// # Errors
    ///
    /// EBADF unless `input` is open for reading and `out` for writing, EINVAL for types without
    /// data and with `O_APPEND`, and those of read and write.
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
        if input.file_operations().is_err() || out.flags().contains(OpenFlags::APPEND) {
            return Err(Errno::INVAL.into());
        }
        let start = offset
            .as_deref()
            .map_or(Start::Position, |offset| Start::Offset(*offset));
        let copied = vfs::copy(
            self.credentials(),
            CopySide {
                file: &input,
                start,
            },
            CopySide {
                file: &out,
                start: Start::Position,
            },
            count,
        )?;
        if let Some(offset) = offset {
            *offset += copied as u64;
        }
        Ok(copied)
    }

    /// Copies up to `count` bytes between files of one mount; returns the number of bytes copied.
    /// With an offset, uses and advances it; otherwise uses the file position. Linux:
    /// copy_file_range(2).
    ///
    /// # Errors
    ///
    /// EBADF unless `input` is open for reading and `out` for writing without `O_APPEND`, EXDEV
    /// across mounts, EINVAL for overlapping ranges of one file, EISDIR for a directory, and those
    /// of read and write.
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
        let from = CopySide {
            file: &input,
            start: start(input_offset.as_deref()),
        };
        let to = CopySide {
            file: &out,
            start: start(out_offset.as_deref()),
        };
        let copied = vfs::copy_range(self.credentials(), from, to, count)?;
        for offset in [input_offset, out_offset].into_iter().flatten() {
            *offset += copied as u64;
        }
        Ok(copied)
    }
}
