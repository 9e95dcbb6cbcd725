//! Change notifications: inotify events invalidate attributes and names. Linux: inotify(7).
//!
//! ```text
//!   look_up, ask_host          a watch on the directory first, then the question
//!        v
//!   inotify -> thread          MODIFY, ATTRIB          invalidate the inode
//!                              CREATE, DELETE, MOVED_* invalidate name, directory, inode of the name
//!                              overflow                invalidate everything
//!        v
//!   listeners                  caches of faces are invalidated, too
//! ```
//!
//! A directory in which names are looked up is watched, and with it the files in it. A file with
//! several names has a watch of its own, as it may be changed by a name in an unwatched directory;
//! so has a file without a name that is still open.
//! Without free watches, and on file systems that do not report changes (network file systems),
//! answers are valid for the time to live only.
//!
//! Changes made through Folio come back as events. An event about a name is expected when Folio
//! changes the name, and ignored once. An event about data or attributes is ignored if Folio
//! changed the inode just now and the host's stamps are the known ones; a change hidden behind
//! those stamps is found as described in revalidate.rs.
//!
//! inotify does not report stores by mmap(2).

use super::events::{HostEvent, MovesInBatch, NAME_EVENTS, read_batch};
use super::host_calls;
use super::inode::{HostInode, MountState, monotonic_ns};
use super::inotify::{Expected, Inotify, NameChange};
use crate::base::unwind::catch_panic;
use crate::base::{Errno, Error, Result};
use crate::vfs::{Change, ChangeListener, FileType};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{ReadFlags, Reader, WatchFlags};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Size in bytes of the buffer for one read of events.
const EVENTS_BYTES: usize = 64 << 10;
/// The warning when watches run out.
const NO_WATCHES: &str = "no more inotify watches (fs.inotify.max_user_watches): in some \
                          directories, external changes are seen only after the time to live";
/// The warning when reading events fails.
const NO_EVENTS: &str = "external changes are seen only after the time to live: inotify fails";

impl HostInode {
    /// Notes a change that is about to be made through Folio to a name in this directory. `moved`
    /// is the inode that is moved to the name.
    pub(super) fn expect(&self, name: &[u8], change: NameChange, moved: Option<&Self>) {
        if let Some(inotify) = &self.shared.inotify
            && let Some(wd) = self.watch.descriptor()
        {
            let moved = moved.map(|moved| moved.identity);
            inotify.expect(wd, name, change, moved, monotonic_ns());
        }
    }

    /// Cancels [`HostInode::expect`]: the change failed, perhaps because an external writer was
    /// first, or it was none.
    pub(super) fn note_failure(&self, name: &[u8], change: NameChange) {
        if let Some(inotify) = &self.shared.inotify
            && let Some(wd) = self.watch.descriptor()
            && inotify
                .take_expected(wd, name, change, monotonic_ns())
                .is_none()
        {
            // The event of an external writer was taken for that of this change.
            self.handle_external_name_event(name);
        }
        self.validity().invalidate_names();
    }

    /// Adds a watch for this inode, if possible.
    fn add_watch(&self, fd: &OwnedFd) {
        let Some(inotify) = &self.shared.inotify else {
            return;
        };
        let now_ns = monotonic_ns();
        if !inotify.reports_device(self.identity.device, fd) || inotify.is_full(now_ns) {
            return;
        }
        let mut events = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        if self.is_directory() {
            events |= WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
            events |= WatchFlags::ONLYDIR | WatchFlags::EXCL_UNLINK;
            if self.shared.wants_events.load(Ordering::Relaxed) {
                events |= WatchFlags::CLOSE_WRITE;
            }
        }
        if !inotify.watch(&self.watch, self.me.clone(), fd, events, now_ns) {
            self.shared.warn(NO_WATCHES);
        }
    }

    /// Watches the names in this directory and the files in it, if possible.
    pub(super) fn watch_directory(&self) {
        if self.shared.inotify.is_none() || self.watch.is_active() {
            return;
        }
        if let Ok(fd) = self.reach() {
            self.add_watch(&fd);
        }
        if self.watch.is_active() {
            self.validity()
                .set_name_ttl(self.shared.options.notified_ttl_ns());
            // Earlier answers were not watched yet.
            self.invalidate_names();
        }
    }

    /// Returns whether this is a directory that gets a watch with the next question to the host,
    /// before names in it are looked up.
    pub(super) fn awaits_watch(&self, now_ns: u64) -> bool {
        let has_spare = |inotify: &Inotify<Self>| inotify.has_spare_watches(now_ns);
        self.is_directory()
            && !self.watch.is_active()
            && self.shared.inotify.as_ref().is_some_and(has_spare)
    }

    /// Watches this inode, directly or by its directory, if possible.
    pub(super) fn watch_inode(&self) {
        if self.shared.inotify.is_none() {
            return;
        }
        if self.is_directory() {
            return self.watch_directory();
        }
        if let Some(location) = self.location() {
            location.parent.watch_directory();
            if !self.is_in_place.load(Ordering::SeqCst) && self.open_descriptor().is_some() {
                // Without an open descriptor, the question that follows goes by name anyway.
                let _: Result<_> = self.status_by_name();
            }
        }
        if !self.has_one_name()
            && !self.watch.is_active()
            && self.common.file_type != FileType::Symlink
            && let Ok(fd) = self.descriptor()
        {
            self.add_watch(&fd);
        }
    }

    fn has_one_name(&self) -> bool {
        let cell = &self.common.attributes;
        cell.load(self.common.number, self.common.file_type)
            .link_count
            == 1
    }

    /// Returns whether changes of this inode are reported now, unless it gets more names.
    pub(super) fn is_notified(&self) -> bool {
        if self.is_directory() || self.watch.is_active() {
            return self.watch.is_active();
        }
        self.is_in_place.load(Ordering::SeqCst)
            && self
                .location()
                .is_some_and(|location| location.parent.watch.is_active())
    }

    /// Handles an event about data or attributes of this inode.
    fn handle_inode_event(&self, is_data: bool) {
        if self.is_own_change() {
            return;
        }
        if is_data {
            // Before the invalidation: the question that follows must drop the pages, whatever the
            // times say.
            self.data_state.lock().is_suspect = true;
        }
        self.invalidate();
        self.shared.notify(Change::Inode(self.common.number));
    }

    /// Handles the event of a change to a name in this directory.
    fn handle_name_event(&self, name: &[u8], change: NameChange, expected: Option<&Expected>) {
        if let Some(child) = self.child(name) {
            // The name may refer to another inode now.
            child.is_in_place.store(false, Ordering::SeqCst);
            child.slot.invalidate_position();
        }
        let status = || host_calls::status_of(&*self.reach()?, name);
        match expected.map(|expected| expected.moved) {
            // The kernel joins the events of two moves to one name. Linux: `inotify_merge`. If the
            // name does not exist any more, another event follows.
            Some(Some(moved))
                if !status().is_ok_and(|found| found.is_none_or(|f| f.identity == moved)) =>
            {
                self.handle_external_name_event(name);
            }
            Some(_) => {}
            None => {
                self.handle_external_name_event(name);
                if change == NameChange::Created
                    && let Ok(Some(status)) = status()
                    && status.identity.file_type != FileType::Directory
                    && status.link_count > 1
                    && let Some(linked) = self.shared.known_inode(&status)
                {
                    // One more name of a known file: no event is about the file itself, and its
                    // directory's events do not report writes by the new name.
                    linked.invalidate();
                    self.shared.notify(Change::Inode(linked.common.number));
                }
            }
        }
    }

    /// Handles the event of an external writer's change to a name in this directory.
    fn handle_external_name_event(&self, name: &[u8]) {
        self.invalidate_names();
        self.invalidate();
        if let Some(child) = self.child(name) {
            // Its number of names has changed.
            child.invalidate();
            self.shared.notify(Change::Inode(child.common.number));
        }
        self.shared.notify(Change::Name(self.common.number, name));
        self.shared.notify(Change::Inode(self.common.number));
    }

    /// Invalidates the names in the directory.
    fn invalidate_names(&self) {
        self.shared.invalidations.fetch_add(1, Ordering::SeqCst);
        self.validity().invalidate_names();
    }

    /// Falls back to the time to live after the watch was removed.
    fn handle_watch_removed(&self) {
        self.watch.clear();
        // Before the invalidation: an answer from here on must not be valid for ever.
        self.validity().set_name_ttl(self.shared.options.ttl_ns());
        self.invalidate_names();
        // Changes of files in it are no longer reported, either.
        for inode in self.children().iter().map(|child| &**child).chain([self]) {
            inode.validity().set_change_notifications(false);
            inode.invalidate();
        }
    }
}

impl MountState {
    /// Starts the thread that reads events, if there is an inotify instance.
    pub(super) fn start_notifications(self: &Arc<Self>) -> Result<()> {
        let Some(inotify) = &self.inotify else {
            return Ok(());
        };
        let (fd, is_stopping) = (inotify.fd.clone(), inotify.is_stopping.clone());
        let shared = Arc::downgrade(self);
        let builder = std::thread::Builder::new().name("folio-hostfs".to_owned());
        let started = builder.spawn(move || read_events(&fd, &is_stopping, &shared));
        started
            .map(drop)
            .map_err(|error| Error::io("start a thread", error))
    }

    /// Registers a listener; returns false if there are no change notifications.
    pub(super) fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        let is_notified = self.inotify.is_some();
        if is_notified {
            let wants_events = listener.upgrade().is_some_and(|l| l.wants_events());
            self.listeners.lock().push(listener);
            if wants_events && !self.wants_events.fetch_or(true, Ordering::Relaxed) {
                self.watch_known_directories();
            }
        }
        is_notified
    }

    /// Watches all directories in memory for events, too: an earlier listener has not asked for
    /// them.
    fn watch_known_directories(&self) {
        let known: Vec<_> = self
            .inodes
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for directory in known.iter().filter(|inode| inode.is_directory()) {
            if directory.watch.is_active()
                && let Ok(fd) = directory.reach()
            {
                directory.add_watch(&fd);
            }
            directory.watch_directory();
        }
    }

    pub(super) fn notify(&self, change: Change<'_>) {
        self.current_listeners().iter().for_each(|listener| {
            // The panic hook has reported a panic; this thread serves other listeners too.
            let _ = catch_panic("a change listener", || {
                listener.changed(change);
                Ok(())
            });
        });
    }

    fn current_listeners(&self) -> Vec<Arc<dyn ChangeListener>> {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a warning, and notifies the listeners the first time.
    fn warn(&self, warning: &'static str) {
        let Some(inotify) = &self.inotify else { return };
        if inotify.add_warning(warning) {
            self.current_listeners()
                .iter()
                .for_each(|listener| listener.warned());
        }
    }

    /// Invalidates everything, after events were lost.
    fn invalidate_everything(&self) {
        for inode in self.inodes() {
            inode.is_in_place.store(false, Ordering::SeqCst);
            inode.slot.invalidate_position();
            inode.data_state.lock().is_suspect = true;
            inode.invalidate_names();
            inode.invalidate();
        }
        self.notify(Change::Everything);
    }

    /// Falls back to the time to live everywhere, after reading events failed.
    fn end_notifications(&self) {
        if let Some(inotify) = &self.inotify {
            // First, so that no inode gets a watch whose events are not read.
            inotify.disable();
        }
        self.warn(NO_EVENTS);
        self.inodes()
            .iter()
            .for_each(|inode| inode.handle_watch_removed());
        self.invalidate_everything();
    }

    /// Handles the events of one read.
    fn handle_batch(&self, batch: &[HostEvent]) {
        let mut moves = MovesInBatch::default();
        for (index, event) in batch.iter().enumerate() {
            let later = batch.get(index + 1..).unwrap_or_default();
            let noted = self.note_event(event);
            self.handle_event(event);
            if let Some(noted) = noted {
                moves.report(self, event, noted, later);
            }
        }
    }

    /// Handles one event.
    fn handle_event(&self, event: &HostEvent) {
        let (wd, events) = (event.wd, event.events);
        let name = event.name.as_deref();
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        let Some(inotify) = &self.inotify else { return };
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            inotify.clear_expected();
            return self.invalidate_everything();
        }
        let inode = inotify.watched(wd);
        if events.contains(ReadFlags::IGNORED) {
            inotify.forget_watch(wd);
            if let Some(inode) = inode {
                inode.handle_watch_removed();
            }
            return;
        }
        let Some(inode) = inode else { return };
        let is_data = events.contains(ReadFlags::MODIFY);
        let Some(name) = name else {
            if events.intersects(ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF) {
                inode.is_in_place.store(false, Ordering::SeqCst);
                inode.slot.invalidate_position();
            }
            return inode.handle_inode_event(is_data);
        };
        for (event, change) in NAME_EVENTS {
            if events.contains(event) {
                let expected = inotify.take_expected(wd, name, change, monotonic_ns());
                inode.handle_name_event(name, change, expected.as_ref());
            }
        }
        if events.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB)
            && let Some(child) = inode.child(name)
        {
            child.handle_inode_event(is_data);
        }
    }
}

/// Reads and handles events until the mount ends.
fn read_events(fd: &OwnedFd, is_stopping: &AtomicBool, shared: &Weak<MountState>) {
    let mut buf = vec![MaybeUninit::uninit(); EVENTS_BYTES];
    let mut reader = Reader::new(fd, &mut buf);
    let mut batch = Vec::new();
    loop {
        batch.clear();
        match read_batch(&mut reader, fd, &mut batch) {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(_) => {
                if let Some(shared) = shared.upgrade() {
                    shared.end_notifications();
                }
                return;
            }
        }
        let Some(shared) = shared
            .upgrade()
            .filter(|_| !is_stopping.load(Ordering::SeqCst))
        else {
            return;
        };
        shared.handle_batch(&batch);
    }
}
