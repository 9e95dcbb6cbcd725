//! Files of the host that the kernel reads and writes by itself. Linux: fs/fuse/passthrough.c,
//! fs/fuse/iomode.c.
//!
//! The kernel wants all open files of a node alike: what the first one is, the others are too.

use crate::adapter::Adapter;
use crate::sys;
use folio::Errno;
use folio::vfs::Attributes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set-user-ID and set-group-ID. Who writes a file must not keep them, but the kernel writes what
/// is behind with the powers of the server, which may.
const SET_ID: u16 = 0o6000;

/// How the open files of each node are read and written.
pub(crate) struct Backings {
    device: Arc<OwnedFd>,
    /// Files smaller than this that are only read go through the server.
    len_min: u64,
    /// The kernel has refused, and would always do so.
    is_refused: AtomicBool,
    nodes: Mutex<HashMap<u64, Opened>>,
}

struct Opened {
    files: usize,
    /// `None` if they go through the server.
    backing: Option<Backing>,
    /// Whether one of them could be written.
    is_written: bool,
}

/// A file that the kernel has taken.
struct Backing {
    device: Arc<OwnedFd>,
    id: u32,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // A session that is over has let go of all.
        let _ = sys::close_backing(self.device.as_fd(), self.id);
    }
}

impl Backings {
    /// Files of the host are handed over to the kernel behind `device`, unless they are smaller
    /// than `len_min` and only read.
    pub(crate) fn new(device: Arc<OwnedFd>, len_min: u64) -> Self {
        Self {
            device,
            len_min,
            is_refused: AtomicBool::new(false),
            nodes: Mutex::default(),
        }
    }

    /// Counts a file that is opened; returns the number of what the kernel reads and writes in its
    /// place, which lives as long as the file is open.
    pub(crate) fn open(
        &self,
        adapter: &Adapter,
        (node, file): (u64, u64),
        is_written: bool,
    ) -> Option<u32> {
        let mut nodes = self.nodes.lock();
        let opened = nodes.entry(node).or_insert_with(|| {
            let is_wanted = |attributes: Attributes| {
                attributes.mode & SET_ID == 0
                    && (is_written || attributes.size_bytes >= self.len_min)
            };
            let is_possible = !self.is_refused.load(Ordering::Relaxed);
            let is_wanted = is_possible && adapter.attributes(node).is_ok_and(is_wanted);
            let host = if is_wanted {
                adapter.host_file(file)
            } else {
                None
            };
            Opened {
                files: 0,
                backing: host.and_then(|host| self.register(&host)),
                is_written: false,
            }
        });
        opened.files += 1;
        if is_written && !opened.is_written {
            opened.is_written = true;
            if opened.backing.is_some() {
                adapter.begin_direct(node);
            }
        }
        opened.backing.as_ref().map(|backing| backing.id)
    }

    fn register(&self, host: &OwnedFd) -> Option<Backing> {
        match sys::open_backing(self.device.as_fd(), host.as_fd()) {
            Ok(id) => Some(Backing {
                device: Arc::clone(&self.device),
                id,
            }),
            Err(errno) => {
                let is_passing = matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM);
                self.is_refused.store(!is_passing, Ordering::Relaxed);
                None
            }
        }
    }

    /// Counts a file that is closed.
    pub(crate) fn close(&self, adapter: &Adapter, node: u64) {
        let mut nodes = self.nodes.lock();
        let Some(opened) = nodes.get_mut(&node) else {
            return;
        };
        opened.files -= 1;
        if opened.files == 0 {
            let was_written = opened.is_written && opened.backing.is_some();
            nodes.remove(&node);
            if was_written {
                adapter.end_direct(node);
            }
        }
    }
}
