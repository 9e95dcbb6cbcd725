//! Extended attributes: names and permissions. Linux: fs/xattr.c, security/commoncap.c.

use super::acl::{ACL_ACCESS, ACL_DEFAULT, AclKind};
use super::attributes::{AttributeChange, FileType};
use super::credentials::Access;
use super::dentry::Location;
use super::inode::{Inode, XattrFlags};
use super::permission::{SET_GID, STICKY, check_access};
use super::walk::Context;
use crate::base::{Errno, Result};

const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 64 << 10;

/// The namespace of a name: the part before the first dot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    Acl,
    Unknown,
}

impl Namespace {
    fn of(name: &[u8]) -> Result<Self> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE.into());
        }
        if name.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        if name == ACL_ACCESS || name == ACL_DEFAULT {
            return Ok(Self::Acl);
        }
        let prefixes = [
            (b"user.".as_slice(), Self::User),
            (b"trusted.".as_slice(), Self::Trusted),
            (b"security.".as_slice(), Self::Security),
        ];
        Ok(prefixes
            .iter()
            .find(|(prefix, _)| name.starts_with(prefix))
            .map_or(Self::Unknown, |(_, namespace)| *namespace))
    }
}

/// Drops the cached ACL if `name` is an ACL's attribute.
fn invalidate_acl(inode: &dyn Inode, name: &[u8]) {
    for kind in [AclKind::Access, AclKind::Default] {
        if name == kind.attribute() {
            inode.common().attributes.acls.invalidate(kind);
        }
    }
}

impl Context<'_> {
    /// Returns the value of an extended attribute: getxattr(2).
    pub(crate) fn xattr(&self, location: &Location, name: &[u8]) -> Result<Vec<u8>> {
        let inode = &**location.inode();
        self.check_xattr(inode, name, Access::READ)?;
        Ok(inode.xattr(name)?.ok_or(Errno::NODATA)?)
    }

    /// Sets an extended attribute: setxattr(2).
    pub(crate) fn set_xattr(
        &self,
        location: &Location,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        Namespace::of(name)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        location.mount.check_writable()?;
        let inode = &**location.inode();
        let lock = inode.common().lock.write();
        self.check_xattr(inode, name, Access::WRITE)?;
        let set = inode.set_xattr(self.credentials, name, value, flags);
        invalidate_acl(inode, name);
        set?;
        if name == ACL_ACCESS {
            self.drop_set_gid(inode)?;
        }
        drop(lock);
        location.mount.sync_if_required(inode)
    }

    /// Removes an extended attribute: removexattr(2).
    pub(crate) fn remove_xattr(&self, location: &Location, name: &[u8]) -> Result<()> {
        Namespace::of(name)?;
        location.mount.check_writable()?;
        let inode = &**location.inode();
        let lock = inode.common().lock.write();
        self.check_xattr(inode, name, Access::WRITE)?;
        let removed = inode.remove_xattr(self.credentials, name);
        invalidate_acl(inode, name);
        removed?;
        drop(lock);
        location.mount.sync_if_required(inode)
    }

    /// Returns the names of the extended attributes: listxattr(2). Only the superuser sees
    /// `trusted.*`.
    pub(crate) fn list_xattrs(&self, location: &Location) -> Result<Vec<Vec<u8>>> {
        let mut names = location.inode().list_xattrs()?;
        if !self.credentials.is_root() {
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    /// Clears the setgid bit after a new access ACL if the caller is not in the file's group, as
    /// chmod(2) does. Linux: `posix_acl_update_mode`.
    fn drop_set_gid(&self, inode: &dyn Inode) -> Result<()> {
        let attributes = inode.common().attributes();
        let may_keep = self.credentials.is_root() || self.credentials.is_member(attributes.gid);
        if may_keep || attributes.mode & SET_GID == 0 {
            return Ok(());
        }
        let change = AttributeChange {
            mode: Some(attributes.mode & !SET_GID),
            ..AttributeChange::default()
        };
        inode.set_attributes(self.credentials, &change)
    }

    fn check_xattr(&self, inode: &dyn Inode, name: &[u8], want: Access) -> Result<()> {
        let caller = self.credentials;
        let file_type = inode.common().file_type;
        let is_write = want == Access::WRITE;
        let errno = if is_write { Errno::PERM } else { Errno::NODATA };
        match Namespace::of(name)? {
            Namespace::User => {
                if !matches!(file_type, FileType::Regular | FileType::Directory) {
                    return Err(errno.into());
                }
                if !caller.is_root() {
                    let attributes = inode.common().attributes();
                    let is_sticky =
                        file_type == FileType::Directory && attributes.mode & STICKY != 0;
                    if is_write && is_sticky && !caller.is_owner(&attributes) {
                        return Err(Errno::PERM.into());
                    }
                }
                check_access(inode, caller, want)?;
                if name.len() == b"user.".len() {
                    Err(Errno::INVAL.into())
                } else {
                    Ok(())
                }
            }
            Namespace::Trusted if !caller.is_root() => Err(errno.into()),
            Namespace::Security if is_write && !caller.is_root() => Err(Errno::PERM.into()),
            Namespace::Trusted | Namespace::Security => {
                if name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1 {
                    return Err(Errno::INVAL.into());
                }
                Ok(())
            }
            Namespace::Acl => {
                if file_type == FileType::Symlink {
                    return Err(Errno::OPNOTSUPP.into());
                }
                if is_write && name == ACL_DEFAULT && file_type != FileType::Directory {
                    return Err(Errno::ACCESS.into());
                }
                if is_write && !caller.is_owner(&inode.common().attributes()) {
                    return Err(Errno::PERM.into());
                }
                Ok(())
            }
            Namespace::Unknown => {
                check_access(inode, caller, want)?;
                Err(Errno::OPNOTSUPP.into())
            }
        }
    }
}
