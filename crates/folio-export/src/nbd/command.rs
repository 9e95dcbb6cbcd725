//! The commands: one function each, from a checked request to the bytes of its reply.

use super::client::Client;
use super::handshake::NegotiatedMode;
use super::protocol::{
    ALLOCATION_CONTEXT_ID, Command, CommandFlags, PAYLOAD_BYTES_MAX, PIECE_BYTES, Request,
    STATE_HOLE, STATE_ZERO, chunk, error, error_number,
};
use super::reply_queue::{ContentChunk, ReplyQueue};

use folio::block::{Allocation, Device};
use folio::{Errno, Error, Result};
use std::borrow::Cow;
use std::io;

/// Shortest read, in bytes, that looks for holes; for less that costs more than it saves.
const HOLE_SEARCH_BYTES_MIN: u32 = 16 << 10;
/// Queued bytes from which on the chunks of a long read are sent.
const SEND_BYTES: usize = 256 << 10;
/// Most extents of one reply.
const EXTENTS_MAX: usize = 8192;
/// Most extents examined to find out whether a range is zero already.
const ZERO_EXTENTS_MAX: usize = 64;

/// An error reply to a request.
#[derive(Debug)]
pub(crate) struct ErrorReply {
    number: u32,
    message: Cow<'static, str>,
}

impl ErrorReply {
    fn new(number: u32, message: &'static str) -> Self {
        Self {
            number,
            message: Cow::Borrowed(message),
        }
    }
}

/// A failed command.
enum CommandError {
    /// The request is refused; the client gets this reply.
    Refused(ErrorReply),
    /// The device failed; client and operator are informed.
    Device(Error),
    /// The stream cannot carry a reply any more.
    Stream(io::Error),
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// The buffers that a thread keeps from request to request.
#[derive(Default)]
pub(crate) struct WorkBuffers {
    pub(crate) replies: ReplyQueue,
    /// The payload of a write.
    pub(crate) payload: Vec<u8>,
}

/// A request of a client, ready to run.
pub(crate) struct ClientRequest<'a> {
    pub(crate) client: &'a Client,
    pub(crate) mode: NegotiatedMode,
    pub(crate) request: Request,
}

impl ClientRequest<'_> {
    /// Checks that the request is valid and within the disk.
    pub(crate) fn check(&self) -> std::result::Result<(), ErrorReply> {
        let request = &self.request;
        let (command, flags) = (request.command, request.flags);
        let invalid = |why| Err(ErrorReply::new(error::INVAL, why));
        if command == Command::Unknown {
            return invalid("unknown command");
        }
        if !command.flags().contains(flags) {
            return invalid("invalid flag for this command");
        }
        if flags.contains(CommandFlags::DF) && !self.mode.is_structured {
            return invalid("this flag needs structured replies");
        }
        if command.is_change() && self.client.export().is_read_only() {
            return Err(ErrorReply::new(error::PERM, "the export is read-only"));
        }
        if matches!(command, Command::Read | Command::Write)
            && request.len_bytes > PAYLOAD_BYTES_MAX
        {
            return invalid("longer than the largest block size");
        }
        if command == Command::BlockStatus && !self.mode.has_allocation_context {
            return invalid("no metadata context was negotiated");
        }
        if command == Command::BlockStatus && request.len_bytes == 0 {
            return invalid("empty range");
        }
        let len_bytes = self.client.export().device.len_bytes();
        // A flush has no range.
        if command != Command::Flush && request.end().is_none_or(|end| end > len_bytes) {
            let number = match command {
                Command::Write | Command::WriteZeroes => error::NOSPC,
                _ => error::INVAL,
            };
            return Err(ErrorReply::new(number, "beyond the end of the disk"));
        }
        Ok(())
    }

    /// Runs a checked request and queues its reply. Long replies are sent in part.
    ///
    /// # Errors
    /// The stream's, if it cannot carry a reply any more.
    pub(crate) fn run(&self, buffers: &mut WorkBuffers) -> io::Result<()> {
        let WorkBuffers { replies, payload } = buffers;
        let device = &*self.client.export().device;
        let (offset, len_bytes) = (self.request.offset, u64::from(self.request.len_bytes));
        let result = match self.request.command {
            Command::Read => self.read(replies, device),
            Command::Write => {
                let written = device.write_at(&payload[..self.request.len_bytes as usize], offset);
                self.finish_write(replies, written);
                return Ok(());
            }
            Command::Trim => self.finish_change(replies, device.discard(offset, len_bytes)),
            Command::WriteZeroes => self.write_zeroes(replies, device),
            Command::Flush => device
                .flush()
                .map(|()| self.push_success(replies))
                .map_err(CommandError::from),
            Command::Cache => self.cache(replies, device),
            Command::BlockStatus => self.block_status(replies, device),
            // The caller handles both.
            Command::Disconnect | Command::Unknown => Ok(()),
        };
        self.reply_to_error(replies, result)
    }

    /// Queues the reply to a write that was passed to the device.
    pub(crate) fn finish_write(&self, replies: &mut ReplyQueue, written: Result<()>) {
        let result = self.finish_change(replies, written);
        // Nothing is sent here, so the stream cannot fail.
        let _ = self.reply_to_error(replies, result);
    }

    /// Queues an error reply.
    pub(crate) fn push_error(&self, replies: &mut ReplyQueue, error: &ErrorReply) {
        if self.mode.is_structured {
            replies.push_error(self.request.cookie, error.number, &error.message);
        } else {
            replies.push_simple(self.request.cookie, error.number);
        }
    }

    /// Turns a failed command into an error reply.
    fn reply_to_error(
        &self,
        replies: &mut ReplyQueue,
        result: std::result::Result<(), CommandError>,
    ) -> io::Result<()> {
        let reply = match result {
            Ok(()) => return Ok(()),
            Err(CommandError::Stream(error)) => return Err(error),
            Err(CommandError::Refused(reply)) => reply,
            Err(CommandError::Device(error)) => {
                self.client.report(&error);
                // The full error names files of the host, which the client must not learn.
                let message = io::Error::from(error.errno()).to_string();
                ErrorReply {
                    number: error_number(error.errno()),
                    message: Cow::Owned(message),
                }
            }
        };
        self.push_error(replies, &reply);
        Ok(())
    }

    /// Queues a successful reply without data.
    fn push_success(&self, replies: &mut ReplyQueue) {
        if self.mode.is_structured && self.request.command == Command::Read {
            replies.push_none(self.request.cookie);
        } else {
            replies.push_simple(self.request.cookie, 0);
        }
    }

    /// Ends a change: flushes the device if the request has FUA, then queues the reply.
    fn finish_change(
        &self,
        replies: &mut ReplyQueue,
        changed: Result<()>,
    ) -> std::result::Result<(), CommandError> {
        changed?;
        // The whole device: it cannot flush a range.
        if self.request.flags.contains(CommandFlags::FUA) {
            self.client.export().device.flush()?;
        }
        self.push_success(replies);
        Ok(())
    }

    fn read(
        &self,
        replies: &mut ReplyQueue,
        device: &dyn Device,
    ) -> std::result::Result<(), CommandError> {
        let Request {
            cookie,
            offset,
            len_bytes,
            ..
        } = self.request;
        let (len, end) = (len_bytes as usize, offset + u64::from(len_bytes));
        if len == 0 {
            self.push_success(replies);
            return Ok(());
        }
        if !self.mode.is_structured || self.request.flags.contains(CommandFlags::DF) {
            if len > PIECE_BYTES {
                return self.read_long(replies, device);
            }
            let fill = |data: &mut [u8]| device.read_at(data, offset);
            if self.mode.is_structured {
                let whole = ContentChunk {
                    flags: chunk::DONE,
                    cookie,
                    offset,
                };
                replies.push_data(whole, len, len, fill)?;
            } else {
                replies.push_simple_data(cookie, len, fill)?;
            }
            return Ok(());
        }
        let mut at = offset;
        while at < end {
            if replies.len() >= SEND_BYTES {
                replies.send(self.client)?;
            }
            let (kind, count) = if len_bytes >= HOLE_SEARCH_BYTES_MIN {
                device.allocation(at, end - at)?
            } else {
                (Allocation::Data, end - at)
            };
            let mut count = count.clamp(1, end - at);
            if kind == Allocation::Data {
                count = count.min(PIECE_BYTES as u64);
            }
            let flags = if at + count == end { chunk::DONE } else { 0 };
            let header = ContentChunk {
                flags,
                cookie,
                offset: at,
            };
            match kind {
                Allocation::Data => {
                    let count = count as usize;
                    replies.push_data(header, count, count, |data| device.read_at(data, at))?;
                }
                Allocation::Hole | Allocation::Zero => replies.push_hole(header, count as u32),
            }
            at += count;
        }
        Ok(())
    }

    /// Runs a long read whose reply is one chunk: sends it in pieces, and no other reply between.
    fn read_long(
        &self,
        replies: &mut ReplyQueue,
        device: &dyn Device,
    ) -> std::result::Result<(), CommandError> {
        let Request {
            cookie,
            offset,
            len_bytes,
            ..
        } = self.request;
        let len = len_bytes as usize;
        // Replies that wait must not be held back by the reads below.
        replies.send(self.client)?;
        // Read before the lock: until its header is sent, a failed reply can be an error.
        let fill = |data: &mut [u8]| device.read_at(data, offset);
        if self.mode.is_structured {
            let header = ContentChunk {
                flags: 0,
                cookie,
                offset,
            };
            replies.push_data(header, PIECE_BYTES, len, fill)?;
        } else {
            replies.push_simple_data(cookie, PIECE_BYTES, fill)?;
        }
        // Held to the end: all pieces are one chunk (invariant 3).
        let _output = self.client.lock_output();
        replies.send_locked(&self.client.stream)?;
        let mut done = PIECE_BYTES;
        let mut read = Ok(());
        while done < len {
            let count = (len - done).min(PIECE_BYTES);
            let piece = replies.spare(count);
            if read.is_ok() {
                read = device.read_at(piece, offset + done as u64);
            }
            match &read {
                Ok(()) => {}
                // The announced bytes have to follow; an error chunk after them marks the failure.
                Err(_) if self.mode.is_structured => piece.fill(0),
                // A simple reply has room for an error in its header only, and that is sent.
                Err(error) => {
                    self.client.report(error);
                    return Err(CommandError::Stream(io::ErrorKind::Other.into()));
                }
            }
            replies.commit(count);
            replies.send_locked(&self.client.stream)?;
            done += count;
        }
        read?;
        if self.mode.is_structured {
            replies.push_none(cookie);
        }
        Ok(())
    }

    fn write_zeroes(
        &self,
        replies: &mut ReplyQueue,
        device: &dyn Device,
    ) -> std::result::Result<(), CommandError> {
        let Request {
            flags,
            offset,
            len_bytes,
            ..
        } = self.request;
        if flags.contains(CommandFlags::FAST_ZERO) {
            // A device does not report how long zeroing takes. Only a range that is zero already
            // is certain to be fast.
            if !self.is_zero(device)? {
                let why = "not known to be faster than a write";
                return Err(CommandError::Refused(ErrorReply::new(error::NOTSUP, why)));
            }
            return self.finish_change(replies, Ok(()));
        }
        let zeroed = if flags.contains(CommandFlags::NO_HOLE) {
            device.write_allocated_zeroes(offset, len_bytes.into())
        } else {
            device.write_zeroes(offset, len_bytes.into())
        };
        self.finish_change(replies, zeroed)
    }

    /// Returns whether the range is known to be zero, and allocated if the request has NO_HOLE.
    fn is_zero(&self, device: &dyn Device) -> Result<bool> {
        let Request {
            flags,
            offset,
            len_bytes,
            ..
        } = self.request;
        let end = offset + u64::from(len_bytes);
        let mut at = offset;
        for _ in 0..ZERO_EXTENTS_MAX {
            if at >= end {
                return Ok(true);
            }
            let (kind, count) = device.allocation(at, end - at)?;
            match kind {
                Allocation::Zero => {}
                Allocation::Hole if !flags.contains(CommandFlags::NO_HOLE) => {}
                Allocation::Hole | Allocation::Data => return Ok(false),
            }
            at += count.max(1);
        }
        Ok(at >= end)
    }

    /// Reads the range and drops the data, so that the host caches it.
    fn cache(
        &self,
        replies: &mut ReplyQueue,
        device: &dyn Device,
    ) -> std::result::Result<(), CommandError> {
        let Request {
            offset, len_bytes, ..
        } = self.request;
        let mut done = 0;
        while done < u64::from(len_bytes) {
            // A long request must not hold up a stop.
            if self.client.server.stopper.is_stopping() {
                break;
            }
            let count = (u64::from(len_bytes) - done).min(PIECE_BYTES as u64);
            device.read_at(replies.spare(count as usize), offset + done)?;
            done += count;
        }
        self.push_success(replies);
        Ok(())
    }

    fn block_status(
        &self,
        replies: &mut ReplyQueue,
        device: &dyn Device,
    ) -> std::result::Result<(), CommandError> {
        let Request {
            cookie,
            flags,
            offset,
            len_bytes,
            ..
        } = self.request;
        let start = replies.begin_status(ALLOCATION_CONTEXT_ID);
        let extents_max = if flags.contains(CommandFlags::REQ_ONE) {
            1
        } else {
            EXTENTS_MAX
        };
        if let Err(error) = extents(device, offset, len_bytes, extents_max, |len, state| {
            replies.push_extent(len, state)
        }) {
            // The error reply takes the place of the chunk.
            replies.truncate(start);
            return Err(error.into());
        }
        replies.end_status(start, cookie);
        Ok(())
    }
}

/// Passes length and state of each extent of a range to `push`, with adjacent extents of one state
/// merged. Stops after `extents_max` extents.
fn extents(
    device: &dyn Device,
    offset: u64,
    len_bytes: u32,
    extents_max: usize,
    mut push: impl FnMut(u32, u32),
) -> Result<()> {
    let end = offset
        .checked_add(u64::from(len_bytes))
        .ok_or(Errno::INVAL)?;
    let (mut at, mut pushed) = (offset, 0);
    let mut merged: Option<(u32, u32)> = None;
    // Merged extents do not count against `extents_max`, so the steps have a limit of their own.
    for _ in 0..EXTENTS_MAX * 2 {
        if at >= end || pushed == extents_max {
            break;
        }
        let (kind, count) = device.allocation(at, end - at)?;
        // Within the range, whose length is a u32.
        let count = count.clamp(1, end - at) as u32;
        let state = match kind {
            Allocation::Data => 0,
            Allocation::Hole => STATE_HOLE | STATE_ZERO,
            Allocation::Zero => STATE_ZERO,
        };
        merged = match merged {
            Some((len, same)) if same == state => Some((len + count, state)),
            Some((len, other)) => {
                push(len, other);
                pushed += 1;
                Some((count, state))
            }
            None => Some((count, state)),
        };
        at += u64::from(count);
    }
    if let Some((len, state)) = merged.filter(|_| pushed < extents_max) {
        push(len, state);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, IoSliceMut};

    /// A device with a repeated pattern of 512-byte blocks: data, hole, zero, zero.
    struct Striped;

    impl Device for Striped {
        fn len_bytes(&self) -> u64 {
            u64::MAX
        }
        fn is_read_only(&self) -> bool {
            true
        }
        fn read_vectored_at(&self, _: &mut [IoSliceMut<'_>], _: u64) -> Result<()> {
            Err(Errno::IO.into())
        }
        fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> Result<()> {
            Err(Errno::ROFS.into())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> Result<()> {
            Err(Errno::ROFS.into())
        }
        fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
            Err(Errno::ROFS.into())
        }
        fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
            let kind = match offset / 512 % 4 {
                0 => Allocation::Data,
                1 => Allocation::Hole,
                _ => Allocation::Zero,
            };
            Ok((kind, (512 - offset % 512).min(len_bytes)))
        }
    }

    fn collect_extents(offset: u64, len_bytes: u32, extents_max: usize) -> Vec<(u32, u32)> {
        let mut pushed = Vec::new();
        extents(&Striped, offset, len_bytes, extents_max, |len, state| {
            pushed.push((len, state))
        })
        .unwrap();
        pushed
    }

    #[test]
    fn adjacent_extents_of_one_state_merge() {
        assert_eq!(
            collect_extents(100, 2000, 100),
            [(412, 0), (512, 3), (1024, 2), (52, 0)]
        );
        assert_eq!(collect_extents(1024, 4096, 1), [(1024, 2)]);
        assert_eq!(collect_extents(1024, 600, 1), [(600, 2)]);
        assert_eq!(collect_extents(0, 5, 1), [(5, 0)]);
    }

    #[test]
    fn reply_has_at_most_the_allowed_extents() {
        let extents = collect_extents(u64::from(u32::MAX) + 1, u32::MAX, EXTENTS_MAX);
        assert_eq!(extents.len(), EXTENTS_MAX);
    }
}
