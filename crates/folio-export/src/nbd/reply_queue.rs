//! The replies of one thread that are not sent yet, encoded in place: data is read from the device
//! straight into the queue.

use super::client::Client;
use super::protocol::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk};
use folio::Result;
use folio_net::Stream;
use std::io;

const CHUNK_HEADER_BYTES: usize = 20;
/// Header of a chunk with content: the chunk's own header and the content's offset.
const CONTENT_HEADER_BYTES: usize = CHUNK_HEADER_BYTES + 8;
/// Longest error message, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Encoded replies for one client.
#[derive(Default)]
pub(crate) struct ReplyQueue {
    /// Never shrinks, so that no byte is cleared twice.
    bytes: Vec<u8>,
    len: usize,
}

/// The header of a chunk with content of the device, or with a hole.
#[derive(Clone, Copy)]
pub(crate) struct ContentChunk {
    pub(crate) flags: u16,
    pub(crate) cookie: u64,
    /// The offset in the device.
    pub(crate) offset: u64,
}

impl ReplyQueue {
    /// Returns the number of bytes to send.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Drops all but the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the next `count` bytes, to be filled. They are sent only after
    /// [`ReplyQueue::commit`].
    pub(crate) fn spare(&mut self, count: usize) -> &mut [u8] {
        let end = self.len + count;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(4096), 0);
        }
        &mut self.bytes[self.len..end]
    }

    /// Appends the first `count` spare bytes to those that are sent.
    pub(crate) fn commit(&mut self, count: usize) {
        self.len += count;
    }

    /// Appends `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.spare(bytes.len()).copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Sends all queued bytes.
    pub(crate) fn send(&mut self, client: &Client) -> io::Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let _output = client.lock_output();
        self.send_locked(&client.stream)
    }

    /// Sends all queued bytes; the caller holds the connection's output lock.
    pub(crate) fn send_locked(&mut self, stream: &Stream) -> io::Result<()> {
        // Also if the write fails: a part may be sent, and must not be sent again.
        let len = std::mem::take(&mut self.len);
        stream.write_all(&self.bytes[..len])
    }

    /// Appends a simple reply; `error` is 0 for success.
    pub(crate) fn push_simple(&mut self, cookie: u64, error: u32) {
        let mut header = [0; 16];
        encode_simple_header(&mut header, cookie, error);
        self.push(&header);
    }

    /// Appends a successful simple reply with `count` bytes of data, which `fill` reads.
    ///
    /// # Errors
    /// The error of `fill`; the queue is unchanged.
    pub(crate) fn push_simple_data(
        &mut self,
        cookie: u64,
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (header, data) = self.spare(16 + count).split_at_mut(16);
        // Data before the header: after a failure nothing is committed.
        fill(data)?;
        encode_simple_header(header, cookie, 0);
        self.commit(16 + count);
        Ok(())
    }

    /// Appends an empty chunk that ends a reply.
    pub(crate) fn push_none(&mut self, cookie: u64) {
        let header = chunk_header(chunk::DONE, chunk::NONE, cookie, 0);
        self.push(&header);
    }

    /// Appends a chunk of data. `fill` reads its first `count` bytes; the caller appends the rest,
    /// `total` bytes in all.
    ///
    /// # Errors
    /// The error of `fill`; the queue is unchanged.
    pub(crate) fn push_data(
        &mut self,
        at: ContentChunk,
        count: usize,
        total: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (header, data) = self
            .spare(CONTENT_HEADER_BYTES + count)
            .split_at_mut(CONTENT_HEADER_BYTES);
        // Data before the header: after a failure nothing is committed.
        fill(data)?;
        // `total` is at most a request's length, 32 MiB.
        header[..CHUNK_HEADER_BYTES].copy_from_slice(&chunk_header(
            at.flags,
            chunk::OFFSET_DATA,
            at.cookie,
            total as u32 + 8,
        ));
        header[CHUNK_HEADER_BYTES..].copy_from_slice(&at.offset.to_be_bytes());
        self.commit(CONTENT_HEADER_BYTES + count);
        Ok(())
    }

    /// Appends a chunk that represents zeros.
    pub(crate) fn push_hole(&mut self, at: ContentChunk, len_bytes: u32) {
        self.push(&chunk_header(at.flags, chunk::OFFSET_HOLE, at.cookie, 12));
        self.push(&at.offset.to_be_bytes());
        self.push(&len_bytes.to_be_bytes());
    }

    /// Appends an error with a message, as the reply's last chunk.
    pub(crate) fn push_error(&mut self, cookie: u64, error: u32, message: &str) {
        let message = &message.as_bytes()[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        self.push(&chunk_header(
            chunk::DONE,
            chunk::ERROR,
            cookie,
            6 + message.len() as u32,
        ));
        self.push(&error.to_be_bytes());
        self.push(&(message.len() as u16).to_be_bytes());
        self.push(message);
    }

    /// Begins a chunk of extents; returns its position for [`ReplyQueue::end_status`].
    pub(crate) fn begin_status(&mut self, context: u32) -> usize {
        let start = self.len;
        self.push(&[0; CHUNK_HEADER_BYTES]);
        self.push(&context.to_be_bytes());
        start
    }

    /// Appends one extent to the chunk.
    pub(crate) fn push_extent(&mut self, len_bytes: u32, state: u32) {
        self.push(&len_bytes.to_be_bytes());
        self.push(&state.to_be_bytes());
    }

    /// Ends the chunk of extents that began at `start`, and with it the reply.
    pub(crate) fn end_status(&mut self, start: usize, cookie: u64) {
        let payload = self.len - start - CHUNK_HEADER_BYTES;
        let header = chunk_header(chunk::DONE, chunk::BLOCK_STATUS, cookie, payload as u32);
        self.bytes[start..start + CHUNK_HEADER_BYTES].copy_from_slice(&header);
    }
}

fn encode_simple_header(header: &mut [u8], cookie: u64, error: u32) {
    header[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
}

fn chunk_header(flags: u16, kind: u16, cookie: u64, len_bytes: u32) -> [u8; CHUNK_HEADER_BYTES] {
    let mut header = [0; CHUNK_HEADER_BYTES];
    header[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&len_bytes.to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_fill_appends_nothing() {
        let mut queue = ReplyQueue::default();
        queue.push_simple(7, 0);
        let at = |offset| ContentChunk {
            flags: chunk::DONE,
            cookie: 8,
            offset,
        };
        let fail = |_: &mut [u8]| Err(folio::Errno::IO.into());
        assert!(queue.push_data(at(0), 512, 512, fail).is_err());
        assert!(queue.push_simple_data(8, 512, fail).is_err());
        assert_eq!(queue.len(), 16);
        let fill = |data: &mut [u8]| {
            data.fill(3);
            Ok(())
        };
        queue.push_data(at(4096), 512, 512, fill).unwrap();
        assert_eq!(queue.len(), 16 + 28 + 512);
        assert_eq!(
            queue.bytes[16 + 16..16 + 28],
            [0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 16, 0]
        );
        assert!(
            queue.bytes[16 + 28..16 + 28 + 512]
                .iter()
                .all(|byte| *byte == 3)
        );
    }

    #[test]
    fn status_chunk_has_its_length() {
        let mut queue = ReplyQueue::default();
        queue.push_simple(1, 0);
        let start = queue.begin_status(1);
        queue.push_extent(4096, 3);
        queue.push_extent(512, 0);
        queue.end_status(start, 9);
        assert_eq!(
            queue.bytes[start + 16..start + 24],
            [0, 0, 0, 20, 0, 0, 0, 1]
        );
        queue.truncate(start);
        assert_eq!(queue.len(), 16);
    }
}
