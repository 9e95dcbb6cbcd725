//! Writes to the host. An image cannot make it write outside the destination: each name is created
//! in an open directory, and no link below it is followed.

use super::batch_channel::FileMeta;
use super::host_source::attributes;
use super::options::CopyOptions;
use super::target::Target;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error, Timespec};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timestamps, Uid, XattrFlags};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The host, written as the calling user.
pub(crate) struct HostTarget {
    options: CopyOptions,
    user: Uid,
    group: Gid,
    /// Device and inode numbers of the open images.
    images: Vec<(u64, u64)>,
    /// Device nodes that were not created, because only root can.
    pub(crate) devices_refused: Cell<u64>,
    /// Extended attributes that this user or file system does not support.
    pub(crate) xattrs_refused: Cell<u64>,
}

/// An open directory.
pub(crate) struct HostDir {
    fd: OwnedFd,
    is_new: bool,
    /// New files get the user's group and no inherited ACL.
    is_plain: bool,
}

/// A file being written.
pub(crate) struct HostFile {
    fd: OwnedFd,
    /// Created here with its final mode.
    is_exact: bool,
}

impl HostTarget {
    /// Creates the target. `images` are the open images, which it does not overwrite.
    pub(crate) fn new(options: CopyOptions, images: Vec<(u64, u64)>) -> Self {
        Self {
            options,
            user: rustix::process::geteuid(),
            group: rustix::process::getegid(),
            images,
            devices_refused: Cell::new(0),
            xattrs_refused: Cell::new(0),
        }
    }

    fn is_owner(&self, attributes: &Attributes) -> bool {
        attributes.uid == self.user.as_raw() && attributes.gid == self.group.as_raw()
    }

    fn open_dir(&self, fd: OwnedFd, is_new: bool, parent_is_plain: bool) -> Result<HostDir, Error> {
        let is_plain = if is_new {
            parent_is_plain
        } else {
            let stat = rustix::fs::fstat(&fd)?;
            let list = rustix::fs::fgetxattr(&fd, "system.posix_acl_default", &mut [0_u8; 0][..]);
            stat.st_mode & 0o2000 == 0 && list.is_err()
        };
        Ok(HostDir {
            fd,
            is_new,
            is_plain,
        })
    }

    /// Sets the owner; returns whether that succeeded. Without root it sets at most the group,
    /// silently like cp.
    fn set_owner(
        &self,
        attributes: &Attributes,
        chown: impl Fn(Option<Uid>, Option<Gid>) -> bool,
    ) -> bool {
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        if chown(Some(uid), Some(gid)) {
            return true;
        }
        chown(None, Some(gid));
        false
    }

    /// Sets owner, mode and extended attributes of an open file or directory.
    fn set_attributes(&self, fd: &OwnedFd, meta: &FileMeta, is_exact: bool) -> Result<(), Error> {
        let (keeps, attributes) = (&self.options, &meta.attributes);
        let chowns = keeps.keeps_owner && !(is_exact && self.is_owner(attributes));
        let mut mode = attributes.mode;
        if chowns
            && !self.set_owner(attributes, |uid, gid| {
                rustix::fs::fchown(fd, uid, gid).is_ok()
            })
        {
            mode &= 0o1777;
        }
        if keeps.keeps_mode && (chowns || !is_exact) {
            rustix::fs::fchmod(fd, Mode::from_raw_mode(mode.into()))?;
        }
        for (name, value) in &meta.xattrs {
            let set = rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty());
            self.check_xattr(set)?;
        }
        Ok(())
    }

    fn check_xattr(&self, set: rustix::io::Result<()>) -> Result<(), Error> {
        match set {
            Err(Errno::PERM | Errno::NOTSUP | Errno::ACCESS) => {
                self.xattrs_refused.set(self.xattrs_refused.get() + 1);
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Sets the attributes of a file that cannot be opened.
    fn set_unopened(&self, at: &HostDir, name: &[u8], meta: &FileMeta) -> Result<(), Error> {
        let (keeps, attributes) = (&self.options, &meta.attributes);
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let mut mode = attributes.mode;
        let chowns = keeps.keeps_owner && !(at.is_plain && self.is_owner(attributes));
        let chown = |uid, gid| rustix::fs::chownat(&at.fd, name, uid, gid, nofollow).is_ok();
        if chowns && !self.set_owner(attributes, chown) {
            mode &= 0o1777;
        }
        if keeps.keeps_mode && attributes.file_type != FileType::Symlink && (chowns || !at.is_plain)
        {
            let mode = Mode::from_raw_mode(mode.into());
            rustix::fs::chmodat(&at.fd, name, mode, AtFlags::empty())?;
        }
        if !meta.xattrs.is_empty() {
            let path = [
                format!("/proc/self/fd/{}/", at.fd.as_raw_fd()).as_bytes(),
                name,
            ]
            .concat();
            for (key, value) in &meta.xattrs {
                let set = rustix::fs::lsetxattr(
                    path.as_slice(),
                    key.as_slice(),
                    value,
                    XattrFlags::empty(),
                );
                self.check_xattr(set)?;
            }
        }
        if keeps.keeps_times {
            rustix::fs::utimensat(&at.fd, name, &timestamps(attributes), nofollow)?;
        }
        Ok(())
    }

    fn set_times(&self, fd: &OwnedFd, meta: &FileMeta) -> Result<(), Error> {
        if self.options.keeps_times {
            rustix::fs::futimens(fd, &timestamps(&meta.attributes))?;
        }
        Ok(())
    }

    /// Creates a name, and replaces an existing file.
    fn replacing(
        &self,
        at: &HostDir,
        name: &[u8],
        make: impl Fn() -> rustix::io::Result<()>,
    ) -> Result<(), Error> {
        match make() {
            Err(Errno::EXIST) => {
                self.unlink(at, name)?;
                Ok(make()?)
            }
            made => Ok(made?),
        }
    }

    fn unlink(&self, at: &HostDir, name: &[u8]) -> Result<(), Error> {
        let stat = rustix::fs::statat(&at.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if attributes(&stat).file_type == FileType::Directory {
            return Err(Error::new(
                Errno::ISDIR,
                "cannot overwrite a directory with a non-directory",
            ));
        }
        self.check_own_image(&stat)?;
        Ok(rustix::fs::unlinkat(&at.fd, name, AtFlags::empty())?)
    }

    fn check_own_image(&self, stat: &rustix::fs::Stat) -> Result<(), Error> {
        if self.images.contains(&(stat.st_dev, stat.st_ino)) {
            return Err(Error::new(
                Errno::BUSY,
                "cannot overwrite the image that is being read",
            ));
        }
        Ok(())
    }
}

fn timestamps(attributes: &Attributes) -> Timestamps {
    let time = |time: Timespec| rustix::fs::Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    };
    Timestamps {
        last_access: time(attributes.accessed),
        last_modification: time(attributes.modified),
    }
}

impl Target for HostTarget {
    type Dir = HostDir;
    type File = HostFile;

    fn open_parent(&self, path: &[u8]) -> Result<HostDir, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        self.open_dir(fd, false, false)
    }

    fn make_dir(&self, at: &HostDir, name: &[u8], _: &FileMeta) -> Result<HostDir, Error> {
        // No other user can read it before its final mode is set.
        let is_new = match rustix::fs::mkdirat(&at.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&at.fd, name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(Error::new(
                    Errno::NOTDIR,
                    "cannot overwrite a non-directory with a directory",
                ));
            }
            other => other?,
        };
        self.open_dir(fd, is_new, at.is_plain)
    }

    fn finish_dir(&self, dir: HostDir, meta: &FileMeta) -> Result<(), Error> {
        if !self.options.keeps_mode && dir.is_new {
            let mode = self.options.mode(&meta.attributes);
            rustix::fs::fchmod(&dir.fd, Mode::from_raw_mode(mode.into()))?;
        }
        self.set_attributes(&dir.fd, meta, false)?;
        self.set_times(&dir.fd, meta)
    }

    fn create(&self, at: &HostDir, name: &[u8], meta: &FileMeta) -> Result<HostFile, Error> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let is_exact =
            at.is_plain && (!self.options.keeps_owner || self.is_owner(&meta.attributes));
        // Before its owner is set, no other user may open it.
        let mask = if is_exact || !self.options.keeps_owner {
            0o7777
        } else {
            0o700
        };
        let mode = Mode::from_raw_mode((self.options.mode(&meta.attributes) & mask).into());
        match rustix::fs::openat(&at.fd, name, flags, mode) {
            Ok(fd) => return Ok(HostFile { fd, is_exact }),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let there = rustix::fs::statat(&at.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.check_own_image(&there)?;
        if attributes(&there).file_type == FileType::Regular && there.st_nlink == 1 {
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&at.fd, name, flags, Mode::empty())?;
            return Ok(HostFile {
                fd,
                is_exact: false,
            });
        }
        self.unlink(at, name)?;
        Ok(HostFile {
            fd: rustix::fs::openat(&at.fd, name, flags, mode)?,
            is_exact,
        })
    }

    fn write(&self, file: &HostFile, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(file.fd.as_fd(), bytes, offset) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn finish(
        &self,
        file: HostFile,
        meta: &FileMeta,
        written: u64,
        size_bytes: u64,
    ) -> Result<(), Error> {
        if size_bytes > written {
            rustix::fs::ftruncate(&file.fd, size_bytes)?;
        }
        self.set_attributes(&file.fd, meta, file.is_exact)?;
        self.set_times(&file.fd, meta)
    }

    fn symlink(
        &self,
        at: &HostDir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
    ) -> Result<(), Error> {
        self.replacing(at, name, || rustix::fs::symlinkat(target, &at.fd, name))?;
        self.set_unopened(at, name, meta)
    }

    fn special(&self, at: &HostDir, name: &[u8], meta: &FileMeta) -> Result<(), Error> {
        let attributes = &meta.attributes;
        let file_type = match attributes.file_type {
            FileType::CharacterDevice => rustix::fs::FileType::CharacterDevice,
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::Socket => rustix::fs::FileType::Socket,
            _ => rustix::fs::FileType::Fifo,
        };
        let mode = Mode::from_raw_mode(self.options.mode(attributes).into());
        let device = rustix::fs::makedev(attributes.device.0, attributes.device.1);
        let make = || rustix::fs::mknodat(&at.fd, name, file_type, mode, device);
        match self.replacing(at, name, make) {
            Err(error) if error.errno() == Errno::PERM => {
                self.devices_refused.set(self.devices_refused.get() + 1);
                Ok(())
            }
            made => made.and_then(|()| self.set_unopened(at, name, meta)),
        }
    }

    fn link(&self, first: &[u8], at: &HostDir, name: &[u8]) -> Result<(), Error> {
        self.replacing(at, name, || {
            rustix::fs::linkat(CWD, first, &at.fd, name, AtFlags::empty())
        })
    }

    fn remove(&self, at: &HostDir, name: &[u8]) {
        // Removes an incomplete file. The failure that left it is already reported.
        let _ = rustix::fs::unlinkat(&at.fd, name, AtFlags::empty());
    }

    fn describe(&self, path: &[u8]) -> String {
        String::from_utf8_lossy(path).into_owned()
    }
}
