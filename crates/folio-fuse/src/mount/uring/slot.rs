//! The memory of one request: written by the kernel, then by the reply.
//!
//! ```text
//!   0         4096 - n    4096                          4096 + TRANSFER_MAX
//!   | headers | request   | payload                     |
//!   kernel      ours        kernel: names and data; ours: the body of the reply
//! ```
//!
//! The kernel writes header and arguments of a request to fixed places in the headers. They are
//! copied before the payload, so that the request is contiguous, as on /dev/fuse.
#![allow(unsafe_code)]

use crate::wire::abi::{InHeader, UringEntry};
use crate::wire::{REPLY_HEADER_LEN, Reply, TRANSFER_MAX};
use folio::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::NonNull;
use zerocopy::{FromBytes, IntoBytes};

/// Place of `fuse_uring_req_header::op_in`, after `in_out`.
const ARGUMENTS_AT: usize = 128;
/// Place of `fuse_uring_req_header::ring_ent_in_out`.
const ENTRY_AT: usize = 256;
const HEADERS_LEN: usize = ENTRY_AT + size_of::<UringEntry>();
const PAYLOAD_AT: usize = 4096;
const LEN: usize = PAYLOAD_AT + TRANSFER_MAX;

/// `struct iovec`.
#[repr(C)]
struct Range {
    start: u64,
    len: usize,
}

/// The memory of one request of a queue. While the kernel owns it (U1), no method is called.
pub(super) struct Slot {
    memory: NonNull<u8>,
    /// The two ranges of memory that the kernel learns at the registration.
    ranges: Box<[Range; 2]>,
}

/// A request in a slot.
pub(super) struct SlotRequest<'a> {
    /// Header and arguments.
    pub(super) bytes: &'a [u8],
    /// The place of the reply's body, unless the request is there.
    pub(super) body: Option<SlotReply<'a>>,
}

/// A reply whose body is written to its final place.
pub(super) struct SlotReply<'a> {
    header: [u8; REPLY_HEADER_LEN],
    body: &'a mut [u8],
    len: usize,
}

impl Slot {
    pub(super) fn new() -> std::io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, which overlaps no other memory.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, prot, flags)? };
        let memory = NonNull::new(memory.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let start = memory.as_ptr() as u64;
        let headers = Range {
            start,
            len: HEADERS_LEN,
        };
        let payload = Range {
            start: start + PAYLOAD_AT as u64,
            len: TRANSFER_MAX,
        };
        Ok(Self {
            memory,
            ranges: Box::new([headers, payload]),
        })
    }

    /// Returns the address and the number of the ranges to register.
    pub(super) fn ranges(&self) -> (u64, u32) {
        (self.ranges.as_ptr() as u64, self.ranges.len() as u32)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `LEN` bytes, zeroed at first. It belongs to `self`, which is
        // borrowed exclusively; the kernel does not use it meanwhile (U1).
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), LEN) }
    }

    fn entry(&mut self) -> UringEntry {
        let bytes = &self.bytes()[ENTRY_AT..HEADERS_LEN];
        UringEntry::read_from_bytes(bytes).unwrap_or_default()
    }

    /// Returns the request; `None` if its lengths contradict each other.
    pub(super) fn request(&mut self) -> Option<SlotRequest<'_>> {
        let payload_len = self.entry().payload_len as usize;
        let front_at = self.join_front(payload_len)?;
        if payload_len > 0 {
            let bytes = &self.bytes()[front_at..PAYLOAD_AT + payload_len];
            return Some(SlotRequest { bytes, body: None });
        }
        let (front, payload) = self.bytes().split_at_mut(PAYLOAD_AT);
        Some(SlotRequest {
            bytes: &front[front_at..],
            body: Some(SlotReply {
                header: [0; REPLY_HEADER_LEN],
                body: payload,
                len: 0,
            }),
        })
    }

    /// Copies header and arguments before the payload; returns the place of the header.
    fn join_front(&mut self, payload_len: usize) -> Option<usize> {
        let bytes = self.bytes();
        let (header, _) = InHeader::read_from_prefix(bytes).ok()?;
        let front_len = (header.len as usize).checked_sub(payload_len)?;
        let arguments_len = front_len.checked_sub(size_of::<InHeader>())?;
        if arguments_len > ENTRY_AT - ARGUMENTS_AT || payload_len > TRANSFER_MAX {
            return None;
        }
        let front_at = PAYLOAD_AT - front_len;
        let arguments = ARGUMENTS_AT..ARGUMENTS_AT + arguments_len;
        bytes.copy_within(arguments, front_at + size_of::<InHeader>());
        bytes.copy_within(..size_of::<InHeader>(), front_at);
        Some(front_at)
    }

    /// Puts a whole reply in its place; [`Slot::finish`] comes next.
    pub(super) fn put(&mut self, reply: &[u8]) -> Finished {
        let (header, body) = reply.split_at(REPLY_HEADER_LEN);
        self.bytes()[PAYLOAD_AT..][..body.len()].copy_from_slice(body);
        let mut finished = Finished {
            header: [0; REPLY_HEADER_LEN],
            body_len: body.len(),
        };
        finished.header.copy_from_slice(header);
        finished
    }

    /// Writes the header of the reply whose body is in its place; returns the number by which the
    /// kernel knows the request.
    pub(super) fn finish(&mut self, reply: &Finished) -> u64 {
        let mut entry = self.entry();
        entry.payload_len = reply.body_len as u32;
        let bytes = self.bytes();
        bytes[..REPLY_HEADER_LEN].copy_from_slice(&reply.header);
        bytes[ENTRY_AT..HEADERS_LEN].copy_from_slice(entry.as_bytes());
        entry.commit_id
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`. The kernel has no address of it any more: the ring
        // is closed before its slots (`Queue`).
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), LEN) };
    }
}

/// A reply whose body is in its place.
pub(super) struct Finished {
    header: [u8; REPLY_HEADER_LEN],
    body_len: usize,
}

impl SlotReply<'_> {
    pub(super) fn finished(&self) -> Finished {
        Finished {
            header: self.header,
            body_len: self.len,
        }
    }
}

impl Reply for SlotReply<'_> {
    fn restart(&mut self) {
        self.len = 0;
    }

    fn room(&self) -> usize {
        self.body.len() - self.len
    }

    fn body_len(&self) -> usize {
        self.len
    }

    fn append(&mut self, bytes: &[u8]) {
        self.body[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn fill(
        &mut self,
        len_bytes: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let count = read(&mut self.body[self.len..][..len_bytes])?.min(len_bytes);
        self.len += count;
        Ok(count)
    }

    fn finish(&mut self, header: &[u8]) {
        self.header.copy_from_slice(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Message;

    /// Writes a request as the kernel does.
    fn write(slot: &mut Slot, arguments: &[u8], payload: &[u8], excess: i32) {
        let len = size_of::<InHeader>() + arguments.len() + payload.len();
        let header = InHeader {
            len: len.wrapping_add_signed(excess as isize) as u32,
            opcode: 15,
            ..InHeader::default()
        };
        let entry = UringEntry {
            commit_id: 7,
            payload_len: payload.len() as u32,
            ..UringEntry::default()
        };
        let bytes = slot.bytes();
        bytes[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        bytes[ARGUMENTS_AT..][..arguments.len()].copy_from_slice(arguments);
        bytes[ENTRY_AT..HEADERS_LEN].copy_from_slice(entry.as_bytes());
        bytes[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
    }

    #[test]
    fn request_is_contiguous() {
        let mut slot = Slot::new().unwrap();
        write(&mut slot, &[1; 40], &[2; 5000], 0);
        let request = slot.request().unwrap();
        assert!(request.body.is_none());
        assert_eq!(request.bytes.len(), 40 + 40 + 5000);
        assert_eq!(request.bytes[40..80], [1; 40]);
        assert_eq!(request.bytes[80..], [2; 5000]);
        let mut message = Message::default();
        message.restart();
        message.append(b"reply");
        let reply = slot.put(message.bytes());
        assert_eq!(slot.finish(&reply), 7);
        assert_eq!(slot.bytes()[PAYLOAD_AT..][..5], *b"reply");
        assert_eq!(slot.entry().payload_len, 5);
    }

    #[test]
    fn reply_without_payload_is_in_place() {
        let mut slot = Slot::new().unwrap();
        write(&mut slot, &[3; 8], b"", 0);
        let request = slot.request().unwrap();
        assert_eq!(request.bytes[40..], [3; 8]);
        let mut reply = request.body.unwrap();
        assert_eq!(reply.room(), TRANSFER_MAX);
        reply.restart();
        reply.append(b"head");
        let read = |buffer: &mut [u8]| {
            buffer.fill(9);
            Ok(buffer.len())
        };
        assert_eq!(reply.fill(6, &mut { read }).unwrap(), 6);
        Reply::finish(&mut reply, &[5; REPLY_HEADER_LEN]);
        let reply = reply.finished();
        assert_eq!(slot.finish(&reply), 7);
        assert_eq!(slot.bytes()[..REPLY_HEADER_LEN], [5; REPLY_HEADER_LEN]);
        assert_eq!(
            slot.bytes()[PAYLOAD_AT..][..10],
            *b"head\x09\x09\x09\x09\x09\x09"
        );
        assert_eq!(slot.entry().payload_len, 10);
    }

    #[test]
    fn contradicting_lengths_are_refused() {
        let mut slot = Slot::new().unwrap();
        for excess in [-100, 200, i32::MAX] {
            write(&mut slot, &[1; 40], &[2; 50], excess);
            assert!(slot.request().is_none(), "{excess}");
        }
    }
}
