//! Calls that make, move, take away and read names.

use super::AtFlags;
use super::process::{AT_FDCWD, Fd, Process, check_flags};
use crate::base::{Errno, Result};
use crate::vfs::{FileType, LastLink, RenameFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Process {
    /// mkdir(2).
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.mkdirat(AT_FDCWD, path, mode)
    }

    /// mkdirat(2).
    pub fn mkdirat(&self, dir: Fd, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.context()
                .mkdir(&self.start_at(dir, path)?, path, mode)
                .map(drop)
        })
    }

    /// mknodat(2). `device` is major and minor, for device nodes.
    pub fn mknodat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        file_type: FileType,
        mode: u16,
        device: (u32, u32),
    ) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.context()
                .mknod(&self.start_at(dir, path)?, path, file_type, mode, device)
                .map(drop)
        })
    }

    /// unlink(2).
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlinkat(AT_FDCWD, path, AtFlags::empty())
    }

    /// rmdir(2).
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlinkat(AT_FDCWD, path, AtFlags::REMOVEDIR)
    }

    /// unlinkat(2).
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

    /// rename(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::empty())
    }

    /// renameat2(2).
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
                .rename((&from_start, from), (&to_start, to), flags)
        })
    }

    /// link(2): a symbolic link in the last place is linked itself, as in Linux.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.linkat(AT_FDCWD, from, AT_FDCWD, to, AtFlags::empty())
    }

    /// linkat(2).
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
            // Linux asks for CAP_DAC_READ_SEARCH, and says ENOENT without.
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

    /// symlink(2).
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        self.symlinkat(target, AT_FDCWD, path)
    }

    /// symlinkat(2).
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

    /// readlink(2); the target is never cut short.
    pub fn readlink(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.readlinkat(AT_FDCWD, path)
    }

    /// readlinkat(2). With an empty path, the descriptor of a link that was opened with O_PATH and
    /// O_NOFOLLOW.
    pub fn readlinkat(&self, dir: Fd, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.with_path(path.as_ref(), |path| {
            let location = self.resolve_at(dir, path, LastLink::Keep, AtFlags::EMPTY_PATH)?;
            // An empty path names no link, unless a descriptor stands for it.
            if path.is_empty() && location.dentry.file_type() != FileType::Symlink {
                return Err(Errno::NOENT.into());
            }
            self.context().read_link(&location)
        })
    }

    /// access(2): `mode` is made of R_OK 4, W_OK 2 and X_OK 1, or F_OK 0.
    pub fn access(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.context().access(&self.start(), path, mode)
        })
    }
}
