//! Locations of inodes: names below directories, and the path from the root to them.
//!
//! Most inodes have no open descriptor. An inode knows the directory and name by which it was
//! found; before each use, the host is asked whether that name still refers to it. A directory's
//! descriptor is cached for a time, but its position is checked now and then: an external writer
//! may have moved the directory out of the share. A directory that was moved within the share is
//! found by the host's path of its descriptor.

use super::host_calls::{self, Status};
use super::inode::{HostInode, KnownLocation, monotonic_ns};
use crate::base::{Errno, Error, Result};
use crate::vfs::FileType;
use rustix::fd::OwnedFd;
use smallvec::SmallVec;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Maximum number of known names of one inode.
const LOCATIONS_MAX: usize = 4;
/// Maximum number of directories between the root and an inode. Deeper paths are loops caused by
/// external moves.
const DEPTH_MAX: usize = 4096;

impl HostInode {
    /// Returns ESTALE, and makes names that refer to the inode invalid.
    fn stale(&self) -> Error {
        self.validity().set_lost();
        Error::new(
            Errno::STALE,
            "not found at its last known name: an external writer moved or removed it",
        )
        .at(format!("inode {}", self.common.number))
    }

    /// Returns the most recently seen name.
    pub(super) fn location(&self) -> Option<KnownLocation> {
        self.locations.0.lock().first().cloned()
    }

    /// Notes that the inode was found under a name.
    pub(super) fn note_location(&self, parent: &Arc<Self>, name: &[u8]) {
        if self.validity().set_found() {
            self.break_loop(parent);
        }
        let mut locations = self.locations.0.lock();
        self.is_in_place.store(true, Ordering::SeqCst);
        let is_same = |location: &KnownLocation| {
            Arc::ptr_eq(&location.parent, parent) && *location.name == *name
        };
        match locations.iter().position(is_same) {
            Some(0) => return,
            Some(index) => {
                locations.swap(0, index);
                drop(locations);
                return self.add_to_children(parent, name);
            }
            None => {}
        }
        let is_directory = self.common.file_type == FileType::Directory;
        drop(locations);
        if self.is_root() || (is_directory && self.is_above(parent)) {
            return;
        }
        let location = KnownLocation {
            parent: parent.clone(),
            name: name.into(),
        };
        self.add_to_children(parent, name);
        let mut locations = self.locations.0.lock();
        locations.insert(0, location);
        let max = if is_directory { 1 } else { LOCATIONS_MAX };
        let kept = max.min(locations.len());
        let dropped: SmallVec<[KnownLocation; 1]> = locations.drain(kept..).collect();
        // The rest may be the last references to directories: dropped without the lock.
        drop(locations);
        drop(dropped);
    }

    /// Returns whether `self` is `other` or an ancestor of it, by known names. A directory may be
    /// mounted below itself.
    fn is_above(&self, other: &Arc<Self>) -> bool {
        let mut at = Some(other.clone());
        for _ in 0..DEPTH_MAX {
            let Some(inode) = at else { return false };
            if std::ptr::eq(&*inode, self) {
                return true;
            }
            at = inode.location().map(|location| location.parent);
        }
        true
    }

    /// Forgets the names of `directory` and its ancestors, if they lead to this inode: it was found
    /// in `directory`, and at no name above.
    fn break_loop(&self, directory: &Arc<Self>) {
        if self.is_root() || !self.is_above(directory) {
            return;
        }
        let mut at = directory.clone();
        while !std::ptr::eq(&*at, self)
            && let Some(location) = at.location()
        {
            at.forget_location(&location.parent, &location.name);
            at.validity().set_lost();
            at = location.parent;
        }
    }

    pub(super) fn add_to_children(&self, parent: &Self, name: &[u8]) {
        if self.shared.inotify.is_some() {
            parent.children.lock().insert(name.into(), self.me.clone());
        }
    }

    /// Returns the inode that `name` in this directory referred to when it was last seen.
    pub(super) fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        let child = self.children.lock().get(name).cloned();
        child.and_then(|child| child.upgrade())
    }

    /// Forgets that `name` in this directory referred to `child`, or to an inode that was evicted.
    pub(super) fn forget_child(&self, name: &[u8], child: Option<&Self>) {
        let mut children = self.children.lock();
        let is_old = |known: &Weak<Self>| {
            known.strong_count() == 0
                || child.is_some_and(|child| std::ptr::eq(known.as_ptr(), child))
        };
        if children.get(name).is_some_and(is_old) {
            children.remove(name);
        }
    }

    /// Returns the known entries of this directory.
    pub(super) fn children(&self) -> Vec<Arc<Self>> {
        self.children
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Removes a known name, which no longer refers to the inode.
    pub(super) fn forget_location(&self, parent: &Self, name: &[u8]) {
        let mut children = parent.children.lock();
        if children
            .get(name)
            .is_some_and(|child| std::ptr::eq(child.as_ptr(), self))
        {
            children.remove(name);
        }
        drop(children);
        let mut locations = self.locations.0.lock();
        let index = locations.iter().position(|location| {
            std::ptr::eq(&*location.parent, parent) && *location.name == *name
        });
        let dropped = index.map(|index| locations.remove(index));
        // It may be the last reference to the directory: dropped without the lock.
        drop(locations);
        drop(dropped);
        self.slot.invalidate_position();
    }

    /// Returns the host's status of the inode by one of its names; ESTALE if no name refers to it.
    pub(super) fn status_by_name(&self) -> Result<Status> {
        let invalidations = self.shared.invalidations.load(Ordering::SeqCst);
        let status = self.at_any_location(|directory, name| {
            let status = host_calls::status_of(directory, name)?;
            Ok(status.filter(|status| status.identity == self.identity))
        });
        let status = match status {
            Err(error) if self.is_directory() => {
                host_calls::status(&*self.find_moved(error, monotonic_ns())?)?
            }
            status => status?,
        };
        // A notification since then may have been about this inode.
        self.is_in_place.store(
            self.shared.invalidations.load(Ordering::SeqCst) == invalidations,
            Ordering::SeqCst,
        );
        Ok(status)
    }

    /// Opens a descriptor by one of the inode's names; ESTALE if no name refers to it.
    pub(super) fn open_by_name(&self) -> Result<Arc<OwnedFd>> {
        if self.common.file_type == FileType::Directory {
            return self.reach();
        }
        self.at_any_location(|directory, name| {
            let fd = match host_calls::open_path(directory, name) {
                Err(error) if error.errno() == Errno::NOENT => return Ok(None),
                fd => fd?,
            };
            Ok((host_calls::status(&fd)?.identity == self.identity).then(|| Arc::new(fd)))
        })
    }

    /// Calls `find` with each known name until it finds the inode; removes the names where it does
    /// not.
    fn at_any_location<T>(
        &self,
        mut find: impl FnMut(&OwnedFd, &[u8]) -> Result<Option<T>>,
    ) -> Result<T> {
        while let Some(location) = self.location() {
            let found = match location.parent.reach() {
                Ok(directory) => find(&directory, &location.name)?,
                Err(error) if error.errno() == Errno::STALE => None,
                Err(error) => return Err(error),
            };
            if let Some(found) = found {
                return Ok(found);
            }
            // The names of that directory must be looked up again.
            self.forget_location(&location.parent, &location.name);
            location.parent.validity().invalidate_names();
        }
        Err(self.stale())
    }

    /// Returns the directory's descriptor for calls about names in it, after checking that the
    /// directory is below the root. ESTALE if it is not.
    pub(super) fn reach(&self) -> Result<Arc<OwnedFd>> {
        let now_ns = monotonic_ns();
        let mut path: SmallVec<[Arc<Self>; 8]> = SmallVec::new();
        let mut at = self.me.upgrade().ok_or(Errno::IO)?;
        let mut reached = loop {
            if let Some(fd) = at.descriptor_in_place(now_ns) {
                break Ok(fd);
            }
            let Some(location) = at.location().filter(|_| path.len() < DEPTH_MAX) else {
                break at.find_moved(at.stale(), now_ns);
            };
            path.push(at);
            at = location.parent;
        };
        while let Some(inode) = path.pop() {
            let entered = reached.and_then(|fd| inode.enter(&at, &fd, now_ns));
            // It may be within the share even if an ancestor at its last position is not.
            reached = entered.or_else(|error| inode.find_moved(error, now_ns));
            at = inode;
        }
        reached
    }

    /// Finds a directory again that was not found by its name: `error` is ESTALE. An external
    /// writer may have moved it within the share. Returns the directory's descriptor.
    ///
    /// # Errors
    /// ESTALE if it is not below the root, or if no descriptor of it is open; `error` if that is
    /// another one.
    fn find_moved(&self, error: Error, now_ns: u64) -> Result<Arc<OwnedFd>> {
        if error.errno() != Errno::STALE {
            return Err(error);
        }
        match self.enter_by_host_path(now_ns) {
            Ok(Some(fd)) => Ok(fd),
            Err(error) if error.errno() != Errno::STALE => Err(error),
            _ => Err(self.stale()),
        }
    }

    /// Enters this directory by the host's path of its descriptor: looks up each name below the
    /// root, as for a client. `None` if that leads elsewhere.
    fn enter_by_host_path(&self, now_ns: u64) -> Result<Option<Arc<OwnedFd>>> {
        let Some(fd) = self.slot.fd() else {
            return Ok(None);
        };
        let mut reached = self.shared.root_fd.clone();
        let paths = (
            host_calls::host_path(&reached)?,
            host_calls::host_path(&fd)?,
        );
        let (Some(root_path), Some(path)) = paths else {
            return Ok(None);
        };
        let Ok(names) = path.strip_prefix(root_path) else {
            return Ok(None);
        };
        let mut at = self.shared.inode(&host_calls::status(&*reached)?);
        for name in names.iter().map(OsStrExt::as_bytes) {
            let status = host_calls::status_of(&*reached, name)?;
            let inode = status.map(|status| self.shared.inode(&status));
            let Some(inode) = inode.filter(|inode| inode.is_directory()) else {
                return Ok(None);
            };
            inode.note_location(&at, name);
            reached = inode.enter(&at, &reached, now_ns)?;
            at = inode;
        }
        Ok(std::ptr::eq(&*at, self).then_some(reached))
    }

    /// Returns the directory's descriptor, if its position is valid.
    fn descriptor_in_place(&self, now_ns: u64) -> Option<Arc<OwnedFd>> {
        if self.is_root() {
            return Some(self.shared.root_fd.clone());
        }
        if self.slot.is_position_valid(now_ns) {
            return self.slot.fd();
        }
        // The directory was removed: it is empty, and nothing can be created in it.
        if self.location().is_none() {
            self.open_descriptor()
        } else {
            None
        }
    }

    /// Opens this directory from `parent`, after checking that it is still there.
    fn enter(&self, parent: &Arc<Self>, parent_fd: &OwnedFd, now_ns: u64) -> Result<Arc<OwnedFd>> {
        let location = self
            .location()
            .filter(|location| Arc::ptr_eq(&location.parent, parent));
        let Some(KnownLocation { name, .. }) = location else {
            return Err(self.stale());
        };
        let question = self.ask();
        let (fd, status) = match self.slot.fd() {
            Some(fd) => (Some(fd), host_calls::status_of(parent_fd, &name)?),
            None => match host_calls::open_path(parent_fd, &name) {
                Ok(fd) => {
                    let status = host_calls::status(&fd)?;
                    (Some(Arc::new(fd)), Some(status))
                }
                Err(error) if error.errno() == Errno::NOENT => (None, None),
                Err(error) => return Err(error),
            },
        };
        let status = status.filter(|status| status.identity == self.identity);
        let (Some(fd), Some(status)) = (fd, status) else {
            self.forget_location(parent, &name);
            parent.validity().invalidate_names();
            return Err(self.stale());
        };
        self.keep_fd(&fd);
        // From before the question: a move since then must not count as checked.
        self.validate_position(now_ns);
        self.apply_unless_busy(question, &status);
        Ok(fd)
    }

    /// Keeps a descriptor of the directory.
    pub(super) fn keep_fd(&self, fd: &Arc<OwnedFd>) {
        if self.slot.set_if_empty(fd) {
            self.shared.directories.add(self.me.clone());
        }
    }

    /// Notes that the directory was found in its position, from a parent with a valid position.
    pub(super) fn validate_position(&self, now_ns: u64) {
        let ttl_ns = self.shared.options.ttl_ns();
        self.slot.validate_position(now_ns, ttl_ns);
    }
}
