//! Implicit open files: where the client sends no `FUSE_OPEN`, a node has open files of its own,
//! opened at its first read or write.

use folio::syscall::OpenHandle;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Implicit files of the host that are open at a time: their descriptors are limited.
const HOST_FILES_MAX: usize = 2048;

/// The implicit files of one node.
#[derive(Default)]
pub(super) struct ImplicitFiles {
    reader: Option<OpenHandle>,
    /// Also reads.
    writer: Option<OpenHandle>,
}

impl ImplicitFiles {
    pub(super) fn get(&self, writes: bool) -> Option<&OpenHandle> {
        if writes {
            self.writer.as_ref()
        } else {
            self.reader.as_ref()
        }
    }

    pub(super) fn slot(&mut self, writes: bool) -> &mut Option<OpenHandle> {
        if writes {
            &mut self.writer
        } else {
            &mut self.reader
        }
    }

    pub(super) fn count(&self) -> usize {
        usize::from(self.reader.is_some()) + usize::from(self.writer.is_some())
    }
}

/// Nodes in the order in which their implicit files were opened, and whether those write.
#[derive(Default)]
pub(super) struct OpenOrder(Mutex<VecDeque<(u64, bool)>>);

impl OpenOrder {
    /// Appends a file; returns the oldest one, to be closed, if there are too many.
    pub(super) fn push(&self, node: u64, writes: bool) -> Option<(u64, bool)> {
        let mut order = self.0.lock();
        order.push_back((node, writes));
        if order.len() > HOST_FILES_MAX {
            order.pop_front()
        } else {
            None
        }
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
