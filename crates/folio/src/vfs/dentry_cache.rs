//! The cache of names: found without a lock, changed one shard at a time.
//!
//! ```text
//!   shard -> bucket -> Node -> Node -> ...        a chain per bucket, new nodes at its end
//!                       | (directory, name)
//!                       v
//!                     Dentry, or nothing: the name is known not to exist
//! ```
//!
//! A node is plain memory and is dropped some time after it left its chain; a dentry owns an inode
//! and is dropped as soon as nobody can look at it, by who took it out, with no lock held
//! ([`Gone`]).
//!
//! A dentry is evicted in two steps. First its node is marked as leaving: who finds such a node
//! does not look at the dentry before it has locked the shard and taken the mark away. After a
//! grace period everybody who found it unmarked has a reference of his own, or has gone: if the
//! cache's is the only one, the dentry goes.

use super::Inode;
use super::coherence::{Belief, Coherence, Question};
use super::dentry::{Dentry, Name};
use crate::base::rcu::{self, Grace, Over, Pin, RcuCell, Ref, Replaced};
use crate::base::sync::{Mutex, MutexGuard};
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const SHARDS: usize = 64;
/// Names that leave together: one grace period for all.
const LEAVING_MAX: usize = 32;
/// Buckets looked at for each new name; if nothing may go the shard grows by one instead.
const STEPS_MAX: usize = 32;

/// Names found and names known not to exist, bounded in number, with second chance.
///
/// Changes to the names of a directory are made under its inode lock, exclusive; what a lookup
/// found is added under the same lock, shared.
pub(crate) struct DentryCache {
    shards: Box<[Shard]>,
    hasher: RandomState,
    /// Names in a shard, unless more are in use.
    shard_capacity: usize,
    /// Orders moves, so that two of them never see each other half done.
    moving: Mutex<()>,
}

#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// A power of two of them, made when the first name comes.
    buckets: OnceLock<Box<[RcuCell<Node>]>>,
    state: Mutex<ShardState>,
}

#[derive(Default)]
struct ShardState {
    count: usize,
    /// The bucket where the search for names to evict goes on.
    hand: usize,
    /// Nodes that are marked as leaving, and the grace period they wait for.
    leaving: SmallVec<[Arc<Node>; 4]>,
    grace: Option<Grace>,
}

struct Node {
    hash: u64,
    parent: u64,
    name: Name,
    dentry: RcuCell<Dentry>,
    /// Where others may change names, up to when this one is believed.
    belief: Belief,
    next: RcuCell<Node>,
    is_referenced: AtomicBool,
    /// Set and cleared with the shard locked.
    is_leaving: AtomicBool,
    /// No longer in its chain: says nothing about the name.
    is_dead: AtomicBool,
}

/// What the cache knows about a name.
pub(crate) enum Cached<T> {
    /// It leads here.
    Positive(T),
    /// It is known not to exist.
    Negative,
    /// Nothing; the file system must be asked.
    Unknown,
}

/// What a lookup found, or a change made, and when it was asked for where others change names.
pub(crate) struct Found {
    pub(crate) inode: Arc<dyn Inode>,
    pub(crate) question: Option<Question>,
}

/// What left the cache, to be dropped with no lock held: the last reference to an inode may have
/// work to do.
#[derive(Default)]
#[must_use]
pub(crate) struct Gone {
    /// These may have readers.
    replaced: SmallVec<[Replaced<Dentry>; 2]>,
    /// These have none any more.
    evicted: SmallVec<[Arc<Dentry>; 4]>,
}

impl Gone {
    /// Whether a grace period must end before everything can be dropped.
    pub(super) fn must_wait(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Drops everything; the grace period that is over started after it left the cache.
    pub(super) fn let_go(&mut self, over: Over) {
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

impl Drop for Gone {
    fn drop(&mut self) {
        if self.must_wait() {
            self.let_go(Grace::start().wait());
        }
    }
}

impl DentryCache {
    /// A cache of at most about `capacity` names, more only while they are in use.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::default(),
            shard_capacity: (capacity / SHARDS).max(1),
            moving: Mutex::new(()),
        }
    }

    /// What is known about `name` in `parent` without waiting for anybody.
    #[inline]
    pub(crate) fn find<'p>(
        &self,
        parent: &Dentry,
        name: &[u8],
        pin: &'p Pin,
    ) -> Cached<Ref<'p, Dentry>> {
        let hash = self.hash(parent.id(), name);
        let Some(node) = self.shard(hash).find(hash, parent.id(), name, pin) else {
            return Cached::Unknown;
        };
        if node.is_leaving.load(Ordering::Acquire) || !node.is_believed(parent, pin) {
            return Cached::Unknown;
        }
        if !node.is_referenced.load(Ordering::Relaxed) {
            node.is_referenced.store(true, Ordering::Relaxed);
        }
        node.known(pin)
    }

    /// What is known about `name` in `parent`.
    pub(crate) fn get(&self, parent: &Dentry, name: &[u8]) -> Cached<Arc<Dentry>> {
        if let Some(found) = self.find(parent, name, &rcu::pin()).into_known() {
            return found;
        }
        let hash = self.hash(parent.id(), name);
        let shard = self.shard(hash);
        let _state = shard.state.lock();
        let pin = rcu::pin();
        match shard.keep(hash, parent.id(), name, &pin) {
            Some(node) if node.value().is_believed(parent, &pin) => {
                node.value().known(&pin).to_arc()
            }
            _ => Cached::Unknown,
        }
    }

    /// For how long what is known about `name` in `parent` may still be told without asking.
    pub(crate) fn believed_for(&self, parent: &Dentry, name: &[u8]) -> Duration {
        let Some(directory) = parent.coherence() else {
            return Duration::MAX;
        };
        let hash = self.hash(parent.id(), name);
        let pin = rcu::pin();
        let node = self.shard(hash).find(hash, parent.id(), name, &pin);
        node.map_or(Duration::ZERO, |node| node.belief.left(directory))
    }

    /// Adds what a lookup found, unless another lookup found the same first; returns the dentry
    /// that counts. What others have put in the place of something else takes its place here.
    pub(crate) fn add(&self, parent: &Arc<Dentry>, name: &[u8], found: Found) -> Arc<Dentry> {
        let Found { inode, question } = found;
        let fresh = Dentry::new_child(parent, name, inode.clone());
        let hash = self.hash(parent.id(), name);
        let shard = self.shard(hash);
        let state = shard.state.lock();
        let pin = rcu::pin();
        let mut lost = None;
        if let Some(node) = shard.keep(hash, parent.id(), name, &pin)
            && let Some(dentry) = node.value().dentry.get(&pin)
        {
            if parent.coherence().is_none() || Arc::ptr_eq(dentry.inode(), &inode) {
                node.value().renew(parent, question);
                if parent.coherence().is_some() {
                    dentry.set_found();
                }
                return dentry;
            }
            lost = Some(dentry);
        }
        drop(pin);
        let coherence = inode
            .common()
            .coherence
            .as_ref()
            .filter(|_| fresh.is_directory());
        let Some(moved) = coherence.and_then(Coherence::dentry) else {
            let gone = self.put(state, hash, (parent, question), name, Some(fresh.clone()));
            coherence.inspect(|coherence| coherence.set_dentry(&fresh));
            Dentry::lose_name(lost, gone);
            return fresh;
        };
        drop(state);
        let (dentry, gone) = self.splice(moved, fresh, (parent, question), name);
        Dentry::lose_name(lost, gone);
        dentry
    }

    /// Gives a directory that others have moved its new place here, too, so that who uses it can go
    /// on; a mountpoint and what would lie below itself stay, and `fresh` takes the place. Linux:
    /// `d_splice_alias`.
    fn splice(
        &self,
        moved: Arc<Dentry>,
        fresh: Arc<Dentry>,
        (parent, question): (&Arc<Dentry>, Option<Question>),
        name: &[u8],
    ) -> (Arc<Dentry>, Gone) {
        let _moving = self.moving.lock();
        let old = moved.parent().filter(|_| {
            moved.tree() == parent.tree() && !moved.is_mountpoint() && !moved.is_ancestor_of(parent)
        });
        let dentry = if old.is_some() { moved } else { fresh };
        if let Some(coherence) = dentry.coherence() {
            coherence.set_dentry(&dentry);
        }
        let mut gone = Gone::default();
        if let Some(old_parent) = old {
            gone = self.forget(&old_parent, &dentry.name(), &dentry);
            dentry.move_to(parent, name);
            dentry.set_found();
        }
        let hash = self.hash(parent.id(), name);
        let state = self.shard(hash).state.lock();
        let gone = gone.and(self.put(state, hash, (parent, question), name, Some(dentry.clone())));
        (dentry, gone)
    }

    /// Knows nothing of a name any more, if it leads to `dentry`.
    fn forget(&self, parent: &Dentry, name: &[u8], dentry: &Arc<Dentry>) -> Gone {
        let hash = self.hash(parent.id(), name);
        let shard = self.shard(hash);
        let _state = shard.state.lock();
        let pin = rcu::pin();
        let mut gone = Gone::default();
        if let Some(node) = shard.keep(hash, parent.id(), name, &pin)
            && node
                .value()
                .dentry
                .get(&pin)
                .is_some_and(|known| Arc::ptr_eq(&known, dentry))
        {
            node.value().belief.end();
            gone.replaced.extend(node.value().dentry.replace(None));
        }
        gone
    }

    /// Notes that `name` does not exist; what others have taken away goes.
    pub(crate) fn add_negative(&self, parent: &Dentry, name: &[u8], question: Option<Question>) {
        let hash = self.hash(parent.id(), name);
        let state = self.shard(hash).state.lock();
        let pin = rcu::pin();
        let lost = self
            .shard(hash)
            .find(hash, parent.id(), name, &pin)
            .and_then(|node| node.dentry.get(&pin));
        drop(pin);
        let gone = self.put(state, hash, (parent, question), name, None);
        Dentry::lose_name(lost, gone);
    }

    /// Notes that the name of `dentry` has been taken away.
    pub(crate) fn delete(&self, parent: &Dentry, name: &[u8], dentry: &Dentry) -> Gone {
        dentry.set_deleted();
        self.set(parent, name, None)
    }

    /// Gives `dentry` another place; `replaced`, which was there, loses its name.
    pub(crate) fn rename(
        &self,
        (old_parent, old_name): (&Arc<Dentry>, &[u8]),
        dentry: &Arc<Dentry>,
        (new_parent, new_name): (&Arc<Dentry>, &[u8]),
        replaced: Option<&Dentry>,
    ) -> Gone {
        let _moving = self.moving.lock();
        if let Some(replaced) = replaced {
            replaced.set_deleted();
        }
        // What others have moved meanwhile may lie there by now.
        match dentry.is_ancestor_of(new_parent) {
            true => dentry.set_deleted(),
            false => dentry.move_to(new_parent, new_name),
        }
        // The new name first: whoever looks for a name that is replaced always finds one or the
        // other.
        let gone = self.set(new_parent, new_name, Some(dentry.clone()));
        gone.and(self.set(old_parent, old_name, None))
    }

    /// Lets two dentries change places.
    pub(crate) fn exchange(
        &self,
        (first_parent, first_name): (&Arc<Dentry>, &[u8]),
        first: &Arc<Dentry>,
        (second_parent, second_name): (&Arc<Dentry>, &[u8]),
        second: &Arc<Dentry>,
    ) -> Gone {
        let _moving = self.moving.lock();
        first.move_to(second_parent, second_name);
        second.move_to(first_parent, first_name);
        let gone = self.set(second_parent, second_name, Some(first.clone()));
        gone.and(self.set(first_parent, first_name, Some(second.clone())))
    }

    /// Forgets every name of the file system whose root is `root`; nobody uses them any more.
    pub(crate) fn forget_tree(&self, root: &Dentry) -> Gone {
        let mut gone = Gone::default();
        for shard in &self.shards {
            let Some(buckets) = shard.buckets.get() else {
                continue;
            };
            let mut state = shard.state.lock();
            for bucket in buckets {
                shard.remove_where(&mut state, bucket, &mut gone, |node, pin| {
                    node.value()
                        .dentry
                        .load(pin)
                        .is_some_and(|dentry| dentry.tree() == root.tree())
                });
            }
        }
        gone
    }

    /// Sets what a name leads to, as the file system has just made it. Nobody was asked, so the
    /// name is not believed longer than it was.
    fn set(&self, parent: &Dentry, name: &[u8], dentry: Option<Arc<Dentry>>) -> Gone {
        let hash = self.hash(parent.id(), name);
        self.put(
            self.shard(hash).state.lock(),
            hash,
            (parent, None),
            name,
            dentry,
        )
    }

    /// Sets what a name leads to.
    fn put(
        &self,
        mut state: MutexGuard<'_, ShardState>,
        hash: u64,
        (parent, question): (&Dentry, Option<Question>),
        name: &[u8],
        dentry: Option<Arc<Dentry>>,
    ) -> Gone {
        let shard = self.shard(hash);
        let mut gone = Gone::default();
        if let Some(node) = shard.keep(hash, parent.id(), name, &rcu::pin()) {
            gone.replaced.extend(node.value().dentry.replace(dentry));
            node.value().renew(parent, question);
            return gone;
        }
        if state.count >= self.shard_capacity {
            shard.make_room(&mut state, self.shard_capacity, &mut gone);
        }
        let node = Node {
            hash,
            parent: parent.id(),
            name: Name::from_slice(name),
            dentry: dentry.map_or(RcuCell::empty(), RcuCell::new),
            belief: Belief::default(),
            next: RcuCell::empty(),
            is_referenced: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
        };
        node.renew(parent, question);
        let buckets = shard.buckets.get_or_init(|| {
            let count = (self.shard_capacity / 2).next_power_of_two();
            (0..count).map(|_| RcuCell::empty()).collect()
        });
        let pin = rcu::pin();
        let mut end = &buckets[hash as usize & (buckets.len() - 1)];
        while let Some(other) = end.load(&pin) {
            end = &other.next;
        }
        let nothing = end.replace(Some(Arc::new(node)));
        debug_assert!(nothing.is_none(), "the end of a chain");
        state.count += 1;
        gone
    }

    #[inline]
    fn hash(&self, parent: u64, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(parent);
        hasher.write(name);
        hasher.finish()
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl Node {
    #[inline]
    fn is(&self, hash: u64, parent: u64, name: &[u8]) -> bool {
        self.hash == hash && self.parent == parent && self.name.as_slice() == name
    }

    /// Whether what the node says may be used without asking: where others change names, for a
    /// time. What is mounted on a directory keeps it where it is.
    #[inline]
    fn is_believed(&self, parent: &Dentry, pin: &Pin) -> bool {
        let Some(directory) = parent.coherence() else {
            return true;
        };
        self.belief.holds(directory)
            || self
                .dentry
                .borrow(pin)
                .is_some_and(|dentry| dentry.value().is_mountpoint())
    }

    /// Believes what the node says, which was found when `question` was asked.
    fn renew(&self, parent: &Dentry, question: Option<Question>) {
        if let (Some(directory), Some(question)) = (parent.coherence(), question) {
            self.belief.renew(question, directory);
        }
    }

    /// What the node says; it is not leaving.
    #[inline]
    fn known<'p>(&self, pin: &'p Pin) -> Cached<Ref<'p, Dentry>> {
        match self.dentry.borrow(pin) {
            Some(dentry) => Cached::Positive(dentry),
            // It died first, then it was emptied.
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

    /// Finds a node and keeps it from leaving. The shard is locked.
    fn keep<'p>(&self, hash: u64, parent: u64, name: &[u8], pin: &'p Pin) -> Option<Ref<'p, Node>> {
        let mut node = self.bucket(hash)?.borrow(pin)?;
        while !node.value().is(hash, parent, name) {
            node = node.value().next.borrow(pin)?;
        }
        node.value().is_leaving.store(false, Ordering::Release);
        node.value().is_referenced.store(true, Ordering::Relaxed);
        Some(node)
    }

    /// Second chance: names that nobody uses and nobody asked for since the hand last passed go,
    /// those with a dentry when the hand has made its next batch.
    fn make_room(&self, state: &mut ShardState, capacity: usize, gone: &mut Gone) {
        if let Some(grace) = state.grace {
            let Some(over) = grace.over() else { return };
            state.grace = None;
            self.finish_leaving(state, over, gone);
        }
        let Some(buckets) = self.buckets.get() else {
            return;
        };
        let batch = (capacity / 8).clamp(1, LEAVING_MAX);
        let mut leaving = SmallVec::new();
        for _ in 0..STEPS_MAX.min(2 * buckets.len()) {
            if state.count < capacity || leaving.len() >= batch {
                break;
            }
            state.hand = (state.hand + 1) % buckets.len();
            self.remove_where(state, &buckets[state.hand], gone, |node, pin| {
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

    /// After the grace period: whoever found a leaving node unmarked has his own reference to the
    /// dentry now.
    fn finish_leaving(&self, state: &mut ShardState, over: Over, gone: &mut Gone) {
        let mut left = Gone::default();
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
        // Nobody looked at them since they were marked, so the grace period that is over counts.
        gone.evicted
            .extend(left.replaced.drain(..).map(|replaced| replaced.after(over)));
    }

    /// Takes the nodes for which `is_going` says so out of a chain. The shard is locked.
    fn remove_where(
        &self,
        state: &mut ShardState,
        bucket: &RcuCell<Node>,
        gone: &mut Gone,
        mut is_going: impl FnMut(Ref<'_, Node>, &Pin) -> bool,
    ) {
        let pin = rcu::pin();
        let mut link = bucket;
        while let Some(node) = link.borrow(&pin) {
            let is_going = is_going(node, &pin);
            let node = node.value();
            if is_going {
                node.is_dead.store(true, Ordering::Release);
                gone.replaced.extend(node.dentry.replace(None));
                // Plain memory by now, which is dropped some time.
                drop(link.replace(node.next.get(&pin)));
                state.count -= 1;
            } else {
                link = &node.next;
            }
        }
    }
}
