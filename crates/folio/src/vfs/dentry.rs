//! Names in memory: the tree of dentries and the cache that finds them.

use super::{FileType, Inode};
use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A name without its directory; short ones need no allocation.
pub(crate) type Name = SmallVec<[u8; 32]>;

/// A name that leads to an inode. Linux: `struct dentry`, always positive.
///
/// A live dentry with a name is in the cache, so that one directory has one dentry. A child keeps its parent
/// alive; a dentry nobody uses has exactly the cache's reference.
pub(crate) struct Dentry {
    id: u64,
    tree: u64,
    inode: Arc<dyn Inode>,
    place: RwLock<Place>,
    is_deleted: AtomicBool,
    is_mountpoint: AtomicBool,
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
        Arc::new(Self::build(id, id, inode, Place { parent: None, name: Name::new() }))
    }

    /// An inode without a name, made below `parent` (`O_TMPFILE`).
    pub(crate) fn new_unnamed(parent: &Arc<Self>, inode: Arc<dyn Inode>, is_linkable: bool) -> Arc<Self> {
        let dentry = Self::new_child(parent, b"", inode);
        dentry.is_deleted.store(true, Ordering::Relaxed);
        dentry.is_linkable.store(is_linkable, Ordering::Relaxed);
        dentry
    }

    fn new_child(parent: &Arc<Self>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let place = Place { parent: Some(parent.clone()), name: Name::from_slice(name) };
        Arc::new(Self::build(id, parent.tree, inode, place))
    }

    fn build(id: u64, tree: u64, inode: Arc<dyn Inode>, place: Place) -> Self {
        Self {
            id,
            tree,
            inode,
            place: RwLock::new(place),
            is_deleted: AtomicBool::new(false),
            is_mountpoint: AtomicBool::new(false),
            is_linkable: AtomicBool::new(false),
        }
    }

    /// A number no other dentry ever has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The inode the name leads to.
    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The inode's type.
    pub(crate) fn file_type(&self) -> FileType {
        self.inode.common().file_type
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

    /// Whether a file system is mounted here.
    pub(crate) fn is_mountpoint(&self) -> bool {
        self.is_mountpoint.load(Ordering::Acquire)
    }

    pub(crate) fn set_mountpoint(&self, is_mountpoint: bool) {
        self.is_mountpoint.store(is_mountpoint, Ordering::Release);
    }

    /// Whether an inode without names may get one: made by `O_TMPFILE` without `O_EXCL`. Linux: `I_LINKABLE`.
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
            next = Arc::into_inner(parent).and_then(|mut dentry| dentry.place.get_mut().parent.take());
        }
    }
}

/// What the cache knows about a name.
pub(crate) enum Cached {
    /// It leads here.
    Positive(Arc<Dentry>),
    /// It is known not to exist.
    Negative,
    /// Nothing; the file system must be asked.
    Unknown,
}

const SHARDS: usize = 64;

/// Names found and names known not to exist, bounded in number, with second chance.
///
/// Changes to the names of a directory are made under its inode lock, exclusive; what a lookup found is added
/// under the same lock, shared. Finding takes only a shard's lock.
pub(crate) struct DentryCache {
    shards: Box<[RwLock<Shard>]>,
    hasher: RandomState,
    /// Orders moves, so that two of them never see each other half done.
    moving: Mutex<()>,
}

#[derive(Default)]
struct Shard {
    /// Hash of (directory, name) to positions in `slots`.
    index: HashMap<u64, SmallVec<[u32; 2]>, BuildHasherDefault<AsIs>>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    hand: usize,
    capacity: usize,
}

struct Slot {
    hash: u64,
    parent: u64,
    name: Name,
    dentry: Option<Arc<Dentry>>,
    is_referenced: AtomicBool,
}

/// Keys that are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl DentryCache {
    /// A cache of at most about `capacity` names, more only while they are in use.
    pub(crate) fn new(capacity: usize) -> Self {
        let per_shard = (capacity / SHARDS).max(1);
        let shard = || RwLock::new(Shard { capacity: per_shard, ..Shard::default() });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::default(),
            moving: Mutex::new(()),
        }
    }

    /// What is known about `name` in `parent`.
    pub(crate) fn get(&self, parent: &Dentry, name: &[u8]) -> Cached {
        let hash = self.hash(parent.id, name);
        let shard = self.shard(hash).read();
        let Some(position) = shard.find(hash, parent.id, name) else { return Cached::Unknown };
        let Some(slot) = &shard.slots[position as usize] else { return Cached::Unknown };
        if !slot.is_referenced.load(Ordering::Relaxed) {
            slot.is_referenced.store(true, Ordering::Relaxed);
        }
        match &slot.dentry {
            Some(dentry) => Cached::Positive(dentry.clone()),
            None => Cached::Negative,
        }
    }

    /// Adds what a lookup found, unless another lookup was first; returns the dentry that counts.
    pub(crate) fn add(&self, parent: &Arc<Dentry>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Dentry> {
        let fresh = Dentry::new_child(parent, name, inode);
        let hash = self.hash(parent.id, name);
        let mut shard = self.shard(hash).write();
        if let Some(position) = shard.find(hash, parent.id, name)
            && let Some(Slot { dentry: Some(dentry), .. }) = &shard.slots[position as usize]
        {
            return dentry.clone();
        }
        let dropped = shard.put(hash, parent.id, name, Some(fresh.clone()));
        drop(shard);
        drop(dropped);
        fresh
    }

    /// Notes that `name` does not exist.
    pub(crate) fn add_negative(&self, parent: &Dentry, name: &[u8]) {
        self.set(parent.id, name, None);
    }

    /// Notes that the name of `dentry` has been taken away.
    pub(crate) fn delete(&self, parent: &Dentry, name: &[u8], dentry: &Dentry) {
        dentry.is_deleted.store(true, Ordering::Release);
        self.set(parent.id, name, None);
    }

    /// Gives `dentry` another place; `replaced`, which was there, loses its name.
    pub(crate) fn rename(
        &self,
        (old_parent, old_name): (&Arc<Dentry>, &[u8]),
        dentry: &Arc<Dentry>,
        (new_parent, new_name): (&Arc<Dentry>, &[u8]),
        replaced: Option<&Dentry>,
    ) {
        let _moving = self.moving.lock();
        if let Some(replaced) = replaced {
            replaced.is_deleted.store(true, Ordering::Release);
        }
        dentry.move_to(new_parent, new_name);
        // The new name first: whoever looks for a name that is replaced always finds one or the other.
        self.set(new_parent.id, new_name, Some(dentry.clone()));
        self.set(old_parent.id, old_name, None);
    }

    /// Lets two dentries change places.
    pub(crate) fn exchange(
        &self,
        (first_parent, first_name): (&Arc<Dentry>, &[u8]),
        first: &Arc<Dentry>,
        (second_parent, second_name): (&Arc<Dentry>, &[u8]),
        second: &Arc<Dentry>,
    ) {
        let _moving = self.moving.lock();
        first.move_to(second_parent, second_name);
        second.move_to(first_parent, first_name);
        self.set(second_parent.id, second_name, Some(first.clone()));
        self.set(first_parent.id, first_name, Some(second.clone()));
    }

    /// Forgets every name of the file system whose root is `root`; nobody uses them any more.
    pub(crate) fn forget_tree(&self, root: &Dentry) {
        for shard in &self.shards {
            let dropped = shard.write().take_tree(root.id);
            drop(dropped);
        }
    }

    fn set(&self, parent: u64, name: &[u8], dentry: Option<Arc<Dentry>>) {
        let hash = self.hash(parent, name);
        let dropped = self.shard(hash).write().put(hash, parent, name, dentry);
        // Outside the lock: the last reference to an inode may have work to do.
        drop(dropped);
    }

    fn hash(&self, parent: u64, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(parent);
        hasher.write(name);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl Dentry {
    fn move_to(&self, parent: &Arc<Dentry>, name: &[u8]) {
        let place = Place { parent: Some(parent.clone()), name: Name::from_slice(name) };
        let old = std::mem::replace(&mut *self.place.write(), place);
        drop(old);
    }
}

impl Shard {
    fn find(&self, hash: u64, parent: u64, name: &[u8]) -> Option<u32> {
        let positions = self.index.get(&hash)?;
        positions.iter().copied().find(|position| {
            let slot = self.slots[*position as usize].as_ref();
            slot.is_some_and(|slot| slot.parent == parent && slot.name.as_slice() == name)
        })
    }

    /// Sets what a name leads to; returns what the caller drops after unlocking.
    fn put(
        &mut self,
        hash: u64,
        parent: u64,
        name: &[u8],
        dentry: Option<Arc<Dentry>>,
    ) -> (Option<Arc<Dentry>>, Option<Slot>) {
        if let Some(position) = self.find(hash, parent, name)
            && let Some(slot) = &mut self.slots[position as usize]
        {
            return (std::mem::replace(&mut slot.dentry, dentry), None);
        }
        let evicted = if self.slots.len() - self.free.len() >= self.capacity { self.evict() } else { None };
        let is_referenced = AtomicBool::new(false);
        let slot = Slot { hash, parent, name: Name::from_slice(name), dentry, is_referenced };
        let position = match self.free.pop() {
            Some(position) => position,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        self.slots[position as usize] = Some(slot);
        self.index.entry(hash).or_default().push(position);
        (None, evicted)
    }

    /// Second chance: takes the first name that nobody uses and nobody asked for since the hand last passed.
    fn evict(&mut self) -> Option<Slot> {
        /// More steps than this per new name are not worth it; the shard grows by one instead.
        const STEPS_MAX: usize = 64;
        for _ in 0..STEPS_MAX.min(2 * self.slots.len()) {
            let position = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(slot) = &self.slots[position] else { continue };
            let is_used = slot.dentry.as_ref().is_some_and(|dentry| Arc::strong_count(dentry) > 1);
            if !is_used && !slot.is_referenced.swap(false, Ordering::Relaxed) {
                return self.take(position as u32);
            }
        }
        None
    }

    fn take(&mut self, position: u32) -> Option<Slot> {
        let slot = self.slots[position as usize].take()?;
        if let Some(positions) = self.index.get_mut(&slot.hash) {
            positions.retain(|other| *other != position);
            if positions.is_empty() {
                self.index.remove(&slot.hash);
            }
        }
        self.free.push(position);
        Some(slot)
    }

    fn take_tree(&mut self, tree: u64) -> Vec<Slot> {
        let is_in_tree = |slot: &Slot| slot.dentry.as_ref().is_some_and(|dentry| dentry.tree == tree);
        let positions: Vec<_> = (0..self.slots.len())
            .filter(|position| self.slots[*position].as_ref().is_some_and(is_in_tree))
            .collect();
        positions.into_iter().filter_map(|position| self.take(position as u32)).collect()
    }
}
