//! System calls of the host.

use core::arch::asm;

/// A failure: a positive error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i64);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident = $number:literal,)*) => {
        impl Errno {
            $(pub(crate) const $name: Self = Self($number);)*
        }
    };
}

errnos! {
    PERM = 1, NOENT = 2, INTR = 4, TOOBIG = 7, NOEXEC = 8, BADF = 9, ACCES = 13,
    FAULT = 14, XDEV = 18, NODEV = 19, INVAL = 22, MFILE = 24, PIPE = 32, RANGE = 34,
    NAMETOOLONG = 36, NOSYS = 38, LOOP = 40, OPNOTSUPP = 95,
}

macro_rules! numbers {
    ($($name:ident = $number:literal,)*) => {
        $(pub(crate) const $name: usize = $number;)*
    };
}

// x86-64.
numbers! {
    READ = 0, WRITE = 1, OPEN = 2, CLOSE = 3, STAT = 4, FSTAT = 5, LSTAT = 6, LSEEK = 8, MMAP = 9,
    MPROTECT = 10, MUNMAP = 11, RT_SIGACTION = 13, RT_SIGPROCMASK = 14,
    IOCTL = 16, PREAD64 = 17, PWRITE64 = 18, READV = 19, WRITEV = 20, ACCESS = 21, DUP = 32,
    DUP2 = 33, GETPID = 39, SENDFILE = 40, CONNECT = 42, SENDTO = 44, BIND = 49, SOCKETPAIR = 53, CLONE = 56,
    FORK = 57, VFORK = 58, EXECVE = 59, EXIT = 60, FCNTL = 72, FLOCK = 73, FSYNC = 74,
    FDATASYNC = 75, TRUNCATE = 76, FTRUNCATE = 77, GETDENTS = 78, GETCWD = 79, CHDIR = 80,
    FCHDIR = 81, RENAME = 82, MKDIR = 83, RMDIR = 84, CREAT = 85, LINK = 86, UNLINK = 87,
    SYMLINK = 88, READLINK = 89, CHMOD = 90, FCHMOD = 91, CHOWN = 92, FCHOWN = 93, LCHOWN = 94,
    UMASK = 95, SETUID = 105, SETGID = 106,
    SETREUID = 113, SETREGID = 114, GETGROUPS = 115, SETGROUPS = 116, SETRESUID = 117,
    SETRESGID = 119, SETFSUID = 122, SETFSGID = 123, CAPGET = 125, CAPSET = 126,
    RT_SIGPENDING = 127, RT_SIGSUSPEND = 130, UTIME = 132, MKNOD = 133, STATFS = 137,
    FSTATFS = 138, PRCTL = 157, CHROOT = 161, SYNC = 162, GETTID = 186, READAHEAD = 187,
    SETXATTR = 188, LSETXATTR = 189, FSETXATTR = 190, GETXATTR = 191, LGETXATTR = 192,
    FGETXATTR = 193, LISTXATTR = 194, LLISTXATTR = 195, FLISTXATTR = 196, REMOVEXATTR = 197,
    LREMOVEXATTR = 198, FREMOVEXATTR = 199, FUTEX = 202, IO_SETUP = 206, GETDENTS64 = 217,
    FADVISE64 = 221, TGKILL = 234, SETRLIMIT = 160, PRLIMIT64 = 302, EXIT_GROUP = 231, UTIMES = 235, INOTIFY_ADD_WATCH = 254, OPENAT = 257,
    MKDIRAT = 258, MKNODAT = 259, FCHOWNAT = 260, FUTIMESAT = 261, NEWFSTATAT = 262,
    UNLINKAT = 263, RENAMEAT = 264, LINKAT = 265, SYMLINKAT = 266, READLINKAT = 267,
    FCHMODAT = 268, FACCESSAT = 269, PSELECT6 = 270, PPOLL = 271, SPLICE = 275, TEE = 276,
    SYNC_FILE_RANGE = 277, VMSPLICE = 278, UTIMENSAT = 280, EPOLL_PWAIT = 281,
    FALLOCATE = 285, DUP3 = 292, PREADV = 295, PWRITEV = 296, FANOTIFY_MARK = 301,
    NAME_TO_HANDLE_AT = 303, SYNCFS = 306, SENDMMSG = 307, SENDMSG = 46, PROCESS_VM_READV = 310,
    PROCESS_VM_WRITEV = 311, RENAMEAT2 = 316, SECCOMP = 317, MEMFD_CREATE = 319, EXECVEAT = 322,
    COPY_FILE_RANGE = 326, PREADV2 = 327, PWRITEV2 = 328, STATX = 332, IO_URING_SETUP = 425,
    CLONE3 = 435, CLOSE_RANGE = 436, OPENAT2 = 437, FACCESSAT2 = 439, EPOLL_PWAIT2 = 441,
    FCHMODAT2 = 452, SETXATTRAT = 463, GETXATTRAT = 464, LISTXATTRAT = 465, REMOVEXATTRAT = 466,
    FILE_GETATTR = 468, FILE_SETATTR = 469, POLL = 7, SCHED_YIELD = 24,
}

/// Makes a system call; a failure is a negative error number.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn raw(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller's promise; the kernel changes rax, rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn call(number: usize, a: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's promise.
    let result = unsafe { raw(number, a) };
    if result < 0 && result > -4096 {
        Err(Errno(-(result as i64)))
    } else {
        Ok(result as usize)
    }
}

/// Makes a system call that touches no memory of this runtime, or memory that its caller has
/// checked.
macro_rules! host {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let given: &[usize] = &[$($argument as usize),*];
        let mut all = [0_usize; 6];
        let mut at = 0;
        while at < given.len() {
            all[at] = given[at];
            at += 1;
        }
        // SAFETY: see the caller; pointers are those of living buffers.
        unsafe { $crate::system::call($number, all) }
    }};
}
pub(crate) use host;

pub(crate) fn exit_group(code: usize) -> ! {
    loop {
        let _ = host!(EXIT_GROUP, code);
    }
}

pub(crate) fn write_error(text: &[u8]) {
    let _ = host!(WRITE, 2, text.as_ptr(), text.len());
}

pub(crate) fn close(fd: i32) {
    let _ = host!(CLOSE, fd);
}

pub(crate) fn tid() -> u32 {
    host!(GETTID).unwrap_or(0) as u32
}

pub(crate) fn pid() -> u32 {
    host!(GETPID).unwrap_or(0) as u32
}

/// Maps memory that nothing else sees, or a file.
pub(crate) fn map(
    address: usize,
    len_bytes: usize,
    protection: usize,
    flags: usize,
    fd: i32,
    offset: u64,
) -> Result<usize> {
    host!(MMAP, address, len_bytes, protection, flags, fd as isize, offset)
}

pub(crate) const PROT_READ: usize = 1;
pub(crate) const PROT_WRITE: usize = 2;
pub(crate) const PROT_EXEC: usize = 4;
pub(crate) const MAP_SHARED: usize = 1;
pub(crate) const MAP_PRIVATE: usize = 2;
pub(crate) const MAP_FIXED: usize = 0x10;
pub(crate) const MAP_ANONYMOUS: usize = 0x20;
pub(crate) const MAP_NORESERVE: usize = 0x4000;
pub(crate) const MAP_FIXED_NOREPLACE: usize = 0x10_0000;

pub(crate) const AT_FDCWD: i32 = -100;
pub(crate) const AT_SYMLINK_NOFOLLOW: u64 = 0x100;
pub(crate) const AT_REMOVEDIR: u64 = 0x200;
pub(crate) const AT_EACCESS: u64 = 0x200;
pub(crate) const AT_SYMLINK_FOLLOW: u64 = 0x400;
pub(crate) const AT_EMPTY_PATH: u64 = 0x1000;

pub(crate) const O_CLOEXEC: u64 = 0o2_000_000;
pub(crate) const O_NOFOLLOW: u64 = 0o400_000;
pub(crate) const O_CREAT: u64 = 0o100;
