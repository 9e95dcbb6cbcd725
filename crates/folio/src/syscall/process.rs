//! The calls of one program: file descriptors, working directory, credentials, umask.

use crate::base::{Result, Timespec};
use crate::vfs::{
    Attributes, FallocateMode, FileSystemStatistics, FileType, RenameFlags, SetTime, XattrFlags,
};
use bitflags::bitflags;
use std::path::Path;
use std::sync::Arc;

/// A file descriptor of one [`Process`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fd(pub u32);

/// `AT_FDCWD`: relative paths start at the working directory.
pub const AT_FDCWD: Fd = Fd(u32::MAX);

bitflags! {
    /// open(2) flags, with Linux's values on x86-64. Access mode: none of WRONLY, RDWR is read only.
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

    /// `AT_*` flags of fstatat, unlinkat, linkat, fchownat, utimensat.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AtFlags: u32 {
        /// Do not follow a symbolic link in the last place.
        const SYMLINK_NOFOLLOW = 0x100;
        /// unlinkat: remove a directory.
        const REMOVEDIR = 0x200;
        /// linkat: follow a symbolic link in the last place.
        const SYMLINK_FOLLOW = 0x400;
        /// Act on the descriptor itself when the path is empty.
        const EMPTY_PATH = 0x1000;
    }
}

/// Where lseek(2) counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The start (`SEEK_SET`).
    Set,
    /// The current offset (`SEEK_CUR`).
    Current,
    /// The end (`SEEK_END`).
    End,
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`).
    Hole,
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// The superuser, whom no permission bit stops.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new() }
    }
}

/// One name as getdents64(2) tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirent {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub number: u64,
    /// Type, where the directory records it.
    pub file_type: Option<FileType>,
}

/// A program's view of a [`crate::Kernel`]: what the kernel keeps per process. Calls from any thread.
///
/// Every call has the name, meaning and errno of the Linux system call (man section 2). `dir` arguments are a
/// directory's descriptor or [`AT_FDCWD`].
pub struct Process {
    kernel: Arc<crate::kernel::Kernel>,
}

#[allow(unused_variables, missing_docs)]
impl Process {
    pub(crate) fn new(kernel: Arc<crate::kernel::Kernel>, credentials: Credentials) -> Self {
        Self { kernel }
    }
    pub fn open(&self, path: impl AsRef<Path>, flags: OpenFlags, mode: u16) -> Result<Fd> {
        todo!()
    }
    pub fn openat(&self, dir: Fd, path: impl AsRef<Path>, flags: OpenFlags, mode: u16) -> Result<Fd> {
        todo!()
    }
    pub fn close(&self, fd: Fd) -> Result<()> {
        todo!()
    }
    pub fn dup(&self, fd: Fd) -> Result<Fd> {
        todo!()
    }
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize> {
        todo!()
    }
    pub fn pread(&self, fd: Fd, buf: &mut [u8], offset: u64) -> Result<usize> {
        todo!()
    }
    pub fn write(&self, fd: Fd, bytes: &[u8]) -> Result<usize> {
        todo!()
    }
    pub fn pwrite(&self, fd: Fd, bytes: &[u8], offset: u64) -> Result<usize> {
        todo!()
    }
    pub fn lseek(&self, fd: Fd, offset: i64, whence: Whence) -> Result<u64> {
        todo!()
    }
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        todo!()
    }
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        todo!()
    }
    pub fn fstat(&self, fd: Fd) -> Result<Attributes> {
        todo!()
    }
    pub fn fstatat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<Attributes> {
        todo!()
    }
    /// The next entries of an open directory (`.` and `..` included), about `count` of them; empty at the end.
    pub fn getdents(&self, fd: Fd, count: usize) -> Result<Vec<Dirent>> {
        todo!()
    }
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        todo!()
    }
    pub fn mkdirat(&self, dir: Fd, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        todo!()
    }
    /// `device` is major and minor, for device nodes.
    pub fn mknodat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        file_type: FileType,
        mode: u16,
        device: (u32, u32),
    ) -> Result<()> {
        todo!()
    }
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn unlinkat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<()> {
        todo!()
    }
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn renameat2(
        &self,
        from_dir: Fd,
        from: impl AsRef<Path>,
        to_dir: Fd,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        todo!()
    }
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn linkat(
        &self,
        from_dir: Fd,
        from: impl AsRef<Path>,
        to_dir: Fd,
        to: impl AsRef<Path>,
        flags: AtFlags,
    ) -> Result<()> {
        todo!()
    }
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn symlinkat(&self, target: impl AsRef<Path>, dir: Fd, path: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn readlink(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn readlinkat(&self, dir: Fd, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn truncate(&self, path: impl AsRef<Path>, size_bytes: u64) -> Result<()> {
        todo!()
    }
    pub fn ftruncate(&self, fd: Fd, size_bytes: u64) -> Result<()> {
        todo!()
    }
    pub fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        todo!()
    }
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        todo!()
    }
    pub fn fchmod(&self, fd: Fd, mode: u16) -> Result<()> {
        todo!()
    }
    pub fn fchmodat(&self, dir: Fd, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        todo!()
    }
    /// `None` leaves owner or group as it is.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        todo!()
    }
    pub fn fchown(&self, fd: Fd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        todo!()
    }
    pub fn fchownat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: AtFlags,
    ) -> Result<()> {
        todo!()
    }
    /// `None` leaves a time as it is (`UTIME_OMIT`).
    pub fn utimensat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
        flags: AtFlags,
    ) -> Result<()> {
        todo!()
    }
    pub fn futimens(&self, fd: Fd, accessed: Option<SetTime>, modified: Option<SetTime>) -> Result<()> {
        todo!()
    }
    pub fn fsync(&self, fd: Fd) -> Result<()> {
        todo!()
    }
    pub fn fdatasync(&self, fd: Fd) -> Result<()> {
        todo!()
    }
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    pub fn syncfs(&self, fd: Fd) -> Result<()> {
        todo!()
    }
    pub fn statfs(&self, path: impl AsRef<Path>) -> Result<FileSystemStatistics> {
        todo!()
    }
    pub fn sendfile(&self, out: Fd, input: Fd, offset: Option<&mut u64>, count: usize) -> Result<usize> {
        todo!()
    }
    pub fn copy_file_range(
        &self,
        input: Fd,
        input_offset: Option<&mut u64>,
        out: Fd,
        out_offset: Option<&mut u64>,
        count: usize,
    ) -> Result<usize> {
        todo!()
    }
    pub fn getxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn lgetxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn fgetxattr(&self, fd: Fd, name: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn setxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        todo!()
    }
    pub fn lsetxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        todo!()
    }
    pub fn fsetxattr(&self, fd: Fd, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        todo!()
    }
    pub fn llistxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    pub fn listxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    pub fn flistxattr(&self, fd: Fd) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    pub fn removexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn lremovexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn fremovexattr(&self, fd: Fd, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn access(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        todo!()
    }
    pub fn chdir(&self, path: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    pub fn getcwd(&self) -> Result<Vec<u8>> {
        todo!()
    }
    /// Sets the umask and returns the old one.
    pub fn umask(&self, mask: u16) -> u16 {
        todo!()
    }
    #[doc(hidden)]
    pub fn now(&self) -> Timespec {
        todo!()
    }
}
