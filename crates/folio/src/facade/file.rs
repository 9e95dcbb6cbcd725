//! An open file that closes itself, with the traits of [`std::fs::File`].

use super::metadata::{Metadata, mode, timespec};
use crate::base::Result;
use crate::syscall::{Borrowed, Fd, OpenFlags, Process, Whence};
use crate::vfs::SetTime;
use std::fmt;
use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Buffers that one readv(2) or writev(2) takes (`IOV_MAX`).
const BUFFERS_MAX: usize = 1024;

/// An open file. Closes when dropped. Linux: an open file description with one descriptor.
///
/// `&File` reads, writes and seeks too, from any thread; the threads share one position. Reads and
/// writes at an offset ([`FileExt`]) do not touch the position.
///
/// Written bytes are in the page cache when a call returns, and durable after
/// [`sync_all`](Self::sync_all).
pub struct File {
    process: Arc<Process>,
    fd: Fd,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl File {
    pub(super) fn open(
        process: &Arc<Process>,
        path: &Path,
        flags: OpenFlags,
        mode: u16,
    ) -> io::Result<Self> {
        let fd = process.open(path, flags, mode)?;
        let process = process.clone();
        Ok(Self { process, fd })
    }

    /// Adds the path of this file to an error.
    fn named<T>(&self, result: Result<T>) -> io::Result<T> {
        Ok(result.map_err(|error| {
            let path = self.process.path_of(self.fd).unwrap_or_default();
            if path.is_empty() {
                // Its last name has been removed.
                error
            } else {
                error.at(String::from_utf8_lossy(&path).into_owned())
            }
        })?)
    }

    /// Opens `name` in this directory.
    pub(super) fn open_below(&self, name: impl AsRef<Path>, flags: OpenFlags) -> io::Result<Self> {
        let fd = self.process.openat(self.fd, name, flags, 0)?;
        let process = self.process.clone();
        Ok(Self { process, fd })
    }

    /// Makes content and attributes durable. Linux: fsync(2).
    ///
    /// # Errors
    ///
    /// The error of an earlier writeback of this file, once for each open file (often EIO or
    /// ENOSPC); else the device's.
    pub fn sync_all(&self) -> io::Result<()> {
        self.named(self.process.fsync(self.fd))
    }

    /// Makes the content durable, and attributes only as far as reading needs them. Linux:
    /// fdatasync(2).
    ///
    /// # Errors
    ///
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> io::Result<()> {
        self.named(self.process.fdatasync(self.fd))
    }

    /// Sets the size: truncates, or grows by a hole. Linux: ftruncate(2).
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a file not open for writing, EFBIG beyond the file system's limit.
    pub fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        self.named(self.process.ftruncate(self.fd, size_bytes))
    }

    /// Returns the attributes. Linux: fstat(2).
    ///
    /// # Errors
    ///
    /// Those of a host directory that cannot be asked; never for an image or memory.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.named(self.process.fstat(self.fd)).map(Metadata::new)
    }

    /// Sets the permission bits (12 bits). Linux: fchmod(2).
    ///
    /// # Errors
    ///
    /// `PermissionDenied` for a caller that is not the owner, EROFS on a read-only mount.
    pub fn set_mode(&self, mode: u16) -> io::Result<()> {
        self.named(self.process.fchmod(self.fd, mode))
    }

    /// Sets the permission bits. Linux: fchmod(2).
    ///
    /// # Errors
    ///
    /// As [`set_mode`](Self::set_mode).
    pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.set_mode(mode(&permissions))
    }

    /// Sets the times of the last access and of the last change of the content; `None` leaves one
    /// as it is. Linux: futimens(3).
    ///
    /// # Errors
    ///
    /// `PermissionDenied` for a caller that is not the owner, EROFS on a read-only mount.
    pub fn set_times(
        &self,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> io::Result<()> {
        let set = |time| SetTime::To(timespec(time));
        let (accessed, modified) = (accessed.map(set), modified.map(set));
        self.named(self.process.futimens(self.fd, accessed, modified))
    }

    /// Returns the file's own bytes in the page cache instead of a copy: those of `range` that are
    /// before the end of the file, at most 2 MiB. The result may go to another thread.
    ///
    /// # Errors
    ///
    /// Those of pread(2).
    pub fn borrow(&self, range: Range<u64>) -> io::Result<Borrowed> {
        let len_bytes = range.end.saturating_sub(range.start);
        let len_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.named(self.process.read_borrowed(self.fd, range.start, len_bytes))
    }

    /// Returns another handle of the same open file; the two share one position. Linux: dup(2).
    ///
    /// # Errors
    ///
    /// EMFILE with too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let fd = self.named(self.process.dup(self.fd))?;
        let process = self.process.clone();
        Ok(Self { process, fd })
    }

    /// Returns the descriptor, for calls of [`Fs::process`](super::Fs::process) that have no
    /// counterpart here. It is valid as long as this file lives.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Writeback errors are reported by sync_all; close(2) has nothing else to report.
        let _: Result<()> = self.process.close(self.fd);
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.named(self.process.read(self.fd, buf))
    }

    /// Linux: readv(2).
    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = bufs.len().min(BUFFERS_MAX);
        self.named(self.process.readv(self.fd, &mut bufs[..count]))
    }
}

impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.named(self.process.write(self.fd, bytes))
    }

    /// Linux: writev(2).
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = bufs.len().min(BUFFERS_MAX);
        self.named(self.process.writev(self.fd, &bufs[..count]))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (offset, whence) = match to {
            SeekFrom::Start(offset) => (i64::try_from(offset), Whence::Set),
            SeekFrom::Current(offset) => (Ok(offset), Whence::Current),
            SeekFrom::End(offset) => (Ok(offset), Whence::End),
        };
        let offset = offset.map_err(|_| io::ErrorKind::InvalidInput)?;
        self.named(self.process.lseek(self.fd, offset, whence))
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl FileExt for File {
    /// Reads at `offset`, without touching the position. Linux: pread(2).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.named(self.process.pread(self.fd, buf, offset))
    }

    /// Writes at `offset`, without touching the position; at the end for a file opened for
    /// appending. Linux: pwrite(2).
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.named(self.process.pwrite(self.fd, bytes, offset))
    }
}
