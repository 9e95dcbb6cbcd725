//! Guest memory: reads requests from it and writes replies into it, by the guest's descriptors.

use crate::wire::{REPLY_HEADER_LEN, REQUEST_MAX, Reply};
use folio::Result;
use virtio_queue::DescriptorChain;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

/// The guest's memory, shared by the front end.
pub(crate) type Memory = GuestMemoryMmap<()>;

/// Bytes read from a file at a time, on their way into guest memory: few enough to stay in the
/// processor's cache.
const CHUNK_LEN: usize = 128 << 10;

/// A buffer in guest memory for a part of a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestBuffer {
    address: GuestAddress,
    len: usize,
}

/// Reusable buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) request: Vec<u8>,
    pub(crate) buffers: Vec<GuestBuffer>,
    pub(crate) data: Vec<u8>,
}

impl Scratch {
    /// Copies a request out of guest memory, and lists the buffers for its reply. A request that is
    /// too long, or outside of guest memory, becomes empty.
    pub(crate) fn gather(&mut self, memory: &Memory, chain: DescriptorChain<&Memory>) {
        self.request.clear();
        self.buffers.clear();
        let mut is_valid = true;
        for descriptor in chain {
            let len = descriptor.len() as usize;
            if descriptor.is_write_only() {
                self.buffers.push(GuestBuffer {
                    address: descriptor.addr(),
                    len,
                });
                continue;
            }
            let start = self.request.len();
            is_valid &= len <= REQUEST_MAX - start;
            if is_valid {
                self.request.resize(start + len, 0);
                is_valid = memory
                    .read_slice(&mut self.request[start..], descriptor.addr())
                    .is_ok();
            }
        }
        if !is_valid {
            self.request.clear();
        }
    }
}

/// A reply in guest memory.
pub(crate) struct GuestReply<'a> {
    memory: &'a Memory,
    buffers: &'a [GuestBuffer],
    data: &'a mut Vec<u8>,
    capacity: usize,
    /// Bytes written, with the header, although it is written last.
    len: usize,
    /// The place of the next byte: index of a buffer, and offset in it.
    cursor: (usize, usize),
    is_valid: bool,
    is_finished: bool,
}

impl<'a> GuestReply<'a> {
    pub(crate) fn new(
        memory: &'a Memory,
        buffers: &'a [GuestBuffer],
        data: &'a mut Vec<u8>,
    ) -> Self {
        let capacity = buffers
            .iter()
            .fold(0_usize, |sum, buffer| sum.saturating_add(buffer.len));
        let mut this = Self {
            memory,
            buffers,
            data,
            capacity,
            len: 0,
            cursor: (0, 0),
            is_valid: true,
            is_finished: false,
        };
        this.restart();
        this
    }

    /// Returns the bytes written to the guest's buffers; 0 for an incomplete reply.
    pub(crate) fn written(&self) -> u32 {
        let is_complete = self.is_valid && self.is_finished;
        // A chain has less than 4 GiB.
        if is_complete { self.len as u32 } else { 0 }
    }

    /// Advances the cursor by `len`; calls `put` with address and length of each part of a buffer.
    fn advance(
        &mut self,
        mut len: usize,
        put: &mut dyn FnMut(&Memory, GuestAddress, usize) -> bool,
    ) {
        while len > 0 {
            let (index, offset) = self.cursor;
            let Some(buffer) = self.buffers.get(index) else {
                self.is_valid = false;
                return;
            };
            let part = len.min(buffer.len - offset);
            if part > 0 {
                let address = buffer.address.checked_add(offset as u64);
                self.is_valid &= address.is_some_and(|address| put(self.memory, address, part));
            }
            self.cursor = if offset + part == buffer.len {
                (index + 1, 0)
            } else {
                (index, offset + part)
            };
            len -= part;
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        self.advance(bytes.len(), &mut |memory, address, len| {
            let (part, rest) = bytes.split_at(len);
            bytes = rest;
            memory.write_slice(part, address).is_ok()
        });
    }
}

impl Reply for GuestReply<'_> {
    fn restart(&mut self) {
        self.cursor = (0, 0);
        self.len = REPLY_HEADER_LEN;
        self.is_finished = false;
        if self.capacity >= REPLY_HEADER_LEN {
            self.advance(REPLY_HEADER_LEN, &mut |_, _, _| true);
        }
    }

    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len)
    }

    fn body_len(&self) -> usize {
        self.len - REPLY_HEADER_LEN
    }

    fn append(&mut self, bytes: &[u8]) {
        self.write(bytes);
        self.len += bytes.len();
    }

    fn fill(
        &mut self,
        len_bytes: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let mut data = std::mem::take(self.data);
        if data.is_empty() {
            data.resize(CHUNK_LEN, 0);
        }
        let mut done = 0;
        let mut outcome = Ok(());
        while done < len_bytes {
            let chunk = &mut data[..CHUNK_LEN.min(len_bytes - done)];
            let count = match read(chunk) {
                Ok(count) => count.min(chunk.len()),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            self.append(&chunk[..count]);
            done += count;
            if count < chunk.len() {
                break;
            }
        }
        *self.data = data;
        outcome.map(|()| done)
    }

    fn finish(&mut self, header: &[u8]) {
        if self.capacity < header.len() {
            return;
        }
        self.cursor = (0, 0);
        self.write(header);
        self.is_finished = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory::from_ranges(&[
            (GuestAddress(0x1000), 0x1000),
            (GuestAddress(0x4000), 0x1000),
        ])
        .unwrap()
    }

    fn buffer(address: u64, len: usize) -> GuestBuffer {
        GuestBuffer {
            address: GuestAddress(address),
            len,
        }
    }

    #[test]
    fn reply_spans_buffer_boundaries() {
        let memory = memory();
        let buffers = [
            buffer(0x1000, 10),
            buffer(0x1100, 0),
            buffer(0x4000, 9),
            buffer(0x1200, 100),
        ];
        let mut data = Vec::new();
        let mut reply = GuestReply::new(&memory, &buffers, &mut data);
        assert_eq!(reply.room(), 119 - 16);
        reply.append(b"abcd");
        let mut left: &[u8] = b"efghij";
        let count = reply.fill(50, &mut |buffer| {
            Ok(std::io::Read::read(&mut left, buffer).unwrap())
        });
        assert_eq!((count.unwrap(), reply.body_len()), (6, 10));
        reply.finish(b"0123456789ABCDEF");
        assert_eq!(reply.written(), 26);
        let mut bytes = [0; 10];
        memory.read_slice(&mut bytes, GuestAddress(0x1000)).unwrap();
        assert_eq!(&bytes, b"0123456789");
        memory
            .read_slice(&mut bytes[..9], GuestAddress(0x4000))
            .unwrap();
        assert_eq!(&bytes[..9], b"ABCDEFabc");
        memory
            .read_slice(&mut bytes[..7], GuestAddress(0x1200))
            .unwrap();
        assert_eq!(&bytes[..7], b"defghij");
    }

    #[test]
    fn reply_outside_memory_is_empty() {
        let memory = memory();
        for buffers in [
            vec![buffer(0x1ffc, 64)],
            vec![buffer(u64::MAX - 7, 64)],
            vec![buffer(0x1000, 15)],
            vec![],
        ] {
            let mut data = Vec::new();
            let mut reply = GuestReply::new(&memory, &buffers, &mut data);
            let body = vec![7; reply.room().min(20)];
            reply.append(&body);
            reply.finish(&[0; 16]);
            assert_eq!(reply.written(), 0, "{buffers:?}");
        }
    }
}
