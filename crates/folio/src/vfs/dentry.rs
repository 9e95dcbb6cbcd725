//! Names in memory: the tree of dentries.

use super::coherence::{Coherence, Question};
use super::dentry_cache::Gone;
use super::mount::Mount;
use super::{FileType, Inode};
use crate::base::rcu::{Pin, RcuCell, Ref, Replaced};
use parking_lot::RwLock;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A name without its directory; short ones need no allocation.
pub(crate) type Name = SmallVec<[u8; 32]>;

/// A name that leads to an inode. Linux: `struct dentry`, always positive.
///
/// A live dentry with a name is in the cache, so that one directory has one dentry. A child keeps
/// its parent alive; a dentry nobody uses has exactly the cache's reference.
pub(crate) struct Dentry {
    id: u64,
    tree: u64,
    inode: Arc<dyn Inode>,
    file_type: FileType,
    place: RwLock<Place>,
    /// What covers it; set by the table of mounts alone.
    mounted: RcuCell<Mount>,
    is_deleted: AtomicBool,
    /// How often it was found where others have moved it.
    found_count: AtomicU32,
    is_linkable: AtomicBool,
}

struct Place {
    parent: Option<Arc<Dentry>>,
    name: Name,
}

/// Never reused, so that a stale key in the cache finds nothing.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Dentry {
    /// The root of a mounted file system.
    pub(crate) fn new_root(inode: Arc<dyn Inode>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self::build(
            id,
            id,
            inode,
            Place {
                parent: None,
                name: Name::new(),
            },
        ))
    }

    /// An inode without a name, made below `parent` (`O_TMPFILE`).
    pub(crate) fn new_unnamed(
        parent: &Arc<Self>,
        inode: Arc<dyn Inode>,
        is_linkable: bool,
    ) -> Arc<Self> {
        let dentry = Self::new_child(parent, b"", inode);
        dentry.is_deleted.store(true, Ordering::Relaxed);
        dentry.is_linkable.store(is_linkable, Ordering::Relaxed);
        dentry
    }

    pub(super) fn new_child(parent: &Arc<Self>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let place = Place {
            parent: Some(parent.clone()),
            name: Name::from_slice(name),
        };
        Arc::new(Self::build(id, parent.tree, inode, place))
    }

    fn build(id: u64, tree: u64, inode: Arc<dyn Inode>, place: Place) -> Self {
        Self {
            id,
            tree,
            file_type: inode.common().file_type,
            inode,
            place: RwLock::new(place),
            mounted: RcuCell::empty(),
            is_deleted: AtomicBool::new(false),
            found_count: AtomicU32::new(0),
            is_linkable: AtomicBool::new(false),
        }
    }

    /// A number no other dentry ever has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The number of the file system's root dentry.
    pub(super) fn tree(&self) -> u64 {
        self.tree
    }

    /// The inode the name leads to.
    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The inode's type.
    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Whether the inode is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// The directory that holds the name; `None` for the root of a file system.
    pub(crate) fn parent(&self) -> Option<Arc<Dentry>> {
        self.place.read().parent.clone()
    }

    /// The name.
    pub(crate) fn name(&self) -> Name {
        self.place.read().name.clone()
    }

    /// Whether the name has been taken away.
    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// What is known of the directory's names, where others change them.
    #[inline]
    pub(super) fn coherence(&self) -> Option<&Coherence> {
        self.inode.common().coherence.as_ref()
    }

    /// To be called before a name in the directory is looked up or made.
    pub(super) fn ask_for_name(&self) -> Option<Question> {
        self.coherence().map(Coherence::ask_for_name)
    }

    /// Others have taken the name of `lost` away or given it to something else. What had it may
    /// have another one by now: it is gone only if it says so. The caller holds no lock of the
    /// dentry cache.
    pub(super) fn lose_name(lost: Option<Arc<Dentry>>, gone: Gone) {
        if let Some(dentry) = lost {
            let found_count = dentry.found_count.load(Ordering::SeqCst);
            let is_gone =
                dentry.inode.revalidate().is_err() || dentry.inode.attributes().link_count == 0;
            if is_gone {
                dentry.set_deleted();
                // Somebody may have found it elsewhere while we were told that it is not where it
                // was.
                if dentry.found_count.load(Ordering::SeqCst) != found_count {
                    dentry.is_deleted.store(false, Ordering::SeqCst);
                }
            }
        }
        drop(gone);
    }

    pub(super) fn set_deleted(&self) {
        self.is_deleted.store(true, Ordering::SeqCst);
    }

    /// It was found, where it was or elsewhere.
    pub(super) fn set_found(&self) {
        self.found_count.fetch_add(1, Ordering::SeqCst);
        self.is_deleted.store(false, Ordering::SeqCst);
    }

    /// Whether a file system is mounted here.
    #[inline]
    pub(crate) fn is_mountpoint(&self) -> bool {
        !self.mounted.is_empty()
    }

    /// What is mounted here.
    #[inline]
    pub(super) fn mounted<'p>(&self, pin: &'p Pin) -> Option<Ref<'p, Mount>> {
        self.mounted.borrow(pin)
    }

    /// Covers the directory, or uncovers it.
    pub(super) fn set_mounted(&self, mount: Option<Arc<Mount>>) -> Option<Replaced<Mount>> {
        self.mounted.replace(mount)
    }

    /// Gives the dentry another parent and name.
    pub(super) fn move_to(&self, parent: &Arc<Dentry>, name: &[u8]) {
        let place = Place {
            parent: Some(parent.clone()),
            name: Name::from_slice(name),
        };
        let old = std::mem::replace(&mut *self.place.write(), place);
        drop(old);
    }

    /// Whether an inode without names may get one: made by `O_TMPFILE` without `O_EXCL`. Linux:
    /// `I_LINKABLE`.
    pub(crate) fn is_linkable(&self) -> bool {
        self.is_linkable.load(Ordering::Acquire)
    }

    pub(crate) fn clear_linkable(&self) {
        self.is_linkable.store(false, Ordering::Release);
    }

    /// Whether `self` is `other` or lies above it. Renames must be held off.
    pub(crate) fn is_ancestor_of(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        let mut at = Some(other.clone());
        while let Some(dentry) = at {
            if Arc::ptr_eq(&dentry, self) {
                return true;
            }
            at = dentry.parent();
        }
        false
    }
}

impl Drop for Dentry {
    /// Lets go of the ancestors one by one: a deep tree must not become a deep recursion.
    fn drop(&mut self) {
        let mut next = self.place.get_mut().parent.take();
        while let Some(parent) = next {
            next =
                Arc::into_inner(parent).and_then(|mut dentry| dentry.place.get_mut().parent.take());
        }
    }
}
