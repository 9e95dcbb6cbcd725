//! Events for the watchers of clients: those of external writers, with the two names of a move in
//! one event. Linux: inotify(7).
//!
//! An event about a name is an echo of a change through Folio if it is expected. An event about
//! data or attributes is one if the file has the stamp that the last change through Folio left, or
//! is about to lose its name through Folio.

use super::host_calls::{self, Status};
use super::inode::{HostInode, MountState, monotonic_ns};
use super::inotify::{Inotify, NameChange};
use crate::vfs::{Change, EventName, FileEvent, FileType};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{Event, ReadFlags, Reader};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest wait for the second event of a move, which the host's kernel queues right after the
/// first.
const MOVE_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Events about a name, each with its change.
pub(super) const NAME_EVENTS: [(ReadFlags, NameChange); 4] = [
    (ReadFlags::CREATE, NameChange::Created),
    (ReadFlags::DELETE, NameChange::Removed),
    (ReadFlags::MOVED_FROM, NameChange::MovedFrom),
    (ReadFlags::MOVED_TO, NameChange::MovedTo),
];

/// An event of the host, copied from the buffer of a read.
pub(super) struct HostEvent {
    pub(super) wd: i32,
    pub(super) events: ReadFlags,
    cookie: u32,
    pub(super) name: Option<Box<[u8]>>,
}

impl HostEvent {
    fn of(event: &Event<'_>) -> Self {
        Self {
            wd: event.wd(),
            events: event.events(),
            cookie: event.cookie(),
            name: event.file_name().map(|name| name.to_bytes().into()),
        }
    }

    fn name_change(&self) -> Option<NameChange> {
        let found = NAME_EVENTS.iter().find(|(e, _)| self.events.contains(*e));
        found.map(|(_, change)| *change)
    }

    /// Returns whether this second event of a move is the first half of an exchange: the kernel
    /// queues the move of the other file right after it. `later` are the events after this one.
    fn is_exchange(&self, later: &[Self]) -> bool {
        let next = later.iter().find(|later| later.name_change().is_some());
        next.is_some_and(|next| {
            next.events.contains(ReadFlags::MOVED_FROM)
                && (next.wd, &next.name) == (self.wd, &self.name)
        })
    }
}

/// Appends the events of one read to `batch`, and both events of a move. Waits for the first.
///
/// # Errors
/// Those of read(2).
pub(super) fn read_batch(
    reader: &mut Reader<'_, &OwnedFd>,
    fd: &OwnedFd,
    batch: &mut Vec<HostEvent>,
) -> rustix::io::Result<()> {
    loop {
        match reader.next() {
            Ok(event) => batch.push(HostEvent::of(&event)),
            Err(errno) if batch.is_empty() => return Err(errno),
            // The next call returns it again.
            Err(_) => return Ok(()),
        }
        while !reader.is_buffer_empty() {
            batch.push(HostEvent::of(&reader.next()?));
        }
        let ends_in_move = batch
            .last()
            .is_some_and(|last| last.events.contains(ReadFlags::MOVED_FROM));
        let mut ready = [PollFd::new(fd, PollFlags::IN)];
        if !ends_in_move || poll(&mut ready, Some(&MOVE_WAIT)) != Ok(1) {
            return Ok(());
        }
    }
}

/// An event that is to be reported.
pub(super) struct NotedEvent {
    name: EventName,
    directory: Arc<HostInode>,
    /// The inode that the name referred to.
    child: Option<Arc<HostInode>>,
}

/// The first events of moves whose second events follow in the batch.
#[derive(Default)]
pub(super) struct MovesInBatch(HashMap<u32, NotedEvent>);

impl MovesInBatch {
    /// Reports an event that has been handled. `later` are the events after it in the batch.
    pub(super) fn report(
        &mut self,
        shared: &MountState,
        event: &HostEvent,
        noted: NotedEvent,
        later: &[HostEvent],
    ) {
        let events = event.events;
        let change = event.name_change();
        if matches!(change, Some(NameChange::Removed | NameChange::MovedFrom)) {
            let child = noted.child.as_deref();
            noted.directory.forget_child(&noted.name.name, child);
        }
        let is_second = |later: &HostEvent| {
            later.cookie == event.cookie && later.events.contains(ReadFlags::MOVED_TO)
        };
        let name = noted.name.clone();
        let reported = match change {
            Some(NameChange::Created) => FileEvent::Created(name),
            Some(NameChange::Removed) => FileEvent::Removed(name),
            Some(NameChange::MovedFrom) if later.iter().any(is_second) => {
                self.0.insert(event.cookie, noted);
                return;
            }
            Some(NameChange::MovedFrom) => FileEvent::Moved {
                from: Some(name),
                to: None,
            },
            Some(NameChange::MovedTo) => {
                let mut to = name;
                if event.is_exchange(later) {
                    // It replaces nothing.
                    to.inode = None;
                }
                if to.inode.is_some() {
                    // The host may use its inode number again.
                    noted
                        .directory
                        .forget_child(&to.name, noted.child.as_deref());
                }
                let from = self.0.remove(&event.cookie);
                if let Some(moved) = from.as_ref().and_then(|from| from.child.as_ref()) {
                    moved.add_to_children(&noted.directory, &to.name);
                }
                FileEvent::Moved {
                    from: from.map(|from| from.name),
                    to: Some(to),
                }
            }
            None if events.contains(ReadFlags::MODIFY) => FileEvent::Modified(name),
            None if events.contains(ReadFlags::ATTRIB) => FileEvent::AttributesChanged(name),
            None if events.contains(ReadFlags::CLOSE_WRITE) => FileEvent::WriterClosed(name),
            None => return,
        };
        shared.notify(Change::Event(&reported));
    }
}

impl MountState {
    /// Returns the name that an event is about, if a listener asks for events and the change is an
    /// external writer's. Called before the event is handled.
    pub(super) fn note_event(&self, event: &HostEvent) -> Option<NotedEvent> {
        if !self.wants_events.load(Ordering::Relaxed) {
            return None;
        }
        let inotify = self.inotify.as_ref()?;
        let inode = inotify.watched(event.wd)?;
        match &event.name {
            Some(name) => inode.note_named_event(inotify, event, name),
            // Any other inode is watched by its directory, too.
            None if inode.is_root()
                && event.events.contains(ReadFlags::ATTRIB)
                && !inode.is_echo(event.events) =>
            {
                Some(NotedEvent {
                    name: EventName {
                        directory: inode.common.number,
                        name: Box::default(),
                        file_type: FileType::Directory,
                        inode: Some(inode.common.number),
                    },
                    directory: inode,
                    child: None,
                })
            }
            None => None,
        }
    }
}

impl HostInode {
    /// Watches a directory that a client knows, since the client's programs may watch it.
    pub(super) fn watch_for_events(&self) {
        if self.is_directory() && self.shared.wants_events.load(Ordering::Relaxed) {
            self.watch_directory();
        }
    }

    fn note_named_event(
        &self,
        inotify: &Inotify<Self>,
        event: &HostEvent,
        name: &[u8],
    ) -> Option<NotedEvent> {
        let change = event.name_change();
        let child = self.child(name);
        let is_echo = inotify.is_expected(event.wd, name, change, monotonic_ns())
            || (change.is_none() && child.as_ref().is_some_and(|c| c.is_echo(event.events)));
        if is_echo {
            return None;
        }
        let status = || host_calls::status_of(&*self.reach()?, name);
        let found = change.and_then(|_| status().ok().flatten());
        // A client may have found the new inode of the name already.
        let is_old = |child: &Self| found.is_none_or(|found| found.identity != child.identity);
        let child = child.filter(|child| is_old(child));
        let (old, new) = (
            child.as_ref().map(|child| child.common.file_type),
            found.map(|found| found.identity.file_type),
        );
        let known = match change {
            Some(NameChange::Created | NameChange::MovedTo) => new,
            _ => old,
        };
        let file_type = if event.events.contains(ReadFlags::ISDIR) {
            FileType::Directory
        } else {
            known
                .filter(|known| *known != FileType::Directory)
                .unwrap_or(FileType::Regular)
        };
        Some(NotedEvent {
            name: EventName {
                directory: self.common.number,
                name: name.into(),
                file_type,
                inode: child.as_ref().map(|child| child.common.number),
            },
            directory: self.me.upgrade()?,
            child,
        })
    }

    /// Returns whether an event about data or attributes is about a change through Folio.
    fn is_echo(&self, events: ReadFlags) -> bool {
        let state = self.data_state.lock();
        let (is_in_progress, own) = (state.own_count > 0, state.own_stamp);
        // Names that are created in a directory change its stamp, too.
        let is_recent = self.is_directory() && monotonic_ns() < state.own_until_ns;
        drop(state);
        is_in_progress
            || is_recent
            || own.is_some_and(|own| {
                self.status().is_ok_and(|Status { stamp, .. }| {
                    let is_same_data =
                        (stamp.size_bytes, stamp.modified) == (own.size_bytes, own.modified);
                    is_same_data
                        && (stamp.changed == own.changed || !events.contains(ReadFlags::ATTRIB))
                })
            })
    }
}
