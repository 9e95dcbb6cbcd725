//! Calls on attributes: stat, access, chmod, chown, times, statistics.

use super::encode;
use super::files::done;
use super::names::{flags, mode};
use super::request::Request;
use crate::shared::calls::Call;
use folio::Process;
use folio::base::{Errno, Result, Timespec};
use folio::syscall::AtFlags;
use folio::vfs::SetTime;

/// Flags of statx(2) that ask for cached or current attributes: `AT_NO_AUTOMOUNT` and
/// `AT_STATX_SYNC_TYPE`.
const STATX_ONLY: u32 = 0x800 | 0x6000;
const UTIME_NOW: i64 = (1 << 30) - 1;
const UTIME_OMIT: i64 = (1 << 30) - 2;

/// Makes a call on attributes.
pub(super) fn serve(process: &Process, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let directory = request.directory(0);
    match request.call {
        Call::Stat => {
            let flags = AtFlags::from_bits(request.word(1) & !STATX_ONLY).ok_or(Errno::INVAL)?;
            let found = process.statx(directory, request.path()?, flags)?;
            encode::statx(output, &found);
            Ok(0)
        }
        Call::StatFileSystem => {
            let found = process.statfsat(directory, request.path()?, AtFlags::EMPTY_PATH)?;
            encode::statfs(output, &found);
            Ok(0)
        }
        Call::FstatFileSystem => {
            encode::statfs(output, &process.fstatfs(request.fd(0)?)?);
            Ok(0)
        }
        Call::Access => {
            let mode = u16::try_from(request.arguments[1]).map_err(|_| Errno::INVAL)?;
            process
                .faccessat2(directory, request.path()?, mode, flags(request, 2)?)
                .map(done)
        }
        Call::ChangeMode => process
            .fchmodat2(
                directory,
                request.path()?,
                mode(request, 1),
                flags(request, 2)?,
            )
            .map(done),
        Call::ChangeOwner => {
            let id = |index| Some(request.word(index)).filter(|id| *id != u32::MAX);
            process
                .fchownat(directory, request.path()?, id(1), id(2), flags(request, 3)?)
                .map(done)
        }
        Call::SetTimes => process
            .utimensat(
                directory,
                request.path()?,
                time(request, 1)?,
                time(request, 3)?,
                flags(request, 5)?,
            )
            .map(done),
        _ => Err(Errno::NOSYS.into()),
    }
}

/// Returns a time of utimensat(2), whose seconds and nanoseconds are two arguments.
fn time(request: &Request<'_>, index: usize) -> Result<Option<SetTime>> {
    let secs = request.arguments[index] as i64;
    match request.arguments[index + 1] as i64 {
        UTIME_NOW => Ok(Some(SetTime::Now)),
        UTIME_OMIT => Ok(None),
        nanos => {
            let nanos = u32::try_from(nanos).map_err(|_| Errno::INVAL)?;
            Ok(Some(SetTime::To(Timespec { secs, nanos })))
        }
    }
}
