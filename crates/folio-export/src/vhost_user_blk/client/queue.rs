//! A queue on the driver's side. Virtio 1.2, section 2.7 (split virtqueues).

use super::super::config::{SECTOR_LEN, kind, status};
use folio::{Errno, Error, Result};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const HEADER_LEN: u64 = 16;
/// A slot has a header, data and a status.
const DESCRIPTORS_PER_SLOT: u16 = 3;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// The number of a request's place in a queue, below the depth.
pub type Slot = u16;

/// A request that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Its place.
    pub slot: Slot,
    /// `VIRTIO_BLK_S_*`: 0 for success.
    pub status: u8,
}

/// Sizes of a queue in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) ring_len: u16,
    depth: u16,
    data_len: u64,
}

/// Offsets of the parts of a queue.
pub(super) struct QueuePlace {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

impl Shape {
    pub(super) fn new(depth: u16, data_len_max: u32) -> Self {
        Self {
            ring_len: (depth * DESCRIPTORS_PER_SLOT).next_power_of_two(),
            depth,
            data_len: u64::from(data_len_max).next_multiple_of(4096),
        }
    }

    /// Bytes of the rings and headers, before the data.
    fn ring_bytes(self) -> u64 {
        // Descriptors, available and used ring, headers and status bytes.
        let len = u64::from(self.ring_len);
        (len * 16 + 4096 + len * 2 + 4096 + len * 8 + 4096 + u64::from(self.depth) * 32)
            .next_multiple_of(4096)
    }

    pub(super) fn len_bytes(self) -> u64 {
        self.ring_bytes() + u64::from(self.depth) * self.data_len
    }
}

/// A queue of a disk: up to `depth` requests at a time.
pub struct Queue {
    memory: Arc<GuestMemoryMmap>,
    shape: Shape,
    start: u64,
    pub(super) has_event_index: bool,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
    /// Waits for `call`.
    calls: Epoll,
    free: Vec<Slot>,
    next_available: u16,
    /// Index of available requests that the server was last notified of.
    kicked: u16,
    next_used: u16,
}

fn lost(error: impl std::fmt::Display) -> Error {
    Error::new(Errno::IO, format!("guest memory: {error}"))
}

impl Queue {
    pub(super) fn new(memory: Arc<GuestMemoryMmap>, shape: Shape, start: u64) -> io::Result<Self> {
        let call = EventFd::new(EFD_NONBLOCK)?;
        let calls = Epoll::new()?;
        let events = EpollEvent::new(EventSet::IN, 0);
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), events)?;
        Ok(Self {
            memory,
            shape,
            start,
            has_event_index: false,
            kick: EventFd::new(0)?,
            call,
            calls,
            free: (0..shape.depth).rev().collect(),
            next_available: 0,
            kicked: 0,
            next_used: 0,
        })
    }

    pub(super) fn place(&self) -> QueuePlace {
        let len = u64::from(self.shape.ring_len);
        let descriptors = self.start;
        let available = (descriptors + len * 16).next_multiple_of(4096);
        let used = (available + 6 + len * 2).next_multiple_of(4096);
        QueuePlace {
            descriptors,
            available,
            used,
        }
    }

    fn header(&self, slot: Slot) -> u64 {
        self.start + self.shape.ring_bytes() - (u64::from(slot) + 1) * 32
    }

    fn data(&self, slot: Slot) -> GuestAddress {
        let offset = u64::from(slot) * self.shape.data_len;
        GuestAddress(self.start + self.shape.ring_bytes() + offset)
    }

    /// Returns the number of requests that can be begun.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Begins a read of `len_bytes`, a multiple of 512, at most the length that the client was
    /// created with.
    ///
    /// # Errors
    /// EAGAIN if all slots are in use.
    pub fn read(&mut self, offset: u64, len_bytes: u32) -> Result<Slot> {
        self.begin(kind::IN, offset, &[], len_bytes)
    }

    /// Begins a write.
    ///
    /// # Errors
    /// EAGAIN if all slots are in use.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<Slot> {
        self.begin(kind::OUT, offset, bytes, 0)
    }

    /// Begins a flush.
    ///
    /// # Errors
    /// EAGAIN if all slots are in use.
    pub fn flush(&mut self) -> Result<Slot> {
        self.begin(kind::FLUSH, 0, &[], 0)
    }

    /// Begins a discard.
    ///
    /// # Errors
    /// EAGAIN if all slots are in use.
    pub fn discard(&mut self, offset: u64, len_bytes: u32) -> Result<Slot> {
        self.begin(kind::DISCARD, 0, &segment(offset, len_bytes, 0), 0)
    }

    /// Begins a request for zeros; with `may_unmap` their space may be released.
    ///
    /// # Errors
    /// EAGAIN if all slots are in use.
    pub fn write_zeroes(&mut self, offset: u64, len_bytes: u32, may_unmap: bool) -> Result<Slot> {
        let segment = segment(offset, len_bytes, may_unmap.into());
        self.begin(kind::WRITE_ZEROES, 0, &segment, 0)
    }

    /// Begins a request of any kind: sends `sent`, and has room for `reply_len` bytes.
    ///
    /// # Errors
    /// EAGAIN if all slots are in use.
    pub fn begin(&mut self, kind: u32, offset: u64, sent: &[u8], reply_len: u32) -> Result<Slot> {
        let slot = self
            .free
            .pop()
            .ok_or_else(|| Error::new(Errno::AGAIN, "slots"))?;
        let header = self.header(slot);
        let bits = u128::from(kind) | u128::from(offset / SECTOR_LEN) << 64;
        self.put(header, bits.to_le_bytes())?;
        self.put(header + HEADER_LEN, [0xff])?;
        let data = self.data(slot);
        self.memory.write_slice(sent, data).map_err(lost)?;
        let head = slot * DESCRIPTORS_PER_SLOT;
        let (data_len, data_flags) = if reply_len > 0 {
            (reply_len, NEXT | WRITE)
        } else {
            (sent.len() as u32, NEXT)
        };
        let status_at = head + 2;
        let after_header = if data_len > 0 { head + 1 } else { status_at };
        self.describe(head, header, HEADER_LEN as u32, [NEXT, after_header])?;
        if data_len > 0 {
            self.describe(head + 1, data.0, data_len, [data_flags, status_at])?;
        }
        self.describe(status_at, header + HEADER_LEN, 1, [WRITE, 0])?;
        let available = self.place().available;
        let entry = u64::from(self.next_available & (self.shape.ring_len - 1));
        self.put(available + 4 + 2 * entry, head.to_le_bytes())?;
        self.next_available = self.next_available.wrapping_add(1);
        self.memory
            .store(
                self.next_available,
                GuestAddress(available + 2),
                Ordering::Release,
            )
            .map_err(lost)?;
        Ok(slot)
    }

    /// Informs the server of the requests that were begun, if it waits for that.
    ///
    /// # Errors
    /// The host's.
    pub fn submit(&mut self) -> Result<()> {
        fence(Ordering::SeqCst);
        let QueuePlace { used, .. } = self.place();
        let is_wanted = if self.has_event_index {
            let event = self.load(used + 4 + 8 * u64::from(self.shape.ring_len))?;
            self.next_available.wrapping_sub(event).wrapping_sub(1)
                < self.next_available.wrapping_sub(self.kicked)
        } else {
            self.load(used)? & 1 == 0
        };
        self.kicked = self.next_available;
        if is_wanted {
            self.kick
                .write(1)
                .map_err(|error| Error::io("kick", error))?;
        }
        Ok(())
    }

    /// Informs the server, whether it waits for that or not: after it was started anew.
    ///
    /// # Errors
    /// The host's.
    pub fn submit_always(&self) -> Result<()> {
        self.kick.write(1).map_err(|error| Error::io("kick", error))
    }

    /// Returns a request that is done, if there is one. Its slot's data stays until the next
    /// request begins.
    ///
    /// # Errors
    /// EIO if the server returned what was not asked.
    pub fn take_done(&mut self) -> Result<Option<Done>> {
        let used = self.place().used;
        if self.load(used + 2)? == self.next_used {
            return Ok(None);
        }
        let entry = u64::from(self.next_used & (self.shape.ring_len - 1));
        let head: u32 = self
            .memory
            .read_obj(GuestAddress(used + 4 + 8 * entry))
            .map_err(lost)?;
        self.next_used = self.next_used.wrapping_add(1);
        let slot = (head / u32::from(DESCRIPTORS_PER_SLOT)) as Slot;
        if slot >= self.shape.depth || self.free.contains(&slot) {
            let text = format!("request {head} was returned, but is not in progress");
            return Err(Error::new(Errno::IO, text));
        }
        let status: u8 = self
            .memory
            .read_obj(GuestAddress(self.header(slot) + HEADER_LEN))
            .map_err(lost)?;
        if status > status::UNSUPP {
            let text = format!("request {head} was returned without a status");
            return Err(Error::new(Errno::IO, text));
        }
        self.free.push(slot);
        Ok(Some(Done { slot, status }))
    }

    /// Waits for a request that is done.
    ///
    /// # Errors
    /// Those of [`Queue::take_done`].
    pub fn wait_done(&mut self) -> Result<Done> {
        loop {
            // As a guest does between two interrupts.
            for _ in 0..64 {
                if let Some(done) = self.take_done()? {
                    return Ok(done);
                }
                std::thread::yield_now();
            }
            let available = self.place().available;
            let event = available + 4 + 2 * u64::from(self.shape.ring_len);
            self.memory
                .store(self.next_used, GuestAddress(event), Ordering::Release)
                .map_err(lost)?;
            fence(Ordering::SeqCst);
            if let Some(done) = self.take_done()? {
                return Ok(done);
            }
            self.wait_for_call()
                .map_err(|error| Error::io("call", error))?;
        }
    }

    /// Waits for the server's notification. The server may have made the event non-blocking.
    fn wait_for_call(&self) -> io::Result<()> {
        let mut events = [EpollEvent::default()];
        match self.calls.wait(-1, &mut events) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            Ok(_) | Err(_) => {}
        }
        match self.call.read() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Copies the data that a read returned.
    ///
    /// # Errors
    /// EIO if `buf` is longer than a slot's data.
    pub fn copy_data(&self, slot: Slot, buf: &mut [u8]) -> Result<()> {
        self.memory.read_slice(buf, self.data(slot)).map_err(lost)
    }

    /// Does one request, and waits for it; returns its status.
    ///
    /// # Errors
    /// Those of [`Queue::begin`] and [`Queue::take_done`].
    pub fn do_one(&mut self, kind: u32, offset: u64, sent: &[u8], reply_len: u32) -> Result<Done> {
        self.begin(kind, offset, sent, reply_len)?;
        self.submit()?;
        self.wait_done()
    }

    fn describe(&self, index: u16, address: u64, len_bytes: u32, flags: [u16; 2]) -> Result<()> {
        let [flags, next] = flags;
        let bits = u128::from(address)
            | u128::from(len_bytes) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        self.put(self.start + u64::from(index) * 16, bits.to_le_bytes())
    }

    fn put<const N: usize>(&self, address: u64, bytes: [u8; N]) -> Result<()> {
        self.memory
            .write_slice(&bytes, GuestAddress(address))
            .map_err(lost)
    }

    fn load(&self, address: u64) -> Result<u16> {
        self.memory
            .load(GuestAddress(address), Ordering::Acquire)
            .map_err(lost)
    }
}

/// Returns a `struct virtio_blk_discard_write_zeroes`.
fn segment(offset: u64, len_bytes: u32, flags: u32) -> [u8; 16] {
    let sectors = u64::from(len_bytes) / SECTOR_LEN;
    let bits =
        u128::from(offset / SECTOR_LEN) | u128::from(sectors) << 64 | u128::from(flags) << 96;
    bits.to_le_bytes()
}
