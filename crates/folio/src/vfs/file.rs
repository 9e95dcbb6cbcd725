//! Open files: reading, writing, seeking, listing.

use super::coherence::{is_believed, revalidate};
use super::mount::{Location, Mount};
use super::open::OpenFlags;
use super::permission::{Credentials, mode_after_write};
use super::{
    AccessTime, AttributeChange, DirectoryEntry, FallocateMode, FileExtent, FileSystem, FileType,
    Inode, InodeCommon, Opened, SeekKind, WriteAt,
};
use crate::base::{Errno, Error, Result};
use crate::cache::{Borrowed, Mapping, Source};
use parking_lot::{Mutex, MutexGuard};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Bytes that one call transfers at most. Linux: `MAX_RW_COUNT`.
const TRANSFER_MAX: usize = 0x7fff_f000;
/// Bytes written under one hold of the inode lock.
const WRITE_CHUNK: usize = 1 << 20;
/// The largest offset.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;
/// Relatime renews an access time older than this.
const ACCESSED_AGE_MAX_SECS: i64 = 24 * 60 * 60;

/// An open file: what descriptors share after dup(2). Linux: `struct file`.
pub(crate) struct OpenFile {
    /// `None` once the file is closed and nobody has it any more.
    location: Option<Location>,
    flags: OpenFlags,
    /// What the file system keeps as long as the file is open.
    opened: Option<Opened>,
    /// Offset in bytes, or in a directory the cookie; held while read and write move it. Linux:
    /// `f_pos_lock`.
    position: Mutex<u64>,
    /// Up to where writeback errors have been told. Linux: `f_wb_err`.
    errors_seen: Mutex<u64>,
}

/// Where a read or write starts.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    /// At the file's offset, which moves.
    Position,
    /// At this byte.
    Offset(u64),
}

/// Where lseek(2) shall go.
#[derive(Clone, Copy)]
pub(crate) enum Seek {
    /// To this byte.
    To(i128),
    /// By so much.
    By(i64),
    /// So far from the end.
    FromEnd(i64),
}

impl OpenFile {
    /// Opens what is at `location`, if what lies behind lets it be opened; the caller has checked
    /// permission.
    pub(crate) fn new(location: Location, flags: OpenFlags) -> Result<Self> {
        let inode = location.inode();
        let is_for_data = inode.common().mapping.is_some() && !flags.contains(OpenFlags::PATH);
        let opened = if is_for_data {
            inode.open(flags.is_writable())?
        } else {
            None
        };
        let errors_seen = inode
            .common()
            .mapping
            .as_ref()
            .map_or(0, Mapping::error_cursor);
        Ok(Self {
            location: Some(location),
            flags,
            opened,
            position: Mutex::new(0),
            errors_seen: Mutex::new(errors_seen),
        })
    }

    /// Lets go of what was open and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.location = None;
        self.opened = None;
    }

    /// Whether somebody waits for it to be closed: the name is gone, or what lies behind is open
    /// for writing.
    pub(super) fn is_urgent(&self) -> bool {
        (self.opened.is_some() && self.flags.is_writable()) || self.location().dentry.is_deleted()
    }

    /// Makes `file` of the memory of one that was cleared.
    pub(crate) fn renew(mut self: Arc<Self>, file: Self) -> Arc<Self> {
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
            .unwrap_or_else(|| unreachable!("nobody has a file that was cleared"))
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        self.flags
    }

    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        self.location().inode()
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.location().mount
    }

    /// The inode, if it is a regular file that this could write.
    pub(crate) fn written_inode(&self) -> Option<&Arc<dyn Inode>> {
        let is_written = self.flags.is_writable() && self.common().file_type == FileType::Regular;
        is_written.then(|| self.inode())
    }

    fn common(&self) -> &InodeCommon {
        self.inode().common()
    }

    /// EBADF for `O_PATH` descriptors.
    pub(crate) fn check_not_path(&self) -> Result<()> {
        if self.flags.contains(OpenFlags::PATH) {
            Err(Errno::BADF.into())
        } else {
            Ok(())
        }
    }

    /// EBADF unless open for reading.
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.flags.is_readable() {
            Ok(())
        } else {
            Err(Errno::BADF.into())
        }
    }

    /// EBADF unless open for writing.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.flags.is_writable() {
            Ok(())
        } else {
            Err(Errno::BADF.into())
        }
    }

    /// The bytes of a regular file; EISDIR or EINVAL for others.
    pub(crate) fn mapping(&self) -> Result<&Mapping> {
        let common = self.common();
        match &common.mapping {
            Some(mapping) => Ok(mapping),
            None if common.file_type == FileType::Directory => Err(Errno::ISDIR.into()),
            None => Err(Errno::INVAL.into()),
        }
    }

    /// read(2), pread(2) of bytes that are all in memory, by a reader who need not be noted. `None`
    /// otherwise: [`OpenFile::read`] may wait, and knows what is wrong.
    #[inline]
    pub(crate) fn read_at_once(&self, start: Start, buf: &mut [u8]) -> Option<usize> {
        let Location { mount, dentry } = self.location();
        let inode = &**dentry.inode();
        let mapping = inode.common().mapping.as_ref()?;
        if !self.flags.is_readable() || buf.len() > TRANSFER_MAX {
            return None;
        }
        if !self.flags.contains(OpenFlags::NOATIME) && !is_access_noted(mount, inode) {
            return None;
        }
        let read = |offset, buf: &mut [u8]| match &inode.common().coherence {
            Some(_) if inode.is_direct() => inode.read_direct(offset, buf, false).ok(),
            Some(coherence) if !coherence.is_believed() => None,
            _ => mapping.read_cached(offset, buf),
        };
        match start {
            Start::Position => {
                let mut position = self.position.try_lock()?;
                let count = read(*position, buf)?;
                *position += count as u64;
                Some(count)
            }
            Start::Offset(offset) if offset > OFFSET_MAX => None,
            Start::Offset(offset) => read(offset, buf),
        }
    }

    /// read(2), pread(2).
    pub(crate) fn read(&self, start: Start, buf: &mut [u8]) -> Result<usize> {
        self.check_readable()?;
        let mapping = self.mapping()?;
        let len = buf.len().min(TRANSFER_MAX);
        let read = |offset, buf: &mut [u8]| {
            if self.inode().is_direct() {
                return self.inode().read_direct(offset, buf, true);
            }
            revalidate(&**self.inode())?;
            mapping.read(offset, buf)
        };
        let count = match start {
            Start::Position => {
                let mut position = self.position.lock();
                let count = read(*position, &mut buf[..len])?;
                *position += count as u64;
                count
            }
            Start::Offset(offset) if offset > OFFSET_MAX => return Err(Errno::INVAL.into()),
            Start::Offset(offset) => read(offset, &mut buf[..len])?,
        };
        if len > 0 {
            self.touch_accessed();
        }
        Ok(count)
    }

    /// The bytes from `offset` on, held in memory.
    pub(crate) fn borrow(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        self.check_readable()?;
        if offset > OFFSET_MAX {
            return Err(Errno::INVAL.into());
        }
        let mapping = self.mapping()?;
        match self.inode().is_direct() {
            true => {
                // Not older than what was read before.
                self.inode().revalidate()?;
                mapping.drop_clean();
            }
            false => revalidate(&**self.inode())?,
        }
        let borrowed = mapping.borrow(offset, len_bytes)?;
        self.touch_accessed();
        Ok(borrowed)
    }

    /// write(2), pwrite(2).
    pub(crate) fn write(
        &self,
        who: &Credentials,
        start: Start,
        bytes: &Source<'_>,
    ) -> Result<usize> {
        self.check_writable()?;
        let mapping = self.mapping()?;
        let bytes = &bytes.part(0, TRANSFER_MAX);
        match start {
            Start::Position => {
                let mut position = self.position.lock();
                let (end, count) = self.write_chunks(who, mapping, *position, bytes)?;
                *position = end;
                Ok(count)
            }
            Start::Offset(offset) if offset > OFFSET_MAX => Err(Errno::INVAL.into()),
            Start::Offset(offset) => Ok(self.write_chunks(who, mapping, offset, bytes)?.1),
        }
    }

    /// Writes in chunks, so that the inode lock is not held for long; returns end and count.
    fn write_chunks(
        &self,
        who: &Credentials,
        mapping: &Mapping,
        offset: u64,
        bytes: &Source<'_>,
    ) -> Result<(u64, usize)> {
        let mut end = offset;
        let mut count = 0;
        while count < bytes.len() {
            let chunk = bytes.part(count, WRITE_CHUNK);
            match self.write_chunk(who, mapping, end, &chunk) {
                Ok((chunk_end, written)) => {
                    end = chunk_end;
                    count += written;
                    if written < chunk.len() {
                        break;
                    }
                }
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if count > 0 && (self.flags.contains(OpenFlags::DSYNC) || self.mount().options().is_sync) {
            self.sync(!self.flags.contains(OpenFlags::SYNC))?;
        }
        Ok((end, count))
    }

    fn write_chunk(
        &self,
        who: &Credentials,
        mapping: &Mapping,
        offset: u64,
        chunk: &Source<'_>,
    ) -> Result<(u64, usize)> {
        let inode = self.inode();
        revalidate(&**inode)?;
        let _acting = self.mount().begin_change(who)?;
        let _lock = self.common().lock.write();
        let is_append = self.flags.contains(OpenFlags::APPEND);
        let offset = if is_append {
            mapping.size_bytes()
        } else {
            offset
        };
        let room = OFFSET_MAX.saturating_sub(offset);
        if room == 0 {
            return Err(Errno::FBIG.into());
        }
        let chunk = &chunk.part(0, room.try_into().unwrap_or(usize::MAX));
        clear_set_id(&**inode, who)?;
        let at = if is_append {
            WriteAt::End
        } else {
            WriteAt::Offset(offset)
        };
        if let Some(written) = inode.write_through(at, chunk) {
            return written;
        }
        inode.write_begin(offset, chunk.len() as u64)?;
        let written = mapping.write_from(offset, chunk);
        let count = *written.as_ref().unwrap_or(&0);
        // Told even after a failure, so that what write_begin reserved is given back.
        inode.write_end(offset, count as u64, false)?;
        written?;
        Ok((offset + count as u64, count))
    }

    /// lseek(2) with SEEK_SET, SEEK_CUR or SEEK_END.
    pub(crate) fn seek(&self, seek: Seek) -> Result<u64> {
        self.check_not_path()?;
        if matches!(seek, Seek::FromEnd(_)) {
            revalidate(&**self.inode())?;
        }
        self.seek_from(self.position.lock(), seek)
    }

    /// Like [`OpenFile::seek`] if nobody is using the position; `None` if somebody is, who may be
    /// waiting for I/O, or if the end of the file must be asked for.
    pub(crate) fn seek_at_once(&self, seek: Seek) -> Option<Result<u64>> {
        if let Err(error) = self.check_not_path() {
            return Some(Err(error));
        }
        if matches!(seek, Seek::FromEnd(_)) && !is_believed(&**self.inode()) {
            return None;
        }
        Some(self.seek_from(self.position.try_lock()?, seek))
    }

    fn seek_from(&self, mut position: MutexGuard<'_, u64>, seek: Seek) -> Result<u64> {
        let target = match seek {
            Seek::To(target) => target,
            Seek::By(change) => i128::from(*position) + i128::from(change),
            Seek::FromEnd(offset) => {
                let size_bytes = self.mapping().map_err(|_| Errno::INVAL)?.size_bytes();
                i128::from(size_bytes) + i128::from(offset)
            }
        };
        if target < 0 || target > i128::from(OFFSET_MAX) {
            return Err(Errno::INVAL.into());
        }
        *position = target as u64;
        Ok(*position)
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE.
    pub(crate) fn seek_data(&self, kind: SeekKind, offset: i64) -> Result<u64> {
        self.check_not_path()?;
        revalidate(&**self.inode())?;
        let size_bytes = self.mapping().map_err(|_| Errno::INVAL)?.size_bytes();
        let offset = u64::try_from(offset)
            .ok()
            .filter(|offset| *offset < size_bytes);
        // Found with the position locked: two such seeks follow one another.
        let position = self.position.lock();
        let found = self.inode().seek(kind, offset.ok_or(Errno::NXIO)?)?;
        self.seek_from(position, Seek::To(found.ok_or(Errno::NXIO)?.into()))
    }

    /// getdents64(2): calls `sink` for each entry from the file's position on, until it breaks.
    pub(crate) fn read_directory(
        &self,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check_readable()?;
        let mut position = self.position.lock();
        let mut next = *position;
        read_directory(self.location(), next, &mut |entry| {
            let flow = sink(entry);
            next = entry.next_cookie;
            flow
        })?;
        *position = next;
        self.touch_accessed();
        Ok(())
    }

    /// ftruncate(2).
    pub(crate) fn truncate(&self, who: &Credentials, size_bytes: u64) -> Result<()> {
        self.check_not_path()?;
        if size_bytes > OFFSET_MAX || self.mapping().is_err() || !self.flags.is_writable() {
            return Err(Errno::INVAL.into());
        }
        revalidate(&**self.inode())?;
        let _acting = self.mount().begin_change(who)?;
        let lock = self.common().lock.write();
        set_size(&**self.inode(), who, size_bytes, true)?;
        drop(lock);
        self.mount().settle(&**self.inode())
    }

    /// fallocate(2).
    pub(crate) fn fallocate(
        &self,
        who: &Credentials,
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
        let _acting = self.mount().begin_change(who)?;
        let lock = self.common().lock.write();
        clear_set_id(&**self.inode(), who)?;
        self.inode().fallocate(mode, offset, len_bytes)?;
        drop(lock);
        self.mount().settle(&**self.inode())
    }

    /// Where the file lies; with `is_synced`, after everything was written.
    pub(crate) fn extents(&self, range: Range<u64>, is_synced: bool) -> Result<Vec<FileExtent>> {
        self.check_not_path()?;
        revalidate(&**self.inode())?;
        if is_synced {
            self.mapping()?.write_back(range.clone())?;
        }
        self.inode().extents(range)
    }

    /// fsync(2), fdatasync(2). A writeback error that happened since the file was opened is told
    /// once.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        self.check_not_path()?;
        let synced = self.inode().sync(data_only);
        let Some(mapping) = &self.common().mapping else {
            return synced;
        };
        self.tell_error(mapping, synced)
    }

    /// What `synced` tells, or a writeback error that this open file was not told yet: one or the
    /// other, once.
    pub(super) fn tell_error(&self, mapping: &Mapping, synced: Result<()>) -> Result<()> {
        let mut seen = self.errors_seen.lock();
        synced.and(mapping.check_error(&mut seen))
    }

    /// syncfs(2).
    pub(crate) fn sync_file_system(&self) -> Result<()> {
        self.check_not_path()?;
        self.file_system().sync()
    }

    pub(crate) fn file_system(&self) -> &Arc<dyn FileSystem> {
        self.mount().file_system()
    }

    fn touch_accessed(&self) {
        if !self.flags.contains(OpenFlags::NOATIME) {
            touch_accessed(self.mount(), &**self.inode());
        }
    }
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

/// copy_file_range(2): like [`copy`], with the checks of that call.
pub(crate) fn copy_range(
    who: &Credentials,
    (input, from): (&OpenFile, Start),
    (out, to): (&OpenFile, Start),
    count: usize,
) -> Result<usize> {
    input.mapping()?;
    out.mapping()?;
    input.check_readable()?;
    out.check_writable()?;
    if out.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::BADF.into());
    }
    if !Arc::ptr_eq(input.mount(), out.mount()) {
        return Err(Errno::XDEV.into());
    }
    let place = |file: &OpenFile, start: Start| match start {
        Start::Offset(offset) => Ok(offset),
        Start::Position => file.seek(Seek::By(0)),
    };
    let (from_offset, to_offset) = (place(input, from)?, place(out, to)?);
    let end = |start: u64| start.checked_add(count as u64).ok_or(Errno::OVERFLOW);
    let overlaps = from_offset < end(to_offset)? && to_offset < end(from_offset)?;
    if Arc::ptr_eq(input.inode(), out.inode()) && overlaps && count > 0 {
        return Err(Errno::INVAL.into());
    }
    copy(who, (input, from), (out, to), count)
}

/// sendfile(2), copy_file_range(2): copies through the cache. `who` writes; returns the bytes
/// copied.
pub(crate) fn copy(
    who: &Credentials,
    (input, input_start): (&OpenFile, Start),
    (out, out_start): (&OpenFile, Start),
    count: usize,
) -> Result<usize> {
    let mut copied = 0;
    while copied < count {
        match copy_some(
            who,
            (input, input_start.plus(copied)?),
            (out, out_start.plus(copied)?),
            count - copied,
        ) {
            Ok(0) => break,
            Ok(some) => copied += some,
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(copied)
}

/// Copies from page to page as much as one borrow holds.
fn copy_some(
    who: &Credentials,
    (input, input_start): (&OpenFile, Start),
    (out, out_start): (&OpenFile, Start),
    count: usize,
) -> Result<usize> {
    let offset = match input_start {
        Start::Offset(offset) => offset,
        Start::Position => input.seek(Seek::By(0))?,
    };
    let borrowed = input.borrow(offset, count)?;
    if borrowed.is_empty() {
        return Ok(0);
    }
    let written = out.write(who, out_start, &borrowed.source())?;
    if matches!(input_start, Start::Position) {
        input.seek(Seek::By(written as i64))?;
    }
    Ok(written)
}

impl Start {
    fn plus(self, count: usize) -> Result<Self> {
        Ok(match self {
            Self::Position => Self::Position,
            Self::Offset(offset) => {
                Self::Offset(offset.checked_add(count as u64).ok_or(Errno::INVAL)?)
            }
        })
    }
}

/// Clears setuid and setgid before the contents change; the caller holds the inode lock, exclusive.
fn clear_set_id(inode: &dyn Inode, who: &Credentials) -> Result<()> {
    match mode_after_write(inode, who) {
        None => Ok(()),
        mode => inode.set_attributes(&AttributeChange {
            mode,
            ..AttributeChange::default()
        }),
    }
}

/// Sets the size of a regular file; the caller holds the inode lock, exclusive. truncate(2) to the
/// present size leaves the times alone, ftruncate(2) and O_TRUNC always set them.
pub(crate) fn set_size(
    inode: &dyn Inode,
    who: &Credentials,
    size_bytes: u64,
    always_modified: bool,
) -> Result<()> {
    let is_same = inode
        .common()
        .mapping
        .as_ref()
        .is_some_and(|mapping| mapping.size_bytes() == size_bytes);
    let mode = mode_after_write(inode, who);
    if is_same && !always_modified && mode.is_none() {
        return Ok(());
    }
    let modified = (always_modified || !is_same).then_some(super::SetTime::Now);
    inode.set_attributes(&AttributeChange {
        mode,
        size_bytes: Some(size_bytes),
        modified,
        ..AttributeChange::default()
    })
}

/// Notes an access as the mount wishes. A failure is nobody's business.
pub(crate) fn touch_accessed(mount: &Mount, inode: &dyn Inode) {
    if !is_access_noted(mount, inode) {
        let _: Result<(), Error> = inode.touch_accessed();
    }
}

/// Whether an access changes nothing. Takes no lock.
#[inline]
fn is_access_noted(mount: &Mount, inode: &dyn Inode) -> bool {
    let (options, common) = (mount.options(), inode.common());
    if options.no_directory_access_time && common.file_type == FileType::Directory {
        return true;
    }
    match options.access_time {
        AccessTime::Never => return true,
        AccessTime::Strict => return mount.is_read_only(),
        AccessTime::Relative => {}
    }
    let times = common.attributes.times();
    let is_current = times.accessed > times.modified
        && times.accessed > times.changed
        && options.clock.now().secs.saturating_sub(times.accessed.secs) < ACCESSED_AGE_MAX_SECS;
    is_current || mount.is_read_only()
}
