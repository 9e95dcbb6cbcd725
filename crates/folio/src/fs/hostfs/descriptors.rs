//! The host descriptors of inodes: for data while a file is open, for unlinked inodes, and caches.

use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Maximum number of created files whose descriptors wait for the open that follows.
const RECENTLY_CREATED_MAX: usize = 16;
/// Maximum number of closed files whose descriptors for reading stay open.
const IDLE_MAX: usize = 64;

/// The descriptors of one inode.
#[derive(Default)]
pub(super) struct Descriptors {
    pub(super) read: Option<Arc<OwnedFd>>,
    pub(super) write: Option<WriteDescriptor>,
    pub(super) readers: usize,
    pub(super) writers: usize,
    /// Whether the inode is in the list of idle files.
    pub(super) is_idle: bool,
    /// The descriptor of an inode that lost its last name through Folio; not used for data.
    pub(super) unlinked: Option<Arc<OwnedFd>>,
    /// The descriptor of an inode that is held in reach; not used for data.
    pub(super) held: Option<Arc<OwnedFd>>,
}

/// A descriptor for writing.
#[derive(Clone)]
pub(super) struct WriteDescriptor {
    pub(super) fd: Arc<OwnedFd>,
    /// Whether the descriptor can also read.
    pub(super) is_readable: bool,
}

impl Descriptors {
    pub(super) fn readable(&self) -> Option<Arc<OwnedFd>> {
        let both = self
            .write
            .as_ref()
            .filter(|write| write.is_readable)
            .map(|both| &both.fd);
        self.read.as_ref().or(both).cloned()
    }

    pub(super) fn any(&self) -> Option<Arc<OwnedFd>> {
        let write = self.write.as_ref().map(|write| &write.fd);
        self.read
            .as_ref()
            .or(write)
            .or(self.unlinked.as_ref())
            .or(self.held.as_ref())
            .cloned()
    }
}

/// Descriptors of recently created files. The creator may write such a file whatever its mode is,
/// but only through the descriptor of its creation.
pub(super) struct RecentlyCreated<I>(VecDeque<(Weak<I>, OwnedFd)>);

impl<I> Default for RecentlyCreated<I> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<I> RecentlyCreated<I> {
    pub(super) fn add(&mut self, inode: Weak<I>, fd: OwnedFd) {
        // The entry of an evicted inode would keep its descriptor open.
        self.0.retain(|(inode, _)| inode.strong_count() > 0);
        if self.0.len() == RECENTLY_CREATED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((inode, fd));
    }

    pub(super) fn take(&mut self, inode: &Weak<I>) -> Option<OwnedFd> {
        let is_inode = |(created, _): &(Weak<I>, OwnedFd)| created.ptr_eq(inode);
        let index = self.0.iter().position(is_inode)?;
        self.0.remove(index).map(|(_, fd)| fd)
    }
}

/// Recently closed files; opening one of them again for reading needs no host call.
pub(super) struct IdleFiles<I>(VecDeque<Weak<I>>);

impl<I> Default for IdleFiles<I> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<I> IdleFiles<I> {
    /// Adds a file; returns the file to remove if there are too many.
    pub(super) fn add(&mut self, inode: Weak<I>) -> Option<Weak<I>> {
        self.0.push_back(inode);
        if self.0.len() > IDLE_MAX {
            self.0.pop_front()
        } else {
            None
        }
    }
}
