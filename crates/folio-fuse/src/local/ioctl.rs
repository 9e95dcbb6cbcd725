//! The ioctl(2)s of /dev/fuse. Linux: linux/fuse.h, `FUSE_DEV_IOC_*`.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;

/// The type in the request numbers (`FUSE_DEV_IOC_MAGIC`).
const MAGIC: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
const BACKING_OPEN: Opcode = opcode::write::<BackingMap>(MAGIC, 1);
const BACKING_CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// One ioctl with its argument.
struct DeviceIoctl<const OPCODE: Opcode, Argument>(Argument);

// SAFETY: each of the three ioctls reads one argument, of the type that it is constructed with
// below, and writes none; it returns a number.
unsafe impl<const OPCODE: Opcode, Argument> Ioctl for DeviceIoctl<OPCODE, Argument> {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> Result<IoctlOutput> {
        Ok(output)
    }
}

/// Connects `device`, newly opened, to the session of another descriptor, so that requests can be
/// read from both.
pub(crate) fn join(device: BorrowedFd<'_>, session: BorrowedFd<'_>) -> Result<()> {
    let session = session.as_raw_fd().cast_unsigned();
    // SAFETY: the argument is a descriptor's number (`fuse_dev_ioctl_clone`).
    unsafe { ioctl(device, DeviceIoctl::<CLONE, u32>(session)) }.map(drop)
}

/// Registers a file that the kernel may read and write instead of sending requests; returns its id
/// in the session.
pub(crate) fn open_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<u32> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: the argument is the struct that the call reads (`fuse_dev_ioctl_backing_open`).
    unsafe { ioctl(device, DeviceIoctl::<BACKING_OPEN, BackingMap>(map)) }
        .map(|id| id.cast_unsigned())
}

/// Unregisters a file; open files that use it stay usable.
pub(crate) fn close_backing(device: BorrowedFd<'_>, id: u32) -> Result<()> {
    // SAFETY: the argument is a number (`fuse_dev_ioctl_backing_close`).
    unsafe { ioctl(device, DeviceIoctl::<BACKING_CLOSE, u32>(id)) }.map(drop)
}
