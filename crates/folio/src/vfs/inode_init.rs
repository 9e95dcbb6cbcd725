//! Initial owner, mode and ACLs of new inodes, derived from the caller and the directory. Linux:
//! fs/inode.c (`inode_init_owner`), fs/posix_acl.c (`posix_acl_create`).

use super::acl::{Acl, AclKind};
use super::attributes::{FileType, NewInode};
use super::credentials::Credentials;
use super::inode::{Inode, XattrFlags};
use super::permission::{acl_of, new_owner};
use super::walk::Context;
use crate::base::{DeviceNumber, Result};
use std::sync::Arc;

/// The initial properties of a new inode, and the ACLs that it inherits.
pub(crate) struct InodeInit<'a> {
    pub(crate) new: NewInode<'a>,
    access: Option<Acl>,
    default: Option<Arc<Acl>>,
}

impl InodeInit<'_> {
    /// Sets the inherited ACLs of a new inode.
    fn set_acls(&self, caller: &Credentials, inode: &dyn Inode) -> Result<()> {
        let access = self.access.as_ref().map(|acl| (AclKind::Access, acl));
        let default = self.default.as_deref().map(|acl| (AclKind::Default, acl));
        if access.is_none() && default.is_none() {
            return Ok(());
        }
        let _lock = inode.common().lock.write();
        for (kind, acl) in access.into_iter().chain(default) {
            inode.set_xattr(
                caller,
                kind.attribute(),
                &acl.to_xattr(),
                XattrFlags::empty(),
            )?;
            inode.common().attributes.acls.invalidate(kind);
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Returns the initial properties of an inode created in `directory`. A default ACL of the
    /// directory replaces the umask.
    pub(crate) fn inode_init(
        &self,
        directory: &dyn Inode,
        file_type: FileType,
        mut mode: u16,
    ) -> Result<InodeInit<'static>> {
        let (mut access, mut default) = (None, None);
        if file_type != FileType::Symlink {
            match acl_of(directory, AclKind::Default)? {
                None => mode &= !self.umask,
                Some(acl) => {
                    let (inherited, bits) = acl.inherited(mode);
                    mode = mode & !0o777 | bits;
                    if !inherited.is_minimal() {
                        // Once the ACL is set, the group bits of the mode are its mask. Until then,
                        // perhaps after a power cut, they grant the group what the ACL will grant.
                        mode = mode & !0o070 | inherited.owning_group() << 3;
                        access = Some(inherited);
                    }
                    default = (file_type == FileType::Directory).then_some(acl);
                }
            }
        }
        let (gid, mode) = new_owner(
            &directory.common().attributes(),
            self.credentials,
            file_type,
            mode,
        );
        let uid = self.credentials.uid;
        let new = NewInode {
            file_type,
            mode,
            uid,
            gid,
            device: DeviceNumber::default(),
            target: b"",
        };
        Ok(InodeInit {
            new,
            access,
            default,
        })
    }

    /// Creates an inode called `name`. The caller holds the lock of `directory` exclusively.
    pub(crate) fn create(
        &self,
        directory: &dyn Inode,
        name: &[u8],
        init: &InodeInit<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let caller = self.credentials;
        let inode = directory.create(caller, name, &init.new)?;
        if let Err(error) = init.set_acls(caller, &*inode) {
            let _lock = inode.common().lock.write();
            // No other thread has seen it yet. If it cannot be removed, it stays without ACLs.
            let _: Result<()> = match init.new.file_type {
                FileType::Directory => directory.remove_directory(name, &inode),
                _ => directory.unlink(name, &inode),
            };
            return Err(error);
        }
        Ok(inode)
    }

    /// Creates an inode without a name (`O_TMPFILE`).
    pub(crate) fn create_unnamed(
        &self,
        directory: &dyn Inode,
        init: &InodeInit<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let inode = directory.create_unnamed(self.credentials, &init.new)?;
        init.set_acls(self.credentials, &*inode)?;
        Ok(inode)
    }
}
