//! The way from execve(2) of the loader to the first instruction of the program.

use crate::calls::Call;
use crate::client::{self, Slot};
use crate::descriptors::{self, is_image};
use crate::elf::{File, Loaded, Program};
use crate::exec::{close, execute};
use crate::layout::{HANDOFF, Handoff, SLOTS_MAX, VERSION};
use crate::names::{open_text, path_reply};
use crate::paths::{LastLink, PathAt, put_number};
use crate::state::{
    BASE, DESCRIPTORS, HOST_PREFIXES, IS_IN_IMAGE, PID, PREFIX, PRIVATE, PRIVATE_BYTES, PROGRAM, Text, UMASK,
};
use crate::system::{
    self, AT_FDCWD, Errno, FCNTL, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, O_CLOEXEC, PRCTL, PROT_READ,
    PROT_WRITE, READLINK, Result, exit_group, host, map,
};
use crate::{entry, filter, processes, signals};
use core::arch::{asm, global_asm};
use core::sync::atomic::Ordering;

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    start = sym start,
);

/// Entries of the auxiliary vector. Linux: getauxval(3).
const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
const AT_BASE: usize = 7;
const AT_ENTRY: usize = 9;
const AT_HWCAP2: usize = 26;
const AT_EXECFN: usize = 31;

/// The vectors that the kernel puts on the stack.
#[derive(Clone, Copy)]
struct Vectors {
    auxiliary: *mut [usize; 2],
}

impl Vectors {
    /// Finds the auxiliary vector, after the arguments and the environment.
    fn new(stack: *mut usize) -> Self {
        // SAFETY: the kernel's layout of the stack: a count, that many arguments and a zero, the
        // environment and a zero, and then pairs up to one of zero.
        unsafe {
            let count = stack.read();
            let mut at = stack.add(count + 2);
            while at.read() != 0 {
                at = at.add(1);
            }
            Self { auxiliary: at.add(1).cast() }
        }
    }

    /// The arguments and the environment of the program.
    fn texts(stack: *mut usize) -> [usize; 2] {
        // SAFETY: as above.
        let count = unsafe { stack.read() };
        [stack.wrapping_add(1) as usize, stack.wrapping_add(count + 2) as usize]
    }

    fn entry(self, kind: usize) -> Option<*mut usize> {
        let mut at = self.auxiliary;
        // SAFETY: up to the pair of zero.
        unsafe {
            while (*at)[0] != 0 {
                if (*at)[0] == kind {
                    return Some((&raw mut (*at)[1]).cast());
                }
                at = at.add(1);
            }
        }
        None
    }

    fn get(self, kind: usize) -> Option<usize> {
        // SAFETY: an entry of the vector.
        self.entry(kind).map(|entry| unsafe { entry.read() })
    }

    fn set(self, kind: usize, value: usize) {
        if let Some(entry) = self.entry(kind) {
            // SAFETY: an entry of the vector.
            unsafe { entry.write(value) };
        }
    }
}

/// The path by which the program is called.
static CALLED_BY: Text = Text::new();

extern "C" fn start(stack: *mut usize) -> ! {
    PID.store(system::pid(), Ordering::Relaxed);
    let vectors = Vectors::new(stack);
    let Some(base) = vectors.get(AT_EXECFN).and_then(base_of) else {
        system::write_error(b"folio: the loader is started by folio only\n");
        exit_group(125);
    };
    BASE.store(base, Ordering::Relaxed);
    match prepare(vectors, Vectors::texts(stack)) {
        Ok(entry) => enter(stack, entry),
        Err(error) => fail(error),
    }
}

/// The number of the loader's descriptor, in /dev/fd/N.
fn base_of(name: usize) -> Option<i32> {
    let mut text = [0_u8; 32];
    let len = crate::memory::read_text(&mut text, name, Errno::NAMETOOLONG).ok()?;
    let digits = text[..len].strip_prefix(b"/dev/fd/")?;
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let value = |sum: i32, digit: &u8| sum.wrapping_mul(10) + i32::from(digit - b'0');
    is_number.then(|| digits.iter().fold(0, value))
}

/// Ends with the code of the shell for a program that cannot be started.
fn fail(error: Errno) -> ! {
    system::write_error(b"folio: ");
    system::write_error(PROGRAM.get());
    system::write_error(b": cannot be started: error ");
    let mut digits = [0; 12];
    let len = put_number(&mut digits, error.0 as u32);
    system::write_error(&digits[..len]);
    system::write_error(b"\n");
    exit_group(if error == Errno::NOENT { 127 } else { 126 })
}

/// Connects to the server, installs the traps, and maps the program; returns its entry.
fn prepare(vectors: Vectors, texts: [usize; 2]) -> Result<usize> {
    let Handed { token, has_filter, mask } = read_handoff()?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let private = map(0, SLOTS_MAX * PRIVATE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0)?;
    PRIVATE.store(private, Ordering::Relaxed);
    client::prepare_to_spin();
    entry::prepare(vectors.get(AT_HWCAP2).unwrap_or(0));
    let slot = match client::attach(token) {
        Err(Errno::PIPE) => client::server_has_ended(),
        attached => attached?,
    };
    // execve(2) changes capabilities: Linux, capabilities(7).
    processes::send_credentials(slot)?;
    close_dead_descriptors(slot);
    signals::install()?;
    if !has_filter {
        filter::install()?;
    }
    match load(slot, vectors, !has_filter) {
        // The first program may be a script: its interpreter takes over.
        Err(Errno::NOEXEC) if !has_filter => {
            let address = PROGRAM.get().as_ptr() as usize;
            let path = PathAt { directory: AT_FDCWD, address, last_link: LastLink::Follow };
            Err(execute(slot, path, texts, mask).err().unwrap_or(Errno::NOEXEC))
        }
        Ok(entry) => {
            signals::restore(mask)?;
            slot.release();
            Ok(entry)
        }
        failed => failed,
    }
}

/// What the previous program has left for this function.
struct Handed {
    token: u64,
    has_filter: bool,
    mask: u64,
}

/// Reads what the previous program has left.
fn read_handoff() -> Result<Handed> {
    const TEXTS_MAX: usize = 4 * 4096 + 4;
    #[repr(C)]
    struct Whole {
        handoff: Handoff,
        texts: [u8; TEXTS_MAX],
    }
    let mut whole = core::mem::MaybeUninit::<Whole>::zeroed();
    let fd = BASE.load(Ordering::Relaxed) + HANDOFF;
    const PREAD: usize = system::PREAD64;
    host!(PREAD, fd, whole.as_mut_ptr(), size_of::<Whole>(), 0)?;
    system::close(fd);
    // SAFETY: integers only, for which each pattern of bytes is a value.
    let whole = unsafe { whole.assume_init_ref() };
    let handoff = &whole.handoff;
    if handoff.version != VERSION {
        return Err(Errno::INVAL);
    }
    let texts = [&PREFIX, &HOST_PREFIXES, &PROGRAM, &CALLED_BY];
    for (text, bytes) in texts.into_iter().zip(whole.texts.split(|byte| *byte == 0)) {
        text.set(bytes);
    }
    UMASK.store(handoff.umask, Ordering::Relaxed);
    IS_IN_IMAGE.store(handoff.is_in_image != 0, Ordering::Relaxed);
    for (place, word) in DESCRIPTORS.iter().zip(handoff.descriptors) {
        place.store(word, Ordering::Relaxed);
    }
    Ok(Handed {
        token: handoff.token,
        has_filter: handoff.has_filter != 0,
        mask: handoff.mask,
    })
}

/// Closes descriptors whose placeholders execve(2) has closed.
fn close_dead_descriptors(slot: Slot) {
    const F_GETFD: usize = 1;
    for fd in descriptors::all() {
        if host!(FCNTL, fd, F_GETFD).is_err() {
            descriptors::remove(fd);
            let _ = slot.request(Call::Close, &[fd as u64], 0);
        }
    }
}

/// Maps the program and its interpreter, and corrects the auxiliary vector; returns the entry.
fn load(slot: Slot, vectors: Vectors, is_first: bool) -> Result<usize> {
    let fd = open_program(slot)?;
    let file = File { slot, fd };
    let program = Program::read(file)?;
    if is_first && is_image(fd) {
        let _ = slot.request(Call::Execute, &[fd as u64], 0);
    }
    let mut interpreter = [0; 4096];
    let len = program.interpreter(file, &mut interpreter)?;
    let loaded = program.load(file)?;
    set_names(slot, fd);
    close(slot, fd);
    vectors.set(AT_PHDR, loaded.headers);
    vectors.set(AT_PHNUM, loaded.header_count);
    vectors.set(AT_ENTRY, loaded.entry);
    vectors.set(AT_BASE, 0);
    vectors.set(AT_EXECFN, CALLED_BY.get().as_ptr() as usize);
    if len == 0 {
        return Ok(loaded.entry);
    }
    let loader = load_interpreter(slot, &interpreter[..len])?;
    vectors.set(AT_BASE, loader.base);
    Ok(loader.entry)
}

fn open_program(slot: Slot) -> Result<i32> {
    open_text(slot, PROGRAM.get(), O_CLOEXEC)
}

fn load_interpreter(slot: Slot, path: &[u8]) -> Result<Loaded> {
    let fd = open_text(slot, path, O_CLOEXEC)?;
    let file = File { slot, fd };
    let loaded = Program::read(file).and_then(|program| program.load(file));
    close(slot, fd);
    loaded
}

/// Names the process after its program, as execve(2) does, and remembers the program's path.
fn set_names(slot: Slot, fd: i32) {
    const PR_SET_NAME: usize = 15;
    let mut comm = [0_u8; 16];
    let called_by = CALLED_BY.get();
    let name = called_by.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let len = name.len().min(15);
    comm[..len].copy_from_slice(&name[..len]);
    let _ = host!(PRCTL, PR_SET_NAME, comm.as_ptr());
    let mut path = [0_u8; 4096];
    if is_image(fd) {
        if let Ok(found) = path_reply(slot, Call::PathOf, &[fd as u64]) {
            PROGRAM.set(found);
        }
        return;
    }
    let mut link = [0_u8; 32];
    link[..14].copy_from_slice(b"/proc/self/fd/");
    put_number(&mut link[14..], fd as u32);
    if let Ok(len) = host!(READLINK, link.as_ptr(), path.as_mut_ptr(), path.len() - 1) {
        PROGRAM.set(&path[..len]);
    }
}

/// Enters the program with the kernel's stack.
fn enter(stack: *mut usize, entry: usize) -> ! {
    // SAFETY: the stack and the entry are as execve(2) leaves them; rdx is 0, as there is no
    // function to register with atexit(3).
    unsafe {
        asm!(
            "mov rsp, rcx",
            "xor edx, edx",
            "xor ebp, ebp",
            "jmp rax",
            in("rcx") stack,
            in("rax") entry,
            options(noreturn),
        );
    }
}
