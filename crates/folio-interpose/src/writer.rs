//! The writers' side of the shared ring: appends records and paths, and waits for no reader.

#![expect(unsafe_code, reason = "memory shared with other processes")]

use crate::layout::{
    HEAP_AT, HEAP_BYTES, Header, INDEX_AT, PATH_MAX, PATH_SLOTS, Record, SLOTS, SLOTS_AT, Slot,
};
use core::sync::atomic::{AtomicU64, Ordering};

/// Slots of the path index that are searched.
const PROBES: u64 = 16;

/// A ring that is mapped for writing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingWriter {
    base: usize,
}

impl RingWriter {
    /// Returns the writer of a mapped ring.
    ///
    /// # Safety
    /// A ring is mapped at `base`, and stays mapped as long as the writer and its copies are used.
    pub(crate) const unsafe fn new(base: usize) -> Self {
        Self { base }
    }

    pub(crate) fn header<'a>(self) -> &'a Header {
        // SAFETY: the ring is mapped, by the promise of `new`; the header has atomics only, but for
        // its unused line.
        unsafe { &*(self.base as *const Header) }
    }

    fn at<T>(self, offset: u64) -> *mut T {
        (self.base as u64 + offset) as *mut T
    }

    /// Appends a record, or counts it as dropped if the ring is full.
    pub(crate) fn push(self, record: &Record) {
        let header = self.header();
        loop {
            let head = header.head.load(Ordering::Relaxed);
            let index = head % SLOTS;
            let lap = head - index;
            let slot: *mut Slot = self.at(SLOTS_AT + index * size_of::<Slot>() as u64);
            // SAFETY: the index is below the number of slots, so the slot is inside the mapping.
            let turn = unsafe { &(*slot).turn };
            let seen = turn.load(Ordering::Acquire);
            if seen < lap {
                header.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            let claimed = seen == lap
                && header
                    .head
                    .compare_exchange_weak(head, head + 1, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if claimed {
                // SAFETY: the slot is mapped; this only computes an address.
                let place = unsafe { &raw mut (*slot).record };
                // SAFETY: this thread alone has claimed the slot for this lap.
                unsafe { place.write(*record) };
                turn.store(lap + 1, Ordering::Release);
                return;
            }
        }
    }

    /// The place of a path in the ring: found, or added; 0 if there is no room.
    pub(crate) fn path(self, path: &[u8]) -> u32 {
        if path.is_empty() || path.len() > PATH_MAX {
            return 0;
        }
        let hash = hash(path);
        for probe in 0..PROBES {
            let at = self.at(INDEX_AT + (hash.wrapping_add(probe) % PATH_SLOTS) * 8);
            // SAFETY: the place is inside the index.
            let entry: &AtomicU64 = unsafe { &*at };
            let found = entry.load(Ordering::Acquire);
            if found == 0 {
                let place = self.append(path);
                let value = (hash & !0xffff_ffff) | u64::from(place);
                if place != 0 {
                    // If another thread took the entry, the path is there twice, at worst.
                    let _ = entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire);
                }
                return place;
            }
            if (found ^ hash) >> 32 == 0 && self.is_at(found as u32, path) {
                return found as u32;
            }
        }
        self.append(path)
    }

    /// Adds a path to the heap; 0 if it is full.
    fn append(self, path: &[u8]) -> u32 {
        let len = (4 + path.len() as u64).next_multiple_of(4);
        let used = &self.header().heap_used;
        if used.load(Ordering::Relaxed) + len > HEAP_BYTES {
            return 0;
        }
        let place = used.fetch_add(len, Ordering::Relaxed);
        if place + len > HEAP_BYTES {
            return 0;
        }
        let length: *mut u32 = self.at(HEAP_AT + place);
        // SAFETY: this thread alone was given the place, which is inside the heap.
        unsafe { length.write(path.len() as u32) };
        let bytes: *mut u8 = self.at(HEAP_AT + place + 4);
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(path.as_ptr(), bytes, path.len()) };
        place as u32
    }

    fn is_at(self, place: u32, path: &[u8]) -> bool {
        let place = u64::from(place);
        if place + 4 + path.len() as u64 > HEAP_BYTES {
            return false;
        }
        let length: *const u32 = self.at::<u32>(HEAP_AT + place);
        // SAFETY: the length is inside the heap, and is not written again.
        if unsafe { length.read() } as usize != path.len() {
            return false;
        }
        let bytes: *const u8 = self.at::<u8>(HEAP_AT + place + 4);
        // SAFETY: the bytes are inside the heap, and are not written again.
        (unsafe { core::slice::from_raw_parts(bytes, path.len()) }) == path
    }
}

/// FNV-1a over words, mixed at the end.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
    for byte in chunks.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}
