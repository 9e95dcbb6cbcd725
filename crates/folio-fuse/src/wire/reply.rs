//! The reply's buffer: the body piece by piece, the header once length and result are known.

use super::abi::OutHeader;
use folio::Result;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of data in one read or write; the kernel's own limit is 256 pages
/// (`fs.fuse.max_pages_limit`).
pub const TRANSFER_MAX: usize = 1 << 20;
/// Largest reply body in bytes.
pub const REPLY_BODY_MAX: usize = TRANSFER_MAX;
/// Bytes of the header of every reply: the least room that a transport must have.
pub const REPLY_HEADER_LEN: usize = size_of::<OutHeader>();

/// A buffer for one reply. Each transport implements it: a vector for streams, the guest's buffers
/// for virtiofs.
///
/// The body is written first, after room for the header; [`Reply::finish`] comes last and writes
/// the header.
pub trait Reply {
    /// Discards the body; room for the header is kept.
    fn restart(&mut self);

    /// Returns the bytes of body that still fit.
    fn room(&self) -> usize;

    /// Returns the bytes of body that are written.
    fn body_len(&self) -> usize;

    /// Appends to the body; never called with more bytes than fit.
    fn append(&mut self, bytes: &[u8]);

    /// Appends at most `len_bytes`, which `read` copies into the buffer it receives. Ends when
    /// `read` returns fewer bytes than the buffer holds. Never called with more than fit. Returns
    /// the bytes appended.
    ///
    /// # Errors
    /// Those of `read`.
    fn fill(
        &mut self,
        len_bytes: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize>;

    /// Writes the header before the body.
    fn finish(&mut self, header: &[u8]);
}

/// A whole reply in memory, reusable: its buffer grows to the longest reply and is not cleared.
#[derive(Debug, Default)]
pub struct Message {
    buffer: Vec<u8>,
    len: usize,
}

impl Message {
    /// Returns header and body.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Returns the reply's error number; 0 for none.
    pub(crate) fn errno(&self) -> i32 {
        OutHeader::read_from_prefix(self.bytes()).map_or(0, |(header, _)| -header.error)
    }

    /// Returns the next `len_bytes` of the buffer.
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
        self.spare(REPLY_HEADER_LEN);
        self.len = REPLY_HEADER_LEN;
    }

    fn room(&self) -> usize {
        (REPLY_HEADER_LEN + REPLY_BODY_MAX).saturating_sub(self.len)
    }

    fn body_len(&self) -> usize {
        self.len.saturating_sub(REPLY_HEADER_LEN)
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
        self.buffer[..REPLY_HEADER_LEN].copy_from_slice(header);
    }
}

/// Completes a reply: for `errno` 0 with the body written so far, else without a body.
pub(crate) fn finish(reply: &mut dyn Reply, unique: u64, errno: i32) {
    if errno != 0 {
        reply.restart();
    }
    let len = REPLY_HEADER_LEN + reply.body_len();
    let header = OutHeader {
        len: len as u32,
        error: -errno,
        unique,
    };
    reply.finish(header.as_bytes());
}
