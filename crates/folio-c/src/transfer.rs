//! Transfers of several buffers, and between files.

use crate::argument::{Iovecs, fd, handle, offset};
use crate::call::call;
use crate::process::FolioProcess;
use folio::{Errno, Error, Result};
use libc::ssize_t;
use std::ffi::c_int;

/// readv(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_readv(
    process: Option<&FolioProcess>,
    fd: c_int,
    mut iov: Iovecs,
    iovcnt: c_int,
) -> ssize_t {
    call("readv", || {
        let process = &handle(process)?.process;
        Ok(process.readv(self::fd(fd), &mut iov.outputs(iovcnt)?)? as isize)
    })
}

/// preadv(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_preadv(
    process: Option<&FolioProcess>,
    fd: c_int,
    mut iov: Iovecs,
    iovcnt: c_int,
    offset: i64,
) -> ssize_t {
    call("preadv", || {
        let process = &handle(process)?.process;
        let offset = self::offset(offset)?;
        Ok(process.preadv(self::fd(fd), &mut iov.outputs(iovcnt)?, offset)? as isize)
    })
}

/// writev(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_writev(
    process: Option<&FolioProcess>,
    fd: c_int,
    iov: Iovecs,
    iovcnt: c_int,
) -> ssize_t {
    call("writev", || {
        let process = &handle(process)?.process;
        Ok(process.writev(self::fd(fd), &iov.inputs(iovcnt)?)? as isize)
    })
}

/// pwritev(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_pwritev(
    process: Option<&FolioProcess>,
    fd: c_int,
    iov: Iovecs,
    iovcnt: c_int,
    offset: i64,
) -> ssize_t {
    call("pwritev", || {
        let process = &handle(process)?.process;
        let offset = self::offset(offset)?;
        Ok(process.pwritev(self::fd(fd), &iov.inputs(iovcnt)?, offset)? as isize)
    })
}

/// sendfile(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_sendfile(
    process: Option<&FolioProcess>,
    out_fd: c_int,
    in_fd: c_int,
    offset: Option<&mut i64>,
    count: usize,
) -> ssize_t {
    call("sendfile", || {
        let process = &handle(process)?.process;
        let mut at = start(offset.as_deref())?;
        let copied = process.sendfile(fd(out_fd), fd(in_fd), at.as_mut(), count)?;
        advance(offset, at);
        Ok(copied as isize)
    })
}

/// copy_file_range(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_copy_file_range(
    process: Option<&FolioProcess>,
    fd_in: c_int,
    off_in: Option<&mut i64>,
    fd_out: c_int,
    off_out: Option<&mut i64>,
    size: usize,
    flags: u32,
) -> ssize_t {
    call("copy_file_range", || {
        let process = &handle(process)?.process;
        if flags != 0 {
            return Err(Error::from(Errno::INVAL));
        }
        let mut from = start(off_in.as_deref())?;
        let mut to = start(off_out.as_deref())?;
        let copied =
            process.copy_file_range(fd(fd_in), from.as_mut(), fd(fd_out), to.as_mut(), size)?;
        advance(off_in, from);
        advance(off_out, to);
        Ok(copied as isize)
    })
}

fn start(at: Option<&i64>) -> Result<Option<u64>> {
    at.map(|at| offset(*at)).transpose()
}

fn advance(offset: Option<&mut i64>, end: Option<u64>) {
    if let (Some(offset), Some(end)) = (offset, end) {
        *offset = end as i64;
    }
}
