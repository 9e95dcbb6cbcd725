//! Calls that return and change attributes: structures of the kernel, made from `struct statx`.

use crate::calls::Call;
use crate::client::Slot;
use crate::memory::{self, Buffer};
use crate::names::{Named, PathArgument, on_path};
use crate::paths::LastLink;
use crate::system::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, Errno, Result};
use crate::trap::{Answer, Trap};

/// The basic attributes of statx(2).
const STATX_BASIC: u64 = 0x7ff;
const STATX_BYTES: usize = 256;
const STAT_WORDS: usize = 18;

/// `struct stat` of x86-64, from a `struct statx`.
fn stat_of(statx: &[u8]) -> Option<[u64; STAT_WORDS]> {
    let half = |at: usize| Some(u64::from(u32::from_le_bytes(statx.get(at..at + 4)?.try_into().ok()?)));
    let word = |at: usize| Some(u64::from_le_bytes(statx.get(at..at + 8)?.try_into().ok()?));
    let device = |at: usize| {
        let (major, minor) = (half(at)?, half(at + 4)?);
        Some(
            minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32,
        )
    };
    let mut stat = [0; STAT_WORDS];
    stat[0] = device(136)?;
    stat[1] = word(32)?;
    stat[2] = half(16)?;
    // The mode, then the owner; the group, then padding.
    stat[3] = half(28)? & 0xffff | half(20)? << 32;
    stat[4] = half(24)?;
    stat[5] = device(128)?;
    stat[6] = word(40)?;
    stat[7] = half(4)?;
    stat[8] = word(48)?;
    for (place, at) in [(9, 64), (11, 112), (13, 96)] {
        stat[place] = word(at)?;
        stat[place + 1] = half(at + 8)?;
    }
    Some(stat)
}

/// Asks for the attributes of what `named` is, and writes a `struct stat`.
fn stat_named(slot: Slot, named: Named, flags: u64, into: usize) -> Result<u64> {
    let arguments = [named.directory as u64, flags, STATX_BASIC];
    slot.request(Call::Stat, &arguments, named.end)?;
    let stat = stat_of(slot.output()).ok_or(Errno(5))?;
    memory::write(&stat, into)?;
    Ok(0)
}

/// stat(2), lstat(2) and newfstatat(2).
pub(crate) fn stat(
    trap: &Trap,
    slot: Slot,
    path: PathArgument,
    into: usize,
    flags: u64,
) -> Answer {
    let into = trap.arguments[into];
    let path = with_flags(path, flags);
    on_path(trap, slot, path, |named| stat_named(slot, named, named.flags(flags), into))
}

/// fstat(2).
pub(crate) fn fstat(slot: Slot, fd: i32, into: usize) -> Result<u64> {
    stat_named(slot, Named::descriptor(slot, fd), AT_EMPTY_PATH, into)
}

/// statx(2).
pub(crate) fn statx(trap: &Trap, slot: Slot) -> Answer {
    let [_, _, flags, mask, into, _] = trap.arguments;
    let path = with_flags(PathArgument::at(0, 1, LastLink::Follow), flags as u64);
    on_path(trap, slot, path, |named| {
        let flags = named.flags(flags as u64);
        slot.request(Call::Stat, &[named.directory as u64, flags, mask as u64], named.end)?;
        let output = slot.output();
        memory::write_from(output.as_ptr(), output.len().min(STATX_BYTES), into)?;
        Ok(0)
    })
}

/// A path whose last link is followed unless the flags say so.
pub(crate) fn with_flags(path: PathArgument, flags: u64) -> PathArgument {
    let keeps = flags & AT_SYMLINK_NOFOLLOW != 0;
    PathArgument { last_link: if keeps { LastLink::Keep } else { LastLink::Follow }, ..path }
}

/// statfs(2) and fstatfs(2): writes a `struct statfs`.
pub(crate) fn put_output(slot: Slot, into: usize) -> Result<u64> {
    let output = slot.output();
    memory::write_from(output.as_ptr(), output.len(), into)?;
    Ok(0)
}

const UTIME_NOW: u64 = 0x3fff_ffff;

/// The form of the times that a call has.
#[derive(Clone, Copy)]
pub(crate) enum Times {
    /// `struct timespec[2]`.
    Nanoseconds,
    /// `struct timeval[2]`.
    Microseconds,
    /// `struct utimbuf`.
    Seconds,
}

impl Times {
    /// Two pairs of seconds and nanoseconds; without an address, the time of now.
    fn read(self, address: usize) -> Result<[u64; 4]> {
        if address == 0 {
            return Ok([0, UTIME_NOW, 0, UTIME_NOW]);
        }
        if let Self::Seconds = self {
            let [accessed, modified]: [u64; 2] = memory::read(address)?;
            return Ok([accessed, 0, modified, 0]);
        }
        let mut times: [u64; 4] = memory::read(address)?;
        if let Self::Microseconds = self {
            for index in [1, 3] {
                if times[index] >= 1_000_000 {
                    return Err(Errno::INVAL);
                }
                times[index] *= 1000;
            }
        }
        Ok(times)
    }
}

/// utimensat(2) and its relatives: the index of the times' argument.
pub(crate) fn set_times(
    trap: &Trap,
    slot: Slot,
    path: PathArgument,
    times: Times,
    index: usize,
    flags: u64,
) -> Answer {
    let read = times.read(trap.arguments[index]);
    let times = match read {
        Ok(times) => times,
        Err(error) => return Answer::Failed(error),
    };
    let request = |named: Named| {
        let [accessed, accessed_ns, modified, modified_ns] = times;
        let flags = named.flags(flags);
        let directory = named.directory as u64;
        let arguments = [directory, accessed, accessed_ns, modified, modified_ns, flags];
        slot.request(Call::SetTimes, &arguments, named.end)
    };
    // Without a path: futimens(3).
    if let Some(index) = path.directory
        && trap.arguments[path.address] == 0
    {
        let directory = trap.arguments[index] as i32;
        if !crate::descriptors::is_image(directory) {
            return Answer::Pass;
        }
        return request(Named::descriptor(slot, directory)).into();
    }
    on_path(trap, slot, with_flags(path, flags), request)
}

/// The calls of extended attributes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Xattr {
    Get,
    Set,
    List,
    Remove,
}

impl Xattr {
    const fn call(self) -> Call {
        match self {
            Self::Get => Call::GetAttribute,
            Self::Set => Call::SetAttribute,
            Self::List => Call::ListAttributes,
            Self::Remove => Call::RemoveAttribute,
        }
    }

    /// Makes the request for the path in the slot's data: the arguments after the path are `rest`.
    fn request(self, slot: Slot, named: Named, rest: [usize; 4], follow: bool) -> Result<u64> {
        const XATTR_MAX: usize = 64 << 10;
        const NAME_MAX: usize = 256;
        if named.directory >= 0 && !named.is_descriptor {
            return Err(Errno::OPNOTSUPP);
        }
        let mut end = named.end;
        let [mut value, mut size, mut flags, _] = rest;
        if self != Self::List {
            let name = &mut slot.buffer(3)[..NAME_MAX];
            let len = memory::read_text(name, rest[0], Errno::RANGE)?;
            end = slot.put_text(end, &name[..len]);
            [value, size, flags] = [rest[1], rest[2], rest[3]];
        }
        if self == Self::Set {
            if size > XATTR_MAX {
                return Err(Errno::TOOBIG);
            }
            slot.put(end, Buffer { address: value, len_bytes: size })?;
            end += size;
        }
        let first = if self == Self::Set { flags } else { size };
        let arguments = [named.directory as u64, first as u64, u64::from(follow)];
        let done = slot.request(self.call(), &arguments, end)?;
        if matches!(self, Self::Get | Self::List) && size > 0 {
            put_output(slot, value)?;
        }
        Ok(done)
    }
}

/// A call of extended attributes by path.
pub(crate) fn xattr(trap: &Trap, slot: Slot, what: Xattr, last_link: LastLink) -> Answer {
    let [_, a, b, c, d, _] = trap.arguments;
    let path = PathArgument::new(0, last_link);
    let follow = last_link == LastLink::Follow;
    on_path(trap, slot, path, |named| what.request(slot, named, [a, b, c, d], follow))
}

/// A call of extended attributes by descriptor.
pub(crate) fn fxattr(trap: &Trap, slot: Slot, what: Xattr) -> Result<u64> {
    let [fd, a, b, c, d, _] = trap.arguments;
    let named = Named::descriptor(slot, fd as i32);
    what.request(slot, named, [a, b, c, d], true)
}
