//! System calls of a tracer: ptrace(2), the filter of a child, memory of a tracee.

#![expect(unsafe_code, reason = "system calls that no crate wraps")]

use super::table::Filter;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Requests of ptrace(2).
const CONTINUE: u32 = 7;
const TO_NEXT_CALL: u32 = 24;
const EVENT_MESSAGE: u32 = 0x4201;
const SEIZE: u32 = 0x4206;
const INTERRUPT: u32 = 0x4207;
const LISTEN: u32 = 0x4208;
const CALL_INFO: u32 = 0x420e;
/// Words of struct ptrace_syscall_info.
const INFO_WORDS: usize = 11;
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// How a stopped thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Resume {
    /// To the next event.
    Run = CONTINUE,
    /// To the next start or end of a system call.
    ToCall = TO_NEXT_CALL,
    /// It stays stopped, as by a signal, until it is continued.
    Stopped = LISTEN,
}

/// The system call of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallStop {
    /// Begins, with its number and arguments.
    Begins(u64, [usize; 6]),
    /// Ends, with its result.
    Ends(i64),
    /// Of another architecture, or none.
    Unknown,
}

/// Makes a request of ptrace(2).
///
/// # Safety
/// `data` is a number, or the address of memory that the request may write.
unsafe fn request(request: u32, tid: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::syscall(libc::SYS_ptrace, u64::from(request), tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Traces a thread, which goes on.
pub(super) fn seize(tid: u32, options: i32) -> io::Result<()> {
    // SAFETY: the options are a number.
    unsafe { request(SEIZE, tid, 0, options as usize) }
}

/// Stops a traced thread.
pub(super) fn interrupt(tid: u32) -> io::Result<()> {
    // SAFETY: the request has no data.
    unsafe { request(INTERRUPT, tid, 0, 0) }
}

/// Continues a stopped thread, with this signal unless it is 0. A thread that was killed is past
/// it.
pub(super) fn resume(tid: u32, how: Resume, signal: i32) {
    // SAFETY: the signal is a number.
    let resumed = unsafe { request(how as u32, tid, 0, signal as usize) };
    debug_assert!(
        resumed
            .as_ref()
            .map_or_else(|error| error.raw_os_error() == Some(libc::ESRCH), |()| true),
        "{resumed:?}"
    );
}

/// Returns the number that comes with an event.
pub(super) fn event_message(tid: u32) -> u64 {
    let mut message = 0_u64;
    // SAFETY: the request writes one word.
    let done = unsafe { request(EVENT_MESSAGE, tid, 0, (&raw mut message) as usize) };
    done.map_or(0, |()| message)
}

/// Returns the system call that a thread is stopped at. Linux 5.3.
pub(super) fn call_stop(tid: u32, architecture: u32) -> CallStop {
    let mut words = [0_u64; INFO_WORDS];
    let (size, at) = (size_of_val(&words), (&raw mut words) as usize);
    // SAFETY: the request writes at most this many bytes.
    let done = unsafe { request(CALL_INFO, tid, size, at) };
    if done.is_err() || (words[0] >> 32) as u32 != architecture {
        return CallStop::Unknown;
    }
    match words[0] as u8 {
        // An entry, or an event of seccomp: number and arguments.
        1 | 3 => {
            let argument = |index: usize| words[4 + index] as usize;
            CallStop::Begins(words[3], std::array::from_fn(argument))
        }
        2 => CallStop::Ends(words[3] as i64),
        _ => CallStop::Unknown,
    }
}

/// Installs a filter in this process. Without privileges, set-user-id programs have no effect from
/// now on, which the kernel demands.
///
/// Safe in the child of fork(2): neither allocates nor locks.
pub(super) fn install(filter: &mut Filter) -> io::Result<()> {
    let program = filter.program();
    let at = &raw const program;
    // SAFETY: the program is valid during the call.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, at) } == 0 {
        return Ok(());
    }
    // SAFETY: the arguments are numbers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: as above.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, at) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The words of a command, for exec(2).
pub(super) struct Program {
    /// Addresses of the words, and 0.
    pointers: Vec<usize>,
    _words: Vec<CString>,
}

impl Program {
    /// Returns the program and the arguments of a command, which has this process's environment.
    pub(super) fn of(command: &Command) -> io::Result<Self> {
        if command.get_envs().next().is_some() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words
            .map(|word| CString::new(word.as_bytes()))
            .collect::<Result<_, _>>()?;
        let pointers = words.iter().map(|word| word.as_ptr() as usize);
        Ok(Self {
            pointers: pointers.chain([0]).collect(),
            _words: words,
        })
    }

    /// Replaces the program of this process; returns why that failed.
    ///
    /// In the child of fork(2), as [`install`].
    pub(super) fn execute(&self) -> io::Error {
        let first = self.pointers[0] as *const libc::c_char;
        // SAFETY: the words end with zero bytes, and their list with null.
        unsafe { libc::execvp(first, self.pointers.as_ptr().cast()) };
        io::Error::last_os_error()
    }
}

/// Ends this process at once.
pub(super) fn leave() -> ! {
    // SAFETY: the argument is a number.
    unsafe { libc::_exit(127) }
}

/// Has the child of a command run `prepare` before its program.
pub(super) fn before_program(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: callers pass functions that make system calls only.
    unsafe { command.pre_exec(prepare) };
}

/// Reads memory of a thread, which need not be mapped; returns how many bytes were there.
pub(super) fn read_memory(tid: u32, address: usize, into: &mut [u8]) -> usize {
    // A page that is not mapped ends the read: a part for each page.
    let first = (PAGE_BYTES - address % PAGE_BYTES).min(into.len());
    let part = |address: usize, len: usize| libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    let remote = [
        part(address, first),
        part(address.wrapping_add(first), into.len() - first),
    ];
    let local = part(into.as_mut_ptr() as usize, into.len());
    let (local, parts) = (&raw const local, remote.as_ptr());
    // SAFETY: the buffer has this size; the kernel checks the addresses that it reads.
    let count = unsafe { libc::process_vm_readv(tid as libc::pid_t, local, 1, parts, 2, 0) };
    usize::try_from(count).unwrap_or(0)
}
