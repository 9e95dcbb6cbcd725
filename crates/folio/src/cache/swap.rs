//! The swap device: slots for pages of mappings without a store. Linux: mm/swapfile.c.
//!
//! The mapping's state has the slot of each swapped page (swap_pages.rs).

use super::folio::PAGE;
use super::store::Store;
use crate::base::sync::Mutex;
use std::sync::Arc;

/// Slots of one word of the bitmap.
const WORD: u64 = u64::BITS as u64;

/// A swap device: slots of one page each, all of them free at first.
pub struct Swap {
    pub(super) store: Arc<dyn Store>,
    slots: Mutex<SwapSlots>,
}

struct SwapSlots {
    /// A bit for each slot, set while it is free.
    free: Vec<u64>,
    free_count: u64,
    /// The word of the bitmap at which the next search starts.
    hand: usize,
}

/// The slot of a swapped page. Linux: `swp_entry_t`.
#[derive(Clone, Copy)]
pub(super) struct SwapEntry {
    pub(super) slot: u64,
    /// Bytes from here on read as zeros, regardless of the slot: the file was truncated there.
    pub(super) len: usize,
}

impl Swap {
    /// Creates slots in the first `len_bytes` of `store`, whose bytes are lost.
    pub fn new(store: Arc<dyn Store>, len_bytes: u64) -> Self {
        let free_count = len_bytes / PAGE;
        let mut free = vec![u64::MAX; (free_count / WORD) as usize];
        free.extend(Some((1 << (free_count % WORD)) - 1).filter(|last| *last > 0));
        Self {
            store,
            slots: Mutex::new(SwapSlots {
                free,
                free_count,
                hand: 0,
            }),
        }
    }

    /// Returns the number of free slots.
    pub fn free_count(&self) -> u64 {
        self.slots.lock().free_count
    }

    /// Allocates a slot.
    pub(super) fn take(&self) -> Option<u64> {
        let mut slots = self.slots.lock();
        let words = slots.free.len();
        let start = slots.hand;
        let at = (start..words)
            .chain(0..start)
            .find(|at| slots.free[*at] != 0)?;
        let bit = slots.free[at].trailing_zeros();
        slots.free[at] &= !(1 << bit);
        slots.free_count -= 1;
        slots.hand = at;
        Some(at as u64 * WORD + u64::from(bit))
    }

    /// Frees slots.
    pub(super) fn give_back(&self, slots: impl IntoIterator<Item = SwapEntry>) {
        let mut all = self.slots.lock();
        for SwapEntry { slot, .. } in slots {
            all.free[(slot / WORD) as usize] |= 1 << (slot % WORD);
            all.free_count += 1;
        }
    }
}

impl SwapEntry {
    /// Lets bytes from `start` read as zeros from now on.
    pub(super) fn cut(&mut self, start: usize) {
        self.len = self.len.min(start);
    }
}
