//! Change notifications: what external writers changed in a file system.

use crate::base::InodeNumber;

/// A change made by an external writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Attributes or contents of an inode.
    Inode(InodeNumber),
    /// A name in a directory: created, removed, or referring to another inode.
    Name(InodeNumber, &'a [u8]),
    /// An unknown set of changes: anything may have changed.
    Everything,
}

/// A receiver of change notifications. After a notification, calls return the new state.
pub trait ChangeListener: Send + Sync {
    /// Receives one change. Called by a thread of the file system that holds no lock.
    fn changed(&self, change: Change<'_>);

    /// Notes that there is a new warning ([`FileSystem::warnings`](super::FileSystem::warnings)).
    /// Called with locks held: it must not wait.
    fn warned(&self) {}
}
