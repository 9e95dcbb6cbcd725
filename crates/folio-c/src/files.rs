//! Open files: open, read, write, seek, list, allocate, sync, lock.

use crate::argument::{Input, Output, Text, directory_fd, fd, handle, offset};
use crate::call::call;
use crate::constants::*;
use crate::process::FolioProcess;
use folio::syscall::{FlockOperation, OpenFlags, Whence};
use folio::vfs::{FallocateMode, FileType};
use folio::{Errno, Error, Result};
use libc::ssize_t;
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ops::ControlFlow;

/// open(2). `mode` counts only if the call creates a file.
#[unsafe(no_mangle)]
pub extern "C" fn folio_open(
    process: Option<&FolioProcess>,
    path: Text,
    flags: c_int,
    mode: u32,
) -> c_int {
    call("open", || {
        openat(process, FOLIO_AT_FDCWD, &path, flags, mode)
    })
}

/// openat(2). `mode` counts only if the call creates a file.
#[unsafe(no_mangle)]
pub extern "C" fn folio_openat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    flags: c_int,
    mode: u32,
) -> c_int {
    call("openat", || openat(process, dirfd, &path, flags, mode))
}

fn openat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: &Text,
    flags: c_int,
    mode: u32,
) -> Result<c_int> {
    // As Linux does, ignores flags that it does not know.
    let flags = OpenFlags::from_bits_truncate(flags as u32);
    let process = &handle(process)?.process;
    let fd = process.openat(directory_fd(dirfd), path.path()?, flags, mode as u16)?;
    Ok(fd.as_raw() as c_int)
}

/// read(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_read(
    process: Option<&FolioProcess>,
    fd: c_int,
    mut buf: Output,
    count: usize,
) -> ssize_t {
    call("read", || {
        let process = &handle(process)?.process;
        Ok(process.read(self::fd(fd), buf.bytes(count)?)? as isize)
    })
}

/// pread(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_pread(
    process: Option<&FolioProcess>,
    fd: c_int,
    mut buf: Output,
    count: usize,
    offset: i64,
) -> ssize_t {
    call("pread", || {
        let process = &handle(process)?.process;
        let offset = self::offset(offset)?;
        Ok(process.pread(self::fd(fd), buf.bytes(count)?, offset)? as isize)
    })
}

/// write(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_write(
    process: Option<&FolioProcess>,
    fd: c_int,
    buf: Input,
    count: usize,
) -> ssize_t {
    call("write", || {
        let process = &handle(process)?.process;
        Ok(process.write(self::fd(fd), buf.bytes(count)?)? as isize)
    })
}

/// pwrite(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_pwrite(
    process: Option<&FolioProcess>,
    fd: c_int,
    buf: Input,
    count: usize,
    offset: i64,
) -> ssize_t {
    call("pwrite", || {
        let process = &handle(process)?.process;
        let offset = self::offset(offset)?;
        Ok(process.pwrite(self::fd(fd), buf.bytes(count)?, offset)? as isize)
    })
}

/// lseek(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_lseek(
    process: Option<&FolioProcess>,
    fd: c_int,
    offset: i64,
    whence: c_int,
) -> i64 {
    call("lseek", || {
        let process = &handle(process)?.process;
        let whence = match whence {
            FOLIO_SEEK_SET => Whence::Set,
            FOLIO_SEEK_CUR => Whence::Current,
            FOLIO_SEEK_END => Whence::End,
            FOLIO_SEEK_DATA => Whence::Data,
            FOLIO_SEEK_HOLE => Whence::Hole,
            _ => return Err(Error::from(Errno::INVAL)),
        };
        Ok(process.lseek(self::fd(fd), offset, whence)? as i64)
    })
}

/// One entry of a directory, as folio_getdents64() stores it: d_reclen bytes, the name ends in a
/// zero byte.
#[repr(C)]
pub struct FolioDirent {
    pub d_ino: u64,
    /// Position of the next entry, for folio_lseek().
    pub d_off: i64,
    pub d_reclen: u16,
    /// FOLIO_DT_*.
    pub d_type: u8,
    /// Only the bytes up to d_reclen are there.
    pub d_name: [c_char; 256],
}

/// getdents64(2): fills `dirp` with struct folio_dirent, and returns the number of bytes; 0 at the
/// end of the directory. `dirp` is aligned to 8 bytes.
#[unsafe(no_mangle)]
pub extern "C" fn folio_getdents64(
    process: Option<&FolioProcess>,
    fd: c_int,
    mut dirp: Output,
    count: usize,
) -> ssize_t {
    call("getdents64", || {
        let process = &handle(process)?.process;
        let buf = dirp.bytes(count)?;
        let mut done = 0;
        let mut is_full = false;
        process.getdents_with(self::fd(fd), &mut |entry| {
            let name_start = offset_of!(FolioDirent, d_name);
            let len = (name_start + entry.name.len() + 1).next_multiple_of(8);
            let Some(record) = buf.get_mut(done..done + len) else {
                is_full = true;
                return ControlFlow::Break(());
            };
            record.fill(0);
            let mut put =
                |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
            put(
                offset_of!(FolioDirent, d_ino),
                &entry.number.0.to_ne_bytes(),
            );
            put(
                offset_of!(FolioDirent, d_off),
                &entry.next_cookie.to_ne_bytes(),
            );
            put(
                offset_of!(FolioDirent, d_reclen),
                &(len as u16).to_ne_bytes(),
            );
            put(
                offset_of!(FolioDirent, d_type),
                &[directory_type(entry.file_type)],
            );
            put(name_start, entry.name);
            done += len;
            ControlFlow::Continue(())
        })?;
        if done == 0 && is_full {
            return Err(Error::from(Errno::INVAL));
        }
        Ok(done as isize)
    })
}

fn directory_type(file_type: Option<FileType>) -> u8 {
    match file_type {
        None => FOLIO_DT_UNKNOWN,
        Some(FileType::Fifo) => FOLIO_DT_FIFO,
        Some(FileType::CharacterDevice) => FOLIO_DT_CHR,
        Some(FileType::Directory) => FOLIO_DT_DIR,
        Some(FileType::BlockDevice) => FOLIO_DT_BLK,
        Some(FileType::Regular) => FOLIO_DT_REG,
        Some(FileType::Symlink) => FOLIO_DT_LNK,
        Some(FileType::Socket) => FOLIO_DT_SOCK,
    }
}

/// ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_ftruncate(process: Option<&FolioProcess>, fd: c_int, length: i64) -> c_int {
    call("ftruncate", || {
        let process = &handle(process)?.process;
        process.ftruncate(self::fd(fd), offset(length)?)?;
        Ok(0)
    })
}

/// fallocate(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fallocate(
    process: Option<&FolioProcess>,
    fd: c_int,
    mode: c_int,
    offset: i64,
    length: i64,
) -> c_int {
    const KEEP: c_int = FOLIO_FALLOC_FL_KEEP_SIZE;
    const PUNCH: c_int = FOLIO_FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO_KEEP: c_int = FOLIO_FALLOC_FL_ZERO_RANGE | KEEP;
    call("fallocate", || {
        let process = &handle(process)?.process;
        let (offset, length) = (self::offset(offset)?, self::offset(length)?);
        let mode = match mode {
            0 => FallocateMode::Allocate,
            KEEP => FallocateMode::AllocateKeepSize,
            PUNCH => FallocateMode::PunchHole,
            FOLIO_FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange,
            ZERO_KEEP => FallocateMode::ZeroRangeKeepSize,
            FOLIO_FALLOC_FL_COLLAPSE_RANGE => FallocateMode::CollapseRange,
            FOLIO_FALLOC_FL_INSERT_RANGE => FallocateMode::InsertRange,
            _ => return Err(Error::from(Errno::OPNOTSUPP)),
        };
        process.fallocate(self::fd(fd), mode, offset, length)?;
        Ok(0)
    })
}

/// fsync(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fsync(process: Option<&FolioProcess>, fd: c_int) -> c_int {
    call("fsync", || {
        handle(process)?.process.fsync(self::fd(fd))?;
        Ok(0)
    })
}

/// fdatasync(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fdatasync(process: Option<&FolioProcess>, fd: c_int) -> c_int {
    call("fdatasync", || {
        handle(process)?.process.fdatasync(self::fd(fd))?;
        Ok(0)
    })
}

/// syncfs(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_syncfs(process: Option<&FolioProcess>, fd: c_int) -> c_int {
    call("syncfs", || {
        handle(process)?.process.syncfs(self::fd(fd))?;
        Ok(0)
    })
}

/// flock(2). Locks exclude open files of the same kernel only, and a wait ends with the lock.
#[unsafe(no_mangle)]
pub extern "C" fn folio_flock(
    process: Option<&FolioProcess>,
    fd: c_int,
    operation: c_int,
) -> c_int {
    call("flock", || {
        let process = &handle(process)?.process;
        let operation = FlockOperation::from_bits(operation as u32).ok_or(Errno::INVAL)?;
        process.flock(self::fd(fd), operation)?;
        Ok(0)
    })
}
