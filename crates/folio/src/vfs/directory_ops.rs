//! Creation and removal of names: mkdir, mknod, symlink, link, unlink, rmdir. Linux: fs/namei.c.
//!
//! Calls that create a name return its location.

use super::access_time::touch_accessed;
use super::attributes::FileType;
use super::credentials::Access;
use super::dentry::{Dentry, Location};
use super::dentry_cache::Found;
use super::inode::Inode;
use super::permission::{check_access, check_sticky};
use super::walk::{Context, Last, PATH_MAX, Walk};
use crate::base::{DeviceNumber, Errno, Error, Result};
use std::sync::Arc;

impl Context<'_> {
    /// Creates a directory: mkdirat(2).
    pub(crate) fn mkdir(&self, start: &Location, path: &[u8], mode: u16) -> Result<Location> {
        let mode = mode & 0o1777;
        self.create_name(start, path, FileType::Directory, None, |directory, name| {
            let init = self.inode_init(directory, FileType::Directory, mode)?;
            self.create(directory, name, &init)
        })
    }

    /// Creates a file, device node, pipe or socket: mknodat(2). Any caller may create a whiteout,
    /// the character device 0:0.
    pub(crate) fn mknod(
        &self,
        start: &Location,
        path: &[u8],
        file_type: FileType,
        mode: u16,
        device: DeviceNumber,
    ) -> Result<Location> {
        match file_type {
            FileType::Directory => return Err(Errno::PERM.into()),
            FileType::Symlink => return Err(Errno::INVAL.into()),
            _ => {}
        }
        let is_device = matches!(file_type, FileType::BlockDevice | FileType::CharacterDevice);
        let device = if is_device {
            device
        } else {
            DeviceNumber::default()
        };
        let mode = mode & 0o7777;
        self.create_name(start, path, file_type, None, |directory, name| {
            let is_whiteout =
                file_type == FileType::CharacterDevice && device == DeviceNumber::default();
            if is_device && !is_whiteout && !self.credentials.is_root() {
                return Err(Errno::PERM.into());
            }
            let mut init = self.inode_init(directory, file_type, mode)?;
            init.new.device = device;
            self.create(directory, name, &init)
        })
    }

    /// Creates a symbolic link: symlinkat(2).
    pub(crate) fn symlink(&self, target: &[u8], start: &Location, path: &[u8]) -> Result<Location> {
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if target.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if target.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        self.create_name(start, path, FileType::Symlink, None, |directory, name| {
            let mut init = self.inode_init(directory, FileType::Symlink, 0o777)?;
            init.new.target = target;
            self.create(directory, name, &init)
        })
    }

    /// Creates a hard link to `source`: linkat(2).
    pub(crate) fn link(
        &self,
        source: &Location,
        start: &Location,
        path: &[u8],
    ) -> Result<Location> {
        let inode = source.inode();
        self.create_name(
            start,
            path,
            inode.common().file_type,
            Some(source),
            |directory, name| {
                if source.dentry.is_directory() {
                    return Err(Errno::PERM.into());
                }
                let _lock = inode.common().lock.write();
                if inode.common().attributes().link_count == 0 && !source.dentry.is_linkable() {
                    return Err(Errno::NOENT.into());
                }
                directory.link(self.credentials, name, inode)?;
                source.dentry.clear_linkable();
                Ok(inode.clone())
            },
        )
    }

    /// Creates a name that does not exist yet, with all checks. `linked` is the target of a hard
    /// link.
    fn create_name(
        &self,
        start: &Location,
        path: &[u8],
        file_type: FileType,
        linked: Option<&Location>,
        create: impl FnOnce(&dyn Inode, &[u8]) -> Result<Arc<dyn Inode>>,
    ) -> Result<Location> {
        let mut walk = Walk::new(self, start, path)?;
        let Last::Name(range) = walk.go_to_last()? else {
            return Err(Errno::EXIST.into());
        };
        let (parent, name) = (walk.at(), walk.name(&range));
        let directory = &**parent.inode();
        let lock = directory.common().lock.write();
        if self.child_locked(&parent.dentry, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let wants_directory = linked.is_none() && file_type == FileType::Directory;
        if walk.has_trailing_slash(&range) && !wants_directory {
            return Err(Errno::NOENT.into());
        }
        parent.mount.check_writable()?;
        if linked.is_some_and(|linked| !Arc::ptr_eq(&linked.mount, &parent.mount)) {
            return Err(Errno::XDEV.into());
        }
        if parent.dentry.is_deleted() {
            return Err(Errno::NOENT.into());
        }
        check_access(directory, self.credentials, Access::WRITE | Access::EXECUTE)?;
        let ticket = parent.dentry.name_ticket();
        let inode = create(directory, name)?;
        let dentry = self
            .vfs
            .dentries
            .add(&parent.dentry, name, Found { inode, ticket });
        drop(lock);
        parent.mount.sync_names_if_required(directory)?;
        Ok(Location {
            mount: parent.mount.clone(),
            dentry,
        })
    }

    /// Removes a name that is not a directory: unlinkat(2) without AT_REMOVEDIR.
    pub(crate) fn unlink(&self, start: &Location, path: &[u8]) -> Result<()> {
        let mut walk = Walk::new(self, start, path)?;
        let Last::Name(range) = walk.go_to_last()? else {
            return Err(Errno::ISDIR.into());
        };
        let (parent, name) = (walk.at(), walk.name(&range));
        parent.mount.check_writable()?;
        let directory = &**parent.inode();
        let lock = directory.common().lock.write();
        let victim = self
            .child_locked(&parent.dentry, name)?
            .ok_or(Errno::NOENT)?;
        if walk.has_trailing_slash(&range) {
            let errno = if victim.is_directory() {
                Errno::ISDIR
            } else {
                Errno::NOTDIR
            };
            return Err(errno.into());
        }
        self.check_removal(&parent.dentry, &victim)?;
        if victim.is_directory() {
            return Err(Errno::ISDIR.into());
        }
        {
            let _victim_lock = victim.inode().common().lock.write();
            directory.unlink(name, victim.inode())?;
        }
        let name = victim.cached_name(&parent.dentry, name);
        let removed = self.vfs.dentries.delete(&parent.dentry, &name, &victim);
        drop(lock);
        // This may be the last reference; it is dropped after the locks.
        drop(victim);
        self.vfs.drop_removed(removed);
        parent.mount.sync_names_if_required(directory)
    }

    /// Removes an empty directory: unlinkat(2) with AT_REMOVEDIR.
    pub(crate) fn rmdir(&self, start: &Location, path: &[u8]) -> Result<()> {
        let mut walk = Walk::new(self, start, path)?;
        let range = match walk.go_to_last()? {
            Last::Name(range) => range,
            Last::DotDot => return Err(Errno::NOTEMPTY.into()),
            Last::Dot => return Err(Errno::INVAL.into()),
            Last::Root => return Err(Errno::BUSY.into()),
        };
        let (parent, name) = (walk.at(), walk.name(&range));
        parent.mount.check_writable()?;
        let directory = &**parent.inode();
        let _renaming = parent.mount.lock_moving_directories(directory);
        let lock = directory.common().lock.write();
        let victim = self
            .child_locked(&parent.dentry, name)?
            .ok_or(Errno::NOENT)?;
        self.check_removal(&parent.dentry, &victim)?;
        if !victim.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        let removed = {
            let _victim_lock = victim.inode().common().lock.write();
            if victim.is_mountpoint() {
                return Err(Error::new(Errno::BUSY, "a file system is mounted here"));
            }
            directory.remove_directory(name, victim.inode())?;
            let name = victim.cached_name(&parent.dentry, name);
            self.vfs.dentries.delete(&parent.dentry, &name, &victim)
        };
        drop(lock);
        drop(victim);
        self.vfs.drop_removed(removed);
        parent.mount.sync_names_if_required(directory)
    }

    /// Fails with EACCES or EPERM unless the caller may remove the name of `victim` from `parent`.
    /// Linux: `may_delete`.
    pub(crate) fn check_removal(&self, parent: &Dentry, victim: &Dentry) -> Result<()> {
        let directory = &**parent.inode();
        check_access(directory, self.credentials, Access::WRITE | Access::EXECUTE)?;
        check_sticky(directory, &**victim.inode(), self.credentials)
    }

    /// Returns the target of a symbolic link: readlinkat(2). The caller handles an empty path.
    pub(crate) fn read_link(&self, location: &Location) -> Result<Vec<u8>> {
        if location.dentry.file_type() != FileType::Symlink {
            return Err(Errno::INVAL.into());
        }
        let target = location.inode().read_link()?;
        touch_accessed(&location.mount, &**location.inode());
        Ok(target)
    }

    /// Fails with ENOTDIR or EACCES unless this may become a working directory.
    pub(crate) fn check_working_directory(&self, location: &Location) -> Result<()> {
        if !location.dentry.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        check_access(&**location.inode(), self.credentials, Access::EXECUTE)
    }

    /// Checks access to a file: faccessat2(2). `mode` combines R_OK 4, W_OK 2 and X_OK 1.
    pub(crate) fn access(&self, location: &Location, mode: u16) -> Result<()> {
        let want = Access::from_bits_truncate(mode);
        if want.is_empty() {
            return Ok(());
        }
        check_access(&**location.inode(), self.credentials, want)?;
        let file_type = location.dentry.file_type();
        let is_stored = matches!(
            file_type,
            FileType::Regular | FileType::Directory | FileType::Symlink
        );
        if want.contains(Access::WRITE) && is_stored {
            location.mount.check_writable()?;
        }
        Ok(())
    }
}
