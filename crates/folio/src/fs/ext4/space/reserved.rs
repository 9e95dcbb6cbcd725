//! Reserved blocks: the last free blocks, kept for the superuser and the configured owners.
//!
//! Linux: fs/ext4/balloc.c (`ext4_has_free_clusters`), which asks `current`. Here each change of an
//! inode (`Ext4Inode::change`) passes [`ReservedBlocks`] down to the allocator. Writeback, commits
//! and repairs may use the reserved blocks.

use crate::vfs::Credentials;

/// Whether an operation may use the reserved blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReservedBlocks {
    /// It may allocate the last free block.
    Usable,
    /// It fails with ENOSPC while as many blocks as are reserved are free.
    Kept,
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
    /// Returns whether an operation by `caller` may use the reserved blocks.
    pub(crate) fn blocks_for(self, caller: &Credentials) -> ReservedBlocks {
        // Capabilities do not count: a server has them while it acts for any user.
        let is_owner = caller.uid == 0
            || caller.uid == self.uid
            || (self.gid != 0 && caller.is_member(self.gid));
        if is_owner {
            ReservedBlocks::Usable
        } else {
            ReservedBlocks::Kept
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_owners_may_use_reserved_blocks() {
        let caller = |uid, gid, groups: &[u32]| Credentials::user(uid, gid, groups.to_vec());
        let (usable, kept) = (ReservedBlocks::Usable, ReservedBlocks::Kept);
        for (owners, caller, may) in [
            ((0, 0), caller(0, 5, &[]), usable),
            ((0, 0), caller(5, 0, &[0]), kept),
            ((5, 0), caller(5, 5, &[]), usable),
            ((0, 7), caller(5, 7, &[]), usable),
            ((0, 7), caller(5, 6, &[7]), usable),
            ((6, 7), caller(5, 6, &[8]), kept),
        ] {
            let owners = ReservedBlocksOwners {
                uid: owners.0,
                gid: owners.1,
            };
            assert_eq!(owners.blocks_for(&caller), may, "{owners:?} {caller:?}");
        }
    }
}
