//! Who may use the last blocks of a file system: root, and whom its superblock or mount names.
//!
//! Linux: fs/ext4/balloc.c (`ext4_has_free_clusters`), which asks `current` as the file system asks
//! this thread here.

use super::permission::Credentials;
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static MAY_USE_RESERVE: Cell<bool> = const { Cell::new(true) };
}

/// For whom, besides root, a file system keeps its last blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveOwners {
    /// This user.
    pub uid: u32,
    /// Members of this group; 0 stands for nobody.
    pub gid: u32,
}

impl ReserveOwners {
    fn contain(self, who: &Credentials) -> bool {
        // Not whoever acts with all capabilities: a server does for everybody.
        who.uid == 0 || who.uid == self.uid || (self.gid != 0 && who.is_member(self.gid))
    }
}

/// Whether the change that this thread makes may use what is kept for root. Writeback and whatever
/// else acts for nobody may.
pub fn may_use_reserve() -> bool {
    MAY_USE_RESERVE.get()
}

/// While this lives, the thread acts for somebody.
pub(crate) struct Acting {
    before: bool,
    /// It belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Acting {
    /// From now on `who` acts on a file system that keeps blocks for `owners`.
    pub(super) fn begin(owners: Option<ReserveOwners>, who: &Credentials) -> Self {
        let may = owners.is_none_or(|owners| owners.contain(who));
        Self {
            before: MAY_USE_RESERVE.replace(may),
            not_send: PhantomData,
        }
    }

    /// From now on the thread acts for nobody.
    pub(super) fn for_nobody() -> Self {
        Self {
            before: MAY_USE_RESERVE.replace(true),
            not_send: PhantomData,
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        MAY_USE_RESERVE.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_owners_may() {
        let who = |uid, gid, groups: &[u32]| Credentials::user(uid, gid, groups.to_vec());
        for (owners, who, may) in [
            ((0, 0), who(0, 5, &[]), true),
            ((0, 0), who(5, 0, &[0]), false),
            ((5, 0), who(5, 5, &[]), true),
            ((0, 7), who(5, 7, &[]), true),
            ((0, 7), who(5, 6, &[7]), true),
            ((6, 7), who(5, 6, &[8]), false),
        ] {
            let owners = ReserveOwners {
                uid: owners.0,
                gid: owners.1,
            };
            let acting = Acting::begin(Some(owners), &who);
            assert_eq!(may_use_reserve(), may, "{owners:?} {who:?}");
            drop(acting);
            assert!(may_use_reserve());
        }
        let nested = Acting::begin(Some(ReserveOwners { uid: 0, gid: 0 }), &who(5, 5, &[]));
        drop(Acting::begin(None, &who(5, 5, &[])));
        assert!(!may_use_reserve());
        drop(nested);
    }
}
