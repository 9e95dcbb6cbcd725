//! The invalidator of /dev/fuse: writes notices to the local kernel.
//!
//! The kernel handles a notice within write(2). It takes the lock of the directory concerned, or
//! waits until no page of the file is being read, and the holder of that lock may wait for a reply.
//! So a thread that serves no request writes the notices, and no request waits for it (C1 of
//! `changes/mod.rs`).

use crate::changes::Invalidator;
use crate::wire::Notice;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

/// The kernel at the other end of a session.
pub(super) struct DeviceInvalidator(File);

impl DeviceInvalidator {
    /// `device` is a descriptor of the session.
    pub(super) fn new(device: OwnedFd) -> Self {
        Self(device.into())
    }

    /// Makes the kernel write back and drop the pages of a node from `offset` on.
    pub(super) fn flush(&self, node: u64, offset: u64) {
        // It fails for a node that the kernel does not know, and which has no pages then.
        let _ = self.send(Notice::Inode {
            node,
            offset: i64::try_from(offset).unwrap_or(0),
            len_bytes: 0,
        });
    }

    fn send(&self, notice: Notice<'_>) -> io::Result<()> {
        let mut message = Vec::new();
        notice.encode(&mut message);
        // One write is one message.
        (&self.0).write(&message).map(drop)
    }
}

impl Invalidator for DeviceInvalidator {
    fn invalidate_node(&self, node: u64, len_bytes: i64) -> io::Result<bool> {
        match self.send(Notice::Inode {
            node,
            offset: 0,
            len_bytes,
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

    fn prune_nodes(&self, nodes: &[u64]) -> io::Result<()> {
        self.send(Notice::Prune { nodes })
    }
}
