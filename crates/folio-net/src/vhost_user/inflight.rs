//! The record of requests in progress, in memory that the front end keeps: a server that is started
//! anew finds those that an earlier one left unfinished.
//!
//! ```text
//!   region of a queue:  features u64, version u16, len u16, last_head u16, used_index u16
//!                       then for each descriptor: in_progress u8, 5 bytes, next u16, counter u64
//! ```
//!
//! Source: QEMU, docs/interop/vhost-user.rst, "Inflight I/O tracking".

use super::guest_memory::Memory;
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

fn region_len(ring_len: u16) -> u64 {
    (HEADER_LEN + u64::from(ring_len) * ENTRY_LEN).next_multiple_of(REGION_ALIGN)
}

/// Creates an empty record.
pub(super) fn create(queues: u16, ring_len: u16) -> io::Result<(InflightPlace, OwnedFd)> {
    if ring_len > RING_LEN_MAX {
        return Err(invalid("a queue is too long"));
    }
    let len_bytes = u64::from(queues) * region_len(ring_len);
    let file = memfd_create(
        "requests in progress",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&file, len_bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
    let place = InflightPlace {
        len_bytes,
        file_offset: 0,
        queues,
        ring_len,
    };
    Ok((place, file))
}

/// Maps a record.
pub(super) fn map(place: InflightPlace, file: OwnedFd) -> io::Result<Arc<Memory>> {
    let needed = u64::from(place.queues) * region_len(place.ring_len);
    if place.ring_len == 0 || place.ring_len > RING_LEN_MAX || place.len_bytes < needed {
        return Err(invalid("the record of requests in progress is too small"));
    }
    let file = FileOffset::new(file.into(), place.file_offset);
    let range = (GuestAddress(0), needed as usize, Some(file));
    let memory = Memory::from_ranges_with_files([range]).map_err(io::Error::other)?;
    Ok(Arc::new(memory))
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
