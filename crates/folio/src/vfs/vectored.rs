//! Reads and writes of several buffers in one call: readv(2), preadv(2), writev(2), pwritev(2).

use super::credentials::Credentials;
use super::file::{OFFSET_MAX, OpenFile, Start, TRANSFER_MAX};
use crate::base::{Errno, Result};
use crate::cache::WriteSource;
use std::io::{IoSlice, IoSliceMut};

/// Maximum number of buffers. Linux: `UIO_MAXIOV`.
const BUFFERS_MAX: usize = 1024;

impl OpenFile {
    /// Fills the buffers one after the other: readv(2), preadv(2).
    pub(crate) fn read_vectored(&self, start: Start, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        check_lengths(bufs.iter().map(|buf| buf.len()))?;
        self.check_readable()?;
        match start {
            Start::Position => {
                let mut position = self.position.lock();
                let count = self.read_buffers(*position, bufs)?;
                *position += count as u64;
                Ok(count)
            }
            Start::Offset(offset) if offset > OFFSET_MAX => Err(Errno::INVAL.into()),
            Start::Offset(offset) => self.read_buffers(offset, bufs),
        }
    }

    /// Reads up to the first buffer that cannot be filled.
    fn read_buffers(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let file = self.file_operations()?;
        let mut count = 0;
        for buf in bufs {
            let len = buf.len().min(TRANSFER_MAX - count);
            match file.read(offset + count as u64, &mut buf[..len]) {
                Ok(some) => {
                    count += some;
                    if some < buf.len() {
                        break;
                    }
                }
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if count > 0 {
            self.touch_accessed();
        }
        Ok(count)
    }

    /// Writes the buffers one after the other as `caller`: writev(2), pwritev(2).
    pub(crate) fn write_vectored(
        &self,
        caller: &Credentials,
        start: Start,
        bufs: &[IoSlice<'_>],
    ) -> Result<usize> {
        check_lengths(bufs.iter().map(|buf| buf.len()))?;
        self.write(caller, start, &WriteSource::from(bufs))
    }
}

/// Fails with EINVAL for too many buffers, and for a sum of lengths above `isize::MAX`.
fn check_lengths(mut lens: impl ExactSizeIterator<Item = usize>) -> Result<()> {
    let is_many = lens.len() > BUFFERS_MAX;
    let sum = lens.try_fold(0, usize::checked_add);
    if is_many || sum.is_none_or(|sum| sum > isize::MAX as usize) {
        return Err(Errno::INVAL.into());
    }
    Ok(())
}
