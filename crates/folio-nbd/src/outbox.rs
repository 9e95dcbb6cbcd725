//! Replies of one thread that wait to be sent, as the bytes that go: nothing is copied on their
//! way.

use crate::connection::Client;
use crate::listener::Stream;
use crate::protocol::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk};
use folio::Result;
use std::io;

const CHUNK_BYTES: usize = 20;
/// A chunk's head and the offset that content begins with.
const CONTENT_BYTES: usize = CHUNK_BYTES + 8;
/// Longest explanation of an error.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes for one client.
#[derive(Default)]
pub(crate) struct Outbox {
    /// As long as was ever needed, so that nothing is cleared twice.
    bytes: Vec<u8>,
    len: usize,
}

impl Outbox {
    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Forgets what lies behind the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The next `count` bytes, which do not count until [`Outbox::take`].
    pub(crate) fn room(&mut self, count: usize) -> &mut [u8] {
        let end = self.len + count;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(4096), 0);
        }
        &mut self.bytes[self.len..end]
    }

    /// Makes room into bytes that wait.
    pub(crate) fn take(&mut self, count: usize) {
        self.len += count;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.take(bytes.len());
    }

    /// Sends everything.
    pub(crate) fn send(&mut self, client: &Client) -> io::Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let _one_at_a_time = client.output.lock();
        self.send_locked(&client.stream)
    }

    /// Sends everything; the caller holds the connection's output.
    pub(crate) fn send_locked(&mut self, stream: &Stream) -> io::Result<()> {
        let len = std::mem::take(&mut self.len);
        stream.write_all(&self.bytes[..len])
    }

    /// A simple reply; `error` is 0 for success.
    pub(crate) fn simple(&mut self, cookie: u64, error: u32) {
        let mut head = [0; 16];
        simple_head(&mut head, cookie, error);
        self.push(&head);
    }

    /// A simple reply with bytes that `fill` gets.
    pub(crate) fn simple_data(
        &mut self,
        cookie: u64,
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (head, data) = self.room(16 + count).split_at_mut(16);
        fill(data)?;
        simple_head(head, cookie, 0);
        self.take(16 + count);
        Ok(())
    }

    /// The last chunk of a reply that has said everything.
    pub(crate) fn none(&mut self, cookie: u64) {
        let head = chunk_head(chunk::DONE, chunk::NONE, cookie, 0);
        self.push(&head);
    }

    /// A chunk of bytes that `fill` gets; `total` is how many the chunk will have, of which these
    /// are the first.
    pub(crate) fn data(
        &mut self,
        (flags, cookie): (u16, u64),
        offset: u64,
        (count, total): (usize, usize),
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (head, data) = self.room(CONTENT_BYTES + count).split_at_mut(CONTENT_BYTES);
        fill(data)?;
        // At most a request's length, which is a u32, and 8.
        head[..CHUNK_BYTES].copy_from_slice(&chunk_head(
            flags,
            chunk::OFFSET_DATA,
            cookie,
            total as u32 + 8,
        ));
        head[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
        self.take(CONTENT_BYTES + count);
        Ok(())
    }

    /// A chunk that stands for zeros.
    pub(crate) fn hole(&mut self, (flags, cookie): (u16, u64), offset: u64, len_bytes: u32) {
        self.push(&chunk_head(flags, chunk::OFFSET_HOLE, cookie, 12));
        self.push(&offset.to_be_bytes());
        self.push(&len_bytes.to_be_bytes());
    }

    /// An error, and why, as the reply's last chunk.
    pub(crate) fn error(&mut self, cookie: u64, error: u32, message: &str) {
        let message = &message.as_bytes()[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        self.push(&chunk_head(
            chunk::DONE,
            chunk::ERROR,
            cookie,
            6 + message.len() as u32,
        ));
        self.push(&error.to_be_bytes());
        self.push(&(message.len() as u16).to_be_bytes());
        self.push(message);
    }

    /// Begins a chunk of extents; gives back where.
    pub(crate) fn begin_status(&mut self, context: u32) -> usize {
        let start = self.len;
        self.push(&[0; CHUNK_BYTES]);
        self.push(&context.to_be_bytes());
        start
    }

    /// One extent.
    pub(crate) fn extent(&mut self, len_bytes: u32, state: u32) {
        self.push(&len_bytes.to_be_bytes());
        self.push(&state.to_be_bytes());
    }

    /// Ends the chunk of extents that began at `start`, which is the reply.
    pub(crate) fn end_status(&mut self, start: usize, cookie: u64) {
        let payload = self.len - start - CHUNK_BYTES;
        let head = chunk_head(chunk::DONE, chunk::BLOCK_STATUS, cookie, payload as u32);
        self.bytes[start..start + CHUNK_BYTES].copy_from_slice(&head);
    }
}

fn simple_head(head: &mut [u8], cookie: u64, error: u32) {
    head[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&error.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
}

fn chunk_head(flags: u16, kind: u16, cookie: u64, len_bytes: u32) -> [u8; CHUNK_BYTES] {
    let mut head = [0; CHUNK_BYTES];
    head[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..].copy_from_slice(&len_bytes.to_be_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_filled_leaves_no_trace() {
        let mut outbox = Outbox::default();
        outbox.simple(7, 0);
        let refuse = |_: &mut [u8]| Err(folio::Errno::IO.into());
        assert!(
            outbox
                .data((chunk::DONE, 8), 0, (512, 512), refuse)
                .is_err()
        );
        assert!(outbox.simple_data(8, 512, refuse).is_err());
        assert_eq!(outbox.len(), 16);
        let fill = |data: &mut [u8]| {
            data.fill(3);
            Ok(())
        };
        outbox
            .data((chunk::DONE, 8), 4096, (512, 512), fill)
            .unwrap();
        assert_eq!(outbox.len(), 16 + 28 + 512);
        assert_eq!(
            outbox.bytes[16 + 16..16 + 28],
            [0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 16, 0]
        );
        assert!(
            outbox.bytes[16 + 28..16 + 28 + 512]
                .iter()
                .all(|byte| *byte == 3)
        );
    }

    #[test]
    fn a_status_tells_its_length() {
        let mut outbox = Outbox::default();
        outbox.simple(1, 0);
        let start = outbox.begin_status(1);
        outbox.extent(4096, 3);
        outbox.extent(512, 0);
        outbox.end_status(start, 9);
        assert_eq!(
            outbox.bytes[start + 16..start + 24],
            [0, 0, 0, 20, 0, 0, 0, 1]
        );
        outbox.truncate(start);
        assert_eq!(outbox.len(), 16);
    }
}
