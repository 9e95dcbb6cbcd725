//! Reserved blocks: the last free blocks, kept for the superuser and the configured owners.
//!
//! Linux: fs/ext4/balloc.c (`ext4_has_free_clusters`), which asks `current`. Here an operation of
//! the VFS opens a [`ReservedBlocksScope`] for its caller, and the allocator asks the scope.
//! Writeback and commits run outside of any scope, and may use the reserved blocks.

use crate::vfs::Credentials;
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static MAY_USE_RESERVED: Cell<bool> = const { Cell::new(true) };
}

/// The users, besides the superuser, who may use the reserved blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReservedBlocksOwners {
    /// This user.
    pub(crate) uid: u32,
    /// Members of this group; 0 means no group.
    pub(crate) gid: u32,
}

impl ReservedBlocksOwners {
    fn contain(self, who: &Credentials) -> bool {
        // Capabilities do not count: a server has them while it acts for any user.
        let is_member = |gid| who.gid == gid || who.groups.contains(&gid);
        who.uid == 0 || who.uid == self.uid || (self.gid != 0 && is_member(self.gid))
    }
}

/// Returns whether the operation of this thread may use the reserved blocks.
pub(super) fn may_use_reserved_blocks() -> bool {
    MAY_USE_RESERVED.get()
}

/// The duration of one operation on behalf of a user.
pub(crate) struct ReservedBlocksScope {
    outer: bool,
    /// The scope belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl ReservedBlocksScope {
    /// Begins an operation by `who`.
    pub(crate) fn begin(owners: ReservedBlocksOwners, who: &Credentials) -> Self {
        Self {
            outer: MAY_USE_RESERVED.replace(owners.contain(who)),
            not_send: PhantomData,
        }
    }
}

impl Drop for ReservedBlocksScope {
    fn drop(&mut self) {
        MAY_USE_RESERVED.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_owners_may_use_reserved_blocks() {
        let who = |uid, gid, groups: &[u32]| Credentials::user(uid, gid, groups.to_vec());
        for (owners, who, may) in [
            ((0, 0), who(0, 5, &[]), true),
            ((0, 0), who(5, 0, &[0]), false),
            ((5, 0), who(5, 5, &[]), true),
            ((0, 7), who(5, 7, &[]), true),
            ((0, 7), who(5, 6, &[7]), true),
            ((6, 7), who(5, 6, &[8]), false),
        ] {
            let owners = ReservedBlocksOwners {
                uid: owners.0,
                gid: owners.1,
            };
            let scope = ReservedBlocksScope::begin(owners, &who);
            assert_eq!(may_use_reserved_blocks(), may, "{owners:?} {who:?}");
            drop(scope);
            assert!(may_use_reserved_blocks());
        }
        let root_only = ReservedBlocksOwners { uid: 0, gid: 0 };
        let outer = ReservedBlocksScope::begin(root_only, &who(5, 5, &[]));
        drop(ReservedBlocksScope::begin(root_only, &who(0, 0, &[])));
        assert!(!may_use_reserved_blocks());
        drop(outer);
    }
}
