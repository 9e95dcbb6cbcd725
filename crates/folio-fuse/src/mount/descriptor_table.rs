//! A table of descriptors of a thread's own, for a thread that makes calls on the mount that its
//! process serves.
//!
//! While such a thread waits for the server, the end of the other threads closes /dev/fuse, which
//! ends the wait. In a shared table it would not: a server that is killed would never end.
//! Linux: fs/fuse/dev.c, `request_wait_answer`; kernel/exit.c.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::thread::UnshareFlags;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

/// Gives the calling thread a table of its own, with the descriptor `kept` alone. A copy of a pipe
/// would keep its reader waiting.
pub(super) fn leave_shared_table(kept: Option<BorrowedFd<'_>>) -> Result<()> {
    // SAFETY: the calling thread opens what it uses, or uses `kept`, which has the same number in
    // its table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }?;
    let list = std::fs::read_dir("/proc/thread-self/fd").map_err(|_| Errno::NOENT)?;
    let numbers = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<_> = numbers.collect();
    for fd in numbers {
        if kept.is_none_or(|kept| kept.as_raw_fd() != fd) {
            // SAFETY: a copy in a private table, which no code uses; or the list of them, which is
            // closed already.
            unsafe { rustix::io::close(fd) };
        }
    }
    Ok(())
}

/// Makes the standard streams of the calling thread, which has left the shared table, lead nowhere:
/// else files that it opens would be them.
pub(super) fn close_standard_streams() -> Result<()> {
    loop {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        let _ = null.into_raw_fd();
    }
}
