//! Changes of attributes: chmod, chown, utimes, truncate by path. Linux: fs/attr.c, fs/open.c,
//! fs/utimes.c.

use super::acl::AclKind;
use super::attributes::{AttributeChange, FileType, InodeFlags, SetTime};
use super::credentials::Access;
use super::dentry::Location;
use super::file::{OFFSET_MAX, set_size};
use super::permission::{SET_GID, SET_UID, check_access, set_gid_to_drop};
use super::revalidate::revalidate;
use super::walk::Context;
use crate::base::{Errno, Result};

impl Context<'_> {
    /// Changes permission bits: fchmodat(2), fchmod(2).
    pub(crate) fn chmod(&self, location: &Location, mode: u16) -> Result<()> {
        location.mount.check_writable()?;
        let inode = &**location.inode();
        revalidate(inode)?;
        if inode.common().file_type == FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let lock = inode.common().lock.write();
        let mut mode = mode & 0o7777;
        // The superuser passes every check, so the attributes need not be read.
        if !self.credentials.is_root() {
            let attributes = inode.common().attributes();
            if !self.credentials.is_owner(&attributes) {
                return Err(Errno::PERM.into());
            }
            if !self.credentials.is_member(attributes.gid) {
                mode &= !SET_GID;
            }
        }
        let change = AttributeChange {
            mode: Some(mode),
            ..AttributeChange::default()
        };
        inode.set_attributes(self.credentials, &change)?;
        // The file system has changed the access ACL, too.
        inode.common().attributes.acls.invalidate(AclKind::Access);
        drop(lock);
        location.mount.sync_if_required(inode)
    }

    /// Replaces the flags of chattr(1). Linux: `vfs_fileattr_set`.
    pub(crate) fn set_flags(&self, location: &Location, flags: InodeFlags) -> Result<()> {
        location.mount.check_writable()?;
        let inode = &**location.inode();
        revalidate(inode)?;
        let lock = inode.common().lock.write();
        if !self.credentials.is_root() {
            let protection = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
            let is_owner = self.credentials.is_owner(&inode.common().attributes());
            if !is_owner || (inode.flags()? ^ flags).intersects(protection) {
                return Err(Errno::PERM.into());
            }
        }
        inode.set_flags(flags)?;
        drop(lock);
        location.mount.sync_if_required(inode)
    }

    /// Changes owner and group: fchownat(2), fchown(2).
    pub(crate) fn chown(
        &self,
        location: &Location,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        location.mount.check_writable()?;
        let inode = &**location.inode();
        revalidate(inode)?;
        let lock = inode.common().lock.write();
        let attributes = inode.common().attributes();
        let caller = self.credentials;
        if !caller.is_root() {
            let is_owner = caller.uid == attributes.uid;
            let is_uid_allowed = uid.is_none_or(|uid| is_owner && uid == attributes.uid);
            let is_gid_allowed = |gid| is_owner && (gid == attributes.gid || caller.is_member(gid));
            if !is_uid_allowed || !gid.is_none_or(is_gid_allowed) {
                return Err(Errno::PERM.into());
            }
        }
        let mut mode = None;
        if attributes.file_type != FileType::Directory {
            let drop = attributes.mode & SET_UID | set_gid_to_drop(&attributes, caller);
            if drop != 0 && !caller.is_owner(&attributes) {
                return Err(Errno::PERM.into());
            }
            mode = (drop != 0).then_some(attributes.mode & !drop);
        }
        let change = AttributeChange {
            mode,
            uid,
            gid,
            ..AttributeChange::default()
        };
        inode.set_attributes(caller, &change)?;
        drop(lock);
        location.mount.sync_if_required(inode)
    }

    /// Changes access and modification times: utimensat(2), futimens(3).
    pub(crate) fn set_times(
        &self,
        location: &Location,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
    ) -> Result<()> {
        for time in [accessed, modified] {
            if matches!(time, Some(SetTime::To(time)) if time.nanos >= 1_000_000_000) {
                return Err(Errno::INVAL.into());
            }
        }
        if accessed.is_none() && modified.is_none() {
            return Ok(());
        }
        location.mount.check_writable()?;
        let inode = &**location.inode();
        revalidate(inode)?;
        let lock = inode.common().lock.write();
        if !self.credentials.is_root() && !self.credentials.is_owner(&inode.common().attributes()) {
            if (accessed, modified) != (Some(SetTime::Now), Some(SetTime::Now)) {
                return Err(Errno::PERM.into());
            }
            check_access(inode, self.credentials, Access::WRITE)?;
        }
        let change = AttributeChange {
            accessed,
            modified,
            ..AttributeChange::default()
        };
        inode.set_attributes(self.credentials, &change)?;
        drop(lock);
        location.mount.sync_if_required(inode)
    }

    /// Sets the size: truncate(2).
    pub(crate) fn truncate(&self, location: &Location, size_bytes: u64) -> Result<()> {
        let inode = &**location.inode();
        revalidate(inode)?;
        match inode.common().file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        if size_bytes > OFFSET_MAX {
            return Err(Errno::INVAL.into());
        }
        location.mount.check_writable()?;
        check_access(inode, self.credentials, Access::WRITE)?;
        let lock = inode.common().lock.write();
        set_size(inode, self.credentials, size_bytes, false)?;
        drop(lock);
        location.mount.sync_if_required(inode)
    }
}
