//! One inode of the host: who it is, what is known of it, and where it lies.

use super::Shared;
use super::descriptors::Descriptors;
use super::host::{Identity, Status};
use super::places::{DirectorySlot, Places};
use super::push::Watch;
use super::revalidate::Known;
use crate::base::{Errno, Result, Timespec};
use crate::cache::{Mapping, Store};
use crate::vfs::{AttrValidity, AttributeCell, Attributes, FileType, Inode, InodeCommon};
use parking_lot::{Mutex, RwLock};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// An inode of a host directory. There is one object for each of the host's, by whatever name it
/// was found.
pub(super) struct HostInode {
    pub(super) common: InodeCommon,
    pub(super) shared: Arc<Shared>,
    pub(super) me: Weak<Self>,
    pub(super) identity: Identity,
    pub(super) places: Places,
    /// Of a directory.
    pub(super) slot: DirectorySlot,
    pub(super) descriptors: Mutex<Descriptors>,
    /// Of a directory: what its names led to when they were last seen.
    pub(super) children: Mutex<HashMap<Box<[u8]>, Weak<Self>>>,
    /// Whether nothing was told that would make it lie elsewhere than at its place.
    pub(super) is_in_place: AtomicBool,
    pub(super) watch: Watch,
    /// Held by who asks the host and takes over the answer.
    pub(super) revalidating: Mutex<()>,
    /// How often the host was asked, and the last time that an answer was taken over.
    pub(super) asked_count: AtomicU64,
    pub(super) answered_count: AtomicU64,
    pub(super) known: Mutex<Known>,
    /// What a symbolic link points to, which never changes.
    pub(super) target: OnceLock<Box<[u8]>>,
}

/// Returns the inode as this file system's type; EXDEV if it belongs to another file system.
pub(super) fn own(inode: &Arc<dyn Inode>) -> Result<&HostInode> {
    Ok(inode.as_any().downcast_ref().ok_or(Errno::XDEV)?)
}

/// Nanoseconds of the monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

impl HostInode {
    /// An inode just seen. Nothing of what it was then is believed yet.
    pub(super) fn new(shared: &Arc<Shared>, status: &Status) -> Arc<Self> {
        let number = shared
            .numbers
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
                    lock: RwLock::new(()),
                    mapping,
                    attributes: AttributeCell::new(&attributes),
                    validity: Some(validity),
                },
                shared: shared.clone(),
                me: me.clone(),
                identity: status.identity,
                places: Places::default(),
                slot: DirectorySlot::default(),
                children: Mutex::default(),
                is_in_place: AtomicBool::new(false),
                watch: Watch::default(),
                descriptors: Mutex::default(),
                revalidating: Mutex::new(()),
                asked_count: AtomicU64::new(0),
                answered_count: AtomicU64::new(0),
                known: Mutex::new(Known::new(status.stamp)),
                target: OnceLock::new(),
            }
        })
    }

    pub(super) fn validity(&self) -> &AttrValidity {
        self.common
            .validity
            .as_ref()
            .unwrap_or_else(|| unreachable!("made with one"))
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

    /// Attributes and data may have changed, also by ourselves.
    pub(super) fn doubt(&self) {
        self.shared.doubts.fetch_add(1, Ordering::SeqCst);
        self.validity().invalidate();
    }

    /// Publishes what the host tells, with the time of a write that it does not know of yet.
    pub(super) fn publish(&self, status: &Status, written: Option<Timespec>) {
        let mut attributes = self.shared.attributes(self.common.number, status);
        if let Some(written) = written {
            attributes.modified = attributes.modified.max(written);
            attributes.changed = attributes.changed.max(written);
        }
        self.common.attributes.store(&attributes);
    }
}

impl Shared {
    /// What stat(2) tells inside.
    fn attributes(&self, number: crate::base::InodeNumber, status: &Status) -> Attributes {
        let (uid, gid) = self.options.owners.inside(status.uid, status.gid);
        Attributes {
            number,
            file_type: status.identity.file_type,
            mode: status.mode,
            uid,
            gid,
            link_count: status.link_count,
            size_bytes: status.stamp.size_bytes,
            blocks_512: status.blocks_512,
            block_size: status.block_size,
            device: status.node,
            accessed: status.accessed,
            modified: status.stamp.modified,
            changed: status.stamp.changed,
            created: status.identity.born,
        }
    }

    /// The object for an inode that was seen just now.
    pub(super) fn inode(self: &Arc<Self>, status: &Status) -> Arc<HostInode> {
        let key = (status.identity.device, status.identity.number);
        let mut table = self.table.lock();
        let known = table.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known
            .clone()
            .filter(|known| known.identity == status.identity)
        {
            return known;
        }
        let inode = HostInode::new(self, status);
        table.insert(key, Arc::downgrade(&inode));
        drop(table);
        if let Some(known) = known {
            // The host has given its number to another. This may be the last reference.
            known.doubt();
        }
        inode
    }

    /// All inodes in memory.
    pub(super) fn inodes(&self) -> Vec<Arc<HostInode>> {
        self.table
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

impl Drop for HostInode {
    /// Lets go of the directories above one by one: a deep tree must not become a deep recursion.
    fn drop(&mut self) {
        let key = (self.identity.device, self.identity.number);
        let mut table = self.shared.table.lock();
        // Another may have taken its place.
        if table
            .get(&key)
            .is_some_and(|known| known.strong_count() == 0)
        {
            table.remove(&key);
        }
        drop(table);
        if let Some(push) = &self.shared.push {
            push.forget(self);
        }
        let mut going = self.places.take();
        while let Some(place) = going.pop() {
            if let Some(mut parent) = Arc::into_inner(place.parent) {
                going.extend(parent.places.take_mut());
            }
        }
    }
}
