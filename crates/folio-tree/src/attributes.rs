//! The setter of owner, mode, extended attributes and times of one file of a mounted file system.

use crate::observer::CopyFailure;
use folio::base::Owner;
use folio::syscall::{AT_FDCWD, AtFlags, Fd};
use folio::vfs::{Attributes, FileType, SetTime, XattrFlags};
use folio::{Errno, Error, Process, Timespec};
use std::path::{Path, PathBuf};

/// Names and values of extended attributes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What to set on a file; `None` keeps what it has. The owner comes first, as a change of it clears
/// setuid and setgid, and the times last. Each is set although another one failed.
#[derive(Debug, Clone, Copy)]
pub struct NewAttributes<'a> {
    /// User and group.
    pub owner: Option<Owner>,
    /// The low 12 bits of `st_mode`; `None` for a symbolic link.
    pub mode: Option<u16>,
    /// Names and values of extended attributes; ACLs are among them, as `system.posix_acl_*`.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
    /// Time of the last access.
    pub accessed: Option<Timespec>,
    /// Time of the last change of content.
    pub modified: Option<Timespec>,
}

impl NewAttributes<'_> {
    /// Sets the attributes of an open file.
    pub fn set_open(&self, process: &Process, fd: Fd, failures: &mut AttributeFailures) {
        let mut is_owned = true;
        if let Some(owner) = self.owner {
            let set = process.fchown(fd, Some(owner.uid), Some(owner.gid));
            is_owned = set.is_ok();
            failures.check_owner(owner, set);
        }
        if let Some(mode) = self.mode_for(is_owned) {
            failures.check_mode(mode, process.fchmod(fd, mode));
        }
        for (name, value) in self.xattrs {
            let set = process.fsetxattr(fd, name, value, XattrFlags::empty());
            failures.check_xattr(name, true, set);
        }
        if self.has_times() {
            let (accessed, modified) = (self.accessed, self.modified);
            let set = process.futimens(fd, accessed.map(SetTime::To), modified.map(SetTime::To));
            failures.check_times(set);
        }
    }

    /// Sets the attributes of a file that cannot be opened: `name` in the directory `at`. `path`
    /// returns its path for calls without an `at` form.
    pub fn set_unopened(
        &self,
        process: &Process,
        at: Fd,
        name: &Path,
        path: impl FnOnce() -> PathBuf,
        failures: &mut AttributeFailures,
    ) {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let mut is_owned = true;
        if let Some(owner) = self.owner {
            let set = process.fchownat(at, name, Some(owner.uid), Some(owner.gid), nofollow);
            is_owned = set.is_ok();
            failures.check_owner(owner, set);
        }
        if let Some(mode) = self.mode_for(is_owned) {
            failures.check_mode(mode, process.fchmodat(at, name, mode));
        }
        if !self.xattrs.is_empty() {
            let path = path();
            for (name, value) in self.xattrs {
                let set = process.lsetxattr(&path, name, value, XattrFlags::empty());
                failures.check_xattr(name, true, set);
            }
        }
        if self.has_times() {
            let (accessed, modified) = (self.accessed, self.modified);
            let (accessed, modified) = (accessed.map(SetTime::To), modified.map(SetTime::To));
            failures.check_times(process.utimensat(at, name, accessed, modified, nofollow));
        }
    }

    /// Returns the mode to set. A file that keeps another owner than it should have gets no setuid
    /// and setgid: they would give that owner's rights.
    fn mode_for(&self, is_owned: bool) -> Option<u16> {
        let mask = if is_owned { 0o7777 } else { 0o1777 };
        self.mode.map(|mode| mode & mask)
    }

    fn has_times(&self) -> bool {
        self.accessed.is_some() || self.modified.is_some()
    }
}

/// Owner and mode for an existing file; `None` keeps what it has.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewOwnerAndMode {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The low 12 bits of `st_mode`. A symbolic link keeps its own.
    pub mode: Option<u16>,
}

impl NewOwnerAndMode {
    /// Sets owner, mode and some extended attributes of a file, which has the attributes `found`.
    /// A link is not followed. setuid and setgid, which a change of the owner clears, are kept.
    ///
    /// # Errors
    ///
    /// The first failure; the rest is set nevertheless.
    pub fn set(
        self,
        process: &Process,
        path: &Path,
        found: &Attributes,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> folio::Result<()> {
        let chowns = self.uid.is_some() || self.gid.is_some();
        let owner = Owner::new(self.uid.unwrap_or(found.uid), self.gid.unwrap_or(found.gid));
        let cleared = (chowns && found.mode & 0o6000 != 0).then_some(found.mode);
        let is_link = found.file_type == FileType::Symlink;
        let new = NewAttributes {
            owner: chowns.then_some(owner),
            mode: self.mode.or(cleared).filter(|_| !is_link),
            xattrs,
            accessed: None,
            modified: None,
        };
        let mut failures = AttributeFailures::default();
        new.set_unopened(process, AT_FDCWD, path, || path.into(), &mut failures);
        if let Some((what, error)) = failures.failed.into_iter().next() {
            return Err(error.at(format!("cannot set the {what}")));
        }
        if failures.unsupported_xattrs > 0 {
            return Err(Errno::NOTSUP.into());
        }
        Ok(())
    }
}

/// The attributes of one file that could not be set. A copy continues after them: a full attribute
/// block or an owner that the target lacks affects no other file.
#[derive(Debug, Default)]
pub struct AttributeFailures {
    /// Names of attributes, and why each could not be set.
    pub failed: Vec<(String, Error)>,
    /// The number of extended attributes that the file system or this user does not support.
    pub unsupported_xattrs: u64,
}

impl AttributeFailures {
    fn check(&mut self, what: impl FnOnce() -> String, set: Result<(), impl Into<Error>>) {
        if let Err(error) = set {
            self.failed.push((what(), error.into()));
        }
    }

    /// Returns the failures as those of a file of the target.
    pub fn of_file(self, path: &[u8]) -> impl Iterator<Item = CopyFailure> {
        let failed = self.failed.into_iter();
        failed.map(move |(what, error)| {
            CopyFailure::of_target(path, error).at(format!("cannot set the {what}"))
        })
    }

    /// Keeps the failure to set an owner, if `set` is one.
    pub fn check_owner(&mut self, owner: Owner, set: Result<(), impl Into<Error>>) {
        self.check(|| format!("owner {}:{}", owner.uid, owner.gid), set);
    }

    /// Keeps the failure to set a mode, if `set` is one.
    pub fn check_mode(&mut self, mode: u16, set: Result<(), impl Into<Error>>) {
        self.check(|| format!("mode {mode:04o}"), set);
    }

    /// Keeps the failure to set an extended attribute, if `set` is one. `is_root` means that EPERM
    /// has another cause than this user.
    pub fn check_xattr(&mut self, name: &[u8], is_root: bool, set: Result<(), impl Into<Error>>) {
        let set: folio::Result<()> = set.map_err(Into::into);
        match set {
            Err(error) if error.errno() == Errno::NOTSUP => self.unsupported_xattrs += 1,
            Err(error) if !is_root && matches!(error.errno(), Errno::PERM | Errno::ACCESS) => {
                self.unsupported_xattrs += 1;
            }
            set => {
                let what = || format!("extended attribute {}", String::from_utf8_lossy(name));
                self.check(what, set);
            }
        }
    }

    /// Keeps the failure to set times, if `set` is one.
    pub fn check_times(&mut self, set: Result<(), impl Into<Error>>) {
        self.check(|| "times".to_owned(), set);
    }
}

/// Returns whether new files in an open directory get the process's group and no inherited ACL.
///
/// # Errors
///
/// The errors of fstat(2).
pub fn is_plain_directory(process: &Process, fd: Fd) -> folio::Result<bool> {
    let found = process.fstat(fd)?;
    let acl = process.fgetxattr(fd, b"system.posix_acl_default");
    Ok(found.mode & 0o2000 == 0 && acl.is_err())
}
