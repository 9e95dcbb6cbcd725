//! The file seam: the file that an image format reads and writes, on the host or on a device.

use crate::base::{Errno, Error, Result};
use crate::block::iov::{self, ZEROS};
use crate::block::{Allocation, Device};
use std::io::{IoSlice, IoSliceMut};
#[cfg(feature = "qcow2")]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A file that stores an image. Unlike a [`crate::block::Device`] it grows when written: the bytes
/// between the old end and a write beyond it read as zeros. Offsets and lengths are in bytes.
pub(crate) trait ImageFile: Send + Sync {
    /// Returns its name in messages.
    fn name(&self) -> &str;

    /// Whether it was opened read-only.
    fn is_read_only(&self) -> bool;

    /// Whether its bytes are a disk, whatever format they look like.
    fn is_disk(&self) -> bool {
        false
    }

    /// Returns the present end of the file.
    fn len_bytes(&self) -> Result<u64>;

    /// Truncates or extends the file; the new part is a hole.
    fn set_len(&self, len_bytes: u64) -> Result<()>;

    /// Fills `bufs` from `offset` on, up to the end of the file; returns the number of bytes.
    fn read_some(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64>;

    /// Like [`ImageFile::read_some`], for a caller that caches the bytes itself.
    fn read_some_uncached(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64> {
        self.read_some(bufs, offset)
    }

    /// Writes all of `bufs` at `offset`; extends the file if needed.
    fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// Makes all writes so far survive a power cut. Linux: fdatasync(2).
    fn sync_data(&self) -> Result<()>;

    /// Releases the space of a range, which then reads as zeros; returns false where that is not
    /// possible. Linux: `FALLOC_FL_PUNCH_HOLE`.
    fn punch_hole(&self, offset: u64, len_bytes: u64) -> Result<bool>;

    /// Reserves space for a range inside or beyond the end. Content and length do not change.
    /// Returns false where that is not possible. Linux: `FALLOC_FL_KEEP_SIZE`.
    fn reserve(&self, offset: u64, len_bytes: u64) -> Result<bool>;

    /// Whether later writes gain from a reservation: extents are longer, and writes are faster.
    #[cfg(feature = "qcow2")]
    fn gains_from_reserve(&self) -> bool {
        true
    }

    /// Makes a range inside the file read as zeros: as a hole if possible, else as reserved space,
    /// else written.
    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()>;

    /// Makes a range read as zeros, with space for them; extends the file if needed. Linux:
    /// `FALLOC_FL_ZERO_RANGE`.
    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()>;

    /// Returns the allocation at `offset`, and the number of bytes, at most `len_bytes`, that it
    /// holds for.
    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)>;

    /// Returns the size of the file's space on the host's disk in bytes, if known. Linux:
    /// `st_blocks`.
    #[cfg(feature = "qcow2")]
    fn allocated_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the host's file; none for a file on a device.
    #[cfg(feature = "qcow2")]
    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the device that stores the file; none for a file of the host.
    fn device(&self) -> Option<Arc<dyn Device>> {
        None
    }

    /// Fills all of `bufs`; bytes beyond the end of the file read as zeros.
    #[cfg(feature = "qcow2")]
    fn read_or_zeros(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let done = self.read_some(bufs, offset)?;
        iov::fill_zeros_from(bufs, done);
        Ok(())
    }

    /// Fills all of `bufs`.
    ///
    /// # Errors
    ///
    /// EIO if the file ends before.
    fn read(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let done = self.read_some(bufs, offset)?;
        self.check_read(offset, done, iov::len_mut(bufs))
    }

    /// Checks that a read of `want` bytes at `offset` was not cut off after `done` bytes.
    ///
    /// # Errors
    ///
    /// EIO if it was.
    fn check_read(&self, offset: u64, done: u64, want: u64) -> Result<()> {
        if done == want {
            return Ok(());
        }
        let (end, wanted) = (offset + done, offset + want);
        Err(Error::new(
            Errno::IO,
            format!("read: the file ends at {end}, before {wanted}"),
        )
        .at(self.name().to_owned()))
    }

    /// Takes the host's space for a range that reads as zeros: reserved if possible, else written.
    /// Linux: posix_fallocate(3).
    fn preallocate(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.reserve(offset, len_bytes)? {
            return Ok(());
        }
        self.fill_with_zeros(offset, len_bytes)
    }

    /// Writes zeros to a range.
    fn fill_with_zeros(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let mut done = 0;
        while done < len_bytes {
            let count = (len_bytes - done).min(ZEROS.len() as u64);
            self.write(&[IoSlice::new(&ZEROS[..count as usize])], offset + done)?;
            done += count;
        }
        Ok(())
    }
}
