//! The requests of a client: one for each system call that the image may answer.
//!
//! A request has a number, six arguments and input bytes; its reply a result and output bytes. The
//! result is that of the system call: a failure is a negative error number. Arguments are those of
//! the system call, without the pointers, in its order. A descriptor is the number that the client
//! has it under. A `directory` is one, or [`AT_FDCWD`].
//!
//! Paths end with a zero byte. A path is absolute in the view of the program, or relative to a
//! directory of the image. A path that leads out of the image has the result -[`ELSEWHERE`], and
//! the output has, for each path of the call in order, the absolute path at which the host
//! continues, or no bytes if that path stays in the image; each ends with a zero byte. An empty
//! path names the descriptor with AT_EMPTY_PATH only: fchown(2) and futimens(3) set that flag.

/// The directory of a relative path is the working directory.
pub(crate) const AT_FDCWD: i32 = -100;

/// A failure that no system call has: a path leads to the host.
pub(crate) const ELSEWHERE: i64 = 4000;

/// Longest path in bytes, with its zero byte. Linux: `PATH_MAX`.
pub(crate) const PATH_MAX: usize = 4096;

/// A failure that no system call has: a FIFO of the image is opened on the host, at the path in the
/// output.
pub(crate) const ON_HOST: i64 = 4001;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A request.
        #[repr(u32)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Call {
            $($(#[$doc])* $name,)*
        }

        impl Call {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// The request of a number.
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                Self::ALL.get(number as usize).copied()
            }
        }
    };
}

calls! {
    /// The state of this process for one that it is about to start: `what, fd`, where `what` is
    /// [`FOR_CHILD`] or [`FOR_PROGRAM`], and `fd` the program, -1 for one of the host. The result
    /// is a token, which the new process attaches with.
    Prepare,
    /// Drops the state of a token: the process was not started.
    Forget,
    /// exit_group(2): closes all descriptors and releases all locks, before the host sees the end.
    Exit,
    /// The first program is the file of `fd`: it cannot be written while it runs.
    Execute,
    /// The place of a socket of the image on the host: `directory, flags`. Input: the path. Output:
    /// the path on the host. ECONNREFUSED for another file.
    SocketPath,
    /// The identity of the next calls: `user`, `group` (those of the file system), and 1 if all
    /// capabilities. Input: the supplementary groups, four bytes each.
    SetCredentials,
    /// umask(2): `mask`. The result is the one before.
    Umask,

    /// openat2(2): `directory, flags, mode, resolve, fd`: the file is known as `fd` afterwards.
    /// Input: the path. The flags are Linux's for this architecture.
    Open,
    /// open(2) of the link of a descriptor in /proc/self/fd: `fd, flags, new`.
    Reopen,
    /// close(2): `fd`.
    Close,
    /// dup2(2): `fd, new`. A file that `new` names is closed.
    Duplicate,
    /// fcntl(2) with F_GETFL: `fd`.
    GetFlags,
    /// fcntl(2) with F_SETFL: `fd, flags`.
    SetFlags,

    /// read(2): `fd, count`. Output: the bytes.
    Read,
    /// pread(2): `fd, count, offset`. Output: the bytes.
    ReadAt,
    /// write(2): `fd`. Input: the bytes.
    Write,
    /// pwrite(2): `fd, offset, flags`: those of pwritev2(2). Input: the bytes.
    WriteAt,
    /// lseek(2): `fd, offset, whence`.
    Seek,
    /// copy_file_range(2): `input, input offset, output, output offset, count`; an offset of -1 is
    /// the file's position. The client advances offsets of its own.
    CopyRange,
    /// getdents64(2): `fd, count`. Output: entries.
    ListDirectory,
    /// ftruncate(2): `fd, size`.
    Ftruncate,
    /// truncate(2): `directory, size`. Input: the path, or none for the file of the descriptor.
    Truncate,
    /// fallocate(2): `fd, mode, offset, length`.
    Allocate,
    /// fsync(2): `fd`.
    Sync,
    /// fdatasync(2), sync_file_range(2): `fd`.
    SyncData,
    /// syncfs(2): `fd`.
    SyncFileSystem,
    /// sync(2) of the image.
    SyncAll,
    /// posix_fadvise(2): `fd, offset, length, advice`.
    Advise,

    /// flock(2): `fd, operation`. May be withdrawn.
    Flock,
    /// fcntl(2) with F_GETLK, F_SETLK, F_SETLKW and their forms for open file descriptions: `fd,
    /// command`. Input and output: a `struct flock`. May be withdrawn.
    Lock,

    /// statx(2): `directory, flags, mask`. Input: the path. Output: a `struct statx`.
    Stat,
    /// statfs(2): `directory`. Input: the path, or none for the file of the descriptor. Output: a
    /// `struct statfs`.
    StatFileSystem,
    /// fstatfs(2): `fd`. Output: a `struct statfs`.
    FstatFileSystem,
    /// faccessat2(2): `directory, mode, flags`. Input: the path.
    Access,
    /// readlinkat(2): `directory, size`. Input: the path. Output: the target.
    ReadLink,

    /// chdir(2): `directory`. Input: the path, or none for the directory itself.
    ChangeDirectory,
    /// fchdir(2): `fd`.
    ChangeDirectoryTo,
    /// getcwd(2). Output: the path and a zero byte.
    WorkingDirectory,
    /// The path of an open file: `fd`. Output: the path and a zero byte.
    PathOf,

    /// mkdirat(2): `directory, mode`. Input: the path.
    MakeDirectory,
    /// mknodat(2): `directory, mode, device`. Input: the path.
    MakeNode,
    /// symlinkat(2): `directory`. Input: the target, then the path; only the second may lead
    /// elsewhere.
    MakeLink,
    /// linkat(2): `old directory, new directory, flags`. Input: both paths.
    Link,
    /// renameat2(2): `old directory, new directory, flags`. Input: both paths.
    Rename,
    /// unlinkat(2): `directory, flags`. Input: the path.
    Unlink,

    /// fchmodat2(2): `directory, mode, flags`. Input: the path.
    ChangeMode,
    /// fchownat(2): `directory, user, group, flags`. Input: the path.
    ChangeOwner,
    /// utimensat(2): `directory, accessed seconds, nanoseconds, modified seconds, nanoseconds,
    /// flags`. Input: the path.
    SetTimes,

    /// getxattr(2): `fd, size, follow`. Input: the path and the name; without a path the file is
    /// `fd`. Output: the value.
    GetAttribute,
    /// setxattr(2): `fd, flags, follow`. Input: the path, the name, and the value.
    SetAttribute,
    /// listxattr(2): `fd, size, follow`. Input: the path. Output: the names.
    ListAttributes,
    /// removexattr(2): `fd, 0, follow`. Input: the path and the name.
    RemoveAttribute,

    /// ioctl(2): `fd, request`. Input and output: the value that the request has.
    Control,
}

/// The purpose of [`Call::Prepare`]: a child, with a copy of the descriptors and without locks.
pub(crate) const FOR_CHILD: u64 = 0;
/// The purpose of [`Call::Prepare`]: the same process with another program, and all its locks.
pub(crate) const FOR_PROGRAM: u64 = 1;
