//! Notices to the kernel behind /dev/fuse: what it must not believe any longer. Protocol: linux/fuse.h.
//!
//! The kernel handles a notice while it is written: it takes the lock of the directory that is named, or waits until no
//! page of the file is being read. Whoever has that lock may be waiting for a reply. So notices are written by a thread
//! that answers no request, and nobody who answers one waits for it (A4).

use crate::adapter::Notify;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, Write};

/// `FUSE_NOTIFY_INVAL_INODE`, `_INVAL_ENTRY`, and `_INC_EPOCH` (Linux 6.16).
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
/// `struct fuse_out_header`: length, code, and no request that is answered.
const HEADER_LEN: usize = 16;

/// The kernel that has opened a session.
pub(crate) struct Device(File);

impl Device {
    /// `device` is a descriptor of the session's.
    pub(crate) fn new(device: std::os::fd::OwnedFd) -> Self {
        Self(device.into())
    }

    fn send(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        let len = HEADER_LEN + body.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        let parts: Vec<_> = [&header[..]].iter().chain(body).map(|part| IoSlice::new(part)).collect();
        // One write is one message.
        (&self.0).write_vectored(&parts).map(drop)
    }
}

impl Notify for Device {
    fn forget_node(&self, node: u64) -> io::Result<bool> {
        // From byte 0 to the end.
        let sent = self.send(INVAL_INODE, &[&node.to_ne_bytes(), &[0; 16]]);
        match sent {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    fn forget_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let len = (name.len() as u32).to_ne_bytes();
        self.send(INVAL_ENTRY, &[&parent.to_ne_bytes(), &len, &[0; 4], name, &[0]])
    }

    fn forget_names(&self) -> io::Result<()> {
        self.send(INC_EPOCH, &[])
    }
}
