//! Guest memory that is lost: its monitor has shortened the file behind it. The processor's access
//! then raises SIGBUS, which would end the server of all guests.
//!
//! The handler puts zero pages in the place of the region, so that the access goes on, and marks
//! the region. The device then disconnects this one guest.

#![allow(unsafe_code)]

use super::guest_memory::Memory;
use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::{io, mem, ptr};
use vm_memory::{GuestMemoryBackend, MmapRegion};

/// Regions of all guests: one has 32 at most in QEMU, 509 in vhost-user.
static SLOTS: [Slot; 1024] = [const { Slot::free() }; 1024];

/// The handler that was there before.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

/// A region for the handler, which takes no lock.
struct Slot {
    is_taken: AtomicBool,
    /// Odd while the region changes: its start and length belong together.
    changes: AtomicUsize,
    /// The first address, or 0 while the region is not watched.
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    is_lost: AtomicBool,
}

impl Slot {
    const fn free() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            changes: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len_bytes: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Sets the region, for the owner of the slot.
    fn set(&self, start: usize, len_bytes: usize) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes
            .store(changes.wrapping_add(1), Ordering::Relaxed);
        // A reader of a new value sees the odd number, too.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        self.changes
            .store(changes.wrapping_add(2), Ordering::Release);
    }

    /// Returns start and length; `None` while they change.
    fn region(&self) -> Option<(usize, usize)> {
        let changes = self.changes.load(Ordering::Acquire);
        let region = (
            self.start.load(Ordering::Relaxed),
            self.len_bytes.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        let is_whole = changes.is_multiple_of(2) && changes == self.changes.load(Ordering::Relaxed);
        is_whole.then_some(region)
    }
}

/// A region in its slot. Mapped as long as it is watched: its addresses belong to nothing else.
struct WatchedRegion {
    slot: &'static Slot,
    mapping: Arc<MmapRegion<()>>,
}

impl WatchedRegion {
    /// Returns `None` if all slots are taken.
    fn new(mapping: Arc<MmapRegion<()>>) -> Option<Self> {
        let slot = SLOTS
            .iter()
            .find(|slot| !slot.is_taken.swap(true, Ordering::Acquire))?;
        slot.is_lost.store(false, Ordering::Relaxed);
        slot.set(mapping.as_ptr().addr(), mapping.size());
        Some(Self { slot, mapping })
    }
}

impl Drop for WatchedRegion {
    fn drop(&mut self) {
        self.slot.set(0, 0);
        self.slot.is_taken.store(false, Ordering::Release);
    }
}

/// The memory of one guest, whose loss is an error of this guest alone.
#[derive(Default)]
pub(super) struct WatchedMemory(Mutex<Vec<WatchedRegion>>);

impl WatchedMemory {
    /// Watches the regions of `memory`, and no longer those that are in no memory.
    ///
    /// # Errors
    /// There are too many regions, or the handler cannot be set.
    pub(super) fn watch(&self, memory: &Memory) -> io::Result<()> {
        set_handler()?;
        let mut watched = self.0.lock();
        // A request in progress may use an earlier memory.
        watched.retain(|region| Arc::strong_count(&region.mapping) > 1);
        for region in memory.iter() {
            let mapping = region.get_mmap();
            if watched
                .iter()
                .any(|known| Arc::ptr_eq(&known.mapping, &mapping))
            {
                continue;
            }
            let region = WatchedRegion::new(mapping);
            watched.push(region.ok_or_else(|| io::Error::other("too many regions of memory"))?);
        }
        Ok(())
    }

    /// Whether a region was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.0
            .lock()
            .iter()
            .any(|region| region.slot.is_lost.load(Ordering::Relaxed))
    }
}

fn set_handler() -> io::Result<()> {
    static IS_SET: Mutex<bool> = Mutex::new(false);
    let mut is_set = IS_SET.lock();
    if *is_set {
        return Ok(());
    }
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle_bus_error;
    // SAFETY: an action of zeros is one without flags and blocked signals.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let mut earlier = action;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // The earlier action first: the handler needs it as soon as it is set.
    // SAFETY: the place for the action is valid.
    let found = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut earlier) };
    EARLIER.get_or_init(|| earlier);
    // SAFETY: the handler has the type for SA_SIGINFO, and calls only what signal-safety(7)
    // permits.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    if found != 0 || set != 0 {
        return Err(io::Error::last_os_error());
    }
    *is_set = true;
    Ok(())
}

/// Replaces a watched region by zero pages. Another fault belongs to the earlier handler: it occurs
/// again when this one returns.
extern "C" fn handle_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes valid information.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS has an address.
    let address = unsafe { info.si_addr() }.addr();
    for slot in &SLOTS {
        // The region of this access stays as it is: a request holds its memory.
        let Some((start, len_bytes)) = slot.region() else {
            continue;
        };
        if start == 0 || !(start..start + len_bytes).contains(&address) {
            continue;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let place = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is a mapping of guest memory, which is accessed by volatile or atomic
        // copies alone, and stays mapped.
        if unsafe { mmap_anonymous(place, len_bytes, protection, flags) }.is_ok() {
            slot.is_lost.store(true, Ordering::Relaxed);
            return;
        }
    }
    if let Some(earlier) = EARLIER.get() {
        // SAFETY: an action that sigaction(2) returned.
        unsafe { libc::sigaction(libc::SIGBUS, earlier, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use vm_memory::{Bytes, FileOffset, GuestAddress};

    const LEN: usize = 1 << 20;

    fn memory_of(file: &File) -> Memory {
        let part = FileOffset::new(file.try_clone().unwrap(), 0);
        Memory::from_ranges_with_files([(GuestAddress(0), LEN, Some(part))]).unwrap()
    }

    #[test]
    fn start_and_length_of_a_slot_belong_together() {
        let slot = Slot::free();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..100_000 {
                    slot.set(number, number * 2);
                }
            });
            let mut last = 0;
            while last < 99_999 {
                let Some((start, len_bytes)) = slot.region() else {
                    continue;
                };
                assert_eq!(len_bytes, start * 2);
                last = start;
            }
        });
    }

    #[test]
    fn lost_memory_reads_as_zeros_and_is_reported_once() {
        let [lost, kept] = ["lost", "kept"].map(|name| {
            let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
            ftruncate(&file, LEN as u64).unwrap();
            let memory = memory_of(&file);
            memory.write_slice(&[7; 5000], GuestAddress(4096)).unwrap();
            let watched = WatchedMemory::default();
            watched.watch(&memory).unwrap();
            watched.watch(&memory).unwrap();
            assert_eq!(watched.0.lock().len(), 1);
            (file, memory, watched)
        });
        ftruncate(&lost.0, 0).unwrap();
        assert!(!lost.2.is_lost());
        let mut buf = [1; 5000];
        lost.1.read_slice(&mut buf, GuestAddress(4096)).unwrap();
        assert_eq!(buf, [0; 5000]);
        lost.1.write_slice(&[2; 5000], GuestAddress(4096)).unwrap();
        assert!(lost.2.is_lost() && !kept.2.is_lost());
        kept.1.read_slice(&mut buf, GuestAddress(4096)).unwrap();
        assert_eq!(buf, [7; 5000]);
        // A memory that is not in use is unmapped.
        let (file, memory, watched) = kept;
        drop(memory);
        watched.watch(&memory_of(&file)).unwrap();
        assert_eq!(watched.0.lock().len(), 1);
    }
}
