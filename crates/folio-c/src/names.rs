//! Names: made, moved, removed, read.

use crate::argument::{Text, TextOutput, directory_fd, handle};
use crate::call::call;
use crate::constants::*;
use crate::process::FolioProcess;
use folio::syscall::AtFlags;
use folio::vfs::{DeviceNumber, FileType, RenameFlags};
use folio::{Errno, Error, Result};
use libc::ssize_t;
use std::ffi::c_int;

/// Returns the flags of an `*at` call; EINVAL for unknown ones.
pub(crate) fn at_flags(flags: c_int) -> Result<AtFlags> {
    Ok(AtFlags::from_bits(flags as u32).ok_or(Errno::INVAL)?)
}

/// mkdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_mkdir(process: Option<&FolioProcess>, path: Text, mode: u32) -> c_int {
    call("mkdir", || {
        handle(process)?.process.mkdir(path.path()?, mode as u16)?;
        Ok(0)
    })
}

/// mkdirat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_mkdirat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    mode: u32,
) -> c_int {
    call("mkdirat", || {
        let process = &handle(process)?.process;
        process.mkdirat(directory_fd(dirfd), path.path()?, mode as u16)?;
        Ok(0)
    })
}

/// mknodat(2). `dev` is encoded as by makedev(3).
#[unsafe(no_mangle)]
pub extern "C" fn folio_mknodat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    mode: u32,
    dev: u64,
) -> c_int {
    call("mknodat", || {
        let process = &handle(process)?.process;
        let file_type = match mode & FOLIO_S_IFMT {
            0 | FOLIO_S_IFREG => FileType::Regular,
            FOLIO_S_IFDIR => FileType::Directory,
            FOLIO_S_IFCHR => FileType::CharacterDevice,
            FOLIO_S_IFBLK => FileType::BlockDevice,
            FOLIO_S_IFIFO => FileType::Fifo,
            FOLIO_S_IFSOCK => FileType::Socket,
            _ => return Err(Error::from(Errno::INVAL)),
        };
        let device = DeviceNumber::new(libc::major(dev), libc::minor(dev));
        let mode = (mode & 0o7777) as u16;
        process.mknodat(directory_fd(dirfd), path.path()?, file_type, mode, device)?;
        Ok(0)
    })
}

/// unlink(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_unlink(process: Option<&FolioProcess>, path: Text) -> c_int {
    call("unlink", || {
        handle(process)?.process.unlink(path.path()?)?;
        Ok(0)
    })
}

/// unlinkat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_unlinkat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    flags: c_int,
) -> c_int {
    call("unlinkat", || {
        let process = &handle(process)?.process;
        process.unlinkat(directory_fd(dirfd), path.path()?, at_flags(flags)?)?;
        Ok(0)
    })
}

/// rmdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_rmdir(process: Option<&FolioProcess>, path: Text) -> c_int {
    call("rmdir", || {
        handle(process)?.process.rmdir(path.path()?)?;
        Ok(0)
    })
}

/// rename(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_rename(
    process: Option<&FolioProcess>,
    oldpath: Text,
    newpath: Text,
) -> c_int {
    call("rename", || {
        let process = &handle(process)?.process;
        process.rename(oldpath.path()?, newpath.path()?)?;
        Ok(0)
    })
}

/// renameat2(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_renameat2(
    process: Option<&FolioProcess>,
    olddirfd: c_int,
    oldpath: Text,
    newdirfd: c_int,
    newpath: Text,
    flags: u32,
) -> c_int {
    call("renameat2", || {
        let process = &handle(process)?.process;
        let (from, to) = (directory_fd(olddirfd), directory_fd(newdirfd));
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        process.renameat2(from, oldpath.path()?, to, newpath.path()?, flags)?;
        Ok(0)
    })
}

/// link(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_link(
    process: Option<&FolioProcess>,
    oldpath: Text,
    newpath: Text,
) -> c_int {
    call("link", || {
        let process = &handle(process)?.process;
        process.link(oldpath.path()?, newpath.path()?)?;
        Ok(0)
    })
}

/// linkat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_linkat(
    process: Option<&FolioProcess>,
    olddirfd: c_int,
    oldpath: Text,
    newdirfd: c_int,
    newpath: Text,
    flags: c_int,
) -> c_int {
    call("linkat", || {
        let process = &handle(process)?.process;
        let (from, to) = (directory_fd(olddirfd), directory_fd(newdirfd));
        process.linkat(from, oldpath.path()?, to, newpath.path()?, at_flags(flags)?)?;
        Ok(0)
    })
}

/// symlink(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_symlink(
    process: Option<&FolioProcess>,
    target: Text,
    linkpath: Text,
) -> c_int {
    call("symlink", || {
        let process = &handle(process)?.process;
        process.symlink(target.path()?, linkpath.path()?)?;
        Ok(0)
    })
}

/// symlinkat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_symlinkat(
    process: Option<&FolioProcess>,
    target: Text,
    newdirfd: c_int,
    linkpath: Text,
) -> c_int {
    call("symlinkat", || {
        let process = &handle(process)?.process;
        process.symlinkat(target.path()?, directory_fd(newdirfd), linkpath.path()?)?;
        Ok(0)
    })
}

/// readlink(2): the result has no zero byte, and is cut off after `bufsiz` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn folio_readlink(
    process: Option<&FolioProcess>,
    path: Text,
    buf: TextOutput,
    bufsiz: usize,
) -> ssize_t {
    call("readlink", || {
        readlinkat(process, FOLIO_AT_FDCWD, &path, buf, bufsiz)
    })
}

/// readlinkat(2): the result has no zero byte, and is cut off after `bufsiz` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn folio_readlinkat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    buf: TextOutput,
    bufsiz: usize,
) -> ssize_t {
    call("readlinkat", || {
        readlinkat(process, dirfd, &path, buf, bufsiz)
    })
}

fn readlinkat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: &Text,
    mut buf: TextOutput,
    bufsiz: usize,
) -> Result<isize> {
    let process = &handle(process)?.process;
    let buf = buf.bytes(bufsiz)?;
    if buf.is_empty() {
        return Err(Errno::INVAL.into());
    }
    let target = process.readlinkat(directory_fd(dirfd), path.path()?)?;
    let len = target.len().min(buf.len());
    buf[..len].copy_from_slice(&target[..len]);
    Ok(len as isize)
}

/// access(2), with FOLIO_R_OK, FOLIO_W_OK and FOLIO_X_OK.
#[unsafe(no_mangle)]
pub extern "C" fn folio_access(process: Option<&FolioProcess>, path: Text, mode: c_int) -> c_int {
    call("access", || {
        let process = &handle(process)?.process;
        let mode = u16::try_from(mode).map_err(|_| Errno::INVAL)?;
        process.access(path.path()?, mode)?;
        Ok(0)
    })
}
