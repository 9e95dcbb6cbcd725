//! The data of regular files: pages from the host, and writes to it.

use super::host::{self, retry};
use super::inode::HostInode;
use super::options::CacheMode;
use crate::base::{Errno, Result};
use crate::cache::{Borrowed, Source, Store};
use crate::vfs::{FallocateMode, FileType, SeekKind, WriteAt};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::ReadWriteFlags;
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Most buffers the host takes in one call (limits.h, IOV_MAX).
const SLICES_MAX: usize = 1024;
/// To pwritev2(2): the descriptor's own offset, which `RWF_APPEND` then leaves behind what was
/// written.
const OWN_OFFSET: u64 = u64::MAX;

impl Store for HostInode {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let asked = self.ask();
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
            self.note_end(asked, at);
        }
        Ok(())
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let mapping = self.mapping()?;
        let fd = self.writable()?.fd;
        let own = self.begin_own()?;
        // Nothing past the end of the file.
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
    /// Reads past the cache. Unless it `may_wait`: EAGAIN if the host would have to wait for a
    /// device, EOPNOTSUPP where the host cannot tell.
    pub(super) fn read_host(&self, offset: u64, buf: &mut [u8], may_wait: bool) -> Result<usize> {
        let fd = match may_wait {
            true => self.readable()?,
            false => self.descriptors.lock().readable().ok_or(Errno::AGAIN)?,
        };
        let read = |rest: &mut [u8], at| match may_wait {
            true => rustix::io::pread(&*fd, rest, at),
            false => rustix::io::preadv2(
                &*fd,
                &mut [IoSliceMut::new(rest)],
                at,
                ReadWriteFlags::NOWAIT,
            ),
        };
        let mut done = 0;
        while done < buf.len() {
            match retry(|| read(&mut buf[done..], offset + done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                // Who does not wait comes again for all of it.
                Err(_) if may_wait && done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes to the host, then to pages in memory. Returns where what was written ends, and how
    /// much that was.
    pub(super) fn write_host(&self, at: WriteAt, bytes: &Source<'_>) -> Result<(u64, usize)> {
        let mapping = self.mapping()?;
        let fd = self.writable()?.fd;
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
        mapping.update(end.saturating_sub(count as u64), &bytes.part(0, count));
        own.end()?;
        Ok((end, count))
    }

    /// Returns whether reads go through the page cache.
    pub(super) fn reads_from_cache(&self) -> bool {
        self.shared.options.cache.reads_from_cache()
    }

    /// Borrows pages read from the host now, as older pages may be out of date.
    pub(super) fn borrow_fresh(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        let mapping = self.mapping()?;
        self.ask_host()?;
        mapping.drop_clean();
        mapping.borrow(offset, len_bytes)
    }

    /// The cache is about to take a write.
    pub(super) fn begin_cached_write(&self) {
        let mut known = self.known.lock();
        known.has_unwritten = true;
        known.is_being_written = true;
    }

    /// The cache has taken it.
    pub(super) fn end_cached_write(&self, written_bytes: u64) {
        let now = self.shared.clock.now();
        let mut known = self.known.lock();
        known.is_being_written = false;
        if written_bytes > 0 {
            known.written = Some(now);
            let cell = &self.common.attributes;
            let mut attributes = cell.load(self.common.number, self.common.file_type);
            attributes.modified = attributes.modified.max(now);
            attributes.changed = attributes.changed.max(now);
            cell.store(&attributes);
        }
    }

    /// Before a time is set: what is written later would set it anew.
    pub(super) fn settle_writes(&self) -> Result<()> {
        let Some(mapping) = &self.common.mapping else {
            return Ok(());
        };
        mapping.write_back(0..u64::MAX)?;
        self.known.lock().forget_written(mapping);
        Ok(())
    }

    /// Sets the size on the host, then in memory; times follow.
    pub(super) fn truncate_host(&self, size_bytes: u64) -> Result<()> {
        let mapping = self.mapping()?;
        let fd = self.writable()?.fd;
        retry(|| rustix::fs::ftruncate(&*fd, size_bytes))?;
        mapping.truncate(size_bytes);
        if self.shared.options.cache == CacheMode::WriteBack {
            // A write of pages behind the new end may have been under way.
            mapping.wait_written();
            retry(|| rustix::fs::ftruncate(&*fd, size_bytes))?;
        }
        Ok(())
    }

    /// fallocate(2).
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
        mapping.write_back(0..u64::MAX)?;
        let fd = self.writable()?.fd;
        let own = self.begin_own()?;
        retry(|| rustix::fs::fallocate(&*fd, flags, offset, len_bytes))?;
        mapping.drop_clean();
        mapping.set_size_bytes(host::status(&*fd)?.stamp.size_bytes);
        own.end()?;
        Ok(())
    }

    /// lseek(2) for data or a hole; `None` if no data follows.
    pub(super) fn seek_host(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let mapping = self.mapping()?;
        if mapping.is_dirty() {
            mapping.write_back(0..u64::MAX)?;
        }
        let to = match kind {
            SeekKind::Data => SeekFrom::Data(offset),
            SeekKind::Hole => SeekFrom::Hole(offset),
        };
        // A descriptor of its own has an offset of its own, which nobody minds.
        let fd = self.readable()?;
        match retry(|| rustix::fs::seek(&*fd, to)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.errno() == Errno::NXIO => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// fsync(2): what the cache has, then what the host has.
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
            FileType::Directory => Arc::new(host::open_directory(&*self.descriptor()?)?),
            // Nothing of them is anywhere but in their directory.
            _ => return Ok(()),
        };
        match data_only {
            true => retry(|| rustix::fs::fdatasync(&*fd)),
            false => retry(|| rustix::fs::fsync(&*fd)),
        }
    }
}
