//! Calls that create, move, remove and read names.

use super::AtFlags;
use super::process::{AT_FDCWD, Fd, Process, check_flags, last_link};
use crate::base::{DeviceNumber, Errno, Result};
use crate::vfs::{FileType, LastLink, RenameFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Process {
    /// Creates a directory. `mode` is its permission bits before the umask. Linux: mkdir(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::mkdirat`].
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.mkdirat(AT_FDCWD, path, mode)
    }

    /// Creates a directory, relative to `dir`. Linux: mkdirat(2).
    ///
    /// # Errors
    ///
    /// EEXIST if the name exists, EROFS on a read-only mount, ENOSPC, EMLINK, and those of path
    /// resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, EBADF for `dir`.
    pub fn mkdirat(&self, dir: Fd, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.context()
                .mkdir(&self.start_at(dir, path)?, path, mode)
                .map(drop)
        })
    }

    /// Creates a regular file, device node, pipe or socket. `device` is the number of a device
    /// node. Linux: mknodat(2).
    ///
    /// # Errors
    ///
    /// EEXIST if the name exists, EPERM for a directory, or for a device node without privilege,
    /// EINVAL for a symbolic link, EROFS, ENOSPC, and those of path resolution: ENOENT, ENOTDIR,
    /// EACCES, ELOOP, ENAMETOOLONG, EBADF for `dir`.
    pub fn mknodat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        file_type: FileType,
        mode: u16,
        device: DeviceNumber,
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.context()
                .mknod(&self.start_at(dir, path)?, path, file_type, mode, device)
                .map(drop)
        })
    }

    /// Removes a name that is not a directory. Linux: unlink(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::unlinkat`].
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlinkat(AT_FDCWD, path, AtFlags::empty())
    }

    /// Removes an empty directory. Linux: rmdir(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::unlinkat`].
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlinkat(AT_FDCWD, path, AtFlags::REMOVEDIR)
    }

    /// Removes a name, or with `REMOVEDIR` an empty directory. Linux: unlinkat(2).
    ///
    /// # Errors
    ///
    /// EISDIR for a directory without `REMOVEDIR`, ENOTDIR with it for another type, ENOTEMPTY,
    /// EBUSY for a mountpoint, EPERM by the sticky bit or for an immutable inode, EINVAL for
    /// unknown flags, EROFS, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG, EBADF for `dir`.
    pub fn unlinkat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            check_flags(flags, AtFlags::REMOVEDIR)?;
            let start = self.start_at(dir, path)?;
            if flags.contains(AtFlags::REMOVEDIR) {
                self.context().rmdir(&start, path)
            } else {
                self.context().unlink(&start, path)
            }
        })
    }

    /// Moves a name, replacing the new name if it exists. Linux: rename(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::renameat2`].
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::empty())
    }

    /// Moves a name, or exchanges two names with `EXCHANGE`. Linux: renameat2(2).
    ///
    /// # Errors
    ///
    /// EEXIST with `NOREPLACE`, EXDEV across mounts, EINVAL for a move below itself or invalid
    /// flags, ENOTEMPTY, EISDIR or ENOTDIR for unequal types, EBUSY for a mountpoint, EPERM by the
    /// sticky bit, EROFS, ENOSPC, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG, EBADF for `dir`.
    pub fn renameat2(
        &self,
        from_dir: Fd,
        from: impl AsRef<Path>,
        to_dir: Fd,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = to.as_ref().as_os_str().as_bytes();
        self.with_path(from.as_ref(), |from| {
            let from_start = self.start_at(from_dir, from)?;
            let to_start = self.start_at(to_dir, to)?;
            self.context()
                .rename(&from_start, from, &to_start, to, flags)
        })
    }

    /// Creates a hard link. A symbolic link in the last component of `from` is linked itself.
    /// Linux: link(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::linkat`].
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.linkat(AT_FDCWD, from, AT_FDCWD, to, AtFlags::empty())
    }

    /// Creates a hard link `to` for the inode of `from`. Linux: linkat(2).
    ///
    /// # Errors
    ///
    /// EEXIST if `to` exists, EPERM for a directory, EXDEV across mounts, EMLINK, EINVAL for
    /// unknown flags, EROFS, ENOSPC, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG, EBADF for `dir`.
    pub fn linkat(
        &self,
        from_dir: Fd,
        from: impl AsRef<Path>,
        to_dir: Fd,
        to: impl AsRef<Path>,
        flags: AtFlags,
    ) -> Result<()> {
        let from = from.as_ref().as_os_str().as_bytes();
        self.with_path(to.as_ref(), |to| {
            check_flags(flags, AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH)?;
            // Linux requires CAP_DAC_READ_SEARCH, and fails with ENOENT without it.
            if flags.contains(AtFlags::EMPTY_PATH) && from.is_empty() && self.credentials().uid != 0
            {
                return Err(Errno::NOENT.into());
            }
            let follows = flags.contains(AtFlags::SYMLINK_FOLLOW);
            let last_link = if follows {
                LastLink::Follow
            } else {
                LastLink::Keep
            };
            let source = self.resolve_at(from_dir, from, last_link, flags)?;
            self.context()
                .link(&source, &self.start_at(to_dir, to)?, to)
                .map(drop)
        })
    }

    /// Creates a symbolic link at `path` to `target`. Linux: symlink(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::symlinkat`].
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        self.symlinkat(target, AT_FDCWD, path)
    }

    /// Creates a symbolic link at `path`, relative to `dir`, to `target`. Linux: symlinkat(2).
    ///
    /// # Errors
    ///
    /// EEXIST if the name exists, ENOENT for an empty target, ENAMETOOLONG for a target of 4096
    /// bytes or more, EROFS, ENOSPC, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG, EBADF for `dir`.
    pub fn symlinkat(
        &self,
        target: impl AsRef<Path>,
        dir: Fd,
        path: impl AsRef<Path>,
    ) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.with_path(path.as_ref(), |path| {
            self.context()
                .symlink(target, &self.start_at(dir, path)?, path)
                .map(drop)
        })
    }

    /// Returns the absolute path of an open file or directory, as the mount tree has it now. Linux:
    /// readlink(2) of `/proc/self/fd/N`.
    ///
    /// # Errors
    ///
    /// EBADF for a closed descriptor, ENOENT for a file without a name.
    pub fn path_of(&self, fd: Fd) -> Result<Vec<u8>> {
        self.context().path_of(self.file(fd)?.location())
    }

    /// Returns the target of a symbolic link, never truncated. Linux: readlink(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::readlinkat`].
    pub fn readlink(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.readlinkat(AT_FDCWD, path)
    }

    /// Returns the target of a symbolic link. With an empty path, `dir` is the descriptor of a link
    /// opened with `O_PATH | O_NOFOLLOW`. Linux: readlinkat(2).
    ///
    /// # Errors
    ///
    /// EINVAL unless a symbolic link, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG, EBADF for `dir`.
    pub fn readlinkat(&self, dir: Fd, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.with_path(path.as_ref(), |path| {
            let location = self.resolve_at(dir, path, LastLink::Keep, AtFlags::EMPTY_PATH)?;
            // An empty path is valid only with the descriptor of a link.
            if path.is_empty() && location.dentry.file_type() != FileType::Symlink {
                return Err(Errno::NOENT.into());
            }
            self.context().read_link(&location)
        })
    }

    /// Checks whether the process may access a file. `mode` combines R_OK 4, W_OK 2 and X_OK 1;
    /// F_OK is 0. Linux: access(2).
    ///
    /// # Errors
    ///
    /// EACCES if the access is denied, EROFS for a write to a read-only mount, EINVAL for an
    /// invalid mode, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn access(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.faccessat2(AT_FDCWD, path, mode, AtFlags::empty())
    }

    /// Checks whether the process may access a file, relative to `dir`. Flags: `SYMLINK_NOFOLLOW`,
    /// `EMPTY_PATH`, and `EACCESS`, which changes nothing: a process has one user. Linux:
    /// faccessat2(2).
    ///
    /// # Errors
    ///
    /// The errors of [`Process::access`], EINVAL for unknown flags, EBADF for `dir`.
    pub fn faccessat2(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        mode: u16,
        flags: AtFlags,
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            let known = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::EACCESS;
            check_flags(flags, known)?;
            if mode > 7 {
                return Err(Errno::INVAL.into());
            }
            let location = self.resolve_at(dir, path, last_link(flags), flags)?;
            self.context().access(&location, mode)
        })
    }
}
