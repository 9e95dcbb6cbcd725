//! Calls on extended attributes. The prefix `f` takes a descriptor; the prefix `l` does not follow
//! a symbolic link in the last component.

use super::process::{Fd, Process};
use crate::base::Result;
use crate::vfs::{LastLink, XattrFlags};
use std::path::Path;

impl Process {
    /// Returns the value of an extended attribute. Linux: getxattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute is not set, ERANGE for an empty or too long name, EOPNOTSUPP for an
    /// unknown namespace or without support, and those of path resolution: ENOENT, ENOTDIR, EACCES,
    /// ELOOP, ENAMETOOLONG.
    pub fn getxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_at(path.as_ref(), LastLink::Follow, name)
    }

    /// Returns the value of an extended attribute of a file; does not follow a symbolic link in the
    /// last component. Linux: lgetxattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute is not set, ERANGE for an empty or too long name, EOPNOTSUPP for an
    /// unknown namespace or without support, and those of path resolution: ENOENT, ENOTDIR, EACCES,
    /// ELOOP, ENAMETOOLONG.
    pub fn lgetxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_at(path.as_ref(), LastLink::Keep, name)
    }

    /// Returns the value of an extended attribute of an open file. Linux: fgetxattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute is not set, ERANGE for an empty or too long name, EOPNOTSUPP for an
    /// unknown namespace or without support, and EBADF if `fd` is not open or is an `O_PATH`
    /// descriptor.
    pub fn fgetxattr(&self, fd: Fd, name: &[u8]) -> Result<Vec<u8>> {
        self.context().xattr(&self.location(fd)?, name)
    }

    /// Sets an extended attribute. Linux: setxattr(2).
    ///
    /// # Errors
    ///
    /// EEXIST or ENODATA by the flags, E2BIG for a value above 64 KiB, ENOSPC, EPERM or EACCES
    /// without permission, EROFS, ERANGE for an empty or too long name, EOPNOTSUPP for an unknown
    /// namespace or without support, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG.
    pub fn setxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr_at(path.as_ref(), LastLink::Follow, name, value, flags)
    }

    /// Sets an extended attribute of a file; does not follow a symbolic link in the last component.
    /// Linux: lsetxattr(2).
    ///
    /// # Errors
    ///
    /// EEXIST or ENODATA by the flags, E2BIG for a value above 64 KiB, ENOSPC, EPERM or EACCES
    /// without permission, EROFS, ERANGE for an empty or too long name, EOPNOTSUPP for an unknown
    /// namespace or without support, and those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP,
    /// ENAMETOOLONG.
    pub fn lsetxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr_at(path.as_ref(), LastLink::Keep, name, value, flags)
    }

    /// Sets an extended attribute of an open file. Linux: fsetxattr(2).
    ///
    /// # Errors
    ///
    /// EEXIST or ENODATA by the flags, E2BIG for a value above 64 KiB, ENOSPC, EPERM or EACCES
    /// without permission, EROFS, ERANGE for an empty or too long name, EOPNOTSUPP for an unknown
    /// namespace or without support, and EBADF if `fd` is not open or is an `O_PATH` descriptor.
    pub fn fsetxattr(&self, fd: Fd, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.context()
            .set_xattr(&self.location(fd)?, name, value, flags)
    }

    /// Returns the names of all extended attributes. Linux: listxattr(2).
    ///
    /// # Errors
    ///
    /// Those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn listxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs_at(path.as_ref(), LastLink::Follow)
    }

    /// Returns the names of all extended attributes of a file; does not follow a symbolic link in
    /// the last component. Linux: llistxattr(2).
    ///
    /// # Errors
    ///
    /// Those of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn llistxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs_at(path.as_ref(), LastLink::Keep)
    }

    /// Returns the names of all extended attributes of an open file. Linux: flistxattr(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open or is an `O_PATH` descriptor.
    pub fn flistxattr(&self, fd: Fd) -> Result<Vec<Vec<u8>>> {
        self.context().list_xattrs(&self.location(fd)?)
    }

    /// Removes an extended attribute. Linux: removexattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute is not set, EPERM or EACCES without permission, EROFS, ERANGE for
    /// an empty or too long name, EOPNOTSUPP for an unknown namespace or without support, and those
    /// of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn removexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        self.remove_xattr_at(path.as_ref(), LastLink::Follow, name)
    }

    /// Removes an extended attribute of a file; does not follow a symbolic link in the last
    /// component. Linux: lremovexattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute is not set, EPERM or EACCES without permission, EROFS, ERANGE for
    /// an empty or too long name, EOPNOTSUPP for an unknown namespace or without support, and those
    /// of path resolution: ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn lremovexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        self.remove_xattr_at(path.as_ref(), LastLink::Keep, name)
    }

    /// Removes an extended attribute of an open file. Linux: fremovexattr(2).
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute is not set, EPERM or EACCES without permission, EROFS, ERANGE for
    /// an empty or too long name, EOPNOTSUPP for an unknown namespace or without support, and EBADF
    /// if `fd` is not open or is an `O_PATH` descriptor.
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
