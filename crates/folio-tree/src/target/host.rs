//! Writes to the host. An image cannot make it write outside the destination: each name is created
//! in an open directory, and no link that the copy created is followed. As cp(1) does, a file is
//! written through an existing link.
//!
//! Owners and modes are set through `std`: it calls libc, where libfakeroot sees the calls. rustix
//! makes some of these calls directly.

use super::{Existing, FileMeta, Target, WrittenFile, dangling_link, existing, fakeroot};
use crate::attributes::AttributeFailures;
use crate::options::{CopyOptions, process_umask};
use crate::source::{FileId, attributes_of};
use folio::base::Owner;
use folio::block::check_unused;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error, Timespec};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timestamps, Uid, XattrFlags};
use std::collections::HashSet;
use std::fs::{File, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// setuid and setgid: Linux clears them when a file is written without CAP_FSETID, so they are set
/// after the content.
const SPECIAL_BITS: u16 = 0o6000;

/// The host, written as the calling user. Paths are absolute, or relative to the working directory.
#[derive(Debug)]
pub struct HostTarget {
    options: CopyOptions,
    user: Uid,
    group: rustix::fs::Gid,
    /// Owners are recorded by fakeroot(1), so new files have no owner until one is set.
    records_owners: bool,
    /// Permission bits that the host's kernel removes from the modes of new files.
    umask: u16,
    /// The open images.
    images: Vec<FileId>,
    /// The symbolic links that this copy created.
    own_links: Mutex<HashSet<FileId>>,
}

/// An open directory.
#[derive(Debug)]
pub struct HostDir {
    fd: File,
    is_new: bool,
    /// New files get the user's group and no inherited ACL.
    is_plain: bool,
}

/// A file being written.
#[derive(Debug)]
pub struct HostFile {
    fd: File,
    /// Created here with its final owner, and its final mode but for [`SPECIAL_BITS`].
    is_exact: bool,
}

impl HostTarget {
    /// Creates the target. `images` are the open images, which it does not overwrite.
    pub fn new(options: &CopyOptions, images: Vec<FileId>) -> Self {
        Self {
            options: options.clone(),
            // Unknown: each mode is set.
            umask: process_umask().unwrap_or(0o777),
            user: rustix::process::geteuid(),
            group: rustix::process::getegid(),
            records_owners: options.keeps_owner && fakeroot::is_loaded(),
            images,
            own_links: Mutex::default(),
        }
    }

    fn is_owner(&self, attributes: &Attributes) -> bool {
        !self.records_owners
            && (attributes.uid, attributes.gid) == (self.user.as_raw(), self.group.as_raw())
    }

    /// Whether the host's kernel does not give a new file all bits of this mode.
    fn is_masked(&self, mode: u16) -> bool {
        self.options.keeps_mode && mode & self.umask != 0
    }

    /// Sets the owner; returns whether that succeeded. Without root it sets at most the group,
    /// silently like cp.
    fn set_owner(
        &self,
        attributes: &Attributes,
        failures: &mut AttributeFailures,
        chown: impl Fn(Option<u32>, Option<u32>) -> std::io::Result<()>,
    ) -> bool {
        // To chown(2), the largest number means no change.
        let id = |id: u32| Some(id).filter(|id| *id != u32::MAX);
        let (uid, gid) = (id(attributes.uid), id(attributes.gid));
        let set = if uid.is_some() && gid.is_some() {
            chown(uid, gid).map_err(|error| host_error(&error))
        } else {
            Err(Errno::INVAL.into())
        };
        match set {
            Ok(()) => return true,
            Err(error)
                if !self.user.is_root() && matches!(error.errno(), Errno::PERM | Errno::INVAL) =>
            {
                // This user may not be in the group.
                let _ = chown(None, gid);
            }
            set => failures.check_owner(Owner::new(attributes.uid, attributes.gid), set),
        }
        false
    }

    /// Sets owner, mode and extended attributes of an open file or directory, then its times.
    fn set_attributes(
        &self,
        file: &File,
        meta: &FileMeta,
        is_exact: bool,
        failures: &mut AttributeFailures,
    ) {
        let (keeps, attributes) = (&self.options, &meta.attributes);
        let chowns = keeps.keeps_owner && !(is_exact && self.is_owner(attributes));
        let mut mode = attributes.mode;
        let chown = |uid, gid| std::os::unix::fs::fchown(file, uid, gid);
        if chowns && !self.set_owner(attributes, failures, chown) {
            mode &= 0o1777;
        }
        if keeps.keeps_mode && (chowns || !is_exact || mode & SPECIAL_BITS != 0) {
            failures.check_mode(mode, set_mode(file, mode));
        }
        for (name, value) in &meta.xattrs {
            let set = rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty());
            failures.check_xattr(name, self.user.is_root(), set);
        }
        if keeps.keeps_times {
            let set = rustix::fs::futimens(file, &timestamps(attributes));
            failures.check_times(set);
        }
    }

    /// Sets the attributes of a file that cannot be opened.
    fn set_unopened(
        &self,
        at: &HostDir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) {
        let (keeps, attributes) = (&self.options, &meta.attributes);
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let mut mode = attributes.mode;
        let chowns = keeps.keeps_owner && !(at.is_plain && self.is_owner(attributes));
        // For calls without an `at` form.
        let path = || {
            let dir = format!("/proc/self/fd/{}", at.fd.as_raw_fd());
            PathBuf::from(dir).join(std::ffi::OsStr::from_bytes(name))
        };
        let chown = |uid, gid| std::os::unix::fs::lchown(path(), uid, gid);
        if chowns && !self.set_owner(attributes, failures, chown) {
            mode &= 0o1777;
        }
        let is_exact = at.is_plain && !self.is_masked(mode);
        let is_link = attributes.file_type == FileType::Symlink;
        if keeps.keeps_mode && !is_link && (chowns || !is_exact) {
            let set = std::fs::set_permissions(path(), Permissions::from_mode(mode.into()));
            failures.check_mode(mode, set.map_err(|e| host_error(&e)));
        }
        for (key, value) in &meta.xattrs {
            let flags = XattrFlags::empty();
            let set = rustix::fs::lsetxattr(path(), key.as_slice(), value, flags);
            failures.check_xattr(key, self.user.is_root(), set);
        }
        if keeps.keeps_times {
            let set = rustix::fs::utimensat(&at.fd, name, &timestamps(attributes), nofollow);
            failures.check_times(set);
        }
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
        if attributes_of(&stat).file_type == FileType::Directory {
            return Err(Error::new(
                Errno::ISDIR,
                "cannot overwrite a directory with a non-directory",
            ));
        }
        self.check_own_image(&stat)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // A file that this user may not read is an image of another one, or none.
        if attributes_of(&stat).file_type == FileType::Regular
            && let Ok(fd) = rustix::fs::openat(&at.fd, name, flags, Mode::empty())
        {
            check_unused(&File::from(fd))?;
        }
        Ok(rustix::fs::unlinkat(&at.fd, name, AtFlags::empty())?)
    }

    /// Returns what happens to the file that has the name of a copied one.
    fn existing(&self, at: &HostDir, name: &[u8]) -> Result<Existing, Error> {
        let mut there = rustix::fs::statat(&at.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if attributes_of(&there).file_type == FileType::Symlink {
            let links = self
                .own_links
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if links.contains(&FileId::of(&there)) {
                let what = "cannot write through a link that this copy created";
                return Err(Error::new(Errno::EXIST, what));
            }
            there = rustix::fs::statat(&at.fd, name, AtFlags::empty())
                .map_err(|error| dangling_link(error.into()))?;
        }
        self.check_own_image(&there)?;
        existing(&attributes_of(&there), &self.options)
    }

    fn check_own_image(&self, stat: &rustix::fs::Stat) -> Result<(), Error> {
        if self.images.contains(&FileId::of(stat)) {
            return Err(Error::new(
                Errno::BUSY,
                "cannot overwrite the image that is being read",
            ));
        }
        Ok(())
    }
}

/// Returns whether new files in a directory get the user's group and no inherited ACL.
fn is_plain_directory(directory: &File) -> Result<bool, Error> {
    let stat = rustix::fs::fstat(directory)?;
    let acl = rustix::fs::fgetxattr(directory, "system.posix_acl_default", &mut [0_u8; 0][..]);
    Ok(stat.st_mode & 0o2000 == 0 && acl.is_err())
}

fn set_mode(file: &File, mode: u16) -> Result<(), Error> {
    let set = file.set_permissions(Permissions::from_mode(mode.into()));
    set.map_err(|error| host_error(&error))
}

fn host_error(error: &std::io::Error) -> Error {
    Errno::from_io_error(error).unwrap_or(Errno::IO).into()
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
        let fd = File::from(fd);
        Ok(HostDir {
            is_plain: is_plain_directory(&fd)?,
            is_new: false,
            fd,
        })
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
        let fd = File::from(fd);
        let is_plain = if is_new {
            at.is_plain
        } else {
            is_plain_directory(&fd)?
        };
        Ok(HostDir {
            fd,
            is_new,
            is_plain,
        })
    }

    fn finish_dir(
        &self,
        dir: HostDir,
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        if !self.options.keeps_mode && dir.is_new {
            let mode = self.options.mode(&meta.attributes);
            failures.check_mode(mode, set_mode(&dir.fd, mode));
        }
        self.set_attributes(&dir.fd, meta, false, failures);
        Ok(())
    }

    fn create(&self, at: &HostDir, name: &[u8], meta: &FileMeta) -> Result<HostFile, Error> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let is_exact = at.is_plain
            && !self.is_masked(meta.attributes.mode)
            && (!self.options.keeps_owner || self.is_owner(&meta.attributes));
        // Before its owner is set, no other user may open it.
        let mask = if is_exact || !self.options.keeps_owner {
            !SPECIAL_BITS
        } else {
            0o700
        };
        let mode = Mode::from_raw_mode((self.options.mode(&meta.attributes) & mask).into());
        match rustix::fs::openat(&at.fd, name, flags, mode) {
            Ok(fd) => {
                return Ok(HostFile {
                    fd: fd.into(),
                    is_exact,
                });
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        if let Existing::Written = self.existing(at, name)? {
            let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
            let fd = File::from(rustix::fs::openat(&at.fd, name, flags, Mode::empty())?);
            // Before it is cut: the copy may read from this very image, or QEMU uses it.
            check_unused(&fd)?;
            rustix::fs::ftruncate(&fd, 0)?;
            return Ok(HostFile {
                fd,
                is_exact: false,
            });
        }
        self.unlink(at, name)?;
        Ok(HostFile {
            fd: rustix::fs::openat(&at.fd, name, flags, mode)?.into(),
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
        written: WrittenFile<'_, HostFile>,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        let file = written.file;
        if written.size_bytes > written.written_bytes {
            rustix::fs::ftruncate(&file.fd, written.size_bytes)?;
        }
        self.set_attributes(&file.fd, written.meta, file.is_exact, failures);
        Ok(())
    }

    fn symlink(
        &self,
        at: &HostDir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        self.replacing(at, name, || rustix::fs::symlinkat(target, &at.fd, name))?;
        let made = rustix::fs::statat(&at.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut links = self
            .own_links
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        links.insert(FileId::of(&made));
        drop(links);
        self.set_unopened(at, name, meta, failures);
        Ok(())
    }

    fn special(
        &self,
        at: &HostDir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        let attributes = &meta.attributes;
        let file_type = match attributes.file_type {
            FileType::CharacterDevice => rustix::fs::FileType::CharacterDevice,
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::Socket => rustix::fs::FileType::Socket,
            _ => rustix::fs::FileType::Fifo,
        };
        let mode = Mode::from_raw_mode(self.options.mode(attributes).into());
        let device = rustix::fs::makedev(attributes.device.major, attributes.device.minor);
        let make = || rustix::fs::mknodat(&at.fd, name, file_type, mode, device);
        let is_device = matches!(
            attributes.file_type,
            FileType::CharacterDevice | FileType::BlockDevice
        );
        self.replacing(at, name, make)
            .map_err(|error| match error.errno() {
                Errno::PERM if is_device && !self.user.is_root() => {
                    Error::new(Errno::PERM, "only root can create device nodes")
                }
                _ => error,
            })?;
        self.set_unopened(at, name, meta, failures);
        Ok(())
    }

    fn link(&self, first: &[u8], at: &HostDir, name: &[u8]) -> Result<(), Error> {
        self.replacing(at, name, || {
            rustix::fs::linkat(CWD, first, &at.fd, name, AtFlags::empty())
        })
    }

    fn remove(&self, at: &HostDir, name: &[u8]) {
        // Removes an incomplete file, but no link to it that was there before. The failure that
        // left it is already reported.
        let found = rustix::fs::statat(&at.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| {
            attributes_of(&found).file_type != FileType::Regular || found.st_nlink > 1
        }) {
            return;
        }
        let _ = rustix::fs::unlinkat(&at.fd, name, AtFlags::empty());
    }
}
