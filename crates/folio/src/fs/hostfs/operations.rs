//! The VFS's traits, implemented for host inodes.

use super::directory::{set_mode, set_owner};
use super::host_calls;
use super::inode::{HostInode, own};
use super::options::CacheMode;
use crate::base::{Errno, InodeNumber, Result};
use crate::cache::WriteSource;
use crate::vfs::{
    AttributeChange, Borrowed, Credentials, DirectoryEntry, FallocateMode, FileOperations,
    FileType, Inode, InodeCommon, NewInode, Opened, RenameRequest, SeekKind, SetTime, WriteAt,
    XattrFlags, buffered_borrow, buffered_read, buffered_write,
};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Returns a new time in the host's format.
fn host_time(time: Option<SetTime>) -> rustix::fs::Timespec {
    let special = |tv_nsec| rustix::fs::Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(SetTime::Now) => special(UTIME_NOW),
        Some(SetTime::To(time)) => rustix::fs::Timespec {
            tv_sec: time.secs,
            tv_nsec: time.nanos.into(),
        },
    }
}

impl HostInode {
    fn change_attributes(&self, change: &AttributeChange) -> Result<()> {
        let fd = self.descriptor()?;
        // A later write-back would set the time again.
        if matches!(change.modified, Some(SetTime::To(_))) {
            self.write_back_all()?;
        }
        let own = self.begin_own()?;
        let mut modified = change.modified;
        if let Some(size_bytes) = change.size_bytes {
            self.truncate_host(size_bytes)?;
            // Truncation sets the time, too.
            modified = modified.filter(|time| *time != SetTime::Now);
        }
        let owners = &self.shared.options.owners;
        let outside =
            |id: Option<u32>, name: &dyn Fn(u32) -> Result<Option<u32>>| id.map_or(Ok(None), name);
        let uid = outside(change.uid, &|uid| owners.outside_user(uid))?;
        let gid = outside(change.gid, &|gid| owners.outside_group(gid))?;
        if uid.is_some() || gid.is_some() {
            // Owner before mode: chown(2) may clear the set-user-ID and set-group-ID bits.
            set_owner(&fd, uid, gid)?;
        }
        if let Some(mode) = change.mode
            && self.common.file_type != FileType::Symlink
        {
            set_mode(&fd, mode)?;
        }
        if change.accessed.is_some() || modified.is_some() {
            let times = Timestamps {
                last_access: host_time(change.accessed),
                last_modification: host_time(modified),
            };
            // The times last: a truncation sets them.
            host_calls::retry(|| rustix::fs::utimensat(&*fd, c"", &times, AtFlags::EMPTY_PATH))?;
        }
        own.end()?;
        Ok(())
    }
}

impl Inode for HostInode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        self.common.mapping.is_some().then_some(self)
    }

    fn revalidate(&self) -> Result<()> {
        self.ask_host()
    }

    fn set_attributes(&self, _caller: &Credentials, change: &AttributeChange) -> Result<()> {
        self.change_attributes(change)
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        Ok(self.look_up(name)?.map(|inode| inode as Arc<dyn Inode>))
    }

    fn create(
        &self,
        _caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        Ok(self.create_named(name, new)?)
    }

    fn create_unnamed(&self, _caller: &Credentials, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        Ok(self.create_without_name(new)?)
    }

    fn link(&self, _caller: &Credentials, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.add_link(name, own(target)?)
    }

    fn unlink(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.remove(name, own(target)?)
    }

    fn remove_directory(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.remove(name, own(target)?)
    }

    fn rename(&self, request: &RenameRequest<'_>) -> Result<()> {
        self.move_name(request)
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.is_directory() {
            self.list(cookie, sink)
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        if self.is_directory() {
            Ok(HostInode::parent_number(self))
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.common.file_type == FileType::Symlink {
            self.read_target()
        } else {
            Err(Errno::INVAL.into())
        }
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.sync_host(data_only)
    }

    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.host_xattr(name)
    }

    fn set_xattr(
        &self,
        _caller: &Credentials,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_host_xattr(name, value, flags)
    }

    fn remove_xattr(&self, _caller: &Credentials, name: &[u8]) -> Result<()> {
        self.remove_host_xattr(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.list_host_xattrs()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The data path depends on the mount option `cache=`: `writethrough` reads through the page cache
/// and writes to the host, `writeback` does both through the page cache, `host` and `none` read and
/// write the host's file.
impl FileOperations for HostInode {
    fn write_begin(&self, _caller: &Credentials, offset: u64, len_bytes: u64) -> Result<()> {
        offset
            .checked_add(len_bytes)
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or(Errno::FBIG)?;
        self.begin_cached_write();
        Ok(())
    }

    fn write_end(&self, written_bytes: u64) -> Result<()> {
        self.end_cached_write(written_bytes);
        Ok(())
    }

    fn open(&self, is_written: bool) -> Result<Option<Opened>> {
        self.open_data(is_written).map(Some)
    }

    fn host_file(&self) -> Option<Result<OwnedFd>> {
        // With write-back, reads outside of the cache would miss data not yet written back.
        let is_allowed = matches!(
            self.shared.options.cache,
            CacheMode::WriteThrough | CacheMode::Host
        );
        is_allowed.then(|| Ok(rustix::io::fcntl_dupfd_cloexec(&*self.readable()?, 0)?))
    }

    fn hold(&self) {
        self.hold_descriptor();
    }

    fn read_nowait(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        if self.reads_from_cache() {
            None
        } else {
            self.read_host(offset, buf, false).ok()
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.reads_from_cache() {
            buffered_read(self, offset, buf)
        } else {
            self.read_host(offset, buf, true)
        }
    }

    fn borrow(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        if self.reads_from_cache() {
            buffered_borrow(self, offset, len_bytes)
        } else {
            self.borrow_fresh(offset, len_bytes)
        }
    }

    fn write(
        &self,
        caller: &Credentials,
        at: WriteAt,
        bytes: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        if self.is_written_back() {
            buffered_write(self, caller, at, bytes)
        } else {
            self.write_host(at, bytes)
        }
    }

    fn fallocate(
        &self,
        _caller: &Credentials,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.fallocate_host(mode, offset, len_bytes)
    }

    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        self.seek_host(kind, offset)
    }
}
