//! Calls that create, move, remove and read names.

use super::encode;
use super::files::done;
use super::request::Request;
use crate::shared::calls::{Call, ELSEWHERE};
use folio::base::{DeviceNumber, Errno, Result};
use folio::syscall::{AtFlags, Fd};
use folio::vfs::RenameFlags;
use folio::{Detail, Error, Process};
use std::path::Path;

/// Makes a call on names.
pub(super) fn serve(process: &Process, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let directory = request.directory(0);
    match request.call {
        Call::MakeDirectory => process
            .mkdirat(directory, request.path()?, mode(request, 1))
            .map(done),
        Call::MakeNode => make_node(process, request),
        Call::MakeLink => {
            let mut parts = request.parts();
            let (target, path) = (parts.path()?, parts.path()?);
            process.symlinkat(target, directory, path).map(done)
        }
        Call::Link => {
            let flags = flags(request, 2)?;
            let (old, new) = ends(request)?;
            let linked = process.linkat(old.0, old.1, new.0, new.1, flags);
            let follows = flags.contains(AtFlags::SYMLINK_FOLLOW);
            both(process, linked, [(old, follows), (new, false)], output)
        }
        Call::Rename => {
            let flags = RenameFlags::from_bits(request.word(2)).ok_or(Errno::INVAL)?;
            let (old, new) = ends(request)?;
            let renamed = process.renameat2(old.0, old.1, new.0, new.1, flags);
            both(process, renamed, [(old, false), (new, false)], output)
        }
        Call::Unlink => process
            .unlinkat(directory, request.path()?, flags(request, 1)?)
            .map(done),
        Call::ReadLink => {
            let target = process.readlinkat(directory, request.path()?)?;
            let size = request.int(1);
            if size <= 0 {
                return Err(Errno::INVAL.into());
            }
            output.extend_from_slice(&target[..target.len().min(size as usize)]);
            Ok(output.len() as i64)
        }
        Call::ChangeDirectory => process
            .chdirat(directory, request.path()?, AtFlags::EMPTY_PATH)
            .map(done),
        Call::ChangeDirectoryTo => process.fchdir(request.fd(0)?).map(done),
        Call::WorkingDirectory => Ok(path(output, &process.getcwd()?)),
        Call::PathOf => Ok(path(output, &process.path_of(request.fd(0)?)?)),
        _ => Err(Errno::NOSYS.into()),
    }
}

/// Returns the flags of an `*at` call.
pub(super) fn flags(request: &Request<'_>, index: usize) -> Result<AtFlags> {
    Ok(AtFlags::from_bits(request.word(index)).ok_or(Errno::INVAL)?)
}

/// Returns permission bits.
pub(super) fn mode(request: &Request<'_>, index: usize) -> u16 {
    (request.arguments[index] & 0o7777) as u16
}

/// Appends a path and its zero byte.
fn path(output: &mut Vec<u8>, path: &[u8]) -> i64 {
    output.extend_from_slice(path);
    output.push(0);
    output.len() as i64
}

fn make_node(process: &Process, request: &Request<'_>) -> Result<i64> {
    let file_type = encode::file_type(request.word(1)).ok_or(Errno::INVAL)?;
    let number = request.word(2);
    let device = DeviceNumber::new(number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
    let (directory, mode) = (request.directory(0), mode(request, 1));
    process
        .mknodat(directory, request.path()?, file_type, mode, device)
        .map(done)
}

type End<'a> = (Fd, &'a Path);

/// Returns the old and the new name of a call.
fn ends<'a>(request: &Request<'a>) -> Result<(End<'a>, End<'a>)> {
    let mut parts = request.parts();
    let old = (request.directory(0), parts.path()?);
    let new = (request.directory(1), parts.path()?);
    Ok((old, new))
}

/// Appends where each path leads if one leads to the host, with whether its last link is followed.
fn both(
    process: &Process,
    result: Result<()>,
    ends: [(End<'_>, bool); 2],
    output: &mut Vec<u8>,
) -> Result<i64> {
    match result {
        Err(error) if elsewhere(&error).is_some() => {}
        result => return result.map(done),
    }
    for ((directory, path), follows) in ends {
        let flags = if follows {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        if let Err(error) = process.fstatat(directory, path, flags) {
            output.extend_from_slice(elsewhere(&error).unwrap_or_default());
        }
        output.push(0);
    }
    Ok(-ELSEWHERE)
}

/// Returns where a path leads to that is not in the image.
pub(super) fn elsewhere(error: &Error) -> Option<&[u8]> {
    match error.detail() {
        Some(Detail::Elsewhere { path }) => Some(path),
        _ => None,
    }
}
