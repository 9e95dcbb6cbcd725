//! The search for the program of a command, in the view of the image and the host.

use folio::base::Errno;
use folio::syscall::{AT_FDCWD, AtFlags};
use folio::vfs::FileType;
use folio::{Detail, Error, Process};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const EXECUTE: u16 = 1;
/// The search path if PATH is not set.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the path of the program that `name` names, relative to the directory `current` in the
/// view: `name` itself if it has a slash, else the first match in the search path.
///
/// # Errors
/// ENOENT if there is none, EACCES if it cannot be executed.
pub(super) fn find(
    process: &Process,
    current: &Path,
    name: &OsStr,
    path: Option<&OsStr>,
) -> Result<PathBuf, Errno> {
    if name.as_bytes().contains(&b'/') {
        let found = current.join(name);
        return check(process, &found).map(|()| found);
    }
    let mut failure = Errno::NOENT;
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    for folder in path.as_bytes().split(|byte| *byte == b':') {
        let found = current.join(OsStr::from_bytes(folder)).join(name);
        match check(process, &found) {
            Ok(()) => return Ok(found),
            Err(Errno::ACCESS) => failure = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// Fails unless `path` is a file that may be executed.
fn check(process: &Process, path: &Path) -> Result<(), Errno> {
    let checked = process.stat(path).and_then(|found| {
        process.faccessat2(AT_FDCWD, path, EXECUTE, AtFlags::empty())?;
        Ok(found.file_type)
    });
    match checked {
        Ok(FileType::Regular) => Ok(()),
        Ok(_) => Err(Errno::ACCESS),
        Err(error) => match elsewhere(&error) {
            Some(path) => check_host(path),
            None => Err(error.errno()),
        },
    }
}

fn elsewhere(error: &Error) -> Option<&Path> {
    match error.detail() {
        Some(Detail::Elsewhere { path }) => Some(Path::new(OsStr::from_bytes(path))),
        _ => None,
    }
}

fn check_host(path: &Path) -> Result<(), Errno> {
    let found = path
        .metadata()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    let is_executable = found.permissions().mode() & 0o111 != 0;
    if found.is_file() && is_executable {
        Ok(())
    } else {
        Err(Errno::ACCESS)
    }
}
