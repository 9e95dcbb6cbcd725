//! The VFS object: the mount table, the dentry cache, and the open files of all processes.

use super::dentry::{Location, LocationRef, Mount};
use super::dentry_cache::{DentryCache, RemovedDentries};
use super::file_locks::LockTable;
use super::file_table::FileTable;
use super::filesystem::FileSystem;
use super::mount_options::MountOptions;
use crate::base::lock::{Mutex, RwLock, RwLockWriteGuard};
use crate::base::rcu::{self, Grace, Pin, Ref};
use crate::base::unwind::catch_panic;
use crate::base::{Errno, Error, Result};
use crate::cache::ObjectMemory;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// References to an unused mount: the mount table's and the covered dentry's.
const OWN_REFERENCES: usize = 2;

/// Names and mounts of one kernel.
pub(crate) struct Vfs {
    pub(crate) dentries: DentryCache,
    root: Arc<Mount>,
    /// The mount table, by the id of the covered dentry.
    mounts: RwLock<HashMap<u64, Arc<Mount>>>,
    /// The open files of every process.
    tables: Mutex<Vec<Arc<FileTable>>>,
    pub(crate) locks: Arc<LockTable>,
}

/// Maximum number of names in memory, unless more are in use.
const DENTRIES_MAX: usize = 1 << 18;

impl Vfs {
    /// Creates a tree whose root is `file_system`. Names are charged to `memory`.
    pub(crate) fn new(
        file_system: Arc<dyn FileSystem>,
        options: MountOptions,
        memory: Arc<ObjectMemory>,
    ) -> Self {
        Self {
            root: Arc::new(Mount::new(file_system, None, options, &memory)),
            dentries: DentryCache::new(DENTRIES_MAX, memory),
            mounts: RwLock::new(HashMap::new()),
            tables: Mutex::default(),
            locks: Arc::default(),
        }
    }

    /// Creates the file table of a new process; [`Vfs::close_table`] ends it.
    pub(crate) fn open_table(&self) -> Arc<FileTable> {
        let table = Arc::new(FileTable::new());
        self.tables.lock().push(table.clone());
        table
    }

    /// Closes all files of a process that ends.
    pub(crate) fn close_table(&self, table: &Arc<FileTable>) {
        self.tables
            .lock()
            .retain(|other| !Arc::ptr_eq(other, table));
        table.close_all();
    }

    /// Drops removed dentries and all cached closed files. Called after a name was removed, and
    /// before an unmount. The caller holds no lock except possibly [`Mount::rename_lock`].
    pub(crate) fn drop_removed(&self, mut removed: RemovedDentries) {
        let closed: SmallVec<[_; 4]> = self
            .tables
            .lock()
            .iter()
            .map(|table| table.take_closed())
            .collect();
        if !removed.must_wait() && closed.iter().all(SmallVec::is_empty) {
            return;
        }
        let over = Grace::start().wait();
        removed.drop_after(over);
        for file in closed.into_iter().flatten() {
            drop(file.after(over));
        }
    }

    /// Returns the location of `/`.
    pub(crate) fn root(&self) -> Location {
        let mut root = Location {
            mount: self.root.clone(),
            dentry: self.root.root.clone(),
        };
        self.enter_mounts(&mut root);
        root
    }

    /// Returns the location of `/`; `None` if the lookup must wait.
    #[inline]
    pub(super) fn find_root<'p>(&'p self, pin: &'p Pin) -> Option<LocationRef<'p>> {
        let root = LocationRef {
            mount: Ref::new(&self.root),
            dentry: Ref::new(&self.root.root),
        };
        Self::find_mounted(root, pin)
    }

    /// Follows the mounts on a location to the topmost root; `None` if the lookup must wait.
    #[inline]
    pub(super) fn find_mounted<'p>(
        mut location: LocationRef<'p>,
        pin: &'p Pin,
    ) -> Option<LocationRef<'p>> {
        while let Some(mount) = location.dentry.value().mounted(pin) {
            location.dentry = Ref::new(mount.value().root_unless_leaving()?);
            location.mount = mount;
        }
        Some(location)
    }

    /// Follows the mounts on a location to the topmost root.
    pub(crate) fn enter_mounts(&self, location: &mut Location) {
        while location.dentry.is_mountpoint() {
            let Some(mount) = self.mounts.read().get(&location.dentry.id()).cloned() else {
                return;
            };
            location.dentry = mount.root.clone();
            location.mount = mount;
        }
    }

    /// Moves a location to its parent directory, crossing from a mount's root to the directory that
    /// it covers. The parent of `/` is `/`.
    pub(crate) fn go_up(&self, location: &mut Location) {
        while location.dentry.parent().is_none() {
            let Some(covered) = &location.mount.covered else {
                break;
            };
            *location = covered.clone();
        }
        if let Some(parent) = location.dentry.parent() {
            location.dentry = parent;
        }
        self.enter_mounts(location);
    }

    /// Returns the location that `mount` covers.
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
        // Holds off the removal of the directory until it is marked as a mountpoint.
        let _lock = inode.common().lock.write();
        if target.dentry.is_deleted() {
            return Err(Errno::NOENT.into());
        }
        let mut mounts = self.mounts.write();
        let id = target.dentry.id();
        if mounts.contains_key(&id) {
            return Err(Error::new(
                Errno::BUSY,
                "another file system was mounted here at the same time",
            ));
        }
        let dentry = target.dentry.clone();
        let mount = Arc::new(Mount::new(
            file_system,
            Some(target),
            options,
            self.dentries.memory(),
        ));
        mounts.insert(id, mount.clone());
        let previous = dentry.set_mounted(Some(mount));
        debug_assert!(previous.is_none(), "not a mountpoint yet");
        Ok(())
    }

    /// Detaches the mount whose root is `target`; EBUSY while it is in use, EINVAL if `target` is
    /// not the root of a mount.
    pub(crate) fn unmount(&self, target: Location) -> Result<()> {
        if !Arc::ptr_eq(&target.dentry, &target.mount.root) {
            return Err(Error::new(Errno::INVAL, "nothing is mounted here"));
        }
        let Some(covered) = target.mount.covered.clone() else {
            return Err(Error::new(Errno::BUSY, "the root cannot be unmounted"));
        };
        drop(target);
        self.drop_removed(RemovedDentries::default());
        let mut mounts = self.mounts.write();
        let id = covered.dentry.id();
        let mount = mounts.get(&id).ok_or(Errno::INVAL)?;
        // A thread that reaches the mount without a lock from now on asks the table. After the
        // grace period, a thread that reached it before holds a reference or has left.
        mount.set_leaving(true);
        Grace::start().wait();
        if Arc::strong_count(mount) > OWN_REFERENCES {
            mount.set_leaving(false);
            return Err(Error::new(Errno::BUSY, "files below it are in use"));
        }
        let mount = mounts.remove(&id).ok_or(Errno::INVAL)?;
        self.detach(mounts, &mount)
    }

    /// Uncovers the directory below an unused mount, and ends the file system.
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

    /// Detaches every mount, innermost first. Continues after an error, and returns the first.
    pub(crate) fn unmount_all(&self) -> Result<()> {
        self.drop_removed(RemovedDentries::default());
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
        // Mounts that are still in use are at least synced.
        result.and(self.sync()).and(self.finish(&self.root))
    }

    /// Unmounts every file system from its medium, and leaves the state in memory as it is.
    /// Continues after an error, and returns the first.
    pub(crate) fn halt(&self) -> Result<()> {
        let mut result = Ok(());
        for file_system in self.mounted() {
            result = result.and(end(&*file_system));
        }
        result.and(end(&**self.root.file_system()))
    }

    fn finish(&self, mount: &Mount) -> Result<()> {
        drop(self.dentries.forget_tree(&mount.root));
        rcu::barrier();
        end(&**mount.file_system())
    }

    /// Makes everything durable. Continues after an error, and returns the first.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut result = self.root.file_system().sync();
        for file_system in self.mounted() {
            result = result.and(catch_panic("the file system", || file_system.sync()));
        }
        result
    }

    /// Returns every mounted file system except the root.
    fn mounted(&self) -> Vec<Arc<dyn FileSystem>> {
        self.mounts
            .read()
            .values()
            .map(|mount| mount.file_system().clone())
            .collect()
    }
}

/// Ends a file system. A panic of one must not keep the next from its end.
fn end(file_system: &dyn FileSystem) -> Result<()> {
    catch_panic("the file system", || file_system.unmount())
}
