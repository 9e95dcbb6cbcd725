//! New inodes: what they get from who makes them and from the directory. Linux: fs/inode.c
//! (`inode_init_owner`), fs/posix_acl.c (`posix_acl_create`).

use super::acl::{Acl, AclKind};
use super::permission::{acl_of, new_owner};
use super::walk::Context;
use super::{FileType, Inode, NewInode, XattrFlags};
use crate::base::Result;
use std::sync::Arc;

/// What a new inode shall be, and the ACLs that it inherits.
pub(crate) struct Birth<'a> {
    pub(crate) new: NewInode<'a>,
    access: Option<Acl>,
    default: Option<Arc<Acl>>,
}

impl Birth<'_> {
    /// Gives the new inode its ACLs.
    fn give_acls(&self, inode: &dyn Inode) -> Result<()> {
        let access = self.access.as_ref().map(|acl| (AclKind::Access, acl));
        let default = self.default.as_deref().map(|acl| (AclKind::Default, acl));
        if access.is_none() && default.is_none() {
            return Ok(());
        }
        let _lock = inode.common().lock.write();
        for (kind, acl) in access.into_iter().chain(default) {
            inode.set_xattr(kind.attribute(), &acl.to_xattr(), XattrFlags::empty())?;
            inode.common().attributes.acls.forget(kind);
        }
        Ok(())
    }
}

impl Context<'_> {
    /// What an inode made in `directory` is like. A default ACL there takes the place of the umask.
    pub(crate) fn birth(
        &self,
        directory: &dyn Inode,
        file_type: FileType,
        mut mode: u16,
    ) -> Result<Birth<'static>> {
        let (mut access, mut default) = (None, None);
        if file_type != FileType::Symlink {
            match acl_of(directory, AclKind::Default)? {
                None => mode &= !self.umask,
                Some(acl) => {
                    let (inherited, bits) = acl.inherited(mode);
                    mode = mode & !0o777 | bits;
                    if !inherited.is_minimal() {
                        // The group's bits of the mode are the mask once the ACL is there. Until
                        // then, perhaps after a power cut, the group may do what it will be
                        // allowed, and no more.
                        mode = mode & !0o070 | inherited.owning_group() << 3;
                        access = Some(inherited);
                    }
                    default = (file_type == FileType::Directory).then_some(acl);
                }
            }
        }
        let (gid, mode) = new_owner(&directory.attributes(), self.credentials, file_type, mode);
        let uid = self.credentials.uid;
        let new = NewInode {
            file_type,
            mode,
            uid,
            gid,
            device: (0, 0),
            target: b"",
        };
        Ok(Birth {
            new,
            access,
            default,
        })
    }

    /// Makes it, called `name`; the caller holds the lock of `directory`, exclusive.
    pub(crate) fn create(
        &self,
        directory: &dyn Inode,
        name: &[u8],
        birth: &Birth<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let inode = directory.create(name, &birth.new)?;
        if let Err(error) = birth.give_acls(&*inode) {
            let _lock = inode.common().lock.write();
            // Nobody has seen it yet. If it cannot be taken away, it stays with the mode alone.
            let _: Result<()> = match birth.new.file_type {
                FileType::Directory => directory.remove_directory(name, &inode),
                _ => directory.unlink(name, &inode),
            };
            return Err(error);
        }
        Ok(inode)
    }

    /// Makes it without a name (`O_TMPFILE`).
    pub(crate) fn create_unnamed(
        &self,
        directory: &dyn Inode,
        birth: &Birth<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let inode = directory.create_unnamed(&birth.new)?;
        birth.give_acls(&*inode)?;
        Ok(inode)
    }
}
