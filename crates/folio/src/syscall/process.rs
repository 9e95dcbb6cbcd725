//! The state of one program: file descriptors, working directory, credentials, umask.

use super::{AtFlags, Credentials};
use crate::base::{Errno, Error, Result, Timespec};
use crate::kernel::Kernel;
use crate::vfs::{Context, LastLink, Location, OpenFile};
use parking_lot::RwLock;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// A file descriptor of one [`Process`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fd(pub u32);

/// `AT_FDCWD`: relative paths start at the working directory.
pub const AT_FDCWD: Fd = Fd(u32::MAX);

/// Descriptors that one process may have open (`RLIMIT_NOFILE`).
const DESCRIPTORS_MAX: usize = 1 << 20;

/// A program's view of a [`crate::Kernel`]: what the kernel keeps per process. Calls from any thread.
///
/// Every call has the name, meaning and errno of the Linux system call (man section 2). `dir` arguments are a
/// directory's descriptor or [`AT_FDCWD`].
pub struct Process {
    descriptors: RwLock<Descriptors>,
    working_directory: RwLock<Location>,
    credentials: Credentials,
    umask: AtomicU16,
    // Last, so that files are closed before the kernel may unmount.
    kernel: Arc<Kernel>,
}

#[derive(Default)]
struct Descriptors {
    files: Vec<Option<Arc<OpenFile>>>,
    /// No descriptor below this is free.
    first_free: usize,
}

impl Process {
    pub(crate) fn new(kernel: Arc<Kernel>, credentials: Credentials) -> Self {
        Self {
            descriptors: RwLock::default(),
            working_directory: RwLock::new(kernel.vfs().root()),
            credentials,
            umask: AtomicU16::new(0o022),
            kernel,
        }
    }

    /// close(2).
    pub fn close(&self, fd: Fd) -> Result<()> {
        let mut descriptors = self.descriptors.write();
        let at = fd.0 as usize;
        let file = descriptors.files.get_mut(at).and_then(Option::take).ok_or(Errno::BADF)?;
        descriptors.first_free = descriptors.first_free.min(at);
        drop(descriptors);
        // The last reference to an inode may have work to do: outside the lock.
        drop(file);
        Ok(())
    }

    /// dup(2).
    pub fn dup(&self, fd: Fd) -> Result<Fd> {
        let file = self.file(fd)?;
        self.install(file)
    }

    /// chdir(2).
    pub fn chdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            let context = self.context();
            let location = context.resolve(&self.start(), path, LastLink::Follow)?;
            context.check_working_directory(&location)?;
            let old = std::mem::replace(&mut *self.working_directory.write(), location);
            drop(old);
            Ok(())
        })
    }

    /// getcwd(2).
    pub fn getcwd(&self) -> Result<Vec<u8>> {
        self.context().path_of(&self.start())
    }

    /// umask(2): sets the umask and returns the old one.
    pub fn umask(&self, mask: u16) -> u16 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }

    /// sync(2).
    pub fn sync(&self) -> Result<()> {
        self.kernel.vfs().sync()
    }

    /// clock_gettime(2) with CLOCK_REALTIME, from the kernel's clock.
    pub fn now(&self) -> Timespec {
        self.kernel.now()
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(super) fn context(&self) -> Context<'_> {
        Context {
            vfs: self.kernel.vfs(),
            credentials: &self.credentials,
            umask: self.umask.load(Ordering::Relaxed),
        }
    }

    /// The open file behind a descriptor; EBADF if there is none.
    pub(super) fn file(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let descriptors = self.descriptors.read();
        Ok(descriptors.files.get(fd.0 as usize).cloned().flatten().ok_or(Errno::BADF)?)
    }

    /// Gives an open file the lowest free descriptor.
    pub(super) fn install(&self, file: Arc<OpenFile>) -> Result<Fd> {
        let mut descriptors = self.descriptors.write();
        let Descriptors { files, first_free } = &mut *descriptors;
        let free = files[*first_free..].iter().position(Option::is_none);
        let at = free.map_or(files.len(), |free| *first_free + free);
        if at >= DESCRIPTORS_MAX {
            drop(descriptors);
            return Err(Errno::MFILE.into());
        }
        *first_free = at + 1;
        match files.get_mut(at) {
            Some(slot) => *slot = Some(file),
            None => files.push(Some(file)),
        }
        Ok(Fd(at as u32))
    }

    /// The working directory.
    pub(super) fn start(&self) -> Location {
        self.working_directory.read().clone()
    }

    /// Where a path relative to `dir` starts; `dir` does not matter for an absolute one.
    pub(super) fn start_at(&self, dir: Fd, path: &[u8]) -> Result<Location> {
        if dir == AT_FDCWD || path.first() == Some(&b'/') {
            return Ok(self.start());
        }
        let location = self.file(dir)?.location().clone();
        if !path.is_empty() && !location.dentry.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        Ok(location)
    }

    /// What `path` leads to, or with `EMPTY_PATH` the descriptor itself.
    pub(super) fn resolve_at(
        &self,
        dir: Fd,
        path: &[u8],
        last_link: LastLink,
        flags: AtFlags,
    ) -> Result<Location> {
        let start = self.start_at(dir, path)?;
        if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return Ok(start);
        }
        self.context().resolve(&start, path, last_link)
    }

    /// What the path leads to, from the working directory.
    pub(super) fn resolve(&self, path: &[u8], last_link: LastLink) -> Result<Location> {
        self.context().resolve(&self.start(), path, last_link)
    }

    /// The inode behind a descriptor that is not `O_PATH`.
    pub(super) fn location(&self, fd: Fd) -> Result<Location> {
        let file = self.file(fd)?;
        file.check_not_path()?;
        Ok(file.location().clone())
    }

    /// Makes a call about one path; a failure names the path.
    pub(super) fn with_path<T>(&self, path: &Path, call: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        call(path.as_os_str().as_bytes()).map_err(|error| name(error, path))
    }
}

fn name(error: Error, path: &Path) -> Error {
    if path.as_os_str().is_empty() { error } else { error.at(path.display().to_string()) }
}

/// The choice that flags of the `*at` calls make.
pub(super) fn last_link(flags: AtFlags) -> LastLink {
    if flags.contains(AtFlags::SYMLINK_NOFOLLOW) { LastLink::Keep } else { LastLink::Follow }
}

/// EINVAL for flags that a call does not have.
pub(super) fn check_flags(flags: AtFlags, known: AtFlags) -> Result<()> {
    if known.contains(flags) { Ok(()) } else { Err(Errno::INVAL.into()) }
}
