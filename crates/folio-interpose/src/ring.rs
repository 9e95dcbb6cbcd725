//! The reader's side of the shared ring.

#![expect(unsafe_code, reason = "memory shared with other processes")]

use crate::layout::{
    HEAP_AT, HEAP_BYTES, Header, MAGIC, OMITS_SYNC_FLAGS, OMITS_SYNCS, OMITTED_DEVICE, PATH_MAX,
    RING_BYTES, Record, SLOTS, SLOTS_AT, Slot,
};
use crate::writer::RingWriter;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The memory of a ring, mapped.
#[derive(Debug)]
pub(crate) struct Mapping(NonNull<u8>);

// SAFETY: other processes share the memory, too: its bytes are atomics, or written in turns.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(memory: &OwnedFd) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let len = RING_BYTES as usize;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap(null, len, access, MapFlags::SHARED, memory, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(base))
    }

    /// Writes a record.
    pub(crate) fn push(&self, record: &Record) {
        self.writer().push(record);
    }

    /// Stores a path; returns its place, 0 if there is no space.
    pub(crate) fn path(&self, bytes: &[u8]) -> u32 {
        self.writer().path(bytes)
    }

    fn writer(&self) -> RingWriter {
        // SAFETY: the ring is mapped until `self` is dropped; the callers drop the writer before.
        unsafe { RingWriter::new(self.0.as_ptr() as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped these bytes, and no reference outlives the mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), RING_BYTES as usize) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// What preloaded programs leave out, on the files of the device of this number (stat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omission {
    /// fsync(2), fdatasync(2), sync_file_range(2) and syncfs(2), which then return 0.
    Syncs(u64),
    /// O_SYNC and O_DSYNC of open(2).
    SyncFlags(u64),
}

/// A ring of records in memory that programs share with this process.
#[derive(Debug)]
pub struct Ring {
    memory: OwnedFd,
    mapping: Mapping,
    tail: u64,
}

impl Ring {
    /// Creates an empty ring: 73 MiB of addresses, of which only what is used takes memory.
    ///
    /// # Errors
    /// If memory or descriptors run out.
    pub fn create() -> io::Result<Self> {
        let memory = rustix::fs::memfd_create("folio-interpose", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, RING_BYTES)?;
        let mapping = Mapping::new(&memory)?;
        let ring = Self {
            memory,
            mapping,
            tail: 0,
        };
        let header = ring.header();
        // Place 0 means that there is no path.
        header.heap_used.store(4, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// Maps the ring once more, for writers of this process.
    pub(crate) fn map(&self) -> io::Result<Mapping> {
        Mapping::new(&self.memory)
    }

    /// Has preloaded programs leave out calls from now on. These are not recorded.
    pub fn omit(&self, omission: Omission) {
        let (kind, device) = match omission {
            Omission::Syncs(device) => (OMITS_SYNCS, device),
            Omission::SyncFlags(device) => (OMITS_SYNC_FLAGS, device),
        };
        let word = kind | device & OMITTED_DEVICE;
        self.header().omitted.store(word, Ordering::Relaxed);
    }

    /// Returns the path by which programs of the same user open the ring.
    pub fn path(&self) -> PathBuf {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.memory.as_raw_fd()
        )
        .into()
    }

    /// Returns the number of records that found the ring full.
    pub fn dropped(&self) -> u64 {
        self.header().dropped.load(Ordering::Relaxed)
    }

    /// Takes the next record; `None` if there is none, or its writer is not done.
    pub fn take(&mut self) -> Option<Record> {
        let index = self.tail % SLOTS;
        let lap = self.tail - index;
        // SAFETY: the index is below the number of slots, all of which are mapped.
        let slot = unsafe { self.at::<Slot>(SLOTS_AT).add(index as usize) };
        // SAFETY: the turn is mapped, and is only accessed as an atomic.
        let turn = unsafe { &(*slot).turn };
        if turn.load(Ordering::Acquire) != lap + 1 {
            return None;
        }
        // SAFETY: the slot is mapped; this only computes an address.
        let place = unsafe { &raw const (*slot).record };
        // SAFETY: the writer of this turn is done; each bit pattern is a record.
        let record = unsafe { place.read_volatile() };
        turn.store(lap + SLOTS, Ordering::Release);
        self.tail += 1;
        Some(record)
    }

    /// Returns the number of records that writers have begun and that were not taken.
    pub fn pending(&self) -> usize {
        let head = self.header().head.load(Ordering::Acquire);
        head.saturating_sub(self.tail).min(SLOTS) as usize
    }

    /// Skips a record whose writer was killed, if there is one.
    pub fn skip(&mut self) {
        self.tail += u64::from(self.pending() > 0);
    }

    /// Returns the path at a place; `None` if the place holds none.
    pub fn text(&self, place: u32) -> Option<PathBuf> {
        let place = u64::from(place);
        if place == 0 || place % 4 != 0 || place + 4 > HEAP_BYTES {
            return None;
        }
        // SAFETY: the four bytes are inside the heap, and aligned.
        let len = unsafe { &*self.at::<AtomicU32>(HEAP_AT + place) };
        let len = len.load(Ordering::Relaxed) as usize;
        if len == 0 || len > PATH_MAX || place + 4 + len as u64 > HEAP_BYTES {
            return None;
        }
        let mut bytes = vec![0; len];
        let start = self.at::<u8>(HEAP_AT + place + 4);
        // SAFETY: the bytes are inside the heap; they are copied before they are used.
        unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len) };
        Some(OsString::from_vec(bytes).into())
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is mapped, and has atomics only, but for its unused line.
        unsafe { self.mapping.0.cast::<Header>().as_ref() }
    }

    fn at<T>(&self, offset: u64) -> *mut T {
        // SAFETY: callers pass offsets of the layout, which are inside the mapping.
        unsafe { self.mapping.0.as_ptr().add(offset as usize) }.cast()
    }
}
