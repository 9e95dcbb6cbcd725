//! The start of the loader, which no crate wraps safely.

use crate::shared::layout::{DOOR, HANDOFF};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

/// The descriptors that the loader has at fixed places.
pub(super) struct LoaderFiles<'a> {
    pub(super) loader: BorrowedFd<'a>,
    pub(super) handoff: BorrowedFd<'a>,
    pub(super) door: BorrowedFd<'a>,
}

/// Starts the loader in a directory of the host, with the descriptors from `base` on, and with the
/// arguments and variables of the program.
pub(super) fn start(
    files: &LoaderFiles<'_>,
    base: RawFd,
    directory: &Path,
    arguments: &[CString],
    variables: &[CString],
) -> io::Result<Child> {
    let pointers = |texts: &[CString]| {
        let texts = texts.iter().map(|text| text.as_ptr().addr());
        texts.chain([0]).collect::<Vec<_>>()
    };
    let (arguments, variables) = (pointers(arguments), pointers(variables));
    let places = [
        (files.loader.as_raw_fd(), base),
        (files.handoff.as_raw_fd(), base + HANDOFF),
        (files.door.as_raw_fd(), base + DOOR),
    ];
    if places.iter().any(|(from, _)| *from >= base) {
        return Err(rustix::io::Errno::MFILE.into());
    }
    let execute = move || {
        for (from, to) in places {
            // SAFETY: changes the child's descriptors alone; async-signal-safe.
            if unsafe { libc::dup2(from, to) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let empty = c"";
        // SAFETY: the arrays end with null and point to texts that the caller keeps until `spawn`
        // returns; async-signal-safe. Returns only with an error.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                base,
                empty.as_ptr(),
                arguments.as_ptr(),
                variables.as_ptr(),
                libc::AT_EMPTY_PATH,
            )
        };
        Err(io::Error::last_os_error())
    };
    let mut command = Command::new("folio-direct");
    // SAFETY: the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(execute) };
    command.current_dir(directory).spawn()
}
