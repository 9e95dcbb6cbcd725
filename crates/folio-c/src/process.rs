//! Processes: credentials, working directory, umask, and descriptors as such.

use crate::argument::{Text, TextOutput, fd, handle};
use crate::call::call;
use crate::kernel::FolioKernel;
use folio::syscall::Credentials;
use folio::{Errno, Error, Process};
use libc::ssize_t;
use std::ffi::c_int;

/// A process: descriptors, working directory, credentials and umask. Any thread may use it.
pub struct FolioProcess {
    /// The process, for programs in Rust that make calls of both kinds.
    pub process: Process,
}

/// Makes a process whose root and working directory are `/`, and whose umask is 022. User 0 has all
/// capabilities. Returns null after a failure.
#[unsafe(no_mangle)]
pub extern "C" fn folio_process_new(
    kernel: Option<&FolioKernel>,
    uid: u32,
    gid: u32,
) -> Option<Box<FolioProcess>> {
    call("process_new", || {
        let credentials = Credentials::user(uid, gid, Vec::new());
        let process = handle(kernel)?.kernel.process(credentials);
        Ok(Some(Box::new(FolioProcess { process })))
    })
}

/// Ends a process and closes its descriptors. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn folio_process_free(process: Option<Box<FolioProcess>>) -> c_int {
    call("process_free", || {
        drop(process);
        Ok(0)
    })
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_close(process: Option<&FolioProcess>, fd: c_int) -> c_int {
    call("close", || {
        handle(process)?.process.close(self::fd(fd))?;
        Ok(0)
    })
}

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_dup(process: Option<&FolioProcess>, fd: c_int) -> c_int {
    call("dup", || {
        let copy = handle(process)?.process.dup(self::fd(fd))?;
        Ok(copy.as_raw() as c_int)
    })
}

/// chdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_chdir(process: Option<&FolioProcess>, path: Text) -> c_int {
    call("chdir", || {
        handle(process)?.process.chdir(path.path()?)?;
        Ok(0)
    })
}

/// getcwd(2): returns the length with the zero byte.
#[unsafe(no_mangle)]
pub extern "C" fn folio_getcwd(
    process: Option<&FolioProcess>,
    mut buf: TextOutput,
    size: usize,
) -> ssize_t {
    call("getcwd", || {
        let path = handle(process)?.process.getcwd()?;
        let buf = buf.bytes(size)?;
        let Some(to) = buf.get_mut(..=path.len()) else {
            return Err(Error::from(Errno::RANGE));
        };
        let (text, end) = to.split_at_mut(path.len());
        text.copy_from_slice(&path);
        end.fill(0);
        Ok(path.len() as isize + 1)
    })
}

/// umask(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_umask(process: Option<&FolioProcess>, mask: u32) -> c_int {
    call("umask", || {
        Ok(handle(process)?.process.umask(mask as u16).into())
    })
}

/// sync(2), but returns the first error.
#[unsafe(no_mangle)]
pub extern "C" fn folio_sync(process: Option<&FolioProcess>) -> c_int {
    call("sync", || {
        handle(process)?.process.sync()?;
        Ok(0)
    })
}
