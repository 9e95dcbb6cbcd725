//! Reads from a mounted file system.

use super::{FoundFile, OpenMode, Source, SourceName};
use crate::attributes::Xattrs;
use crate::entry::as_path as path;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags, Whence};
use folio::{Errno, Error, Process};
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The files that a process sees.
#[derive(Debug, Clone, Copy)]
pub struct MountSource<'a> {
    process: &'a Process,
}

/// An open file, closed when dropped.
pub struct MountNode<'a> {
    process: &'a Process,
    fd: Fd,
    /// The absolute path of a directory, for calls without an `at` form.
    path: PathBuf,
}

impl fmt::Debug for MountNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountNode")
            .field("fd", &self.fd)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Drop for MountNode<'_> {
    fn drop(&mut self) {
        if self.fd != AT_FDCWD {
            // The file was only read, so close cannot lose data.
            let _ = self.process.close(self.fd);
        }
    }
}

impl<'a> MountSource<'a> {
    /// Creates the source. Calls have the credentials of `process`.
    pub fn new(process: &'a Process) -> Self {
        Self { process }
    }
}

impl<'a> Source for MountSource<'a> {
    type Node = MountNode<'a>;

    fn start(&self) -> MountNode<'a> {
        MountNode {
            process: self.process,
            fd: AT_FDCWD,
            // If the working directory was removed, nothing is found below it anyway.
            path: OsString::from_vec(self.process.getcwd().unwrap_or_default()).into(),
        }
    }

    fn stat(
        &self,
        dir: &MountNode<'a>,
        name: &[u8],
        follows_links: bool,
    ) -> Result<FoundFile, Error> {
        let flags = if follows_links {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        let found = dir.process.statx(dir.fd, path(name), flags)?;
        Ok(FoundFile {
            attributes: found.attributes,
            device_id: found.mount_number.into(),
        })
    }

    fn open(
        &self,
        dir: &MountNode<'a>,
        name: &[u8],
        mode: OpenMode,
    ) -> Result<(MountNode<'a>, FoundFile), Error> {
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::NOFOLLOW, !mode.follows_links);
        flags.set(OpenFlags::DIRECTORY, mode.is_directory);
        let fd = dir.process.openat(dir.fd, path(name), flags, 0)?;
        let place = if mode.is_directory {
            dir.path.join(path(name))
        } else {
            PathBuf::new()
        };
        let node = MountNode {
            process: dir.process,
            fd,
            path: place,
        };
        let found = node.process.statx(fd, "", AtFlags::EMPTY_PATH)?;
        let found = FoundFile {
            attributes: found.attributes,
            device_id: found.mount_number.into(),
        };
        Ok((node, found))
    }

    fn list(&self, dir: &MountNode<'a>) -> Result<Vec<SourceName>, Error> {
        let entries = dir.process.readdir(dir.fd)?.into_iter();
        Ok(entries
            .map(|entry| SourceName {
                name: entry.name,
                file_type: entry.file_type,
            })
            .collect())
    }

    fn read_at(&self, file: &MountNode<'a>, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        file.process.pread(file.fd, buf, offset)
    }

    fn next_data(&self, file: &MountNode<'a>, offset: u64) -> Result<Option<Range<u64>>, Error> {
        let Ok(offset) = i64::try_from(offset) else {
            return Ok(None);
        };
        let start = match file.process.lseek(file.fd, offset, Whence::Data) {
            Err(error) if error.errno() == Errno::NXIO => return Ok(None),
            other => other?,
        };
        let Ok(from) = i64::try_from(start) else {
            return Ok(None);
        };
        let end = file.process.lseek(file.fd, from, Whence::Hole)?;
        Ok(Some(start..end))
    }

    fn read_link(&self, dir: &MountNode<'a>, name: &[u8]) -> Result<Vec<u8>, Error> {
        dir.process.readlinkat(dir.fd, path(name))
    }

    fn xattrs(&self, node: &MountNode<'a>, _: &FoundFile) -> Result<Xattrs, Error> {
        let mut xattrs = Vec::new();
        for name in node.process.flistxattr(node.fd)? {
            let value = node.process.fgetxattr(node.fd, &name)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }

    fn link_xattrs(
        &self,
        dir: &MountNode<'a>,
        name: &[u8],
        _: &FoundFile,
    ) -> Result<Xattrs, Error> {
        let place = dir.path.join(path(name));
        let mut xattrs = Vec::new();
        for name in dir.process.llistxattr(&place)? {
            let value = dir.process.lgetxattr(&place, &name)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }
}
