//! A device that the program implements, as a block device of the library.

use crate::argument::null;
use crate::fork;
use crate::options::{self, Growable};
use folio::block::{Allocation, Device};
use folio::{Errno, Error, Result};
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A device of the program's own. Any thread may make any call at any time, also threads of the
/// library. A call returns 0 or -errno, and neither throws nor calls longjmp(). Offsets and lengths
/// are multiples of nothing in particular.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FolioDeviceOps {
    /// sizeof(struct folio_device_ops).
    pub size: usize,
    /// Reads `count` bytes at `offset`, all of them.
    pub read: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            buf: *mut c_void,
            count: usize,
            offset: u64,
        ) -> c_int,
    >,
    /// Writes `count` bytes at `offset`, all of them. Null for a device that is read only.
    pub write: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            buf: *const c_void,
            count: usize,
            offset: u64,
        ) -> c_int,
    >,
    /// Makes earlier writes survive a power cut. Null if they do without it.
    pub flush: Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>,
    /// Notes that a range is no longer needed. Null if that is of no use.
    pub discard:
        Option<unsafe extern "C" fn(context: *mut c_void, offset: u64, count: u64) -> c_int>,
    /// Returns the size in bytes, which does not change.
    pub device_size: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Called once, after the last other call. May be null.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

// SAFETY: a `usize`, and function pointers that may be null.
unsafe impl Growable for FolioDeviceOps {}

/// The program's device.
struct OwnDevice {
    ops: FolioDeviceOps,
    context: *mut c_void,
    len_bytes: u64,
}

// SAFETY: the program promises that any thread may make any call with the context.
unsafe impl Send for OwnDevice {}
// SAFETY: as above.
unsafe impl Sync for OwnDevice {}

/// Returns the device of a program.
///
/// # Safety
///
/// `ops` is null, or a struct of the size that its first field states, whose functions accept
/// `context` until they are released.
pub(crate) unsafe fn device_of(
    ops: *const FolioDeviceOps,
    context: *mut c_void,
) -> Result<Arc<dyn Device>> {
    // SAFETY: by this function's contract.
    let ops: FolioDeviceOps = unsafe { options::require(ops) }?;
    let mut device = OwnDevice {
        ops,
        context,
        len_bytes: 0,
    };
    let size = ops.device_size.filter(|_| ops.read.is_some());
    let size = size.ok_or_else(|| {
        Error::new(
            Errno::INVAL,
            "a device needs the functions read and device_size",
        )
    })?;
    fork::note_use();
    // SAFETY: a function of the program, with its context.
    device.len_bytes = unsafe { size(context) };
    Ok(Arc::new(device))
}

impl OwnDevice {
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len_bytes => Ok(()),
            _ => Err(Error::new(Errno::IO, "the range leaves the device")),
        }
    }

    fn check_change(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        Ok(())
    }
}

/// Returns the result of a program's function; `operation` names it.
fn checked(operation: &'static str, result: c_int) -> Result<()> {
    if result == 0 {
        return Ok(());
    }
    // A program that returns anything but an errno has failed somehow.
    let errno = result
        .checked_neg()
        .filter(|errno| (1..4096).contains(errno));
    let errno = errno.map_or(Errno::IO, Errno::from_raw_os_error);
    Err(Error::from(errno).at(operation).at("device of the program"))
}

impl Device for OwnDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.ops.write.is_none()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check_range(offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        let read = self.ops.read.ok_or_else(null)?;
        let mut at = offset;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            // SAFETY: a function of the program, with its context and a buffer of this length.
            let result = unsafe { read(self.context, buf.as_mut_ptr().cast(), buf.len(), at) };
            checked("read", result)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check_change(offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        let write = self.ops.write.ok_or(Errno::ROFS)?;
        let mut at = offset;
        for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
            // SAFETY: a function of the program, with its context and a buffer of this length.
            let result = unsafe { write(self.context, buf.as_ptr().cast(), buf.len(), at) };
            checked("write", result)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let Some(flush) = self.ops.flush else {
            return Ok(());
        };
        // SAFETY: a function of the program, with its context.
        checked("flush", unsafe { flush(self.context) })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_change(offset, len_bytes)?;
        let Some(discard) = self.ops.discard else {
            return Ok(());
        };
        // SAFETY: a function of the program, with its context.
        checked("discard", unsafe {
            discard(self.context, offset, len_bytes)
        })
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_change(offset, len_bytes)?;
        self.write_allocated_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.check_range(offset, len_bytes)?;
        Ok((Allocation::Data, len_bytes))
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        if let Some(release) = self.ops.release {
            // SAFETY: a function of the program, with its context; no call follows.
            unsafe { release(self.context) };
        }
    }
}
