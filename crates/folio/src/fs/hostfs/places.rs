//! Where inodes lie on the host: names below directories, and the way from the root to them.
//!
//! An inode has no descriptor of its own. It knows the directory and name by which it was found,
//! and whoever comes to it looks whether it still is what lies there. A directory's descriptor is
//! kept for a time, but whoever uses it looks first, now and then, whether the directory still lies
//! below the root: somebody may have moved it out of the share.

use super::host::{self, Status};
use super::inode::{HostInode, monotonic_ns};
use crate::base::{Errno, Error, Result};
use crate::vfs::FileType;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Names of one inode that are remembered.
const PLACES_MAX: usize = 4;
/// Directories between the root and an inode at most; what is deeper is a loop that others made by
/// moving.
const DEPTH_MAX: usize = 4096;
/// A directory is believed to lie where it did for so long at least, and at most.
const PLACED_MIN_NS: u64 = 1_000_000;
const PLACED_MAX_NS: u64 = 1_000_000_000;

/// One name of an inode.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) parent: Arc<HostInode>,
    pub(super) name: Box<[u8]>,
}

/// Names of an inode, the one seen last first. The root has none.
#[derive(Default)]
pub(super) struct Places(Mutex<SmallVec<[Place; 1]>>);

/// A directory's descriptor, and up to when the directory is believed to lie where it did.
#[derive(Default)]
pub(super) struct DirectorySlot {
    fd: Mutex<Option<Arc<OwnedFd>>>,
    is_used: AtomicBool,
    placed_until_ns: AtomicU64,
}

/// Directories whose descriptors are open. Those that nobody asked for since the hand last passed
/// go first.
pub(super) struct DirectoryRing {
    max: usize,
    state: Mutex<RingState>,
}

#[derive(Default)]
struct RingState {
    slots: Vec<Weak<HostInode>>,
    hand: usize,
}

impl DirectoryRing {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            state: Mutex::default(),
        }
    }

    /// `directory` has a descriptor now; another may lose its own.
    fn enter(&self, directory: &HostInode) {
        let mut state = self.state.lock();
        if state.slots.len() < self.max {
            state.slots.push(directory.me.clone());
            return;
        }
        // Twice round at most: the first time everybody may have been asked for.
        for _ in 0..2 * self.max {
            let hand = state.hand;
            state.hand = (hand + 1) % self.max;
            let going = state.slots[hand].upgrade();
            let stays = going
                .as_ref()
                .is_some_and(|going| going.slot.is_used.swap(false, Ordering::Relaxed));
            if !stays {
                state.slots[hand] = directory.me.clone();
                drop(state);
                // Both may be the last of their kind: dropped with nothing locked.
                let fd = going.as_ref().and_then(|going| going.slot.fd.lock().take());
                drop((fd, going));
                return;
            }
        }
    }
}

impl Places {
    /// All of them; none are left.
    pub(super) fn take(&self) -> SmallVec<[Place; 1]> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The same, where nobody else can be there.
    pub(super) fn take_mut(&mut self) -> SmallVec<[Place; 1]> {
        std::mem::take(self.0.get_mut())
    }
}

impl DirectorySlot {
    fn fd(&self) -> Option<Arc<OwnedFd>> {
        let fd = self.fd.lock().clone();
        self.is_used.store(true, Ordering::Relaxed);
        fd
    }

    /// Where it lies must be looked at again.
    pub(super) fn doubt(&self) {
        self.placed_until_ns.store(0, Ordering::Release);
    }
}

impl HostInode {
    fn stale(&self) -> Error {
        Error::new(Errno::STALE, "no longer where it was found")
            .at(format!("inode {}", self.common.number))
    }

    /// One of the names, the one seen last.
    pub(super) fn place(&self) -> Option<Place> {
        self.places.0.lock().first().cloned()
    }

    /// Notes that `self` was found at a place.
    pub(super) fn note_place(&self, parent: &Arc<Self>, name: &[u8]) {
        let mut places = self.places.0.lock();
        self.is_in_place.store(true, Ordering::SeqCst);
        let is = |place: &Place| Arc::ptr_eq(&place.parent, parent) && *place.name == *name;
        match places.iter().position(is) {
            Some(0) => return,
            Some(position) => {
                places.swap(0, position);
                drop(places);
                return self.enter_children(parent, name);
            }
            None => {}
        }
        let is_directory = self.common.file_type == FileType::Directory;
        drop(places);
        if self.is_root() || (is_directory && self.is_above(parent)) {
            return;
        }
        let place = Place {
            parent: parent.clone(),
            name: name.into(),
        };
        self.enter_children(parent, name);
        let mut places = self.places.0.lock();
        places.insert(0, place);
        let max = if is_directory { 1 } else { PLACES_MAX };
        let kept = max.min(places.len());
        let gone: SmallVec<[Place; 1]> = places.drain(kept..).collect();
        drop(places);
        drop(gone);
    }

    /// Whether `self` is `other` or above it, as far as is known: a directory may be mounted below
    /// itself.
    fn is_above(&self, other: &Arc<Self>) -> bool {
        let mut at = Some(other.clone());
        for _ in 0..DEPTH_MAX {
            let Some(inode) = at else { return false };
            if std::ptr::eq(&*inode, self) {
                return true;
            }
            at = inode.place().map(|place| place.parent);
        }
        true
    }

    fn enter_children(&self, parent: &Self, name: &[u8]) {
        if self.shared.push.is_some() {
            parent.children.lock().insert(name.into(), self.me.clone());
        }
    }

    /// What `name` in this directory led to when it was last seen.
    pub(super) fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        let child = self.children.lock().get(name).cloned();
        child.and_then(|child| child.upgrade())
    }

    /// What is known to lie in this directory.
    pub(super) fn children(&self) -> Vec<Arc<Self>> {
        self.children
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// `self` lies there no longer.
    pub(super) fn forget_place(&self, parent: &Self, name: &[u8]) {
        let mut children = parent.children.lock();
        if children
            .get(name)
            .is_some_and(|child| std::ptr::eq(child.as_ptr(), self))
        {
            children.remove(name);
        }
        drop(children);
        let mut places = self.places.0.lock();
        let position = places
            .iter()
            .position(|place| std::ptr::eq(&*place.parent, parent) && *place.name == *name);
        let gone = position.map(|position| places.remove(position));
        drop(places);
        drop(gone);
        self.slot.doubt();
    }

    /// What the host tells of the inode at one of its names; ESTALE if it lies at none.
    pub(super) fn status_by_name(&self) -> Result<Status> {
        let doubts = self.shared.doubts.load(Ordering::SeqCst);
        let status =
            self.at_any_place(|directory, name| match host::status_of(directory, name)? {
                Some(status) if status.identity == self.identity => Ok(Some(status)),
                _ => Ok(None),
            })?;
        // Whatever was told meanwhile may have been about this.
        self.is_in_place.store(
            self.shared.doubts.load(Ordering::SeqCst) == doubts,
            Ordering::SeqCst,
        );
        Ok(status)
    }

    /// A descriptor by one of its names; ESTALE if it lies at none.
    pub(super) fn open_by_name(&self) -> Result<Arc<OwnedFd>> {
        if self.common.file_type == FileType::Directory {
            return self.reach();
        }
        self.at_any_place(|directory, name| {
            let fd = match host::open_path(directory, name) {
                Err(error) if error.errno() == Errno::NOENT => return Ok(None),
                fd => fd?,
            };
            Ok((host::status(&fd)?.identity == self.identity).then(|| Arc::new(fd)))
        })
    }

    /// Calls `look` with each place until it finds something; forgets those where it finds nothing.
    fn at_any_place<T>(
        &self,
        mut look: impl FnMut(&OwnedFd, &[u8]) -> Result<Option<T>>,
    ) -> Result<T> {
        while let Some(place) = self.place() {
            let found = match place.parent.reach() {
                Ok(directory) => look(&directory, &place.name)?,
                Err(error) if error.errno() == Errno::STALE => None,
                Err(error) => return Err(error),
            };
            if let Some(found) = found {
                return Ok(found);
            }
            // What leads there must be looked up again.
            self.forget_place(&place.parent, &place.name);
            place.parent.validity().invalidate_names();
        }
        Err(self.stale())
    }

    /// The directory's descriptor, once it is known to lie below the root: for calls about names in
    /// it.
    pub(super) fn reach(&self) -> Result<Arc<OwnedFd>> {
        let now_ns = monotonic_ns();
        let mut way: SmallVec<[Arc<Self>; 8]> = SmallVec::new();
        let mut at = self.me.upgrade().ok_or(Errno::IO)?;
        let mut fd = loop {
            if let Some(fd) = at.descriptor_in_place(now_ns) {
                break fd;
            }
            let Some(place) = at.place() else {
                return Err(at.stale());
            };
            if way.len() == DEPTH_MAX {
                return Err(at.stale());
            }
            way.push(at);
            at = place.parent;
        };
        while let Some(inode) = way.pop() {
            fd = inode.enter(&at, &fd, now_ns)?;
            at = inode;
        }
        Ok(fd)
    }

    /// The directory's descriptor, if it need not be looked for.
    fn descriptor_in_place(&self, now_ns: u64) -> Option<Arc<OwnedFd>> {
        if self.is_root() {
            return Some(self.shared.root_fd.clone());
        }
        if now_ns < self.slot.placed_until_ns.load(Ordering::Acquire) {
            return self.slot.fd();
        }
        // It was removed: nothing is in it, and nothing can be made there.
        if self.place().is_none() {
            self.open_descriptor()
        } else {
            None
        }
    }

    /// Goes from `parent` to this directory, if it still lies there.
    fn enter(&self, parent: &Arc<Self>, parent_fd: &OwnedFd, now_ns: u64) -> Result<Arc<OwnedFd>> {
        let place = self
            .place()
            .filter(|place| Arc::ptr_eq(&place.parent, parent));
        let Some(place) = place else {
            return Err(self.stale());
        };
        let asked = self.ask();
        let (fd, status) = match self.slot.fd() {
            Some(fd) => (Some(fd), host::status_of(parent_fd, &place.name)?),
            None => match host::open_path(parent_fd, &place.name) {
                Ok(fd) => {
                    let status = host::status(&fd)?;
                    (Some(Arc::new(fd)), Some(status))
                }
                Err(error) if error.errno() == Errno::NOENT => (None, None),
                Err(error) => return Err(error),
            },
        };
        let status = status.filter(|status| status.identity == self.identity);
        let (Some(fd), Some(status)) = (fd, status) else {
            self.forget_place(parent, &place.name);
            parent.validity().invalidate_names();
            return Err(self.stale());
        };
        self.keep_fd(&fd);
        self.note_placed(now_ns);
        self.adopt_unless_busy(asked, &status);
        Ok(fd)
    }

    /// Keeps a descriptor of the directory.
    pub(super) fn keep_fd(&self, fd: &Arc<OwnedFd>) {
        let mut slot = self.slot.fd.lock();
        if slot.is_none() {
            *slot = Some(fd.clone());
            drop(slot);
            self.shared.ring.enter(self);
        }
    }

    /// The directory was seen in its place, by way of a directory that was.
    pub(super) fn note_placed(&self, now_ns: u64) {
        let ttl_ns = self
            .shared
            .options
            .ttl_ns()
            .clamp(PLACED_MIN_NS, PLACED_MAX_NS);
        self.slot
            .placed_until_ns
            .store(now_ns.saturating_add(ttl_ns), Ordering::Release);
    }
}
