//! Extended attributes. The prefix `f` takes a descriptor; the prefix `l` does not follow a
//! symbolic link in the last component.

use crate::argument::{Input, Output, Text, TextOutput, fd, handle};
use crate::call::call;
use crate::process::FolioProcess;
use folio::vfs::XattrFlags;
use folio::{Errno, Process, Result};
use libc::ssize_t;
use std::ffi::c_int;

/// The longest value. Linux: `XATTR_SIZE_MAX`.
const VALUE_MAX: usize = 65536;

/// The file of a call.
enum Target<'a> {
    Path(&'a Text),
    Link(&'a Text),
    Open(c_int),
}

/// getxattr(2): with a size of 0 returns the length of the value.
#[unsafe(no_mangle)]
pub extern "C" fn folio_getxattr(
    process: Option<&FolioProcess>,
    path: Text,
    name: Text,
    value: Output,
    size: usize,
) -> ssize_t {
    call("getxattr", || {
        get(process, Target::Path(&path), &name, value, size)
    })
}

/// lgetxattr(2): with a size of 0 returns the length of the value.
#[unsafe(no_mangle)]
pub extern "C" fn folio_lgetxattr(
    process: Option<&FolioProcess>,
    path: Text,
    name: Text,
    value: Output,
    size: usize,
) -> ssize_t {
    call("lgetxattr", || {
        get(process, Target::Link(&path), &name, value, size)
    })
}

/// fgetxattr(2): with a size of 0 returns the length of the value.
#[unsafe(no_mangle)]
pub extern "C" fn folio_fgetxattr(
    process: Option<&FolioProcess>,
    fd: c_int,
    name: Text,
    value: Output,
    size: usize,
) -> ssize_t {
    call("fgetxattr", || {
        get(process, Target::Open(fd), &name, value, size)
    })
}

fn get(
    process: Option<&FolioProcess>,
    target: Target<'_>,
    name: &Text,
    mut value: Output,
    size: usize,
) -> Result<isize> {
    let (process, name) = (&handle(process)?.process, name.bytes()?);
    let found = match target {
        Target::Path(path) => process.getxattr(path.path()?, name),
        Target::Link(path) => process.lgetxattr(path.path()?, name),
        Target::Open(number) => process.fgetxattr(fd(number), name),
    }?;
    fill(value.bytes(size)?, &found)
}

/// Stores a result in a buffer; an empty buffer asks for its length.
fn fill(buf: &mut [u8], found: &[u8]) -> Result<isize> {
    if !buf.is_empty() {
        buf.get_mut(..found.len())
            .ok_or(Errno::RANGE)?
            .copy_from_slice(found);
    }
    Ok(found.len() as isize)
}

/// setxattr(2), with FOLIO_XATTR_*.
#[unsafe(no_mangle)]
pub extern "C" fn folio_setxattr(
    process: Option<&FolioProcess>,
    path: Text,
    name: Text,
    value: Input,
    size: usize,
    flags: c_int,
) -> c_int {
    call("setxattr", || {
        set(process, Target::Path(&path), &name, &value, size, flags)
    })
}

/// lsetxattr(2), with FOLIO_XATTR_*.
#[unsafe(no_mangle)]
pub extern "C" fn folio_lsetxattr(
    process: Option<&FolioProcess>,
    path: Text,
    name: Text,
    value: Input,
    size: usize,
    flags: c_int,
) -> c_int {
    call("lsetxattr", || {
        set(process, Target::Link(&path), &name, &value, size, flags)
    })
}

/// fsetxattr(2), with FOLIO_XATTR_*.
#[unsafe(no_mangle)]
pub extern "C" fn folio_fsetxattr(
    process: Option<&FolioProcess>,
    fd: c_int,
    name: Text,
    value: Input,
    size: usize,
    flags: c_int,
) -> c_int {
    call("fsetxattr", || {
        set(process, Target::Open(fd), &name, &value, size, flags)
    })
}

fn set(
    process: Option<&FolioProcess>,
    target: Target<'_>,
    name: &Text,
    value: &Input,
    size: usize,
    flags: c_int,
) -> Result<c_int> {
    let (process, name) = (&handle(process)?.process, name.bytes()?);
    let flags = XattrFlags::from_bits(flags as u32).ok_or(Errno::INVAL)?;
    if size > VALUE_MAX {
        return Err(Errno::TOOBIG.into());
    }
    let value = value.bytes(size)?;
    match target {
        Target::Path(path) => process.setxattr(path.path()?, name, value, flags),
        Target::Link(path) => process.lsetxattr(path.path()?, name, value, flags),
        Target::Open(number) => process.fsetxattr(fd(number), name, value, flags),
    }?;
    Ok(0)
}

/// listxattr(2): with a size of 0 returns the length of the list.
#[unsafe(no_mangle)]
pub extern "C" fn folio_listxattr(
    process: Option<&FolioProcess>,
    path: Text,
    list: TextOutput,
    size: usize,
) -> ssize_t {
    call("listxattr", || {
        self::list(process, Target::Path(&path), list, size)
    })
}

/// llistxattr(2): with a size of 0 returns the length of the list.
#[unsafe(no_mangle)]
pub extern "C" fn folio_llistxattr(
    process: Option<&FolioProcess>,
    path: Text,
    list: TextOutput,
    size: usize,
) -> ssize_t {
    call("llistxattr", || {
        self::list(process, Target::Link(&path), list, size)
    })
}

/// flistxattr(2): with a size of 0 returns the length of the list.
#[unsafe(no_mangle)]
pub extern "C" fn folio_flistxattr(
    process: Option<&FolioProcess>,
    fd: c_int,
    list: TextOutput,
    size: usize,
) -> ssize_t {
    call("flistxattr", || {
        self::list(process, Target::Open(fd), list, size)
    })
}

fn list(
    process: Option<&FolioProcess>,
    target: Target<'_>,
    mut list: TextOutput,
    size: usize,
) -> Result<isize> {
    let process = &handle(process)?.process;
    let names = match target {
        Target::Path(path) => process.listxattr(path.path()?),
        Target::Link(path) => process.llistxattr(path.path()?),
        Target::Open(number) => process.flistxattr(fd(number)),
    }?;
    let mut bytes = Vec::new();
    for name in names {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    fill(list.bytes(size)?, &bytes)
}

/// removexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_removexattr(
    process: Option<&FolioProcess>,
    path: Text,
    name: Text,
) -> c_int {
    call("removexattr", || {
        remove(process, |process| {
            process.removexattr(path.path()?, name.bytes()?)
        })
    })
}

/// lremovexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_lremovexattr(
    process: Option<&FolioProcess>,
    path: Text,
    name: Text,
) -> c_int {
    call("lremovexattr", || {
        remove(process, |process| {
            process.lremovexattr(path.path()?, name.bytes()?)
        })
    })
}

/// fremovexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fremovexattr(
    process: Option<&FolioProcess>,
    fd: c_int,
    name: Text,
) -> c_int {
    call("fremovexattr", || {
        remove(process, |process| {
            process.fremovexattr(self::fd(fd), name.bytes()?)
        })
    })
}

fn remove(
    process: Option<&FolioProcess>,
    remove: impl FnOnce(&Process) -> Result<()>,
) -> Result<c_int> {
    remove(&handle(process)?.process)?;
    Ok(0)
}
