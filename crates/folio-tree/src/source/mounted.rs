//! Reads from an image.

use super::batch_channel::Xattrs;
use super::source::{EntryNames, Source, SourceStat};
use crate::image::Image;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags, Whence};
use folio::{Errno, Error, Process};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The files of an image.
pub(crate) struct ImageSource<'a> {
    image: &'a Image,
}

/// An open file of the image, closed when dropped.
pub(crate) struct ImageNode<'a> {
    process: &'a Process,
    fd: Fd,
    /// The absolute path, for calls without an `at` form.
    path: PathBuf,
}

impl Drop for ImageNode<'_> {
    fn drop(&mut self) {
        if self.fd != AT_FDCWD {
            // The file was only read, so close cannot lose data.
            let _ = self.process.close(self.fd);
        }
    }
}

impl<'a> ImageSource<'a> {
    /// Creates the source for all files of this image.
    pub(crate) fn new(image: &'a Image) -> Self {
        Self { image }
    }
}

fn path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

impl<'a> Source for ImageSource<'a> {
    type Node = ImageNode<'a>;

    fn start(&self) -> ImageNode<'a> {
        ImageNode {
            process: self.image.process(),
            fd: AT_FDCWD,
            path: "/".into(),
        }
    }

    fn stat(&self, dir: &ImageNode<'a>, name: &[u8], follow: bool) -> Result<SourceStat, Error> {
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        Ok((dir.process.fstatat(dir.fd, path(name), flags)?, 0))
    }

    fn open(
        &self,
        dir: &ImageNode<'a>,
        name: &[u8],
        follow: bool,
        is_directory: bool,
    ) -> Result<(ImageNode<'a>, SourceStat), Error> {
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::NOFOLLOW, !follow);
        flags.set(OpenFlags::DIRECTORY, is_directory);
        let fd = dir.process.openat(dir.fd, path(name), flags, 0)?;
        let place = if is_directory {
            dir.path.join(path(name))
        } else {
            PathBuf::new()
        };
        let node = ImageNode {
            process: dir.process,
            fd,
            path: place,
        };
        let found = node.process.fstat(fd)?;
        Ok((node, (found, 0)))
    }

    fn list(&self, dir: &ImageNode<'a>) -> Result<EntryNames, Error> {
        let entries = dir.process.readdir(dir.fd)?.into_iter();
        Ok(entries.map(|entry| (entry.name, entry.file_type)).collect())
    }

    fn read_at(&self, file: &ImageNode<'a>, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        file.process.pread(file.fd, buf, offset)
    }

    fn next_data(&self, file: &ImageNode<'a>, offset: u64) -> Result<Option<(u64, u64)>, Error> {
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
        Ok(Some((
            start,
            file.process.lseek(file.fd, from, Whence::Hole)?,
        )))
    }

    fn read_link(&self, dir: &ImageNode<'a>, name: &[u8]) -> Result<Vec<u8>, Error> {
        dir.process.readlinkat(dir.fd, path(name))
    }

    fn xattrs(&self, node: &ImageNode<'a>, _: &SourceStat) -> Result<Xattrs, Error> {
        let mut xattrs = Vec::new();
        for name in node.process.flistxattr(node.fd)? {
            let value = node.process.fgetxattr(node.fd, &name)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }

    fn link_xattrs(
        &self,
        dir: &ImageNode<'a>,
        name: &[u8],
        _: &SourceStat,
    ) -> Result<Xattrs, Error> {
        let place = dir.path.join(path(name));
        let mut xattrs = Vec::new();
        for name in dir.process.llistxattr(&place)? {
            let value = dir.process.lgetxattr(&place, &name)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }

    fn is_own_image(&self, _: &SourceStat) -> bool {
        false
    }

    fn describe(&self, path: &[u8]) -> String {
        self.image.at(Path::new(OsStr::from_bytes(path)))
    }

    fn meant(&self, path: &[u8]) -> Option<String> {
        self.image.meant(Path::new(OsStr::from_bytes(path)))
    }
}
