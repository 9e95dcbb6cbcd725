//! A mounted file system, with the functions of [`std::fs`] as methods.

use super::directory::{ReadDir, Walk, remove_tree};
use super::file::File;
use super::metadata::{Metadata, mode, timespec};
use super::open_options::OpenOptions;
use crate::base::{Errno, Error};
use crate::kernel::{Kernel, KernelOptions};
use crate::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags, Process};
use crate::vfs::{FileSystemStatistics, FileType, SetTime, XattrFlags};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes that one sendfile(2) of [`Fs::copy`] moves.
const COPY_BYTES: usize = 8 << 20;

/// A mounted file system: of an image ([`Image::mount`](super::Image::mount)), of a directory of
/// the host ([`Fs::host`]) or in memory ([`Fs::memory`]).
///
/// A clone is another handle of the same mount; calls come from any thread. Paths are absolute or
/// relative to the root, which `..` does not leave. Calls act as root with a umask of 0o022, unless
/// [`Fs::as_user`] says otherwise.
///
/// When the last handle and the last [`File`] are dropped, everything is synced and unmounted, and
/// errors are lost: call [`Fs::close`] to see them.
#[derive(Clone)]
pub struct Fs {
    // First: a process keeps its working directory, and thereby the mount, in use.
    process: Arc<Process>,
    kernel: Arc<Kernel>,
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs")
            .field("kernel", &self.kernel)
            .finish_non_exhaustive()
    }
}

impl Fs {
    /// Creates an empty file system in memory (ramfs).
    pub fn memory() -> Self {
        Self::new(Kernel::new(KernelOptions::default()))
    }

    /// Mounts the directory `path` of the host. Changes by other programs are seen, at the latest
    /// after a time to live; nothing outside the directory can be reached. Linux: virtiofsd(1) with
    /// the guest's mount.
    ///
    /// # Errors
    ///
    /// `NotADirectory`; else those of the host's open(2).
    #[cfg(feature = "hostfs")]
    pub fn host(path: impl AsRef<Path>) -> io::Result<Self> {
        let kernel = Kernel::new(KernelOptions::default());
        kernel.mount_hostfs(path, "/", &Default::default())?;
        Ok(Self::new(kernel))
    }

    /// The root of `kernel`, as root sees it.
    pub fn new(kernel: Arc<Kernel>) -> Self {
        let process = Arc::new(kernel.process(Credentials::root()));
        Self { process, kernel }
    }

    /// Returns the same mount as `credentials` see it, with a umask of 0o022.
    #[must_use]
    pub fn as_user(&self, credentials: Credentials) -> Self {
        Self {
            process: Arc::new(self.kernel.process(credentials)),
            kernel: self.kernel.clone(),
        }
    }

    /// Returns the process that makes the calls, for those that have no counterpart here.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the kernel: its counters, and more mounts.
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        File::open(&self.process, path.as_ref(), OpenFlags::empty(), 0)
    }

    /// Opens a file for writing: a new one, or an existing one cut to length 0.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::TRUNC;
        File::open(&self.process, path.as_ref(), flags, 0o666)
    }

    /// Returns a builder for any other way to open a file.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions::new(self.process.clone())
    }

    /// Returns the content of a file.
    ///
    /// # Errors
    ///
    /// Those of open(2) and read(2).
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let mut file = self.open(path)?;
        let mut bytes = Vec::new();
        let size_bytes = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        // A sparse file may be larger than memory: no panic on a size from the medium.
        bytes.try_reserve(size_bytes)?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the content of a file as text.
    ///
    /// # Errors
    ///
    /// `InvalidData` if it is not UTF-8; else those of open(2) and read(2).
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
        String::from_utf8(self.read(path)?)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Makes `content` the content of a file, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// Those of open(2) and write(2).
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        self.create(path)?.write_all(content.as_ref())
    }

    /// Copies content and permission bits of a regular file to `to`, which is replaced. Returns the
    /// bytes copied.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `from` is not a regular file or is `to` itself; else those of open(2),
    /// read(2) and write(2).
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open(from)?;
        let metadata = source.metadata()?;
        if !metadata.is_file() {
            return Err(invalid_input("not a regular file", from));
        }
        if self
            .metadata(to)
            .is_ok_and(|target| target.attributes().number == metadata.attributes().number)
        {
            return Err(invalid_input("source and target are one file", to));
        }
        let target = self.create(to)?;
        let mut copied = 0;
        loop {
            let count = self
                .process
                .sendfile(target.fd(), source.fd(), None, COPY_BYTES)?;
            if count == 0 {
                break;
            }
            copied += count as u64;
        }
        target.set_mode(metadata.mode())?;
        Ok(copied)
    }

    /// Creates a directory with mode 0o777, less the umask. Linux: mkdir(2).
    ///
    /// # Errors
    ///
    /// `AlreadyExists`; `NotFound` without a parent.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.process.mkdir(path, 0o777)?)
    }

    /// Creates a directory and those above it that do not exist.
    ///
    /// # Errors
    ///
    /// `NotADirectory` if a component is something else.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        for above in path.ancestors() {
            if above.as_os_str().is_empty() || self.is_directory(above)? {
                break;
            }
            missing.push(above);
        }
        for directory in missing.into_iter().rev() {
            match self.process.mkdir(directory, 0o777) {
                // Another thread was faster.
                Err(error) if error.errno() == Errno::EXIST && self.is_directory(directory)? => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Removes a file. Linux: unlink(2).
    ///
    /// # Errors
    ///
    /// `NotFound`; `IsADirectory`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.process.unlink(path)?)
    }

    /// Removes an empty directory. Linux: rmdir(2).
    ///
    /// # Errors
    ///
    /// `NotFound`; `DirectoryNotEmpty`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.process.rmdir(path)?)
    }

    /// Removes a directory and everything in it. Symbolic links are removed, not followed.
    ///
    /// # Errors
    ///
    /// `NotADirectory` for anything else, a symbolic link included. What was removed before another
    /// error stays removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        remove_tree(&self.process, path.as_ref())
    }

    /// Renames a file or directory, replacing what has the new name. Linux: rename(2).
    ///
    /// # Errors
    ///
    /// Those of rename(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.process.rename(from, to)?)
    }

    /// Gives a file another name. Linux: link(2).
    ///
    /// # Errors
    ///
    /// Those of link(2).
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.process.link(from, to)?)
    }

    /// Creates a symbolic link at `path` that leads to `target`. Linux: symlink(2).
    ///
    /// # Errors
    ///
    /// Those of symlink(2).
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.process.symlink(target, path)?)
    }

    /// Returns the target of a symbolic link. Linux: readlink(2).
    ///
    /// # Errors
    ///
    /// `InvalidInput` for anything but a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        Ok(OsString::from_vec(self.process.readlink(path)?).into())
    }

    /// Returns the absolute path without symbolic links, `.` and `..`. Linux: realpath(3).
    ///
    /// # Errors
    ///
    /// Those of a path walk: `NotFound`, `NotADirectory`, ELOOP.
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let file = File::open(&self.process, path.as_ref(), OpenFlags::PATH, 0)?;
        Ok(OsString::from_vec(self.process.path_of(file.fd())?).into())
    }

    /// Returns whether `path` leads to a file of any type.
    ///
    /// # Errors
    ///
    /// Those of stat(2), but for the two that mean "no": ENOENT and ENOTDIR.
    pub fn exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.process.stat(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the attributes of what `path` leads to. Linux: stat(2).
    ///
    /// # Errors
    ///
    /// Those of stat(2).
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        Ok(Metadata::new(self.process.stat(path)?))
    }

    /// As [`metadata`](Self::metadata), for a symbolic link itself. Linux: lstat(2).
    ///
    /// # Errors
    ///
    /// Those of lstat(2).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        Ok(Metadata::new(self.process.lstat(path)?))
    }

    /// Sets the permission bits (12 bits). Linux: chmod(2).
    ///
    /// # Errors
    ///
    /// Those of chmod(2).
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u16) -> io::Result<()> {
        Ok(self.process.chmod(path, mode)?)
    }

    /// Sets the permission bits. Linux: chmod(2).
    ///
    /// # Errors
    ///
    /// Those of chmod(2).
    pub fn set_permissions(
        &self,
        path: impl AsRef<Path>,
        permissions: Permissions,
    ) -> io::Result<()> {
        self.set_mode(path, mode(&permissions))
    }

    /// Sets the times of the last access and of the last change of the content; `None` leaves one
    /// as it is. Linux: utimensat(2).
    ///
    /// # Errors
    ///
    /// Those of utimensat(2).
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> io::Result<()> {
        let set = |time| SetTime::To(timespec(time));
        let (accessed, modified) = (accessed.map(set), modified.map(set));
        let flags = AtFlags::empty();
        Ok(self
            .process
            .utimensat(AT_FDCWD, path, accessed, modified, flags)?)
    }

    /// Sets owner and group; `None` leaves one as it is. Linux: chown(2).
    ///
    /// # Errors
    ///
    /// Those of chown(2).
    pub fn chown(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        Ok(self.process.chown(path, uid, gid)?)
    }

    /// As [`chown`](Self::chown), for a symbolic link itself. Linux: lchown(2).
    ///
    /// # Errors
    ///
    /// Those of lchown(2).
    pub fn lchown(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(self.process.fchownat(AT_FDCWD, path, uid, gid, flags)?)
    }

    /// Returns the value of an extended attribute, `user.NAME` for example; `None` if it is not
    /// set. Linux: getxattr(2).
    ///
    /// # Errors
    ///
    /// Those of getxattr(2), but for ENODATA.
    pub fn get_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> io::Result<Option<Vec<u8>>> {
        match self.process.getxattr(path, name.as_ref().as_bytes()) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.errno() == Errno::NODATA => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets an extended attribute, new or not. Linux: setxattr(2).
    ///
    /// # Errors
    ///
    /// Those of setxattr(2).
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        let flags = XattrFlags::empty();
        Ok(self.process.setxattr(path, name, value.as_ref(), flags)?)
    }

    /// Removes an extended attribute. Linux: removexattr(2).
    ///
    /// # Errors
    ///
    /// Those of removexattr(2).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(self.process.removexattr(path, name.as_ref().as_bytes())?)
    }

    /// Returns the names of all extended attributes. Linux: listxattr(2).
    ///
    /// # Errors
    ///
    /// Those of listxattr(2).
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let names = self.process.listxattr(path)?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Returns the entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// `NotFound`; `NotADirectory`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        ReadDir::open(&self.process, path.as_ref())
    }

    /// Returns everything below a directory, each directory before what is in it.
    ///
    /// # Errors
    ///
    /// `NotFound`; `NotADirectory`.
    pub fn walk(&self, path: impl AsRef<Path>) -> io::Result<Walk> {
        Walk::open(&self.process, path.as_ref())
    }

    /// Returns sizes and free space of the file system that `path` is on. Linux: statfs(2).
    ///
    /// # Errors
    ///
    /// Those of a path walk.
    pub fn statistics(&self, path: impl AsRef<Path>) -> io::Result<FileSystemStatistics> {
        Ok(self.process.statfs(path)?)
    }

    /// Makes everything written so far durable. Linux: sync(2).
    ///
    /// # Errors
    ///
    /// The first error of a file system, after all were tried.
    pub fn sync(&self) -> io::Result<()> {
        Ok(self.process.sync()?)
    }

    /// Syncs, unmounts and marks the medium clean.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` while a [`File`], a listing or another handle is in use: everything is synced
    /// then, and unmounted when the last of them is dropped. Else what could not be written.
    pub fn close(self) -> io::Result<()> {
        let Self { process, kernel } = self;
        drop(process);
        // An unmount syncs what it unmounts.
        let Err(error) = kernel.unmount("/") else {
            return Ok(());
        };
        let synced = kernel.vfs().sync();
        // The ramfs that every kernel begins with stays.
        let is_root = error.errno() == Errno::BUSY && Arc::strong_count(&kernel) == 1;
        Ok(synced.and(if is_root { Ok(()) } else { Err(error) })?)
    }

    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match self.process.stat(path) {
            Ok(attributes) if attributes.file_type == FileType::Directory => Ok(true),
            Ok(_) => Err(Error::from(Errno::NOTDIR)
                .at(path.display().to_string())
                .into()),
            Err(error) if error.errno() == Errno::NOENT => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn invalid_input(reason: &'static str, path: &Path) -> io::Error {
    Error::new(Errno::INVAL, reason)
        .at(path.display().to_string())
        .into()
}
