//! A process: file descriptors, working directory, credentials, umask.

use super::{AtFlags, Credentials};
use crate::base::rcu::{self, Grace, Pin, RcuCell};
use crate::base::sync::Mutex;
use crate::base::{Errno, Error, Result, Timespec};
use crate::kernel::Kernel;
use crate::vfs::{
    Context, FileTable, LastLink, Location, LocationRef, LockOwner, LockTable, OpenFile, RcuWalk,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// A file descriptor of one [`Process`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fd(u32);

impl Fd {
    /// Returns the descriptor that [`Self::as_raw`] gave as `number`: for the other side of an
    /// interface that has integers only. If it is not open, each call fails with EBADF.
    pub const fn from_raw(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number: the least that was free when the file was opened.
    pub const fn as_raw(self) -> u32 {
        self.0
    }
}

/// The working directory as a directory descriptor (`AT_FDCWD`).
pub const AT_FDCWD: Fd = Fd(u32::MAX);

/// Maximum number of repeated walks along one path whose end external writers keep replacing.
const STALE_RETRIES_MAX: u32 = 16;

/// A process: the state that a [`crate::Kernel`] keeps per program, and its system calls. Any
/// thread may call it.
///
/// Every call has the name, the meaning and the errno of the Linux system call (man section 2).
/// `dir` is a directory's descriptor or [`AT_FDCWD`]; an absolute path ignores it. Sizes and
/// offsets are in bytes.
pub struct Process {
    files: Arc<FileTable>,
    /// Never empty.
    working_directory: RcuCell<Location>,
    changing_directory: Mutex<()>,
    credentials: Credentials,
    umask: AtomicU16,
    lock_owner: Arc<LockOwner>,
    // Last, so that the working directory is dropped before the kernel may unmount.
    kernel: Arc<Kernel>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Creates a process, whose root and working directory are `/`.
    pub fn process(self: &Arc<Self>, credentials: Credentials) -> Process {
        Process::new(self.clone(), credentials)
    }
}

impl Process {
    fn new(kernel: Arc<Kernel>, credentials: Credentials) -> Self {
        Self {
            files: kernel.vfs().open_table(),
            changing_directory: Mutex::new(()),
            working_directory: RcuCell::new(Arc::new(kernel.vfs().root())),
            credentials,
            umask: AtomicU16::new(0o022),
            lock_owner: Arc::default(),
            kernel,
        }
    }

    /// Closes a descriptor. Later writeback errors are reported by the next fsync of another open
    /// file. Linux: close(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open.
    pub fn close(&self, fd: Fd) -> Result<()> {
        self.kernel.owner().check()?;
        let locked = self.locked_file(fd);
        self.files.close(fd.0 as usize)?;
        self.release_locks(locked);
        Ok(())
    }

    /// Duplicates a descriptor; both share the file position. Returns the lowest free descriptor.
    /// Linux: dup(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EMFILE without a free descriptor.
    pub fn dup(&self, fd: Fd) -> Result<Fd> {
        let file = self.file(fd)?;
        Ok(Fd(self.files.install_again(file)? as u32))
    }

    /// Duplicates a descriptor under the number `new`, whose file is closed if it is open. Linux:
    /// dup2(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, or no descriptor has the number `new`.
    pub fn dup2(&self, fd: Fd, new: Fd) -> Result<Fd> {
        let file = self.file(fd)?;
        if fd != new {
            self.install_at(new, file)?;
        }
        Ok(new)
    }

    /// Creates a process with the open files of this one under the same descriptors, which share
    /// position and flags, and with its working directory, umask and credentials. It has none of
    /// its locks on ranges. Linux: fork(2).
    ///
    /// # Errors
    ///
    /// EIO in a child of the host's fork(2).
    pub fn fork(&self) -> Result<Self> {
        self.kernel.owner().check()?;
        let child = Self {
            files: self.kernel.vfs().open_table(),
            changing_directory: Mutex::new(()),
            working_directory: RcuCell::new(Arc::new(self.start())),
            credentials: self.credentials.clone(),
            umask: AtomicU16::new(self.umask.load(Ordering::Relaxed)),
            lock_owner: Arc::default(),
            kernel: self.kernel.clone(),
        };
        for (fd, file) in self.files.open_files() {
            file.set_inherited();
            child.files.install_at(fd, file)?;
        }
        Ok(child)
    }

    /// Changes the working directory. Linux: chdir(2).
    ///
    /// # Errors
    ///
    /// ENOTDIR unless a directory, EACCES unless it may be searched, and those of path resolution:
    /// ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn chdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.chdirat(AT_FDCWD, path, AtFlags::empty())
    }

    /// Changes the working directory to a path relative to `dir`, or with `EMPTY_PATH` to `dir`.
    /// Linux: chdir(2) of `/proc/self/fd/DIR/PATH`.
    ///
    /// # Errors
    ///
    /// Those of [`Process::chdir`], and EBADF if `dir` is not open.
    pub fn chdirat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<()> {
        self.with_path(path.as_ref(), |path| {
            self.set_working_directory(self.resolve_at(dir, path, LastLink::Follow, flags)?)
        })
    }

    /// Changes the working directory to an open one. Linux: fchdir(2).
    ///
    /// # Errors
    ///
    /// ENOTDIR unless a directory, EACCES unless it may be searched, EBADF if `fd` is not open.
    pub fn fchdir(&self, fd: Fd) -> Result<()> {
        self.set_working_directory(self.file(fd)?.location().clone())
    }

    fn set_working_directory(&self, location: Location) -> Result<()> {
        self.context().check_working_directory(&location)?;
        let lock = self.changing_directory.lock();
        let old = self.working_directory.replace(Some(Arc::new(location)));
        drop(lock);
        // Waits for readers of the old directory. If it was removed, this drop frees it.
        let over = Grace::start().wait();
        drop(old.map(|old| old.after(over)));
        Ok(())
    }

    /// Returns the absolute path of the working directory. Linux: getcwd(2).
    ///
    /// # Errors
    ///
    /// ENOENT if the directory was removed.
    pub fn getcwd(&self) -> Result<Vec<u8>> {
        self.kernel.owner().check()?;
        self.context().path_of(&self.start())
    }

    /// Returns the kernel that it calls.
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    /// Returns the credentials of its calls.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Changes the credentials of later calls. Linux: setuid(2), setgid(2), setgroups(2).
    pub fn set_credentials(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// Sets the process number that F_GETLK reports to other processes; 0 at first.
    pub fn set_pid(&self, pid: u32) {
        self.lock_owner.set_pid(pid);
    }

    /// Sets the umask (9 bits); returns the previous one. Linux: umask(2).
    pub fn umask(&self, mask: u16) -> u16 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }

    /// Makes every file system durable. Continues after an error, and returns the first. Linux:
    /// sync(2).
    ///
    /// # Errors
    ///
    /// EIO or ENOSPC if writeback failed.
    pub fn sync(&self) -> Result<()> {
        self.kernel.owner().check()?;
        self.kernel.vfs().sync()
    }

    /// Returns the time of the kernel's clock. Linux: clock_gettime(2) with CLOCK_REALTIME.
    pub fn now(&self) -> Timespec {
        self.kernel.now()
    }

    /// Returns whether the calling process created the kernel. A child of fork(2) did not.
    #[inline]
    pub(super) fn is_in_own_process(&self) -> bool {
        self.kernel.owner().is_current()
    }

    pub(super) fn locks(&self) -> &Arc<LockTable> {
        &self.kernel.vfs().locks
    }

    pub(super) fn lock_owner(&self) -> &Arc<LockOwner> {
        &self.lock_owner
    }

    pub(super) fn files(&self) -> &Arc<FileTable> {
        &self.files
    }

    /// Returns the file of a descriptor that is about to be closed, if the process may have locks
    /// on it.
    #[inline]
    fn locked_file(&self, fd: Fd) -> Option<Arc<OpenFile>> {
        let has_locks = self.lock_owner.has_locks();
        let file = has_locks.then(|| self.file(fd).ok())??;
        file.check_not_path().is_ok().then_some(file)
    }

    /// Releases the locks of the process on a file of which it has closed a descriptor.
    fn release_locks(&self, file: Option<Arc<OpenFile>>) {
        if let Some(file) = file {
            self.locks()
                .release_closed(file.inode(), self.lock_owner.id());
        }
    }

    pub(super) fn context(&self) -> Context<'_> {
        Context {
            vfs: self.kernel.vfs(),
            credentials: &self.credentials,
            umask: self.umask.load(Ordering::Relaxed),
        }
    }

    /// Returns the open file of a descriptor; EBADF if the descriptor is not open.
    pub(super) fn file(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        self.kernel.owner().check()?;
        let pin = rcu::pin();
        let file = self.files.get(fd.0 as usize, &pin);
        Ok(file.ok_or(Errno::BADF)?.to_arc())
    }

    /// Returns the open file of a descriptor, without a reference of its own; `None` if the
    /// descriptor is not open. The caller must not block under the pin (base/rcu.rs, R3).
    #[inline]
    pub(super) fn open_file<'p>(&'p self, fd: Fd, pin: &'p Pin) -> Option<&'p OpenFile> {
        Some(self.files.get(fd.0 as usize, pin)?.value())
    }

    /// Installs an open file under the lowest free descriptor.
    pub(super) fn install(&self, file: OpenFile) -> Result<Fd> {
        Ok(Fd(self.files.install(file)? as u32))
    }

    /// Installs an open file under a chosen descriptor, whose file is closed.
    pub(super) fn install_at(&self, fd: Fd, file: Arc<OpenFile>) -> Result<()> {
        let locked = self.locked_file(fd);
        self.files.install_at(fd.0 as usize, file)?;
        self.release_locks(locked);
        Ok(())
    }

    /// Returns the working directory.
    pub(super) fn start(&self) -> Location {
        let pin = rcu::pin();
        self.working_directory(&pin).clone()
    }

    #[inline]
    fn working_directory<'p>(&'p self, pin: &'p Pin) -> &'p Location {
        self.working_directory
            .load(pin)
            .unwrap_or_else(|| unreachable!("a process always has a working directory"))
    }

    /// Returns the start of a path relative to `dir`. An absolute path ignores `dir`.
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

    /// Calls `then` with the location of `path`, found by an RCU walk. Takes no lock and does not
    /// wait; neither may `then`. On `None`, the caller uses [`Process::resolve_at`].
    #[inline]
    pub(super) fn with_rcu_walk<T>(
        &self,
        dir: Fd,
        path: &[u8],
        last_link: LastLink,
        then: impl FnOnce(LocationRef<'_>) -> T,
    ) -> Option<Result<T>> {
        match self.rcu_walk(dir, path, last_link, &rcu::pin()) {
            RcuWalk::Found(found) => Some(Ok(then(found))),
            RcuWalk::Missing => Some(Err(Errno::NOENT.into())),
            RcuWalk::Unknown => None,
        }
    }

    /// Walks along `path` under a pin. Takes no lock and does not wait.
    #[inline]
    pub(super) fn rcu_walk<'p>(
        &'p self,
        dir: Fd,
        path: &[u8],
        last_link: LastLink,
        pin: &'p Pin,
    ) -> RcuWalk<'p> {
        let start = match dir {
            AT_FDCWD => self.working_directory(pin),
            _ => match self.open_file(dir, pin) {
                Some(file) => file.location(),
                None => return RcuWalk::Unknown,
            },
        };
        let start = LocationRef::new(start);
        self.context().rcu_walk(start, path, last_link, pin)
    }

    /// Returns the location of `path`, or with `EMPTY_PATH` of the descriptor itself.
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

    /// Returns the location of a path, from the working directory.
    pub(super) fn resolve(&self, path: &[u8], last_link: LastLink) -> Result<Location> {
        self.resolve_at(AT_FDCWD, path, last_link, AtFlags::empty())
    }

    /// Returns the location of a descriptor that is not `O_PATH`.
    pub(super) fn location(&self, fd: Fd) -> Result<Location> {
        let file = self.file(fd)?;
        file.check_not_path()?;
        Ok(file.location().clone())
    }

    /// Makes a call on one path, and adds the path to its error. Walks the path again if an
    /// external writer replaced the file meanwhile (ESTALE). Linux: `retry_estale`.
    pub(super) fn with_path<T>(&self, path: &Path, call: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        self.kernel.owner().check()?;
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
        result.map_err(|error| add_path(error, path))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_in_own_process() {
            // A child of fork(2): what the parent holds stays as it is, in memory too.
            let folder = self.working_directory.get(&rcu::pin());
            let _parents = ManuallyDrop::new((self.files.clone(), self.kernel.clone(), folder));
            return;
        }
        if self.lock_owner.has_locks() {
            self.locks().release_process(self.lock_owner.id());
        }
        // Before the kernel reference is dropped, which may unmount.
        self.kernel.vfs().close_table(&self.files);
    }
}

fn add_path(error: Error, path: &Path) -> Error {
    if path.as_os_str().is_empty() {
        error
    } else {
        error.at(path.display().to_string())
    }
}

/// Returns whether the flags of an `*at` call follow a last symbolic link.
pub(super) fn last_link(flags: AtFlags) -> LastLink {
    if flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
        LastLink::Keep
    } else {
        LastLink::Follow
    }
}

/// Fails with EINVAL for flags that a call does not have.
pub(super) fn check_flags(flags: AtFlags, known: AtFlags) -> Result<()> {
    if known.contains(flags) {
        Ok(())
    } else {
        Err(Errno::INVAL.into())
    }
}
