//! Where a reply goes: the body piece by piece, the header once its length and outcome are known.

use super::abi::OutHeader;
use folio::Result;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the header of every reply.
pub(super) const HEADER_LEN: usize = size_of::<OutHeader>();

/// Where a reply goes. What carries it implements this: a vector for streams, a guest's buffers for
/// virtiofs.
///
/// The body is written first, from where the header ends; [`Reply::finish`] comes last and puts the
/// header before it.
pub trait Reply {
    /// Forgets what was written; room for the header is kept.
    fn restart(&mut self);

    /// Bytes of a body that still fit.
    fn room(&self) -> usize;

    /// Bytes of the body that are written.
    fn body_len(&self) -> usize;

    /// Appends to the body; never called with more bytes than fit.
    fn append(&mut self, bytes: &[u8]);

    /// Appends at most `len_bytes` that `read` puts into the buffer it is given, until it puts in
    /// fewer than the buffer holds; never called with more than fit. Returns how many were
    /// appended.
    fn fill(
        &mut self,
        len_bytes: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize>;

    /// Puts the header before the body.
    fn finish(&mut self, header: &[u8]);
}

/// A whole reply in memory, to be used again and again: its buffer grows as far as replies do and
/// is not cleared.
#[derive(Debug, Default)]
pub struct Message {
    buffer: Vec<u8>,
    len: usize,
}

impl Message {
    /// The message: header and body.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The error that the message tells; 0 for none.
    pub(crate) fn errno(&self) -> i32 {
        OutHeader::read_from_prefix(self.bytes()).map_or(0, |(header, _)| -header.error)
    }

    /// The next `len_bytes` of the buffer.
    fn spare(&mut self, len_bytes: usize) -> &mut [u8] {
        let end = self.len + len_bytes;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.len..end]
    }
}

impl Reply for Message {
    fn restart(&mut self) {
        self.len = 0;
        self.spare(HEADER_LEN);
        self.len = HEADER_LEN;
    }

    fn room(&self) -> usize {
        (HEADER_LEN + super::REPLY_BODY_MAX).saturating_sub(self.len)
    }

    fn body_len(&self) -> usize {
        self.len.saturating_sub(HEADER_LEN)
    }

    fn append(&mut self, bytes: &[u8]) {
        self.spare(bytes.len()).copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn fill(
        &mut self,
        len_bytes: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let count = read(self.spare(len_bytes))?.min(len_bytes);
        self.len += count;
        Ok(count)
    }

    fn finish(&mut self, header: &[u8]) {
        self.buffer[..HEADER_LEN].copy_from_slice(header);
    }
}

/// Ends a reply: `errno` 0 with the body written so far, another one with none.
pub(super) fn finish(reply: &mut dyn Reply, unique: u64, errno: i32) {
    if errno != 0 {
        reply.restart();
    }
    let len = HEADER_LEN + reply.body_len();
    let header = OutHeader {
        len: len as u32,
        error: -errno,
        unique,
    };
    reply.finish(header.as_bytes());
}
