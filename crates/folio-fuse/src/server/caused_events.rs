//! The events that a client's own requests cause, for the watchers of other clients of the same
//! kernel. Change notifications do not report them.

use super::Server;
use crate::nodes::ROOT;
use crate::wire::abi::{
    CopyFileRangeIn, CreateIn, InHeader, LinkIn, MkdirIn, MknodIn, ReleaseIn, Rename2In, RenameIn,
    SetattrIn, set,
};
use crate::wire::encode::mknod_type;
use crate::wire::op;
use crate::wire::request::{self, Arguments};
use folio::syscall::{Caller, Credentials, OpenFlags};
use folio::vfs::{
    Change, ChangeListener, EventName, FileEvent, FileType, InodeNumber, RenameFlags,
};
use folio::{Errno, Result};

impl Server {
    /// Returns whether the client's watchers get events.
    pub fn wants_events(&self) -> bool {
        self.changes.wants_events()
    }

    /// Reports an event that another client of the same kernel has caused, after the changes
    /// themselves.
    pub fn report_event(&self, event: &FileEvent) {
        if self.wants_events() {
            self.changes.changed(Change::Event(event));
        }
    }

    /// Returns whether a request only raises an event: it changes nothing.
    pub fn raises_event(&self, request: &[u8]) -> bool {
        request::split(request)
            .is_some_and(|(header, arguments)| self.raised_call(&header, arguments).is_some())
    }

    /// Returns the events that a request causes if it succeeds. Asked before it is handled, while
    /// names refer to the old inodes.
    pub fn caused_events(&self, request: &[u8]) -> Vec<FileEvent> {
        let events = request::split(request)
            .and_then(|(header, arguments)| self.events_of(&header, arguments).ok());
        events.unwrap_or_default()
    }

    fn events_of(&self, header: &InHeader, mut args: Arguments<'_>) -> Result<Vec<FileEvent>> {
        let node = header.node;
        let event = match header.opcode {
            op::CREATE => {
                args.take::<CreateIn>()?;
                let name = self.event_name(node, args.name()?)?;
                match name.inode {
                    None => FileEvent::Created(name),
                    Some(_) => FileEvent::Modified(name),
                }
            }
            op::MKNOD => {
                let file_type = mknod_type(args.take::<MknodIn>()?.mode);
                let file_type = file_type.ok_or(Errno::INVAL)?;
                self.creation(node, args.name()?, file_type)
            }
            op::MKDIR => {
                args.take::<MkdirIn>()?;
                self.creation(node, args.name()?, FileType::Directory)
            }
            op::SYMLINK => self.creation(node, args.name()?, FileType::Symlink),
            op::LINK => {
                let source: LinkIn = args.take()?;
                let file_type = self.nodes.handle(source.node)?.attributes().file_type;
                self.creation(node, args.name()?, file_type)
            }
            op::UNLINK | op::RMDIR => FileEvent::Removed(self.event_name(node, args.name()?)?),
            op::RENAME => {
                let to: RenameIn = args.take()?;
                return self.moves(node, to.new_parent, 0, args);
            }
            op::RENAME2 => {
                let to: Rename2In = args.take()?;
                return self.moves(node, to.new_parent, to.flags, args);
            }
            op::SETATTR => {
                let valid = args.take::<SetattrIn>()?.valid;
                return Ok(setattr_events(valid, &self.name_of(node)?));
            }
            op::SETXATTR | op::REMOVEXATTR => FileEvent::AttributesChanged(self.name_of(node)?),
            op::WRITE | op::FALLOCATE => FileEvent::Modified(self.name_of(node)?),
            op::COPY_FILE_RANGE => {
                let copy: CopyFileRangeIn = args.take()?;
                FileEvent::Modified(self.name_of(copy.node_out)?)
            }
            op::RELEASE => {
                let release: ReleaseIn = args.take()?;
                // An open that only raises an event has no file.
                self.nodes.file(release.file)?;
                if !OpenFlags::from_bits_truncate(release.flags).is_writable() {
                    return Ok(Vec::new());
                }
                FileEvent::WriterClosed(self.name_of(node)?)
            }
            _ => return Ok(Vec::new()),
        };
        Ok(vec![event])
    }

    fn creation(&self, parent: u64, name: &[u8], file_type: FileType) -> FileEvent {
        FileEvent::Created(EventName {
            directory: InodeNumber(self.nodes.number(parent)),
            name: name.into(),
            file_type,
            inode: None,
        })
    }

    /// Returns the moves of a rename; an exchange is two.
    fn moves(
        &self,
        parent: u64,
        new_parent: u64,
        flags: u32,
        mut args: Arguments<'_>,
    ) -> Result<Vec<FileEvent>> {
        let from = self.event_name(parent, args.name()?)?;
        let to = self.event_name(new_parent, args.name()?)?;
        let moved = |from: &EventName, to: &EventName, replaced| FileEvent::Moved {
            from: Some(from.clone()),
            to: Some(EventName {
                file_type: from.file_type,
                inode: replaced,
                ..to.clone()
            }),
        };
        if flags & RenameFlags::EXCHANGE.bits() == 0 {
            return Ok(vec![moved(&from, &to, to.inode)]);
        }
        Ok(vec![moved(&from, &to, None), moved(&to, &from, None)])
    }

    /// Returns a name with the inode that it refers to now.
    fn event_name(&self, parent: u64, name: &[u8]) -> Result<EventName> {
        let directory = self.nodes.handle(parent)?;
        let credentials = Credentials::root();
        let found = Caller::new(&self.kernel, &credentials, 0).lookup(&directory, name)?;
        let found = found.map(|found| found.attributes());
        Ok(EventName {
            directory: InodeNumber(directory.number()),
            name: name.into(),
            file_type: found.map_or(FileType::Regular, |found| found.file_type),
            inode: found.map(|found| found.number),
        })
    }

    /// Returns a name of a node; ESTALE if it has none.
    fn name_of(&self, node: u64) -> Result<EventName> {
        let handle = self.nodes.handle(node)?;
        let attributes = handle.attributes();
        let place = match node {
            ROOT => Some((handle.number(), Vec::new())),
            _ => handle.parent_and_name(),
        };
        let (directory, name) = place
            .filter(|_| attributes.link_count > 0)
            .ok_or(Errno::STALE)?;
        Ok(EventName {
            directory: InodeNumber(directory),
            name: name.into(),
            file_type: attributes.file_type,
            inode: Some(attributes.number),
        })
    }
}

/// Returns the events of changed attributes. Linux: `fsnotify_change`.
fn setattr_events(valid: u32, name: &EventName) -> Vec<FileEvent> {
    let has = |bits: u32| valid & bits != 0;
    let (accessed, modified) = (has(set::ATIME), has(set::MTIME));
    let is_modified = has(set::SIZE) || modified && !accessed;
    let is_changed = has(set::MODE | set::UID | set::GID) || accessed && modified;
    let modified = is_modified.then(|| FileEvent::Modified(name.clone()));
    let changed = is_changed.then(|| FileEvent::AttributesChanged(name.clone()));
    modified.into_iter().chain(changed).collect()
}
