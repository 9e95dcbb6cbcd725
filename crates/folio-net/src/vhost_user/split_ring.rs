//! A virtqueue in guest memory, on the device's side. Virtio 1.2, section 2.7 (split virtqueues).
//!
//! The crate virtio-queue does not serve: it cannot return to a request that an earlier server left
//! unfinished, reports a broken chain as a short one, and ignores `VIRTQ_AVAIL_F_NO_INTERRUPT`.

use super::guest_memory::{Buffer, Memory};
use std::sync::atomic::{Ordering, fence};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, Permissions};

/// Most descriptors in a ring, and in a chain. QEMU: `VIRTQUEUE_MAX_SIZE`.
pub(super) const RING_LEN_MAX: u16 = 1024;

const DESCRIPTOR_LEN: u64 = 16;
const DESCRIPTOR_NEXT: u16 = 1;
const DESCRIPTOR_WRITE: u16 = 2;
const DESCRIPTOR_INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`, and `VIRTQ_USED_F_NO_NOTIFY`.
const FLAG_SILENT: u16 = 1;

/// A ring that the driver has broken, so that it cannot be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RingError {
    /// A part of the ring is outside of guest memory.
    OutOfMemory,
    /// The driver's index is ahead by more than the ring holds.
    Index,
    /// A request starts behind the descriptor table.
    Head,
}

/// A chain of descriptors that cannot be followed: it loops, is longer than [`RING_LEN_MAX`], has a
/// table in a table, or leaves guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrokenChain;

/// The buffers of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    pub(super) readable: Vec<Buffer>,
    pub(super) writable: Vec<Buffer>,
}

/// The place of a ring, and how it is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingPlace {
    /// Number of descriptors, a power of two.
    pub(super) len: u16,
    pub(super) descriptors: GuestAddress,
    pub(super) available: GuestAddress,
    pub(super) used: GuestAddress,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub(super) has_event_index: bool,
}

/// A ring in use.
pub(super) struct SplitRing {
    place: RingPlace,
    /// Index of the next request to take.
    pub(super) next_available: u16,
    next_used: u16,
    /// Index of used requests when the driver was last notified, or need not be.
    notified: Option<u16>,
}

fn plus(address: GuestAddress, offset: u64) -> Result<GuestAddress, RingError> {
    address.checked_add(offset).ok_or(RingError::OutOfMemory)
}

impl SplitRing {
    /// Starts at the given index of available requests, behind the used ones.
    ///
    /// # Errors
    /// A part of the ring is outside of guest memory.
    pub(super) fn start(
        place: RingPlace,
        memory: &Memory,
        next_available: u16,
    ) -> Result<Self, RingError> {
        let len = u64::from(place.len);
        let parts = [
            (place.descriptors, len * DESCRIPTOR_LEN, Permissions::Read),
            (place.available, 6 + 2 * len, Permissions::Read),
            (place.used, 6 + 8 * len, Permissions::Write),
        ];
        for (address, len_bytes, permissions) in parts {
            if !memory.check_range(address, len_bytes as usize, permissions) {
                return Err(RingError::OutOfMemory);
            }
        }
        Ok(Self {
            next_used: used_index(&place, memory)?,
            place,
            next_available,
            notified: None,
        })
    }

    /// Returns the number of descriptors.
    pub(super) fn len(&self) -> usize {
        self.place.len.into()
    }

    /// Returns the number of requests to take.
    pub(super) fn available(&self, memory: &Memory) -> Result<u16, RingError> {
        let index = load(memory, plus(self.place.available, 2)?)?;
        let count = index.wrapping_sub(self.next_available);
        if count > self.place.len {
            return Err(RingError::Index);
        }
        Ok(count)
    }

    /// Takes the next request; returns the first descriptor of its chain.
    pub(super) fn pop(&mut self, memory: &Memory) -> Result<Option<u16>, RingError> {
        if self.available(memory)? == 0 {
            return Ok(None);
        }
        let slot = u64::from(self.next_available & (self.place.len - 1));
        // The index was loaded with Acquire, so this entry is written.
        let head = load(memory, plus(self.place.available, 4 + 2 * slot)?)?;
        if head >= self.place.len {
            return Err(RingError::Head);
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Collects the buffers of the chain that starts at `head`.
    pub(super) fn follow(
        &self,
        memory: &Memory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), BrokenChain> {
        chain.readable.clear();
        chain.writable.clear();
        let mut table = (self.place.descriptors, u64::from(self.place.len));
        let mut is_indirect = false;
        let mut next = u64::from(head);
        for _ in 0..=RING_LEN_MAX {
            if next >= table.1 {
                return Err(BrokenChain);
            }
            let address = table.0.checked_add(next * DESCRIPTOR_LEN);
            let bytes: [u8; 16] = memory
                .read_obj(address.ok_or(BrokenChain)?)
                .map_err(|_| BrokenChain)?;
            let descriptor = Descriptor::parse(bytes);
            if descriptor.flags & DESCRIPTOR_INDIRECT != 0 {
                let len_bytes = u64::from(descriptor.len_bytes);
                if is_indirect
                    || descriptor.flags & DESCRIPTOR_NEXT != 0
                    || !len_bytes.is_multiple_of(DESCRIPTOR_LEN)
                {
                    return Err(BrokenChain);
                }
                is_indirect = true;
                table = (descriptor.address, len_bytes / DESCRIPTOR_LEN);
                next = 0;
                continue;
            }
            if chain.readable.len() + chain.writable.len() == usize::from(RING_LEN_MAX) {
                return Err(BrokenChain);
            }
            let buffer = Buffer {
                address: descriptor.address,
                len_bytes: descriptor.len_bytes,
            };
            if descriptor.flags & DESCRIPTOR_WRITE != 0 {
                chain.writable.push(buffer);
            } else if chain.writable.is_empty() {
                chain.readable.push(buffer);
            } else {
                return Err(BrokenChain);
            }
            if descriptor.flags & DESCRIPTOR_NEXT == 0 {
                return Ok(());
            }
            next = u64::from(descriptor.next);
        }
        Err(BrokenChain)
    }

    /// Returns the buffers of a request to the driver, with `len_bytes` written in them.
    pub(super) fn push_used(
        &mut self,
        memory: &Memory,
        head: u16,
        len_bytes: u32,
    ) -> Result<(), RingError> {
        let slot = u64::from(self.next_used & (self.place.len - 1));
        let element = u64::from(head) | u64::from(len_bytes) << 32;
        memory
            .write_obj(element.to_le(), plus(self.place.used, 4 + 8 * slot)?)
            .map_err(|_| RingError::OutOfMemory)?;
        self.next_used = self.next_used.wrapping_add(1);
        // The driver sees the element, and the request's data, before the index.
        store(memory, plus(self.place.used, 2)?, self.next_used)
    }

    /// Returns the index behind the used requests.
    pub(super) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Returns whether the driver waits for a notification of the requests used since the last
    /// call.
    pub(super) fn should_notify(&mut self, memory: &Memory) -> Result<bool, RingError> {
        let before = self.notified.replace(self.next_used);
        if before == Some(self.next_used) {
            return Ok(false);
        }
        // The driver writes what it waits for, then looks at the index; here it is the other way
        // round.
        fence(Ordering::SeqCst);
        if !self.place.has_event_index {
            return Ok(load(memory, self.place.available)? & FLAG_SILENT == 0);
        }
        let event = load(
            memory,
            plus(self.place.available, 4 + 2 * u64::from(self.place.len))?,
        )?;
        Ok(before.is_none_or(|before| {
            // Linux: `vring_need_event`.
            self.next_used.wrapping_sub(event).wrapping_sub(1) < self.next_used.wrapping_sub(before)
        }))
    }

    /// Asks the driver to notify of new requests, or not to.
    pub(super) fn request_notifications(
        &self,
        memory: &Memory,
        are_wanted: bool,
    ) -> Result<(), RingError> {
        if self.place.has_event_index {
            if are_wanted {
                let event = 4 + 8 * u64::from(self.place.len);
                store(memory, plus(self.place.used, event)?, self.next_available)?;
            }
        } else {
            let flags = if are_wanted { 0 } else { FLAG_SILENT };
            store(memory, self.place.used, flags)?;
        }
        if are_wanted {
            // Before the caller looks for requests once more.
            fence(Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Returns the index behind the requests that are used.
pub(super) fn used_index(place: &RingPlace, memory: &Memory) -> Result<u16, RingError> {
    load(memory, plus(place.used, 2)?)
}

fn load(memory: &Memory, address: GuestAddress) -> Result<u16, RingError> {
    let value: u16 = memory
        .load(address, Ordering::Acquire)
        .map_err(|_| RingError::OutOfMemory)?;
    Ok(u16::from_le(value))
}

fn store(memory: &Memory, address: GuestAddress, value: u16) -> Result<(), RingError> {
    memory
        .store(value.to_le(), address, Ordering::Release)
        .map_err(|_| RingError::OutOfMemory)
}

struct Descriptor {
    address: GuestAddress,
    len_bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn parse(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        Self {
            address: GuestAddress(bits as u64),
            len_bytes: (bits >> 64) as u32,
            flags: (bits >> 96) as u16,
            next: (bits >> 112) as u16,
        }
    }
}
