//! The table of libc's file calls: what each does, and where its arguments are.
//!
//! The preloaded library and the collector compile the same table.

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Op {
    /// A process or a program starts: the path is its working directory, the second its
    /// program, the detail its parent.
    Start,
    /// A process ends; the result is the time that its thread waited for a processor, in
    /// nanoseconds.
    End,
    /// A program is about to be replaced; the detail is the parent.
    Exec,
    /// A child process starts another program; the result is its id.
    Spawn,
    /// Waits for a child; the result is its id.
    WaitChild,
    /// Waits for a thread.
    WaitThread,
    /// Opens a file; the detail is its flags.
    Open,
    /// Opens a stream.
    OpenStream,
    /// Opens a directory.
    OpenDirectory,
    /// Closes a descriptor.
    Close,
    /// Closes a stream.
    CloseStream,
    /// Reads bytes; the detail is their number.
    Read,
    /// Reads by a vector.
    ReadVector,
    /// Writes bytes; the detail is their number.
    Write,
    /// Writes by a vector.
    WriteVector,
    /// Reads from a stream.
    ReadStream,
    /// Writes to a stream.
    WriteStream,
    /// Copies between descriptors.
    Copy,
    /// Attributes of a path.
    Stat,
    /// Attributes of a descriptor.
    StatDescriptor,
    /// Lists a directory.
    List,
    /// Waits for the data and attributes of a file on the disk.
    Sync,
    /// Waits for the data of a file on the disk.
    SyncData,
    /// Renames the path to the second path.
    Rename,
    /// Removes a name.
    Unlink,
    /// Makes a name or changes one.
    Name,
    /// Maps a file.
    Map,
    /// Writes a map to its file.
    SyncMap,
    /// Changes the size of a file.
    Truncate,
    /// Reserves space of a file.
    Allocate,
    /// Locks a file.
    Lock,
    /// Controls a descriptor; the detail is the command, the other descriptor the argument of
    /// F_SETFD.
    Control,
    /// Duplicates a descriptor; the result is the copy, the detail its flags.
    Duplicate,
    /// Changes the working directory.
    ChangeDirectory,
    /// Extended attributes of a path, or those of its file system: FUSE keeps neither in memory.
    OtherAttributes,
}

/// Reads and writes of at most this many bytes are tiny: a loop of them is a fault of its own.
const TINY_BYTES: u64 = 512;

impl Op {
    /// Returns whether a call that did not wait is recorded: it changes what descriptors and paths
    /// mean, or moves few bytes. `detail` is that of its record.
    #[must_use]
    pub const fn is_always_recorded(self, detail: u64) -> bool {
        match self {
            Self::Read => self.is_tiny(detail),
            Self::Stat
            | Self::StatDescriptor
            | Self::OtherAttributes
            | Self::List
            | Self::ReadVector
            | Self::ReadStream
            | Self::Sync
            | Self::SyncData
            | Self::SyncMap
            | Self::Map
            | Self::Unlink
            | Self::Name
            | Self::Allocate
            | Self::Lock => false,
            _ => true,
        }
    }

    /// Returns whether a call reads or writes a tiny buffer. `detail` is that of its record.
    #[must_use]
    pub const fn is_tiny(self, detail: u64) -> bool {
        matches!(self, Self::Read | Self::Write) && detail > 0 && detail <= TINY_BYTES
    }

    /// All, by number.
    pub const ALL: [Self; 35] = [
        Self::Start,
        Self::End,
        Self::Exec,
        Self::Spawn,
        Self::WaitChild,
        Self::WaitThread,
        Self::Open,
        Self::OpenStream,
        Self::OpenDirectory,
        Self::Close,
        Self::CloseStream,
        Self::Read,
        Self::ReadVector,
        Self::Write,
        Self::WriteVector,
        Self::ReadStream,
        Self::WriteStream,
        Self::Copy,
        Self::Stat,
        Self::StatDescriptor,
        Self::List,
        Self::Sync,
        Self::SyncData,
        Self::Rename,
        Self::Unlink,
        Self::Name,
        Self::Map,
        Self::SyncMap,
        Self::Truncate,
        Self::Allocate,
        Self::Lock,
        Self::Control,
        Self::Duplicate,
        Self::ChangeDirectory,
        Self::OtherAttributes,
    ];
}

/// Where a call names its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// By no argument.
    Nothing,
    /// By a path.
    Path(usize),
    /// By a directory's descriptor and a path.
    At(usize, usize),
    /// By two paths, old and new.
    Two(usize, usize),
    /// By two pairs of descriptor and path, of which these are the first places.
    TwoAt(usize, usize),
    /// By a descriptor.
    Descriptor(usize),
    /// By a stream.
    Stream(usize),
    /// By a stream of a directory.
    Directory(usize),
    /// By a path, which it opens as the stream that it returns.
    Opened(usize),
    /// By a path, which it opens as the directory that it returns.
    OpenedDirectory(usize),
}

/// What a call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// An `int`.
    Int,
    /// A `ssize_t`.
    Size,
    /// A pointer.
    Pointer,
    /// A number of items of the size in this argument.
    Items(usize),
}

/// What a call records as its detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// 0.
    None,
    /// This argument.
    Argument(usize),
    /// This number: the flags of a call that has no argument for them.
    Always(usize),
}

/// One call of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub op: Op,
    /// Where it names its file.
    pub names: Names,
    /// What it returns.
    pub returns: Returns,
    /// What is recorded as the detail: flags, a size or a command.
    pub detail: Detail,
}

impl Call {
    /// Returns whether a call with these arguments is of interest: not a map without a file, nor a
    /// command that changes neither a descriptor nor a lock.
    #[inline]
    pub(crate) fn is_relevant(&self, arguments: &[usize; 6]) -> bool {
        match self.op {
            Op::Map => arguments[4] as i32 >= 0,
            // F_DUPFD, F_DUPFD_CLOEXEC, F_SETFD, F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
            Op::Control => matches!(arguments[1] as i32, 0 | 1030 | 2 | 6 | 7 | 37 | 38),
            _ => true,
        }
    }

    /// Returns what is recorded as the detail.
    #[inline]
    pub(crate) fn detail_of(&self, arguments: &[usize; 6]) -> u64 {
        match self.detail {
            Detail::None => 0,
            Detail::Argument(place) => arguments[place] as u64,
            Detail::Always(number) => number as u64,
        }
    }
}

/// Passes the table to a macro: name, operation, file, result, detail.
macro_rules! file_calls {
    ($with:ident) => {
        $with! {
            open Open Path(0) Int Argument(1);
            open64 Open Path(0) Int Argument(1);
            openat Open At(0, 1) Int Argument(2);
            openat64 Open At(0, 1) Int Argument(2);
            __open_2 Open Path(0) Int Argument(1);
            __open64_2 Open Path(0) Int Argument(1);
            __openat_2 Open At(0, 1) Int Argument(2);
            __openat64_2 Open At(0, 1) Int Argument(2);
            creat Open Path(0) Int Always(0o1101);
            creat64 Open Path(0) Int Always(0o1101);
            mkstemp Open Path(0) Int Always(0o302);
            mkstemp64 Open Path(0) Int Always(0o302);
            mkostemp Open Path(0) Int Argument(1);
            mkostemp64 Open Path(0) Int Argument(1);
            mkstemps Open Path(0) Int Always(0o302);
            mkstemps64 Open Path(0) Int Always(0o302);
            mkostemps Open Path(0) Int Argument(2);
            mkostemps64 Open Path(0) Int Argument(2);
            fopen OpenStream Opened(0) Pointer None;
            fopen64 OpenStream Opened(0) Pointer None;
            opendir OpenDirectory OpenedDirectory(0) Pointer None;
            close Close Descriptor(0) Int None;
            fdopendir StatDescriptor Descriptor(0) Pointer None;
            closedir Close Directory(0) Int None;
            fclose CloseStream Stream(0) Int None;
            read Read Descriptor(0) Size Argument(2);
            __read_chk Read Descriptor(0) Size Argument(2);
            pread Read Descriptor(0) Size Argument(2);
            pread64 Read Descriptor(0) Size Argument(2);
            __pread_chk Read Descriptor(0) Size Argument(2);
            __pread64_chk Read Descriptor(0) Size Argument(2);
            readv ReadVector Descriptor(0) Size None;
            preadv ReadVector Descriptor(0) Size None;
            preadv64 ReadVector Descriptor(0) Size None;
            preadv2 ReadVector Descriptor(0) Size None;
            preadv64v2 ReadVector Descriptor(0) Size None;
            write Write Descriptor(0) Size Argument(2);
            pwrite Write Descriptor(0) Size Argument(2);
            pwrite64 Write Descriptor(0) Size Argument(2);
            writev WriteVector Descriptor(0) Size None;
            pwritev WriteVector Descriptor(0) Size None;
            pwritev64 WriteVector Descriptor(0) Size None;
            pwritev2 WriteVector Descriptor(0) Size None;
            pwritev64v2 WriteVector Descriptor(0) Size None;
            fread ReadStream Stream(3) Items(1) Argument(1);
            fread_unlocked ReadStream Stream(3) Items(1) Argument(1);
            fwrite WriteStream Stream(3) Items(1) Argument(1);
            fwrite_unlocked WriteStream Stream(3) Items(1) Argument(1);
            fflush WriteStream Stream(0) Int None;
            fflush_unlocked WriteStream Stream(0) Int None;
            sendfile Copy Descriptor(1) Size None;
            sendfile64 Copy Descriptor(1) Size None;
            copy_file_range Copy Descriptor(0) Size None;
            splice Copy Descriptor(0) Size None;
            stat Stat Path(0) Int None;
            stat64 Stat Path(0) Int None;
            lstat Stat Path(0) Int None;
            lstat64 Stat Path(0) Int None;
            fstatat Stat At(0, 1) Int None;
            fstatat64 Stat At(0, 1) Int None;
            statx Stat At(0, 1) Int None;
            __xstat Stat Path(1) Int None;
            __xstat64 Stat Path(1) Int None;
            __lxstat Stat Path(1) Int None;
            __lxstat64 Stat Path(1) Int None;
            __fxstatat Stat At(1, 2) Int None;
            __fxstatat64 Stat At(1, 2) Int None;
            access Stat Path(0) Int None;
            eaccess Stat Path(0) Int None;
            euidaccess Stat Path(0) Int None;
            faccessat Stat At(0, 1) Int None;
            readlink Stat Path(0) Size None;
            readlinkat Stat At(0, 1) Size None;
            getxattr OtherAttributes Path(0) Size None;
            lgetxattr OtherAttributes Path(0) Size None;
            listxattr OtherAttributes Path(0) Size None;
            llistxattr OtherAttributes Path(0) Size None;
            statfs OtherAttributes Path(0) Int None;
            statfs64 OtherAttributes Path(0) Int None;
            statvfs OtherAttributes Path(0) Int None;
            statvfs64 OtherAttributes Path(0) Int None;
            fstat StatDescriptor Descriptor(0) Int None;
            fstat64 StatDescriptor Descriptor(0) Int None;
            __fxstat StatDescriptor Descriptor(1) Int None;
            __fxstat64 StatDescriptor Descriptor(1) Int None;
            readdir List Directory(0) Pointer None;
            readdir64 List Directory(0) Pointer None;
            scandir List Path(0) Int None;
            scandir64 List Path(0) Int None;
            fsync Sync Descriptor(0) Int None;
            syncfs Sync Descriptor(0) Int None;
            fdatasync SyncData Descriptor(0) Int None;
            sync_file_range SyncData Descriptor(0) Int None;
            rename Rename Two(0, 1) Int None;
            renameat Rename TwoAt(0, 2) Int None;
            renameat2 Rename TwoAt(0, 2) Int None;
            unlink Unlink Path(0) Int None;
            unlinkat Unlink At(0, 1) Int None;
            rmdir Unlink Path(0) Int None;
            remove Unlink Path(0) Int None;
            mkdir Name Path(0) Int None;
            mkdirat Name At(0, 1) Int None;
            link Name Path(1) Int None;
            linkat Name At(2, 3) Int None;
            symlink Name Path(1) Int None;
            symlinkat Name At(1, 2) Int None;
            chmod Name Path(0) Int None;
            fchmod Name Descriptor(0) Int None;
            fchmodat Name At(0, 1) Int None;
            chown Name Path(0) Int None;
            lchown Name Path(0) Int None;
            fchown Name Descriptor(0) Int None;
            fchownat Name At(0, 1) Int None;
            utimensat Name At(0, 1) Int None;
            futimens Name Descriptor(0) Int None;
            mmap Map Descriptor(4) Pointer Argument(1);
            mmap64 Map Descriptor(4) Pointer Argument(1);
            msync SyncMap Nothing Int None;
            truncate Truncate Path(0) Int None;
            truncate64 Truncate Path(0) Int None;
            ftruncate Truncate Descriptor(0) Int Argument(1);
            ftruncate64 Truncate Descriptor(0) Int Argument(1);
            fallocate Allocate Descriptor(0) Int None;
            fallocate64 Allocate Descriptor(0) Int None;
            posix_fallocate Allocate Descriptor(0) Int None;
            posix_fallocate64 Allocate Descriptor(0) Int None;
            flock Lock Descriptor(0) Int None;
            lockf Lock Descriptor(0) Int None;
            lockf64 Lock Descriptor(0) Int None;
            fcntl Control Descriptor(0) Int Argument(1);
            fcntl64 Control Descriptor(0) Int Argument(1);
            dup Duplicate Descriptor(0) Int None;
            dup2 Duplicate Descriptor(0) Int None;
            dup3 Duplicate Descriptor(0) Int Argument(2);
            chdir ChangeDirectory Path(0) Int None;
            fchdir ChangeDirectory Descriptor(0) Int None;
            waitpid WaitChild Nothing Int None;
            wait WaitChild Nothing Int None;
            wait3 WaitChild Nothing Int None;
            wait4 WaitChild Nothing Int None;
            waitid WaitChild Nothing Int None;
            system WaitChild Nothing Int None;
            pclose WaitChild Nothing Int None;
            pthread_join WaitThread Nothing Int None;
        }
    };
}
pub(crate) use file_calls;
