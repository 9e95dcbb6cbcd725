//! System calls without the C library: they leave errno as it is.

use core::arch::asm;

#[cfg(target_arch = "x86_64")]
mod numbers {
    pub(crate) const READLINKAT: usize = 267;
    pub(crate) const READ: usize = 0;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const GETCWD: usize = 79;
    pub(crate) const GETRUSAGE: usize = 98;
    pub(crate) const GETTID: usize = 186;
    pub(crate) const GETPPID: usize = 110;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const PROCESS_VM_READV: usize = 310;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    pub(crate) const READLINKAT: usize = 78;
    pub(crate) const READ: usize = 63;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const FSTAT: usize = 80;
    pub(crate) const NEWFSTATAT: usize = 79;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const GETPID: usize = 172;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const GETCWD: usize = 17;
    pub(crate) const GETRUSAGE: usize = 165;
    pub(crate) const GETTID: usize = 178;
    pub(crate) const GETPPID: usize = 173;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const CLOCK_GETTIME: usize = 113;
    pub(crate) const PROCESS_VM_READV: usize = 270;
}
pub(crate) use numbers::*;

/// Makes a system call; a failure is a negative error number.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
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
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise; the kernel changes x0 only.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}

/// A number that a thread of this process has to itself.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the thread's control block is its own address, in all C libraries.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: programs may read this register.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

/// A system call without arguments.
fn number(call_number: usize) -> u32 {
    // SAFETY: getpid(2), gettid(2) and getppid(2) have no arguments.
    (unsafe { call(call_number, [0; 6]) }) as u32
}

pub(crate) fn pid() -> u32 {
    number(GETPID)
}

pub(crate) fn tid() -> u32 {
    number(GETTID)
}

pub(crate) fn parent() -> u32 {
    number(GETPPID)
}

/// Ends the process: this library has panicked.
pub(crate) fn abort() -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { call(EXIT_GROUP, [127, 0, 0, 0, 0, 0]) };
    }
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut [u64; 2]) -> i32;
    fn __errno_location() -> *mut i32;
}

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EFAULT: i32 = 14;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSYS: i32 = 38;

/// The C library's error number of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: the C library's place of this thread, which is always there.
    unsafe { __errno_location().read() }
}

pub(crate) fn set_errno(number: i32) {
    // SAFETY: as above.
    unsafe { __errno_location().write(number) };
}

/// Reads memory of this process, which need not be mapped; returns how many bytes were there.
pub(crate) fn read_memory(address: usize, into: &mut [u8]) -> usize {
    const PAGE_BYTES: usize = 4096;
    // A page that is not mapped ends the read: a part for each page.
    let first = (PAGE_BYTES - address % PAGE_BYTES).min(into.len());
    let parts = [address, first, address.wrapping_add(first), into.len() - first];
    let local = [(&raw mut *into).cast::<u8>() as usize, into.len()];
    let (local, parts) = ((&raw const local) as usize, (&raw const parts) as usize);
    // SAFETY: the buffer has this size; the kernel checks the addresses that it reads.
    let count = unsafe { call(PROCESS_VM_READV, [pid() as usize, local, 1, parts, 2, 0]) };
    usize::try_from(count).unwrap_or(0)
}

/// The device of a descriptor's file, as stat(2) numbers it; `None` if there is no such descriptor.
pub(crate) fn device_of(fd: i32) -> Option<u64> {
    // At least struct stat of the 64-bit architectures, whose first word is the device.
    let mut words = [0_u64; 18];
    // SAFETY: the buffer has this size.
    let result = unsafe { call(FSTAT, [fd as usize, (&raw mut words) as usize, 0, 0, 0, 0]) };
    (result == 0).then_some(words[0])
}

/// The device of the file at a path that the kernel may find unreadable, or an error number.
pub(crate) fn device_at(directory: i32, path: usize) -> Result<u64, i32> {
    // As for `device_of`.
    let mut words = [0_u64; 18];
    let at = (&raw mut words) as usize;
    // SAFETY: the buffer has this size; the kernel checks the address of the path.
    let result = unsafe { call(NEWFSTATAT, [directory as usize, path, at, 0, 0, 0]) };
    if result < 0 { Err(-result as i32) } else { Ok(words[0]) }
}

/// Copies a C string that need not be readable; returns its length, at most that of the buffer.
pub(crate) fn read_text(address: usize, into: &mut [u8]) -> usize {
    let count = read_memory(address, into);
    into[..count].iter().position(|byte| *byte == 0).unwrap_or(count)
}

/// CLOCK_MONOTONIC in nanoseconds; the C library reads it without a system call.
#[inline]
pub(crate) fn now() -> u64 {
    const MONOTONIC: i32 = 1;
    let mut time = [0; 2];
    // SAFETY: `time` is a timespec of the 64-bit architectures.
    unsafe { clock_gettime(MONOTONIC, &raw mut time) };
    time[0] * 1_000_000_000 + time[1]
}

/// What a thread has used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_ns: u64,
    pub(crate) switches: u64,
    pub(crate) read_blocks: u64,
}

/// The usage of this thread.
pub(crate) fn usage() -> Usage {
    const THREAD_CPUTIME: usize = 3;
    const RUSAGE_THREAD: usize = 1;
    let mut time = [0_u64; 2];
    // Sixteen words and two more: struct rusage of the 64-bit architectures.
    let mut words = [0_u64; 18];
    // SAFETY: `time` is a timespec.
    unsafe { call(CLOCK_GETTIME, [THREAD_CPUTIME, (&raw mut time) as usize, 0, 0, 0, 0]) };
    // SAFETY: `words` has the size of a struct rusage.
    unsafe { call(GETRUSAGE, [RUSAGE_THREAD, (&raw mut words) as usize, 0, 0, 0, 0]) };
    Usage {
        cpu_ns: time[0] * 1_000_000_000 + time[1],
        switches: words[16],
        read_blocks: words[11],
    }
}

/// Time that this thread was runnable and had no processor, in nanoseconds: the second word of
/// schedstat. 0 if the kernel does not count it.
pub(crate) fn run_delay_ns() -> i64 {
    const AT_FDCWD: usize = -100_isize as usize;
    const READ_CLOEXEC: usize = 0o2_000_000;
    let path = c"/proc/thread-self/schedstat".as_ptr() as usize;
    // SAFETY: the path ends with a zero byte.
    let fd = unsafe { call(OPENAT, [AT_FDCWD, path, READ_CLOEXEC, 0, 0, 0]) };
    if fd < 0 {
        return 0;
    }
    let mut text = [0_u8; 80];
    let (fd, at) = (fd as usize, (&raw mut text) as usize);
    // SAFETY: the buffer has this size.
    unsafe { call(READ, [fd, at, text.len(), 0, 0, 0]) };
    // SAFETY: this function opened it.
    unsafe { call(CLOSE, [fd, 0, 0, 0, 0, 0]) };
    let word = text.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let digits = word.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |sum: i64, digit| sum.wrapping_mul(10).wrapping_add(i64::from(digit - b'0')))
}

// The routine that core's own unwind tables name: it continues, as nothing here catches. Hidden, so
// that the program's own routine stays.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "mov eax, 8",
    "ret",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "mov w0, #8",
    "ret",
);
