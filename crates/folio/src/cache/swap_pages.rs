//! Pages of mappings without a store, written to the swap device while other pages need the memory.
//! Linux: mm/shmem.c (`shmem_writeout`, `shmem_swapin_folio`).
//!
//! The state of the mapping has the slot of each swapped page. The index has the page as absent, as
//! it has holes. So once a mapping has swapped a page, a lookup that finds no page checks the
//! state.
//!
//! A page is in one of three states: in the index; in the mapping's state; or, while it is read
//! back, in the index as busy, and its slot with the reading thread. It counts as a page in all.

use super::folio::{Frame, PAGE};
use super::folio_ref::FolioRef;
use super::index::Word;
use super::locked::{PageWriteGuard, slices_mut};
use super::mapping::AddressSpace;
use super::swap::{Swap, SwapEntry};
use crate::base::rcu;
use crate::base::sync::atomic::Ordering;
use crate::base::{PAGE_SIZE, Result};
use std::io::IoSlice;

impl AddressSpace {
    /// Returns whether an absent page may be swapped rather than a hole. Call it after the lookup:
    /// the flag is set before the first page is removed.
    #[inline]
    pub(super) fn may_be_swapped(&self) -> bool {
        self.has_swapped.load(Ordering::Acquire)
    }

    /// Returns the swap device for this mapping, if it may use one.
    pub(super) fn swap(&self) -> Option<&Swap> {
        // Pages without a limit (ramfs) stay in memory.
        self.limit.as_ref().and_then(|_| self.cache().swap())
    }

    /// Returns whether the page at `index` is a hole of a mapping without a store.
    pub(super) fn is_hole(&self, index: u64) -> bool {
        self.store.is_none() && !self.has_page(index)
    }

    /// Returns whether the mapping has a page at `index`, in memory or swapped.
    pub(super) fn has_page(&self, index: u64) -> bool {
        if !self.is_absent(index) || !self.may_be_swapped() {
            return !self.is_absent(index);
        }
        let state = self.state.lock();
        !self.is_absent(index) || state.swapped.contains_key(&index)
    }

    /// Swaps a page out that is not in use, if it is still the one in `frame` and there is a slot
    /// for it. Linux: `shmem_writeout`.
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
        let Some(hold) = FolioRef::try_new(&self.pool, frame) else {
            return false;
        };
        drop(pin);
        let Some(guard) = PageWriteGuard::try_lock(&self.pool, frame) else {
            return false;
        };
        let Some(slot) = swap.take() else {
            return false;
        };
        let swapped = SwapEntry {
            slot,
            len: PAGE_SIZE,
        };
        // With the bytes locked: writers wait, readers that copy do not.
        let written = self.cache().call_store(|| {
            swap.store
                .write_pages(slot * PAGE, &[IoSlice::new(&guard[..])])
        });
        let pin = rcu::pin();
        let mut state = self.state.lock();
        let is_ours = written.is_ok() && self.index.word(index, &pin).frame() == Some(frame);
        // Two references: the index's and this one. Frozen, the folio can get no further one.
        if !is_ours || !hold.folio().try_freeze(2) {
            drop(state);
            drop((pin, guard));
            swap.give_back([swapped]);
            return false;
        }
        self.has_swapped.store(true, Ordering::Release);
        // Under one lock with the removal: the page is in one of both places for any thread that
        // locks the state.
        state.swapped.insert(index, swapped);
        self.index.remove(index, &pin);
        drop((state, pin, guard));
        self.pool.put([hold.into_frame()]);
        true
    }

    /// Reads a swapped page back; returns false if the page is not swapped. Linux:
    /// `shmem_swapin_folio`.
    ///
    /// # Errors
    /// The swap device's, or ENOMEM.
    pub(super) fn swap_in(&self, index: u64) -> Result<bool> {
        let Some(swap) = self.swap().filter(|_| self.may_be_swapped()) else {
            return Ok(false);
        };
        if !self.state.lock().swapped.contains_key(&index) {
            return Ok(false);
        }
        let frame = self.cache().frame()?;
        self.pool.folio(frame).begin(self.number, index);
        let hold = FolioRef::from_frame(&self.pool, frame);
        let mut guards = [PageWriteGuard::lock(&self.pool, frame)];
        let swapped = {
            let pin = rcu::pin();
            let mut state = self.state.lock();
            let Some(counted) = FolioRef::try_new(&self.pool, frame) else {
                return Ok(true);
            };
            // Another thread may have read it back meanwhile; the caller looks again.
            let Some(swapped) = state.swapped.remove(&index) else {
                return Ok(true);
            };
            self.index
                .insert(index, Word::new(counted.into_frame(), Word::BUSY), &pin);
            swapped
        };
        let read = self.cache().call_store(|| {
            swap.store
                .read_pages(swapped.slot * PAGE, &mut slices_mut(&mut guards))
        });
        // The file may have been truncated within the page while it was swapped.
        guards[0].zero(swapped.len..PAGE_SIZE);
        let pin = rcu::pin();
        let mut state = self.state.lock();
        let is_ours = self.index.word(index, &pin).frame() == Some(frame);
        if is_ours && read.is_err() {
            self.index.remove(index, &pin);
            state.swapped.insert(index, swapped);
        } else if is_ours {
            self.index.change(index, 0, Word::BUSY, &pin);
        }
        drop((state, pin, guards));
        match read {
            Err(error) if is_ours => {
                self.release(vec![frame]);
                return Err(error);
            }
            // Truncated meanwhile, or read successfully.
            _ => swap.give_back([swapped]),
        }
        if is_ours {
            self.add_candidates(&[hold.frame()]);
        }
        Ok(true)
    }
}
