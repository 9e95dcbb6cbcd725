//! The inode of a host file, and the state that all inodes of a mount share.

use super::data_state::DataState;
use super::descriptors::{Descriptors, IdleFiles, RecentlyCreated};
use super::directory_cache::{DirectoryRing, DirectorySlot, HasDirectorySlot};
use super::host_calls::{Identity, Status};
use super::inode_numbers::InodeNumbers;
use super::inotify::{Inotify, Watch};
use super::options::HostfsOptions;
use crate::base::lock::Mutex;
use crate::base::{Clock, DeviceNumber, Errno, InodeNumber, Result, Timespec};
use crate::cache::{Mapping, ObjectCharge, ObjectMemory, Store, Writeback};
use crate::vfs::{
    AttrValidity, AttributeCell, Attributes, ChangeListener, FileType, Inode, InodeCommon,
    InodeLock,
};
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// An inode of a host directory. There is one object per inode of the host, whatever names it has.
pub(super) struct HostInode {
    pub(super) common: InodeCommon,
    pub(super) shared: Arc<MountState>,
    pub(super) me: Weak<Self>,
    pub(super) identity: Identity,
    pub(super) locations: KnownLocations,
    /// The descriptor of a directory.
    pub(super) slot: DirectorySlot,
    pub(super) descriptors: Mutex<Descriptors>,
    /// The entries of a directory, as they were last seen.
    pub(super) children: Mutex<HashMap<Box<[u8]>, Weak<Self>>>,
    /// Whether no notification since the last lookup suggests that the inode was moved.
    pub(super) is_in_place: AtomicBool,
    pub(super) watch: Watch,
    /// Held while the host is asked and its answer is applied.
    pub(super) revalidating: Mutex<()>,
    /// Number of questions to the host.
    pub(super) asked_count: AtomicU64,
    /// The number of the last question whose answer was applied.
    pub(super) answered_count: AtomicU64,
    pub(super) data_state: Mutex<DataState>,
    /// The target of a symbolic link, which never changes.
    pub(super) target: OnceLock<Box<[u8]>>,
    pub(super) _charge: ObjectCharge,
}

/// Bytes of an inode outside of its object: its name, and entries in tables.
const OUTSIDE_BYTES: usize = 160;

/// One name of an inode: its parent directory and the name in it.
#[derive(Clone)]
pub(super) struct KnownLocation {
    pub(super) parent: Arc<HostInode>,
    pub(super) name: Box<[u8]>,
}

/// The known names of an inode, most recently seen first. The root has none.
#[derive(Default)]
pub(super) struct KnownLocations(pub(super) Mutex<SmallVec<[KnownLocation; 1]>>);

impl KnownLocations {
    /// Removes and returns all locations.
    pub(super) fn take(&self) -> SmallVec<[KnownLocation; 1]> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Removes and returns all locations, without a lock.
    pub(super) fn take_mut(&mut self) -> SmallVec<[KnownLocation; 1]> {
        std::mem::take(self.0.get_mut())
    }
}

/// The state that all inodes of a mount share.
pub(super) struct MountState {
    pub(super) options: HostfsOptions,
    pub(super) clock: Clock,
    pub(super) writeback: Arc<Writeback>,
    /// The memory that inodes are charged to.
    pub(super) objects: Arc<ObjectMemory>,
    pub(super) root_fd: Arc<OwnedFd>,
    pub(super) root_identity: Identity,
    /// Whether this process may change owners.
    pub(super) is_root: bool,
    pub(super) inode_numbers: InodeNumbers,
    /// Inodes in memory, by device and inode number on the host.
    pub(super) inodes: Mutex<HashMap<(DeviceNumber, u64), Weak<HostInode>>>,
    pub(super) directories: DirectoryRing<HostInode>,
    pub(super) recently_created: Mutex<RecentlyCreated<HostInode>>,
    pub(super) idle_files: Mutex<IdleFiles<HostInode>>,
    /// Number of inodes that hold a descriptor, and the maximum.
    pub(super) held_count: AtomicUsize,
    pub(super) held_max: usize,
    /// The last ticket; one is drawn before each question to the host.
    pub(super) tickets: AtomicU64,
    /// Number of invalidations in the whole mount.
    pub(super) invalidations: AtomicU64,
    pub(super) inotify: Option<Inotify<HostInode>>,
    pub(super) listeners: Mutex<Vec<Weak<dyn ChangeListener>>>,
    /// Whether a listener asks for events.
    pub(super) wants_events: AtomicBool,
    /// Why there are no change notifications, if the options ask for them.
    pub(super) warning: Option<String>,
}

/// Returns the inode as this file system's type; EXDEV if it belongs to another file system.
pub(super) fn own(inode: &Arc<dyn Inode>) -> Result<&HostInode> {
    Ok(inode.as_any().downcast_ref().ok_or(Errno::XDEV)?)
}

/// Returns the monotonic clock in nanoseconds.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

impl HostInode {
    /// Creates an inode with the given status, which is not valid yet.
    pub(super) fn new(shared: &Arc<MountState>, status: &Status) -> Arc<Self> {
        let number = shared
            .inode_numbers
            .number(status.identity.device, status.identity.number);
        let file_type = status.identity.file_type;
        let validity = if shared.options.cache.reads_from_cache() {
            AttrValidity::default()
        } else {
            AttrValidity::uncached()
        };
        validity.set_name_ttl(shared.options.ttl_ns());
        Arc::new_cyclic(|me: &Weak<Self>| {
            let store: Weak<dyn Store> = me.clone();
            let mapping = (file_type == FileType::Regular)
                .then(|| Mapping::new(&shared.writeback, store, status.stamp.size_bytes));
            let attributes = shared.attributes(number, status);
            Self {
                common: InodeCommon {
                    number,
                    file_type,
                    lock: InodeLock::default(),
                    mapping,
                    attributes: AttributeCell::new(&attributes),
                    validity: Some(validity),
                },
                shared: shared.clone(),
                me: me.clone(),
                identity: status.identity,
                locations: KnownLocations::default(),
                slot: DirectorySlot::default(),
                children: Mutex::default(),
                is_in_place: AtomicBool::new(false),
                watch: Watch::default(),
                descriptors: Mutex::default(),
                revalidating: Mutex::new(()),
                asked_count: AtomicU64::new(0),
                answered_count: AtomicU64::new(0),
                data_state: Mutex::new(DataState::new(status.stamp)),
                target: OnceLock::new(),
                _charge: shared.objects.charge(size_of::<Self>() + OUTSIDE_BYTES),
            }
        })
    }

    pub(super) fn validity(&self) -> &AttrValidity {
        self.common
            .validity
            .as_ref()
            .unwrap_or_else(|| unreachable!("created with a validity"))
    }

    pub(super) fn is_root(&self) -> bool {
        self.identity == self.shared.root_identity
    }

    pub(super) fn is_directory(&self) -> bool {
        self.common.file_type == FileType::Directory
    }

    pub(super) fn mapping(&self) -> Result<&Mapping> {
        Ok(self.common.mapping.as_ref().ok_or(Errno::INVAL)?)
    }

    /// Invalidates attributes and data, which may have changed, perhaps through Folio.
    pub(super) fn invalidate(&self) {
        self.shared.invalidations.fetch_add(1, Ordering::SeqCst);
        self.validity().invalidate();
    }

    /// Publishes the host's status, with the time of a cached write that the host does not have
    /// yet.
    pub(super) fn publish(&self, status: &Status, written: Option<Timespec>) {
        let mut attributes = self.shared.attributes(self.common.number, status);
        if let Some(written) = written {
            attributes.modified = attributes.modified.max(written);
            attributes.changed = attributes.changed.max(written);
        }
        self.common.attributes.store(&attributes);
    }
}

impl HasDirectorySlot for HostInode {
    fn slot(&self) -> &DirectorySlot {
        &self.slot
    }
}

impl MountState {
    pub(super) fn take_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns the attributes for a status, with owners as seen inside.
    fn attributes(&self, number: InodeNumber, status: &Status) -> Attributes {
        let owner = self.options.owners.inside(status.owner);
        Attributes {
            number,
            file_type: status.identity.file_type,
            mode: status.mode,
            uid: owner.uid,
            gid: owner.gid,
            link_count: status.link_count,
            size_bytes: status.stamp.size_bytes,
            blocks_512: status.blocks_512,
            block_size: status.block_size,
            device: status.node,
            accessed: status.accessed,
            modified: status.stamp.modified,
            changed: status.stamp.changed,
            created: status.identity.created,
        }
    }

    /// Returns the object of an inode whose status was just read.
    pub(super) fn inode(self: &Arc<Self>, status: &Status) -> Arc<HostInode> {
        let key = (status.identity.device, status.identity.number);
        let mut inodes = self.inodes.lock();
        let cached = inodes.get(&key).and_then(Weak::upgrade);
        if let Some(cached) = cached
            .clone()
            .filter(|cached| cached.identity == status.identity)
        {
            return cached;
        }
        // With the table locked, so that there is one object for each inode.
        let inode = HostInode::new(self, status);
        inodes.insert(key, Arc::downgrade(&inode));
        drop(inodes);
        if let Some(cached) = cached {
            // The host reused the number. This may be the last reference to the old inode.
            cached.invalidate();
        }
        inode
    }

    /// Returns the object of an inode, if it is in memory.
    pub(super) fn known_inode(&self, status: &Status) -> Option<Arc<HostInode>> {
        let key = (status.identity.device, status.identity.number);
        let known = self.inodes.lock().get(&key).and_then(Weak::upgrade);
        known.filter(|known| known.identity == status.identity)
    }

    /// Returns all inodes in memory.
    pub(super) fn inodes(&self) -> Vec<Arc<HostInode>> {
        self.inodes
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

impl Drop for HostInode {
    /// Drops the parent directories one by one: a deep tree must not cause deep recursion.
    fn drop(&mut self) {
        let key = (self.identity.device, self.identity.number);
        let mut inodes = self.shared.inodes.lock();
        // Another inode may have replaced it.
        if inodes
            .get(&key)
            .is_some_and(|cached| cached.strong_count() == 0)
        {
            inodes.remove(&key);
        }
        drop(inodes);
        if self.descriptors.get_mut().held.is_some() {
            self.shared.held_count.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(inotify) = &self.shared.inotify {
            inotify.forget(&self.watch, self);
        }
        let mut unused = self.locations.take();
        while let Some(location) = unused.pop() {
            // The entry would keep the memory of an evicted inode.
            let mut children = location.parent.children.lock();
            let entry = children.get(&location.name);
            if entry.is_some_and(|child| child.strong_count() == 0) {
                children.remove(&location.name);
            }
            drop(children);
            if let Some(mut parent) = Arc::into_inner(location.parent) {
                unused.extend(parent.locations.take_mut());
            }
        }
    }
}
