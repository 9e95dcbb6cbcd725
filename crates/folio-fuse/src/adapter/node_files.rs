//! Files that nobody opened: where the kernel needs no open(2), a node has open files of its own,
//! made when it is first read or written.
//!
//! Where files of the host are behind them they are closed again, the oldest first, lest
//! descriptors run out. So whoever finds a node's file closed asks for it once more.

use super::{Adapter, Client, ROOT};
use folio::syscall::OpenFlags;
use folio::{Errno, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// The superuser: who may read or write was judged at open(2), by the kernel that asks.
const JUDGED: Client = Client { uid: 0, gid: 0 };

/// Files of the host that nodes keep open.
const HOST_FILES_MAX: usize = 2048;

/// Nodes in the order in which their files were opened, and whether to write.
pub(super) type Opened = Mutex<VecDeque<(u64, bool)>>;

/// File ids; `None` for what is not open.
#[derive(Debug, Default)]
pub(super) struct OwnFiles {
    reader: Option<u64>,
    writer: Option<u64>,
}

impl OwnFiles {
    fn slot(&mut self, writes: bool) -> &mut Option<u64> {
        if writes {
            &mut self.writer
        } else {
            &mut self.reader
        }
    }
}

impl Adapter {
    /// The id of the node's own open file, opened now if it is not: to write (and read) with
    /// `writes`, else to read.
    pub fn node_file(&self, node: u64, writes: bool) -> Result<u64> {
        let known = |files: &OwnFiles| if writes { files.writer } else { files.reader };
        match self.nodes.get(node, |node| known(&node.own_files)) {
            Some(Some(file)) => return Ok(file),
            Some(None) => {}
            None if node == ROOT => return Err(Errno::ISDIR.into()),
            None => return Err(Errno::STALE.into()),
        }
        let handle = self.handle(node)?;
        let flags = if writes {
            OpenFlags::RDWR
        } else {
            OpenFlags::empty()
        };
        let file = self.keep(self.act(JUDGED, 0, |caller| caller.open(&handle, flags))?);
        // Another thread may have been faster.
        let kept = self.nodes.change(node, |node| {
            *node.own_files.slot(writes).get_or_insert(file)
        });
        match kept == Some(file) {
            true => self.bound(node, writes),
            false => self.release(file),
        }
        Ok(kept.ok_or(Errno::STALE)?)
    }

    /// Closes the file that was opened first, if there are too many. What has failed of its writes
    /// is told by the host at once.
    fn bound(&self, node: u64, writes: bool) {
        if !self.is_shared() {
            return;
        }
        let oldest = {
            let mut opened = self.opened.lock();
            opened.push_back((node, writes));
            if opened.len() > HOST_FILES_MAX {
                opened.pop_front()
            } else {
                None
            }
        };
        if let Some((node, writes)) = oldest
            && let Some(Some(file)) = self
                .nodes
                .change(node, |node| node.own_files.slot(writes).take())
        {
            self.release(file);
        }
    }

    /// Makes an open file the node's own, to write; released if it has one.
    pub fn keep_node_file(&self, node: u64, file: u64) {
        let kept = self
            .nodes
            .change(node, |node| *node.own_files.slot(true).get_or_insert(file));
        match kept == Some(file) {
            true => self.bound(node, true),
            false => self.release(file),
        }
    }

    /// The node's own file to write, if it is open.
    pub fn node_writer(&self, node: u64) -> Option<u64> {
        self.nodes.get(node, |node| node.own_files.writer).flatten()
    }

    /// Lets go of every node and every file, as when the kernel has unmounted.
    pub fn forget_all(&self) {
        self.opened.lock().clear();
        self.files.clear();
        self.nodes.clear();
    }

    pub(super) fn release_own(&self, files: &OwnFiles) {
        for file in [files.reader, files.writer].into_iter().flatten() {
            self.release(file);
        }
    }
}
