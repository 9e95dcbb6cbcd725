//! Calls that tell and change attributes, and tell about the file system.

use super::AtFlags;
use super::process::{AT_FDCWD, Fd, Process, check_flags, last_link};
use crate::base::Result;
use crate::vfs::{self, Attributes, FileSystemStatistics, LastLink, SetTime};
use std::path::Path;

impl Process {
    /// stat(2).
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        self.fstatat(AT_FDCWD, path, AtFlags::empty())
    }

    /// lstat(2).
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        self.fstatat(AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// fstat(2).
    pub fn fstat(&self, fd: Fd) -> Result<Attributes> {
        match self.with_file(fd, |file| vfs::cached_attributes(&**file.inode()))? {
            Some(attributes) => Ok(attributes),
            None => vfs::attributes(&**self.file(fd)?.inode()),
        }
    }

    /// fstatat(2).
    pub fn fstatat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<Attributes> {
        self.with_path(path.as_ref(), |path| {
            check_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
            let last_link = last_link(flags);
            match self.with_rcu_walk(dir, path, last_link, |found| {
                vfs::cached_attributes(&**found.inode())
            }) {
                Some(Ok(Some(attributes))) => Ok(attributes),
                Some(Err(error)) => Err(error),
                Some(Ok(None)) | None => {
                    vfs::attributes(&**self.resolve_at(dir, path, last_link, flags)?.inode())
                }
            }
        })
    }

    /// truncate(2).
    pub fn truncate(&self, path: impl AsRef<Path>, size_bytes: u64) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.context()
                .truncate(&self.resolve(path, LastLink::Follow)?, size_bytes)
        })
    }

    /// chmod(2).
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.fchmodat(AT_FDCWD, path, mode)
    }

    /// fchmod(2).
    pub fn fchmod(&self, fd: Fd, mode: u16) -> Result<()> {
        self.context().chmod(&self.location(fd)?, mode)
    }

    /// fchmodat(2).
    pub fn fchmodat(&self, dir: Fd, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            let location = self.resolve_at(dir, path, LastLink::Follow, AtFlags::empty())?;
            self.context().chmod(&location, mode)
        })
    }

    /// chown(2). `None` leaves owner or group as it is.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.fchownat(AT_FDCWD, path, uid, gid, AtFlags::empty())
    }

    /// fchown(2).
    pub fn fchown(&self, fd: Fd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.context().chown(&self.location(fd)?, uid, gid)
    }

    /// fchownat(2); with SYMLINK_NOFOLLOW lchown(2).
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

    /// utimensat(2). `None` leaves a time as it is (`UTIME_OMIT`).
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

    /// futimens(3).
    pub fn futimens(
        &self,
        fd: Fd,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
    ) -> Result<()> {
        self.context()
            .set_times(&self.location(fd)?, accessed, modified)
    }

    /// statfs(2).
    pub fn statfs(&self, path: impl AsRef<Path>) -> Result<FileSystemStatistics> {
        self.with_path(path.as_ref(), |path| {
            self.resolve(path, LastLink::Follow)?
                .mount
                .file_system()
                .statistics()
        })
    }
}
