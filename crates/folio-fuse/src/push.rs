//! Notices to the kernel behind /dev/fuse: what it must not believe any longer. Protocol:
//! linux/fuse.h.
//!
//! The kernel handles a notice while it is written: it takes the lock of the directory that is
//! named, or waits until no page of the file is being read. Whoever has that lock may be waiting
//! for a reply. So notices are written by a thread that answers no request, and nobody who answers
//! one waits for it (A4).

use crate::adapter::Invalidator;
use crate::wire::Notice;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

/// The kernel that has opened a session.
pub(crate) struct Device(File);

impl Device {
    /// `device` is a descriptor of the session's.
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self(device.into())
    }

    fn send(&self, notice: Notice<'_>) -> io::Result<()> {
        let mut message = Vec::new();
        notice.encode(&mut message);
        // One write is one message.
        (&self.0).write(&message).map(drop)
    }
}

impl Invalidator for Device {
    fn invalidate_node(&self, node: u64) -> io::Result<bool> {
        match self.send(Notice::Inode {
            node,
            offset: 0,
            len_bytes: 0,
        }) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.send(Notice::Entry { parent, name })
    }

    fn invalidate_all_names(&self) -> io::Result<()> {
        self.send(Notice::Names)
    }
}
