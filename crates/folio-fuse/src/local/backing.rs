//! Backing files: files of the host that the kernel reads and writes by itself. Linux:
//! fs/fuse/passthrough.c, fs/fuse/iomode.c.
//!
//! The kernel requires that all open files of a node are alike: the first one decides.

use super::ioctl;
use crate::nodes::NodeTable;
use folio::Errno;
use folio::syscall::OpenHandle;
use folio::vfs::Attributes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set-user-ID and set-group-ID. A write must clear them, but the kernel writes a backing file with
/// the server's capabilities, which keep them.
const SET_ID: u16 = 0o6000;

/// The open files of each node, passed through or not.
pub(crate) struct Backings {
    device: Arc<OwnedFd>,
    /// Files smaller than this that are only read go through the server.
    len_min: u64,
    /// Whether the kernel has refused, and always will.
    is_refused: AtomicBool,
    nodes: Mutex<HashMap<u64, OpenNode>>,
}

struct OpenNode {
    files: usize,
    /// `None` if the files go through the server.
    backing: Option<Backing>,
    /// Whether one of the files was opened for writing.
    is_written: bool,
}

/// A file registered with the kernel.
struct Backing {
    device: Arc<OwnedFd>,
    id: u32,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // A session that has ended has released all backing files.
        let _ = ioctl::close_backing(self.device.as_fd(), self.id);
    }
}

impl Backings {
    /// Passes files of the host through to the kernel behind `device`, except those smaller than
    /// `len_min` bytes that are only read.
    pub(crate) fn new(device: Arc<OwnedFd>, len_min: u64) -> Self {
        Self {
            device,
            len_min,
            is_refused: AtomicBool::new(false),
            nodes: Mutex::default(),
        }
    }

    /// Counts a file that is opened; returns the id of its backing file, which is registered as
    /// long as the file is open.
    pub(super) fn open(
        &self,
        table: &NodeTable,
        node: u64,
        file: &OpenHandle,
        writes: bool,
    ) -> Option<u32> {
        let mut nodes = self.nodes.lock();
        let opened = nodes.entry(node).or_insert_with(|| OpenNode {
            files: 0,
            backing: self.register(table, node, file, writes),
            is_written: false,
        });
        opened.files += 1;
        if writes && !opened.is_written {
            opened.is_written = true;
            if opened.backing.is_some() {
                table.begin_passthrough(node);
            }
        }
        opened.backing.as_ref().map(|backing| backing.id)
    }

    /// Registers the file of the host behind the first open file of a node.
    fn register(
        &self,
        table: &NodeTable,
        node: u64,
        file: &OpenHandle,
        writes: bool,
    ) -> Option<Backing> {
        let is_wanted = |attributes: Attributes| {
            attributes.mode & SET_ID == 0 && (writes || attributes.size_bytes >= self.len_min)
        };
        if self.is_refused.load(Ordering::Relaxed) || !table.attributes(node).is_ok_and(is_wanted) {
            return None;
        }
        let host_file = file.host_file()?.ok()?;
        match ioctl::open_backing(self.device.as_fd(), host_file.as_fd()) {
            Ok(id) => Some(Backing {
                device: Arc::clone(&self.device),
                id,
            }),
            Err(errno) => {
                let is_temporary = matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM);
                self.is_refused.store(!is_temporary, Ordering::Relaxed);
                None
            }
        }
    }

    /// Counts a file that is closed; returns whether it was the last one of a passthrough with
    /// writes, after which the client's cache may be outdated.
    pub(super) fn close(&self, table: &NodeTable, node: u64) -> bool {
        let mut nodes = self.nodes.lock();
        let Some(opened) = nodes.get_mut(&node) else {
            return false;
        };
        opened.files -= 1;
        if opened.files > 0 {
            return false;
        }
        let was_written = opened.is_written && opened.backing.is_some();
        nodes.remove(&node);
        was_written && table.end_passthrough(node)
    }
}
