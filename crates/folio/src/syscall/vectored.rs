//! Reads and writes of several buffers in one call.

use super::process::{Fd, Process};
use crate::base::Result;
use crate::vfs::Start;
use std::io::{IoSlice, IoSliceMut};

impl Process {
    /// Reads at the file position into `bufs`, one after the other, and advances the position;
    /// returns the number of bytes. Linux: readv(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::read`], and EINVAL for more than 1024 buffers, or for buffers of
    /// more than `isize::MAX` bytes together.
    pub fn readv(&self, fd: Fd, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.file(fd)?.read_vectored(Start::Position, bufs)
    }

    /// Reads at the byte offset `offset` into `bufs`, one after the other; keeps the file position.
    /// Returns the number of bytes. Linux: preadv(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::readv`], and EINVAL for an offset above `i64::MAX`.
    pub fn preadv(&self, fd: Fd, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.file(fd)?.read_vectored(Start::Offset(offset), bufs)
    }

    /// Writes `bufs`, one after the other, at the file position, with `O_APPEND` at the end of the
    /// file, and advances the position; returns the number of bytes written. Linux: writev(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::write`], and EINVAL for more than 1024 buffers, or for buffers of
    /// more than `isize::MAX` bytes together.
    pub fn writev(&self, fd: Fd, bufs: &[IoSlice<'_>]) -> Result<usize> {
        self.file(fd)?
            .write_vectored(self.credentials(), Start::Position, bufs)
    }

    /// Writes `bufs`, one after the other, at the byte offset `offset`; keeps the file position.
    /// With `O_APPEND` writes at the end, as in Linux. Returns the number of bytes written. Linux:
    /// pwritev(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::writev`], and EINVAL for an offset above `i64::MAX`.
    pub fn pwritev(&self, fd: Fd, bufs: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.file(fd)?
            .write_vectored(self.credentials(), Start::Offset(offset), bufs)
    }
}
