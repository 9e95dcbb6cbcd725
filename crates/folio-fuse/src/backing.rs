//! Files of the host that the kernel reads and writes by itself. Linux: fs/fuse/passthrough.c, fs/fuse/iomode.c.
//!
//! The kernel wants all open files of a node alike: what the first one is, the others are too.

use crate::adapter::Adapter;
use folio::Errno;
use folio::vfs::Attributes;
use fuser::BackingId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set-user-ID and set-group-ID. Who writes a file must not keep them, but the kernel writes what is behind with the
/// powers of the server, which may.
const SET_ID: u16 = 0o6000;

/// How the open files of each node are read and written.
#[derive(Default)]
pub(crate) struct Backings {
    /// Files smaller than this that are only read go through the server; `None` if all do.
    len_min: Option<u64>,
    /// The kernel has refused, and would always do so.
    is_refused: AtomicBool,
    nodes: Mutex<HashMap<u64, Opened>>,
}

struct Opened {
    files: usize,
    /// `None` if they go through the server.
    backing: Option<Arc<BackingId>>,
    /// Whether one of them could be written.
    is_written: bool,
}

impl Backings {
    /// From now on, files of the host are handed over, unless they are smaller than `len_min` and only read.
    pub(crate) fn enable(&mut self, len_min: u64) {
        self.len_min = Some(len_min);
    }

    /// Counts a file that is opened; returns what the kernel reads and writes in its place. `register` hands a
    /// descriptor to the kernel, which may refuse it.
    pub(crate) fn open(
        &self,
        adapter: &Adapter,
        (node, file, is_written): (u64, u64, bool),
        register: impl FnOnce(OwnedFd) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let len_min = self.len_min?;
        let mut nodes = self.nodes.lock();
        let opened = nodes.entry(node).or_insert_with(|| {
            let is_wanted = |attributes: Attributes| {
                attributes.mode & SET_ID == 0 && (is_written || attributes.size_bytes >= len_min)
            };
            let is_possible = !self.is_refused.load(Ordering::Relaxed);
            let is_wanted = is_possible && adapter.attributes(node).is_ok_and(is_wanted);
            let host = if is_wanted { adapter.host_file(file) } else { None };
            let backing = host.and_then(|host| match register(host) {
                Ok(backing) => Some(Arc::new(backing)),
                Err(error) => {
                    let errno = Errno::from_io_error(&error);
                    let is_passing = matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM));
                    self.is_refused.store(!is_passing, Ordering::Relaxed);
                    None
                }
            });
            Opened { files: 0, backing, is_written: false }
        });
        opened.files += 1;
        if is_written && !opened.is_written {
            opened.is_written = true;
            if opened.backing.is_some() {
                adapter.begin_direct(node);
            }
        }
        opened.backing.clone()
    }

    /// Counts a file that is closed.
    pub(crate) fn close(&self, adapter: &Adapter, node: u64) {
        let mut nodes = self.nodes.lock();
        let Some(opened) = nodes.get_mut(&node) else { return };
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
