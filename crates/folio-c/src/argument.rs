//! Pointers that C programs pass, as types that check them for null.
//!
//! Each type has the layout of its pointer, and only C programs make values of it. They vouch for
//! the memory: see the contract at the crate's front.

use folio::syscall::{AT_FDCWD, Fd};
use folio::{Errno, Error, Result};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

/// Maximum number of bytes that one call transfers. Linux: `MAX_RW_COUNT`.
const TRANSFER_MAX: usize = 0x7fff_f000;
/// Maximum number of buffers of one call. Linux: `UIO_MAXIOV`.
const BUFFERS_MAX: usize = 1024;
/// A descriptor that no process has.
const NO_FD: Fd = Fd::from_raw(u32::MAX - 1);

/// A string that may be null.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// Returns the bytes; `None` for a null pointer.
    #[inline]
    pub(crate) fn get(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, so a string that ends in a zero byte; it lasts for the call.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// Returns the bytes; EFAULT for a null pointer.
    #[inline]
    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        self.get().ok_or_else(null)
    }

    /// Returns the string as a path; EFAULT for a null pointer.
    #[inline]
    pub(crate) fn path(&self) -> Result<&Path> {
        Ok(Path::new(OsStr::from_bytes(self.bytes()?)))
    }

    /// Returns the string as text; `what` names it in the error.
    pub(crate) fn text(&self, what: &'static str) -> Result<Option<&str>> {
        let text = self.get().map(str::from_utf8).transpose();
        text.map_err(|_| Error::new(Errno::INVAL, format!("{what} is not valid UTF-8")))
    }
}

/// Bytes that a call reads.
#[repr(transparent)]
pub struct Input(*const c_void);

impl Input {
    /// Returns the first `len_bytes` bytes; EFAULT for a null pointer, unless there are none.
    #[inline]
    pub(crate) fn bytes(&self, len_bytes: usize) -> Result<&[u8]> {
        let len_bytes = len_bytes.min(TRANSFER_MAX);
        match (self.0.is_null(), len_bytes) {
            (true, 0) => Ok(&[]),
            (true, _) => Err(null()),
            // SAFETY: not null, so memory of this length; it lasts for the call.
            _ => Ok(unsafe { slice::from_raw_parts(self.0.cast::<u8>(), len_bytes) }),
        }
    }
}

/// Bytes that a call writes.
#[repr(transparent)]
pub struct Output(*mut c_void);

impl Output {
    /// Returns the first `len_bytes` bytes; EFAULT for a null pointer, unless there are none.
    #[inline]
    pub(crate) fn bytes(&mut self, len_bytes: usize) -> Result<&mut [u8]> {
        buffer(self.0, len_bytes)
    }
}

/// A string that a call writes.
#[repr(transparent)]
pub struct TextOutput(*mut c_char);

impl TextOutput {
    /// Returns the first `len_bytes` bytes; EFAULT for a null pointer, unless there are none.
    pub(crate) fn bytes(&mut self, len_bytes: usize) -> Result<&mut [u8]> {
        buffer(self.0.cast(), len_bytes)
    }
}

#[inline]
fn buffer<'a>(start: *mut c_void, len_bytes: usize) -> Result<&'a mut [u8]> {
    let len_bytes = len_bytes.min(TRANSFER_MAX);
    match (start.is_null(), len_bytes) {
        (true, 0) => Ok(&mut []),
        (true, _) => Err(null()),
        // SAFETY: not null, so memory of this length that no other thread uses during the call. The
        // library writes it before it reads it.
        _ => Ok(unsafe { slice::from_raw_parts_mut(start.cast::<u8>(), len_bytes) }),
    }
}

/// A buffer of folio_readv() or folio_writev(): `struct iovec`.
#[repr(C)]
pub struct FolioIovec {
    pub iov_base: *mut c_void,
    pub iov_len: usize,
}

/// An array of buffers.
#[repr(transparent)]
pub struct Iovecs(*const FolioIovec);

impl Iovecs {
    fn all(&self, count: c_int) -> Result<&[FolioIovec]> {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if count > BUFFERS_MAX {
            return Err(Errno::INVAL.into());
        }
        match (self.0.is_null(), count) {
            (_, 0) => Ok(&[]),
            (true, _) => Err(null()),
            // SAFETY: not null, so an array of this length; it lasts for the call.
            _ => Ok(unsafe { slice::from_raw_parts(self.0, count) }),
        }
    }

    /// Returns the buffers as the source of a write.
    pub(crate) fn inputs(&self, count: c_int) -> Result<Vec<IoSlice<'_>>> {
        let buffers = self.all(count)?.iter();
        let bytes = buffers.map(|buffer| Ok(IoSlice::new(buffer_bytes(buffer)?)));
        bytes.collect()
    }

    /// Returns the buffers as the target of a read.
    pub(crate) fn outputs(&mut self, count: c_int) -> Result<Vec<IoSliceMut<'_>>> {
        let buffers = self.all(count)?.iter();
        let bytes = buffers.map(|buffer| Ok(IoSliceMut::new(buffer_bytes(buffer)?)));
        bytes.collect()
    }
}

/// A time: seconds since 1970, and nanoseconds.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FolioTimespec {
    pub tv_sec: i64,
    pub tv_nsec: i64,
}

/// The two times of folio_utimensat(): access, modification.
#[repr(transparent)]
pub struct Times(*const FolioTimespec);

impl Times {
    /// Returns the times; `None` for a null pointer.
    pub(crate) fn get(&self) -> Option<&[FolioTimespec; 2]> {
        // SAFETY: null, or two times that last for the call.
        unsafe { self.0.cast::<[FolioTimespec; 2]>().as_ref() }
    }
}

fn buffer_bytes(iovec: &FolioIovec) -> Result<&mut [u8]> {
    if iovec.iov_len > isize::MAX as usize {
        return Err(Errno::INVAL.into());
    }
    buffer(iovec.iov_base, iovec.iov_len)
}

/// A descriptor as a call has it: negative ones are not open.
#[inline]
pub(crate) fn fd(number: c_int) -> Fd {
    u32::try_from(number).map_or(NO_FD, Fd::from_raw)
}

/// A descriptor of a directory, or `AT_FDCWD`.
#[inline]
pub(crate) fn directory_fd(number: c_int) -> Fd {
    if number == crate::constants::FOLIO_AT_FDCWD {
        AT_FDCWD
    } else {
        fd(number)
    }
}

/// Returns the object of a handle; EINVAL for a null pointer.
#[inline]
pub(crate) fn handle<T>(handle: Option<T>) -> Result<T> {
    handle.ok_or_else(null_handle)
}

/// Stores a result; EFAULT for a null pointer.
#[inline]
pub(crate) fn store<T>(out: Option<&mut MaybeUninit<T>>, value: T) -> Result<()> {
    out.ok_or_else(null)?.write(value);
    Ok(())
}

/// Returns a size or offset; EINVAL if it is negative.
#[inline]
pub(crate) fn offset(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| Errno::INVAL.into())
}

#[cold]
pub(crate) fn null() -> Error {
    Error::new(Errno::FAULT, "a pointer is null")
}

#[cold]
fn null_handle() -> Error {
    Error::new(Errno::INVAL, "the handle is null")
}
