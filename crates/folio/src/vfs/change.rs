//! Change notifications: what external writers changed in a file system.

use super::FileType;
use crate::base::InodeNumber;

/// A change made by an external writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Attributes or contents of an inode.
    Inode(InodeNumber),
    /// A name in a directory: created, removed, or referring to another inode.
    Name(InodeNumber, &'a [u8]),
    /// An event for the watchers of a client, after the other notifications about the same change.
    /// Only for a listener that asks for events.
    Event(&'a FileEvent),
    /// An unknown set of changes: anything may have changed.
    Everything,
}

/// An event of a watched directory. Linux: inotify(7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEvent {
    /// `IN_CREATE`.
    Created(EventName),
    /// `IN_DELETE`.
    Removed(EventName),
    /// `IN_MOVED_FROM` and `IN_MOVED_TO`; one of them if the directory of the other name is not
    /// watched.
    Moved {
        /// The old name, of the moved inode.
        from: Option<EventName>,
        /// The new name, of the replaced inode.
        to: Option<EventName>,
    },
    /// `IN_MODIFY`.
    Modified(EventName),
    /// `IN_ATTRIB`.
    AttributesChanged(EventName),
    /// `IN_CLOSE_WRITE`.
    WriterClosed(EventName),
}

/// The name that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventName {
    /// The directory.
    pub directory: InodeNumber,
    /// The name in it; empty for the directory itself.
    pub name: Box<[u8]>,
    /// The type of the file.
    pub file_type: FileType,
    /// The inode that the name referred to, if it is in memory.
    pub inode: Option<InodeNumber>,
}

/// A receiver of change notifications. After a notification, calls return the new state.
pub trait ChangeListener: Send + Sync {
    /// Receives one change. Called by a thread of the file system that holds no lock.
    fn changed(&self, change: Change<'_>);

    /// Returns whether [`Change::Event`] is asked for, when the listener is registered.
    fn wants_events(&self) -> bool {
        false
    }

    /// Notes that there is a new warning ([`FileSystem::warnings`](super::FileSystem::warnings)).
    /// Called with locks held: it must not wait.
    fn warned(&self) {}
}
