//! chmod, chown, utimes, truncate by path. Linux: fs/attr.c, fs/open.c, fs/utimes.c.

use super::acl::AclKind;
use super::coherence::revalidate;
use super::file::{OFFSET_MAX, set_size};
use super::mount::Location;
use super::permission::{Access, SET_GID, SET_UID, check_access, set_gid_to_drop};
use super::walk::Context;
use super::{AttributeChange, FileType, SetTime};
use crate::base::{Errno, Result};

impl Context<'_> {
    /// fchmodat(2), fchmod(2).
    pub(crate) fn chmod(&self, location: &Location, mode: u16) -> Result<()> {
        let _acting = location.mount.begin_change(self.credentials)?;
        let inode = &**location.inode();
        revalidate(inode)?;
        if inode.common().file_type == FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let lock = inode.common().lock.write();
        let mut mode = mode & 0o7777;
        // The superuser may do all this, and needs no look at the attributes.
        if !self.credentials.is_root() {
            let attributes = inode.attributes();
            if !self.credentials.is_owner(&attributes) {
                return Err(Errno::PERM.into());
            }
            if !self.credentials.is_member(attributes.gid) {
                mode &= !SET_GID;
            }
        }
        inode.set_attributes(&AttributeChange {
            mode: Some(mode),
            ..AttributeChange::default()
        })?;
        // The access ACL has followed.
        inode.common().attributes.acls.forget(AclKind::Access);
        drop(lock);
        location.mount.settle(inode)
    }

    /// fchownat(2), fchown(2).
    pub(crate) fn chown(
        &self,
        location: &Location,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let _acting = location.mount.begin_change(self.credentials)?;
        let inode = &**location.inode();
        revalidate(inode)?;
        let lock = inode.common().lock.write();
        let attributes = inode.attributes();
        let who = self.credentials;
        if !who.is_root() {
            let is_owner = who.uid == attributes.uid;
            let uid_is_fine = uid.is_none_or(|uid| is_owner && uid == attributes.uid);
            let may_set_gid = |gid| is_owner && (gid == attributes.gid || who.is_member(gid));
            if !uid_is_fine || !gid.is_none_or(may_set_gid) {
                return Err(Errno::PERM.into());
            }
        }
        let mut mode = None;
        if attributes.file_type != FileType::Directory {
            let drop = attributes.mode & SET_UID | set_gid_to_drop(&attributes, who);
            if drop != 0 && !who.is_owner(&attributes) {
                return Err(Errno::PERM.into());
            }
            mode = (drop != 0).then_some(attributes.mode & !drop);
        }
        inode.set_attributes(&AttributeChange {
            mode,
            uid,
            gid,
            ..AttributeChange::default()
        })?;
        drop(lock);
        location.mount.settle(inode)
    }

    /// utimensat(2), futimens(3).
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
        let _acting = location.mount.begin_change(self.credentials)?;
        let inode = &**location.inode();
        revalidate(inode)?;
        let lock = inode.common().lock.write();
        if !self.credentials.is_root() && !self.credentials.is_owner(&inode.attributes()) {
            if (accessed, modified) != (Some(SetTime::Now), Some(SetTime::Now)) {
                return Err(Errno::PERM.into());
            }
            check_access(inode, self.credentials, Access::WRITE)?;
        }
        inode.set_attributes(&AttributeChange {
            accessed,
            modified,
            ..AttributeChange::default()
        })?;
        drop(lock);
        location.mount.settle(inode)
    }

    /// truncate(2).
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
        let _acting = location.mount.begin_change(self.credentials)?;
        check_access(inode, self.credentials, Access::WRITE)?;
        let lock = inode.common().lock.write();
        set_size(inode, self.credentials, size_bytes, false)?;
        drop(lock);
        location.mount.settle(inode)
    }
}
