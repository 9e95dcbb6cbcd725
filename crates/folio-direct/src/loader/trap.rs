//! The handler of SIGSYS: the filter of system calls raises it at each call that may concern the
//! image. Linux: seccomp(2) with SECCOMP_RET_TRAP.

use crate::attributes::{self, Times, Xattr};
use crate::calls::{Call, PATH_MAX};
use crate::client::Slot;
use crate::descriptors::{is_image, is_reserved};
use crate::files::{self, Place};
use crate::memory::{self, Buffer, Buffers};
use crate::names::{self, Open, PathArgument};
use crate::paths::LastLink::{Follow, Keep};
use crate::system::*;
use crate::patch::Site;
use crate::{entry, exec, host, locks, patch, processes, signals};
use core::arch::global_asm;

/// A trapped call.
#[derive(Clone, Copy)]
pub(crate) struct Trap {
    pub(crate) number: usize,
    pub(crate) arguments: [usize; 6],
    /// The signals that the program blocks.
    pub(crate) mask: u64,
}

/// What becomes of a trapped call.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// It returns this.
    Done(u64),
    Failed(Errno),
    /// The program makes it on the host, with its own signals.
    Pass,
    /// The program makes it on the host, with other arguments.
    PassWith(Passed),
    /// The program makes it on the host: a thread with this stack, from [`stack_of_thread`].
    PassThread(usize),
    /// The program makes it again, after the handlers of pending signals.
    Restart,
}

impl From<Result<u64>> for Answer {
    fn from(result: Result<u64>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) => Self::Failed(error),
        }
    }
}

impl From<Result<usize>> for Answer {
    fn from(result: Result<usize>) -> Self {
        result.map(|value| value as u64).into()
    }
}

/// The registers of the interrupted program: `struct ucontext` of x86-64.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: usize,
    stack: [u64; 3],
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags and more.
    pub(crate) registers: [usize; 23],
    floating_point: usize,
    reserved: [u64; 8],
    /// The blocked signals.
    pub(crate) mask: u64,
}

const R8: usize = 0;
const R9: usize = 1;
const R10: usize = 2;
const R11: usize = 3;
const RDI: usize = 8;
const RSI: usize = 9;
const RDX: usize = 12;
const RAX: usize = 13;
const RCX: usize = 14;
pub(crate) const RSP: usize = 15;
const RIP: usize = 16;
const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, R10, R8, R9];

/// The bytes below a stack pointer that a function of the System V ABI may use.
const RED_ZONE_BYTES: usize = 128;
/// What [`folio_pass`] takes from the stack: the red zone and the address to return to.
const PASS_BYTES: usize = RED_ZONE_BYTES + 8;

unsafe extern "C" {
    /// The handler: it goes to the slot's own stack, as goroutines have small ones.
    pub(crate) fn folio_trap();
    /// Returns from a handler. Linux: rt_sigreturn(2).
    pub(crate) fn folio_restore();
    /// Makes a call of the host, and returns to the address in rcx.
    fn folio_pass();
    /// The same with the [`PassMapping`] in r11, which it unmaps.
    fn folio_pass_with();
    /// Makes clone(2) of a thread, and returns to the address in rcx, and to that on the stack of
    /// the child, with that stack in its register as the program gave it.
    fn folio_pass_thread();
}

global_asm!(
    ".globl folio_trap",
    "folio_trap:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "and rsp, -16",
    "mov rbx, rdx",
    // Sent by kill(2), not by the filter.
    "cmp dword ptr [rsi + 8], 1",
    "jne 2f",
    "call {slot}",
    // The slot in rax, the end of its stack in rdx.
    "mov r12, rsp",
    "mov rsp, rdx",
    "mov rdi, rbx",
    "mov rsi, rax",
    "call {handle}",
    "mov rsp, r12",
    // Off the slot's stack, which another thread may have now.
    "mov dword ptr [rax], 0",
    "3:",
    "lea rsp, [rbp - 16]",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    "2:",
    "call {sent}",
    "jmp 3b",
    ".globl folio_restore",
    "folio_restore:",
    "mov eax, 15",
    "syscall",
    ".globl folio_pass",
    "folio_pass:",
    // Below the red zone. Until the handler returns, its frame is there.
    "lea rsp, [rsp - 128]",
    "push rcx",
    "syscall",
    "ret 128",
    ".globl folio_pass_with",
    "folio_pass_with:",
    "lea rsp, [rsp - 128]",
    "push rcx",
    "push r11",
    "syscall",
    "mov rcx, [rsp]",
    "mov [rsp], rax",
    "mov rdx, [rcx + {buffer_bytes} + 16]",
    "mov r10, [rcx + {buffer_bytes} + 24]",
    "mov r8, [rcx + {buffer_bytes} + 32]",
    "mov r9, [rcx + {buffer_bytes} + 40]",
    "push qword ptr [rcx + {buffer_bytes}]",
    "push qword ptr [rcx + {buffer_bytes} + 8]",
    "mov rdi, rcx",
    "mov esi, {mapping_bytes}",
    "mov eax, {munmap}",
    "syscall",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "ret 128",
    ".globl folio_pass_thread",
    "folio_pass_thread:",
    "lea rsp, [rsp - 128]",
    "push rcx",
    "syscall",
    "lea rsi, [rsi + 136]",
    "test rax, rax",
    "jnz 4f",
    "cmp byte ptr [rip + {is_possible}], 0",
    "je 4f",
    // The child has no slot yet.
    "xor ecx, ecx",
    "wrgsbase rcx",
    "4:",
    "ret 128",
    slot = sym slot_and_stack,
    handle = sym handle,
    sent = sym crate::signals::sent,
    buffer_bytes = const PATH_MAX,
    mapping_bytes = const size_of::<PassMapping>(),
    munmap = const MUNMAP,
    is_possible = sym entry::IS_POSSIBLE,
);

/// The buffer of a slot that other arguments of a call may point into.
pub(crate) const PASSED: usize = 13;

/// Other arguments of a call.
#[derive(Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) arguments: [usize; 6],
    /// The place of a pointer into the buffer in the buffer itself.
    pub(crate) pointer: Option<usize>,
}

impl From<[usize; 6]> for Passed {
    fn from(arguments: [usize; 6]) -> Self {
        Self { arguments, pointer: None }
    }
}

/// The buffer [`PASSED`] for a call that waits: it outlasts the slot, and a restart of the call.
#[repr(C)]
struct PassMapping {
    buffer: [u8; PATH_MAX],
    /// The registers of arguments as the program gave them.
    registers: [usize; 6],
}

#[repr(C)]
struct SlotAndStack {
    slot: Slot,
    stack_top: usize,
}

extern "C" fn slot_and_stack() -> SlotAndStack {
    let slot = Slot::take();
    SlotAndStack { slot, stack_top: slot.stack_top() }
}

/// Answers the trapped call of a context, whose thread has `slot`. Returns where to note that the
/// call is over.
extern "C" fn handle(context: &mut Context, slot: Slot) -> *mut u32 {
    let registers = &mut context.registers;
    let trap = Trap {
        number: registers[RAX],
        arguments: ARGUMENTS.map(|register| registers[register]),
        mask: context.mask,
    };
    // A call that the program makes again is counted then.
    let after = registers[RIP];
    let answer = answer(&trap, slot, context);
    let site = match answer {
        Answer::Done(_) | Answer::Failed(_) | Answer::Pass => {
            OF_FILES.contains(&trap.number).then_some(Site { after, number: trap.number })
        }
        _ => None,
    };
    match answer {
        Answer::Done(value) => context.registers[RAX] = value as usize,
        Answer::Failed(error) => context.registers[RAX] = -error.0 as usize,
        Answer::Pass => pass(context, folio_pass),
        Answer::PassThread(stack) => {
            context.registers[RSI] = stack;
            pass(context, folio_pass_thread);
        }
        Answer::Restart => {
            // Back to the instruction; the number is still in its register.
            const SYSCALL_BYTES: usize = 2;
            context.registers[RIP] -= SYSCALL_BYTES;
        }
        Answer::PassWith(passed) => pass_with(context, slot.buffer(PASSED), passed),
    }
    if let Some(site) = site {
        patch::count(slot, site);
    }
    entry::lend(slot);
    slot.header().is_busy.as_ptr()
}

/// Lets the program make its call itself, from [`folio_pass`], whose calls are not trapped: there
/// signals interrupt it, and it is restarted, as without this runtime. The stub has the address of
/// the program in a register that system calls change.
fn pass(context: &mut Context, stub: unsafe extern "C" fn()) {
    let registers = &mut context.registers;
    registers[RCX] = registers[RIP];
    registers[RIP] = stub as *const () as usize;
}

/// Lets the program make its call with other arguments. What they point to is not on its own stack,
/// which may be small.
fn pass_with(context: &mut Context, buffer: &[u8; PATH_MAX], passed: Passed) {
    let registers = &mut context.registers;
    let protection = PROT_READ | PROT_WRITE;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let address = match map(0, size_of::<PassMapping>(), protection, flags, -1, 0) {
        Ok(address) => address,
        Err(error) => {
            registers[RAX] = -error.0 as usize;
            return;
        }
    };
    let start = buffer.as_ptr() as usize;
    let moved = |word: usize| match word.checked_sub(start) {
        Some(place) if place < PATH_MAX => address + place,
        _ => word,
    };
    let given = ARGUMENTS.map(|register| registers[register]);
    let mut mapping = PassMapping { buffer: *buffer, registers: given };
    if let Some(place) = passed.pointer
        && let Some(word) = mapping.buffer[place..].first_chunk_mut()
    {
        *word = moved(usize::from_ne_bytes(*word)).to_ne_bytes();
    }
    // SAFETY: mapped above with this size, for nothing else.
    unsafe { (address as *mut PassMapping).write(mapping) };
    for (register, argument) in ARGUMENTS.into_iter().zip(passed.arguments) {
        registers[register] = moved(argument);
    }
    registers[R11] = address;
    pass(context, folio_pass_with);
}

/// The stack pointer of a new thread that begins in [`folio_pass`], as its parent does.
pub(crate) fn stack_of_thread(context: &Context, stack: usize) -> Result<usize> {
    let top = stack - PASS_BYTES;
    memory::write(&context.registers[RIP], top)?;
    Ok(top)
}

fn answer(trap: &Trap, slot: Slot, context: &mut Context) -> Answer {
    of_files(trap, slot).unwrap_or_else(|| processes(trap, slot, context))
}

/// Answers a call of [`OF_FILES`]; `None` for another one.
pub(crate) fn of_files(trap: &Trap, slot: Slot) -> Option<Answer> {
    let a = trap.arguments;
    let at = |directory, address| PathArgument::at(directory, address, Follow);
    let keep_at = |directory, address| PathArgument::at(directory, address, Keep);
    let path = |last_link| PathArgument::new(0, last_link);
    let open = |flags: usize, mode: usize| Open { flags: flags as u64, mode: mode as u64, resolve: 0 };
    let simple = |path, call, arguments: &[u64]| names::simple(trap, slot, path, call, arguments);
    let word = |index: usize| a[index] as u64;
    Some(match trap.number {
        OPEN => names::open(trap, slot, path(Follow), open(a[1], a[2])),
        CREAT => names::open(trap, slot, path(Follow), open(0o1101, a[1])),
        OPENAT => names::open(trap, slot, at(0, 1), open(a[2], a[3])),
        OPENAT2 => names::openat2(trap, slot),
        STAT => attributes::stat(trap, slot, path(Follow), 1, 0),
        LSTAT => attributes::stat(trap, slot, path(Keep), 1, AT_SYMLINK_NOFOLLOW),
        // Without a path: fstat(2), since Linux 6.11.
        NEWFSTATAT if a[1] == 0 && is_image(a[0] as i32) => {
            attributes::fstat(slot, a[0] as i32, a[2]).into()
        }
        NEWFSTATAT => attributes::stat(trap, slot, at(0, 1), 2, word(3)),
        STATX => attributes::statx(trap, slot),
        ACCESS => simple(path(Follow), Call::Access, &[word(1), 0]),
        FACCESSAT => simple(at(0, 1), Call::Access, &[word(2), 0]),
        FACCESSAT2 => simple(attributes::with_flags(at(0, 1), word(3)), Call::Access, &[word(2), word(3)]),
        READLINK => names::read_link(trap, slot, path(Keep)),
        READLINKAT => names::read_link(trap, slot, keep_at(0, 1)),
        GETCWD => names::getcwd(trap, slot),
        CHDIR => names::chdir(trap, slot),
        FCHDIR => names::fchdir(trap, slot),
        MKDIR => simple(path(Keep), Call::MakeDirectory, &[word(1)]),
        MKDIRAT => simple(keep_at(0, 1), Call::MakeDirectory, &[word(2)]),
        MKNOD => simple(path(Keep), Call::MakeNode, &[word(1), word(2)]),
        MKNODAT => simple(keep_at(0, 1), Call::MakeNode, &[word(2), word(3)]),
        SYMLINK => names::symlink(trap, slot, 0, PathArgument::new(1, Keep)),
        SYMLINKAT => names::symlink(trap, slot, 0, keep_at(1, 2)),
        LINK => names::link(trap, slot, [path(Keep), PathArgument::new(1, Keep)], 0),
        LINKAT => names::link(trap, slot, [keep_at(0, 1), keep_at(2, 3)], word(4)),
        RENAME => names::rename(trap, slot, [path(Keep), PathArgument::new(1, Keep)], 0),
        RENAMEAT => names::rename(trap, slot, [keep_at(0, 1), keep_at(2, 3)], 0),
        RENAMEAT2 => names::rename(trap, slot, [keep_at(0, 1), keep_at(2, 3)], word(4)),
        UNLINK => names::unlink(trap, slot, path(Keep), 0),
        RMDIR => names::unlink(trap, slot, path(Keep), AT_REMOVEDIR),
        UNLINKAT => names::unlink(trap, slot, keep_at(0, 1), word(2)),
        TRUNCATE => simple(path(Follow), Call::Truncate, &[word(1)]),
        STATFS => names::on_path(trap, slot, path(Follow), |named| {
            slot.request(Call::StatFileSystem, &[named.directory as u64], named.end)?;
            attributes::put_output(slot, a[1])
        }),
        _ => return owner_and_mode(trap, slot),
    })
}

/// Calls that change owners, modes, times and extended attributes.
fn owner_and_mode(trap: &Trap, slot: Slot) -> Option<Answer> {
    let a = trap.arguments;
    let at = |directory, address| PathArgument::at(directory, address, Follow);
    let path = |last_link| PathArgument::new(0, last_link);
    let word = |index: usize| a[index] as u64;
    // With the flags of a call, and AT_EMPTY_PATH where a link of /proc/self/fd led to the file.
    let change = |path: PathArgument, call, flags: u64, values: &[u64]| {
        names::on_path(trap, slot, attributes::with_flags(path, flags), |named| {
            let mut all = [named.directory as u64; 6];
            all[1..=values.len()].copy_from_slice(values);
            all[values.len() + 1] = named.flags(flags);
            slot.request(call, &all[..values.len() + 2], named.end)
        })
    };
    let mode = |path, flags, mode| change(path, Call::ChangeMode, flags, &[mode]);
    let owner = |path, flags, owner: [u64; 2]| change(path, Call::ChangeOwner, flags, &owner);
    let times = |path, form, index, flags| {
        attributes::set_times(trap, slot, path, form, index, flags)
    };
    Some(match trap.number {
        CHMOD => mode(path(Follow), 0, word(1)),
        FCHMODAT => mode(at(0, 1), 0, word(2)),
        FCHMODAT2 => mode(at(0, 1), word(3), word(2)),
        CHOWN => owner(path(Follow), 0, [word(1), word(2)]),
        LCHOWN => owner(path(Keep), AT_SYMLINK_NOFOLLOW, [word(1), word(2)]),
        FCHOWNAT => owner(at(0, 1), word(4), [word(2), word(3)]),
        UTIME => times(path(Follow), Times::Seconds, 1, 0),
        UTIMES => times(path(Follow), Times::Microseconds, 1, 0),
        FUTIMESAT => times(at(0, 1), Times::Microseconds, 2, 0),
        UTIMENSAT => times(at(0, 1), Times::Nanoseconds, 2, word(3)),
        SETXATTR => attributes::xattr(trap, slot, Xattr::Set, Follow),
        LSETXATTR => attributes::xattr(trap, slot, Xattr::Set, Keep),
        GETXATTR => attributes::xattr(trap, slot, Xattr::Get, Follow),
        LGETXATTR => attributes::xattr(trap, slot, Xattr::Get, Keep),
        LISTXATTR => attributes::xattr(trap, slot, Xattr::List, Follow),
        LLISTXATTR => attributes::xattr(trap, slot, Xattr::List, Keep),
        REMOVEXATTR => attributes::xattr(trap, slot, Xattr::Remove, Follow),
        LREMOVEXATTR => attributes::xattr(trap, slot, Xattr::Remove, Keep),
        _ => return descriptors(trap, slot),
    })
}

/// Calls whose first argument is a descriptor, and which the host makes for its own.
fn descriptors(trap: &Trap, slot: Slot) -> Option<Answer> {
    let a = trap.arguments;
    let fd = a[0] as i32;
    Some(match trap.number {
        CLOSE => files::close(slot, fd),
        CLOSE_RANGE => files::close_range(slot, trap),
        DUP | DUP2 | DUP3 => files::duplicate(slot, trap),
        FCNTL if is_image(fd) && locks::is_lock_command(a[1] as i32) => {
            locks::lock(slot, trap)
        }
        FLOCK if is_image(fd) => locks::flock(slot, trap),
        FCNTL => files::fcntl(slot, trap),
        IOCTL => files::ioctl(slot, trap),
        MMAP => files::mmap(slot, trap),
        COPY_FILE_RANGE => files::copy_range(slot, trap),
        SENDFILE | SPLICE | TEE | VMSPLICE => host::splice(trap),
        SYNC => {
            let _ = slot.request(Call::SyncAll, &[], 0);
            Answer::Pass
        }
        READ | WRITE | READV | WRITEV | PREAD64 | PWRITE64 | PREADV | PWRITEV | PREADV2
        | PWRITEV2 | FSTAT | LSEEK | FLOCK | FSYNC | FDATASYNC | FTRUNCATE | GETDENTS64
        | FCHMOD | FCHOWN | FSTATFS | READAHEAD | FSETXATTR | FGETXATTR | FLISTXATTR
        | FREMOVEXATTR | FADVISE64 | SYNC_FILE_RANGE | FALLOCATE | SYNCFS => {
            if is_reserved(fd) {
                Answer::Failed(Errno::BADF)
            } else if is_image(fd) {
                of_image(trap, slot, fd).into()
            } else {
                Answer::Pass
            }
        }
        _ => return None,
    })
}

/// A call on a descriptor of the image.
fn of_image(trap: &Trap, slot: Slot, fd: i32) -> Result<u64> {
    let a = trap.arguments;
    let word = |index: usize| a[index] as u64;
    // Without what a caller leaves in the upper half.
    let id = fd as u64;
    let one = || Buffers::One(Buffer { address: a[1], len_bytes: a[2].min(isize::MAX as usize) });
    let many = || Buffers::many(a[1], a[2]);
    let offset = |flags| Place::Offset { bytes: word(3), flags };
    let request = |call, arguments: &[u64]| slot.request(call, arguments, 0);
    // pread64(2) and preadv(2) have no position of the file.
    if matches!(trap.number, PREAD64 | PWRITE64 | PREADV | PWRITEV) && (a[3] as i64) < 0 {
        return Err(Errno::INVAL);
    }
    match trap.number {
        READ => files::read(slot, fd, one(), Place::Position),
        WRITE => files::write(slot, fd, one(), Place::Position),
        READV => files::read(slot, fd, many()?, Place::Position),
        WRITEV => files::write(slot, fd, many()?, Place::Position),
        PREAD64 => files::read(slot, fd, one(), offset(0)),
        PWRITE64 => files::write(slot, fd, one(), offset(0)),
        PREADV => files::read(slot, fd, many()?, offset(0)),
        PWRITEV => files::write(slot, fd, many()?, offset(0)),
        PREADV2 => files::read(slot, fd, many()?, offset(word(5))),
        PWRITEV2 => files::write(slot, fd, many()?, offset(word(5))),
        FSTAT => attributes::fstat(slot, fd, a[1]),
        LSEEK => request(Call::Seek, &[id, word(1), word(2)]),
        FSYNC => request(Call::Sync, &[id]),
        FDATASYNC | SYNC_FILE_RANGE => request(Call::SyncData, &[id]),
        SYNCFS => request(Call::SyncFileSystem, &[id]),
        FTRUNCATE => request(Call::Ftruncate, &[id, word(1)]),
        FALLOCATE => request(Call::Allocate, &[id, word(1), word(2), word(3)]),
        GETDENTS64 => files::list(slot, fd, a[1], a[2] as u32 as usize),
        FADVISE64 => request(Call::Advise, &[id, word(1), word(2), word(3)]),
        READAHEAD => request(Call::Advise, &[id, word(1), word(2), 3]),
        FSTATFS => {
            request(Call::FstatFileSystem, &[id])?;
            attributes::put_output(slot, a[1])
        }
        FCHMOD => {
            let end = slot.put_text(0, b"");
            slot.request(Call::ChangeMode, &[id, word(1), AT_EMPTY_PATH], end)
        }
        FCHOWN => {
            let end = slot.put_text(0, b"");
            slot.request(Call::ChangeOwner, &[id, word(1), word(2), AT_EMPTY_PATH], end)
        }
        FSETXATTR => attributes::fxattr(trap, slot, Xattr::Set),
        FGETXATTR => attributes::fxattr(trap, slot, Xattr::Get),
        FLISTXATTR => attributes::fxattr(trap, slot, Xattr::List),
        FREMOVEXATTR => attributes::fxattr(trap, slot, Xattr::Remove),
        _ => Err(Errno::NOSYS),
    }
}

/// Calls that concern processes and signals, and calls of the host that are limited.
fn processes(trap: &Trap, slot: Slot, context: &mut Context) -> Answer {
    match trap.number {
        CLONE => processes::clone(trap, slot, context),
        FORK => processes::fork(slot, context, processes::Fork::plain()),
        VFORK => processes::fork(slot, context, processes::Fork::waiting()),
        EXECVE => exec::execve(trap, slot),
        EXECVEAT => exec::execveat(trap, slot),
        EXIT => processes::exit(trap, slot),
        EXIT_GROUP => {
            let _ = slot.request(Call::Exit, &[], 0);
            exit_group(trap.arguments[0])
        }
        SETUID | SETGID | SETREUID | SETREGID | SETGROUPS | SETRESUID | SETRESGID | SETFSUID
        | SETFSGID | CAPSET => processes::set_credentials(trap, slot),
        UMASK => processes::umask(trap, slot),
        RT_SIGACTION => signals::action(trap),
        RT_SIGPROCMASK => signals::mask(trap, &mut context.mask),
        PPOLL | PSELECT6 | EPOLL_PWAIT | EPOLL_PWAIT2 | RT_SIGSUSPEND => {
            signals::wait_with_mask(trap, slot)
        }
        _ => host::limited(trap, slot),
    }
}

/// Calls with paths and descriptors, which [`of_files`] answers.
pub(crate) const OF_FILES: &[usize] = &[
    OPEN, CREAT, OPENAT, OPENAT2, STAT, LSTAT, NEWFSTATAT, STATX, ACCESS, FACCESSAT, FACCESSAT2,
    READLINK, READLINKAT, GETCWD, CHDIR, FCHDIR, MKDIR, MKDIRAT, MKNOD, MKNODAT, SYMLINK,
    SYMLINKAT, LINK, LINKAT, RENAME, RENAMEAT, RENAMEAT2, UNLINK, RMDIR, UNLINKAT, TRUNCATE,
    STATFS, CHMOD, FCHMODAT, FCHMODAT2, CHOWN, LCHOWN, FCHOWNAT, UTIME, UTIMES, FUTIMESAT,
    UTIMENSAT, SETXATTR, LSETXATTR, GETXATTR, LGETXATTR, LISTXATTR, LLISTXATTR, REMOVEXATTR,
    LREMOVEXATTR, CLOSE, CLOSE_RANGE, DUP, DUP2, DUP3, FCNTL, IOCTL, MMAP, COPY_FILE_RANGE,
    SENDFILE, SPLICE, TEE, VMSPLICE, SYNC, READ, WRITE, READV, WRITEV, PREAD64, PWRITE64, PREADV,
    PWRITEV, PREADV2, PWRITEV2, FSTAT, LSEEK, FLOCK, FSYNC, FDATASYNC, FTRUNCATE, GETDENTS64,
    FCHMOD, FCHOWN, FSTATFS, READAHEAD, FSETXATTR, FGETXATTR, FLISTXATTR, FREMOVEXATTR, FADVISE64,
    SYNC_FILE_RANGE, FALLOCATE, SYNCFS,
];

/// The remaining calls that the filter traps.
pub(crate) const OF_PROCESSES: &[usize] = &[
    CLONE, FORK, VFORK, EXECVE, EXECVEAT, EXIT, EXIT_GROUP, SETUID, SETGID, SETREUID, SETREGID,
    SETGROUPS, SETRESUID, SETRESGID, SETFSUID, SETFSGID, CAPSET, UMASK, RT_SIGACTION,
    RT_SIGPROCMASK, PPOLL, PSELECT6, EPOLL_PWAIT, EPOLL_PWAIT2, RT_SIGSUSPEND,
    // host::limited
    GETDENTS, CLONE3, IO_URING_SETUP, IO_SETUP, CHROOT, CONNECT, BIND, INOTIFY_ADD_WATCH,
    FANOTIFY_MARK, NAME_TO_HANDLE_AT, SECCOMP, PRCTL, SETRLIMIT, PRLIMIT64, SENDTO, SENDMSG,
    SENDMMSG, SETXATTRAT, GETXATTRAT, LISTXATTRAT, REMOVEXATTRAT, FILE_GETATTR, FILE_SETATTR,
];
