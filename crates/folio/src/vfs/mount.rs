//! Mounts: which file system covers which directory.

use super::dentry::{Dentry, DentryCache};
use super::table::{FileTable, drop_closed};
use super::{FileSystem, Inode, MountOptions};
use crate::base::{Errno, Error, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;

/// A file system at its place in the tree. Linux: `struct mount` and `struct super_block`.
pub(crate) struct Mount {
    file_system: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    /// What it covers; `None` for the root of everything.
    covered: Option<Location>,
    options: MountOptions,
    /// Held while a name moves from one directory to another. Linux: `s_vfs_rename_mutex`.
    pub(crate) rename_lock: Mutex<()>,
}

impl Mount {
    pub(crate) fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// EROFS where nothing may change.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.file_system.is_read_only()
    }
}

/// A dentry and the mount through which it is seen. Linux: `struct path`. Holding one keeps the mount busy.
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
        self.tables.lock().retain(|other| !Arc::ptr_eq(other, table));
        table.close_all();
    }

    /// Lets go of every file that is closed: names were taken away, or a mount shall go. The caller holds no lock.
    pub(crate) fn drop_closed_files(&self) {
        let closed: Vec<_> = self.tables.lock().iter().map(|table| table.take_closed()).collect();
        for closed in closed {
            drop_closed(closed);
        }
    }

    /// `/`.
    pub(crate) fn root(&self) -> Location {
        let mut root = Location { mount: self.root.clone(), dentry: self.root.root.clone() };
        self.enter_mounts(&mut root);
        root
    }

    /// Goes to what is mounted here, and on that, and so on.
    pub(crate) fn enter_mounts(&self, location: &mut Location) {
        while location.dentry.is_mountpoint() {
            let Some(mount) = self.mounts.read().get(&location.dentry.id()).cloned() else { return };
            location.dentry = mount.root.clone();
            location.mount = mount;
        }
    }

    /// The parent directory, out of a mount where its root is reached; stays at the top.
    pub(crate) fn go_up(&self, location: &mut Location) {
        while location.dentry.parent().is_none() {
            let Some(covered) = &location.mount.covered else { return };
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
            return Err(Error::new(Errno::BUSY, "something else was mounted here just now"));
        }
        target.dentry.set_mountpoint(true);
        mounts.insert(id, Arc::new(new_mount(file_system, Some(target), options)));
        Ok(())
    }

    /// Detaches the mount whose root `target` is; EBUSY while anybody uses it, EINVAL if it is no mount's root.
    pub(crate) fn unmount(&self, target: Location) -> Result<()> {
        if !Arc::ptr_eq(&target.dentry, &target.mount.root) {
            return Err(Error::new(Errno::INVAL, "nothing is mounted here"));
        }
        let Some(covered) = target.mount.covered.clone() else {
            return Err(Error::new(Errno::BUSY, "the root cannot be unmounted"));
        };
        drop(target);
        self.drop_closed_files();
        let mut mounts = self.mounts.write();
        let id = covered.dentry.id();
        let mount = mounts.get(&id).ok_or(Errno::INVAL)?;
        if Arc::strong_count(mount) > 1 {
            return Err(Error::new(Errno::BUSY, "files below it are in use"));
        }
        let mount = mounts.remove(&id).ok_or(Errno::INVAL)?;
        covered.dentry.set_mountpoint(false);
        drop(mounts);
        self.finish(&mount)
    }

    /// Detaches everything, innermost first; the first error is returned after everything was tried.
    pub(crate) fn unmount_all(&self) -> Result<()> {
        self.drop_closed_files();
        let mut result = Ok(());
        loop {
            let mut mounts = self.mounts.write();
            let innermost = mounts.iter().find(|(_, mount)| Arc::strong_count(mount) == 1);
            let Some(id) = innermost.map(|(id, _)| *id) else { break };
            let Some(mount) = mounts.remove(&id) else { break };
            drop(mounts);
            if let Some(covered) = &mount.covered {
                covered.dentry.set_mountpoint(false);
            }
            result = result.and(self.finish(&mount));
        }
        // What is still in use is synced at least.
        result.and(self.sync()).and(self.finish(&self.root))
    }

    /// Unmounts every file system as far as its medium is concerned, and keeps everything in memory as it is; the
    /// first error is returned after everything was tried.
    pub(crate) fn halt(&self) -> Result<()> {
        let mounted: Vec<_> = self.mounts.read().values().map(|mount| mount.file_system.clone()).collect();
        let mut result = Ok(());
        for file_system in mounted {
            result = result.and(file_system.unmount());
        }
        result.and(self.root.file_system.unmount())
    }

    fn finish(&self, mount: &Mount) -> Result<()> {
        self.dentries.forget_tree(&mount.root);
        mount.file_system.unmount()
    }

    /// Makes everything durable; the first error is returned after everything was tried.
    pub(crate) fn sync(&self) -> Result<()> {
        let mounted: Vec<_> = self.mounts.read().values().map(|mount| mount.file_system.clone()).collect();
        let mut result = self.root.file_system.sync();
        for file_system in mounted {
            result = result.and(file_system.sync());
        }
        result
    }
}

fn new_mount(file_system: Arc<dyn FileSystem>, covered: Option<Location>, options: MountOptions) -> Mount {
    let root = Dentry::new_root(file_system.root());
    Mount { file_system, root, covered, options, rename_lock: Mutex::new(()) }
}
