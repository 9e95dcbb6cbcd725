//! The commands: one function each, from a checked request to the bytes of its reply.

use crate::connection::{Client, Worker};
use crate::handshake::Mode;
use crate::outbox::Outbox;
use crate::protocol::{
    ALLOCATION_CONTEXT_ID, Command, CommandFlags, Request, STATE_HOLE, STATE_ZERO, chunk, error,
    error_of,
};
use crate::{PAYLOAD_BYTES_MAX, PIECE_BYTES};
use folio::block::{Allocation, Device};
use folio::{Errno, Error, Result};
use std::borrow::Cow;
use std::io::{self, IoSlice};

/// A read looks for holes from this length on; for less it costs more than it saves.
const HOLE_SEARCH_BYTES_MIN: u32 = 16 << 10;
/// Chunks wait for others until they are so many bytes.
const SEND_BYTES: usize = 256 << 10;
/// Most extents of one reply.
const EXTENTS_MAX: usize = 8192;
/// Most extents that are looked at to tell whether zeros are there already.
const ZERO_EXTENTS_MAX: usize = 64;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A request that is not done, and why.
#[derive(Debug)]
pub(crate) struct Failure {
    number: u32,
    message: Cow<'static, str>,
}

impl Failure {
    fn new(number: u32, message: &'static str) -> Self {
        Self {
            number,
            message: Cow::Borrowed(message),
        }
    }
}

/// Why a command has no more to say.
enum Trouble {
    /// It failed; the client is told.
    Failed(Failure),
    /// The device failed; the operator is told, too.
    Device(Error),
    /// There is no way to tell the client.
    Broken(io::Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// One request of a client.
pub(crate) struct Call<'a> {
    pub(crate) client: &'a Client,
    pub(crate) mode: Mode,
    pub(crate) request: Request,
}

impl Call<'_> {
    /// Whether the request keeps to the rules and lies inside the disk.
    pub(crate) fn check(&self) -> std::result::Result<(), Failure> {
        let request = &self.request;
        let (command, flags) = (request.command, request.flags);
        let invalid = |why| Err(Failure::new(error::INVAL, why));
        if command == Command::Unknown {
            return invalid("unknown command");
        }
        if !command.flags().contains(flags) {
            return invalid("a flag that this command does not have");
        }
        if flags.contains(CommandFlags::DF) && !self.mode.is_structured {
            return invalid("this flag needs structured replies");
        }
        if command.changes() && self.client.export().is_read_only() {
            return Err(Failure::new(error::PERM, "the export is read-only"));
        }
        if matches!(command, Command::Read | Command::Write)
            && request.len_bytes > PAYLOAD_BYTES_MAX
        {
            return invalid("longer than the largest block size");
        }
        if command == Command::BlockStatus && !self.mode.has_allocation {
            return invalid("no metadata context was agreed upon");
        }
        if command == Command::BlockStatus && request.len_bytes == 0 {
            return invalid("a range of no bytes");
        }
        let len_bytes = self.client.export().device.len_bytes();
        if command != Command::Flush && request.end().is_none_or(|end| end > len_bytes) {
            let number = match command {
                Command::Write | Command::WriteZeroes => error::NOSPC,
                _ => error::INVAL,
            };
            return Err(Failure::new(number, "beyond the end of the disk"));
        }
        Ok(())
    }

    /// Does what a checked request asks for and puts the reply into the outbox, or sends the first
    /// part of it.
    pub(crate) fn answer(&self, worker: &mut Worker) -> io::Result<()> {
        let Worker { outbox, payload } = worker;
        let device = &*self.client.export().device;
        let (offset, len_bytes) = (self.request.offset, u64::from(self.request.len_bytes));
        let answered = match self.request.command {
            Command::Read => self.read(outbox, device),
            Command::Write => {
                let written = device.write_at(&payload[..self.request.len_bytes as usize], offset);
                self.finish_write(outbox, written);
                return Ok(());
            }
            Command::Trim => self.durable(outbox, device.discard(offset, len_bytes)),
            Command::WriteZeroes => self.write_zeroes(outbox, device),
            Command::Flush => device
                .flush()
                .map(|()| self.done(outbox))
                .map_err(Trouble::from),
            Command::Cache => self.cache(outbox, device),
            Command::BlockStatus => self.block_status(outbox, device),
            // Neither comes this far.
            Command::Disconnect | Command::Unknown => Ok(()),
        };
        self.conclude(outbox, answered)
    }

    /// Answers a write whose bytes the device was given.
    pub(crate) fn finish_write(&self, outbox: &mut Outbox, written: Result<()>) {
        let answered = self.durable(outbox, written);
        // Nothing was sent here, so nothing is broken.
        let _ = self.conclude(outbox, answered);
    }

    /// A reply that says what went wrong.
    pub(crate) fn fail(&self, outbox: &mut Outbox, failure: &Failure) {
        match self.mode.is_structured {
            true => outbox.error(self.request.cookie, failure.number, &failure.message),
            false => outbox.simple(self.request.cookie, failure.number),
        }
    }

    fn conclude(
        &self,
        outbox: &mut Outbox,
        answered: std::result::Result<(), Trouble>,
    ) -> io::Result<()> {
        let failure = match answered {
            Ok(()) => return Ok(()),
            Err(Trouble::Broken(error)) => return Err(error),
            Err(Trouble::Failed(failure)) => failure,
            Err(Trouble::Device(error)) => {
                self.client.tell(&error);
                // The whole error names files of the host, which are none of the client's business.
                let message = io::Error::from(error.errno()).to_string();
                Failure {
                    number: error_of(error.errno()),
                    message: Cow::Owned(message),
                }
            }
        };
        self.fail(outbox, &failure);
        Ok(())
    }

    fn done(&self, outbox: &mut Outbox) {
        match self.mode.is_structured && self.request.command == Command::Read {
            true => outbox.none(self.request.cookie),
            false => outbox.simple(self.request.cookie, 0),
        }
    }

    /// The end of a change: flushed, if that was asked for.
    fn durable(
        &self,
        outbox: &mut Outbox,
        changed: Result<()>,
    ) -> std::result::Result<(), Trouble> {
        changed?;
        if self.request.flags.contains(CommandFlags::FUA) {
            self.client.export().device.flush()?;
        }
        self.done(outbox);
        Ok(())
    }

    fn read(&self, outbox: &mut Outbox, device: &dyn Device) -> std::result::Result<(), Trouble> {
        let Request {
            cookie,
            offset,
            len_bytes,
            ..
        } = self.request;
        let (len, end) = (len_bytes as usize, offset + u64::from(len_bytes));
        if len == 0 {
            self.done(outbox);
            return Ok(());
        }
        if !self.mode.is_structured || self.request.flags.contains(CommandFlags::DF) {
            return match (len <= PIECE_BYTES, self.mode.is_structured) {
                (false, _) => self.read_long(outbox, device),
                (true, true) => {
                    let fill = |data: &mut [u8]| device.read_at(data, offset);
                    Ok(outbox.data((chunk::DONE, cookie), offset, (len, len), fill)?)
                }
                (true, false) => {
                    Ok(outbox.simple_data(cookie, len, |data| device.read_at(data, offset))?)
                }
            };
        }
        let mut at = offset;
        while at < end {
            if outbox.len() >= SEND_BYTES {
                outbox.send(self.client)?;
            }
            let (kind, count) = match len_bytes >= HOLE_SEARCH_BYTES_MIN {
                true => device.allocation(at, end - at)?,
                false => (Allocation::Data, end - at),
            };
            let mut count = count.clamp(1, end - at);
            if kind == Allocation::Data {
                count = count.min(PIECE_BYTES as u64);
            }
            let flags = if at + count == end { chunk::DONE } else { 0 };
            match kind {
                Allocation::Data => {
                    let count = count as usize;
                    outbox.data((flags, cookie), at, (count, count), |data| {
                        device.read_at(data, at)
                    })?;
                }
                Allocation::Hole | Allocation::Zero => {
                    outbox.hole((flags, cookie), at, count as u32)
                }
            }
            at += count;
        }
        Ok(())
    }

    /// A long read whose reply must not be taken apart: it is sent in pieces, and nothing else
    /// meanwhile.
    fn read_long(
        &self,
        outbox: &mut Outbox,
        device: &dyn Device,
    ) -> std::result::Result<(), Trouble> {
        let Request {
            cookie,
            offset,
            len_bytes,
            ..
        } = self.request;
        let len = len_bytes as usize;
        outbox.send(self.client)?;
        let fill = |data: &mut [u8]| device.read_at(data, offset);
        match self.mode.is_structured {
            true => outbox.data((0, cookie), offset, (PIECE_BYTES, len), fill)?,
            false => outbox.simple_data(cookie, PIECE_BYTES, fill)?,
        }
        let _one_at_a_time = self.client.output.lock();
        outbox.send_locked(&self.client.stream)?;
        let mut done = PIECE_BYTES;
        let mut read = Ok(());
        while done < len {
            let count = (len - done).min(PIECE_BYTES);
            let piece = outbox.room(count);
            if read.is_ok() {
                read = device.read_at(piece, offset + done as u64);
            }
            match &read {
                Ok(()) => {}
                // What was promised has to come; that it is worth nothing is told after it.
                Err(_) if self.mode.is_structured => piece.fill(0),
                Err(error) => {
                    self.client.tell(error);
                    return Err(Trouble::Broken(io::ErrorKind::Other.into()));
                }
            }
            outbox.take(count);
            outbox.send_locked(&self.client.stream)?;
            done += count;
        }
        read?;
        if self.mode.is_structured {
            outbox.none(cookie);
        }
        Ok(())
    }

    fn write_zeroes(
        &self,
        outbox: &mut Outbox,
        device: &dyn Device,
    ) -> std::result::Result<(), Trouble> {
        let Request {
            flags,
            offset,
            len_bytes,
            ..
        } = self.request;
        let end = offset + u64::from(len_bytes);
        if flags.contains(CommandFlags::FAST_ZERO) {
            // A device does not say how long it will take; nothing to do is fast for sure.
            if !self.is_zero(device)? {
                let why = "not known to be faster than a write";
                return Err(Trouble::Failed(Failure::new(error::NOTSUP, why)));
            }
            return self.durable(outbox, Ok(()));
        }
        if !flags.contains(CommandFlags::NO_HOLE) {
            return self.durable(outbox, device.write_zeroes(offset, len_bytes.into()));
        }
        // Zeros are written where they shall have their space.
        let mut at = offset;
        while at < end {
            let mut count = (end - at).min(PIECE_BYTES as u64);
            let start = at;
            at += count;
            let mut parts = [IoSlice::new(&ZEROS); PIECE_BYTES / ZEROS.len()];
            let mut used = 0;
            while count > 0 {
                let part = count.min(ZEROS.len() as u64);
                parts[used] = IoSlice::new(&ZEROS[..part as usize]);
                used += 1;
                count -= part;
            }
            device.write_vectored_at(&parts[..used], start)?;
        }
        self.durable(outbox, Ok(()))
    }

    /// Whether the range is known to hold zeros, with space behind them if that is wanted.
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

    /// Reads for nothing but what the host remembers of it.
    fn cache(&self, outbox: &mut Outbox, device: &dyn Device) -> std::result::Result<(), Trouble> {
        let Request {
            offset, len_bytes, ..
        } = self.request;
        let mut done = 0;
        while done < u64::from(len_bytes) {
            if self.client.shared.is_stopping() {
                break;
            }
            let count = (u64::from(len_bytes) - done).min(PIECE_BYTES as u64);
            device.read_at(outbox.room(count as usize), offset + done)?;
            done += count;
        }
        self.done(outbox);
        Ok(())
    }

    fn block_status(
        &self,
        outbox: &mut Outbox,
        device: &dyn Device,
    ) -> std::result::Result<(), Trouble> {
        let Request {
            cookie,
            flags,
            offset,
            len_bytes,
            ..
        } = self.request;
        let start = outbox.begin_status(ALLOCATION_CONTEXT_ID);
        let extents_max = if flags.contains(CommandFlags::REQ_ONE) {
            1
        } else {
            EXTENTS_MAX
        };
        if let Err(error) = extents(device, offset, len_bytes, extents_max, |len, state| {
            outbox.extent(len, state)
        }) {
            outbox.truncate(start);
            return Err(error.into());
        }
        outbox.end_status(start, cookie);
        Ok(())
    }
}

/// Tells the extents of a range with their states, neighbours of one state as one; not the whole
/// range if it has more than `extents_max`.
fn extents(
    device: &dyn Device,
    offset: u64,
    len_bytes: u32,
    extents_max: usize,
    mut tell: impl FnMut(u32, u32),
) -> Result<()> {
    let end = offset
        .checked_add(u64::from(len_bytes))
        .ok_or(Errno::INVAL)?;
    let (mut at, mut told) = (offset, 0);
    let mut open: Option<(u32, u32)> = None;
    // What the device tells in many parts may be one extent, but looking at them must end, too.
    for _ in 0..EXTENTS_MAX * 2 {
        if at >= end || told == extents_max {
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
        open = match open {
            Some((len, same)) if same == state => Some((len + count, state)),
            Some((len, other)) => {
                tell(len, other);
                told += 1;
                Some((count, state))
            }
            None => Some((count, state)),
        };
        at += u64::from(count);
    }
    if let Some((len, state)) = open.filter(|_| told < extents_max) {
        tell(len, state);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSliceMut;

    /// Blocks of 512 bytes: data, hole, zero, zero, and so on.
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

    fn told(offset: u64, len_bytes: u32, extents_max: usize) -> Vec<(u32, u32)> {
        let mut told = Vec::new();
        extents(&Striped, offset, len_bytes, extents_max, |len, state| {
            told.push((len, state))
        })
        .unwrap();
        told
    }

    #[test]
    fn neighbours_of_one_state_are_one_extent() {
        assert_eq!(
            told(100, 2000, 100),
            [(412, 0), (512, 3), (1024, 2), (52, 0)]
        );
        assert_eq!(told(1024, 4096, 1), [(1024, 2)]);
        assert_eq!(told(1024, 600, 1), [(600, 2)]);
        assert_eq!(told(0, 5, 1), [(5, 0)]);
    }

    #[test]
    fn a_reply_has_a_bounded_number_of_extents() {
        let told = told(u64::from(u32::MAX) + 1, u32::MAX, EXTENTS_MAX);
        assert_eq!(told.len(), EXTENTS_MAX);
    }
}
