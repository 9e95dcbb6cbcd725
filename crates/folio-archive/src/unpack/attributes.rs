//! Owner, mode, extended attributes and times of one unpacked file.

use crate::entry::{Entry, EntryKind, as_path};
use folio::syscall::{AtFlags, Fd};
use folio::vfs::{SetTime, XattrFlags};
use folio::{Errno, Error, Process, Result};
use std::path::PathBuf;

/// Whether a failure would also affect all other files.
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(
        error.errno(),
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::INTR
    )
}

/// The attributes of an entry, to be set on its file.
pub(super) struct Attributes<'a> {
    pub(super) process: &'a Process,
    pub(super) entry: &'a Entry,
}

/// The attributes that could not be set.
#[derive(Default)]
pub(super) struct Failures {
    pub(super) errors: Vec<Error>,
    /// Extended attributes that the file system does not support.
    pub(super) unsupported_xattrs: u64,
}

impl Failures {
    fn check(&mut self, place: impl FnOnce() -> String, set: Result<()>) {
        if let Err(error) = set {
            self.errors
                .push(error.at(format!("cannot set the {}", place())));
        }
    }

    fn check_xattr(&mut self, name: &[u8], set: Result<()>) {
        match set {
            Err(error) if error.errno() == Errno::NOTSUP => self.unsupported_xattrs += 1,
            set => self.check(
                || format!("extended attribute {}", String::from_utf8_lossy(name)),
                set,
            ),
        }
    }
}

impl Attributes<'_> {
    fn owner(&self) -> (Option<u32>, Option<u32>) {
        (Some(self.entry.uid), Some(self.entry.gid))
    }

    fn owner_words(&self) -> String {
        format!("owner {}:{}", self.entry.uid, self.entry.gid)
    }

    fn times(&self) -> (Option<SetTime>, Option<SetTime>) {
        let modified = self.entry.modified;
        let accessed = self.entry.accessed.unwrap_or(modified);
        (Some(SetTime::To(accessed)), Some(SetTime::To(modified)))
    }

    /// Sets the attributes of an open file. An exact one was created with the entry's mode, and
    /// belongs to root.
    pub(super) fn set_open(&self, fd: Fd, is_exact: bool, has_times: bool) -> Failures {
        let mut failures = Failures::default();
        let (entry, process) = (self.entry, self.process);
        let (uid, gid) = self.owner();
        let chowns = !is_exact || entry.uid != 0 || entry.gid != 0;
        if chowns {
            failures.check(|| self.owner_words(), process.fchown(fd, uid, gid));
        }
        // A change of the owner clears setuid and setgid; mkdir ignores all special bits.
        if !is_exact || entry.mode >= 0o1000 {
            let set = process.fchmod(fd, entry.mode);
            failures.check(|| format!("mode {:04o}", entry.mode), set);
        }
        for (name, value) in &entry.xattrs {
            failures.check_xattr(
                name,
                process.fsetxattr(fd, name, value, XattrFlags::empty()),
            );
        }
        if has_times {
            let (accessed, modified) = self.times();
            failures.check(
                || "times".to_owned(),
                process.futimens(fd, accessed, modified),
            );
        }
        failures
    }

    /// Sets the attributes of a file that cannot be opened.
    pub(super) fn set_unopened(
        &self,
        (at, name): (Fd, &[u8]),
        path: impl FnOnce() -> PathBuf,
        is_exact: bool,
    ) -> Failures {
        let mut failures = Failures::default();
        let (entry, process, place) = (self.entry, self.process, as_path(name));
        let (uid, gid) = self.owner();
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if !is_exact || entry.uid != 0 || entry.gid != 0 {
            let set = process.fchownat(at, place, uid, gid, nofollow);
            failures.check(|| self.owner_words(), set);
        }
        let is_link = matches!(entry.kind, EntryKind::Symlink(_));
        if !is_link && (!is_exact || entry.mode >= 0o1000) {
            let set = process.fchmodat(at, place, entry.mode);
            failures.check(|| format!("mode {:04o}", entry.mode), set);
        }
        if !entry.xattrs.is_empty() {
            let path = path();
            for (name, value) in &entry.xattrs {
                let set = process.lsetxattr(&path, name, value, XattrFlags::empty());
                failures.check_xattr(name, set);
            }
        }
        let (accessed, modified) = self.times();
        let set = process.utimensat(at, place, accessed, modified, nofollow);
        failures.check(|| "times".to_owned(), set);
        failures
    }
}
