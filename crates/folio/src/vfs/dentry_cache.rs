//! The dentry cache: lock-free lookup of names, changed one shard at a time.
//!
//! ```text
//!   shard -> bucket -> Node -> Node -> ...        a chain per bucket, new nodes at its end
//!                       | (directory, name)
//!                       v
//!                     Dentry, or empty: the name is known not to exist
//! ```
//!
//! A node is plain memory, freed by deferred reclamation after it left its chain. A dentry owns an
//! inode: the thread that removes it from the cache drops it, as soon as no reader can see it and
//! with no lock held ([`RemovedDentries`]).
//!
//! A dentry is evicted in two steps. First its node is marked as leaving: a reader that finds a
//! marked node locks the shard and clears the mark before it uses the dentry. After a grace period,
//! every reader that found the node unmarked holds its own reference or has finished. If the
//! cache's reference is then the only one, the dentry is evicted.

use super::dentry::{Dentry, Name, name_heap_bytes};
use super::inode::Inode;
use super::validity::{AttrValidity, NameValidity, RevalidateTicket};
use crate::base::rcu::{self, Grace, Over, Pin, RcuCell, Ref, Replaced};
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{Mutex, MutexGuard};
use crate::cache::{ObjectCharge, ObjectMemory};
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hasher};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const SHARDS: usize = 64;
/// Number of names that one grace period evicts.
const LEAVING_MAX: usize = 32;
/// Number of buckets examined for each new name; if none can be evicted, the shard grows by one.
const STEPS_MAX: usize = 32;

/// Least and most buckets of a shard. The hand must meet names: few of them need few buckets.
const BUCKETS: RangeInclusive<usize> = 64..=2048;
/// Bytes of a name and its inode, at least.
const NAME_BYTES_MIN: u64 = 1024;

/// Positive and negative names, bounded in number and by the memory of all names and inodes,
/// evicted by second chance.
///
/// Changes to the names of a directory hold its inode lock exclusively; adding the result of a
/// lookup holds it shared.
pub(crate) struct DentryCache {
    shards: Box<[Shard]>,
    hasher: RandomState,
    /// Maximum number of names in a shard, unless more are in use.
    shard_capacity: usize,
    memory: Arc<ObjectMemory>,
    /// Orders moves, so that no move sees another one half done.
    moving: Mutex<()>,
}

#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// A power of two of them, created with the first name.
    buckets: OnceLock<Box<[RcuCell<Node>]>>,
    state: Mutex<ShardState>,
}

#[derive(Default)]
struct ShardState {
    count: usize,
    /// The bucket where the search for names to evict continues.
    hand: usize,
    /// Nodes marked as leaving, and the grace period they wait for.
    leaving: SmallVec<[Arc<Node>; 4]>,
    grace: Option<Grace>,
}

struct Node {
    hash: u64,
    parent: u64,
    name: Name,
    dentry: RcuCell<Dentry>,
    /// How long the name is valid, where external writers may change it.
    validity: NameValidity,
    next: RcuCell<Node>,
    is_referenced: AtomicBool,
    /// Set and cleared under the shard's lock.
    is_leaving: AtomicBool,
    /// Whether the node has left its chain, and no longer describes the name.
    is_dead: AtomicBool,
    _charge: ObjectCharge,
}

/// The state of a name in the cache.
pub(crate) enum Cached<T> {
    /// The name exists.
    Positive(T),
    /// The name is known not to exist.
    Negative,
    /// The cache does not know; the file system must be asked.
    Unknown,
}

/// The result of a lookup or of a change, with its ticket if there are external writers.
pub(crate) struct Found {
    pub(crate) inode: Arc<dyn Inode>,
    pub(crate) ticket: Option<RevalidateTicket>,
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct NameSlot<'a> {
    parent: &'a Arc<Dentry>,
    name: &'a [u8],
}

impl<'a> NameSlot<'a> {
    pub(crate) fn new(parent: &'a Arc<Dentry>, name: &'a [u8]) -> Self {
        Self { parent, name }
    }

    /// Returns whether both are one name for the directory.
    fn is_same(self, other: Self) -> bool {
        self.parent.id() == other.parent.id()
            && self.parent.key(self.name) == other.parent.key(other.name)
    }
}

/// Dentries that left the cache, to be dropped with no lock held: dropping the last reference to an
/// inode may do I/O.
#[derive(Default)]
#[must_use]
pub(crate) struct RemovedDentries {
    /// These may have readers.
    replaced: SmallVec<[Replaced<Dentry>; 2]>,
    /// These have no readers any more.
    evicted: SmallVec<[Arc<Dentry>; 4]>,
}

impl RemovedDentries {
    /// Returns whether a grace period must end before everything can be dropped.
    pub(super) fn must_wait(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Drops everything. The grace period that is over started after the dentries left the cache.
    pub(super) fn drop_after(&mut self, over: Over) {
        for replaced in self.replaced.drain(..) {
            drop(replaced.after(over));
        }
        self.evicted.clear();
    }

    fn and(mut self, mut other: Self) -> Self {
        self.replaced.append(&mut other.replaced);
        self.evicted.append(&mut other.evicted);
        self
    }
}

impl Drop for RemovedDentries {
    fn drop(&mut self) {
        if self.must_wait() {
            self.drop_after(Grace::start().wait());
        }
    }
}

impl DentryCache {
    /// Creates a cache of about `capacity` names, fewer if `memory` is over its limit; holds more
    /// only while they are in use.
    pub(crate) fn new(capacity: usize, memory: Arc<ObjectMemory>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::default(),
            shard_capacity: (capacity / SHARDS).max(1),
            memory,
            moving: Mutex::new(()),
        }
    }

    /// Returns the memory that names are charged to.
    pub(super) fn memory(&self) -> &Arc<ObjectMemory> {
        &self.memory
    }

    /// Looks up `name` in `parent` without waiting.
    #[inline]
    pub(crate) fn find<'p>(
        &self,
        parent: &Dentry,
        name: &[u8],
        pin: &'p Pin,
    ) -> Cached<Ref<'p, Dentry>> {
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        let Some(node) = self.shard(hash).find(hash, parent.id(), name, pin) else {
            return Cached::Unknown;
        };
        if node.is_leaving.load(Ordering::Acquire) || !node.is_valid(parent, pin) {
            return Cached::Unknown;
        }
        if !node.is_referenced.load(Ordering::Relaxed) {
            node.is_referenced.store(true, Ordering::Relaxed);
        }
        node.state(parent, pin)
    }

    /// Looks up `name` in `parent`.
    pub(crate) fn get(&self, parent: &Dentry, name: &[u8]) -> Cached<Arc<Dentry>> {
        if let Some(found) = self.find(parent, name, &rcu::pin()).into_known() {
            return found;
        }
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        let shard = self.shard(hash);
        let _state = shard.state.lock();
        let pin = rcu::pin();
        match shard.keep(hash, parent.id(), name, &pin) {
            Some(node) if node.value().is_valid(parent, &pin) => {
                node.value().state(parent, &pin).to_arc()
            }
            _ => Cached::Unknown,
        }
    }

    /// Returns how long the cached state of `name` in `parent` stays valid for a client, which may
    /// not know that other names are the same.
    pub(crate) fn valid_for(&self, parent: &Dentry, name: &[u8]) -> Duration {
        if parent.folds_names() {
            return Duration::ZERO;
        }
        let Some(directory) = parent.validity() else {
            return Duration::MAX;
        };
        let hash = self.hash(parent.id(), name);
        let pin = rcu::pin();
        let node = self.shard(hash).find(hash, parent.id(), name, &pin);
        node.map_or(Duration::ZERO, |node| node.validity.valid_for(directory))
    }

    /// Adds the result of a lookup, unless another lookup added the same inode first; returns the
    /// dentry in use. An inode that an external writer put under the name replaces the cached one.
    pub(crate) fn add(&self, parent: &Arc<Dentry>, name: &[u8], found: Found) -> Arc<Dentry> {
        let Found { inode, ticket } = found;
        let fresh = Dentry::new_child(parent, name, inode.clone());
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        let shard = self.shard(hash);
        let state = shard.state.lock();
        let pin = rcu::pin();
        let mut lost = None;
        if let Some(node) = shard.keep(hash, parent.id(), name, &pin)
            && let Some(dentry) = node.value().dentry.get(&pin)
        {
            if parent.validity().is_none() || Arc::ptr_eq(dentry.inode(), &inode) {
                node.value().validate(parent, ticket);
                if parent.validity().is_some() {
                    dentry.set_found();
                }
                return dentry;
            }
            lost = Some(dentry);
        }
        drop(pin);
        let validity = inode
            .common()
            .validity
            .as_ref()
            .filter(|_| fresh.is_directory());
        let Some(moved) = validity.and_then(AttrValidity::alias::<Dentry>) else {
            let removed = self.put(state, hash, parent, ticket, name, Some(fresh.clone()));
            validity.inspect(|validity| validity.set_alias(&fresh));
            drop_replaced(lost, removed);
            return fresh;
        };
        drop(state);
        let (dentry, removed) = self.splice(moved, fresh, parent, ticket, name);
        drop_replaced(lost, removed);
        dentry
    }

    /// Moves the dentry of a directory that an external writer moved to its new position, so that
    /// its users can continue. A mountpoint, and a directory that would become its own descendant,
    /// stay; then `fresh` takes the new position. Linux: `d_splice_alias`.
    fn splice(
        &self,
        moved: Arc<Dentry>,
        fresh: Arc<Dentry>,
        parent: &Arc<Dentry>,
        ticket: Option<RevalidateTicket>,
        name: &[u8],
    ) -> (Arc<Dentry>, RemovedDentries) {
        let _moving = self.moving.lock();
        let old = moved.parent().filter(|_| {
            moved.root_id() == parent.root_id()
                && !moved.is_mountpoint()
                && !moved.is_ancestor_of(parent)
        });
        let dentry = if old.is_some() { moved } else { fresh };
        if let Some(validity) = dentry.validity() {
            validity.set_alias(&dentry);
        }
        let mut removed = RemovedDentries::default();
        if let Some(old_parent) = old {
            removed = self.forget(&old_parent, &dentry.name(), &dentry);
            dentry.move_to(parent, name);
            dentry.set_found();
        }
        let hash = self.hash(parent.id(), name);
        let state = self.shard(hash).state.lock();
        let removed =
            removed.and(self.put(state, hash, parent, ticket, name, Some(dentry.clone())));
        (dentry, removed)
    }

    /// Makes the state of a name unknown, if it refers to `dentry`.
    fn forget(&self, parent: &Dentry, name: &[u8], dentry: &Arc<Dentry>) -> RemovedDentries {
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        let shard = self.shard(hash);
        let _state = shard.state.lock();
        let pin = rcu::pin();
        let mut removed = RemovedDentries::default();
        if let Some(node) = shard.keep(hash, parent.id(), name, &pin)
            && node
                .value()
                .dentry
                .get(&pin)
                .is_some_and(|cached| Arc::ptr_eq(&cached, dentry))
        {
            node.value().validity.invalidate();
            removed.replaced.extend(node.value().dentry.replace(None));
        }
        removed
    }

    /// Notes that `name` does not exist; drops its dentry if an external writer removed the name.
    pub(crate) fn add_negative(
        &self,
        parent: &Dentry,
        name: &[u8],
        ticket: Option<RevalidateTicket>,
    ) {
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        let state = self.shard(hash).state.lock();
        let pin = rcu::pin();
        let lost = self
            .shard(hash)
            .find(hash, parent.id(), name, &pin)
            .and_then(|node| node.dentry.get(&pin));
        drop(pin);
        let removed = self.put(state, hash, parent, ticket, name, None);
        drop_replaced(lost, removed);
    }

    /// Notes that the name of `dentry` was removed.
    pub(crate) fn delete(&self, parent: &Dentry, name: &[u8], dentry: &Dentry) -> RemovedDentries {
        dentry.set_deleted();
        self.set(parent, name, None)
    }

    /// Moves `dentry` to another position; `replaced`, which had that position, loses its name.
    pub(crate) fn rename(
        &self,
        old: NameSlot<'_>,
        dentry: &Arc<Dentry>,
        new: NameSlot<'_>,
        replaced: Option<&Dentry>,
        left: Option<Arc<Dentry>>,
    ) -> RemovedDentries {
        let _moving = self.moving.lock();
        if let Some(replaced) = replaced {
            replaced.set_deleted();
        }
        // An external writer may have moved the new parent below it meanwhile, or out of it before,
        // unknown to the cache. The next lookup of the name finds out.
        let moved = (!dentry.is_ancestor_of(new.parent)).then(|| dentry.clone());
        if moved.is_some() {
            dentry.move_to(new.parent, new.name);
        } else {
            dentry.set_deleted();
            self.invalidate(new.parent, new.name);
        }
        // The new name first: a lookup of a replaced name always finds one inode or the other.
        let removed = self.set(new.parent, new.name, moved);
        if old.is_same(new) {
            return removed;
        }
        removed.and(self.set(old.parent, old.name, left))
    }

    /// Makes the state of a name invalid.
    fn invalidate(&self, parent: &Dentry, name: &[u8]) {
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        if let Some(node) = self.shard(hash).find(hash, parent.id(), name, &rcu::pin()) {
            node.validity.invalidate();
        }
    }

    /// Exchanges the positions of two dentries: `first` is at `from`, `second` at `to`.
    pub(crate) fn exchange(
        &self,
        from: NameSlot<'_>,
        first: &Arc<Dentry>,
        to: NameSlot<'_>,
        second: &Arc<Dentry>,
    ) -> RemovedDentries {
        let _moving = self.moving.lock();
        let is_possible = !first.is_ancestor_of(to.parent) && !second.is_ancestor_of(from.parent);
        if is_possible {
            first.move_to(to.parent, to.name);
            second.move_to(from.parent, from.name);
        } else {
            // As in `rename`.
            first.set_deleted();
            second.set_deleted();
            self.invalidate(to.parent, to.name);
            self.invalidate(from.parent, from.name);
        }
        let moved = |dentry: &Arc<Dentry>| is_possible.then(|| dentry.clone());
        let removed = self.set(to.parent, to.name, moved(first));
        removed.and(self.set(from.parent, from.name, moved(second)))
    }

    /// Removes every name of the file system whose root is `root`; none is in use any more. Removes
    /// all names that do not exist, too: they may have been its own.
    pub(crate) fn forget_tree(&self, root: &Dentry) -> RemovedDentries {
        let mut removed = RemovedDentries::default();
        for shard in &self.shards {
            let Some(buckets) = shard.buckets.get() else {
                continue;
            };
            let mut state = shard.state.lock();
            for bucket in buckets {
                shard.remove_where(&mut state, bucket, &mut removed, |node, pin| {
                    node.value()
                        .dentry
                        .load(pin)
                        .is_none_or(|dentry| dentry.root_id() == root.root_id())
                });
            }
            // Else a batch of removed names would stay in memory until the next one.
            let is_in_use = |node: &mut Arc<Node>| !node.is_dead.load(Ordering::Relaxed);
            state.leaving.retain(is_in_use);
        }
        removed
    }

    /// Sets the dentry of a name after the file system changed it. The backing store was not asked,
    /// so the validity of the name is not extended.
    fn set(&self, parent: &Dentry, name: &[u8], dentry: Option<Arc<Dentry>>) -> RemovedDentries {
        let name = &*parent.key(name);
        let hash = self.hash(parent.id(), name);
        self.put(
            self.shard(hash).state.lock(),
            hash,
            parent,
            None,
            name,
            dentry,
        )
    }

    /// Sets the dentry of a name.
    fn put(
        &self,
        mut state: MutexGuard<'_, ShardState>,
        hash: u64,
        parent: &Dentry,
        ticket: Option<RevalidateTicket>,
        name: &[u8],
        dentry: Option<Arc<Dentry>>,
    ) -> RemovedDentries {
        let shard = self.shard(hash);
        let mut removed = RemovedDentries::default();
        if let Some(node) = shard.keep(hash, parent.id(), name, &rcu::pin()) {
            removed.replaced.extend(node.value().dentry.replace(dentry));
            node.value().validate(parent, ticket);
            return removed;
        }
        let is_full = |count| count >= self.shard_capacity || self.memory.is_over_limit();
        if is_full(state.count) {
            shard.make_room(&mut state, is_full, &mut removed);
        }
        let name = Name::from_slice(name);
        let charge = self
            .memory
            .charge(size_of::<Node>() + name_heap_bytes(&name));
        let node = Node {
            hash,
            parent: parent.id(),
            name,
            dentry: dentry.map_or(RcuCell::empty(), RcuCell::new),
            validity: NameValidity::default(),
            next: RcuCell::empty(),
            is_referenced: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            _charge: charge,
        };
        node.validate(parent, ticket);
        let buckets = shard.buckets.get_or_init(|| {
            let names_max = self.memory.limit_bytes() / NAME_BYTES_MIN / SHARDS as u64;
            let count = (names_max as usize)
                .clamp(*BUCKETS.start(), *BUCKETS.end())
                .min((self.shard_capacity / 2).max(1));
            (0..count.next_power_of_two())
                .map(|_| RcuCell::empty())
                .collect()
        });
        let pin = rcu::pin();
        let mut end = &buckets[hash as usize & (buckets.len() - 1)];
        while let Some(other) = end.load(&pin) {
            end = &other.next;
        }
        let previous = end.replace(Some(Arc::new(node)));
        debug_assert!(previous.is_none(), "the end of a chain");
        state.count += 1;
        removed
    }

    #[inline]
    fn hash(&self, parent: u64, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(parent);
        hasher.write(name);
        hasher.finish()
    }

    /// Returns the address of the shard of a name.
    #[cfg(all(test, folio_loom))]
    pub(super) fn shard_of(&self, parent: &Dentry, name: &[u8]) -> usize {
        std::ptr::from_ref(self.shard(self.hash(parent.id(), name))).addr()
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

/// Drops dentries that left the cache. `lost` is the one whose name an external writer removed or
/// gave to another inode. The caller holds no lock of the dentry cache.
fn drop_replaced(lost: Option<Arc<Dentry>>, removed: RemovedDentries) {
    if let Some(dentry) = lost {
        dentry.delete_if_unlinked();
    }
    drop(removed);
}

impl Node {
    #[inline]
    fn is(&self, hash: u64, parent: u64, name: &[u8]) -> bool {
        self.hash == hash && self.parent == parent && self.name.as_slice() == name
    }

    /// Returns whether the node may be used without asking the backing store. A mountpoint stays
    /// valid.
    #[inline]
    fn is_valid(&self, parent: &Dentry, pin: &Pin) -> bool {
        let Some(directory) = parent.validity() else {
            return true;
        };
        let dentry = self.dentry.borrow(pin);
        let is_lost = |dentry: &Dentry| dentry.validity().is_some_and(AttrValidity::is_lost);
        let is_valid = self.validity.is_valid(directory);
        match dentry.map(Ref::value) {
            Some(dentry) if is_valid => !is_lost(dentry) || dentry.is_mountpoint(),
            Some(dentry) => dentry.is_mountpoint(),
            None => is_valid,
        }
    }

    /// Makes the node valid as of `ticket`.
    fn validate(&self, parent: &Dentry, ticket: Option<RevalidateTicket>) {
        if let (Some(directory), Some(ticket)) = (parent.validity(), ticket) {
            self.validity.validate(ticket, directory);
        }
    }

    /// Returns the state of the name. The node is not leaving.
    #[inline]
    fn state<'p>(&self, parent: &Dentry, pin: &'p Pin) -> Cached<Ref<'p, Dentry>> {
        match self.dentry.borrow(pin) {
            Some(dentry) => Cached::Positive(dentry),
            // A file that was created since may have this as another name.
            None if parent.folds_names() => Cached::Unknown,
            // A node is marked dead before its dentry is removed.
            None if self.is_dead.load(Ordering::Acquire) => Cached::Unknown,
            None => Cached::Negative,
        }
    }
}

impl Cached<Ref<'_, Dentry>> {
    fn to_arc(&self) -> Cached<Arc<Dentry>> {
        match self {
            Self::Positive(dentry) => Cached::Positive(dentry.to_arc()),
            Self::Negative => Cached::Negative,
            Self::Unknown => Cached::Unknown,
        }
    }

    fn into_known(self) -> Option<Cached<Arc<Dentry>>> {
        if matches!(self, Self::Unknown) {
            None
        } else {
            Some(self.to_arc())
        }
    }
}

impl Shard {
    #[inline]
    fn bucket(&self, hash: u64) -> Option<&RcuCell<Node>> {
        let buckets = self.buckets.get()?;
        buckets.get(hash as usize & (buckets.len() - 1))
    }

    #[inline]
    fn find<'p>(&self, hash: u64, parent: u64, name: &[u8], pin: &'p Pin) -> Option<&'p Node> {
        let mut node = self.bucket(hash)?.load(pin)?;
        while !node.is(hash, parent, name) {
            node = node.next.load(pin)?;
        }
        Some(node)
    }

    /// Finds a node and clears its leaving mark. The shard is locked.
    fn keep<'p>(&self, hash: u64, parent: u64, name: &[u8], pin: &'p Pin) -> Option<Ref<'p, Node>> {
        let mut node = self.bucket(hash)?.borrow(pin)?;
        while !node.value().is(hash, parent, name) {
            node = node.value().next.borrow(pin)?;
        }
        node.value().is_leaving.store(false, Ordering::Release);
        node.value().is_referenced.store(true, Ordering::Relaxed);
        Some(node)
    }

    /// Evicts by second chance: names that are unused and were not looked up since the hand last
    /// passed. Negative names leave at once; names with a dentry leave after a grace period, with
    /// the next batch.
    fn make_room(
        &self,
        state: &mut ShardState,
        is_full: impl Fn(usize) -> bool,
        removed: &mut RemovedDentries,
    ) {
        if let Some(grace) = state.grace {
            let Some(over) = grace.over() else { return };
            state.grace = None;
            self.finish_leaving(state, over, removed);
        }
        let Some(buckets) = self.buckets.get() else {
            return;
        };
        let batch = (state.count / 8).clamp(1, LEAVING_MAX);
        let mut leaving = SmallVec::new();
        for _ in 0..STEPS_MAX.min(2 * buckets.len()) {
            if !is_full(state.count) || leaving.len() >= batch {
                break;
            }
            state.hand = (state.hand + 1) % buckets.len();
            self.remove_where(state, &buckets[state.hand], removed, |node, pin| {
                let Node {
                    dentry,
                    is_referenced,
                    is_leaving,
                    ..
                } = node.value();
                let is_used = dentry
                    .borrow(pin)
                    .is_some_and(|dentry| dentry.strong_count() > 1);
                let is_wanted = is_leaving.load(Ordering::Relaxed)
                    || is_used
                    || is_referenced.swap(false, Ordering::Relaxed);
                if !is_wanted && !dentry.is_empty() {
                    is_leaving.store(true, Ordering::Release);
                    leaving.push(node.to_arc());
                }
                !is_wanted && dentry.is_empty()
            });
        }
        if !leaving.is_empty() {
            state.grace = Some(Grace::start());
            state.leaving = leaving;
        }
    }

    /// Evicts leaving nodes after the grace period: every reader that found a node unmarked holds
    /// its own reference to the dentry now.
    fn finish_leaving(&self, state: &mut ShardState, over: Over, removed: &mut RemovedDentries) {
        let mut left = RemovedDentries::default();
        for node in std::mem::take(&mut state.leaving) {
            let Some(bucket) = self.bucket(node.hash) else {
                continue;
            };
            self.remove_where(state, bucket, &mut left, |other, pin| {
                std::ptr::eq(other.value(), &*node)
                    && node.is_leaving.load(Ordering::Relaxed)
                    && node
                        .dentry
                        .borrow(pin)
                        .is_none_or(|dentry| dentry.strong_count() == 1)
            });
            node.is_leaving.store(false, Ordering::Release);
        }
        // No reader used them since they were marked, so the grace period that is over suffices.
        removed
            .evicted
            .extend(left.replaced.drain(..).map(|replaced| replaced.after(over)));
    }

    /// Removes the nodes for which `is_going` returns true from a chain. The shard is locked.
    fn remove_where(
        &self,
        state: &mut ShardState,
        bucket: &RcuCell<Node>,
        removed: &mut RemovedDentries,
        mut is_going: impl FnMut(Ref<'_, Node>, &Pin) -> bool,
    ) {
        let pin = rcu::pin();
        let mut link = bucket;
        while let Some(node) = link.borrow(&pin) {
            let is_going = is_going(node, &pin);
            let node = node.value();
            if is_going {
                node.is_dead.store(true, Ordering::Release);
                removed.replaced.extend(node.dentry.replace(None));
                // The node is plain memory now, and its drop may be deferred.
                drop(link.replace(node.next.get(&pin)));
                state.count -= 1;
            } else {
                link = &node.next;
            }
        }
    }
}
