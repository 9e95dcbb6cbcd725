//! Opening files: open(2). Linux: fs/namei.c (`do_last`, `may_open`), fs/open.c.

use super::attributes::FileType;
use super::credentials::Access;
use super::dentry::{Dentry, Location};
use super::dentry_cache::Found;
use super::file::{OpenFile, set_size};
use super::open_flags::{LastLink, OpenFlags};
use super::permission::{check_access, check_access_on};
use super::walk::{Context, Last, Walk};
use crate::base::{Errno, Result};
use std::sync::Arc;

impl Context<'_> {
    /// Opens a file, creating it if the flags say so. Linux: openat(2).
    pub(crate) fn open(
        &self,
        start: &Location,
        path: &[u8],
        flags: OpenFlags,
        mode: u16,
    ) -> Result<OpenFile> {
        let flags = flags.checked()?;
        let mode = mode & 0o7777;
        let location = if flags.contains(OpenFlags::TMPFILE) {
            self.open_unnamed(start, path, flags, mode)?
        } else if flags.contains(OpenFlags::CREAT) {
            self.open_or_create(start, path, flags, mode)?
        } else {
            return self.open_at(self.resolve(start, path, flags.last_link())?, flags);
        };
        OpenFile::new(location, flags)
    }

    /// Opens an existing file.
    pub(crate) fn open_at(&self, location: Location, flags: OpenFlags) -> Result<OpenFile> {
        let flags = flags.checked()?;
        self.open_existing(&location, flags)?;
        OpenFile::new(location, flags)
    }

    fn open_or_create(
        &self,
        start: &Location,
        path: &[u8],
        flags: OpenFlags,
        mode: u16,
    ) -> Result<Location> {
        let mut walk = Walk::new(self, start, path)?;
        loop {
            let Last::Name(range) = walk.go_to_last()? else {
                let errno = if flags.contains(OpenFlags::EXCL) {
                    Errno::EXIST
                } else {
                    Errno::ISDIR
                };
                return Err(errno.into());
            };
            if walk.has_trailing_slash(&range) {
                return Err(Errno::ISDIR.into());
            }
            let (found, is_new) = self.find_or_create(walk.at(), walk.name(&range), flags, mode)?;
            let mut location = Location {
                mount: walk.at().mount.clone(),
                dentry: found,
            };
            if is_new {
                return Ok(location);
            }
            if flags.contains(OpenFlags::EXCL) {
                return Err(Errno::EXIST.into());
            }
            let is_link = location.dentry.file_type() == FileType::Symlink;
            if is_link && !flags.contains(OpenFlags::NOFOLLOW) {
                walk.enter_link(&location.dentry, range.end)?;
                continue;
            }
            self.vfs.enter_mounts(&mut location);
            if location.dentry.is_directory() {
                return Err(Errno::ISDIR.into());
            }
            self.open_existing(&location, flags)?;
            return Ok(location);
        }
    }

    /// Returns the dentry called `name`, and whether it was created by this call.
    fn find_or_create(
        &self,
        parent: &Location,
        name: &[u8],
        flags: OpenFlags,
        mode: u16,
    ) -> Result<(Arc<Dentry>, bool)> {
        let directory = parent.inode();
        if !flags.contains(OpenFlags::EXCL)
            && let Some(found) = self.child(&parent.dentry, name)?
        {
            return Ok((found, false));
        }
        let lock = directory.common().lock.write();
        if let Some(found) = self.child_locked(&parent.dentry, name)? {
            return Ok((found, false));
        }
        parent.mount.check_writable()?;
        if parent.dentry.is_deleted() {
            return Err(Errno::NOENT.into());
        }
        check_access(
            &**directory,
            self.credentials,
            Access::WRITE | Access::EXECUTE,
        )?;
        let init = self.inode_init(&**directory, FileType::Regular, mode)?;
        let ticket = parent.dentry.name_ticket();
        let inode = match self.create(&**directory, name, &init) {
            // An external writer created the name first.
            Err(error) if error.errno() == Errno::EXIST && !flags.contains(OpenFlags::EXCL) => {
                return Ok((
                    self.child_locked(&parent.dentry, name)?
                        .ok_or(Errno::STALE)?,
                    false,
                ));
            }
            inode => inode?,
        };
        let dentry = self
            .vfs
            .dentries
            .add(&parent.dentry, name, Found { inode, ticket });
        drop(lock);
        parent.mount.sync_names_if_required(&**directory)?;
        Ok((dentry, true))
    }

    /// Checks that an existing file may be opened with these flags, and truncates it for O_TRUNC.
    fn open_existing(&self, location: &Location, flags: OpenFlags) -> Result<()> {
        let inode = &**location.inode();
        let file_type = inode.common().file_type;
        if flags.contains(OpenFlags::DIRECTORY) && file_type != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if flags.contains(OpenFlags::PATH) {
            return Ok(());
        }
        let access = flags.access();
        match file_type {
            FileType::Symlink => return Err(Errno::LOOP.into()),
            FileType::Directory if access.contains(Access::WRITE) => {
                return Err(Errno::ISDIR.into());
            }
            _ => {}
        }
        check_access_on(&location.mount, inode, self.credentials, access)?;
        if flags.contains(OpenFlags::NOATIME)
            && !self.credentials.is_owner(&inode.common().attributes())
        {
            return Err(Errno::PERM.into());
        }
        match file_type {
            FileType::Regular if flags.contains(OpenFlags::TRUNC) => {
                location.mount.check_writable()?;
                {
                    let _lock = inode.common().lock.write();
                    set_size(inode, self.credentials, 0, true)?;
                }
                location.mount.sync_if_required(inode)
            }
            FileType::Regular | FileType::Directory => Ok(()),
            // Folio has no drivers for devices, pipes and sockets.
            _ => Err(Errno::NXIO.into()),
        }
    }

    fn open_unnamed(
        &self,
        start: &Location,
        path: &[u8],
        flags: OpenFlags,
        mode: u16,
    ) -> Result<Location> {
        let parent = self.resolve(start, path, LastLink::Follow)?;
        let directory = parent.inode();
        if !parent.dentry.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        parent.mount.check_writable()?;
        check_access(
            &**directory,
            self.credentials,
            Access::WRITE | Access::EXECUTE,
        )?;
        let _lock = directory.common().lock.write();
        let init = self.inode_init(&**directory, FileType::Regular, mode)?;
        let inode = self.create_unnamed(&**directory, &init)?;
        let is_linkable = !flags.contains(OpenFlags::EXCL);
        let dentry = Dentry::new_unnamed(&parent.dentry, inode, is_linkable);
        Ok(Location {
            mount: parent.mount.clone(),
            dentry,
        })
    }
}
