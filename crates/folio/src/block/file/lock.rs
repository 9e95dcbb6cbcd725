//! Image locks: exclude a second writer, QEMU or Folio.
//!
//! QEMU (docs/system/images.rst, "image locking"): one byte of the file represents one permission.
//! A process holds a shared lock on byte 100+p while it uses permission p, and on byte 200+p while
//! no other process may use p. Before it starts, it tests whether another open file holds the
//! opposite byte. The locks are open file description locks (fcntl(2), F_OFD_SETLK): two opens in
//! one process exclude each other as well.

use super::holder::holders;
use crate::base::{Detail, Errno, Error, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;

/// First byte of the locks "this permission is in use".
const USED_BASE: i64 = 100;
/// First byte of the locks "no other process may use this permission".
const EXCLUDED_BASE: i64 = 200;

/// QEMU's permissions that matter here, by bit number (include/block/block-common.h).
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Takes the locks of a reader or of a writer, until [`release`]. On a host file system without
/// such locks it takes none, as QEMU does.
///
/// # Errors
///
/// EBUSY if another open file's lock forbids it.
pub(crate) fn acquire(file: &File, read_only: bool) -> Result<()> {
    let taken = try_acquire(file, read_only);
    if taken.is_err() {
        release(file);
    }
    taken
}

/// Releases all locks. Closing the file is not enough: a process that was just forked has a copy of
/// the descriptor until it executes its program.
pub(crate) fn release(file: &File) {
    let mut all = byte_lock(libc::F_UNLCK, USED_BASE);
    all.l_len = EXCLUDED_BASE + (EXCLUDED_BASE - USED_BASE) - USED_BASE;
    // On a host without such locks there is none to release.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&all));
}

/// Changes the locks of a writer to those of a reader, without a moment in between.
#[cfg(feature = "qcow2")]
pub(crate) fn downgrade(file: &File) {
    for permission in [WRITE, RESIZE] {
        // On a host without such locks there is none to release.
        let unlocked = byte_lock(libc::F_UNLCK, USED_BASE + permission);
        let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&unlocked));
    }
}

fn try_acquire(file: &File, read_only: bool) -> Result<()> {
    let used: &[i64] = if read_only {
        &[CONSISTENT_READ]
    } else {
        &[CONSISTENT_READ, WRITE, RESIZE]
    };
    let excluded = [WRITE, RESIZE];
    // Takes its own locks before it tests for locks of other processes: of two that start at once,
    // at least one detects the other.
    for byte in used
        .iter()
        .map(|p| USED_BASE + p)
        .chain(excluded.iter().map(|p| EXCLUDED_BASE + p))
    {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&byte_lock(libc::F_RDLCK, byte))) {
            Ok(_) => {}
            Err(nix::Error::EAGAIN | nix::Error::EACCES) => {
                return Err(busy(file, "holds it exclusively"));
            }
            Err(
                nix::Error::ENOLCK
                | nix::Error::EINVAL
                | nix::Error::EOPNOTSUPP
                | nix::Error::ENOSYS,
            ) => {
                return Ok(());
            }
            Err(errno) => return Err(Error::io("lock", errno.into())),
        }
    }
    for permission in used {
        if is_held(file, EXCLUDED_BASE + permission)? {
            return Err(busy(
                file,
                match *permission {
                    CONSISTENT_READ => "excludes readers",
                    _ => "reads it and excludes writers",
                },
            ));
        }
    }
    for permission in excluded {
        if is_held(file, USED_BASE + permission)? {
            return Err(busy(file, "writes it"));
        }
    }
    Ok(())
}

/// Fails if another open file is a disk image in use: written, or read without writers.
///
/// # Errors
///
/// EBUSY, with [`Detail::ImageInUse`].
pub fn check_unused(file: &File) -> Result<()> {
    for (byte, how) in [
        (USED_BASE + WRITE, "writes it"),
        (EXCLUDED_BASE + WRITE, "reads it and excludes writers"),
    ] {
        // On a host file system without such locks there is none.
        let Ok(held) = held_lock(file, byte) else {
            continue;
        };
        // Other programs lock a file as a whole, or from its start; the kernel joins the locks of
        // neighboring bytes.
        let end = held.l_start + held.l_len;
        let is_of_image = held.l_start >= USED_BASE && held.l_len > 0 && end <= EXCLUDED_BASE + 100;
        if i32::from(held.l_type) != libc::F_UNLCK && is_of_image {
            return Err(busy(file, how));
        }
    }
    Ok(())
}

/// Whether another open file has any lock on this byte.
fn is_held(file: &File, byte: i64) -> Result<bool> {
    Ok(i32::from(held_lock(file, byte)?.l_type) != libc::F_UNLCK)
}

/// Returns a lock of another open file on this byte; its type is F_UNLCK if there is none.
fn held_lock(file: &File, byte: i64) -> Result<libc::flock> {
    let mut lock = byte_lock(libc::F_WRLCK, byte);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))
        .map_err(|errno| Error::io("lock", errno.into()))?;
    Ok(lock)
}

fn busy(file: &File, how: &str) -> Error {
    let holders = holders(file);
    let user = if !holders.is_own {
        "another process"
    } else if holders.others.is_empty() {
        "this process"
    } else {
        "this process or another one"
    };
    let mut text = format!("the image is in use by {user} (which {how})");
    if !holders.others.is_empty() {
        text = format!("{text}: {}", holders.others.join(", "));
    }
    Error::new(Errno::BUSY, text).about(Detail::ImageInUse)
}

fn byte_lock(kind: i32, byte: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        // Must be zero for open file description locks.
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_excludes_all_and_readers_share() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .open(file.path())
                .unwrap()
        };
        let (first, second) = (open(), open());
        acquire(&first, true).unwrap();
        acquire(&second, true).unwrap();
        let third = open();
        let error = acquire(&third, false).unwrap_err();
        assert_eq!(error.errno(), Errno::BUSY);
        assert!(
            error.to_string().contains("in use by this process"),
            "{error}"
        );
        drop((first, second, third));
        let (first, second) = (open(), open());
        acquire(&first, false).unwrap();
        assert_eq!(acquire(&second, false).unwrap_err().errno(), Errno::BUSY);
        drop(second);
        let second = open();
        assert_eq!(acquire(&second, true).unwrap_err().errno(), Errno::BUSY);
    }
}
