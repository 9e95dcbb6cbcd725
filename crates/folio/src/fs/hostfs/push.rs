//! Push: the host tells what changes, and answers are believed until it does. Linux: inotify(7).
//!
//! ```text
//!   look_up, ask_host          a watch on the directory first, then the question
//!        v
//!   inotify -> thread          MODIFY, ATTRIB   the inode is doubted
//!                              CREATE, DELETE, MOVED_*   the name, the directory, what had the name
//!                              overflow         everything
//!        v
//!   listeners                  what faces keep goes, too
//! ```
//!
//! A directory that names are looked up in is watched, and with it the files in it; a file with
//! several names is watched itself, as it may be changed by a name in a directory that is not.
//! Where there are no more watches, or the file system tells nothing (a network's, say), answers
//! are believed for the time to live as if there were no push.
//!
//! Changes of our own come back as events. One about a name is expected when the name is changed,
//! and passed over once. One about data or attributes is ours if we have changed the inode just now
//! and the host's stamps are those that we know; whatever else hides behind them is found as
//! revalidate.rs says.
//!
//! What the host does not tell: stores by mmap(2).

use super::Shared;
use super::host;
use super::inode::{HostInode, monotonic_ns};
use super::options::Push as Wanted;
use crate::base::{Errno, Error, Result};
use crate::vfs::{Change, ChangeListener, FileType};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::FsWord;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// File systems whose changes the kernel sees, all of them: those whose disk or memory nobody else
/// has (linux/magic.h).
const TOLD: [FsWord; 15] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
    0x794c_7630, // overlay; who changes a layer behind its back gets what overlayfs says: anything
    0x4d44,      // vfat
    0x2011_bab0, // exfat
    0x7366_746e, // ntfs3
    0x9660,      // iso9660
    0x7371_7368, // squashfs
    0x3153_464a, // jfs
];
/// Bytes of events that one read takes.
const EVENTS_BYTES: usize = 64 << 10;
/// After a watch was refused for want of room, none is asked for so long.
const FULL_NS: u64 = 1_000_000_000;
/// What is said then, once.
const LIMIT: &str = "no more inotify watches (fs.inotify.max_user_watches): in some directories, changes by others are \
                     seen by the time to live alone";
/// What is said when nothing can be heard any more.
const DEAF: &str = "changes by others are seen by the time to live alone: inotify fails";
/// An event about a change of our own comes within this time.
const EXPECTED_NS: u64 = 1_000_000_000;
/// Expected events at most; forgotten ones are taken as somebody else's.
const EXPECTED_MAX: usize = 4096;

/// An inode's watch: its descriptor, 0 if there is none.
#[derive(Default)]
pub(super) struct Watch(AtomicI32);

impl Watch {
    pub(super) fn is_placed(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// What is done to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameChange {
    /// It is made.
    Made,
    /// It is taken away.
    Taken,
    /// It is moved away.
    MovedFrom,
    /// It is moved here.
    MovedTo,
}

struct Expected {
    directory: usize,
    name: Box<[u8]>,
    change: NameChange,
    until_ns: u64,
}

/// The host's events.
pub(super) struct Push {
    fd: Arc<OwnedFd>,
    watched: Mutex<HashMap<i32, Weak<HostInode>>>,
    expected: Mutex<VecDeque<Expected>>,
    is_stopping: Arc<AtomicBool>,
    full_until_ns: AtomicU64,
    /// What was found about devices: whether they tell.
    devices: Mutex<HashMap<(u32, u32), bool>>,
    warnings: Mutex<Vec<&'static str>>,
}

fn address(inode: &HostInode) -> usize {
    std::ptr::from_ref(inode) as usize
}

impl Push {
    /// The host's events, if they are wanted and `root` can tell any; otherwise a warning that says
    /// why not.
    pub(super) fn new(wanted: Wanted, root: &OwnedFd) -> Result<(Option<Self>, Option<String>)> {
        if wanted == Wanted::Off {
            return Ok((None, None));
        }
        let made = inotify::init(CreateFlags::CLOEXEC)
            .map_err(Error::from)
            .and_then(|fd| match is_told_of(root) {
                true => Ok(fd),
                false => Err(Error::new(
                    Errno::OPNOTSUPP,
                    "its file system does not tell of all changes",
                )),
            });
        match made {
            Ok(fd) => Ok((
                Some(Self {
                    fd: Arc::new(fd),
                    watched: Mutex::default(),
                    expected: Mutex::default(),
                    is_stopping: Arc::default(),
                    full_until_ns: AtomicU64::new(0),
                    devices: Mutex::default(),
                    warnings: Mutex::default(),
                }),
                None,
            )),
            Err(error) if wanted == Wanted::Inotify => Err(error.at("push=inotify")),
            Err(error) => Ok((
                None,
                Some(format!(
                    "changes by others are seen by the time to live alone: {error}"
                )),
            )),
        }
    }

    /// Starts the thread that hears.
    pub(super) fn start(&self, shared: &Arc<Shared>) -> Result<()> {
        let (fd, is_stopping, shared) = (
            self.fd.clone(),
            self.is_stopping.clone(),
            Arc::downgrade(shared),
        );
        let builder = std::thread::Builder::new().name("folio-hostfs".to_owned());
        let started = builder.spawn(move || listen(&fd, &is_stopping, &shared));
        started
            .map(drop)
            .map_err(|error| Error::io("start a thread", error))
    }

    /// Ends the thread.
    pub(super) fn stop(&self, root: &OwnedFd) {
        self.is_stopping.store(true, Ordering::SeqCst);
        // A watch that goes is an event, too.
        if let Ok(wd) = inotify::add_watch(&*self.fd, host::path_of(root), WatchFlags::ATTRIB) {
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

    /// Whether the file system that a directory lies on tells of its changes.
    fn tells(&self, inode: &HostInode, fd: &OwnedFd) -> bool {
        let known = self.devices.lock().get(&inode.identity.device).copied();
        known.unwrap_or_else(|| {
            let tells = is_told_of(fd);
            self.devices.lock().insert(inode.identity.device, tells);
            tells
        })
    }

    /// Watches an inode from now on, if that can be.
    fn watch(&self, inode: &HostInode, fd: &OwnedFd) {
        if !self.tells(inode, fd) || monotonic_ns() < self.full_until_ns.load(Ordering::Relaxed) {
            return;
        }
        let mut events = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        if inode.is_directory() {
            events |= WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
            events |= WatchFlags::ONLYDIR | WatchFlags::EXCL_UNLINK;
        }
        let mut watched = self.watched.lock();
        match inotify::add_watch(&*self.fd, host::path_of(fd), events) {
            Ok(wd) => {
                watched.insert(wd, inode.me.clone());
                inode.watch.0.store(wd, Ordering::Release);
            }
            Err(errno) => {
                drop(watched);
                if errno == Errno::NOSPC {
                    self.full_until_ns
                        .store(monotonic_ns() + FULL_NS, Ordering::Relaxed);
                    inode.shared.warn(LIMIT);
                }
            }
        }
    }

    /// An inode leaves memory.
    pub(super) fn forget(&self, inode: &HostInode) {
        let wd = inode.watch.0.load(Ordering::Acquire);
        if wd == 0 {
            return;
        }
        let mut watched = self.watched.lock();
        // Another object for the same inode may have the same watch by now.
        if watched
            .get(&wd)
            .is_some_and(|known| std::ptr::eq(known.as_ptr(), inode))
        {
            watched.remove(&wd);
            let _: rustix::io::Result<()> = inotify::remove_watch(&*self.fd, wd);
        }
    }

    /// A change of our own to a name, about to be made.
    fn expect(&self, directory: &HostInode, name: &[u8], change: NameChange) {
        let until_ns = monotonic_ns().saturating_add(EXPECTED_NS);
        let mut expected = self.expected.lock();
        if expected.len() == EXPECTED_MAX {
            expected.pop_front();
        }
        expected.push_back(Expected {
            directory: address(directory),
            name: name.into(),
            change,
            until_ns,
        });
    }

    /// Whether an event was expected, as it is no longer then.
    fn is_expected(&self, directory: &HostInode, name: &[u8], change: NameChange) -> bool {
        let mut expected = self.expected.lock();
        let now_ns = monotonic_ns();
        while expected
            .front()
            .is_some_and(|first| first.until_ns < now_ns)
        {
            expected.pop_front();
        }
        let is = |one: &Expected| {
            one.directory == address(directory) && one.change == change && *one.name == *name
        };
        let place = expected.iter().position(is);
        place.and_then(|place| expected.remove(place)).is_some()
    }
}

fn is_told_of(fd: &OwnedFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|told| TOLD.contains(&told.f_type))
}

impl HostInode {
    /// A change of our own to a name in this directory, about to be made.
    pub(super) fn expect(&self, name: &[u8], change: NameChange) {
        if let Some(push) = &self.shared.push
            && self.watch.is_placed()
        {
            push.expect(self, name, change);
        }
    }

    /// It was not made: whatever the host tells is about somebody else.
    pub(super) fn expect_no_more(&self, name: &[u8], change: NameChange) {
        if let Some(push) = &self.shared.push {
            push.is_expected(self, name, change);
        }
    }

    /// Sees to it that the host tells of changes to names in this directory and to files in it, if
    /// it can.
    pub(super) fn watch_directory(&self) {
        let Some(push) = &self.shared.push else {
            return;
        };
        if self.watch.is_placed() {
            return;
        }
        if let Ok(fd) = self.reach() {
            push.watch(self, &fd);
        }
        if self.watch.is_placed() {
            self.validity()
                .set_name_ttl(self.shared.options.pushed_ttl_ns());
            // What was asked before was not watched then.
            self.doubt_names();
        }
    }

    /// Sees to it that the host tells of changes to this inode, if it can.
    pub(super) fn watch_if_pushed(&self) {
        let Some(push) = &self.shared.push else {
            return;
        };
        if self.is_directory() {
            return self.watch_directory();
        }
        let Some(place) = self.place() else { return };
        place.parent.watch_directory();
        if !self.is_in_place.load(Ordering::SeqCst) && self.open_descriptor().is_some() {
            // Otherwise whoever asks looks there anyway.
            let _: Result<_> = self.status_by_name();
        }
        if self.has_many_names()
            && !self.watch.is_placed()
            && self.common.file_type != FileType::Symlink
            && let Ok(fd) = self.descriptor()
        {
            push.watch(self, &fd);
        }
    }

    fn has_many_names(&self) -> bool {
        let cell = &self.common.attributes;
        cell.load(self.common.number, self.common.file_type)
            .link_count
            > 1
    }

    /// Whether the host tells of changes to this inode now, unless it gets more names.
    pub(super) fn is_told_of(&self) -> bool {
        if self.is_directory() || self.watch.is_placed() {
            return self.watch.is_placed();
        }
        self.is_in_place.load(Ordering::SeqCst)
            && self
                .place()
                .is_some_and(|place| place.parent.watch.is_placed())
    }

    /// What the host told may be about this inode.
    fn hear_change(&self, is_data: bool) {
        if self.is_changed_by_us() {
            return;
        }
        if is_data {
            self.known.lock().is_suspect = true;
        }
        self.doubt();
        self.shared.tell(Change::Inode(self.common.number));
    }

    /// A name in this directory has changed.
    fn hear_name(&self, name: &[u8], change: NameChange) {
        let child = self.child(name);
        if let Some(child) = &child {
            // It may lie elsewhere now.
            child.is_in_place.store(false, Ordering::SeqCst);
            child.slot.doubt();
        }
        let is_expected = self
            .shared
            .push
            .as_ref()
            .is_some_and(|push| push.is_expected(self, name, change));
        if is_expected {
            return;
        }
        self.doubt_names();
        self.doubt();
        if let Some(child) = child {
            // Its number of names has changed.
            child.doubt();
            self.shared.tell(Change::Inode(child.common.number));
        }
        self.shared.tell(Change::Name(self.common.number, name));
        self.shared.tell(Change::Inode(self.common.number));
    }

    /// Names in the directory may lead elsewhere.
    fn doubt_names(&self) {
        self.shared.doubts.fetch_add(1, Ordering::SeqCst);
        self.validity().invalidate_names();
    }

    /// The watch is gone.
    fn lose_watch(&self) {
        self.watch.0.store(0, Ordering::Release);
        self.validity().set_name_ttl(self.shared.options.ttl_ns());
        self.doubt_names();
        // Files in it are no longer told of, either.
        for inode in self.children().iter().map(|child| &**child).chain([self]) {
            inode.validity().set_change_notifications(false);
            inode.doubt();
        }
    }
}

impl Shared {
    /// Has `listener` told from now on.
    pub(super) fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        let is_pushed = self.push.is_some();
        if is_pushed {
            self.listeners.lock().push(listener);
        }
        is_pushed
    }

    fn tell(&self, change: Change<'_>) {
        self.listening()
            .iter()
            .for_each(|listener| listener.changed(change));
    }

    fn listening(&self) -> Vec<Arc<dyn ChangeListener>> {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.iter().filter_map(Weak::upgrade).collect()
    }

    /// Says something once.
    fn warn(&self, warning: &'static str) {
        let Some(push) = &self.push else { return };
        let mut warnings = push.warnings.lock();
        if warnings.contains(&warning) {
            return;
        }
        warnings.push(warning);
        drop(warnings);
        self.listening()
            .iter()
            .for_each(|listener| listener.warned());
    }

    /// Events were lost: anything may have changed.
    fn doubt_everything(&self) {
        for inode in self.inodes() {
            inode.is_in_place.store(false, Ordering::SeqCst);
            inode.slot.doubt();
            inode.known.lock().is_suspect = true;
            inode.doubt_names();
            inode.doubt();
        }
        self.tell(Change::Everything);
    }

    /// Nothing will be told any more: answers are believed as if there were no push.
    fn hear_no_more(&self) {
        if let Some(push) = &self.push {
            push.full_until_ns.store(u64::MAX, Ordering::Relaxed);
        }
        self.warn(DEAF);
        self.inodes().iter().for_each(|inode| inode.lose_watch());
        self.doubt_everything();
    }

    /// Takes in one event.
    fn hear(&self, wd: i32, events: ReadFlags, name: Option<&[u8]>) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.doubt_everything();
        }
        let Some(push) = &self.push else { return };
        let inode = push.watched.lock().get(&wd).and_then(Weak::upgrade);
        if events.contains(ReadFlags::IGNORED) {
            push.watched.lock().remove(&wd);
            if let Some(inode) = inode {
                inode.lose_watch();
            }
            return;
        }
        let Some(inode) = inode else { return };
        let is_data = events.contains(ReadFlags::MODIFY);
        let Some(name) = name else {
            if events.intersects(ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF) {
                inode.is_in_place.store(false, Ordering::SeqCst);
                inode.slot.doubt();
            }
            return inode.hear_change(is_data);
        };
        for (event, change) in [
            (ReadFlags::CREATE, NameChange::Made),
            (ReadFlags::DELETE, NameChange::Taken),
            (ReadFlags::MOVED_FROM, NameChange::MovedFrom),
            (ReadFlags::MOVED_TO, NameChange::MovedTo),
        ] {
            if events.contains(event) {
                inode.hear_name(name, change);
            }
        }
        if events.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB)
            && let Some(child) = inode.child(name)
        {
            child.hear_change(is_data);
        }
    }
}

/// Hears events until there is nobody to tell them to.
fn listen(fd: &OwnedFd, is_stopping: &AtomicBool, shared: &Weak<Shared>) {
    let mut buf = vec![MaybeUninit::uninit(); EVENTS_BYTES];
    let mut reader = Reader::new(fd, &mut buf);
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(_) => {
                if let Some(shared) = shared.upgrade() {
                    shared.hear_no_more();
                }
                return;
            }
        };
        let Some(shared) = shared
            .upgrade()
            .filter(|_| !is_stopping.load(Ordering::SeqCst))
        else {
            return;
        };
        shared.hear(
            event.wd(),
            event.events(),
            event.file_name().map(std::ffi::CStr::to_bytes),
        );
    }
}
