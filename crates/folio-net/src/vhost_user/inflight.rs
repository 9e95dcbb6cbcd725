//! The record of requests in progress, in memory that the front end keeps: a server that is started
//! anew finds those that an earlier one left unfinished.
//!
//! ```text
//!   region of a queue:  features u64, version u16, len u16, last_head u16, used_index u16
//!                       then for each descriptor: in_progress u8, 5 bytes, next u16, counter u64
//! ```
//!
//! Source: QEMU, docs/interop/vhost-user.rst, "Inflight I/O tracking".

use super::guest_memory::{Memory, OutOfMemory};
use super::message::invalid;
use super::split_ring::RING_LEN_MAX;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vm_memory::{Bytes, FileOffset, GuestAddress};

const HEADER_LEN: u64 = 16;
const ENTRY_LEN: u64 = 16;
/// The regions of two queues share no cache line.
const REGION_ALIGN: u64 = 64;

/// The device's part begins on a page.
const DEVICE_PART_ALIGN: u64 = 4096;

const VERSION: u64 = 8;
const RING_LEN: u64 = 10;
const LAST_HEAD: u64 = 12;
const USED_INDEX: u64 = 14;
const ENTRY_NEXT: u64 = 6;
const ENTRY_COUNTER: u64 = 8;

/// The record of all queues, as a message describes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct InflightPlace {
    pub(super) len_bytes: u64,
    pub(super) file_offset: u64,
    pub(super) queues: u16,
    pub(super) ring_len: u16,
}

/// The record of one queue.
pub(super) struct InflightQueue {
    memory: Arc<Memory>,
    start: u64,
    ring_len: u16,
    counter: u64,
}

/// Returns where the device's own part begins, behind the records of the queues.
fn device_part(place: InflightPlace) -> u64 {
    (u64::from(place.queues) * region_len(place.ring_len)).next_multiple_of(DEVICE_PART_ALIGN)
}

fn region_len(ring_len: u16) -> u64 {
    (HEADER_LEN + u64::from(ring_len) * ENTRY_LEN).next_multiple_of(REGION_ALIGN)
}

/// Creates an empty record, with room for the device's own.
pub(super) fn create(
    queues: u16,
    ring_len: u16,
    device_len: u64,
) -> io::Result<(InflightPlace, OwnedFd)> {
    if ring_len > RING_LEN_MAX {
        return Err(invalid("a queue is too long"));
    }
    let mut place = InflightPlace {
        len_bytes: 0,
        file_offset: 0,
        queues,
        ring_len,
    };
    let len_bytes = device_part(place) + device_len;
    let file = memfd_create(
        "requests in progress",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&file, len_bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
    place.len_bytes = len_bytes;
    Ok((place, file))
}

/// Maps a record.
pub(super) fn map(place: InflightPlace, file: OwnedFd, device_len: u64) -> io::Result<Arc<Memory>> {
    let needed = device_part(place) + device_len;
    if place.ring_len == 0 || place.ring_len > RING_LEN_MAX || place.len_bytes < needed {
        return Err(invalid("the record of requests in progress is too small"));
    }
    let file = FileOffset::new(file.into(), place.file_offset);
    let range = (GuestAddress(0), needed as usize, Some(file));
    let memory = Memory::from_ranges_with_files([range]).map_err(io::Error::other)?;
    Ok(Arc::new(memory))
}

/// Returns the device's own part of a mapped record.
pub(super) fn device_record(
    place: InflightPlace,
    memory: &Arc<Memory>,
    device_len: u64,
) -> DeviceRecord {
    DeviceRecord {
        memory: Arc::clone(memory),
        start: device_part(place),
        len_bytes: device_len,
    }
}

/// Memory of a device that survives its server, as the record of requests in progress does. The
/// front end can change it at any time.
pub struct DeviceRecord {
    memory: Arc<Memory>,
    start: u64,
    len_bytes: u64,
}

impl DeviceRecord {
    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// The range leaves the record.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), OutOfMemory> {
        let address = self.address(offset, buf.len())?;
        self.memory
            .read_slice(buf, address)
            .map_err(|_| OutOfMemory)
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The range leaves the record.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), OutOfMemory> {
        let address = self.address(offset, bytes.len())?;
        self.memory
            .write_slice(bytes, address)
            .map_err(|_| OutOfMemory)
    }

    /// Writes a number in one step, after all earlier writes. Its offset is a multiple of 8.
    ///
    /// # Errors
    /// The range leaves the record.
    pub fn store(&self, number: u64, offset: u64) -> Result<(), OutOfMemory> {
        let address = self.address(offset, 8)?;
        self.memory
            .store(number, address, Ordering::Release)
            .map_err(|_| OutOfMemory)
    }

    fn address(&self, offset: u64, len: usize) -> Result<GuestAddress, OutOfMemory> {
        let end = offset.checked_add(len as u64).ok_or(OutOfMemory)?;
        if end > self.len_bytes {
            return Err(OutOfMemory);
        }
        Ok(GuestAddress(self.start + offset))
    }
}

impl InflightQueue {
    /// Returns the record of a queue, and the requests in it that are not finished, in the order in
    /// which they began. `used_index` is that of the queue's ring.
    pub(super) fn resume(
        memory: Arc<Memory>,
        place: InflightPlace,
        queue: usize,
        used_index: u16,
    ) -> io::Result<(Self, Vec<u16>)> {
        if queue >= usize::from(place.queues) {
            return Err(invalid("a queue has no record of requests in progress"));
        }
        let mut this = Self {
            memory,
            start: queue as u64 * region_len(place.ring_len),
            ring_len: place.ring_len,
            counter: 0,
        };
        this.store(VERSION, 1_u16)?;
        this.store(RING_LEN, place.ring_len)?;
        if this.load::<u16>(USED_INDEX)? != used_index {
            // The last request was returned to the driver; the server ended before it wrote so.
            let head = this.load::<u16>(LAST_HEAD)?;
            if head < place.ring_len {
                this.store(this.entry(head), 0_u8)?;
            }
            this.store(USED_INDEX, used_index)?;
        }
        let mut unfinished = Vec::new();
        for head in 0..place.ring_len {
            if this.load::<u8>(this.entry(head))? != 0 {
                unfinished.push((this.load::<u64>(this.entry(head) + ENTRY_COUNTER)?, head));
            }
        }
        unfinished.sort_unstable();
        this.counter = unfinished.last().map_or(0, |(counter, _)| counter + 1);
        Ok((this, unfinished.into_iter().map(|(_, head)| head).collect()))
    }

    /// Records that a request begins.
    pub(super) fn begin(&mut self, head: u16) -> io::Result<()> {
        if head >= self.ring_len {
            return Err(invalid("a request has no record"));
        }
        self.store(self.entry(head) + ENTRY_COUNTER, self.counter)?;
        self.counter = self.counter.wrapping_add(1);
        self.store(self.entry(head), 1_u8)
    }

    /// Records that a request is about to be returned to the driver.
    pub(super) fn prepare_end(&self, head: u16) -> io::Result<()> {
        let last = self.load::<u16>(LAST_HEAD)?;
        self.store(self.entry(head) + ENTRY_NEXT, last)?;
        self.store(LAST_HEAD, head)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Records that a request was returned; `used_index` is that of the ring behind it.
    pub(super) fn end(&self, head: u16, used_index: u16) -> io::Result<()> {
        fence(Ordering::SeqCst);
        self.store(self.entry(head), 0_u8)?;
        fence(Ordering::SeqCst);
        self.store(USED_INDEX, used_index)
    }

    /// Records that a request is not to be repeated.
    pub(super) fn forget(&self, head: u16) -> io::Result<()> {
        self.store(self.entry(head), 0_u8)
    }

    fn entry(&self, head: u16) -> u64 {
        HEADER_LEN + u64::from(head) * ENTRY_LEN
    }

    fn load<T: vm_memory::AtomicAccess>(&self, offset: u64) -> io::Result<T> {
        let address = GuestAddress(self.start + offset);
        self.memory
            .load(address, Ordering::Acquire)
            .map_err(io::Error::other)
    }

    fn store<T: vm_memory::AtomicAccess>(&self, offset: u64, value: T) -> io::Result<()> {
        let address = GuestAddress(self.start + offset);
        self.memory
            .store(value, address, Ordering::Release)
            .map_err(io::Error::other)
    }
}
