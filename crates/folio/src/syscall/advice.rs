//! Calls about the cached data of open files: advice, writing it, looking at it.

use super::process::{Fd, Process};
use crate::base::Result;
use crate::vfs::{Advice, Counters, SyncFileRange};

impl Process {
    /// posix_fadvise(2). Length 0 is to the end of the file. As in Linux, `DontNeed` keeps pages
    /// that the range covers in part. Otherwise than in Linux, advice on how a file is read holds
    /// for all who have it open, and `WillNeed` brings in as much as the cache has room for, not
    /// only the start of a long range.
    pub fn posix_fadvise(&self, fd: Fd, offset: u64, len_bytes: u64, advice: Advice) -> Result<()> {
        self.file(fd)?.advise(offset, len_bytes, advice)
    }

    /// sync_file_range(2): writes pages of the file to its device, without attributes, without the
    /// blocks that lead to them, and without a flush of the device: after a power cut the data may
    /// be gone. Length 0 is to the end of the file. Waiting is for all writeback of the file; a
    /// failed write is told as by fsync(2).
    pub fn sync_file_range(
        &self,
        fd: Fd,
        offset: u64,
        len_bytes: u64,
        flags: SyncFileRange,
    ) -> Result<()> {
        self.file(fd)?.sync_range(offset, len_bytes, flags)
    }

    /// What happened to one file's pages since it came into memory; [`crate::Kernel::counters`]
    /// tells it of all. Linux: cachestat(2) tells some of it.
    pub fn file_counters(&self, fd: Fd) -> Result<Counters> {
        self.file(fd)?.counters()
    }
}
