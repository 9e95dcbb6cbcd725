//! Requests of the thread that raises events (`events/`): answered without the host.

use super::call::Call;
use super::{Done, Server};
use crate::events::{EventCalls, Place, RaisedTarget, placeholder_type};
use crate::nodes::ROOT;
use crate::wire::abi::{
    AttrOut, EntryOut, InHeader, IoctlIn, MkdirIn, MknodIn, NOTIFY, OpenOut, StatxOut, init, open,
};
use crate::wire::encode::{mknod_type, statx};
use crate::wire::op;
use crate::wire::request::Arguments;
use folio::syscall::Handle;
use folio::vfs::{Attributes, FileType, InodeNumber};
use folio::{Errno, Result};
use std::time::Duration;

impl Server {
    /// Returns the state of raised events if this request is of the thread that raises them.
    pub(super) fn raised_call(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
    ) -> Option<&EventCalls> {
        let calls = self.event_calls()?;
        if (header.opcode, header.node) == (op::LOOKUP, ROOT)
            && arguments
                .name()
                .is_ok_and(|name| name == calls.outside_name())
        {
            calls.recognize(header.pid);
        }
        calls
            .is_thread(header.pid, header.uid, header.gid)
            .then_some(calls)
    }

    /// Returns whether a call in progress concerns a name: what the client learns of it then is
    /// valid for no time.
    pub(super) fn is_raised(&self, parent: u64, name: &[u8]) -> bool {
        self.event_calls()
            .is_some_and(|calls| calls.target(parent, name).is_some())
    }

    /// Notes where the client finds a directory.
    pub(super) fn note_place(&self, parent: u64, name: &[u8], entry: &EntryOut) {
        if let Some(calls) = self.event_calls()
            && entry.attr.mode & 0o170_000 == 0o040_000
            && entry.node != ROOT
            && placeholder_type(entry.node).is_none()
        {
            let name = name.into();
            calls.places.set(entry.node, Place { parent, name });
        }
    }

    /// Answers a request of the thread (E1).
    pub(super) fn answer_raised(&self, calls: &EventCalls, call: &mut Call<'_>) -> Result<Done> {
        let node = call.node();
        match call.header.opcode {
            op::LOOKUP => self.lookup_raised(calls, call)?,
            op::MKNOD => {
                let args: MknodIn = call.arguments.take()?;
                let file_type = mknod_type(args.mode).ok_or(Errno::INVAL)?;
                self.create_raised(calls, call, file_type)?;
            }
            op::MKDIR => {
                call.arguments.take::<MkdirIn>()?;
                self.create_raised(calls, call, FileType::Directory)?;
            }
            op::SYMLINK => self.create_raised(calls, call, FileType::Symlink)?,
            op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 | op::RELEASE | op::RELEASEDIR => {}
            op::SETATTR | op::GETATTR => {
                let mut attributes = self.raised_attributes(node)?;
                if call.header.opcode == op::SETATTR && self.notifier.get().is_some() {
                    // No notice has dropped the client's pages. The kernel keeps them at a new time
                    // in this reply, and drops them at another one in the next.
                    attributes.modified.nanos ^= 1;
                }
                call.send(&AttrOut {
                    valid: 0,
                    valid_nanos: 0,
                    ..self.attr_out(&attributes, Duration::ZERO)
                })?;
            }
            op::STATX => {
                let attributes = self.raised_attributes(node)?;
                call.send(&StatxOut {
                    valid: 0,
                    valid_nanos: 0,
                    ..statx(&self.presented(&attributes))
                })?;
            }
            op::OPEN if !self.has(init::NO_OPEN_SUPPORT) => call.send(&OpenOut {
                open_flags: open::KEEP_CACHE,
                ..OpenOut::default()
            })?,
            op::GETXATTR if placeholder_type(node).is_some() => return Err(Errno::NODATA.into()),
            op::CREATE
            | op::TMPFILE
            | op::LINK
            | op::WRITE
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::SETXATTR
            | op::REMOVEXATTR => return Err(Errno::PERM.into()),
            op::IOCTL => self.ioctl_raised(call)?,
            _ => return self.dispatch(call),
        }
        Ok(Done::Replied)
    }

    /// Asks for the next call; there is no other request.
    fn ioctl_raised(&self, call: &mut Call<'_>) -> Result<()> {
        let args: IoctlIn = call.arguments.take()?;
        match args.command {
            NOTIFY => self.notify(call),
            _ => Err(Errno::PERM.into()),
        }
    }

    fn lookup_raised(&self, calls: &EventCalls, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let parent = call.node();
        let mut arguments = call.arguments;
        let name = arguments.name()?;
        if parent == ROOT && name == calls.outside_name() {
            let outside = self.placeholder_entry(EventCalls::outside(), FileType::Directory);
            return call.send(&outside);
        }
        let entry = match calls.target(parent, name) {
            Some(RaisedTarget::Absent) => return Err(Errno::NOENT.into()),
            Some(RaisedTarget::Old(file_type, node)) => {
                let node = node.or_else(|| calls.places.node_at(parent, name));
                let handle = node.and_then(|node| self.nodes.handle(node).ok());
                self.old_entry(calls, handle, file_type)?
            }
            Some(RaisedTarget::Replaced(node)) => {
                let handle = self.nodes.handle(node).map_err(|_| Errno::NOENT)?;
                let file_type = handle.attributes().file_type;
                // The host may use the inode number of a replaced directory again: the directory
                // that the client has elsewhere is another one.
                if file_type == FileType::Directory
                    && calls.places.node_at(parent, name) != Some(node)
                {
                    return Err(Errno::NOENT.into());
                }
                self.old_entry(calls, Some(handle), file_type)?
            }
            Some(RaisedTarget::Current(FileType::Directory))
                if let Some(node) = calls.places.node_at(parent, name) =>
            {
                self.old_entry(calls, self.nodes.handle(node).ok(), FileType::Directory)?
            }
            Some(RaisedTarget::Current(file_type)) => {
                self.current_entry(calls, call, name, file_type)?
            }
            None if placeholder_type(parent).is_some() => return Err(Errno::NOENT.into()),
            None => return self.lookup(call),
        };
        self.note_place(parent, name, &entry);
        call.send(&entry)
    }

    /// Creates the name in the client: it refers to the inode of the host.
    fn create_raised(
        &self,
        calls: &EventCalls,
        call: &mut Call<'_>,
        file_type: FileType,
    ) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let name = call.arguments.name()?;
        let entry = self.current_entry(calls, call, name, file_type)?;
        self.note_place(call.node(), name, &entry);
        call.send(&entry)
    }

    /// Returns the entry of the inode that the host has at a name, or of a placeholder if it has
    /// none of this type.
    fn current_entry(
        &self,
        calls: &EventCalls,
        call: &Call<'_>,
        name: &[u8],
        file_type: FileType,
    ) -> Result<EntryOut> {
        let caller = self.caller(call.credentials, 0);
        let found = self
            .nodes
            .handle(call.node())
            .and_then(|parent| caller.lookup(&parent, name));
        match found {
            // The host may have changed the name since.
            Ok(Some(found))
                if found.attributes().file_type == file_type && !self.replaces_node(&found) =>
            {
                self.entry(found, Duration::ZERO)
            }
            _ => self.old_entry(calls, None, file_type),
        }
    }

    /// Returns whether the client has this inode's node as another inode, which the host has freed
    /// since: its events may still be on their way, and an entry would replace it in the client.
    fn replaces_node(&self, found: &Handle) -> bool {
        let known = self.nodes.handle(self.nodes.id(found));
        known.is_ok_and(|known| !known.is_same(found))
    }

    /// Returns the entry of an inode that may have no name on the host any more, or of a
    /// placeholder.
    fn old_entry(
        &self,
        calls: &EventCalls,
        handle: Option<Handle>,
        file_type: FileType,
    ) -> Result<EntryOut> {
        match handle {
            Some(handle) if handle.attributes().file_type == file_type => {
                let generation = handle.generation();
                let attributes = handle.attributes();
                let found = self.nodes.look_up_as(handle, attributes);
                Ok(EntryOut {
                    attr_valid: 0,
                    attr_valid_nanos: 0,
                    ..self.entry_of(&found, generation, Duration::ZERO)
                })
            }
            _ => Ok(self.placeholder_entry(calls.placeholder(file_type), file_type)),
        }
    }

    fn placeholder_entry(&self, node: u64, file_type: FileType) -> EntryOut {
        let attributes = attributes_of_placeholder(node, file_type);
        EntryOut {
            node,
            attr: self.attr_out(&attributes, Duration::ZERO).attr,
            ..EntryOut::default()
        }
    }

    /// Returns the attributes of a node as the host has them, or as last known.
    fn raised_attributes(&self, node: u64) -> Result<Attributes> {
        if let Some(file_type) = placeholder_type(node) {
            return Ok(attributes_of_placeholder(node, file_type));
        }
        let handle = self.nodes.handle(node)?;
        Ok(self
            .nodes
            .stat(&handle)
            .unwrap_or_else(|_| handle.attributes()))
    }
}

/// Returns the attributes of a file that the host does not have. It is the server's own, so that
/// the thread may change it.
fn attributes_of_placeholder(node: u64, file_type: FileType) -> Attributes {
    Attributes {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Attributes::new(InodeNumber(node), file_type, 0o700)
    }
}
