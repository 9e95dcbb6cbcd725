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

/// The users, besides the superuser, that may use the reserved blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReservedBlocksOwners {
    /// This user.
    pub(crate) uid: u32,
    /// Members of this group; 0 means no group.
    pub(crate) gid: u32,
}

impl ReservedBlocksOwners {
    fn contain(self, caller: &Credentials) -> bool {
        // Capabilities do not count: a server has them while it acts for any user.
        let is_member = |gid| caller.gid == gid || caller.groups.contains(&gid);
        caller.uid == 0 || caller.uid == self.uid || (self.gid != 0 && is_member(self.gid))
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
    /// Begins an operation by `caller`.
    pub(crate) fn begin(owners: ReservedBlocksOwners, caller: &Credentials) -> Self {
        Self {
            outer: MAY_USE_RESERVED.replace(owners.contain(caller)),
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
        let caller = |uid, gid, groups: &[u32]| Credentials::user(uid, gid, groups.to_vec());
        for (owners, caller, may) in [
            ((0, 0), caller(0, 5, &[]), true),
            ((0, 0), caller(5, 0, &[0]), false),
            ((5, 0), caller(5, 5, &[]), true),
            ((0, 7), caller(5, 7, &[]), true),
            ((0, 7), caller(5, 6, &[7]), true),
            ((6, 7), caller(5, 6, &[8]), false),
        ] {
            let owners = ReservedBlocksOwners {
                uid: owners.0,
                gid: owners.1,
            };
            let scope = ReservedBlocksScope::begin(owners, &caller);
            assert_eq!(may_use_reserved_blocks(), may, "{owners:?} {caller:?}");
            drop(scope);
            assert!(may_use_reserved_blocks());
        }
        let root_only = ReservedBlocksOwners { uid: 0, gid: 0 };
        let outer = ReservedBlocksScope::begin(root_only, &caller(5, 5, &[]));
        drop(ReservedBlocksScope::begin(root_only, &caller(0, 0, &[])));
        assert!(!may_use_reserved_blocks());
        drop(outer);
    }
}
