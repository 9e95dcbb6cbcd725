//! The thread that raises events: makes the system calls of which the kernel informs the watchers
//! of the mount. The server answers its requests by itself (`events/`).
//!
//! It opens the mount for a burst of events only, so that the mount is not busy without changes.

use super::descriptor_table::{close_standard_streams, leave_shared_table};
use crate::changes::{EventInbox, InboxItem};
use crate::events::{EventCalls, Place, RaisedCall, RaisedName, RaisedTarget};
use crate::nodes::ROOT;
use crate::server::Server;
use folio::vfs::{EventName, FileEvent, FileType};
use rustix::fs::{
    AtFlags, CWD, FileType as HostType, Mode, OFlags, ResolveFlags, StatxFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::{Errno, Result};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Most attempts for one event. The first fails if the kernel has cached the name as it is after
/// the change.
const TRIES_MAX: u32 = 4;
/// The name in the outside directory.
const OUTSIDE_NAME: &[u8] = b"moved";

/// Starts the thread of a mount on `target`, if the server raises events.
pub(super) fn start(server: &Arc<Server>, target: PathBuf) -> io::Result<Option<JoinHandle<()>>> {
    if server.event_calls().is_none() {
        return Ok(None);
    }
    let server = Arc::clone(server);
    let thread = std::thread::Builder::new().name("folio-events".to_owned());
    thread.spawn(move || run(&server, target)).map(Some)
}

fn run(server: &Server, target: PathBuf) {
    let (Some(calls), Some(inbox)) = (server.event_calls(), server.event_inbox()) else {
        return;
    };
    // In a shared table the thread could wait for itself.
    if leave_shared_table(None)
        .and_then(|()| close_standard_streams())
        .is_err()
    {
        return;
    }
    calls.set_thread(
        rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned(),
    );
    let _recognized = Recognized(calls);
    let thread = EventThread {
        server,
        calls,
        inbox,
        target,
    };
    thread.serve();
}

/// The time during which the thread is recognized: another one may have its id afterwards.
struct Recognized<'a>(&'a EventCalls);

impl Drop for Recognized<'_> {
    fn drop(&mut self) {
        self.0.set_thread(0);
    }
}

struct EventThread<'a> {
    server: &'a Server,
    calls: &'a EventCalls,
    inbox: &'a EventInbox,
    target: PathBuf,
}

/// The mount, opened for a burst of events.
struct OpenMount {
    root: OwnedFd,
    /// The directory that exists for this thread alone: the proof that the server of the mount
    /// recognizes the thread (E1).
    outside: OwnedFd,
}

/// One side of a call: a name in a directory.
struct Side {
    /// The path from the root to the directory; `None` for the outside directory.
    path: Option<PathBuf>,
    node: u64,
    name: Box<[u8]>,
}

impl EventThread<'_> {
    fn serve(&self) {
        let mut open = None;
        while let Some(item) = self.inbox.next() {
            let mount = match open.take().map_or_else(|| self.open(), Ok) {
                Ok(mount) => mount,
                // Unmounted, hidden by another mount, or the thread is not recognized.
                Err(_) => {
                    self.server.request_counts().add_lost_event();
                    continue;
                }
            };
            match item {
                InboxItem::Event(event) => self.raise(&mount, &event),
                InboxItem::Overflow => {
                    self.server.request_counts().add_lost_event();
                    self.raise_overflow(&mount);
                }
            }
            if !self.inbox.is_empty() {
                open = Some(mount);
            }
        }
    }

    fn open(&self) -> Result<OpenMount> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.target, flags, Mode::empty())?;
        let outside = rustix::fs::openat(&root, self.calls.outside_name(), flags, Mode::empty())?;
        Ok(OpenMount { root, outside })
    }

    /// Raises an event on every directory that the client knows: its programs read them again.
    fn raise_overflow(&self, mount: &OpenMount) {
        for node in self.calls.places.nodes().into_iter().chain([ROOT]) {
            let Some(side) = self.side_of(node, b"") else {
                continue;
            };
            for _ in 0..TRIES_MAX {
                let made = self.call(vec![], &[&side], |this| {
                    set_times(&this.directory(mount, &side)?, b"", true)
                });
                if made.is_ok() {
                    break;
                }
                self.server.wait_until_pushed();
            }
        }
    }

    fn raise(&self, mount: &OpenMount, event: &FileEvent) {
        for attempt in 0..TRIES_MAX {
            match self.attempt(mount, event, attempt == 0) {
                Ok(()) => return,
                // The mounting user may not change the file.
                Err(Errno::PERM | Errno::ACCESS) => break,
                Err(_) => {
                    for name in names(event) {
                        let node = self.server.node_of(name.directory);
                        self.server.report_name_change(node, &name.name);
                    }
                    self.server.wait_until_pushed();
                }
            }
        }
        self.server.request_counts().add_lost_event();
    }

    fn attempt(&self, mount: &OpenMount, event: &FileEvent, is_first: bool) -> Result<()> {
        match event {
            FileEvent::Created(name) => self.call_by(
                mount,
                name,
                RaisedTarget::Absent,
                |directory, name_bytes| create(directory, name_bytes, name.file_type),
            ),
            FileEvent::Removed(name) => {
                let flags = match name.file_type {
                    FileType::Directory => AtFlags::REMOVEDIR,
                    _ => AtFlags::empty(),
                };
                self.call_by(mount, name, self.old(name), |directory, name| {
                    rustix::fs::unlinkat(directory, name, flags)
                })
            }
            FileEvent::Moved { from, to } => {
                self.move_name(mount, from.as_ref(), to.as_ref(), is_first)
            }
            FileEvent::Modified(name) => {
                let target = self.old_or_current(name);
                self.call_by(mount, name, target, |directory, name| {
                    set_times(directory, name, false)
                })
            }
            FileEvent::AttributesChanged(name) => {
                let target = self.old_or_current(name);
                self.call_by(mount, name, target, |directory, name| {
                    set_times(directory, name, true)
                })
            }
            FileEvent::WriterClosed(name) if name.file_type == FileType::Regular => {
                self.call_by(mount, name, self.old_or_current(name), close_writer)
            }
            FileEvent::WriterClosed(_) => Ok(()),
        }
    }

    fn old(&self, name: &EventName) -> RaisedTarget {
        let node = name.inode.map(|number| self.server.node_of(number));
        RaisedTarget::Old(name.file_type, node)
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
        mount: &OpenMount,
        name: &EventName,
        target: RaisedTarget,
        call: impl Fn(&OwnedFd, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(side) = self.side(name) else {
            return Ok(());
        };
        self.call(vec![side.raised(target)], &[&side], |this| {
            call(&this.directory(mount, &side)?, &side.name)
        })
    }

    fn move_name(
        &self,
        mount: &OpenMount,
        from: Option<&EventName>,
        to: Option<&EventName>,
        is_first: bool,
    ) -> Result<()> {
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
            old.unwrap_or_else(Side::outside),
            new.unwrap_or_else(Side::outside),
        );
        let call = vec![old.raised(source), new.raised(target)];
        self.call(call, &[&old, &new], |this| {
            let (directory, new_directory) =
                (this.directory(mount, &old)?, this.directory(mount, &new)?);
            rustix::fs::renameat(directory, &*old.name, new_directory, &*new.name)
        })?;
        self.calls
            .places
            .note_move(&old.place(), &new.place(), false);
        // The kernel keeps the validity of the old name, and the host may have changed the new one.
        self.server.report_name_change(new.node, &new.name);
        Ok(())
    }

    /// Makes a call that looks up these names, and those on the paths of `sides`.
    fn call(
        &self,
        mut names: RaisedCall,
        sides: &[&Side],
        make: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        for side in sides {
            let path = self.calls.places.path(side.node).unwrap_or_default();
            names.extend(path.into_iter().map(|(place, node)| RaisedName {
                parent: place.parent,
                name: place.name,
                target: RaisedTarget::Old(FileType::Directory, Some(node)),
            }));
        }
        let turn = self.inbox.take_turn();
        self.calls.begin(names);
        let made = make(self);
        self.calls.end();
        drop(turn);
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
            path: Some(OsString::from_vec(joined).into()),
            node,
            name: name.into(),
        })
    }

    /// Opens the directory of a name.
    fn directory(&self, mount: &OpenMount, side: &Side) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some(path) = &side.path else {
            return rustix::fs::openat(&mount.outside, ".", flags, Mode::empty());
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let directory = rustix::fs::openat2(&mount.root, path, flags, Mode::empty(), resolve)?;
        // The kernel may have another directory there by now.
        if side.node != ROOT && number_of(&directory)? != side.node {
            return Err(Errno::STALE);
        }
        Ok(directory)
    }
}

impl Side {
    fn outside() -> Self {
        Self {
            path: None,
            node: EventCalls::outside(),
            name: OUTSIDE_NAME.into(),
        }
    }

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

fn create(directory: &OwnedFd, name: &[u8], file_type: FileType) -> Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    let node = |file_type| rustix::fs::mknodat(directory, name, file_type, mode, 0);
    match file_type {
        FileType::Directory => rustix::fs::mkdirat(directory, name, mode),
        FileType::Symlink => rustix::fs::symlinkat("target", directory, name),
        FileType::Regular => node(HostType::RegularFile),
        FileType::Fifo => node(HostType::Fifo),
        FileType::Socket => node(HostType::Socket),
        FileType::CharacterDevice => node(HostType::CharacterDevice),
        FileType::BlockDevice => node(HostType::BlockDevice),
    }
}

/// Sets the time of the last change of contents, of which the kernel informs watchers as of a
/// write; with `both` also that of the last access, which is a change of attributes. The server
/// changes neither.
fn set_times(directory: &OwnedFd, name: &[u8], both: bool) -> Result<()> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps {
        last_access: time(if both { UTIME_NOW } else { UTIME_OMIT }),
        last_modification: time(UTIME_NOW),
    };
    let name = if name.is_empty() { b"." } else { name };
    rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens a regular file for writing, and closes it.
fn close_writer(directory: &OwnedFd, name: &[u8]) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    // Opening a device or a pipe may have side effects.
    let status = rustix::fs::statx(
        &found,
        "",
        AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
        StatxFlags::TYPE,
    )?;
    if HostType::from_raw_mode(status.stx_mode.into()) != HostType::RegularFile {
        return Err(Errno::STALE);
    }
    let path = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map(drop)
}

/// Returns the inode number, without a request.
fn number_of(file: &OwnedFd) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, "", flags, StatxFlags::INO).map(|status| status.stx_ino)
}
