//! A sharded concurrent map from id to object.

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A power of two.
pub(super) const SHARDS: usize = 64;

/// A map from ids to values, with a lock for each shard. No value is dropped while a lock is held:
/// the last reference to an inode may have work to do.
pub(super) struct ShardedMap<T> {
    shards: Box<[RwLock<HashMap<u64, T, RandomState>>]>,
    count: AtomicUsize,
}

impl<T> ShardedMap<T> {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, id: u64) -> &RwLock<HashMap<u64, T, RandomState>> {
        &self.shards[id as usize % SHARDS]
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.shard(id).read().contains_key(&id)
    }

    /// Returns the result of `read` on the value of `id`, under a shared lock.
    pub(super) fn get<R>(&self, id: u64, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.shard(id).read().get(&id).map(read)
    }

    /// Returns the result of `change` on the value of `id`, under an exclusive lock.
    pub(super) fn change<R>(&self, id: u64, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.shard(id).write().get_mut(&id).map(change)
    }

    /// Inserts a value. If `id` has one, calls `merge` with it and the new one, and returns what is
    /// left of the new one.
    pub(super) fn insert_or_merge(
        &self,
        id: u64,
        mut value: T,
        merge: impl FnOnce(&mut T, &mut T),
    ) -> Option<T> {
        match self.shard(id).write().entry(id) {
            Entry::Occupied(mut entry) => {
                merge(entry.get_mut(), &mut value);
                Some(value)
            }
            Entry::Vacant(entry) => {
                entry.insert(value);
                self.count.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Removes and returns the value of `id` if `is_last`, which may change it, returns true.
    pub(super) fn remove_if(&self, id: u64, is_last: impl FnOnce(&mut T) -> bool) -> Option<T> {
        match self.shard(id).write().entry(id) {
            Entry::Occupied(mut entry) => is_last(entry.get_mut()).then(|| {
                self.count.fetch_sub(1, Ordering::Relaxed);
                entry.remove()
            }),
            Entry::Vacant(_) => None,
        }
    }

    /// Removes all values and passes them to `dispose`, with no lock held.
    pub(super) fn clear(&self, dispose: impl Fn(T)) {
        for shard in &self.shards {
            let values = std::mem::take(&mut *shard.write());
            self.count.fetch_sub(values.len(), Ordering::Relaxed);
            values.into_values().for_each(&dispose);
        }
    }

    /// Returns all ids.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Returns the ids in one shard.
    pub(super) fn ids_of_shard(&self, shard: usize) -> Vec<u64> {
        self.shards[shard % SHARDS].read().keys().copied().collect()
    }

    /// Returns the number of values; approximate while other threads change the map.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}
