//! Calls on the cached data of open files: advice, writeback of a range, counters.

use super::process::{Fd, Process};
use crate::base::Result;
use crate::vfs::{Advice, Counters, SyncFileRange};

impl Process {
    /// Gives advice on the use of `len_bytes` bytes at `offset`; length 0 extends to the end of the
    /// file. As in Linux, `DontNeed` keeps partially covered pages. Unlike in Linux, advice on the
    /// read pattern applies to all open files of the inode, and `WillNeed` reads as much as fits
    /// into the cache, not only the start of a long range. Linux: posix_fadvise(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, ESPIPE for a pipe, EINVAL for a range above `i64::MAX`.
    pub fn posix_fadvise(&self, fd: Fd, offset: u64, len_bytes: u64, advice: Advice) -> Result<()> {
        self.file(fd)?.advise(offset, len_bytes, advice)
    }

    /// Writes back the dirty pages of a byte range, without attributes, without the blocks that map
    /// them, and without a flush of the device: the data may be lost in a power cut. Length 0
    /// extends to the end of the file. Waiting is for all writeback of the file. Linux:
    /// sync_file_range(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, ESPIPE for types without data, EINVAL for an invalid range or
    /// flags; EIO or ENOSPC as fsync(2) reports a failed write.
    pub fn sync_file_range(
        &self,
        fd: Fd,
        offset: u64,
        len_bytes: u64,
        flags: SyncFileRange,
    ) -> Result<()> {
        self.file(fd)?.sync_range(offset, len_bytes, flags)
    }

    /// Returns the cache counters of one file since its inode was loaded;
    /// [`crate::Kernel::counters`] returns those of all files. Linux: cachestat(2), in part.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open.
    pub fn file_counters(&self, fd: Fd) -> Result<Counters> {
        self.file(fd)?.counters()
    }
}
