//! Mounts: which file system covers which directory.

use super::dentry::Dentry;
use super::dentry_cache::{DentryCache, Gone};
use super::permission::Credentials;
use super::reserve::{Acting, ReserveOwners};
use super::table::FileTable;
use super::{FileSystem, Inode, MountOptions};
use crate::base::rcu::{Grace, Pin, Ref};
use crate::base::{Errno, Error, Result};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file system at its place in the tree. Linux: `struct mount` and `struct super_block`.
pub(crate) struct Mount {
    file_system: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    /// What it covers; `None` for the root of everything.
    covered: Option<Location>,
    options: MountOptions,
    reserve_owners: Option<ReserveOwners>,
    /// Set while somebody tries to unmount it: who meets it without a lock must ask the table of
    /// mounts.
    is_leaving: AtomicBool,
    /// Held while a name moves from one directory to another. Linux: `s_vfs_rename_mutex`.
    pub(crate) rename_lock: Mutex<()>,
}

impl Mount {
    /// To be held by who locks a directory and then one in it. Where others move directories
    /// meanwhile the order of the two is not to be relied on, so only one at a time may lock two of
    /// them.
    pub(super) fn lock_moving_directories(
        &self,
        directory: &dyn Inode,
    ) -> Option<MutexGuard<'_, ()>> {
        directory
            .common()
            .coherence
            .is_some()
            .then(|| self.rename_lock.lock())
    }

    pub(crate) fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    /// Where it starts, for who came here without a lock; `None` while it is being unmounted.
    #[inline]
    pub(super) fn root_if_stays(&self) -> Option<&Arc<Dentry>> {
        if self.is_leaving.load(Ordering::Acquire) {
            None
        } else {
            Some(&self.root)
        }
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// EROFS where nothing may change.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            Err(Errno::ROFS.into())
        } else {
            Ok(())
        }
    }

    /// Begins a change by `who`: EROFS where nothing may change. Until what is returned goes, the
    /// file system knows whether its last blocks are for `who`.
    pub(crate) fn begin_change(&self, who: &Credentials) -> Result<Acting> {
        self.check_writable()?;
        Ok(Acting::begin(self.reserve_owners, who))
    }

    /// Makes durable, on a mount with `sync`, what was changed about `inode`. Nothing is locked.
    pub(crate) fn settle(&self, inode: &dyn Inode) -> Result<()> {
        if self.options.is_sync {
            sync_for_nobody(inode)
        } else {
            Ok(())
        }
    }

    /// Makes durable, on a mount with `sync` or `dirsync`, the names in `directory`. Nothing is
    /// locked.
    pub(crate) fn settle_names(&self, directory: &dyn Inode) -> Result<()> {
        let is_wanted = self.options.is_sync || self.options.is_directory_sync;
        if is_wanted {
            sync_for_nobody(directory)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.file_system.is_read_only()
    }
}

/// A dentry and the mount through which it is seen. Linux: `struct path`. Holding one keeps the
/// mount busy.
#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) mount: Arc<Mount>,
    pub(crate) dentry: Arc<Dentry>,
}

impl Location {
    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        self.dentry.inode()
    }
}

/// A [`Location`] that is only looked at.
#[derive(Clone, Copy)]
pub(crate) struct LocationRef<'p> {
    pub(crate) mount: Ref<'p, Mount>,
    pub(crate) dentry: Ref<'p, Dentry>,
}

impl<'p> LocationRef<'p> {
    #[inline]
    pub(crate) fn new(location: &'p Location) -> Self {
        Self {
            mount: Ref::new(&location.mount),
            dentry: Ref::new(&location.dentry),
        }
    }

    #[inline]
    pub(crate) fn inode(self) -> &'p Arc<dyn Inode> {
        self.dentry.value().inode()
    }

    #[inline]
    pub(crate) fn to_location(self) -> Location {
        Location {
            mount: self.mount.to_arc(),
            dentry: self.dentry.to_arc(),
        }
    }
}

/// References to a mount that nobody uses: the table's and the covered dentry's.
const OWN_REFERENCES: usize = 2;

/// Names and mounts of one kernel.
pub(crate) struct Vfs {
    pub(crate) dentries: DentryCache,
    root: Arc<Mount>,
    /// By the id of the covered dentry.
    mounts: RwLock<HashMap<u64, Arc<Mount>>>,
    /// The open files of every process.
    tables: Mutex<Vec<Arc<FileTable>>>,
}

/// Names kept in memory at most, unless more are in use.
const DENTRIES_MAX: usize = 1 << 18;

impl Vfs {
    /// A tree whose root is `file_system`.
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, options: MountOptions) -> Self {
        Self {
            dentries: DentryCache::new(DENTRIES_MAX),
            root: Arc::new(new_mount(file_system, None, options)),
            mounts: RwLock::new(HashMap::new()),
            tables: Mutex::default(),
        }
    }

    /// The table of a new process, which ends with [`Vfs::close_table`].
    pub(crate) fn open_table(&self) -> Arc<FileTable> {
        let table = Arc::new(FileTable::new());
        self.tables.lock().push(table.clone());
        table
    }

    /// Closes the files of a process that ends.
    pub(crate) fn close_table(&self, table: &Arc<FileTable>) {
        self.tables
            .lock()
            .retain(|other| !Arc::ptr_eq(other, table));
        table.close_all();
    }

    /// Drops what left the dentry cache and every closed file: names were taken away, or a mount
    /// shall go. The caller holds no lock but perhaps [`Mount::rename_lock`].
    pub(crate) fn let_go(&self, mut gone: Gone) {
        let closed: SmallVec<[_; 4]> = self
            .tables
            .lock()
            .iter()
            .map(|table| table.take_closed())
            .collect();
        if !gone.must_wait() && closed.iter().all(SmallVec::is_empty) {
            return;
        }
        let over = Grace::start().wait();
        gone.let_go(over);
        for file in closed.into_iter().flatten() {
            drop(file.after(over));
        }
    }

    /// `/`.
    pub(crate) fn root(&self) -> Location {
        let mut root = Location {
            mount: self.root.clone(),
            dentry: self.root.root.clone(),
        };
        self.enter_mounts(&mut root);
        root
    }

    /// `/`, if that can be told without waiting.
    #[inline]
    pub(super) fn find_root<'p>(&'p self, pin: &'p Pin) -> Option<LocationRef<'p>> {
        let root = LocationRef {
            mount: Ref::new(&self.root),
            dentry: Ref::new(&self.root.root),
        };
        Self::find_mounted(root, pin)
    }

    /// Goes to what is mounted here, and on that, and so on, if that can be told without waiting.
    #[inline]
    pub(super) fn find_mounted<'p>(
        mut location: LocationRef<'p>,
        pin: &'p Pin,
    ) -> Option<LocationRef<'p>> {
        while let Some(mount) = location.dentry.value().mounted(pin) {
            location.dentry = Ref::new(mount.value().root_if_stays()?);
            location.mount = mount;
        }
        Some(location)
    }

    /// Goes to what is mounted here, and on that, and so on.
    pub(crate) fn enter_mounts(&self, location: &mut Location) {
        while location.dentry.is_mountpoint() {
            let Some(mount) = self.mounts.read().get(&location.dentry.id()).cloned() else {
                return;
            };
            location.dentry = mount.root.clone();
            location.mount = mount;
        }
    }

    /// The parent directory, out of a mount where its root is reached; stays at the top.
    pub(crate) fn go_up(&self, location: &mut Location) {
        while location.dentry.parent().is_none() {
            let Some(covered) = &location.mount.covered else {
                return;
            };
            *location = covered.clone();
        }
        if let Some(parent) = location.dentry.parent() {
            location.dentry = parent;
            self.enter_mounts(location);
        }
    }

    /// What `mount` covers.
    pub(crate) fn covered(mount: &Mount) -> Option<&Location> {
        mount.covered.as_ref()
    }

    /// Mounts `file_system` over the directory `target`.
    pub(crate) fn mount(
        &self,
        file_system: Arc<dyn FileSystem>,
        target: Location,
        options: MountOptions,
    ) -> Result<()> {
        if !target.dentry.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        let inode = target.inode().clone();
        // Holds off removal of the directory until it is marked.
        let _lock = inode.common().lock.write();
        if target.dentry.is_deleted() {
            return Err(Errno::NOENT.into());
        }
        let mut mounts = self.mounts.write();
        let id = target.dentry.id();
        if mounts.contains_key(&id) {
            return Err(Error::new(
                Errno::BUSY,
                "something else was mounted here just now",
            ));
        }
        let dentry = target.dentry.clone();
        let mount = Arc::new(new_mount(file_system, Some(target), options));
        mounts.insert(id, mount.clone());
        let nothing = dentry.set_mounted(Some(mount));
        debug_assert!(nothing.is_none(), "not a mountpoint yet");
        Ok(())
    }

    /// Detaches the mount whose root `target` is; EBUSY while anybody uses it, EINVAL if it is no
    /// mount's root.
    pub(crate) fn unmount(&self, target: Location) -> Result<()> {
        if !Arc::ptr_eq(&target.dentry, &target.mount.root) {
            return Err(Error::new(Errno::INVAL, "nothing is mounted here"));
        }
        let Some(covered) = target.mount.covered.clone() else {
            return Err(Error::new(Errno::BUSY, "the root cannot be unmounted"));
        };
        drop(target);
        self.let_go(Gone::default());
        let mut mounts = self.mounts.write();
        let id = covered.dentry.id();
        let mount = mounts.get(&id).ok_or(Errno::INVAL)?;
        // Who finds the mount without a lock from now on asks the table; who found it before has a
        // reference of his own or has gone.
        mount.is_leaving.store(true, Ordering::Release);
        Grace::start().wait();
        if Arc::strong_count(mount) > OWN_REFERENCES {
            mount.is_leaving.store(false, Ordering::Release);
            return Err(Error::new(Errno::BUSY, "files below it are in use"));
        }
        let mount = mounts.remove(&id).ok_or(Errno::INVAL)?;
        self.detach(mounts, &mount)
    }

    /// Uncovers what an unused mount covers, and ends the file system.
    fn detach(
        &self,
        mounts: RwLockWriteGuard<'_, HashMap<u64, Arc<Mount>>>,
        mount: &Mount,
    ) -> Result<()> {
        let hidden = mount
            .covered
            .as_ref()
            .and_then(|covered| covered.dentry.set_mounted(None));
        drop(mounts);
        if let Some(hidden) = hidden {
            drop(hidden.after(Grace::start().wait()));
        }
        self.finish(mount)
    }

    /// Detaches everything, innermost first; the first error is returned after everything was
    /// tried.
    pub(crate) fn unmount_all(&self) -> Result<()> {
        self.let_go(Gone::default());
        let mut result = Ok(());
        loop {
            let mut mounts = self.mounts.write();
            let innermost = mounts
                .iter()
                .find(|(_, mount)| Arc::strong_count(mount) == OWN_REFERENCES);
            let Some(id) = innermost.map(|(id, _)| *id) else {
                break;
            };
            let Some(mount) = mounts.remove(&id) else {
                break;
            };
            result = result.and(self.detach(mounts, &mount));
        }
        // What is still in use is synced at least.
        result.and(self.sync()).and(self.finish(&self.root))
    }

    /// Unmounts every file system as far as its medium is concerned, and keeps everything in memory
    /// as it is; the first error is returned after everything was tried.
    pub(crate) fn halt(&self) -> Result<()> {
        let mounted: Vec<_> = self
            .mounts
            .read()
            .values()
            .map(|mount| mount.file_system.clone())
            .collect();
        let mut result = Ok(());
        for file_system in mounted {
            result = result.and(file_system.unmount());
        }
        result.and(self.root.file_system.unmount())
    }

    fn finish(&self, mount: &Mount) -> Result<()> {
        drop(self.dentries.forget_tree(&mount.root));
        mount.file_system.unmount()
    }

    /// Makes everything durable; the first error is returned after everything was tried.
    pub(crate) fn sync(&self) -> Result<()> {
        let mounted: Vec<_> = self
            .mounts
            .read()
            .values()
            .map(|mount| mount.file_system.clone())
            .collect();
        let mut result = self.root.file_system.sync();
        for file_system in mounted {
            result = result.and(file_system.sync());
        }
        result
    }
}

/// What was promised to whoever made the change must not fail for want of space any more.
fn sync_for_nobody(inode: &dyn Inode) -> Result<()> {
    let _acting = Acting::for_nobody();
    inode.sync(false)
}

fn new_mount(
    file_system: Arc<dyn FileSystem>,
    covered: Option<Location>,
    options: MountOptions,
) -> Mount {
    let root = Dentry::new_root(file_system.root());
    let is_leaving = AtomicBool::new(false);
    let reserve_owners = file_system.reserve_owners();
    Mount {
        file_system,
        root,
        covered,
        options,
        reserve_owners,
        is_leaving,
        rename_lock: Mutex::new(()),
    }
}
