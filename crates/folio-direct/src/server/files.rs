//! Calls on open files.

use super::encode;
use super::request::Request;
use crate::shared::calls::Call;
use crate::shared::layout::DATA_BYTES;
use folio::Process;
use folio::base::{Errno, Result};
use folio::syscall::{Advice, AtFlags, Fd, OpenFlags, Whence};
use folio::vfs::{FallocateMode, FileType};
use std::ops::ControlFlow;

/// The only flag of `struct open_how::resolve` that needs no work: images have no magic links.
const RESOLVE_NO_MAGICLINKS: u64 = 2;
/// F_GETFL reports it on every file of a 64-bit program.
const O_LARGEFILE: u32 = 0o10_0000;
/// `RWF_APPEND`, and the flags of pwritev2(2) that change nothing here but durability.
const RWF_APPEND: u32 = 0x10;
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;
const RWF_HIPRI: u32 = 1;
/// The offset of calls that move the position of the file.
const AT_POSITION: u64 = u64::MAX;
/// Values of ioctl(2) for any regular file.
const FIONREAD: u32 = 0x541b;
const FIGETBSZ: u32 = 2;
/// Maximum number of bytes that one request copies, so that the end of its process is noticed.
const COPY_MAX: u64 = 16 << 20;

/// Makes a call on open files.
pub(super) fn serve(process: &Process, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let fd = || request.fd(0);
    match request.call {
        Call::Open => open(process, request),
        Call::Reopen => {
            let (fd, new) = (fd()?, request.fd(2)?);
            process.reopen_as(fd, OpenFlags::from_bits_truncate(request.word(1)), new)?;
            Ok(number(new))
        }
        Call::Close => process.close(fd()?).map(done),
        Call::Duplicate => process.dup2(fd()?, request.fd(1)?).map(number),
        Call::GetFlags => {
            let flags = process.fcntl_getfl(fd()?)?;
            let is_path = flags.contains(OpenFlags::PATH);
            Ok(i64::from(
                flags.bits() | if is_path { 0 } else { O_LARGEFILE },
            ))
        }
        Call::SetFlags => {
            let flags = OpenFlags::from_bits_truncate(request.word(1));
            process.fcntl_setfl(fd()?, flags).map(done)
        }
        Call::Read => {
            output.resize(count(request, 1), 0);
            let read = process.read(fd()?, output);
            filled(output, read)
        }
        Call::ReadAt => {
            let offset = request.offset(2)?;
            output.resize(count(request, 1), 0);
            let read = process.pread(fd()?, output, offset);
            filled(output, read)
        }
        Call::Write => Ok(process.write(fd()?, request.input)? as i64),
        Call::WriteAt => write_at(process, request),
        Call::Seek => {
            let offset = request.arguments[1] as i64;
            Ok(process.lseek(fd()?, offset, whence(request.word(2))?)? as i64)
        }
        Call::CopyRange => copy_range(process, request),
        Call::ListDirectory => list(process, request, output),
        Call::Ftruncate => process.ftruncate(fd()?, request.offset(1)?).map(done),
        Call::Truncate => {
            let (directory, size_bytes) = (request.directory(0), request.offset(1)?);
            process
                .truncateat(directory, request.path()?, size_bytes, AtFlags::EMPTY_PATH)
                .map(done)
        }
        Call::Allocate => process
            .fallocate(
                fd()?,
                allocation(request.word(1))?,
                request.offset(2)?,
                request.offset(3)?,
            )
            .map(done),
        Call::Sync => process.fsync(fd()?).map(done),
        Call::SyncData => process.fdatasync(fd()?).map(done),
        Call::SyncFileSystem => process.syncfs(fd()?).map(done),
        Call::SyncAll => process.sync().map(done),
        Call::Advise => {
            let advice = advice(request.word(3))?;
            process
                .posix_fadvise(fd()?, request.offset(1)?, request.offset(2)?, advice)
                .map(done)
        }
        Call::Control => control(process, request, output),
        _ => Err(Errno::NOSYS.into()),
    }
}

/// Returns the value of an ioctl(2).
fn control(process: &Process, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let fd = request.fd(0)?;
    let found = process.fstat(fd)?;
    let value = match request.word(1) {
        FIGETBSZ => process.fstatfs(fd)?.block_size,
        FIONREAD if found.file_type == FileType::Regular => {
            let position = process.lseek(fd, 0, Whence::Current)?;
            found.size_bytes.saturating_sub(position) as u32
        }
        _ => return Err(Errno::NOTTY.into()),
    };
    output.extend_from_slice(&value.to_ne_bytes());
    Ok(0)
}

/// Returns the result of a call that has none.
pub(super) fn done((): ()) -> i64 {
    0
}

fn number(fd: Fd) -> i64 {
    i64::from(fd.as_raw())
}

/// Returns an argument as a number of bytes that a reply can have.
pub(super) fn count(request: &Request<'_>, index: usize) -> usize {
    request.arguments[index].min(DATA_BYTES as u64) as usize
}

fn filled(output: &mut Vec<u8>, read: Result<usize>) -> Result<i64> {
    output.truncate(*read.as_ref().unwrap_or(&0));
    Ok(read? as i64)
}

fn open(process: &Process, request: &Request<'_>) -> Result<i64> {
    if request.arguments[3] & !RESOLVE_NO_MAGICLINKS != 0 {
        return Err(Errno::NOSYS.into());
    }
    let fd = request.fd(4)?;
    let flags = OpenFlags::from_bits_truncate(request.word(1));
    let mode = (request.arguments[2] & 0o7777) as u16;
    process.openat_as(request.directory(0), request.path()?, flags, mode, fd)?;
    Ok(number(fd))
}

fn write_at(process: &Process, request: &Request<'_>) -> Result<i64> {
    let (fd, flags) = (request.fd(0)?, request.word(2));
    if flags & !(RWF_APPEND | RWF_DSYNC | RWF_SYNC | RWF_HIPRI) != 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    let written = if flags & RWF_APPEND != 0 {
        process.append(fd, request.input)?
    } else if request.arguments[1] == AT_POSITION {
        process.write(fd, request.input)?
    } else {
        process.pwrite(fd, request.input, request.offset(1)?)?
    };
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        process.fsync(fd)?;
    }
    Ok(written as i64)
}

fn whence(number: u32) -> Result<Whence> {
    Ok(match number {
        0 => Whence::Set,
        1 => Whence::Current,
        2 => Whence::End,
        3 => Whence::Data,
        4 => Whence::Hole,
        _ => return Err(Errno::INVAL.into()),
    })
}

fn copy_range(process: &Process, request: &Request<'_>) -> Result<i64> {
    let offset = |index: usize| match request.arguments[index] {
        AT_POSITION => Ok(None),
        _ => request.offset(index).map(Some),
    };
    let (mut from, mut to) = (offset(1)?, offset(3)?);
    let count = request.arguments[4].min(COPY_MAX) as usize;
    let (input, out) = (request.fd(0)?, request.fd(2)?);
    let copied = process.copy_file_range(input, from.as_mut(), out, to.as_mut(), count)?;
    Ok(copied as i64)
}

fn list(process: &Process, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let len_max = count(request, 1);
    let mut is_full = false;
    process.getdents_with(request.fd(0)?, &mut |entry| {
        is_full = !encode::dirent(output, entry, len_max);
        if is_full {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if is_full && output.is_empty() {
        return Err(Errno::INVAL.into());
    }
    Ok(output.len() as i64)
}

/// Returns the operation of the flags of fallocate(2).
fn allocation(flags: u32) -> Result<FallocateMode> {
    Ok(match flags {
        0 => FallocateMode::Allocate,
        0x01 => FallocateMode::AllocateKeepSize,
        0x03 => FallocateMode::PunchHole,
        0x08 => FallocateMode::CollapseRange,
        0x10 => FallocateMode::ZeroRange,
        0x11 => FallocateMode::ZeroRangeKeepSize,
        0x20 => FallocateMode::InsertRange,
        _ => return Err(Errno::OPNOTSUPP.into()),
    })
}

fn advice(number: u32) -> Result<Advice> {
    Ok(match number {
        0 => Advice::Normal,
        1 => Advice::Random,
        2 => Advice::Sequential,
        3 => Advice::WillNeed,
        4 => Advice::DontNeed,
        5 => Advice::NoReuse,
        _ => return Err(Errno::INVAL.into()),
    })
}
