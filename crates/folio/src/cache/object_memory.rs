//! The memory of inodes and names: counted in bytes, and limited to a share of the cache's budget.
//! Linux: the slab caches (`SReclaimable`, `SUnreclaim`).
//!
//! ```text
//!   budget  [ objects, at most a half | pages: the rest, at least a half ]
//! ```
//!
//! The owner of an object charges its bytes, and evicts unused objects while the limit is exceeded.
//! Objects that cannot be evicted (files of a ramfs, copies of blocks in a journal) only leave less
//! room for pages.

use crate::base::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The share of the budget that evictable objects may take, as 1 / this.
const OBJECT_SHARE: u64 = 2;
/// Least limit in bytes: a path walk needs names and inodes, however small the cache.
const LIMIT_MIN: u64 = 1 << 20;
/// Bytes that the allocator and a reference count add to each object.
const OVERHEAD: usize = 32;

/// The memory of inodes and names of one cache.
pub struct ObjectMemory {
    limit_bytes: u64,
    evictable: AtomicU64,
    pinned: AtomicU64,
}

/// Bytes charged to an [`ObjectMemory`] until the charge is dropped.
pub struct ObjectCharge {
    memory: Arc<ObjectMemory>,
    bytes: u32,
    is_pinned: bool,
}

impl ObjectMemory {
    pub(super) fn new(budget_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes: (budget_bytes / OBJECT_SHARE).max(LIMIT_MIN),
            evictable: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
        })
    }

    /// Returns the bytes of all objects.
    pub fn used_bytes(&self) -> u64 {
        self.evictable.load(Ordering::Relaxed) + self.pinned.load(Ordering::Relaxed)
    }

    /// Returns the bytes from which on unused objects are evicted.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Returns whether unused objects must be evicted.
    pub fn is_over_limit(&self) -> bool {
        self.evictable.load(Ordering::Relaxed) > self.limit_bytes
    }

    /// Charges an object of `bytes` that can be evicted while it is unused.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> ObjectCharge {
        self.charge_to(bytes, false)
    }

    /// Charges an object of `bytes` that cannot be evicted.
    pub(crate) fn charge_pinned(self: &Arc<Self>, bytes: usize) -> ObjectCharge {
        self.charge_to(bytes, true)
    }

    fn charge_to(self: &Arc<Self>, bytes: usize, is_pinned: bool) -> ObjectCharge {
        let mut charge = ObjectCharge {
            memory: self.clone(),
            bytes: 0,
            is_pinned,
        };
        charge.resize(bytes);
        charge
    }
}

impl ObjectCharge {
    /// Returns the memory that is charged.
    pub(crate) fn memory(&self) -> &Arc<ObjectMemory> {
        &self.memory
    }

    /// Changes the size of the object.
    pub fn resize(&mut self, bytes: usize) {
        self.set(u32::try_from(bytes.saturating_add(OVERHEAD)).unwrap_or(u32::MAX));
    }

    fn set(&mut self, bytes: u32) {
        let counter = if self.is_pinned {
            &self.memory.pinned
        } else {
            &self.memory.evictable
        };
        let (old, new) = (u64::from(self.bytes), u64::from(bytes));
        if new > old {
            counter.fetch_add(new - old, Ordering::Relaxed);
        } else if new < old {
            counter.fetch_sub(old - new, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for ObjectCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charge_counts_until_it_is_dropped() {
        let memory = ObjectMemory::new(4 << 20);
        assert_eq!(memory.limit_bytes(), 2 << 20);
        let mut name = memory.charge(100);
        let file = memory.charge_pinned(3 << 20);
        assert_eq!(memory.used_bytes(), 100 + (3 << 20) + 2 * OVERHEAD as u64);
        assert!(!memory.is_over_limit(), "pinned objects cannot be evicted");
        name.resize(2 << 20);
        assert!(memory.is_over_limit());
        drop(file);
        name.resize(10);
        assert_eq!(memory.used_bytes(), 10 + OVERHEAD as u64);
        drop(name);
        assert_eq!(memory.used_bytes(), 0);
    }
}
