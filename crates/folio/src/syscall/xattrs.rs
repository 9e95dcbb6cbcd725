//! Calls about extended attributes: `f` takes a descriptor, `l` does not follow a link in the last
//! place.

use super::process::{Fd, Process};
use crate::base::Result;
use crate::vfs::{LastLink, XattrFlags};
use std::path::Path;

impl Process {
    /// getxattr(2).
    pub fn getxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_at(path.as_ref(), LastLink::Follow, name)
    }

    /// lgetxattr(2).
    pub fn lgetxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_at(path.as_ref(), LastLink::Keep, name)
    }

    /// fgetxattr(2).
    pub fn fgetxattr(&self, fd: Fd, name: &[u8]) -> Result<Vec<u8>> {
        self.context().xattr(&self.location(fd)?, name)
    }

    /// setxattr(2).
    pub fn setxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr_at(path.as_ref(), LastLink::Follow, name, value, flags)
    }

    /// lsetxattr(2).
    pub fn lsetxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr_at(path.as_ref(), LastLink::Keep, name, value, flags)
    }

    /// fsetxattr(2).
    pub fn fsetxattr(&self, fd: Fd, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.context()
            .set_xattr(&self.location(fd)?, name, value, flags)
    }

    /// listxattr(2).
    pub fn listxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs_at(path.as_ref(), LastLink::Follow)
    }

    /// llistxattr(2).
    pub fn llistxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs_at(path.as_ref(), LastLink::Keep)
    }

    /// flistxattr(2).
    pub fn flistxattr(&self, fd: Fd) -> Result<Vec<Vec<u8>>> {
        self.context().list_xattrs(&self.location(fd)?)
    }

    /// removexattr(2).
    pub fn removexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        self.remove_xattr_at(path.as_ref(), LastLink::Follow, name)
    }

    /// lremovexattr(2).
    pub fn lremovexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        self.remove_xattr_at(path.as_ref(), LastLink::Keep, name)
    }

    /// fremovexattr(2).
    pub fn fremovexattr(&self, fd: Fd, name: &[u8]) -> Result<()> {
        self.context().remove_xattr(&self.location(fd)?, name)
    }

    fn xattr_at(&self, path: &Path, last_link: LastLink, name: &[u8]) -> Result<Vec<u8>> {
        self.with_path(path, |path| {
            self.context().xattr(&self.resolve(path, last_link)?, name)
        })
    }

    fn set_xattr_at(
        &self,
        path: &Path,
        last_link: LastLink,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.with_path(path, |path| {
            self.context()
                .set_xattr(&self.resolve(path, last_link)?, name, value, flags)
        })
    }

    fn list_xattrs_at(&self, path: &Path, last_link: LastLink) -> Result<Vec<Vec<u8>>> {
        self.with_path(path, |path| {
            self.context().list_xattrs(&self.resolve(path, last_link)?)
        })
    }

    fn remove_xattr_at(&self, path: &Path, last_link: LastLink, name: &[u8]) -> Result<()> {
        self.with_path(path, |path| {
            self.context()
                .remove_xattr(&self.resolve(path, last_link)?, name)
        })
    }
}
