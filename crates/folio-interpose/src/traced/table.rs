//! The table of calls by the number of the system call, and the filter that stops at them.

use crate::calls::{Call, Detail, Names, Op, Returns};
use libc::{sock_filter, sock_fprog};

/// Futex operations that wait, without their flags: FUTEX_WAIT and FUTEX_WAIT_BITSET.
const FUTEX_WAITS: [u32; 2] = [0, 9];
/// The bits of a futex operation without its flags.
const FUTEX_OPERATION: u32 = 127;
/// Calls that wait for something outside of files: for other threads, in a process that has them.
const WAITS: Call = Call {
    op: Op::WaitThread,
    names: Names::Nothing,
    returns: Returns::Int,
    detail: Detail::None,
};
/// Reads of a directory: libc has no wrapper in the table.
const LISTS: Call = Call {
    op: Op::List,
    names: Names::Descriptor(0),
    returns: Returns::Int,
    detail: Detail::None,
};
/// Opens with a structure of flags.
const OPENS: Call = Call {
    op: Op::Open,
    names: Names::At(0, 1),
    returns: Returns::Int,
    detail: Detail::None,
};

/// The architecture in the kernel's records: AUDIT_ARCH_X86_64.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
/// None is supported.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ARCHITECTURE: u32 = 0;

/// System calls with the arguments of libc's function of that name.
#[cfg(target_arch = "x86_64")]
fn numbers() -> Vec<(i64, &'static str)> {
    macro_rules! same {
        ($($number:ident)*) => { vec![$((libc::$number, &stringify!($number)["SYS_".len()..])),*] };
    }
    let mut numbers = same! {
        SYS_open SYS_openat SYS_creat SYS_close SYS_read SYS_pread64 SYS_readv SYS_preadv
        SYS_preadv2 SYS_write SYS_pwrite64 SYS_writev SYS_pwritev SYS_pwritev2 SYS_sendfile
        SYS_copy_file_range SYS_splice SYS_stat SYS_lstat SYS_statx SYS_access SYS_faccessat
        SYS_readlink SYS_readlinkat SYS_getxattr SYS_lgetxattr SYS_listxattr SYS_llistxattr
        SYS_statfs SYS_fstat SYS_fsync SYS_syncfs SYS_fdatasync SYS_sync_file_range SYS_rename
        SYS_renameat SYS_renameat2 SYS_unlink SYS_unlinkat SYS_rmdir SYS_link SYS_linkat
        SYS_symlink SYS_symlinkat SYS_mkdir SYS_mkdirat SYS_chmod SYS_fchmod SYS_fchmodat
        SYS_chown SYS_lchown SYS_fchown SYS_fchownat SYS_utimensat SYS_mmap SYS_msync SYS_truncate
        SYS_ftruncate SYS_fallocate SYS_flock SYS_fcntl SYS_dup SYS_dup2 SYS_dup3 SYS_chdir
        SYS_fchdir SYS_wait4 SYS_waitid
    };
    numbers.extend([
        (libc::SYS_newfstatat, "fstatat"),
        (libc::SYS_faccessat2, "faccessat"),
    ]);
    numbers
}

/// System calls that are not in libc's table under their name.
#[cfg(target_arch = "x86_64")]
const MORE: [(i64, Call); 9] = [
    (libc::SYS_getdents64, LISTS),
    (libc::SYS_openat2, OPENS),
    (libc::SYS_poll, WAITS),
    (libc::SYS_ppoll, WAITS),
    (libc::SYS_select, WAITS),
    (libc::SYS_pselect6, WAITS),
    (libc::SYS_epoll_wait, WAITS),
    (libc::SYS_epoll_pwait, WAITS),
    (libc::SYS_futex, WAITS),
];

#[cfg(not(target_arch = "x86_64"))]
fn numbers() -> Vec<(i64, &'static str)> {
    Vec::new()
}

#[cfg(not(target_arch = "x86_64"))]
const MORE: [(i64, Call); 3] = [(-1, LISTS), (-1, OPENS), (-1, WAITS)];

/// The calls that are recorded.
#[derive(Debug)]
pub(super) struct Table {
    /// By number.
    calls: Vec<Option<Call>>,
}

impl Table {
    pub(super) fn new() -> Self {
        let functions = crate::table();
        let named = numbers().into_iter().filter_map(|(number, name)| {
            let found = functions.iter().find(|(function, _)| *function == name);
            found.map(|(_, call)| (number, *call))
        });
        let mut calls = Vec::new();
        for (number, call) in named.chain(MORE) {
            let Ok(number) = usize::try_from(number) else {
                continue;
            };
            calls.resize(calls.len().max(number + 1), None);
            calls[number] = Some(call);
        }
        Self { calls }
    }

    /// Returns the call of this number, if it is recorded with these arguments.
    pub(super) fn get(&self, number: u64, arguments: &[usize; 6]) -> Option<Call> {
        let call = (*self.calls.get(usize::try_from(number).ok()?)?)?;
        let is_futex = number == libc::SYS_futex as u64;
        let operation = arguments[1] as u32 & FUTEX_OPERATION;
        let is_wait = !is_futex || FUTEX_WAITS.contains(&operation);
        (is_wait && call.is_relevant(arguments)).then_some(call)
    }

    /// Returns the filter that reports these calls to the tracer, and lets all further ones pass.
    pub(super) fn filter(&self) -> Filter {
        let recorded = self.calls.iter().enumerate();
        let numbers: Vec<_> = recorded
            .filter(|(number, call)| call.is_some() && *number != libc::SYS_futex as usize)
            .map(|(number, _)| number as u32)
            .collect();
        // Where the jumps lead: see below.
        let (pass, report) = (4 + numbers.len(), 10 + numbers.len());
        let mut program = Vec::new();
        let to = |place: usize, at: usize| (place - at - 1) as u8;
        program.push(step(LOAD, 0, 0, AT_ARCHITECTURE));
        program.push(step(IF_EQUAL, 0, to(pass, 1), ARCHITECTURE));
        program.push(step(LOAD, 0, 0, AT_NUMBER));
        for number in numbers {
            program.push(step(IF_EQUAL, to(report, program.len()), 0, number));
        }
        program.push(step(IF_EQUAL, 1, 0, libc::SYS_futex as u32));
        program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
        program.push(step(LOAD, 0, 0, AT_SECOND_ARGUMENT));
        program.push(step(AND, 0, 0, FUTEX_OPERATION));
        for operation in FUTEX_WAITS {
            program.push(step(IF_EQUAL, to(report, program.len()), 0, operation));
        }
        program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
        program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_TRACE));
        Filter { program }
    }
}

/// Places in struct seccomp_data of a little-endian machine, in bytes.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
const AT_SECOND_ARGUMENT: u32 = 24;
/// BPF_LD | BPF_W | BPF_ABS.
const LOAD: u16 = 0x20;
/// BPF_ALU | BPF_AND | BPF_K.
const AND: u16 = 0x54;
/// BPF_JMP | BPF_JEQ | BPF_K.
const IF_EQUAL: u16 = 0x15;
/// BPF_RET | BPF_K.
const RETURN: u16 = 0x06;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// A filter of seccomp(2).
pub(super) struct Filter {
    program: Vec<sock_filter>,
}

impl Filter {
    /// Returns the program for the kernel, which is valid as long as `self`.
    pub(super) fn program(&mut self) -> sock_fprog {
        sock_fprog {
            len: self.program.len() as u16,
            filter: self.program.as_mut_ptr(),
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn each_system_call_has_a_function() {
        let functions = crate::table();
        for (_, name) in numbers() {
            assert!(functions.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn wakes_of_a_futex_are_not_recorded() {
        let table = Table::new();
        let of = |operation| {
            let arguments = [0, operation, 0, 0, 0, 0];
            table.get(libc::SYS_futex as u64, &arguments).is_some()
        };
        // FUTEX_WAIT | FUTEX_PRIVATE_FLAG, FUTEX_WAKE | FUTEX_PRIVATE_FLAG
        assert!(of(128) && !of(129));
    }
}
