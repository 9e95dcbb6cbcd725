//! Pages of files without a store, put away on a device while others need the memory. Linux:
//! mm/swapfile.c.
//!
//! A swapped page is in its mapping's table: the slot of the device where its bytes are. The index
//! says that it is absent, as it says of holes, so once a mapping has swapped a page, who finds
//! nothing there asks the table.
//!
//! A page is in one of three places: in the index; in the table; or, while it is read back, in the
//! index as busy and its slot in the hands of who reads it. It counts as held in all of them.

use super::Store;
use super::folio::Hold;
use super::index::Word;
use super::locked::{PageWriteGuard, slices_mut};
use super::mapping::{Inner, PAGE};
use super::pool::Frame;
use crate::base::rcu;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::Ordering;
use crate::base::{PAGE_SIZE, Result};
use std::io::IoSlice;
use std::sync::Arc;

/// Slots of one word of the bitmap.
const WORD: u64 = u64::BITS as u64;

/// Where pages are put away: a device in slots of one page, all of which are free at first.
pub struct Swap {
    store: Arc<dyn Store>,
    slots: Mutex<Slots>,
}

struct Slots {
    /// A bit for each slot, set while it is free.
    free: Vec<u64>,
    free_count: u64,
    /// Where the search for the next one goes on.
    hand: usize,
}

/// Where a page of a mapping is that was put away.
#[derive(Clone, Copy)]
pub(super) struct Swapped {
    slot: u64,
    /// Bytes from here on read as zeros, whatever the slot says: the file was truncated there.
    len: usize,
}

impl Swap {
    /// Slots in the first `len_bytes` of `store`, whose bytes are lost.
    pub fn new(store: Arc<dyn Store>, len_bytes: u64) -> Self {
        let free_count = len_bytes / PAGE;
        let mut free = vec![u64::MAX; (free_count / WORD) as usize];
        free.extend(Some((1 << (free_count % WORD)) - 1).filter(|last| *last > 0));
        Self {
            store,
            slots: Mutex::new(Slots {
                free,
                free_count,
                hand: 0,
            }),
        }
    }

    /// Slots that are free.
    pub fn free_count(&self) -> u64 {
        self.slots.lock().free_count
    }

    fn take(&self) -> Option<u64> {
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

    pub(super) fn give_back(&self, slots: impl IntoIterator<Item = Swapped>) {
        let mut all = self.slots.lock();
        for Swapped { slot, .. } in slots {
            all.free[(slot / WORD) as usize] |= 1 << (slot % WORD);
            all.free_count += 1;
        }
    }
}

impl Inner {
    /// Whether an absent page need not be a hole. Asked after the page was found absent: set before
    /// any goes away.
    #[inline]
    pub(super) fn may_be_swapped(&self) -> bool {
        self.has_swapped.load(Ordering::Acquire)
    }

    /// The device for pages of this mapping, if there is one and it has no store.
    pub(super) fn swap(&self) -> Option<&Swap> {
        // Who counts its pages is told to when it must do with less; what has no limit (ramfs)
        // stays in memory.
        self.limit.as_ref().and_then(|_| self.cache().swap())
    }

    /// Whether a read of the page at `index` finds zeros, and no store that says otherwise.
    pub(super) fn is_hole(&self, index: u64) -> bool {
        self.store.is_none() && !self.has_page(index)
    }

    /// Whether the mapping has a page at `index`, in memory or swapped.
    pub(super) fn has_page(&self, index: u64) -> bool {
        if !self.is_absent(index) || !self.may_be_swapped() {
            return !self.is_absent(index);
        }
        let table = self.table.lock();
        !self.is_absent(index) || table.swapped.contains_key(&index)
    }

    /// Puts a page away that nobody holds, if it still is the one in `frame` and there is a slot
    /// for it.
    pub(super) fn try_swap_out(&self, index: u64, frame: Frame) -> bool {
        let Some(swap) = self.swap() else {
            return false;
        };
        let pin = rcu::pin();
        let word = self.index.word(index, &pin);
        if word.frame() != Some(frame) || word.has(Word::BUSY) || !self.pool.folio(frame).is_idle()
        {
            return false;
        }
        let Some(hold) = Hold::try_new(&self.pool, frame) else {
            return false;
        };
        drop(pin);
        let Some(guard) = PageWriteGuard::try_lock(&self.pool, frame) else {
            return false;
        };
        let Some(slot) = swap.take() else {
            return false;
        };
        let swapped = Swapped {
            slot,
            len: PAGE_SIZE,
        };
        // With the bytes locked: writers wait, readers who copy pass.
        let written = swap
            .store
            .write_pages(slot * PAGE, &[IoSlice::new(&guard[..])]);
        let pin = rcu::pin();
        let mut table = self.table.lock();
        let is_ours = written.is_ok() && self.index.word(index, &pin).frame() == Some(frame);
        // Two counts: the index's and ours. From then on nobody can hold it.
        if !is_ours || !hold.folio().try_freeze(2) {
            drop(table);
            drop((pin, guard));
            swap.give_back([swapped]);
            return false;
        }
        self.has_swapped.store(true, Ordering::Release);
        table.swapped.insert(index, swapped);
        self.index.remove(index, &pin);
        drop((table, pin, guard));
        self.pool.put([hold.keep()]);
        true
    }

    /// Brings a page back that was put away; false if it was not.
    pub(super) fn swap_in(&self, index: u64) -> Result<bool> {
        let Some(swap) = self.swap().filter(|_| self.may_be_swapped()) else {
            return Ok(false);
        };
        if !self.table.lock().swapped.contains_key(&index) {
            return Ok(false);
        }
        let frame = self.cache().frame()?;
        self.pool.folio(frame).begin(self.number, index);
        let hold = Hold::adopt(&self.pool, frame);
        let mut guards = [PageWriteGuard::lock(&self.pool, frame)];
        let swapped = {
            let pin = rcu::pin();
            let mut table = self.table.lock();
            let Some(counted) = Hold::try_new(&self.pool, frame) else {
                return Ok(true);
            };
            // Somebody else may have been faster; the caller looks again.
            let Some(swapped) = table.swapped.remove(&index) else {
                return Ok(true);
            };
            self.index
                .insert(index, Word::new(counted.keep(), Word::BUSY), &pin);
            swapped
        };
        let read = swap
            .store
            .read_pages(swapped.slot * PAGE, &mut slices_mut(&mut guards));
        guards[0].zero(swapped.len..PAGE_SIZE);
        let pin = rcu::pin();
        let mut table = self.table.lock();
        let is_ours = self.index.word(index, &pin).frame() == Some(frame);
        if is_ours && read.is_err() {
            self.index.remove(index, &pin);
            table.swapped.insert(index, swapped);
        } else if is_ours {
            self.index.change(index, 0, Word::BUSY, &pin);
        }
        drop((table, pin, guards));
        match read {
            Err(error) if is_ours => {
                self.release(vec![frame]);
                return Err(error);
            }
            // Truncated meanwhile, or well read.
            _ => swap.give_back([swapped]),
        }
        if is_ours {
            self.add_candidates(&[hold.frame()]);
        }
        Ok(true)
    }
}

impl Swapped {
    /// Bytes from `start` on read as zeros from now on.
    pub(super) fn cut(&mut self, start: usize) {
        self.len = self.len.min(start);
    }
}
