//! The identity of a caller, and the kinds of access it can ask for.

use super::attributes::Attributes;
use bitflags::bitflags;

/// User, groups and capabilities of a caller. Linux: `struct cred`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// Whether the caller has all capabilities, which override every permission. The superuser has
    /// them, and so has a server that acts for users whose permissions were checked before.
    pub is_capable: bool,
}

impl Credentials {
    /// Returns the credentials of the superuser.
    pub fn root() -> Self {
        Self::user(0, 0, Vec::new())
    }

    /// Returns the credentials of a user, with all capabilities if `uid` is 0.
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self {
            uid,
            gid,
            groups,
            is_capable: uid == 0,
        }
    }

    /// Returns whether the caller has all capabilities.
    pub(crate) fn is_root(&self) -> bool {
        self.is_capable
    }

    /// Returns whether `gid` is the group or a supplementary group.
    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the caller may change attributes as the owner may.
    pub(crate) fn is_owner(&self, attributes: &Attributes) -> bool {
        self.is_root() || self.uid == attributes.uid
    }
}

bitflags! {
    /// Kinds of access, as in one digit of a mode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Access: u16 {
        const READ = 4;
        const WRITE = 2;
        const EXECUTE = 1;
    }
}
