//! A counted reference to an inode, with the address of the part that every inode has.
//!
//! Each cached call reads that part several times. The address saves a virtual call each time, and
//! with it a chain of three loads.

use super::inode::{Inode, InodeCommon};
use std::ptr::NonNull;
use std::sync::Arc;

/// An inode, and its common part without a virtual call.
pub(super) struct InodeRef {
    inode: Arc<dyn Inode>,
    /// The result of [`Inode::common`].
    common: NonNull<InodeCommon>,
}

// SAFETY: the pointer is a shared reference into the inode, and `InodeCommon` is `Sync`.
#[allow(unsafe_code)]
unsafe impl Send for InodeRef {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for InodeRef {}

const fn assert_sync<T: Sync>() {}
const _: () = assert_sync::<InodeCommon>();

impl InodeRef {
    pub(super) fn new(inode: Arc<dyn Inode>) -> Self {
        let common = NonNull::from(inode.common());
        Self { inode, common }
    }

    #[inline]
    pub(super) fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn common(&self) -> &InodeCommon {
        // SAFETY: the reference that `Inode::common` returned is valid as long as the inode is
        // borrowed. The inode neither moves nor ends while `self` has a reference to it.
        unsafe { self.common.as_ref() }
    }
}
