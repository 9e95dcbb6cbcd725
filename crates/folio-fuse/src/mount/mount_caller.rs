//! The calls that raise events, on one mount of this machine. The server of the mount answers their
//! requests by itself (`events/`).
//!
//! The mount is opened for a burst of events only, so that it is not busy without changes.

use super::descriptor_table::{close_standard_streams, leave_shared_table};
use crate::events::{CallName, EventCall, EventCallError, EventCallKind};
use crate::nodes::ROOT;
use folio::vfs::FileType;
use rustix::fs::{
    AtFlags, CWD, FileType as HostType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::{Errno, Result};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const DIRECTORY: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const FILE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Major and minor number.
pub(super) type Device = [u32; 2];

/// A thread's view of the mount that its process serves. Only for the thread that has made it.
pub struct MountCaller {
    target: PathBuf,
    /// The device number of the mount, if it was reachable at first.
    device: Option<Device>,
    /// The root, while a burst of events lasts.
    root: Option<OwnedFd>,
}

impl MountCaller {
    /// Prepares the calling thread for calls on the mount at `target`: it gets a table of
    /// descriptors of its own, in which it could not wait for itself, and which has nothing of the
    /// process.
    ///
    /// # Errors
    /// Those of unshare(2).
    pub fn enter(target: PathBuf) -> folio::Result<Self> {
        leave_shared_table(None).and_then(|()| close_standard_streams())?;
        let root = rustix::fs::open(&target, DIRECTORY, Mode::empty());
        Ok(Self {
            device: root.and_then(|root| device_of(&root)).ok(),
            target,
            root: None,
        })
    }

    /// Makes a call. A call that fails closes the mount: its server may be lost.
    ///
    /// # Errors
    /// [`EventCallError`].
    pub fn make(&mut self, call: &EventCall) -> std::result::Result<(), EventCallError> {
        let root = match self.root.take() {
            Some(root) => root,
            None => self.open(call).map_err(EventCallError::Unreachable)?,
        };
        make(&root, call).map_err(EventCallError::Failed)?;
        self.root = Some(root);
        Ok(())
    }

    /// Returns whether the mount is open.
    pub fn is_open(&self) -> bool {
        self.root.is_some()
    }

    /// Closes the mount until the next call.
    pub fn release(&mut self) {
        self.root = None;
    }

    /// Opens the mount, whose server must recognize the thread.
    fn open(&self, call: &EventCall) -> Result<OwnedFd> {
        let root = rustix::fs::open(&self.target, DIRECTORY, Mode::empty())?;
        // Another mount may hide it.
        if self.device.is_some() && self.device != Some(device_of(&root)?) {
            return Err(Errno::STALE);
        }
        prove_recognition(&root, call)?;
        Ok(root)
    }
}

/// Opens the name that exists for the calling thread alone, which proves that the server of the
/// mount recognizes the thread (E1).
pub(super) fn prove_recognition(root: &OwnedFd, call: &EventCall) -> Result<()> {
    rustix::fs::openat(root, &*call.outside_name, DIRECTORY, Mode::empty()).map(drop)
}

/// Makes a call on the mount with this root.
pub(super) fn make(root: &OwnedFd, call: &EventCall) -> Result<()> {
    let mut found = Vec::with_capacity(call.names.len());
    for name in &call.names {
        found.push((directory(root, name)?, &*name.name));
    }
    match (call.kind, &found[..]) {
        (EventCallKind::Create(file_type), [(directory, name)]) => {
            create(directory, name, file_type)
        }
        (EventCallKind::RemoveFile, [(directory, name)]) => {
            rustix::fs::unlinkat(directory, *name, AtFlags::empty())
        }
        (EventCallKind::RemoveDirectory, [(directory, name)]) => {
            rustix::fs::unlinkat(directory, *name, AtFlags::REMOVEDIR)
        }
        (EventCallKind::Move, [(directory, name), (new_directory, new_name)]) => {
            rustix::fs::renameat(directory, *name, new_directory, *new_name)
        }
        (EventCallKind::SetModified, [(directory, name)]) => set_times(directory, name, false),
        (EventCallKind::SetTimes, [(directory, name)]) => set_times(directory, name, true),
        (EventCallKind::CloseWriter, [(directory, name)]) => close_writer(directory, name),
        _ => Ok(()),
    }
}

/// Opens the directory of a name.
fn directory(root: &OwnedFd, name: &CallName) -> Result<OwnedFd> {
    let directory = open_beneath(root, &name.path, DIRECTORY)?;
    // The kernel may have another directory there by now.
    if name.node != ROOT && number_of(&directory)? != name.node {
        return Err(Errno::STALE);
    }
    Ok(directory)
}

/// Opens a path that does not leave the mount.
fn open_beneath(directory: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = OsStr::from_bytes(path);
    rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)
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
    // Another file system may be mounted there.
    let found = open_beneath(directory, name, FILE)?;
    rustix::fs::utimensat(found, "", &times, AtFlags::EMPTY_PATH)
}

/// Opens a regular file for writing, and closes it.
fn close_writer(directory: &OwnedFd, name: &[u8]) -> Result<()> {
    let found = open_beneath(directory, name, FILE)?;
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
    status_of(file).map(|status| status.stx_ino)
}

/// Returns the device number, without a request.
pub(super) fn device_of(file: &OwnedFd) -> Result<Device> {
    status_of(file).map(|status| [status.stx_dev_major, status.stx_dev_minor])
}

fn status_of(file: &OwnedFd) -> Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, "", flags, StatxFlags::INO)
}
