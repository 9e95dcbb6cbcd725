//! The writers' side of the shared ring.

use crate::layout::{
    HEAP_AT, HEAP_BYTES, Header, INDEX_AT, MAGIC, PATH_MAX, PATH_SLOTS, RING_BYTES, Record, SLOTS,
    SLOTS_AT, Slot,
};
use crate::system;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Address of the ring in this process; 0 without one.
static RING: AtomicUsize = AtomicUsize::new(0);
/// Slots of the path index that are searched.
const PROBES: u64 = 16;

/// Whether calls are recorded.
#[inline]
pub(crate) fn is_open() -> bool {
    RING.load(Ordering::Relaxed) != 0
}

/// Maps the ring. `path` ends with a zero byte.
pub(crate) fn open(path: *const u8) {
    const AT_FDCWD: usize = -100_isize as usize;
    const READ_WRITE_CLOEXEC: usize = 0o2_000_002;
    // SAFETY: the path ends with a zero byte.
    let fd = unsafe {
        system::call(system::OPENAT, [AT_FDCWD, path as usize, READ_WRITE_CLOEXEC, 0, 0, 0])
    };
    if fd < 0 {
        return;
    }
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe {
        system::call(system::MMAP, [0, RING_BYTES as usize, 3, 1, fd as usize, 0])
    };
    // SAFETY: this function opened it.
    unsafe { system::call(system::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
    if address > 0 {
        RING.store(address as usize, Ordering::Release);
        if header().magic.load(Ordering::Acquire) != MAGIC {
            RING.store(0, Ordering::Release);
        }
    }
}

fn header() -> &'static Header {
    let base = RING.load(Ordering::Relaxed) as *const Header;
    // SAFETY: only called while the ring is open; the mapping stays as long as the process.
    unsafe { &*base }
}

/// Appends a record, or counts it as dropped if the ring is full.
pub(crate) fn push(record: &Record) {
    let header = header();
    loop {
        let head = header.head.load(Ordering::Relaxed);
        let index = head % SLOTS;
        let lap = head - index;
        let slot = (RING.load(Ordering::Relaxed) as u64 + SLOTS_AT) as *mut Slot;
        // SAFETY: the index is below the number of slots.
        let slot = unsafe { slot.add(index as usize) };
        // SAFETY: the slot is inside the mapping.
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
            // SAFETY: this thread alone has claimed the slot for this lap.
            unsafe { (&raw mut (*slot).record).write(*record) };
            turn.store(lap + 1, Ordering::Release);
            return;
        }
    }
}

/// The place of a path in the ring: found, or added; 0 if there is no room.
pub(crate) fn path(path: &[u8]) -> u32 {
    if path.is_empty() || path.len() > PATH_MAX {
        return 0;
    }
    let hash = hash(path);
    let base = RING.load(Ordering::Relaxed) as u64;
    for probe in 0..PROBES {
        let at = base + INDEX_AT + (hash.wrapping_add(probe) % PATH_SLOTS) * 8;
        // SAFETY: the place is inside the index.
        let entry = unsafe { &*(at as *const AtomicU64) };
        let found = entry.load(Ordering::Acquire);
        if found == 0 {
            let place = append(path);
            let value = (hash & !0xffff_ffff) | u64::from(place);
            if place == 0
                || entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return place;
            }
            // Another thread took the entry: the path is there twice, at worst.
            return place;
        }
        if (found ^ hash) >> 32 == 0 && is_at(found as u32, path) {
            return found as u32;
        }
    }
    append(path)
}

/// FNV-1a over words, mixed at the end.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    for byte in chunks.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// Adds a path to the heap; 0 if it is full.
fn append(path: &[u8]) -> u32 {
    let len = (4 + path.len() as u64).next_multiple_of(4);
    let used = &header().heap_used;
    if used.load(Ordering::Relaxed) + len > HEAP_BYTES {
        return 0;
    }
    let place = used.fetch_add(len, Ordering::Relaxed);
    if place + len > HEAP_BYTES {
        return 0;
    }
    let at = (RING.load(Ordering::Relaxed) as u64 + HEAP_AT + place) as *mut u8;
    // SAFETY: this thread alone was given the place, which is inside the heap.
    unsafe {
        at.cast::<u32>().write(path.len() as u32);
        core::ptr::copy_nonoverlapping(path.as_ptr(), at.add(4), path.len());
    }
    place as u32
}

fn is_at(place: u32, path: &[u8]) -> bool {
    let at = (RING.load(Ordering::Relaxed) as u64 + HEAP_AT + u64::from(place)) as *const u8;
    if u64::from(place) + 4 + path.len() as u64 > HEAP_BYTES {
        return false;
    }
    // SAFETY: length and bytes are inside the heap, and are not written again.
    unsafe {
        at.cast::<u32>().read() as usize == path.len()
            && core::slice::from_raw_parts(at.add(4), path.len()) == path
    }
}
