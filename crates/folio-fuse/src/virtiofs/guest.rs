//! Guest memory: reads requests from it and writes replies into it, by the guest's descriptors.

use crate::wire::{REPLY_HEADER_LEN, REQUEST_MAX, Reply};
use folio::Result;
use folio_net::vhost_user::Buffers;

/// Bytes read from a file at a time, on their way into guest memory: few enough to stay in the
/// processor's cache.
const CHUNK_LEN: usize = 128 << 10;

/// Reusable buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) request: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Scratch {
    /// Copies a request out of guest memory. One that is too long, or outside of guest memory,
    /// becomes empty.
    pub(crate) fn gather(&mut self, sent: Buffers<'_>) {
        self.request.clear();
        let len = sent.len_bytes();
        if len <= REQUEST_MAX {
            self.request.resize(len, 0);
            if sent.read_at(&mut self.request, 0).is_err() {
                self.request.clear();
            }
        }
    }
}

/// A reply in guest memory.
pub(crate) struct GuestReply<'a> {
    buffers: Buffers<'a>,
    data: &'a mut Vec<u8>,
    capacity: usize,
    /// Bytes written, with the header, although it is written last.
    len: usize,
    is_valid: bool,
    is_finished: bool,
}

impl<'a> GuestReply<'a> {
    pub(crate) fn new(buffers: Buffers<'a>, data: &'a mut Vec<u8>) -> Self {
        Self {
            buffers,
            data,
            capacity: buffers.len_bytes(),
            len: REPLY_HEADER_LEN,
            is_valid: true,
            is_finished: false,
        }
    }

    /// Returns the bytes written to the guest's buffers; 0 for an incomplete reply.
    pub(crate) fn written(&self) -> u32 {
        let is_complete = self.is_valid && self.is_finished;
        // Replies are limited to less than 4 GiB.
        if is_complete { self.len as u32 } else { 0 }
    }
}

impl Reply for GuestReply<'_> {
    fn restart(&mut self) {
        self.len = REPLY_HEADER_LEN;
        self.is_finished = false;
    }

    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len)
    }

    fn body_len(&self) -> usize {
        self.len - REPLY_HEADER_LEN
    }

    fn append(&mut self, bytes: &[u8]) {
        self.is_valid &= self.buffers.write_at(bytes, self.len).is_ok();
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
        self.is_valid &= self.buffers.write_at(header, 0).is_ok();
        self.is_finished = true;
    }
}
