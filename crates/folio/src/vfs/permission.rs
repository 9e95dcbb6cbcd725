//! Permission checks. Linux: fs/namei.c (`generic_permission`), fs/attr.c (`setattr_prepare`).

use super::acl::{Acl, AclKind};
use super::attributes::{Attributes, FileType};
use super::credentials::{Access, Credentials};
use super::dentry::Mount;
use super::inode::{Inode, InodeCommon};
use super::revalidate::revalidate;
use crate::base::{Errno, Result};
use std::sync::Arc;

/// Setuid bit.
pub(crate) const SET_UID: u16 = 0o4000;
/// Setgid bit.
pub(crate) const SET_GID: u16 = 0o2000;
/// Sticky bit.
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

/// Fails with EACCES unless `caller` has the wanted access to the inode. May read the inode's ACL.
pub(crate) fn check_access(inode: &dyn Inode, caller: &Credentials, want: Access) -> Result<()> {
    let is_directory = inode.common().file_type == FileType::Directory;
    // The superuser has every access, except to execute a file without any execute bit.
    if caller.is_root() && (is_directory || !want.contains(Access::EXECUTE)) {
        return Ok(());
    }
    revalidate(inode)?;
    let is_allowed = match decide(inode.common(), caller, want) {
        Decision::ByMode(is_allowed) => is_allowed,
        Decision::ByAcl { otherwise, gid } => match acl_of(inode, AclKind::Access)? {
            Some(acl) => acl.permits(caller, gid, want),
            None => otherwise,
        },
    };
    if is_allowed {
        Ok(())
    } else {
        Err(Errno::ACCESS.into())
    }
}

/// Returns whether [`check_access`] succeeds; false also if that is not known without waiting.
#[inline]
pub(crate) fn is_access_granted_nowait(
    common: &InodeCommon,
    caller: &Credentials,
    want: Access,
) -> bool {
    let is_directory = common.file_type == FileType::Directory;
    (caller.is_root() && (is_directory || !want.contains(Access::EXECUTE)))
        || (common.is_valid() && matches!(decide(common, caller, want), Decision::ByMode(true)))
}

/// The source of an access decision.
enum Decision {
    /// The mode decides: whether it grants the access.
    ByMode(bool),
    /// The ACL decides, if the inode has one; `otherwise` is the decision of the mode.
    ByAcl { otherwise: bool, gid: u32 },
}

#[inline]
fn decide(common: &InodeCommon, caller: &Credentials, want: Access) -> Decision {
    let (mode, uid, gid) = common.attributes.permission();
    let grants = |digit: u16| Access::from_bits_truncate(digit & 7).contains(want);
    if caller.is_root() {
        return Decision::ByMode(mode & 0o111 != 0);
    }
    if caller.uid == uid {
        return Decision::ByMode(grants(mode >> 6));
    }
    let by_mode = grants(if caller.is_member(gid) {
        mode >> 3
    } else {
        mode
    });
    // The group bits are the mask of an ACL: if they are all clear, its named entries grant nothing
    // (as in Linux).
    let has_no_acl = mode & 0o070 == 0
        || common.file_type == FileType::Symlink
        || common.attributes.acls.is_absent(AclKind::Access);
    if has_no_acl {
        Decision::ByMode(by_mode)
    } else {
        Decision::ByAcl {
            otherwise: by_mode,
            gid,
        }
    }
}

/// Returns an ACL of an inode, from memory or from the file system; `None` if there is none.
pub(super) fn acl_of(inode: &dyn Inode, kind: AclKind) -> Result<Option<Arc<Acl>>> {
    inode
        .common()
        .attributes
        .acls
        .get(kind, || match inode.xattr(kind.attribute()) {
            Ok(Some(bytes)) => Acl::from_xattr(&bytes),
            Ok(None) => Ok(None),
            Err(error) if error.errno() == Errno::OPNOTSUPP => Ok(None),
            Err(error) => Err(error),
        })
}

/// Checks access like [`check_access`]; fails with EROFS for a write to a read-only mount.
pub(crate) fn check_access_on(
    mount: &Mount,
    inode: &dyn Inode,
    caller: &Credentials,
    want: Access,
) -> Result<()> {
    use FileType::{Directory, Regular, Symlink};
    if want.contains(Access::WRITE)
        && matches!(inode.common().file_type, Regular | Directory | Symlink)
    {
        mount.check_writable()?;
    }
    check_access(inode, caller, want)
}

/// Fails with EPERM if the sticky bit of `directory` forbids `caller` to remove or rename `victim`.
pub(crate) fn check_sticky(
    directory: &dyn Inode,
    victim: &dyn Inode,
    caller: &Credentials,
) -> Result<()> {
    if caller.is_root() {
        return Ok(());
    }
    let directory = directory.common().attributes();
    let is_forbidden = directory.mode & STICKY != 0
        && caller.uid != directory.uid
        && caller.uid != victim.common().attributes().uid;
    if is_forbidden {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

/// Returns the setgid bit if a change by `caller` must clear it. Linux: `setattr_should_drop_sgid`.
pub(crate) fn set_gid_to_drop(attributes: &Attributes, caller: &Credentials) -> u16 {
    let is_kept = caller.is_root() || caller.is_member(attributes.gid);
    if attributes.mode & SET_GID != 0 && (attributes.mode & GROUP_EXECUTE != 0 || !is_kept) {
        SET_GID
    } else {
        0
    }
}

/// Returns the mode after `caller` changed the contents of a file; `None` if it stays the same.
pub(crate) fn mode_after_write(inode: &dyn Inode, caller: &Credentials) -> Option<u16> {
    if caller.is_root() {
        return None;
    }
    let attributes = inode.common().attributes();
    let drop = attributes.mode & SET_UID | set_gid_to_drop(&attributes, caller);
    (drop != 0).then_some(attributes.mode & !drop)
}

/// Returns group and mode of a new inode in a directory. Linux: `inode_init_owner`,
/// `mode_strip_sgid`.
pub(crate) fn new_owner(
    directory: &Attributes,
    caller: &Credentials,
    file_type: FileType,
    mode: u16,
) -> (u32, u16) {
    if directory.mode & SET_GID == 0 {
        return (caller.gid, mode);
    }
    if file_type == FileType::Directory {
        return (directory.gid, mode | SET_GID);
    }
    let is_program = mode & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE;
    let may_keep = caller.is_root() || caller.is_member(directory.gid);
    (
        directory.gid,
        if is_program && !may_keep {
            mode & !SET_GID
        } else {
            mode
        },
    )
}
