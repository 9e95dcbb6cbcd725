//! The data of regular files: pages read from the host, and writes to the host.

use super::host_calls::{self, retry};
use super::inode::HostInode;
use super::options::CacheMode;
use crate::base::{Errno, Result};
use crate::cache::{Borrowed, Store, WriteSource};
use crate::vfs::{FallocateMode, FileType, SeekKind, WriteAt};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::ReadWriteFlags;
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Maximum number of buffers in one host call (limits.h, IOV_MAX).
const SLICES_MAX: usize = 1024;
/// For pwritev2(2): use the descriptor's own offset, which `RWF_APPEND` then moves to the end of
/// the written bytes.
const OWN_OFFSET: u64 = u64::MAX;

impl Store for HostInode {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        // The ticket before the read: a later answer is newer than the end found here (H4).
        let question = self.ask();
        let fd = self.readable()?;
        let mut rest = bufs;
        let mut at = offset;
        while !rest.is_empty() {
            match retry(|| rustix::io::preadv(&*fd, rest, at))? {
                0 => break,
                count => {
                    at += count as u64;
                    IoSliceMut::advance_slices(&mut rest, count);
                }
            }
        }
        if !rest.is_empty() {
            rest.iter_mut().for_each(|buf| buf.fill(0));
            self.note_end(question, at);
        }
        Ok(())
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let mapping = self.mapping()?;
        let fd = self.writable()?;
        let own = self.begin_own()?;
        // Nothing is written past the end of the file.
        let mut room =
            usize::try_from(mapping.size_bytes().saturating_sub(offset)).unwrap_or(usize::MAX);
        let clipped = bufs.iter().map(|buf| {
            let len = buf.len().min(room);
            room -= len;
            IoSlice::new(&buf[..len])
        });
        let mut slices: SmallVec<[IoSlice<'_>; 8]> =
            clipped.filter(|slice| !slice.is_empty()).collect();
        let (mut rest, mut at) = (&mut slices[..], offset);
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(SLICES_MAX)];
            let count = retry(|| rustix::io::pwritev(&*fd, some, at))?;
            if count == 0 {
                return Err(Errno::IO.into());
            }
            at += count as u64;
            IoSlice::advance_slices(&mut rest, count);
        }
        own.end()?;
        Ok(())
    }
}

impl HostInode {
    /// Reads from the host, bypassing the cache. Without `may_wait`: EAGAIN if the host would wait
    /// for a device, EOPNOTSUPP if its file system does not support this.
    pub(super) fn read_host(&self, offset: u64, buf: &mut [u8], may_wait: bool) -> Result<usize> {
        let fd = if may_wait {
            self.readable()?
        } else {
            self.descriptors.lock().readable().ok_or(Errno::AGAIN)?
        };
        let read = |rest: &mut [u8], at| {
            if may_wait {
                rustix::io::pread(&*fd, rest, at)
            } else {
                let bufs = &mut [IoSliceMut::new(rest)];
                rustix::io::preadv2(&*fd, bufs, at, ReadWriteFlags::NOWAIT)
            }
        };
        let mut done = 0;
        while done < buf.len() {
            match retry(|| read(&mut buf[done..], offset + done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                // A caller that does not wait repeats the whole read.
                Err(_) if may_wait && done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes to the host, then to cached pages. Returns the end offset of the write, and the
    /// number of bytes.
    pub(super) fn write_host(&self, at: WriteAt, bytes: &WriteSource<'_>) -> Result<(u64, usize)> {
        let mapping = self.mapping()?;
        let fd = self.writable()?;
        let own = self.begin_own()?;
        let (end, count) = bytes.with_slices(|slices| match at {
            WriteAt::Offset(offset) => {
                let count = retry(|| rustix::io::pwritev(&*fd, slices, offset))?;
                Ok((offset + count as u64, count))
            }
            WriteAt::End => {
                let append = ReadWriteFlags::APPEND;
                let count = retry(|| rustix::io::pwritev2(&*fd, slices, OWN_OFFSET, append))?;
                Ok::<_, crate::base::Error>((retry(|| rustix::fs::tell(&*fd))?, count))
            }
        })?;
        // Pages before the status: `end` makes the host's new times valid for them (H5).
        mapping.update(end.saturating_sub(count as u64), &bytes.part(0, count));
        own.end()?;
        Ok((end, count))
    }

    /// Returns whether reads go through the page cache.
    pub(super) fn reads_from_cache(&self) -> bool {
        self.shared.options.cache.reads_from_cache()
    }

    /// Borrows pages that are read from the host now; older pages may be out of date.
    pub(super) fn borrow_fresh(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        let mapping = self.mapping()?;
        self.ask_host()?;
        mapping.drop_clean();
        mapping.borrow(offset, len_bytes)
    }

    /// Notes that a write into the cache begins.
    pub(super) fn begin_cached_write(&self) {
        let mut state = self.data_state.lock();
        state.has_unwritten = true;
        state.is_being_written = true;
    }

    /// Notes that a write into the cache ended, and sets the times.
    pub(super) fn end_cached_write(&self, written_bytes: u64) {
        let now = self.shared.clock.now();
        let mut state = self.data_state.lock();
        state.is_being_written = false;
        if written_bytes > 0 {
            state.written = Some(now);
            let cell = &self.common.attributes;
            let mut attributes = cell.load(self.common.number, self.common.file_type);
            attributes.modified = attributes.modified.max(now);
            attributes.changed = attributes.changed.max(now);
            cell.store(&attributes);
        }
    }

    /// Writes back dirty pages before a time is set: a later writeback would change it again.
    pub(super) fn write_back_all(&self) -> Result<()> {
        let Some(mapping) = &self.common.mapping else {
            return Ok(());
        };
        mapping.write_back(0..u64::MAX)?;
        self.data_state.lock().forget_written(mapping);
        Ok(())
    }

    /// Sets the size on the host, then in memory. The host sets the times.
    pub(super) fn truncate_host(&self, size_bytes: u64) -> Result<()> {
        let mapping = self.mapping()?;
        let fd = self.writable()?;
        retry(|| rustix::fs::ftruncate(&*fd, size_bytes))?;
        // The host first: it may refuse, and the pages are then still right.
        mapping.truncate(size_bytes);
        if self.shared.options.cache == CacheMode::WriteBack {
            // A writeback of pages past the new end may have been in progress.
            mapping.wait_written();
            retry(|| rustix::fs::ftruncate(&*fd, size_bytes))?;
        }
        Ok(())
    }

    /// Allocates, frees, zeroes or moves a range on the host: fallocate(2).
    pub(super) fn fallocate_host(
        &self,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let flags = match mode {
            FallocateMode::Allocate => FallocateFlags::empty(),
            FallocateMode::AllocateKeepSize => FallocateFlags::KEEP_SIZE,
            FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
            FallocateMode::ZeroRangeKeepSize => {
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
            }
            FallocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
            FallocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
        };
        let mapping = self.mapping()?;
        // The host moves or frees the bytes that it has: dirty pages must be among them.
        mapping.write_back(0..u64::MAX)?;
        let fd = self.writable()?;
        let own = self.begin_own()?;
        retry(|| rustix::fs::fallocate(&*fd, flags, offset, len_bytes))?;
        mapping.drop_clean();
        mapping.set_size_bytes(host_calls::status(&*fd)?.stamp.size_bytes);
        own.end()?;
        Ok(())
    }

    /// Returns the offset of the next data or hole on the host: lseek(2). `None` if no data
    /// follows.
    pub(super) fn seek_host(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let mapping = self.mapping()?;
        if mapping.is_dirty() {
            mapping.write_back(0..u64::MAX)?;
        }
        let to = match kind {
            SeekKind::Data => SeekFrom::Data(offset),
            SeekKind::Hole => SeekFrom::Hole(offset),
        };
        // Moving the offset is harmless: no other call uses the descriptor's offset.
        let fd = self.readable()?;
        match retry(|| rustix::fs::seek(&*fd, to)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.errno() == Errno::NXIO => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Syncs the cached data to the host, then the host's data to its disk: fsync(2).
    pub(super) fn sync_host(&self, data_only: bool) -> Result<()> {
        let fd = match self.common.file_type {
            FileType::Regular => {
                self.mapping()?.write_back(0..u64::MAX)?;
                match self.writable_if_open() {
                    Some(fd) => fd,
                    None => self
                        .readable()
                        .or_else(|_| self.reopen_data(OFlags::WRONLY).map(Arc::new))?,
                }
            }
            FileType::Directory => Arc::new(host_calls::open_directory(&*self.descriptor()?)?),
            // Other types are stored entirely in their directory.
            _ => return Ok(()),
        };
        if data_only {
            retry(|| rustix::fs::fdatasync(&*fd))
        } else {
            retry(|| rustix::fs::fsync(&*fd))
        }
    }
}
