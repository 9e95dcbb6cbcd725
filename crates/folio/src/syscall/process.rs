//! The state of one program: file descriptors, working directory, credentials, umask.

use super::{AtFlags, Credentials};
use crate::base::rcu::{self, Grace, Pin, RcuCell};
use crate::base::sync::Mutex;
use crate::base::{Errno, Error, Result, Timespec};
use crate::kernel::Kernel;
use crate::vfs::{Context, FileTable, LastLink, Location, LocationRef, OpenFile, RcuWalk};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// A file descriptor of one [`Process`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fd(pub u32);

/// `AT_FDCWD`: relative paths start at the working directory.
pub const AT_FDCWD: Fd = Fd(u32::MAX);

/// Walks along one path whose end others replace all the time.
const STALE_RETRIES_MAX: u32 = 16;

/// A program's view of a [`crate::Kernel`]: what the kernel keeps per process. Calls from any
/// thread.
///
/// Every call has the name, meaning and errno of the Linux system call (man section 2). `dir`
/// arguments are a directory's descriptor or [`AT_FDCWD`].
pub struct Process {
    files: Arc<FileTable>,
    /// Never empty.
    working_directory: RcuCell<Location>,
    changing_directory: Mutex<()>,
    credentials: Credentials,
    umask: AtomicU16,
    // Last, so that the working directory is let go of before the kernel may unmount.
    kernel: Arc<Kernel>,
}

impl Process {
    pub(crate) fn new(kernel: Arc<Kernel>, credentials: Credentials) -> Self {
        Self {
            files: kernel.vfs().open_table(),
            changing_directory: Mutex::new(()),
            working_directory: RcuCell::new(Arc::new(kernel.vfs().root())),
            credentials,
            umask: AtomicU16::new(0o022),
            kernel,
        }
    }

    /// close(2).
    pub fn close(&self, fd: Fd) -> Result<()> {
        self.files.close(fd.0 as usize)
    }

    /// dup(2).
    pub fn dup(&self, fd: Fd) -> Result<Fd> {
        let file = self.file(fd)?;
        Ok(Fd(self.files.install_again(file)? as u32))
    }

    /// chdir(2).
    pub fn chdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            let location = self.resolve(path, LastLink::Follow)?;
            self.context().check_working_directory(&location)?;
            let lock = self.changing_directory.lock();
            let old = self.working_directory.replace(Some(Arc::new(location)));
            drop(lock);
            // Readers of the old one end soon. If it was removed, this is what frees it.
            let over = Grace::start().wait();
            drop(old.map(|old| old.after(over)));
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
        Ok(self.files.get(fd.0 as usize, &rcu::pin())?.to_arc())
    }

    /// Calls `use_file` with the open file behind a descriptor. It must not block (base/rcu.rs,
    /// R3), which spares it a reference of its own.
    #[inline]
    pub(super) fn with_file<T>(&self, fd: Fd, use_file: impl FnOnce(&OpenFile) -> T) -> Result<T> {
        let pin = rcu::pin();
        Ok(use_file(self.files.get(fd.0 as usize, &pin)?.value()))
    }

    /// Gives a file just opened the lowest free descriptor.
    pub(super) fn install(&self, file: OpenFile) -> Result<Fd> {
        Ok(Fd(self.files.install(file)? as u32))
    }

    /// The working directory.
    pub(super) fn start(&self) -> Location {
        let pin = rcu::pin();
        self.here(&pin).clone()
    }

    #[inline]
    fn here<'p>(&'p self, pin: &'p Pin) -> &'p Location {
        self.working_directory
            .load(pin)
            .unwrap_or_else(|| unreachable!("there is always one"))
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

    /// Calls `then` with what `path` leads to, if that can be told from memory, without a lock and
    /// without waiting; so must `then`. With `None` the caller goes by way of
    /// [`Process::resolve_at`], for which this is the shortcut.
    #[inline]
    pub(super) fn with_rcu_walk<T>(
        &self,
        dir: Fd,
        path: &[u8],
        last_link: LastLink,
        then: impl FnOnce(LocationRef<'_>) -> T,
    ) -> Option<Result<T>> {
        let pin = rcu::pin();
        let context = self.context();
        let start = match dir {
            AT_FDCWD => self.here(&pin),
            _ => self
                .files
                .get(dir.0 as usize, &pin)
                .ok()?
                .value()
                .location(),
        };
        match context.rcu_walk(LocationRef::new(start), path, last_link, &pin) {
            RcuWalk::Found(found) => Some(Ok(then(found))),
            RcuWalk::Missing => Some(Err(Errno::NOENT.into())),
            RcuWalk::Unknown => None,
        }
    }

    /// What `path` leads to, or with `EMPTY_PATH` the descriptor itself.
    pub(super) fn resolve_at(
        &self,
        dir: Fd,
        path: &[u8],
        last_link: LastLink,
        flags: AtFlags,
    ) -> Result<Location> {
        if let Some(found) = self.with_rcu_walk(dir, path, last_link, |found| found.to_location()) {
            return found;
        }
        let start = self.start_at(dir, path)?;
        if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return Ok(start);
        }
        self.context().resolve(&start, path, last_link)
    }

    /// What the path leads to, from the working directory.
    pub(super) fn resolve(&self, path: &[u8], last_link: LastLink) -> Result<Location> {
        self.resolve_at(AT_FDCWD, path, last_link, AtFlags::empty())
    }

    /// The inode behind a descriptor that is not `O_PATH`.
    pub(super) fn location(&self, fd: Fd) -> Result<Location> {
        let file = self.file(fd)?;
        file.check_not_path()?;
        Ok(file.location().clone())
    }

    /// Makes a call about one path; a failure names the path. What was found may turn out to be
    /// something else by now, where others change names: then the path is walked again. Linux:
    /// `retry_estale`.
    pub(super) fn with_path<T>(&self, path: &Path, call: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let bytes = path.as_os_str().as_bytes();
        let mut result = call(bytes);
        for _ in 0..STALE_RETRIES_MAX {
            if !result
                .as_ref()
                .is_err_and(|error| error.errno() == Errno::STALE)
            {
                break;
            }
            result = call(bytes);
        }
        result.map_err(|error| name(error, path))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Before the reference to the kernel goes, which may then unmount.
        self.kernel.vfs().close_table(&self.files);
    }
}

fn name(error: Error, path: &Path) -> Error {
    if path.as_os_str().is_empty() {
        error
    } else {
        error.at(path.display().to_string())
    }
}

/// The choice that flags of the `*at` calls make.
pub(super) fn last_link(flags: AtFlags) -> LastLink {
    if flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
        LastLink::Keep
    } else {
        LastLink::Follow
    }
}

/// EINVAL for flags that a call does not have.
pub(super) fn check_flags(flags: AtFlags, known: AtFlags) -> Result<()> {
    if known.contains(flags) {
        Ok(())
    } else {
        Err(Errno::INVAL.into())
    }
}
