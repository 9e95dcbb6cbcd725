//! The inotify instance of a mount: watches, expected events, warnings. Linux: inotify(7).

use super::host_calls::{self, Identity};
use super::options::PushMode;
use crate::base::lock::Mutex;
use crate::base::{DeviceNumber, Errno, Error, Result};
use rustix::fd::OwnedFd;
use rustix::fs::FsWord;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// File systems for which inotify reports every change, as only this kernel can change their disk
/// or memory (linux/magic.h).
const REPORTED_FILE_SYSTEMS: [FsWord; 15] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
    0x794c_7630, // overlay; overlayfs leaves direct changes of a layer undefined
    0x4d44,      // vfat
    0x2011_bab0, // exfat
    0x7366_746e, // ntfs3
    0x9660,      // iso9660
    0x7371_7368, // squashfs
    0x3153_464a, // jfs
];
/// After a watch failed for lack of watches, no watch is added for this time.
const RETRY_NS: u64 = 1_000_000_000;
/// An event about a change through Folio arrives within this time.
const EXPECTED_NS: u64 = 1_000_000_000;
/// Maximum number of expected events; older ones are then taken for changes by external writers.
const EXPECTED_MAX: usize = 4096;

/// The watch descriptor of an inode; 0 if there is none.
#[derive(Default)]
pub(super) struct Watch(AtomicI32);

impl Watch {
    pub(super) fn is_active(&self) -> bool {
        self.descriptor().is_some()
    }

    /// Returns the watch descriptor. The kernel does not use one again for another watch.
    pub(super) fn descriptor(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Acquire)).filter(|wd| *wd > 0)
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A kind of change to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameChange {
    /// The name is created.
    Created,
    /// The name is removed.
    Removed,
    /// The name is moved away.
    MovedFrom,
    /// The name is moved here.
    MovedTo,
}

/// An event that a change through Folio will cause.
struct ExpectedEvent {
    wd: i32,
    name: Box<[u8]>,
    change: NameChange,
    /// The inode that is moved to the name.
    moved: Option<Identity>,
    until_ns: u64,
}

/// An event that was expected.
pub(super) struct Expected {
    /// The inode that was moved to the name.
    pub(super) moved: Option<Identity>,
}

/// The part of the user's watches, as a divisor, beyond which directories that were only listed get
/// none.
const EARLY_SHARE: usize = 4;

/// Returns the most watches of a user; 0 if it is not known.
fn watches_max() -> usize {
    let read = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
    read.ok()
        .and_then(|max| max.trim().parse().ok())
        .unwrap_or(0)
}

/// An inotify instance that watches inodes of type `I`.
pub(super) struct Inotify<I> {
    pub(super) fd: Arc<OwnedFd>,
    watched: Mutex<HashMap<i32, Weak<I>>>,
    expected: Mutex<VecDeque<ExpectedEvent>>,
    pub(super) is_stopping: Arc<AtomicBool>,
    full_until_ns: AtomicU64,
    /// Most watches with which a directory gets one before names in it are looked up.
    early_max: usize,
    /// Whether inotify reports every change of a device.
    devices: Mutex<HashMap<DeviceNumber, bool>>,
    warnings: Mutex<Vec<&'static str>>,
}

impl<I> Inotify<I> {
    /// Creates an instance, if `mode` asks for one and inotify reports every change below `root`.
    /// Otherwise returns a warning with the reason.
    pub(super) fn new(mode: PushMode, root: &OwnedFd) -> Result<(Option<Self>, Option<String>)> {
        if mode == PushMode::Off {
            return Ok((None, None));
        }
        let created = inotify::init(CreateFlags::CLOEXEC)
            .map_err(Error::from)
            .and_then(|fd| {
                if reports_changes(root) {
                    Ok(fd)
                } else {
                    Err(Error::new(
                        Errno::OPNOTSUPP,
                        "its file system does not report all changes to inotify",
                    ))
                }
            });
        match created {
            Ok(fd) => Ok((
                Some(Self {
                    fd: Arc::new(fd),
                    watched: Mutex::default(),
                    expected: Mutex::default(),
                    is_stopping: Arc::default(),
                    full_until_ns: AtomicU64::new(0),
                    early_max: watches_max() / EARLY_SHARE,
                    devices: Mutex::default(),
                    warnings: Mutex::default(),
                }),
                None,
            )),
            Err(error) if mode == PushMode::Inotify => Err(error.at("push=inotify")),
            Err(error) => Ok((
                None,
                Some(format!(
                    "external changes are seen only after the time to live: {error}"
                )),
            )),
        }
    }

    /// Stops the thread that reads events.
    pub(super) fn stop(&self, root: &OwnedFd) {
        // Before the event: the thread looks at it when it wakes.
        self.is_stopping.store(true, Ordering::SeqCst);
        // Removing a watch causes an event, which wakes the thread.
        let path = host_calls::path_of(root);
        if let Ok(wd) = inotify::add_watch(&*self.fd, path, WatchFlags::ATTRIB) {
            let _: rustix::io::Result<()> = inotify::remove_watch(&*self.fd, wd);
        }
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings
            .lock()
            .iter()
            .map(|warning| (*warning).to_owned())
            .collect()
    }

    /// Adds a warning; returns false if it was added before.
    pub(super) fn add_warning(&self, warning: &'static str) -> bool {
        let mut warnings = self.warnings.lock();
        let is_new = !warnings.contains(&warning);
        if is_new {
            warnings.push(warning);
        }
        is_new
    }

    /// Returns whether inotify reports every change on the device of `fd`.
    pub(super) fn reports_device(&self, device: DeviceNumber, fd: &OwnedFd) -> bool {
        let cached = self.devices.lock().get(&device).copied();
        cached.unwrap_or_else(|| {
            let is_reported = reports_changes(fd);
            self.devices.lock().insert(device, is_reported);
            is_reported
        })
    }

    /// Returns whether watches ran out recently.
    pub(super) fn is_full(&self, now_ns: u64) -> bool {
        now_ns < self.full_until_ns.load(Ordering::Relaxed)
    }

    /// Returns whether there are watches enough for directories that were only listed.
    pub(super) fn has_spare_watches(&self, now_ns: u64) -> bool {
        !self.is_full(now_ns) && self.watched.lock().len() < self.early_max
    }

    /// Adds no watch from now on.
    pub(super) fn disable(&self) {
        self.full_until_ns.store(u64::MAX, Ordering::Relaxed);
    }

    /// Watches an inode for `events`. Returns false if there are no watches left.
    pub(super) fn watch(
        &self,
        watch: &Watch,
        inode: Weak<I>,
        fd: &OwnedFd,
        events: WatchFlags,
        now_ns: u64,
    ) -> bool {
        // Locked over the call: the thread that reads an event of the watch must find the inode.
        let mut watched = self.watched.lock();
        match inotify::add_watch(&*self.fd, host_calls::path_of(fd), events) {
            Ok(wd) => {
                watched.insert(wd, inode);
                watch.0.store(wd, Ordering::Release);
                true
            }
            Err(Errno::NOSPC) => {
                drop(watched);
                self.full_until_ns
                    .store(now_ns + RETRY_NS, Ordering::Relaxed);
                false
            }
            Err(_) => true,
        }
    }

    /// Returns the inode with watch descriptor `wd`.
    pub(super) fn watched(&self, wd: i32) -> Option<Arc<I>> {
        self.watched.lock().get(&wd).and_then(Weak::upgrade)
    }

    /// Notes that the kernel removed a watch.
    pub(super) fn forget_watch(&self, wd: i32) {
        self.watched.lock().remove(&wd);
    }

    /// Removes the watch of an inode that is being freed.
    pub(super) fn forget(&self, watch: &Watch, inode: *const I) {
        let wd = watch.0.load(Ordering::Acquire);
        if wd == 0 {
            return;
        }
        let mut watched = self.watched.lock();
        // Another object for the same inode may have taken over the watch.
        if watched
            .get(&wd)
            .is_some_and(|current| std::ptr::eq(current.as_ptr(), inode))
        {
            watched.remove(&wd);
            let _: rustix::io::Result<()> = inotify::remove_watch(&*self.fd, wd);
        }
    }

    /// Notes a change, about to be made through Folio, to a name in the directory of `wd`.
    pub(super) fn expect(
        &self,
        wd: i32,
        name: &[u8],
        change: NameChange,
        moved: Option<Identity>,
        now_ns: u64,
    ) {
        let mut expected = self.expected.lock();
        if expected.len() == EXPECTED_MAX {
            expected.pop_front();
        }
        expected.push_back(ExpectedEvent {
            wd,
            name: name.into(),
            change,
            moved,
            until_ns: now_ns.saturating_add(EXPECTED_NS),
        });
    }

    /// Removes an event from the expected ones, if it is one.
    pub(super) fn take_expected(
        &self,
        wd: i32,
        name: &[u8],
        change: NameChange,
        now_ns: u64,
    ) -> Option<Expected> {
        let mut expected = self.expected.lock();
        while expected
            .front()
            .is_some_and(|first| first.until_ns < now_ns)
        {
            expected.pop_front();
        }
        let is_event = |event: &ExpectedEvent| {
            event.wd == wd && event.change == change && *event.name == *name
        };
        let index = expected.iter().position(is_event);
        let event = expected.remove(index?)?;
        Some(Expected { moved: event.moved })
    }

    /// Returns whether an event about a name in the directory of `wd` is expected, for this change
    /// or any: the events before it may be about a file that has lost the name through Folio.
    pub(super) fn is_expected(
        &self,
        wd: i32,
        name: &[u8],
        change: Option<NameChange>,
        now_ns: u64,
    ) -> bool {
        let expected = self.expected.lock();
        let is_event = |event: &ExpectedEvent| {
            event.wd == wd
                && *event.name == *name
                && change.is_none_or(|change| change == event.change)
                && event.until_ns >= now_ns
        };
        expected.iter().any(is_event)
    }

    /// Expects no event any more: some were lost.
    pub(super) fn clear_expected(&self) {
        self.expected.lock().clear();
    }
}

fn reports_changes(fd: &OwnedFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| REPORTED_FILE_SYSTEMS.contains(&stat.f_type))
}
