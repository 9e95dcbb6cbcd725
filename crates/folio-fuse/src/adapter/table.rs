//! Things by number, found by several threads at once.

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A power of two.
const SHARDS: usize = 64;

/// A map from numbers, each shard of it with a lock of its own. Nothing is dropped while a lock is
/// held: the last reference to an inode may have work to do.
pub(super) struct Table<T> {
    shards: Box<[RwLock<HashMap<u64, T, RandomState>>]>,
    count: AtomicUsize,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, id: u64) -> &RwLock<HashMap<u64, T, RandomState>> {
        &self.shards[id as usize % SHARDS]
    }

    /// What `look` says of the thing called `id`.
    pub(super) fn get<R>(&self, id: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.shard(id).read().get(&id).map(look)
    }

    /// Adds a thing, or changes the one that is there, perhaps with parts of the new one, and gives
    /// back what is left.
    pub(super) fn add(
        &self,
        id: u64,
        mut thing: T,
        change: impl FnOnce(&mut T, &mut T),
    ) -> Option<T> {
        match self.shard(id).write().entry(id) {
            Entry::Occupied(mut entry) => {
                change(entry.get_mut(), &mut thing);
                Some(thing)
            }
            Entry::Vacant(entry) => {
                entry.insert(thing);
                self.count.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Takes a thing out if `is_last` says so, who may change it.
    pub(super) fn remove_if(&self, id: u64, is_last: impl FnOnce(&mut T) -> bool) -> Option<T> {
        match self.shard(id).write().entry(id) {
            Entry::Occupied(mut entry) => is_last(entry.get_mut()).then(|| {
                self.count.fetch_sub(1, Ordering::Relaxed);
                entry.remove()
            }),
            Entry::Vacant(_) => None,
        }
    }

    /// What `change` makes of the thing called `id`.
    pub(super) fn change<R>(&self, id: u64, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.shard(id).write().get_mut(&id).map(change)
    }

    /// Takes everything out.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let things = std::mem::take(&mut *shard.write());
            self.count.fetch_sub(things.len(), Ordering::Relaxed);
            drop(things);
        }
    }

    /// The numbers of all.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// How many there are, give or take what other threads are doing.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}
