//! open(2). Linux: fs/namei.c (`do_last`, `may_open`), fs/open.c.

use super::FileType;
use super::dentry::Dentry;
use super::dentry_cache::Found;
use super::file::{OpenFile, set_size};
use super::mount::Location;
use super::permission::{Access, check_access, check_access_on};
use super::walk::{Context, Last, LastLink, Walk};
use crate::base::{Errno, Result};
use bitflags::bitflags;
use std::sync::Arc;

bitflags! {
    /// open(2) flags, with Linux's values on x86-64. Access mode: none of WRONLY, RDWR is read
    /// only.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// Write only.
        const WRONLY = 0o1;
        /// Read and write.
        const RDWR = 0o2;
        /// Create the file if it is not there.
        const CREAT = 0o100;
        /// With CREAT: fail if it is there.
        const EXCL = 0o200;
        /// Empty the file.
        const TRUNC = 0o1000;
        /// Every write goes to the end.
        const APPEND = 0o2000;
        /// Writes are durable when they return, as after fdatasync.
        const DSYNC = 0o10000;
        /// Fail unless it is a directory.
        const DIRECTORY = 0o200000;
        /// Fail with ELOOP if the last component is a symbolic link.
        const NOFOLLOW = 0o400000;
        /// Leave the access time alone.
        const NOATIME = 0o1000000;
        /// Writes are durable when they return, as after fsync.
        const SYNC = 0o4010000;
        /// A handle for `*at` calls only; no reading, no writing.
        const PATH = 0o10000000;
        /// An unnamed file in the directory named.
        const TMPFILE = 0o20200000;
    }
}

impl OpenFlags {
    /// The three access modes and the unofficial fourth, which checks for both and allows neither.
    fn access_mode(self) -> u32 {
        (self & (Self::WRONLY | Self::RDWR)).bits()
    }

    pub(crate) fn is_readable(self) -> bool {
        !self.contains(Self::PATH) && matches!(self.access_mode(), 0 | 2)
    }

    pub(crate) fn is_writable(self) -> bool {
        !self.contains(Self::PATH) && matches!(self.access_mode(), 1 | 2)
    }

    fn access(self) -> Access {
        let access = match self.access_mode() {
            0 => Access::READ,
            1 => Access::WRITE,
            _ => Access::READ | Access::WRITE,
        };
        if self.contains(Self::TRUNC) {
            access | Access::WRITE
        } else {
            access
        }
    }

    /// Whether something new may be made where nothing is.
    pub(crate) fn may_make(self) -> bool {
        let makes = Self::CREAT | Self::TMPFILE.difference(Self::DIRECTORY);
        !self.contains(Self::PATH) && self.intersects(makes)
    }

    /// Whether a file of this type, found at `path`, is what [`Context::open_at`] can open;
    /// otherwise [`Context::open`] knows.
    pub(crate) fn opens(self, file_type: FileType, path: &[u8]) -> bool {
        let makes_others = Self::EXCL | Self::TMPFILE.difference(Self::DIRECTORY);
        let is_plain = file_type == FileType::Regular && path.last() != Some(&b'/');
        !self.may_make() || (!self.intersects(makes_others) && is_plain)
    }

    /// What to do with a link in the last place.
    pub(crate) fn last_link(self) -> LastLink {
        if self.contains(Self::NOFOLLOW) {
            LastLink::Keep
        } else {
            LastLink::Follow
        }
    }

    /// The flags that count; EINVAL for combinations that make no sense.
    fn checked(self) -> Result<Self> {
        if self.contains(Self::PATH) {
            return Ok(self & (Self::PATH | Self::DIRECTORY | Self::NOFOLLOW));
        }
        let tmpfile_alone = Self::TMPFILE.difference(Self::DIRECTORY);
        if self.intersects(tmpfile_alone) {
            if !self.contains(Self::TMPFILE)
                || self.contains(Self::CREAT)
                || self.access_mode() == 0
            {
                return Err(Errno::INVAL.into());
            }
        } else if self.contains(Self::CREAT | Self::DIRECTORY) {
            return Err(Errno::INVAL.into());
        }
        Ok(self)
    }
}

impl Context<'_> {
    /// openat(2).
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

    /// Opens what is there.
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

    /// The dentry called `name`, made if it is not there, and whether it was made.
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
        let _acting = parent.mount.begin_change(self.credentials)?;
        if parent.dentry.is_deleted() {
            return Err(Errno::NOENT.into());
        }
        check_access(
            &**directory,
            self.credentials,
            Access::WRITE | Access::EXECUTE,
        )?;
        let birth = self.birth(&**directory, FileType::Regular, mode)?;
        let question = parent.dentry.ask_for_name();
        let inode = match self.create(&**directory, name, &birth) {
            // Others were faster.
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
            .add(&parent.dentry, name, Found { inode, question });
        drop(lock);
        parent.mount.settle_names(&**directory)?;
        Ok((dentry, true))
    }

    /// Checks that what is there may be opened so, and empties it if asked.
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
        if flags.contains(OpenFlags::NOATIME) && !self.credentials.is_owner(&inode.attributes()) {
            return Err(Errno::PERM.into());
        }
        match file_type {
            FileType::Regular if flags.contains(OpenFlags::TRUNC) => {
                let _acting = location.mount.begin_change(self.credentials)?;
                {
                    let _lock = inode.common().lock.write();
                    set_size(inode, self.credentials, 0, true)?;
                }
                location.mount.settle(inode)
            }
            FileType::Regular | FileType::Directory => Ok(()),
            // Nothing drives devices, pipes and sockets here.
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
        let _acting = parent.mount.begin_change(self.credentials)?;
        check_access(
            &**directory,
            self.credentials,
            Access::WRITE | Access::EXECUTE,
        )?;
        let _lock = directory.common().lock.write();
        let birth = self.birth(&**directory, FileType::Regular, mode)?;
        let inode = self.create_unnamed(&**directory, &birth)?;
        let is_linkable = !flags.contains(OpenFlags::EXCL);
        let dentry = Dentry::new_unnamed(&parent.dentry, inode, is_linkable);
        Ok(Location {
            mount: parent.mount.clone(),
            dentry,
        })
    }
}
