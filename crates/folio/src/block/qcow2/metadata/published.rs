//! Facts that the metadata publishes, for threads without its lock.
//!
//! [`InPlaceClusters`] answers most lookups of a busy disk: the lock is one for all threads. An
//! entry enters and leaves it under the metadata lock, together with the L2 entry. A reader that
//! holds the device's lock `io` may use what it has found: the host cluster is not reused before.

use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Number of slots, unless the disk has fewer clusters: 4 GiB of clusters of 64 KiB.
const SLOTS_MAX: u64 = 1 << 16;
/// Bits of a slot's word for the host cluster plus one; the rest is the tag.
const HOST_BITS: u32 = 40;

/// What threads may know without the metadata lock.
pub(crate) struct Published {
    /// Whether the file may lack the mapping of a guest cluster. Refcounts do not matter: a writer
    /// that was killed leaves the image dirty, and the next one counts again.
    pub(crate) holds_mappings: AtomicBool,
    /// Whether more tables are in memory than the limits allow.
    pub(crate) is_crowded: AtomicBool,
    pub(crate) in_place: InPlaceClusters,
}

impl Published {
    /// Describes a disk of this many clusters.
    pub(crate) fn new(clusters: u64) -> Self {
        Self {
            holds_mappings: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            in_place: InPlaceClusters::new(clusters.min(SLOTS_MAX)),
        }
    }
}

/// Guest clusters that are stored whole, as they are, in host clusters of their own: where they are
/// read and written in place. It may lack any of them. Each has one slot, which another may take.
///
/// ```text
///   word   tag: guest cluster / slots | host cluster + 1      0: none
/// ```
pub(crate) struct InPlaceClusters {
    /// A power of two.
    slot_count: u64,
    /// Allocated with the first entry: a backing file may never get one.
    slots: OnceLock<Vec<AtomicU64>>,
}

impl InPlaceClusters {
    fn new(slots: u64) -> Self {
        Self {
            slot_count: slots.next_power_of_two(),
            slots: OnceLock::new(),
        }
    }

    /// Returns the slot of a guest cluster.
    fn slot<'a>(&self, slots: &'a [AtomicU64], cluster: u64) -> Option<&'a AtomicU64> {
        slots.get((cluster & (self.slot_count - 1)) as usize)
    }

    fn tag(&self, cluster: u64) -> u64 {
        cluster >> self.slot_count.trailing_zeros()
    }

    /// Returns the host cluster of a guest cluster, if it is known.
    pub(crate) fn get(&self, cluster: u64) -> Option<u64> {
        let slot = self.slot(self.slots.get()?, cluster)?;
        let word = slot.load(Ordering::Acquire);
        let host = word & ((1 << HOST_BITS) - 1);
        (word >> HOST_BITS == self.tag(cluster)).then(|| host.checked_sub(1))?
    }

    /// Enters a guest cluster.
    pub(crate) fn set(&self, cluster: u64, host: u64) {
        let tag = self.tag(cluster);
        // Larger numbers find no place.
        if tag >= 1 << (u64::BITS - HOST_BITS) || host + 1 >= 1 << HOST_BITS {
            return;
        }
        let slots = self
            .slots
            .get_or_init(|| (0..self.slot_count).map(|_| AtomicU64::new(0)).collect());
        if let Some(slot) = self.slot(slots, cluster) {
            slot.store(tag << HOST_BITS | (host + 1), Ordering::Release);
        }
    }

    /// Removes a guest cluster.
    pub(crate) fn remove(&self, cluster: u64) {
        if self.get(cluster).is_some()
            && let Some(slots) = self.slots.get()
            && let Some(slot) = self.slot(slots, cluster)
        {
            slot.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[cfg(not(folio_model_check))]
mod tests {
    use super::*;

    #[test]
    fn slot_holds_the_last_of_its_clusters() {
        let clusters = InPlaceClusters::new(8);
        assert_eq!(clusters.get(3), None);
        clusters.set(3, 0);
        clusters.set(4, 77);
        assert_eq!((clusters.get(3), clusters.get(4)), (Some(0), Some(77)));
        clusters.set(11, 5);
        assert_eq!((clusters.get(3), clusters.get(11)), (None, Some(5)));
        clusters.remove(3);
        assert_eq!(clusters.get(11), Some(5));
        clusters.remove(11);
        assert_eq!(clusters.get(11), None);
    }

    #[test]
    fn numbers_too_large_for_a_slot_are_left_out() {
        let clusters = InPlaceClusters::new(8);
        for (cluster, host) in [(1, (1 << HOST_BITS) - 1), (8 << 24, 1), (u64::MAX, 1)] {
            clusters.set(cluster, host);
            assert_eq!(clusters.get(cluster), None);
        }
        let (cluster, host) = ((8 << 24) - 1, (1 << HOST_BITS) - 2);
        clusters.set(cluster, host);
        assert_eq!(clusters.get(cluster), Some(host));
        assert_eq!(clusters.get(7), None);
    }
}
