//! The tree of names: dentries, mounts, and locations in it.
//!
//! ```text
//!   Location = Mount + Dentry
//!                |        |-- parent -> Dentry ... root dentry of the file system
//!                |        |-- inode  -> the file system
//!                |        `-- mounted -> Mount that covers this directory
//!                |-- root    -> root dentry
//!                `-- covered -> Location that the mount covers
//! ```
//!
//! Mounts and dentries refer to each other, so they share a file. Linux: `struct dentry`,
//! `struct mount`, `struct path`.

use super::attributes::FileType;
use super::filesystem::FileSystem;
use super::host_names::HostNames;
use super::inode::{Inode, InodeCommon, NameFolding};
use super::inode_ref::InodeRef;
use super::mount_options::MountOptions;
use super::validity::{AttrValidity, RevalidateTicket};
use crate::base::lock::{Mutex, MutexGuard, RwLock};
use crate::base::rcu::{Pin, RcuCell, Ref, Replaced};
use crate::base::{Errno, Result};
use crate::cache::{ObjectCharge, ObjectMemory};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A name without its directory; short names need no allocation.
pub(crate) type Name = SmallVec<[u8; 32]>;

/// Returns the bytes of a name outside of the object that has it.
pub(super) fn name_heap_bytes(name: &Name) -> usize {
    if name.spilled() { name.capacity() } else { 0 }
}

/// A name that refers to an inode. Linux: `struct dentry`; here always positive.
///
/// A live dentry with a name is in the cache, so that a directory has one dentry. A child keeps its
/// parent alive. An unused dentry has exactly one reference, the cache's.
pub(crate) struct Dentry {
    id: u64,
    root_id: u64,
    inode: InodeRef,
    file_type: FileType,
    name_folding: Option<NameFolding>,
    position: RwLock<Position>,
    /// The mount that covers it; only the mount table sets it.
    mounted: RcuCell<Mount>,
    is_deleted: AtomicBool,
    /// How often a lookup found it after an external writer moved it.
    found_count: AtomicU32,
    is_linkable: AtomicBool,
    charge: ObjectCharge,
}

/// The position of a dentry in the tree.
struct Position {
    parent: Option<Arc<Dentry>>,
    name: Name,
}

/// Never reused, so that a stale key in the cache finds nothing.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_MOUNT: AtomicU32 = AtomicU32::new(1);

impl Dentry {
    /// Creates the root of a mounted file system. The dentries below it are charged to `memory`
    /// too.
    pub(crate) fn new_root(inode: Arc<dyn Inode>, memory: &Arc<ObjectMemory>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self::build(
            id,
            id,
            inode,
            Position {
                parent: None,
                name: Name::new(),
            },
            memory,
        ))
    }

    /// Creates a dentry without a name below `parent` (`O_TMPFILE`).
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
        let position = Position {
            parent: Some(parent.clone()),
            name: Name::from_slice(name),
        };
        let memory = parent.charge.memory();
        Arc::new(Self::build(id, parent.root_id, inode, position, memory))
    }

    fn build(
        id: u64,
        root_id: u64,
        inode: Arc<dyn Inode>,
        position: Position,
        memory: &Arc<ObjectMemory>,
    ) -> Self {
        let name_bytes = name_heap_bytes(&position.name);
        Self {
            id,
            root_id,
            file_type: inode.common().file_type,
            name_folding: inode.name_folding(),
            inode: InodeRef::new(inode),
            position: RwLock::new(position),
            mounted: RcuCell::empty(),
            is_deleted: AtomicBool::new(false),
            found_count: AtomicU32::new(0),
            is_linkable: AtomicBool::new(false),
            charge: memory.charge(size_of::<Self>() + name_bytes),
        }
    }

    /// Returns a number that no other dentry ever has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the key under which the cache has the child `name`. Names that the directory does
    /// not distinguish have one key.
    #[inline]
    pub(super) fn key<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        match self.name_folding.and_then(|fold| fold(name)) {
            None => Cow::Borrowed(name),
            Some(folded) => Cow::Owned(folded),
        }
    }

    /// Returns the name under which the cache has this child of `parent`, which a lookup of `name`
    /// found.
    pub(super) fn cached_name(&self, parent: &Dentry, name: &[u8]) -> Name {
        if parent.folds_names() {
            self.name()
        } else {
            Name::from_slice(name)
        }
    }

    /// Whether the directory ignores some differences of names.
    pub(super) fn folds_names(&self) -> bool {
        self.name_folding.is_some()
    }

    /// Returns the id of the file system's root dentry.
    pub(super) fn root_id(&self) -> u64 {
        self.root_id
    }

    /// Returns whether this is the root of its file system.
    pub(super) fn is_root(&self) -> bool {
        self.id == self.root_id
    }

    /// Returns the inode that the name refers to.
    #[inline]
    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        self.inode.inode()
    }

    /// Returns the part that every inode has, without a virtual call.
    #[inline]
    pub(crate) fn common(&self) -> &InodeCommon {
        self.inode.common()
    }

    /// Returns the type of the inode.
    #[inline]
    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Returns whether the inode is a directory.
    #[inline]
    pub(crate) fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Returns the directory that holds the name; `None` for the root of a file system.
    pub(crate) fn parent(&self) -> Option<Arc<Dentry>> {
        self.position.read().parent.clone()
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> Name {
        self.position.read().name.clone()
    }

    /// Returns whether the name has been removed.
    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// Returns the validity of the inode; `None` if there are no external writers.
    #[inline]
    pub(super) fn validity(&self) -> Option<&AttrValidity> {
        self.common().validity.as_ref()
    }

    /// Returns a ticket. Called before a name in the directory is looked up or created.
    pub(super) fn name_ticket(&self) -> Option<RevalidateTicket> {
        self.validity().map(AttrValidity::name_ticket)
    }

    /// Marks a dentry as deleted if its inode has no name left. Called after an external writer
    /// removed the dentry's name or gave it to another inode; the inode may have another name. The
    /// caller holds no lock of the dentry cache.
    pub(super) fn delete_if_unlinked(&self) {
        let found_count = self.found_count.load(Ordering::SeqCst);
        let is_unlinked =
            self.inode().revalidate().is_err() || self.common().attributes().link_count == 0;
        if is_unlinked {
            self.set_deleted();
            // Another lookup may have found it elsewhere while the backing store answered that it
            // has left its old position.
            if self.found_count.load(Ordering::SeqCst) != found_count {
                self.is_deleted.store(false, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn set_deleted(&self) {
        self.is_deleted.store(true, Ordering::SeqCst);
    }

    /// Notes that a lookup found the dentry, at its old position or at a new one.
    pub(super) fn set_found(&self) {
        self.found_count.fetch_add(1, Ordering::SeqCst);
        self.is_deleted.store(false, Ordering::SeqCst);
    }

    /// Returns whether a file system is mounted here.
    #[inline]
    pub(crate) fn is_mountpoint(&self) -> bool {
        !self.mounted.is_empty()
    }

    /// Returns the mount that covers this directory.
    #[inline]
    pub(super) fn mounted<'p>(&self, pin: &'p Pin) -> Option<Ref<'p, Mount>> {
        self.mounted.borrow(pin)
    }

    /// Covers the directory with a mount, or uncovers it.
    pub(super) fn set_mounted(&self, mount: Option<Arc<Mount>>) -> Option<Replaced<Mount>> {
        self.mounted.replace(mount)
    }

    /// Moves the dentry to another parent and name.
    pub(super) fn move_to(&self, parent: &Arc<Dentry>, name: &[u8]) {
        let position = Position {
            parent: Some(parent.clone()),
            name: Name::from_slice(name),
        };
        let old = std::mem::replace(&mut *self.position.write(), position);
        drop(old);
    }

    /// Returns whether an inode without names may get one: created by `O_TMPFILE` without `O_EXCL`.
    /// Linux: `I_LINKABLE`.
    pub(crate) fn is_linkable(&self) -> bool {
        self.is_linkable.load(Ordering::Acquire)
    }

    pub(crate) fn clear_linkable(&self) {
        self.is_linkable.store(false, Ordering::Release);
    }

    /// Returns whether the directory of `self` is that of `other` or of an ancestor of it. The
    /// caller holds off renames.
    pub(crate) fn is_ancestor_of(&self, other: &Arc<Self>) -> bool {
        self.is_directory() && other.is_at_or_below(self.inode())
    }

    /// Returns whether `inode` is that of `self` or of an ancestor. In a damaged image a directory
    /// may have several names, so inodes are compared.
    pub(crate) fn is_at_or_below(self: &Arc<Self>, inode: &Arc<dyn Inode>) -> bool {
        let mut at = Some(self.clone());
        while let Some(dentry) = at {
            if Arc::ptr_eq(dentry.inode(), inode) {
                return true;
            }
            at = dentry.parent();
        }
        false
    }
}

impl Drop for Dentry {
    /// Drops the ancestors one by one: a deep tree must not cause deep recursion.
    fn drop(&mut self) {
        let mut next = self.position.get_mut().parent.take();
        while let Some(parent) = next {
            next = Arc::into_inner(parent)
                .and_then(|mut dentry| dentry.position.get_mut().parent.take());
        }
    }
}

/// A file system at its position in the tree. Linux: `struct mount` and `struct super_block`.
pub(crate) struct Mount {
    number: u32,
    file_system: Arc<dyn FileSystem>,
    pub(super) root: Arc<Dentry>,
    /// The location that it covers; `None` for the root mount.
    pub(super) covered: Option<Location>,
    options: MountOptions,
    /// Set while an unmount is in progress: a thread that reaches the mount without a lock must
    /// ask the mount table.
    is_leaving: AtomicBool,
    /// Held while a name moves from one directory to another. Linux: `s_vfs_rename_mutex`.
    pub(crate) rename_lock: Mutex<()>,
    /// Set at most once.
    host_names: OnceLock<HostNames>,
}

impl Mount {
    pub(super) fn new(
        file_system: Arc<dyn FileSystem>,
        covered: Option<Location>,
        options: MountOptions,
        memory: &Arc<ObjectMemory>,
    ) -> Self {
        Self {
            number: NEXT_MOUNT.fetch_add(1, Ordering::Relaxed),
            root: Dentry::new_root(file_system.root(), memory),
            file_system,
            covered,
            options,
            is_leaving: AtomicBool::new(false),
            rename_lock: Mutex::new(()),
            host_names: OnceLock::new(),
        }
    }

    /// Returns the names that belong to the host; `None` if the mount has all its names itself.
    #[inline]
    pub(super) fn host_names(&self) -> Option<&HostNames> {
        self.host_names.get()
    }

    /// Returns whether even the directories belong to the host.
    #[inline]
    pub(super) fn is_hosts(&self) -> bool {
        matches!(self.host_names(), Some(HostNames::Rest))
    }

    /// Gives names to the host; EBUSY if the mount has given some already.
    pub(crate) fn set_host_names(&self, names: HostNames) -> Result<()> {
        self.host_names.set(names).map_err(|_| Errno::BUSY.into())
    }

    /// Locks renames before a directory and then one inside it are locked. An external writer may
    /// move directories meanwhile, which changes their lock order; so only one thread at a time may
    /// lock two of them.
    pub(super) fn lock_moving_directories(
        &self,
        directory: &dyn Inode,
    ) -> Option<MutexGuard<'_, ()>> {
        directory
            .common()
            .validity
            .is_some()
            .then(|| self.rename_lock.lock())
    }

    pub(crate) fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    /// Returns a number that no other mount of the process has.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the root for a thread that holds no lock; `None` during an unmount.
    #[inline]
    pub(super) fn root_unless_leaving(&self) -> Option<&Arc<Dentry>> {
        if self.is_leaving.load(Ordering::Acquire) {
            None
        } else {
            Some(&self.root)
        }
    }

    pub(super) fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Release);
    }

    #[inline]
    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Fails with EROFS on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            Err(Errno::ROFS.into())
        } else {
            Ok(())
        }
    }

    /// Makes a change to `inode` durable on a mount with `sync`. The caller holds no lock.
    pub(crate) fn sync_if_required(&self, inode: &dyn Inode) -> Result<()> {
        if self.options.is_sync {
            inode.sync(false)
        } else {
            Ok(())
        }
    }

    /// Makes the names in `directory` durable on a mount with `sync` or `dirsync`. The caller holds
    /// no lock.
    pub(crate) fn sync_names_if_required(&self, directory: &dyn Inode) -> Result<()> {
        if self.options.is_sync || self.options.is_directory_sync {
            directory.sync(false)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.file_system.is_read_only()
    }
}

/// A dentry and the mount through which it is seen. Linux: `struct path`. A location keeps the
/// mount busy.
#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) mount: Arc<Mount>,
    pub(crate) dentry: Arc<Dentry>,
}

impl Location {
    #[inline]
    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        self.dentry.inode()
    }
}

/// A [`Location`] borrowed under a pin, without references of its own.
#[derive(Clone, Copy)]
pub(crate) struct LocationRef<'p> {
    pub(crate) mount: Ref<'p, Mount>,
    pub(crate) dentry: Ref<'p, Dentry>,
}

impl<'p> LocationRef<'p> {
    #[inline]
    pub(crate) fn new(location: &'p Location) -> Self {
        Self {
            mount: Ref::new(&location.mount),
            dentry: Ref::new(&location.dentry),
        }
    }

    #[inline]
    pub(crate) fn common(self) -> &'p InodeCommon {
        self.dentry.value().common()
    }

    #[inline]
    pub(crate) fn to_location(self) -> Location {
        Location {
            mount: self.mount.to_arc(),
            dentry: self.dentry.to_arc(),
        }
    }
}
