//! The sender of events: turns events of external changes into system calls of the thread that
//! raises them, and answers for the names that they look up.

use super::Server;
use crate::changes::{EventInbox, InboxItem};
use crate::events::{
    CallName, EventCall, EventCallError, EventCallKind, EventCaller, EventCalls, Place, RaisedCall,
    RaisedName, RaisedTarget,
};
use crate::nodes::ROOT;
use folio::vfs::{EventName, FileEvent, FileType};
use folio::{Errno, Error, Result};
use std::time::Duration;

/// Most attempts for one event. The first fails if the kernel has cached the name as it is after
/// the change.
const TRIES_MAX: u32 = 4;
/// The name in the outside directory.
const OUTSIDE_NAME: &[u8] = b"moved";
/// Time between attempts to reach a mount that has missed events.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Server {
    /// Raises events of external changes by `caller` until [`Server::stop_pushing`], if they are
    /// asked for ([`Server::raise_events`]).
    ///
    /// # Errors
    /// EOPNOTSUPP if the requests of `caller` cannot be recognized.
    pub fn send_events(&self, caller: &dyn EventCaller) -> Result<()> {
        let (Some(calls), Some(inbox)) = (self.event_calls(), self.event_inbox()) else {
            return Ok(());
        };
        let sender = EventSender {
            server: self,
            calls,
            inbox,
            caller,
        };
        let sent = sender.run();
        calls.end_thread();
        sent
    }
}

struct EventSender<'a> {
    server: &'a Server,
    calls: &'a EventCalls,
    inbox: &'a EventInbox,
    caller: &'a dyn EventCaller,
}

/// The mount cannot be reached: it is hidden by another mount, or unmounted.
struct Unreachable;

/// One side of a call: a name in a directory.
struct Side {
    /// The path from the root to the directory.
    path: Box<[u8]>,
    node: u64,
    name: Box<[u8]>,
}

impl EventSender<'_> {
    fn run(&self) -> Result<()> {
        // The id of the thread is known from here on.
        let _ = self.call(EventCallKind::Open, vec![], &[]);
        self.caller.release();
        let mut has_lost_events = false;
        loop {
            if self.calls.is_unrecognizable() {
                let text = "events of the mount: the kernel's requests do not name folio's own \
                            thread, since its pid namespace is not that of the mount";
                return Err(Error::new(Errno::OPNOTSUPP, text));
            }
            if !self.inbox.wait(has_lost_events.then_some(RETRY_INTERVAL)) {
                return Ok(());
            }
            let handled = match self.inbox.take() {
                // It replaces the events that were lost before.
                _ if has_lost_events => self.raise_overflow(),
                Some(InboxItem::Event(event)) => self.raise(&event),
                Some(InboxItem::Overflow) => {
                    self.server.request_counts().add_lost_event();
                    self.raise_overflow()
                }
                None => Ok(()),
            };
            if handled.is_err() && !has_lost_events {
                self.server.request_counts().add_lost_event();
            }
            has_lost_events = handled.is_err();
            if self.inbox.is_empty() {
                self.caller.release();
            }
        }
    }

    /// Raises an event on every directory that the client knows: its programs read them again.
    fn raise_overflow(&self) -> Result<(), Unreachable> {
        for node in self.calls.places.nodes().into_iter().chain([ROOT]) {
            let Some(side) = self.side_of(node, b"") else {
                continue;
            };
            for _ in 0..TRIES_MAX {
                match self.call(EventCallKind::SetTimes, vec![], &[&side]) {
                    Ok(()) => break,
                    Err(EventCallError::Unreachable(_)) => return Err(Unreachable),
                    Err(EventCallError::Failed(_)) => self.server.wait_until_pushed(),
                }
            }
        }
        Ok(())
    }

    fn raise(&self, event: &FileEvent) -> Result<(), Unreachable> {
        for attempt in 0..TRIES_MAX {
            match self.attempt(event, attempt == 0) {
                Ok(()) => return Ok(()),
                Err(EventCallError::Unreachable(_)) => return Err(Unreachable),
                // The mounting user may not change the file.
                Err(EventCallError::Failed(Errno::PERM | Errno::ACCESS)) => break,
                Err(EventCallError::Failed(_)) => {
                    for name in names(event) {
                        let node = self.server.node_of(name.directory);
                        self.server.report_name_change(node, &name.name);
                    }
                    self.server.wait_until_pushed();
                }
            }
        }
        self.server.request_counts().add_lost_event();
        Ok(())
    }

    fn attempt(&self, event: &FileEvent, is_first: bool) -> Result<(), EventCallError> {
        match event {
            FileEvent::Created(name) => {
                let kind = EventCallKind::Create(name.file_type);
                self.call_by(kind, name, RaisedTarget::Absent)
            }
            FileEvent::Removed(name) => {
                let kind = match name.file_type {
                    FileType::Directory => EventCallKind::RemoveDirectory,
                    _ => EventCallKind::RemoveFile,
                };
                self.call_by(kind, name, self.removed(name))
            }
            FileEvent::Moved { from, to } => self.move_name(from.as_ref(), to.as_ref(), is_first),
            FileEvent::Modified(name) => {
                self.call_by(EventCallKind::SetModified, name, self.old_or_current(name))
            }
            FileEvent::AttributesChanged(name) => {
                self.call_by(EventCallKind::SetTimes, name, self.old_or_current(name))
            }
            FileEvent::WriterClosed(name) if name.file_type == FileType::Regular => {
                self.call_by(EventCallKind::CloseWriter, name, self.old_or_current(name))
            }
            FileEvent::WriterClosed(_) => Ok(()),
        }
    }

    fn old(&self, name: &EventName) -> RaisedTarget {
        let node = name.inode.map(|number| self.server.node_of(number));
        RaisedTarget::Old(name.file_type, node)
    }

    /// Returns the target of a removal. The host may use the inode number of a removed directory
    /// again: the directory that the client has elsewhere is another one.
    fn removed(&self, name: &EventName) -> RaisedTarget {
        let node = |number| self.server.node_of(number);
        let places = &self.calls.places;
        let is_elsewhere = name.inode.is_some_and(|number| {
            let parent = node(name.directory);
            places.contains(node(number))
                && places.node_at(parent, &name.name) != Some(node(number))
        });
        if is_elsewhere {
            RaisedTarget::Old(name.file_type, None)
        } else {
            self.old(name)
        }
    }

    fn old_or_current(&self, name: &EventName) -> RaisedTarget {
        match name.inode {
            Some(_) => self.old(name),
            None => RaisedTarget::Current(name.file_type),
        }
    }

    /// Makes a call on one name, if the client knows its directory.
    fn call_by(
        &self,
        kind: EventCallKind,
        name: &EventName,
        target: RaisedTarget,
    ) -> Result<(), EventCallError> {
        let Some(side) = self.side(name) else {
            return Ok(());
        };
        self.call(kind, vec![side.raised(target)], &[&side])
    }

    fn move_name(
        &self,
        from: Option<&EventName>,
        to: Option<&EventName>,
        is_first: bool,
    ) -> Result<(), EventCallError> {
        let (old, new) = (
            from.and_then(|name| self.side(name)),
            to.and_then(|name| self.side(name)),
        );
        let Some(moved) = from.or(to).filter(|_| old.is_some() || new.is_some()) else {
            return Ok(());
        };
        let source = match from {
            Some(from) => self.old(from),
            None => RaisedTarget::Old(moved.file_type, None),
        };
        let replaced = to
            .and_then(|to| to.inode)
            .filter(|_| is_first && new.is_some());
        let target = replaced.map_or(RaisedTarget::Absent, |number| {
            RaisedTarget::Replaced(self.server.node_of(number))
        });
        let (old, new) = (
            old.unwrap_or_else(|| self.outside()),
            new.unwrap_or_else(|| self.outside()),
        );
        let raised = vec![old.raised(source), new.raised(target)];
        self.call(EventCallKind::Move, raised, &[&old, &new])?;
        self.calls
            .places
            .note_move(&old.place(), &new.place(), false);
        // The kernel keeps the validity of the old name, and the host may have changed the new one.
        self.server.report_name_change(new.node, &new.name);
        Ok(())
    }

    /// Makes a call that looks up the names of `raised`, and those on the paths of `sides`.
    fn call(
        &self,
        kind: EventCallKind,
        mut raised: RaisedCall,
        sides: &[&Side],
    ) -> Result<(), EventCallError> {
        for side in sides {
            let path = self.calls.places.path(side.node).unwrap_or_default();
            raised.extend(path.into_iter().map(|(place, node)| RaisedName {
                parent: place.parent,
                name: place.name,
                target: RaisedTarget::Old(FileType::Directory, Some(node)),
            }));
        }
        let names = sides.iter().map(|side| CallName {
            path: side.path.clone(),
            node: side.node,
            name: side.name.clone(),
        });
        let call = EventCall {
            kind,
            outside_name: self.calls.outside_name().into(),
            names: names.collect(),
        };
        if !call.is_valid() {
            return Err(EventCallError::Failed(Errno::NAMETOOLONG));
        }
        self.calls.begin(raised);
        let made = self.caller.make(&call);
        self.calls.end();
        made
    }

    /// Returns the place of a name; `None` if the client does not know the directory.
    fn side(&self, name: &EventName) -> Option<Side> {
        self.side_of(self.server.node_of(name.directory), &name.name)
    }

    fn side_of(&self, node: u64, name: &[u8]) -> Option<Side> {
        let path = self.calls.places.path(node)?;
        let mut joined = Vec::from(b".");
        for (place, _) in &path {
            joined.push(b'/');
            joined.extend_from_slice(&place.name);
        }
        Some(Side {
            path: joined.into(),
            node,
            name: name.into(),
        })
    }

    /// Returns a name in the outside directory.
    fn outside(&self) -> Side {
        Side {
            path: [b"./", self.calls.outside_name()].concat().into(),
            node: EventCalls::outside(),
            name: OUTSIDE_NAME.into(),
        }
    }
}

impl Side {
    fn raised(&self, target: RaisedTarget) -> RaisedName {
        RaisedName {
            parent: self.node,
            name: self.name.clone(),
            target,
        }
    }

    fn place(&self) -> Place {
        Place {
            parent: self.node,
            name: self.name.clone(),
        }
    }
}

/// Returns the names that an event is about.
fn names(event: &FileEvent) -> impl Iterator<Item = &EventName> {
    let both = match event {
        FileEvent::Moved { from, to } => [from.as_ref(), to.as_ref()],
        FileEvent::Created(name)
        | FileEvent::Removed(name)
        | FileEvent::Modified(name)
        | FileEvent::AttributesChanged(name)
        | FileEvent::WriterClosed(name) => [Some(name), None],
    };
    both.into_iter().flatten()
}
