//! Calls that return and change attributes, and return file system statistics.

use super::AtFlags;
use super::process::{AT_FDCWD, Fd, Process, check_flags, last_link};
use crate::base::{Result, rcu};
use crate::vfs::{self, Attributes, FileSystemStatistics, LastLink, Mount, RcuWalk, SetTime};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The attributes of a file and its mount. Linux: `struct statx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statx {
    /// The attributes of the inode.
    pub attributes: Attributes,
    /// A number that no other mount of the program has (`stx_mnt_id`). Each mount is a file system
    /// of its own, so this and the inode number identify a file, as `st_dev` does.
    pub mount_number: u32,
}

impl Statx {
    fn new(mount: &Mount, attributes: Attributes) -> Self {
        Self {
            attributes,
            mount_number: mount.number(),
        }
    }
}

impl Process {
    /// Returns the attributes of a file; follows symbolic links. Linux: stat(2).
    ///
    /// # Errors
    ///
    /// Those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        self.fstatat(AT_FDCWD, path, AtFlags::empty())
    }

    /// Returns the attributes of a file; does not follow a symbolic link in the last component.
    /// Linux: lstat(2).
    ///
    /// # Errors
    ///
    /// Those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        self.fstatat(AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns the attributes of an open file. Linux: fstat(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open.
    pub fn fstat(&self, fd: Fd) -> Result<Attributes> {
        let pin = rcu::pin();
        if let Some(file) = self.open_file(fd, &pin)
            && file.common().is_valid()
        {
            return Ok(file.common().attributes());
        }
        drop(pin);
        vfs::attributes(&**self.file(fd)?.inode())
    }

    /// Returns the attributes of a file, relative to `dir`. Flags: `SYMLINK_NOFOLLOW`,
    /// `EMPTY_PATH`. Linux: fstatat(2).
    ///
    /// # Errors
    ///
    /// EINVAL for unknown flags, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG, EBADF for `dir`.
    pub fn fstatat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<Attributes> {
        self.stat_at(dir, path.as_ref(), flags, |_, attributes| attributes)
    }

    /// Returns the attributes of a file and its mount, relative to `dir`. Flags:
    /// `SYMLINK_NOFOLLOW`, `EMPTY_PATH`. Linux: statx(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::fstatat`].
    pub fn statx(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<Statx> {
        self.stat_at(dir, path.as_ref(), flags, Statx::new)
    }

    #[inline]
    fn stat_at<T>(
        &self,
        dir: Fd,
        path: &Path,
        flags: AtFlags,
        make: impl Fn(&Mount, Attributes) -> T,
    ) -> Result<T> {
        let bytes = path.as_os_str().as_bytes();
        let pin = rcu::pin();
        if self.is_in_own_process()
            && (AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH).contains(flags)
            && let RcuWalk::Found(found) = self.rcu_walk(dir, bytes, last_link(flags), &pin)
            && found.common().is_valid()
        {
            return Ok(make(found.mount.value(), found.common().attributes()));
        }
        drop(pin);
        self.stat_slowly(dir, path, flags, make)
    }

    /// Returns attributes of a file that is not in memory, or fails.
    #[cold]
    fn stat_slowly<T>(
        &self,
        dir: Fd,
        path: &Path,
        flags: AtFlags,
        make: impl Fn(&Mount, Attributes) -> T,
    ) -> Result<T> {
        self.with_path(path, |path| {
            check_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
            let found = self.resolve_at(dir, path, last_link(flags), flags)?;
            Ok(make(&found.mount, vfs::attributes(&**found.inode())?))
        })
    }

    /// Sets the size of a file in bytes: truncates it, or extends it with a hole. Linux:
    /// truncate(2).
    ///
    /// # Errors
    ///
    /// EISDIR for a directory, EINVAL for other types and for a size above `i64::MAX`, EFBIG, EPERM
    /// for an immutable inode, EROFS, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG.
    pub fn truncate(&self, path: impl AsRef<Path>, size_bytes: u64) -> Result<()> {
        self.truncateat(AT_FDCWD, path, size_bytes, AtFlags::empty())
    }

    /// Sets the size in bytes of a file whose path is relative to `dir`, or with `EMPTY_PATH` of
    /// the file of `dir`. Linux: truncate(2) of `/proc/self/fd/DIR/PATH`.
    ///
    /// # Errors
    ///
    /// Those of [`Process::truncate`], and EBADF if `dir` is not open.
    pub fn truncateat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        size_bytes: u64,
        flags: AtFlags,
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            let found = self.resolve_at(dir, path, LastLink::Follow, flags)?;
            self.context().truncate(&found, size_bytes)
        })
    }

    /// Changes the permission bits (12 bits) of a file. Linux: chmod(2).
    ///
    /// # Errors
    ///
    /// EPERM unless the owner or privileged, EROFS, and those of path resolution: ENOENT, ENOTDIR,
    /// EACCES, ELOOP, ENAMETOOLONG.
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.fchmodat(AT_FDCWD, path, mode)
    }

    /// Changes the permission bits (12 bits) of an open file. Linux: fchmod(2).
    ///
    /// # Errors
    ///
    /// EPERM unless the owner or privileged, EROFS, EBADF if `fd` is not open or is an `O_PATH`
    /// descriptor.
    pub fn fchmod(&self, fd: Fd, mode: u16) -> Result<()> {
        self.context().chmod(&self.location(fd)?, mode)
    }

    /// Changes the permission bits (12 bits) of a file, relative to `dir`. Linux: fchmodat(2).
    ///
    /// # Errors
    ///
    /// EPERM unless the owner or privileged, EROFS, and those of path resolution: ENOENT, ENOTDIR,
    /// EACCES, ELOOP, ENAMETOOLONG, EBADF for `dir`.
    pub fn fchmodat(&self, dir: Fd, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.fchmodat2(dir, path, mode, AtFlags::empty())
    }

    /// Changes the permission bits (12 bits) of a file, relative to `dir`. Flags:
    /// `SYMLINK_NOFOLLOW`, `EMPTY_PATH`. Linux: fchmodat2(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::fchmodat`], EOPNOTSUPP for a symbolic link, EINVAL for unknown
    /// flags.
    pub fn fchmodat2(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        mode: u16,
        flags: AtFlags,
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            check_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
            let location = self.resolve_at(dir, path, last_link(flags), flags)?;
            self.context().chmod(&location, mode)
        })
    }

    /// Changes owner and group of a file; `None` keeps a value. Linux: chown(2).
    ///
    /// # Errors
    ///
    /// EPERM without privilege, except to a group of the owner; EROFS, and those of path
    /// resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.fchownat(AT_FDCWD, path, uid, gid, AtFlags::empty())
    }

    /// Changes owner and group of an open file; `None` keeps a value. Linux: fchown(2).
    ///
    /// # Errors
    ///
    /// EPERM without privilege, except to a group of the owner; EROFS, EBADF if `fd` is not open or
    /// is an `O_PATH` descriptor.
    pub fn fchown(&self, fd: Fd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.context().chown(&self.location(fd)?, uid, gid)
    }

    /// Changes owner and group of a file, relative to `dir`; `None` keeps a value. Flags:
    /// `SYMLINK_NOFOLLOW` (then lchown(2)), `EMPTY_PATH`. Linux: fchownat(2).
    ///
    /// # Errors
    ///
    /// EPERM without privilege, except to a group of the owner; EINVAL for unknown flags, EROFS,
    /// and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, EBADF for `dir`.
    pub fn fchownat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: AtFlags,
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            check_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
            self.context().chown(
                &self.resolve_at(dir, path, last_link(flags), flags)?,
                uid,
                gid,
            )
        })
    }

    /// Sets access and modification time; `None` keeps a time (`UTIME_OMIT`). Linux: utimensat(2).
    ///
    /// # Errors
    ///
    /// EPERM or EACCES without permission, EINVAL for invalid nanoseconds or flags, EROFS, and
    /// those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, EBADF for `dir`.
    pub fn utimensat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
        flags: AtFlags,
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            check_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
            let location = self.resolve_at(dir, path, last_link(flags), flags)?;
            self.context().set_times(&location, accessed, modified)
        })
    }

    /// Sets access and modification time of an open file; `None` keeps a time (`UTIME_OMIT`).
    /// Linux: futimens(3).
    ///
    /// # Errors
    ///
    /// EPERM or EACCES without permission, EINVAL for invalid nanoseconds, EROFS, EBADF if `fd` is
    /// not open or is an `O_PATH` descriptor.
    pub fn futimens(
        &self,
        fd: Fd,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
    ) -> Result<()> {
        self.context()
            .set_times(&self.location(fd)?, accessed, modified)
    }

    /// Returns sizes and free space of the file system of an open file. Linux: fstatfs(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open.
    pub fn fstatfs(&self, fd: Fd) -> Result<FileSystemStatistics> {
        self.file(fd)?.file_system().statistics()
    }

    /// Returns sizes and free space of the file system that holds `path`. Linux: statfs(2).
    ///
    /// # Errors
    ///
    /// Those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn statfs(&self, path: impl AsRef<Path>) -> Result<FileSystemStatistics> {
        self.statfsat(AT_FDCWD, path, AtFlags::empty())
    }

    /// Returns sizes and free space of the file system that holds a path relative to `dir`, or with
    /// `EMPTY_PATH` the file of `dir`. Linux: statfs(2) of `/proc/self/fd/DIR/PATH`.
    ///
    /// # Errors
    ///
    /// Those of [`Process::statfs`], and EBADF if `dir` is not open.
    pub fn statfsat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        flags: AtFlags,
    ) -> Result<FileSystemStatistics> {
        self.with_path(path.as_ref(), |path| {
            let found = self.resolve_at(dir, path, LastLink::Follow, flags)?;
            found.mount.file_system().statistics()
        })
    }
}
