//! Extended attributes, accessed by the descriptor's path in /proc, which refers to the same inode
//! as the descriptor.

use super::host_calls::{self, retry};
use super::inode::HostInode;
use crate::base::{Errno, Error, Result};
use crate::vfs::{ACL_ACCESS, ACL_DEFAULT, FileType, XattrFlags};

/// Largest value, and largest list of names (linux/limits.h).
const VALUE_MAX: usize = 64 << 10;

fn is_acl(name: &[u8]) -> bool {
    matches!(name, ACL_ACCESS | ACL_DEFAULT)
}

impl HostInode {
    /// Calls `call` with a path that refers to the inode. EOPNOTSUPP for a symbolic link, which the
    /// host would follow.
    fn with_path<T>(&self, call: impl Fn(&str) -> rustix::io::Result<T>) -> Result<T> {
        if !self.shared.options.has_xattrs {
            return Err(Error::new(
                Errno::OPNOTSUPP,
                "extended attributes are disabled (mount option xattr=off)",
            ));
        }
        if self.common.file_type == FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let fd = self.descriptor()?;
        let path = host_calls::path_of(&*fd);
        retry(|| call(&path))
    }

    /// Returns the value of an extended attribute; `None` if it is not set.
    pub(super) fn host_xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let read = self.with_path(|path| {
            let mut value = Vec::with_capacity(VALUE_MAX);
            rustix::fs::getxattr(path, name, rustix::buffer::spare_capacity(&mut value))?;
            Ok(value)
        });
        let mut value = match read {
            Ok(value) => value,
            Err(error) if error.errno() == Errno::NODATA => return Ok(None),
            Err(error) => return Err(error),
        };
        value.shrink_to_fit();
        if is_acl(name) {
            self.shared
                .options
                .owners
                .translate_acl(&mut value, false)?;
        }
        Ok(Some(value))
    }

    /// Sets an extended attribute.
    pub(super) fn set_host_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let mut value = value.to_vec();
        if is_acl(name) {
            self.shared.options.owners.translate_acl(&mut value, true)?;
        }
        let flags = rustix::fs::XattrFlags::from_bits_truncate(flags.bits());
        let own = self.begin_own()?;
        self.with_path(|path| rustix::fs::setxattr(path, name, &value, flags))?;
        own.end()?;
        Ok(())
    }

    /// Removes an extended attribute.
    pub(super) fn remove_host_xattr(&self, name: &[u8]) -> Result<()> {
        let own = self.begin_own()?;
        self.with_path(|path| rustix::fs::removexattr(path, name))?;
        own.end()?;
        Ok(())
    }

    /// Returns the names of all extended attributes.
    pub(super) fn list_host_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let listed = self.with_path(|path| {
            let mut names = Vec::with_capacity(VALUE_MAX);
            rustix::fs::listxattr(path, rustix::buffer::spare_capacity(&mut names))?;
            Ok(names)
        });
        match listed {
            Ok(names) => Ok(names
                .split(|byte| *byte == 0)
                .filter(|name| !name.is_empty())
                .map(<[u8]>::to_vec)
                .collect()),
            Err(error) if error.errno() == Errno::OPNOTSUPP => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
