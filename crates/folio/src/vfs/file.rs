//! Open files: reading, writing, seeking, listing.

use super::access_time::{is_access_time_current, touch_accessed};
use super::attributes::{AttributeChange, FileType, InodeFlags, SetTime};
use super::credentials::Credentials;
use super::dentry::{Location, Mount};
use super::file_locks::FileLock;
use super::filesystem::FileSystem;
use super::inode::{
    DirectoryEntry, FallocateMode, FileExtent, FileOperations, Inode, InodeCommon, Opened,
    SeekKind, WriteAt,
};
use super::open_flags::OpenFlags;
use super::permission::mode_after_write;
use super::revalidate::revalidate;
use crate::base::lock::{Mutex, MutexGuard};
use crate::base::rcu::Pin;
use crate::base::{Errno, Error, Result};
use crate::cache::{Borrowed, Mapping, WriteSource};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of bytes that one call transfers. Linux: `MAX_RW_COUNT`.
pub(super) const TRANSFER_MAX: usize = 0x7fff_f000;
/// Maximum number of bytes written under one hold of the inode lock.
const WRITE_CHUNK: usize = 1 << 20;
/// The largest offset.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// An open file, shared by descriptors after dup(2). Linux: `struct file`.
pub(crate) struct OpenFile {
    /// Set by the first lock of the open file. Dropped before the inode, whose address it uses.
    pub(super) lock: OnceLock<FileLock>,
    /// `None` once the file is closed and has no users left.
    location: Option<Location>,
    /// [`OpenFlags`]; some of them change. Linux: `f_flags`.
    flags: AtomicU32,
    /// Whether several processes have it: each close takes effect at once.
    is_inherited: AtomicBool,
    /// The file system's state for this open file.
    opened: Option<Opened>,
    /// Offset in bytes, or in a directory the cookie; locked while read and write move it. Linux:
    /// `f_pos_lock`.
    pub(super) position: Mutex<u64>,
    /// Cursor of the writeback errors reported so far. Linux: `f_wb_err`.
    errors_seen: Mutex<u64>,
}

/// The start of a read or write.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    /// At the file's position, which moves.
    Position,
    /// At this byte offset.
    Offset(u64),
}

/// The target of lseek(2).
#[derive(Clone, Copy)]
pub(crate) enum Seek {
    /// To this byte offset.
    To(i128),
    /// By this number of bytes, from the position.
    By(i64),
    /// By this number of bytes, from the end of the file.
    FromEnd(i64),
}

impl OpenFile {
    /// Opens the inode at `location`. The caller has checked permissions; the backing store may
    /// still refuse.
    pub(crate) fn new(location: Location, flags: OpenFlags) -> Result<Self> {
        let inode = location.inode();
        let opened = match inode.file_operations() {
            Some(file) if !flags.contains(OpenFlags::PATH) => file.open(flags.is_writable())?,
            _ => None,
        };
        let errors_seen = inode
            .common()
            .mapping
            .as_ref()
            .map_or(0, Mapping::error_cursor);
        Ok(Self {
            lock: OnceLock::new(),
            location: Some(location),
            flags: AtomicU32::new(flags.bits()),
            is_inherited: AtomicBool::new(false),
            opened,
            position: Mutex::new(0),
            errors_seen: Mutex::new(errors_seen),
        })
    }

    /// Drops the state of the open file, and keeps the allocation.
    pub(crate) fn clear(&mut self) {
        self.lock.take();
        self.location = None;
        self.opened = None;
    }

    /// Returns whether the close must take effect at once: the inode has lost its name, the backing
    /// store has the file open for writing, the file may be locked, or another process that has it
    /// may lock it.
    pub(super) fn must_close_now(&self) -> bool {
        (self.opened.is_some() && self.flags().is_writable())
            || self.location().dentry.is_deleted()
            || self.lock.get().is_some()
            || self.is_inherited.load(Ordering::Relaxed)
    }

    /// Notes that a new process has the file too.
    pub(crate) fn set_inherited(&self) {
        self.is_inherited.store(true, Ordering::Relaxed);
    }

    /// Stores `file` in the allocation of a cleared file.
    pub(crate) fn reuse(mut self: Arc<Self>, file: Self) -> Arc<Self> {
        match Arc::get_mut(&mut self) {
            Some(cleared) => {
                *cleared = file;
                self
            }
            None => Arc::new(file),
        }
    }

    #[inline]
    pub(crate) fn location(&self) -> &Location {
        self.location
            .as_ref()
            .unwrap_or_else(|| unreachable!("a cleared file has no users"))
    }

    #[inline]
    pub(crate) fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Changes the flags that an open file may change: fcntl(2) with F_SETFL.
    pub(crate) fn set_flags(&self, caller: &Credentials, flags: OpenFlags) -> Result<()> {
        self.check_not_path()?;
        let old = self.flags();
        if (flags & !old).contains(OpenFlags::NOATIME)
            && !caller.is_owner(&self.common().attributes())
        {
            return Err(Errno::PERM.into());
        }
        let inode_flags = self.inode().flags();
        let is_append_only = inode_flags.is_ok_and(|flags| flags.contains(InodeFlags::APPEND));
        if (old & !flags).contains(OpenFlags::APPEND) && is_append_only {
            return Err(Errno::PERM.into());
        }
        let new = (old & !OpenFlags::CHANGEABLE) | (flags & OpenFlags::CHANGEABLE);
        self.flags.store(new.bits(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        self.location().inode()
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.location().mount
    }

    /// Returns the inode, if this is a regular file open for writing.
    pub(crate) fn written_inode(&self) -> Option<&Arc<dyn Inode>> {
        let is_written = self.flags().is_writable() && self.common().file_type == FileType::Regular;
        is_written.then(|| self.inode())
    }

    #[inline]
    pub(crate) fn common(&self) -> &InodeCommon {
        self.location().dentry.common()
    }

    /// Fails with EBADF for `O_PATH` descriptors.
    pub(crate) fn check_not_path(&self) -> Result<()> {
        if self.flags().contains(OpenFlags::PATH) {
            Err(Errno::BADF.into())
        } else {
            Ok(())
        }
    }

    /// Fails with EBADF unless the file is open for reading.
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.flags().is_readable() {
            Ok(())
        } else {
            Err(Errno::BADF.into())
        }
    }

    /// Fails with EBADF unless the file is open for writing.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.flags().is_writable() {
            Ok(())
        } else {
            Err(Errno::BADF.into())
        }
    }

    /// Returns the cached data of a regular file; EISDIR for a directory, EINVAL for other types.
    pub(crate) fn mapping(&self) -> Result<&Mapping> {
        let mapping = self.common().mapping.as_ref();
        mapping.ok_or_else(|| self.no_data())
    }

    /// Returns the size of a regular file, which may have no pages in the cache.
    fn regular_size(&self) -> Option<u64> {
        let common = self.common();
        (common.file_type == FileType::Regular).then(|| common.attributes().size_bytes)
    }

    /// Returns the data operations of a regular file; EISDIR for a directory, EINVAL for other
    /// types.
    pub(crate) fn file_operations(&self) -> Result<&dyn FileOperations> {
        let file = self.inode().file_operations();
        file.ok_or_else(|| self.no_data())
    }

    #[cold]
    fn no_data(&self) -> Error {
        match self.common().file_type {
            FileType::Directory => Errno::ISDIR.into(),
            _ => Errno::INVAL.into(),
        }
    }

    /// Reads bytes that are all in memory, if the access time need not change: read(2), pread(2).
    /// Returns `None` if the read must wait or fails; then [`OpenFile::read`] does it.
    #[inline(always)]
    pub(crate) fn read_nowait(&self, start: Start, buf: &mut [u8], pin: &Pin) -> Option<usize> {
        let mapping = self.readable_mapping_nowait()?;
        if buf.len() > TRANSFER_MAX {
            return None;
        }
        let mut position = match start {
            Start::Position => Some(self.position.try_lock()?),
            Start::Offset(_) => None,
        };
        let offset = match (start, &position) {
            (_, Some(position)) => **position,
            (Start::Offset(offset), _) if offset <= OFFSET_MAX => offset,
            _ => return None,
        };
        let count = match &self.common().validity {
            Some(validity) if !validity.is_data_valid() => {
                let file = self.inode().file_operations()?;
                file.read_nowait(offset, buf)?
            }
            _ => mapping.read_cached(offset, buf, pin)?,
        };
        if let Some(position) = &mut position {
            **position += count as u64;
        }
        Some(count)
    }

    /// Returns the mapping, if the file is open for reading and a read leaves the access time as it
    /// is.
    #[inline]
    pub(super) fn readable_mapping_nowait(&self) -> Option<&Mapping> {
        let Location { mount, dentry } = self.location();
        let common = dentry.common();
        let mapping = common.mapping.as_ref()?;
        let is_readable = self.flags().is_readable()
            && (self.flags().contains(OpenFlags::NOATIME) || is_access_time_current(mount, common));
        is_readable.then_some(mapping)
    }

    /// Reads bytes: read(2), pread(2).
    pub(crate) fn read(&self, start: Start, buf: &mut [u8]) -> Result<usize> {
        self.check_readable()?;
        let file = self.file_operations()?;
        let len = buf.len().min(TRANSFER_MAX);
        let count = match start {
            Start::Position => {
                let mut position = self.position.lock();
                let count = file.read(*position, &mut buf[..len])?;
                *position += count as u64;
                count
            }
            Start::Offset(offset) if offset > OFFSET_MAX => return Err(Errno::INVAL.into()),
            Start::Offset(offset) => file.read(offset, &mut buf[..len])?,
        };
        if len > 0 {
            self.touch_accessed();
        }
        Ok(count)
    }

    /// Returns the bytes from `offset` on as references to pages in memory.
    pub(crate) fn borrow(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        self.check_readable()?;
        if offset > OFFSET_MAX {
            return Err(Errno::INVAL.into());
        }
        let borrowed = self.file_operations()?.borrow(offset, len_bytes)?;
        self.touch_accessed();
        Ok(borrowed)
    }

    /// Writes bytes as `caller`: write(2), pwrite(2).
    pub(crate) fn write(
        &self,
        caller: &Credentials,
        start: Start,
        bytes: &WriteSource<'_>,
    ) -> Result<usize> {
        self.check_writable()?;
        let file = self.file_operations()?;
        let bytes = &bytes.part(0, TRANSFER_MAX);
        match start {
            Start::Position => {
                let mut position = self.position.lock();
                let at = self.write_at(*position);
                let (end, count) = self.write_chunks(caller, file, at, bytes)?;
                if count > 0 {
                    *position = end;
                }
                Ok(count)
            }
            Start::Offset(offset) if offset > OFFSET_MAX => Err(Errno::INVAL.into()),
            Start::Offset(offset) => {
                let at = self.write_at(offset);
                Ok(self.write_chunks(caller, file, at, bytes)?.1)
            }
        }
    }

    /// Writes bytes as `caller` at the end of the file, whatever the flags: RWF_APPEND of
    /// pwritev2(2).
    pub(crate) fn append(&self, caller: &Credentials, bytes: &WriteSource<'_>) -> Result<usize> {
        self.check_writable()?;
        let file = self.file_operations()?;
        let bytes = &bytes.part(0, TRANSFER_MAX);
        Ok(self.write_chunks(caller, file, WriteAt::End, bytes)?.1)
    }

    /// Where a write at `offset` goes: with `O_APPEND` to the end.
    fn write_at(&self, offset: u64) -> WriteAt {
        if self.flags().contains(OpenFlags::APPEND) {
            WriteAt::End
        } else {
            WriteAt::Offset(offset)
        }
    }

    /// Writes in chunks, so that the inode lock is not held for long; returns end offset and count.
    fn write_chunks(
        &self,
        caller: &Credentials,
        file: &dyn FileOperations,
        mut at: WriteAt,
        bytes: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        let (mut end, mut count) = (0, 0);
        while count < bytes.len() {
            let chunk = bytes.part(count, WRITE_CHUNK);
            match self.write_chunk(caller, file, at, &chunk) {
                Ok((chunk_end, written)) => {
                    end = chunk_end;
                    if let WriteAt::Offset(offset) = &mut at {
                        *offset = chunk_end;
                    }
                    count += written;
                    if written < chunk.len() {
                        break;
                    }
                }
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if count > 0 && (self.flags().contains(OpenFlags::DSYNC) || self.mount().options().is_sync)
        {
            self.sync(!self.flags().contains(OpenFlags::SYNC))?;
        }
        Ok((end, count))
    }

    fn write_chunk(
        &self,
        caller: &Credentials,
        file: &dyn FileOperations,
        at: WriteAt,
        chunk: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        let inode = self.inode();
        revalidate(&**inode)?;
        self.mount().check_writable()?;
        let _lock = self.common().lock.write();
        let offset = match at {
            WriteAt::End => self.regular_size().ok_or_else(|| self.no_data())?,
            WriteAt::Offset(offset) => offset,
        };
        let room = OFFSET_MAX.saturating_sub(offset);
        if room == 0 {
            return Err(Errno::FBIG.into());
        }
        let chunk = &chunk.part(0, room.try_into().unwrap_or(usize::MAX));
        clear_set_id(&**inode, caller)?;
        file.write(caller, at, chunk)
    }

    /// Calls `change`, which changes the data in place, as `caller` with the inode lock held.
    pub(super) fn change(
        &self,
        caller: &Credentials,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.check_writable()?;
        self.mount().check_writable()?;
        let _lock = self.common().lock.write();
        clear_set_id(&**self.inode(), caller)?;
        change()
    }

    /// Moves the position: lseek(2) with SEEK_SET, SEEK_CUR or SEEK_END.
    pub(crate) fn seek(&self, seek: Seek) -> Result<u64> {
        self.check_not_path()?;
        if matches!(seek, Seek::FromEnd(_)) {
            revalidate(&**self.inode())?;
        }
        self.seek_from(self.position.lock(), seek)
    }

    /// Moves the position like [`OpenFile::seek`]; `None` if another thread has the position
    /// locked, perhaps during I/O, or if the size of the file is not valid.
    pub(crate) fn seek_nowait(&self, seek: Seek) -> Option<Result<u64>> {
        if let Err(error) = self.check_not_path() {
            return Some(Err(error));
        }
        if matches!(seek, Seek::FromEnd(_)) && !self.common().is_valid() {
            return None;
        }
        Some(self.seek_from(self.position.try_lock()?, seek))
    }

    fn seek_from(&self, mut position: MutexGuard<'_, u64>, seek: Seek) -> Result<u64> {
        let target = match seek {
            Seek::To(target) => target,
            Seek::By(change) => i128::from(*position) + i128::from(change),
            Seek::FromEnd(offset) => {
                let size_bytes = self.regular_size().ok_or(Errno::INVAL)?;
                i128::from(size_bytes) + i128::from(offset)
            }
        };
        if target < 0 || target > i128::from(OFFSET_MAX) {
            return Err(Errno::INVAL.into());
        }
        *position = target as u64;
        Ok(*position)
    }

    /// Moves the position to data or to a hole: lseek(2) with SEEK_DATA or SEEK_HOLE.
    pub(crate) fn seek_data(&self, kind: SeekKind, offset: i64) -> Result<u64> {
        self.check_not_path()?;
        revalidate(&**self.inode())?;
        let size_bytes = self.regular_size().ok_or(Errno::INVAL)?;
        let offset = u64::try_from(offset)
            .ok()
            .filter(|offset| *offset < size_bytes);
        // The search holds the position, so that two such seeks follow one another.
        let position = self.position.lock();
        let found = self
            .file_operations()?
            .seek(kind, offset.ok_or(Errno::NXIO)?)?;
        self.seek_from(position, Seek::To(found.ok_or(Errno::NXIO)?.into()))
    }

    /// Calls `sink` for each entry from the position on, until it breaks: getdents64(2). The entry
    /// at which it breaks is the first of the next call.
    pub(crate) fn read_directory(
        &self,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check_readable()?;
        let mut position = self.position.lock();
        let mut next = *position;
        read_directory(self.location(), next, &mut |entry| {
            let flow = sink(entry);
            if flow.is_continue() {
                next = entry.next_cookie;
            }
            flow
        })?;
        *position = next;
        self.touch_accessed();
        Ok(())
    }

    /// Sets the size: ftruncate(2).
    pub(crate) fn truncate(&self, caller: &Credentials, size_bytes: u64) -> Result<()> {
        self.check_not_path()?;
        if size_bytes > OFFSET_MAX || self.regular_size().is_none() || !self.flags().is_writable() {
            return Err(Errno::INVAL.into());
        }
        revalidate(&**self.inode())?;
        self.mount().check_writable()?;
        let lock = self.common().lock.write();
        set_size(&**self.inode(), caller, size_bytes, true)?;
        drop(lock);
        self.mount().sync_if_required(&**self.inode())
    }

    /// Allocates, frees, zeroes or moves a range: fallocate(2).
    pub(crate) fn fallocate(
        &self,
        caller: &Credentials,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.check_not_path()?;
        if len_bytes == 0 || offset > OFFSET_MAX || len_bytes > OFFSET_MAX {
            return Err(Errno::INVAL.into());
        }
        self.check_writable()?;
        match self.common().file_type {
            FileType::Regular => {}
            FileType::Fifo => return Err(Errno::SPIPE.into()),
            _ => return Err(Errno::NODEV.into()),
        }
        if offset + len_bytes > OFFSET_MAX {
            return Err(Errno::FBIG.into());
        }
        revalidate(&**self.inode())?;
        self.mount().check_writable()?;
        let lock = self.common().lock.write();
        clear_set_id(&**self.inode(), caller)?;
        self.file_operations()?
            .fallocate(caller, mode, offset, len_bytes)?;
        drop(lock);
        self.mount().sync_if_required(&**self.inode())
    }

    /// Returns the extents of the file; with `is_synced`, after writeback of the range. Linux:
    /// FIEMAP.
    pub(crate) fn extents(&self, range: Range<u64>, is_synced: bool) -> Result<Vec<FileExtent>> {
        self.check_not_path()?;
        revalidate(&**self.inode())?;
        if let Some(mapping) = self.common().mapping.as_ref().filter(|_| is_synced) {
            mapping.write_back(range.clone())?;
        }
        self.inode().extents(range)
    }

    /// Makes the file durable: fsync(2), fdatasync(2). Reports a writeback error that happened
    /// since the file was opened, once.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        self.check_not_path()?;
        let synced = self.inode().sync(data_only);
        let Some(mapping) = &self.common().mapping else {
            return synced;
        };
        self.report_error(mapping, synced)
    }

    /// Returns the error of `synced`, or else a writeback error that this open file has not
    /// reported yet; each is reported once.
    pub(super) fn report_error(&self, mapping: &Mapping, synced: Result<()>) -> Result<()> {
        let mut seen = self.errors_seen.lock();
        synced.and(mapping.check_error(&mut seen))
    }

    /// Makes the whole file system durable: syncfs(2).
    pub(crate) fn sync_file_system(&self) -> Result<()> {
        self.check_not_path()?;
        self.file_system().sync()
    }

    /// Discards free space of the whole file system. Linux: FITRIM.
    pub(crate) fn trim(
        &self,
        caller: &Credentials,
        range: Range<u64>,
        len_min: u64,
    ) -> Result<u64> {
        self.check_not_path()?;
        trim(self.location(), caller, range, len_min)
    }

    pub(crate) fn file_system(&self) -> &Arc<dyn FileSystem> {
        self.mount().file_system()
    }

    pub(super) fn touch_accessed(&self) {
        if !self.flags().contains(OpenFlags::NOATIME) {
            touch_accessed(self.mount(), &**self.inode());
        }
    }
}

/// Discards free space of the file system at `location`; only for the superuser.
pub(crate) fn trim(
    location: &Location,
    caller: &Credentials,
    range: Range<u64>,
    len_min: u64,
) -> Result<u64> {
    if !caller.is_root() {
        return Err(Errno::PERM.into());
    }
    location.mount.file_system().trim(range, len_min)
}

/// Calls `sink` for each entry of a directory from `cookie` on, until it breaks.
pub(crate) fn read_directory(
    location: &Location,
    cookie: u64,
    sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let inode = location.inode();
    if inode.common().file_type != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    let _lock = inode.common().lock.read();
    if location.dentry.is_deleted() {
        return Err(Errno::NOENT.into());
    }
    inode.read_directory(cookie, sink)
}

/// Clears setuid and setgid before the contents change. The caller holds the inode lock
/// exclusively.
fn clear_set_id(inode: &dyn Inode, caller: &Credentials) -> Result<()> {
    match mode_after_write(inode, caller) {
        None => Ok(()),
        mode => inode.set_attributes(
            caller,
            &AttributeChange {
                mode,
                ..AttributeChange::default()
            },
        ),
    }
}

/// Sets the size of a regular file. The caller holds the inode lock exclusively. truncate(2) to the
/// current size keeps the times; ftruncate(2) and O_TRUNC always set them.
pub(crate) fn set_size(
    inode: &dyn Inode,
    caller: &Credentials,
    size_bytes: u64,
    always_modified: bool,
) -> Result<()> {
    let is_same = inode.common().attributes().size_bytes == size_bytes;
    let mode = mode_after_write(inode, caller);
    if is_same && !always_modified && mode.is_none() {
        return inode
            .file_operations()
            .map_or(Ok(()), FileOperations::free_beyond_end);
    }
    let modified = (always_modified || !is_same).then_some(SetTime::Now);
    inode.set_attributes(
        caller,
        &AttributeChange {
            mode,
            size_bytes: Some(size_bytes),
            modified,
            ..AttributeChange::default()
        },
    )
}
