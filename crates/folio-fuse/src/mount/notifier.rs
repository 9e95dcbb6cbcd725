//! The notifier of a guest: makes the calls of events on a mount whose server has no other way to
//! the programs of this machine. It asks for each call by an ioctl(2) on the root of the mount.
//!
//! It uses a copy of the mount in no tree (open_tree(2)): umount(8) of the mount succeeds, and no
//! mount hides it.

use super::mount_caller::{self, Device};
use crate::events::{AskStep, EventCall, EventCallError};
use crate::local::ioctl;
use crate::wire::abi::{NOTIFY_LEN, NOTIFY_VERSION, NotifyIn, NotifyOut};
use folio::{Error, Result};
use rustix::event::poll;
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::Gid;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::Timespec;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// A tick of the slowest kernel clock: what is valid no longer may be used for so long.
const TICK_NS: i64 = 10_000_000;
/// Time between checks of whether the file system is mounted.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The kernel's list of mounts, as they are seen by this process.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The reason why a notifier has ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifierEnd {
    /// It was asked to.
    Stopped,
    /// The file system is not mounted in the notifier's mount namespace any more.
    Unmounted,
}

/// A notifier of one mount. Only for the thread that has attached it.
pub struct Notifier {
    /// Keeps the copy of the mount.
    _tree: OwnedFd,
    root: OwnedFd,
    device: Device,
    /// The random number by which the server knows it.
    id: u64,
    received: u64,
    result: std::result::Result<(), EventCallError>,
    is_recognized: bool,
}

impl Notifier {
    /// Attaches to the mount at `target`, in place of an earlier notifier. The calling thread gets
    /// a group id of its own, by which the server recognizes its requests. From here on each change
    /// is an event.
    ///
    /// # Errors
    /// EPERM without privilege; ENOTTY if no server of this library is mounted there; EXDEV if
    /// `target` is not the root of its mount; EOPNOTSUPP if the server raises events by itself;
    /// ENODATA if the share has no change notifications; EROFS for a read-only mount.
    pub fn attach(target: &Path) -> Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, target, flags)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&tree, ".", flags, Mode::empty())?;
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty())?;
        let this = Self {
            device: mount_caller::device_of(&root)?,
            _tree: tree,
            root,
            id: u64::from_ne_bytes(id),
            received: 0,
            result: Ok(()),
            is_recognized: false,
        };
        // Before the first request, which ends an earlier notifier.
        if rustix::fs::fstatvfs(&this.root)?
            .f_flag
            .contains(StatVfsMountFlags::RDONLY)
        {
            return Err(Errno::ROFS.into());
        }
        let mut argument = Box::new([0; NOTIFY_LEN]);
        let reply = this.ask(&mut argument, AskStep::First)?;
        let group = Gid::from_raw(reply.group);
        if let Err(errno) = rustix::thread::set_thread_res_gid(None, group, None) {
            let _ = this.ask(&mut argument, AskStep::Last);
            return Err(errno.into());
        }
        Ok(this)
    }

    /// Makes calls until `is_stopping` or the unmount; both are looked at once in a second.
    ///
    /// # Errors
    /// EBUSY if another notifier has attached or the device was reset; EROFS if the mount has
    /// become read-only; else those of the mount.
    pub fn run(&mut self, is_stopping: impl Fn() -> bool) -> Result<NotifierEnd> {
        let mut argument = Box::new([0; NOTIFY_LEN]);
        let mut checked = Instant::now();
        while !is_stopping() {
            if checked.elapsed() >= CHECK_INTERVAL {
                if !self.is_mounted()? {
                    // The file system may live on in another mount namespace.
                    let _ = self.ask(&mut argument, AskStep::Last);
                    return Ok(NotifierEnd::Unmounted);
                }
                checked = Instant::now();
            }
            let reply = self.ask(&mut argument, AskStep::Next)?;
            if reply.call == 0 {
                continue;
            }
            let bytes = argument[size_of::<NotifyOut>()..].get(..reply.len as usize);
            self.received = reply.call;
            self.result = match bytes.and_then(EventCall::decode) {
                Some(call) => self.make(&call, reply.retry_us),
                None => Err(EventCallError::Failed(folio::Errno::INVAL)),
            };
            if self.result == Err(EventCallError::Failed(folio::Errno::ROFS)) {
                // The server raises an overflow by the next notifier.
                self.result = Err(EventCallError::Unreachable(folio::Errno::ROFS));
                self.ask(&mut argument, AskStep::Last)?;
                return Err(Errno::ROFS.into());
            }
        }
        self.ask(&mut argument, AskStep::Last)?;
        Ok(NotifierEnd::Stopped)
    }

    /// Sends the result of the last call, and waits for the next one for a limited time.
    fn ask(&self, argument: &mut [u8; NOTIFY_LEN], step: AskStep) -> Result<NotifyOut> {
        let ask = NotifyIn {
            version: NOTIFY_VERSION,
            step: step.number(),
            notifier: self.id,
            call: self.received,
            result: EventCallError::encode(self.result),
            ..NotifyIn::default()
        };
        argument[..size_of::<NotifyIn>()].copy_from_slice(ask.as_bytes());
        ioctl::notify(self.root.as_fd(), argument)?;
        let (reply, _) = NotifyOut::read_from_prefix(&argument[..]).map_err(|_| Errno::PROTO)?;
        Ok(reply)
    }

    fn make(&mut self, call: &EventCall, retry_us: u32) -> std::result::Result<(), EventCallError> {
        if !self.is_recognized {
            mount_caller::prove_recognition(&self.root, call)
                .map_err(EventCallError::Unreachable)?;
            self.is_recognized = true;
        }
        match mount_caller::make(&self.root, call) {
            Err(errno) if !matches!(errno, Errno::PERM | Errno::ACCESS | Errno::ROFS) => {
                // The kernel has cached a name as it is after the change. During a call it learns
                // none anew that is valid for any time.
                let time_ns = i64::from(retry_us) * 1000 + TICK_NS;
                let time = Timespec {
                    tv_sec: time_ns / 1_000_000_000,
                    tv_nsec: time_ns % 1_000_000_000,
                };
                let _ = poll(&mut [], Some(&time));
                mount_caller::make(&self.root, call)
            }
            made => made,
        }
        .map_err(EventCallError::Failed)
    }

    /// Returns whether the file system is mounted in the mount namespace of this process.
    fn is_mounted(&self) -> Result<bool> {
        let mounts =
            std::fs::read_to_string(MOUNTS).map_err(|error| Error::io("list mounts", error))?;
        let device = format!("{}:{}", self.device[0], self.device[1]);
        // proc_pid_mountinfo(5): id, parent, device.
        let mut devices = mounts.lines().filter_map(|line| line.split(' ').nth(2));
        Ok(devices.any(|mounted| mounted == device))
    }
}
