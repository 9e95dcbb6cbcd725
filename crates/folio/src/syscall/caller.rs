//! System calls by handle, for servers whose clients name inodes instead of paths. Linux: fs/nfsd,
//! fs/exportfs.

use super::OpenFlags;
use crate::base::{DeviceNumber, Errno, InodeNumber, Result, rcu};
use crate::kernel::Kernel;
use crate::vfs::{
    self, AttrValidity, Attributes, ChangeListener, Context, CopySide, Credentials, DirectoryEntry,
    FallocateMode, FileSystemStatistics, FileType, InodeFlags, Location, OpenFile, RenameFlags,
    SeekKind, SetTime, Start, XattrFlags,
};
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An inode held by a server, with the name by which it was found. Corresponds to an `O_PATH`
/// descriptor of a process.
///
/// A handle keeps the inode alive and the mount busy. Calls stay in the mount: names are plain
/// (EINVAL for slashes, `.` and `..`), links are not followed, and mounts on a directory are not
/// entered.
#[derive(Clone)]
pub struct Handle(Location);

impl Handle {
    /// Returns the attributes. Linux: stat(2).
    ///
    /// # Errors
    ///
    /// ESTALE or EIO if the backing store does not answer.
    pub fn stat(&self) -> Result<Attributes> {
        vfs::attributes(&**self.0.inode())
    }

    /// Returns the attributes as last known, even if they have expired. Takes no lock and does not
    /// block.
    pub fn attributes(&self) -> Attributes {
        self.0.inode().common().attributes()
    }

    /// Returns how long a client may cache attributes and data: without end if there are no
    /// external writers, or if their changes are reported ([`Handle::listen`]).
    pub fn ttl(&self) -> Duration {
        self.0
            .inode()
            .common()
            .validity
            .as_ref()
            .map_or(Duration::MAX, AttrValidity::valid_for)
    }

    /// Writes back the data, without a flush of the device; the next sync of each open file reports
    /// an error, too. Linux: `filemap_write_and_wait`.
    ///
    /// # Errors
    ///
    /// EIO or ENOSPC from the device.
    pub fn write_back(&self) -> Result<()> {
        let mapping = self.0.inode().common().mapping.as_ref();
        mapping.map_or(Ok(()), |mapping| mapping.write_back(0..u64::MAX))
    }

    /// Invalidates attributes and data, after a change outside of Folio: the backing store is asked
    /// before the next use.
    pub fn invalidate(&self) {
        if let Some(validity) = &self.0.inode().common().validity {
            validity.invalidate();
        }
    }

    /// Returns whether external changes of attributes and data are reported, as of the last
    /// revalidation.
    pub fn has_change_notifications(&self) -> bool {
        self.0
            .inode()
            .common()
            .validity
            .as_ref()
            .is_none_or(AttrValidity::has_change_notifications)
    }

    /// Keeps a regular file in reach while its inode is in memory, even if an external writer
    /// unlinks it: for a client that opens files without a request. Best effort.
    pub fn hold(&self) {
        if let Some(file) = self.0.inode().file_operations() {
            file.hold();
        }
    }

    /// Registers `listener` for external changes in the whole file system, until its last strong
    /// reference is dropped. Returns false if the file system cannot report changes.
    pub fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        self.0.mount.file_system().listen(listener)
    }

    /// Returns the inode number of the parent directory, and the name, as last found; `None` for a
    /// root.
    pub fn parent_and_name(&self) -> Option<(u64, Vec<u8>)> {
        let parent = self.0.dentry.parent()?;
        Some((
            parent.inode().common().number.0,
            self.0.dentry.name().as_slice().to_vec(),
        ))
    }

    /// Returns whether both are the same inode. Two inodes that had one number in succession
    /// differ.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.0.inode(), other.0.inode())
    }

    /// Returns whether external writers may change the file system.
    pub fn has_external_writers(&self) -> bool {
        self.0.inode().common().validity.is_some()
    }

    /// Returns the handle of the parent directory; `None` for a root.
    pub fn parent(&self) -> Option<Self> {
        Some(Self(Location {
            mount: self.0.mount.clone(),
            dentry: self.0.dentry.parent()?,
        }))
    }

    /// Returns a number that differs from that of an inode that had this inode's number before.
    pub fn generation(&self) -> u32 {
        self.0.inode().generation()
    }

    /// Returns the inode number; while the handle is held, no other inode of the file system has
    /// it.
    pub fn number(&self) -> u64 {
        self.0.inode().common().number.0
    }
}

/// A file opened by a server. Corresponds to a descriptor of a process, without a file position.
#[derive(Clone)]
pub struct OpenHandle(Arc<OpenFile>);

impl OpenHandle {
    /// Returns the handle of the file.
    pub fn handle(&self) -> Handle {
        Handle(self.0.location().clone())
    }

    /// Reads at the byte offset `offset`; returns the number of bytes, 0 at the end of the file.
    /// Linux: pread(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for reading, EISDIR for a directory, EINVAL for an offset above
    /// `i64::MAX`, EIO if the store fails.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self.read_nowait(buf, offset) {
            Some(count) => Ok(count),
            None => self.0.read(Start::Offset(offset), buf),
        }
    }

    /// Reads bytes that are all in memory; `None` if the read must wait or fails, then
    /// [`OpenHandle::read`] does it. Linux: preadv2(2) with RWF_NOWAIT.
    pub fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        self.0.read_nowait(Start::Offset(offset), buf, &rcu::pin())
    }

    /// Returns a new descriptor of the host's file that backs this one, for I/O without Folio's
    /// cache; `None` if there is none. Folio does not notice writes through it: see
    /// [`Handle::invalidate`].
    ///
    /// # Errors
    ///
    /// The errors of dup(2) on the host.
    pub fn host_file(&self) -> Option<Result<OwnedFd>> {
        self.0.inode().file_operations()?.host_file()
    }

    /// Makes the file durable: fsync(2), or fdatasync(2) with `data_only`.
    ///
    /// # Errors
    ///
    /// EIO or ENOSPC if writeback failed. A writeback error is reported once to each open file.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        self.0.sync(data_only)
    }

    /// Returns the byte offset of the next data or hole at or after `offset`. Linux: lseek(2).
    ///
    /// # Errors
    ///
    /// ENXIO if none follows, EINVAL for an offset above `i64::MAX`.
    pub fn seek(&self, kind: SeekKind, offset: u64) -> Result<u64> {
        self.0
            .seek_data(kind, i64::try_from(offset).map_err(|_| Errno::INVAL)?)
    }
}

/// System calls by handle on behalf of a user. Creating one per request is cheap.
#[derive(Clone, Copy)]
pub struct Caller<'a>(Context<'a>);

impl<'a> Caller<'a> {
    /// Creates a caller. `umask` is cleared from the modes of created files.
    pub fn new(kernel: &'a Kernel, credentials: &'a Credentials, umask: u16) -> Self {
        Self(Context {
            vfs: kernel.vfs(),
            credentials,
            umask: umask & 0o777,
        })
    }

    /// Returns the handle of `/`.
    pub fn root(&self) -> Handle {
        Handle(self.0.vfs.root())
    }

    /// Looks up `name` in a directory; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// ENOTDIR, EACCES, EINVAL for a name that is not plain, ENAMETOOLONG above 255 bytes.
    pub fn lookup(&self, directory: &Handle, name: &[u8]) -> Result<Option<Handle>> {
        Ok(self.0.lookup(&directory.0, plain(name)?)?.map(Handle))
    }

    /// Returns the inode `number` of the file system of `root`. A file found so has no name, and
    /// no permission to search directories is checked. Linux: open_by_handle_at(2).
    ///
    /// # Errors
    ///
    /// ESTALE if the inode is not in use, or the file system finds no inode by its number.
    pub fn by_number(&self, root: &Handle, number: u64) -> Result<Handle> {
        self.0.by_number(&root.0, InodeNumber(number)).map(Handle)
    }

    /// Returns how long a client may cache the result of [`Caller::lookup`].
    pub fn name_ttl(&self, directory: &Handle, name: &[u8]) -> Duration {
        self.0.vfs.dentries.valid_for(&directory.0.dentry, name)
    }

    /// Creates a directory. `mode` is its permission bits before the umask. Linux: mkdirat(2).
    ///
    /// # Errors
    ///
    /// EEXIST, EACCES, EROFS, ENOSPC, EMLINK, EINVAL for a name that is not plain.
    pub fn mkdir(&self, directory: &Handle, name: &[u8], mode: u16) -> Result<Handle> {
        self.0.mkdir(&directory.0, plain(name)?, mode).map(Handle)
    }

    /// Creates a regular file, device node, pipe or socket. `device` is the number of a device
    /// node. Linux: mknodat(2).
    ///
    /// # Errors
    ///
    /// EEXIST, EACCES, EPERM for a directory, or for a device node without privilege, EROFS,
    /// ENOSPC.
    pub fn mknod(
        &self,
        directory: &Handle,
        name: &[u8],
        file_type: FileType,
        mode: u16,
        device: DeviceNumber,
    ) -> Result<Handle> {
        self.0
            .mknod(&directory.0, plain(name)?, file_type, mode, device)
            .map(Handle)
    }

    /// Creates a symbolic link to `target`. Linux: symlinkat(2).
    ///
    /// # Errors
    ///
    /// EEXIST, EACCES, ENOENT for an empty target, ENAMETOOLONG, EROFS, ENOSPC.
    pub fn symlink(&self, target: &[u8], directory: &Handle, name: &[u8]) -> Result<Handle> {
        self.0
            .symlink(target, &directory.0, plain(name)?)
            .map(Handle)
    }

    /// Creates a hard link to `source`. Linux: linkat(2).
    ///
    /// # Errors
    ///
    /// EEXIST, EACCES, EPERM for a directory, EXDEV across mounts, EMLINK, EROFS, ENOSPC.
    pub fn link(&self, source: &Handle, directory: &Handle, name: &[u8]) -> Result<Handle> {
        self.0
            .link(&source.0, &directory.0, plain(name)?)
            .map(Handle)
    }

    /// Removes a name that is not a directory. Linux: unlinkat(2).
    ///
    /// # Errors
    ///
    /// ENOENT, EISDIR, EACCES, EPERM by the sticky bit, EROFS.
    pub fn unlink(&self, directory: &Handle, name: &[u8]) -> Result<()> {
        self.0.unlink(&directory.0, plain(name)?)
    }

    /// Removes an empty directory. Linux: unlinkat(2) with AT_REMOVEDIR.
    ///
    /// # Errors
    ///
    /// ENOENT, ENOTDIR, ENOTEMPTY, EBUSY for a mountpoint, EACCES, EPERM by the sticky bit, EROFS.
    pub fn rmdir(&self, directory: &Handle, name: &[u8]) -> Result<()> {
        self.0.rmdir(&directory.0, plain(name)?)
    }

    /// Moves a name, or exchanges two names. Linux: renameat2(2).
    ///
    /// # Errors
    ///
    /// ENOENT, EEXIST with `NOREPLACE`, EXDEV across mounts, EINVAL for a move below itself,
    /// ENOTEMPTY, EISDIR, ENOTDIR, EBUSY for a mountpoint, EACCES, EPERM, EROFS, ENOSPC.
    pub fn rename(
        &self,
        from: &Handle,
        name: &[u8],
        to: &Handle,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.0
            .rename(&from.0, plain(name)?, &to.0, plain(new_name)?, flags)
    }

    /// Returns the target of a symbolic link. Linux: readlinkat(2).
    ///
    /// # Errors
    ///
    /// EINVAL unless a symbolic link.
    pub fn read_link(&self, link: &Handle) -> Result<Vec<u8>> {
        self.0.read_link(&link.0)
    }

    /// Opens an existing file. Linux: open(2) of `/proc/self/fd/N`.
    ///
    /// # Errors
    ///
    /// EACCES, EISDIR for a write to a directory, ELOOP for a symbolic link, ENXIO for devices,
    /// pipes and sockets, EROFS.
    pub fn open(&self, file: &Handle, flags: OpenFlags) -> Result<OpenHandle> {
        Ok(OpenHandle(Arc::new(self.0.open_at(file.0.clone(), flags)?)))
    }

    /// Opens a file, creating it if it does not exist. Linux: openat(2) with O_CREAT.
    ///
    /// # Errors
    ///
    /// EEXIST with `EXCL`, EACCES, EISDIR, ELOOP for a symbolic link, EROFS, ENOSPC.
    pub fn create(
        &self,
        directory: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u16,
    ) -> Result<OpenHandle> {
        let flags = flags | OpenFlags::CREAT | OpenFlags::NOFOLLOW;
        Ok(OpenHandle(Arc::new(self.0.open(
            &directory.0,
            plain(name)?,
            flags,
            mode,
        )?)))
    }

    /// Opens a new file without a name. Linux: openat(2) with O_TMPFILE.
    ///
    /// # Errors
    ///
    /// ENOTDIR, EACCES, EINVAL unless opened for writing, EOPNOTSUPP if the file system lacks it,
    /// EROFS, ENOSPC.
    pub fn create_unnamed(
        &self,
        directory: &Handle,
        flags: OpenFlags,
        mode: u16,
    ) -> Result<OpenHandle> {
        let flags = flags | OpenFlags::TMPFILE;
        Ok(OpenHandle(Arc::new(self.0.open(
            &directory.0,
            b".",
            flags,
            mode,
        )?)))
    }

    /// Calls `sink` for each entry of a directory from `cookie` on (0 is the start), including `.`
    /// and `..`, until it breaks. The directory is locked meanwhile: `sink` must not call Folio.
    /// Linux: getdents64(2).
    ///
    /// # Errors
    ///
    /// ENOTDIR unless a directory, ENOENT if it was removed.
    pub fn read_directory(
        &self,
        directory: &Handle,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        vfs::read_directory(&directory.0, cookie, sink)?;
        vfs::touch_accessed(&directory.0.mount, &**directory.0.inode());
        Ok(())
    }

    /// Writes at the byte offset `offset`, with `APPEND` at the end of the file; returns the number
    /// of bytes written. Linux: pwrite(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for writing, EFBIG, ENOSPC, EROFS, EPERM for an immutable inode, EIO if
    /// the store fails.
    pub fn write(&self, file: &OpenHandle, bytes: &[u8], offset: u64) -> Result<usize> {
        file.0
            .write(self.0.credentials, Start::Offset(offset), &bytes.into())
    }

    /// Writes at the end of the file; returns the number of bytes written. Linux: pwritev2(2) with
    /// RWF_APPEND.
    ///
    /// # Errors
    ///
    /// Those of [`Caller::write`].
    pub fn append(&self, file: &OpenHandle, bytes: &[u8]) -> Result<usize> {
        file.0.append(self.0.credentials, &bytes.into())
    }

    /// Sets the size of an open file in bytes. Linux: ftruncate(2).
    ///
    /// # Errors
    ///
    /// EINVAL unless a regular file open for writing; EFBIG, EROFS.
    pub fn ftruncate(&self, file: &OpenHandle, size_bytes: u64) -> Result<()> {
        file.0.truncate(self.0.credentials, size_bytes)
    }

    /// Allocates, frees, zeroes, removes or inserts `len_bytes` bytes at `offset`. Linux:
    /// fallocate(2).
    ///
    /// # Errors
    ///
    /// EBADF unless open for writing, EINVAL for an invalid range, EFBIG, ENODEV, ENOSPC,
    /// EOPNOTSUPP, EROFS.
    pub fn fallocate(
        &self,
        file: &OpenHandle,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        file.0
            .fallocate(self.0.credentials, mode, offset, len_bytes)
    }

    /// Copies up to `count` bytes between files of one mount, at byte offsets; returns the number
    /// of bytes copied. Linux: copy_file_range(2).
    ///
    /// # Errors
    ///
    /// EBADF, EXDEV across mounts, EINVAL for overlapping ranges of one file, EISDIR, and those of
    /// read and write.
    pub fn copy_file_range(
        &self,
        input: &OpenHandle,
        input_offset: u64,
        out: &OpenHandle,
        out_offset: u64,
        count: usize,
    ) -> Result<usize> {
        let from = CopySide {
            file: &input.0,
            start: Start::Offset(input_offset),
        };
        let to = CopySide {
            file: &out.0,
            start: Start::Offset(out_offset),
        };
        vfs::copy_range(self.0.credentials, from, to, count)
    }

    /// Sets the size of a file in bytes. Linux: truncate(2).
    ///
    /// # Errors
    ///
    /// EISDIR, EINVAL for other types, EACCES, EFBIG, EROFS.
    pub fn truncate(&self, file: &Handle, size_bytes: u64) -> Result<()> {
        self.0.truncate(&file.0, size_bytes)
    }

    /// Changes the permission bits (12 bits). Linux: fchmodat(2).
    ///
    /// # Errors
    ///
    /// EPERM unless the owner or privileged, EOPNOTSUPP for a symbolic link, EROFS.
    pub fn chmod(&self, file: &Handle, mode: u16) -> Result<()> {
        self.0.chmod(&file.0, mode)
    }

    /// Returns the flags of lsattr(1). Linux: the FS_IOC_GETFLAGS ioctl.
    ///
    /// # Errors
    ///
    /// ENOTTY if the file system has none.
    pub fn flags(&self, file: &Handle) -> Result<InodeFlags> {
        file.0.inode().flags()
    }

    /// Returns the project of a file, as lsattr -p lists it. Linux: the FS_IOC_FSGETXATTR ioctl.
    ///
    /// # Errors
    ///
    /// ENOTTY if the file system has none.
    pub fn project(&self, file: &Handle) -> Result<u32> {
        file.0.inode().project()
    }

    /// Replaces the flags of chattr(1). Linux: the FS_IOC_SETFLAGS ioctl.
    ///
    /// # Errors
    ///
    /// EPERM without privilege, EOPNOTSUPP for a flag that cannot be changed, ENOTTY if the file
    /// system has none, EROFS.
    pub fn set_flags(&self, file: &Handle, flags: InodeFlags) -> Result<()> {
        self.0.set_flags(&file.0, flags)
    }

    /// Changes owner and group; `None` keeps a value. Linux: fchownat(2).
    ///
    /// # Errors
    ///
    /// EPERM without privilege, except to a group of the owner; EROFS.
    pub fn chown(&self, file: &Handle, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.0.chown(&file.0, uid, gid)
    }

    /// Sets access and modification time; `None` keeps a time. Linux: utimensat(2).
    ///
    /// # Errors
    ///
    /// EPERM or EACCES without permission, EINVAL for invalid nanoseconds, EROFS.
    pub fn set_times(
        &self,
        file: &Handle,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
    ) -> Result<()> {
        self.0.set_times(&file.0, accessed, modified)
    }

    /// Makes a file durable that is not open, for example a directory. Linux: fsync(2).
    ///
    /// # Errors
    ///
    /// EIO or ENOSPC if writeback failed.
    pub fn sync(&self, file: &Handle, data_only: bool) -> Result<()> {
        file.0.inode().sync(data_only)
    }

    /// Returns sizes and free space of the file system. Linux: statfs(2).
    ///
    /// # Errors
    ///
    /// EIO if the backing store does not answer.
    pub fn statfs(&self, file: &Handle) -> Result<FileSystemStatistics> {
        file.0.mount.file_system().statistics()
    }

    /// Discards the runs of at least `len_min` bytes in `range` that no file uses; returns how many
    /// bytes they have. Linux: the FITRIM ioctl.
    ///
    /// # Errors
    ///
    /// EPERM without privilege, ENOTTY if the file system has no device, EOPNOTSUPP if the device
    /// cannot discard, EINVAL for a range without a block, EROFS.
    pub fn fitrim(&self, file: &Handle, range: Range<u64>, len_min: u64) -> Result<u64> {
        vfs::trim(&file.0, self.0.credentials, range, len_min)
    }

    /// Returns the value of an extended attribute. Linux: getxattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if it is not set, EACCES, ERANGE, EOPNOTSUPP.
    pub fn getxattr(&self, file: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        self.0.xattr(&file.0, name)
    }

    /// Sets an extended attribute. Linux: setxattr(2).
    ///
    /// # Errors
    ///
    /// EEXIST or ENODATA by the flags, E2BIG above 64 KiB, EACCES, EPERM, ERANGE, EOPNOTSUPP,
    /// ENOSPC, EROFS.
    pub fn setxattr(
        &self,
        file: &Handle,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.0.set_xattr(&file.0, name, value, flags)
    }

    /// Returns the names of all extended attributes. Linux: listxattr(2).
    ///
    /// # Errors
    ///
    /// EIO if the backing store does not answer.
    pub fn listxattr(&self, file: &Handle) -> Result<Vec<Vec<u8>>> {
        self.0.list_xattrs(&file.0)
    }

    /// Removes an extended attribute. Linux: removexattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if it is not set, EACCES, EPERM, ERANGE, EOPNOTSUPP, EROFS.
    pub fn removexattr(&self, file: &Handle, name: &[u8]) -> Result<()> {
        self.0.remove_xattr(&file.0, name)
    }
}

/// Fails with EINVAL unless a name is plain: it refers to an entry of its directory. Clients may
/// send any bytes.
fn plain(name: &[u8]) -> Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok(name)
}
