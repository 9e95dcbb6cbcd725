//! Who may do what. Linux: fs/namei.c (`generic_permission`), fs/attr.c (`setattr_prepare`).

use super::acl::{Acl, AclKind};
use super::coherence::{is_believed, revalidate};
use super::mount::Mount;
use super::{Attributes, FileType, Inode};
use crate::base::{Errno, Result};
use bitflags::bitflags;
use std::sync::Arc;

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Whether all capabilities are there: no permission stops who has them. The superuser has, and
    /// so has a server that acts for users whose permissions were checked before.
    pub is_capable: bool,
}

impl Credentials {
    /// The superuser.
    pub fn root() -> Self {
        Self::user(0, 0, Vec::new())
    }

    /// A user, who has all capabilities if it is the superuser.
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self {
            uid,
            gid,
            groups,
            is_capable: uid == 0,
        }
    }

    /// Whether all capabilities are there.
    pub(crate) fn is_root(&self) -> bool {
        self.is_capable
    }

    /// Whether `gid` is the group or a supplementary one.
    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether attributes may be changed as by the owner.
    pub(crate) fn is_owner(&self, attributes: &Attributes) -> bool {
        self.is_root() || self.uid == attributes.uid
    }
}

bitflags! {
    /// What somebody wants to do, as in one digit of a mode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Access: u16 {
        const READ = 4;
        const WRITE = 2;
        const EXECUTE = 1;
    }
}

/// Setuid bit.
pub(crate) const SET_UID: u16 = 0o4000;
/// Setgid bit.
pub(crate) const SET_GID: u16 = 0o2000;
/// Sticky bit.
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

/// EACCES unless `who` may access the inode so. May read the inode's ACL.
pub(crate) fn check_access(inode: &dyn Inode, who: &Credentials, want: Access) -> Result<()> {
    let is_directory = inode.common().file_type == FileType::Directory;
    // Only the execute bit of a file can stop the superuser.
    if who.is_root() && (is_directory || !want.contains(Access::EXECUTE)) {
        return Ok(());
    }
    revalidate(inode)?;
    let is_allowed = match judge(inode, who, want) {
        Judgement::ByMode(is_allowed) => is_allowed,
        Judgement::ByAcl { otherwise, gid } => match acl_of(inode, AclKind::Access)? {
            Some(acl) => acl.permits(who, gid, want),
            None => otherwise,
        },
    };
    if is_allowed {
        Ok(())
    } else {
        Err(Errno::ACCESS.into())
    }
}

/// Whether [`check_access`] would say yes, as far as that can be told without waiting.
#[inline]
pub(crate) fn is_known_to_be_allowed(inode: &dyn Inode, who: &Credentials, want: Access) -> bool {
    let is_directory = inode.common().file_type == FileType::Directory;
    (who.is_root() && (is_directory || !want.contains(Access::EXECUTE)))
        || (is_believed(inode) && matches!(judge(inode, who, want), Judgement::ByMode(true)))
}

/// Who decides.
enum Judgement {
    /// The mode, which says this.
    ByMode(bool),
    /// An ACL, if there is one; `otherwise` is what the mode says.
    ByAcl { otherwise: bool, gid: u32 },
}

#[inline]
fn judge(inode: &dyn Inode, who: &Credentials, want: Access) -> Judgement {
    let common = inode.common();
    let (mode, uid, gid) = common.attributes.permission();
    let says = |digit: u16| Access::from_bits_truncate(digit & 7).contains(want);
    if who.is_root() {
        return Judgement::ByMode(mode & 0o111 != 0);
    }
    if who.uid == uid {
        return Judgement::ByMode(says(mode >> 6));
    }
    let by_mode = says(if who.is_member(gid) { mode >> 3 } else { mode });
    // The group's bits are the mask of an ACL: if they are all clear, it grants nobody anything (as
    // Linux has it).
    let has_none = mode & 0o070 == 0
        || common.file_type == FileType::Symlink
        || common.attributes.acls.is_absent(AclKind::Access);
    if has_none {
        Judgement::ByMode(by_mode)
    } else {
        Judgement::ByAcl {
            otherwise: by_mode,
            gid,
        }
    }
}

/// An ACL of an inode, from memory or the file system; `None` where there are none.
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

/// Like [`check_access`], and EROFS for writing where the mount refuses it.
pub(crate) fn check_access_on(
    mount: &Mount,
    inode: &dyn Inode,
    who: &Credentials,
    want: Access,
) -> Result<()> {
    use FileType::{Directory, Regular, Symlink};
    if want.contains(Access::WRITE)
        && matches!(inode.common().file_type, Regular | Directory | Symlink)
    {
        mount.check_writable()?;
    }
    check_access(inode, who, want)
}

/// EPERM if the sticky bit of `directory` keeps `who` from taking away or renaming `victim`.
pub(crate) fn check_sticky(
    directory: &dyn Inode,
    victim: &dyn Inode,
    who: &Credentials,
) -> Result<()> {
    if who.is_root() {
        return Ok(());
    }
    let directory = directory.attributes();
    let is_stopped = directory.mode & STICKY != 0
        && who.uid != directory.uid
        && who.uid != victim.attributes().uid;
    if is_stopped {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

/// The setgid bit where a change by `who` must clear it. Linux: `setattr_should_drop_sgid`.
pub(crate) fn set_gid_to_drop(attributes: &Attributes, who: &Credentials) -> u16 {
    let is_kept = who.is_root() || who.is_member(attributes.gid);
    if attributes.mode & SET_GID != 0 && (attributes.mode & GROUP_EXECUTE != 0 || !is_kept) {
        SET_GID
    } else {
        0
    }
}

/// The mode that remains when `who` changes the contents of a file; `None` if nothing is to be
/// cleared.
pub(crate) fn mode_after_write(inode: &dyn Inode, who: &Credentials) -> Option<u16> {
    if who.is_root() {
        return None;
    }
    let attributes = inode.attributes();
    let drop = attributes.mode & SET_UID | set_gid_to_drop(&attributes, who);
    (drop != 0).then_some(attributes.mode & !drop)
}

/// Group and mode of a new inode in a directory. Linux: `inode_init_owner`, `mode_strip_sgid`.
pub(crate) fn new_owner(
    directory: &Attributes,
    who: &Credentials,
    file_type: FileType,
    mode: u16,
) -> (u32, u16) {
    if directory.mode & SET_GID == 0 {
        return (who.gid, mode);
    }
    if file_type == FileType::Directory {
        return (directory.gid, mode | SET_GID);
    }
    let is_program = mode & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE;
    let may_keep = who.is_root() || who.is_member(directory.gid);
    (
        directory.gid,
        if is_program && !may_keep {
            mode & !SET_GID
        } else {
            mode
        },
    )
}
