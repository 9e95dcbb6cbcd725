//! Calls with descriptors: data, sizes, and descriptors themselves.

use crate::calls::Call;
use crate::client::Slot;
use crate::descriptors::{self, is_image, is_reserved};
use crate::layout::{DATA_BYTES, RESERVED};
use crate::memory::{self, Buffer, Buffers};
use crate::state::BASE;
use crate::system::{
    self, CLOSE_RANGE, DUP, Errno, FCNTL, MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, MPROTECT,
    MUNMAP, PROT_READ, PROT_WRITE, Result, host,
};
use crate::table_lock;
use crate::trap::{Answer, Trap};
use core::sync::atomic::Ordering;

/// The place of a read or write: the position of the file, or an offset.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Position,
    Offset { bytes: u64, flags: u64 },
}

impl Place {
    fn advanced(self, by: usize) -> Self {
        match self {
            Self::Position => self,
            // The position of preadv2(2).
            Self::Offset { bytes: u64::MAX, .. } => self,
            Self::Offset { bytes, flags } => Self::Offset { bytes: bytes + by as u64, flags },
        }
    }
}

/// A place in the buffers of a call.
struct Cursor {
    buffers: Buffers,
    index: usize,
    within: usize,
}

impl Cursor {
    const fn new(buffers: Buffers) -> Self {
        Self { buffers, index: 0, within: 0 }
    }

    /// The rest of the buffer at the cursor; `None` at the end.
    fn next(&mut self) -> Result<Option<Buffer>> {
        while let Some(buffer) = self.buffers.get(self.index)? {
            if self.within < buffer.len_bytes {
                return Ok(Some(Buffer {
                    address: buffer.address + self.within,
                    len_bytes: buffer.len_bytes - self.within,
                }));
            }
            self.index += 1;
            self.within = 0;
        }
        Ok(None)
    }

    /// Bytes from the cursor to the end, at most `limit`.
    fn remaining(&self, limit: usize) -> Result<usize> {
        let (mut index, mut within, mut sum) = (self.index, self.within, 0);
        while let Some(buffer) = self.buffers.get(index)? {
            sum += buffer.len_bytes - within;
            if sum >= limit {
                return Ok(limit);
            }
            (index, within) = (index + 1, 0);
        }
        Ok(sum)
    }

    /// Returns whether no byte is left, as far as the buffers can be read.
    fn is_at_end(&self) -> bool {
        self.remaining(1).unwrap_or(0) == 0
    }

    /// Fills the slot's data from the buffers; returns the number of bytes.
    fn gather(&mut self, slot: Slot) -> Result<usize> {
        let mut len = 0;
        while len < DATA_BYTES
            && let Some(buffer) = self.next()?
        {
            let part = Buffer { len_bytes: buffer.len_bytes.min(DATA_BYTES - len), ..buffer };
            slot.put(len, part)?;
            len += part.len_bytes;
            self.within += part.len_bytes;
        }
        Ok(len)
    }

    /// Writes bytes to the buffers.
    fn scatter(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty()
            && let Some(buffer) = self.next()?
        {
            let part = buffer.len_bytes.min(bytes.len());
            memory::write_from(bytes.as_ptr(), part, buffer.address)?;
            bytes = &bytes[part..];
            self.within += part;
        }
        Ok(())
    }
}

/// read(2) and its relatives.
pub(crate) fn read(slot: Slot, fd: i32, buffers: Buffers, place: Place) -> Result<u64> {
    let mut cursor = Cursor::new(buffers);
    let mut done = 0;
    let mut place = place;
    loop {
        let count = cursor.remaining(DATA_BYTES)?;
        let read = match place {
            Place::Offset { bytes, .. } if bytes != u64::MAX => {
                slot.request(Call::ReadAt, &[fd as u64, count as u64, bytes], 0)
            }
            _ => slot.request(Call::Read, &[fd as u64, count as u64], 0),
        };
        let len = match read {
            Ok(len) => len as usize,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        };
        if let Err(error) = cursor.scatter(&slot.output()[..len.min(DATA_BYTES)]) {
            return if done > 0 { Ok(done) } else { Err(error) };
        }
        done += len as u64;
        place = place.advanced(len);
        if len < count || cursor.is_at_end() {
            return Ok(done);
        }
    }
}

/// write(2) and its relatives.
pub(crate) fn write(slot: Slot, fd: i32, buffers: Buffers, place: Place) -> Result<u64> {
    let mut cursor = Cursor::new(buffers);
    let mut done = 0;
    let mut place = place;
    loop {
        let written = cursor.gather(slot).and_then(|count| {
            let wrote = match place {
                Place::Offset { bytes, flags } => {
                    slot.request(Call::WriteAt, &[fd as u64, bytes, flags], count)
                }
                Place::Position => slot.request(Call::Write, &[fd as u64], count),
            };
            Ok((wrote? as usize, count))
        });
        let (len, count) = match written {
            Ok(written) => written,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        };
        done += len as u64;
        place = place.advanced(len);
        if len < count || cursor.is_at_end() {
            return Ok(done);
        }
    }
}

/// close(2).
pub(crate) fn close(slot: Slot, fd: i32) -> Answer {
    if is_reserved(fd) {
        return Answer::Failed(Errno::BADF);
    }
    if !is_image(fd) {
        return Answer::Pass;
    }
    let _change = table_lock::change();
    // Another thread may have closed it meanwhile.
    if !descriptors::remove(fd) {
        return Answer::Failed(Errno::BADF);
    }
    let closed = slot.request(Call::Close, &[fd as u64], 0);
    system::close(fd);
    closed.into()
}

/// close_range(2): all but the descriptors of the runtime.
pub(crate) fn close_range(slot: Slot, trap: &Trap) -> Answer {
    const CLOEXEC: usize = 4;
    let [first, last, flags, ..] = trap.arguments;
    const UNSHARE: usize = 2;
    let (first, last) = (first as u32, last as u32);
    if first > last || flags & !(CLOEXEC | UNSHARE) != 0 {
        return Answer::Pass;
    }
    let _change = table_lock::change();
    if flags & CLOEXEC == 0 {
        for fd in descriptors::all() {
            if (first..=last).contains(&(fd as u32)) {
                descriptors::remove(fd);
                let _ = slot.request(Call::Close, &[fd as u64], 0);
            }
        }
    }
    let base = BASE.load(Ordering::Relaxed) as u32;
    let below = (first, last.min(base - 1));
    let above = (first.max(base + RESERVED as u32), last);
    for (first, last) in [below, above] {
        if first <= last
            && let Err(error) = host!(CLOSE_RANGE, first, last, flags)
        {
            return Answer::Failed(error);
        }
    }
    Answer::Done(0)
}

/// dup(2), dup2(2), dup3(2): the placeholder is duplicated by the host, then the file.
pub(crate) fn duplicate(slot: Slot, trap: &Trap) -> Answer {
    let [old, new, ..] = trap.arguments.map(|argument| argument as i32);
    let has_new = trap.number != DUP;
    if is_reserved(old) || has_new && is_reserved(new) {
        return Answer::Failed(Errno::BADF);
    }
    if !is_image(old) && !(has_new && is_image(new)) {
        return Answer::Pass;
    }
    let _change = table_lock::change();
    // SAFETY: a call with numbers only.
    match unsafe { system::call(trap.number, trap.arguments) } {
        Ok(fd) => follow_duplicate(slot, old, fd as i32),
        Err(error) => Answer::Failed(error),
    }
}

/// Makes `new`, which the host made a duplicate of `old`, one in the image too.
fn follow_duplicate(slot: Slot, old: i32, new: i32) -> Answer {
    if old == new {
        return Answer::Done(new as u64);
    }
    if is_image(old) {
        if let Err(error) = slot.request(Call::Duplicate, &[old as u64, new as u64], 0) {
            // The host's call has closed what had this number.
            if descriptors::remove(new) {
                let _ = slot.request(Call::Close, &[new as u64], 0);
            }
            system::close(new);
            return Answer::Failed(error);
        }
        descriptors::insert(new);
    } else if descriptors::remove(new) {
        let _ = slot.request(Call::Close, &[new as u64], 0);
    }
    Answer::Done(new as u64)
}

/// fcntl(2), but for locks.
pub(crate) fn fcntl(slot: Slot, trap: &Trap) -> Answer {
    const F_DUPFD: i32 = 0;
    const F_GETFD: i32 = 1;
    const F_SETFD: i32 = 2;
    const F_GETFL: i32 = 3;
    const F_SETFL: i32 = 4;
    const F_SETOWN: i32 = 8;
    const F_GETOWN_EX: i32 = 16;
    const F_DUPFD_QUERY: i32 = 1027;
    const F_DUPFD_CLOEXEC: i32 = 1030;
    let [fd, command, argument, ..] = trap.arguments;
    let fd = fd as i32;
    if is_reserved(fd) {
        return Answer::Failed(Errno::BADF);
    }
    if !is_image(fd) {
        return Answer::Pass;
    }
    match command as i32 {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let _change = table_lock::change();
            match host!(FCNTL, fd, command, argument) {
                Ok(new) => follow_duplicate(slot, fd, new as i32),
                Err(error) => Answer::Failed(error),
            }
        }
        F_GETFL => slot.request(Call::GetFlags, &[fd as u64], 0).into(),
        F_SETFL => slot.request(Call::SetFlags, &[fd as u64, argument as u64], 0).into(),
        F_GETFD | F_SETFD | F_DUPFD_QUERY | F_SETOWN..=F_GETOWN_EX => Answer::Pass,
        _ => Answer::Failed(Errno::INVAL),
    }
}

/// mmap(2) of a file of the image: a copy. A mapping that writes to the file is refused.
pub(crate) fn mmap(slot: Slot, trap: &Trap) -> Answer {
    let [address, len, protection, flags, fd, offset] = trap.arguments;
    let fd = fd as i32;
    if flags & MAP_ANONYMOUS != 0 || !is_image(fd) {
        return Answer::Pass;
    }
    // A copy does not change with the file, so one for a program that may write it is refused.
    if flags & MAP_SHARED != 0
        && (protection & PROT_WRITE != 0 || !is_read_only(slot, fd))
    {
        return Answer::Failed(Errno::NODEV);
    }
    if offset % 4096 != 0 || len == 0 {
        return Answer::Failed(Errno::INVAL);
    }
    // The first request says whether the file can be read.
    if let Err(error) = slot.request(Call::ReadAt, &[fd as u64, 0, offset as u64], 0) {
        return Answer::Failed(if error == Errno::BADF { Errno::ACCES } else { error });
    }
    const MAP_VALIDATE: usize = 3;
    let flags = flags & !MAP_VALIDATE | MAP_PRIVATE | MAP_ANONYMOUS;
    let mapped = match system::map(address, len, PROT_READ | PROT_WRITE, flags, -1, 0) {
        Ok(mapped) => mapped,
        Err(error) => return Answer::Failed(error),
    };
    let filled = fill(slot, fd, Buffer { address: mapped, len_bytes: len }, offset as u64);
    match filled.and_then(|()| host!(MPROTECT, mapped, len, protection).map(drop)) {
        Ok(()) => Answer::Done(mapped as u64),
        Err(error) => {
            let _ = host!(MUNMAP, mapped, len);
            Answer::Failed(error)
        }
    }
}

/// Returns whether a file is open for reading alone.
fn is_read_only(slot: Slot, fd: i32) -> bool {
    const ACCESS_MODE: u64 = 3;
    slot.request(Call::GetFlags, &[fd as u64], 0).is_ok_and(|flags| flags & ACCESS_MODE == 0)
}

/// Reads a part of a file into memory of this process, up to the end of the file.
pub(crate) fn fill(slot: Slot, fd: i32, into: Buffer, offset: u64) -> Result<()> {
    let mut done = 0;
    while done < into.len_bytes {
        let count = (into.len_bytes - done).min(DATA_BYTES);
        let arguments = [fd as u64, count as u64, offset + done as u64];
        let len = slot.request(Call::ReadAt, &arguments, 0)? as usize;
        if len == 0 {
            break;
        }
        let bytes = &slot.output()[..len.min(count)];
        memory::write_from(bytes.as_ptr(), bytes.len(), into.address + done)?;
        done += bytes.len();
    }
    Ok(())
}

/// getdents64(2).
pub(crate) fn list(slot: Slot, fd: i32, into: usize, size: usize) -> Result<u64> {
    let size = size.min(DATA_BYTES) as u64;
    let len = slot.request(Call::ListDirectory, &[fd as u64, size], 0)?;
    let bytes = slot.output();
    memory::write_from(bytes.as_ptr(), bytes.len(), into)?;
    Ok(len)
}

/// copy_file_range(2).
pub(crate) fn copy_range(slot: Slot, trap: &Trap) -> Answer {
    let [input, input_at, output, output_at, count, flags] = trap.arguments;
    let (is_from_image, is_to_image) = (is_image(input as i32), is_image(output as i32));
    if !is_from_image && !is_to_image {
        return Answer::Pass;
    }
    if is_from_image != is_to_image {
        return Answer::Failed(Errno::XDEV);
    }
    if flags as u32 != 0 {
        return Answer::Failed(Errno::INVAL);
    }
    let offset = |address: usize| match address {
        0 => Ok(u64::MAX),
        _ => memory::read::<u64>(address),
    };
    let copy = || {
        let (from, to) = (offset(input_at)?, offset(output_at)?);
        let arguments = [input as i32 as u64, from, output as i32 as u64, to, count as u64];
        let done = slot.request(Call::CopyRange, &arguments, 0)?;
        for (address, before) in [(input_at, from), (output_at, to)] {
            if address != 0 {
                memory::write(&(before + done), address)?;
            }
        }
        Ok(done)
    };
    copy().into()
}

/// ioctl(2) of a file of the image.
pub(crate) fn ioctl(slot: Slot, trap: &Trap) -> Answer {
    const FIOCLEX: u32 = 0x5451;
    const FIONCLEX: u32 = 0x5450;
    const FIONREAD: u32 = 0x541b;
    const FIGETBSZ: u32 = 2;
    let [fd, request, argument, ..] = trap.arguments;
    if is_reserved(fd as i32) {
        return Answer::Failed(Errno::BADF);
    }
    if !is_image(fd as i32) {
        return Answer::Pass;
    }
    let request = request as u32;
    // _IOC: two bits of direction, 14 of size. Terminals have none: ENOTTY, as for all files.
    let (direction, size) = (request >> 30, (request >> 16 & 0x3fff) as usize);
    let (reads, size) = match request {
        FIOCLEX | FIONCLEX => return Answer::Pass,
        FIONREAD | FIGETBSZ => (true, 4),
        _ => (direction & 2 != 0, size),
    };
    if size == 0 || size > 4096 {
        return Answer::Failed(Errno(25));
    }
    let control = || {
        slot.put(0, Buffer { address: argument, len_bytes: size })?;
        let done = slot.request(Call::Control, &[fd as i32 as u64, u64::from(request)], size)?;
        if reads {
            let output = slot.output();
            memory::write_from(output.as_ptr(), output.len().min(size), argument)?;
        }
        Ok(done)
    };
    control().into()
}

