//! The ioctl(2)s of /dev/fuse. Linux: linux/fuse.h, `FUSE_DEV_IOC_*`.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;

/// What the numbers of the calls are made of (`FUSE_DEV_IOC_MAGIC`).
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

/// A call and what it is told.
struct Call<const OPCODE: Opcode, Argument>(Argument);

// SAFETY: each of the three calls reads one argument, of the type that it is made with below, and
// writes none; what it returns is a number.
unsafe impl<const OPCODE: Opcode, Argument> Ioctl for Call<OPCODE, Argument> {
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

/// Makes `device`, opened just now, one more way to the requests of a session.
pub(crate) fn join(device: BorrowedFd<'_>, session: BorrowedFd<'_>) -> Result<()> {
    let session = session.as_raw_fd().cast_unsigned();
    // SAFETY: the argument is a descriptor's number (`fuse_dev_ioctl_clone`).
    unsafe { ioctl(device, Call::<CLONE, u32>(session)) }.map(drop)
}

/// Registers a file that the kernel may read and write in the place of one of the session; returns
/// its number there.
pub(crate) fn open_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<u32> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: the argument is the struct that the call reads (`fuse_dev_ioctl_backing_open`).
    unsafe { ioctl(device, Call::<BACKING_OPEN, BackingMap>(map)) }.map(|id| id.cast_unsigned())
}

/// Takes a file back; open files that use it go on.
pub(crate) fn close_backing(device: BorrowedFd<'_>, id: u32) -> Result<()> {
    // SAFETY: the argument is a number (`fuse_dev_ioctl_backing_close`).
    unsafe { ioctl(device, Call::<BACKING_CLOSE, u32>(id)) }.map(drop)
}
