//! The ioctl(2)s of /dev/fuse, of Folio's mounts and of loop devices. Linux: linux/fuse.h,
//! `FUSE_DEV_IOC_*`; linux/loop.h.
#![allow(unsafe_code)]

use crate::wire::abi::{NOTIFY, NOTIFY_LEN, REMOUNT, REMOUNT_LEN};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use std::ffi::c_void;

/// The type in the request numbers (`FUSE_DEV_IOC_MAGIC`).
const MAGIC: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
const BACKING_OPEN: Opcode = opcode::write::<BackingMap>(MAGIC, 1);
const BACKING_CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);

const LOOP_GET_FREE: Opcode = 0x4c82;
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const FLUSH_BLOCK_DEVICE: Opcode = opcode::none(0x12, 97);
/// `LO_FLAGS_AUTOCLEAR`: the file is detached at the last close.
const LOOP_AUTOCLEAR: u32 = 4;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `struct loop_config` with its `struct loop_info64`: the whole file.
#[repr(C)]
struct LoopConfig {
    file: i32,
    block_size: u32,
    range: [u64; 5],
    encryption: [u32; 3],
    flags: u32,
    names_and_key: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// One ioctl with its argument.
struct DeviceIoctl<const OPCODE: Opcode, Argument>(Argument);

// SAFETY: each of the ioctls reads one argument, of the type that it is constructed with below, or
// none, and writes none; it returns a number.
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

/// Sends a word to the server of the mount that holds `file`.
pub(crate) fn remount(file: BorrowedFd<'_>, word: [u8; REMOUNT_LEN]) -> Result<()> {
    const CODE: Opcode = REMOUNT as Opcode;
    // SAFETY: the argument is the word that the call reads (`fuse_do_ioctl`).
    unsafe { ioctl(file, DeviceIoctl::<CODE, [u8; REMOUNT_LEN]>(word)) }.map(drop)
}

/// Asks the server of the mount that holds `file` for a call of a notifier; `argument` is that of
/// [`NOTIFY`], and its reply.
pub(crate) fn notify(file: BorrowedFd<'_>, argument: &mut [u8; NOTIFY_LEN]) -> Result<()> {
    const CODE: Opcode = NOTIFY as Opcode;
    // SAFETY: the call reads and writes an array of this length, which its number states
    // (`fuse_do_ioctl`).
    let updater = unsafe { Updater::<CODE, _>::new(argument) };
    // SAFETY: as above.
    unsafe { ioctl(file, updater) }
}

/// Returns the number of a loop device that is free now. `control` is /dev/loop-control.
pub(crate) fn free_loop_device(control: BorrowedFd<'_>) -> Result<u32> {
    // SAFETY: the call has no argument (`loop_control_ioctl`).
    unsafe { ioctl(control, DeviceIoctl::<LOOP_GET_FREE, u32>(0)) }
        .map(|number| number.cast_unsigned())
}

/// Attaches `file` to a free loop device, until the device is closed; EBUSY if it is not free.
pub(crate) fn attach_loop_device(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<()> {
    let config = LoopConfig {
        file: file.as_raw_fd(),
        block_size: 0,
        range: [0; 5],
        encryption: [0; 3],
        flags: LOOP_AUTOCLEAR,
        names_and_key: [0; 160],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the argument is the struct that the call reads (`lo_ioctl`).
    unsafe { ioctl(device, DeviceIoctl::<LOOP_CONFIGURE, LoopConfig>(config)) }.map(drop)
}

/// Syncs the file system mounted from a block device, and drops the device's own cache.
pub(crate) fn flush_block_device(device: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the call has no argument (`blkdev_flushbuf`).
    unsafe { ioctl(device, DeviceIoctl::<FLUSH_BLOCK_DEVICE, u32>(0)) }.map(drop)
}
