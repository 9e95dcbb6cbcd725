//! Sites that trap often become jumps to the entry of this runtime.
//!
//! One form is known, which C libraries have for most calls: the instruction before the system
//! call is as long as a jump. The system call stays where it is, so that whatever returns to it, or
//! jumps to it, finds it: a call that waits, a frame of a signal. Every other form traps each time.
//! Only a process with one thread is patched: none can be between the two instructions.
//!
//! ```text
//!   mov eax, NUMBER        jmp stub               stub:  mov eax, NUMBER
//!   syscall                syscall                       lea rcx, [after the call]
//!                                                        jmp entry
//! ```

use crate::client::Slot;
use crate::entry;
use crate::memory;
use crate::system::{
    self, AT_FDCWD, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, O_CLOEXEC, OPENAT, PROT_EXEC,
    PROT_READ, PWRITE64, READ, Result, host, map,
};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// A place of the program that has trapped.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    /// The address after the system call.
    pub(crate) after: usize,
    /// The number of the call.
    pub(crate) number: usize,
}

/// Traps of a site before it is patched, which takes about as long as they do.
const TRAPS: u32 = 8;

/// The last sites that have trapped, with the number of times.
static COUNTED: [Counted; 256] = [const { Counted::new() }; 256];

struct Counted {
    after: AtomicUsize,
    traps: AtomicU32,
}

impl Counted {
    const fn new() -> Self {
        Self { after: AtomicUsize::new(0), traps: AtomicU32::new(0) }
    }
}

/// Whether the process has had a second thread.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);

/// Ends patching: the process has a second thread from now on.
pub(crate) fn end() {
    HAS_THREADS.store(true, Relaxed);
}

/// Allows patching: this is the only thread of a new process.
pub(crate) fn begin() {
    HAS_THREADS.store(false, Relaxed);
}

/// Counts a trap of a site, and patches it if there were many. The slot has no request.
pub(crate) fn count(slot: Slot, site: Site) {
    if HAS_THREADS.load(Relaxed) || !entry::IS_POSSIBLE.load(Relaxed) {
        return;
    }
    let counted = &COUNTED[(site.after ^ site.after >> 8) % COUNTED.len()];
    if counted.after.load(Relaxed) != site.after {
        counted.after.store(site.after, Relaxed);
        counted.traps.store(0, Relaxed);
    }
    let traps = counted.traps.load(Relaxed).saturating_add(1);
    counted.traps.store(traps, Relaxed);
    if traps >= TRAPS && traps.is_power_of_two() {
        let _ = patch(slot, site);
    }
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const JUMP_BYTES: usize = 5;

/// The instruction before a system call, if it is the one that sets its number.
fn mov_before(site: Site) -> Option<[u8; JUMP_BYTES]> {
    const BEFORE: usize = 8;
    const MOV_EAX: u8 = 0xb8;
    let bytes: [u8; BEFORE + SYSCALL.len()] =
        memory::read(site.after - SYSCALL.len() - BEFORE).ok()?;
    let (before, call) = bytes.split_at(BEFORE);
    let mov = *before.last_chunk::<JUMP_BYTES>()?;
    let number = u32::from_le_bytes(*mov.last_chunk()?);
    let is_mov = mov[0] == MOV_EAX && number as usize == site.number;
    (call == SYSCALL && is_mov && is_start(&before[..3])).then_some(mov)
}

/// Returns whether what follows these three bytes begins an instruction: not if it can be the
/// register of a prefix, or the displacement of an instruction whose immediate operand follows.
fn is_start(before: &[u8]) -> bool {
    const HAS_IMMEDIATE: [u8; 4] = [0x69, 0x81, 0xc7, 0xf7];
    let [third, second, last] = *before else {
        return false;
    };
    let has_immediate = [third, second].iter().any(|byte| HAS_IMMEDIATE.contains(byte));
    !has_immediate && !(0x40..0x50).contains(&last) && last != 0x66
}

/// Changes a site to a jump to a stub.
fn patch(slot: Slot, site: Site) -> Option<()> {
    let mov = mov_before(site)?;
    let start = site.after - SYSCALL.len() - JUMP_BYTES;
    let memory = open(c"/proc/self/mem", O_RDWR).ok()?;
    let patched = place_of_stub(slot, start).map(|stub| {
        let bytes = stub_of(mov, site.after, stub);
        // The stub is whole before a jump leads there.
        let written = write(memory, stub, &bytes);
        written.and_then(|()| write(memory, start, &jump_to(start, stub)))
    });
    system::close(memory);
    if matches!(patched, Some(Err(_))) {
        // A kernel that lets no process write its code (proc_mem.force_override).
        end();
    }
    patched?.ok()
}

const O_RDWR: u64 = 2;

fn open(path: &core::ffi::CStr, flags: u64) -> Result<i32> {
    let directory = AT_FDCWD as isize;
    host!(OPENAT, directory, path.as_ptr(), flags | O_CLOEXEC, 0).map(|fd| fd as i32)
}

/// Writes bytes of the program that it cannot write itself. Linux: mem_write, FOLL_FORCE.
fn write(memory: i32, address: usize, bytes: &[u8]) -> Result<()> {
    match host!(PWRITE64, memory, bytes.as_ptr(), bytes.len(), address)? {
        count if count == bytes.len() => Ok(()),
        _ => Err(system::Errno::FAULT),
    }
}

/// The distance of two addresses that are near each other.
const fn distance(from: usize, to: usize) -> [u8; 4] {
    (to.wrapping_sub(from) as i32).to_le_bytes()
}

fn jump_to(from: usize, to: usize) -> [u8; JUMP_BYTES] {
    let [a, b, c, d] = distance(from + JUMP_BYTES, to);
    [0xe9, a, b, c, d]
}

const LEA_BYTES: usize = 7;
const FAR_BYTES: usize = 14;
const STUB_BYTES: usize = 32;
const _: () = assert!(JUMP_BYTES + LEA_BYTES + FAR_BYTES <= STUB_BYTES);

/// Makes the stub at an address, for a site whose call ends at `after`.
fn stub_of(mov: [u8; JUMP_BYTES], after: usize, address: usize) -> [u8; STUB_BYTES] {
    const INT3: u8 = 0xcc;
    let mut bytes = [INT3; STUB_BYTES];
    let mut len = 0;
    let mut put = |part: &[u8]| {
        bytes[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    };
    put(&mov);
    // lea rcx, [rip + distance]
    put(&[0x48, 0x8d, 0x0d]);
    put(&distance(address + JUMP_BYTES + LEA_BYTES, after));
    // jmp [rip], and the address
    put(&[0xff, 0x25, 0, 0, 0, 0]);
    put(&entry::address().to_le_bytes());
    bytes
}

/// Pages of stubs.
const PAGES_MAX: usize = 16;
const PAGE_BYTES: usize = 4096;
/// The addresses of the pages, and the bytes of each that are used.
static PAGES: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];
static USED: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];

/// Returns whether a jump from one address reaches the other.
const fn is_near(from: usize, to: usize) -> bool {
    from.abs_diff(to) < 1 << 30
}

/// Takes memory for a stub near a site of the program's code: private memory that cannot be
/// written.
fn place_of_stub(slot: Slot, site: usize) -> Option<usize> {
    let gap = gap_before(slot, site)?;
    for (page, used) in PAGES.iter().zip(&USED) {
        if page.load(Relaxed) == 0 {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            let start = gap - PAGE_BYTES;
            let made = map(start, PAGE_BYTES, PROT_READ | PROT_EXEC, flags, -1, 0).ok()?;
            if made != start {
                return None;
            }
            page.store(start, Relaxed);
        }
        let (start, at) = (page.load(Relaxed), used.load(Relaxed));
        if is_near(start, site) && at + STUB_BYTES <= PAGE_BYTES {
            used.store(at + STUB_BYTES, Relaxed);
            return Some(start + at);
        }
    }
    None
}

/// The end of the free addresses next to a site, below it. `None` unless the site is in private
/// memory that can be executed and not written. Linux: proc_pid_maps(5).
fn gap_before(slot: Slot, site: usize) -> Option<usize> {
    let file = open(c"/proc/self/maps", 0).ok()?;
    let text = slot.data();
    let mut len = 0;
    while let Ok(count @ 1..) = host!(READ, file, text[len..].as_mut_ptr(), text.len() - len) {
        len += count;
    }
    system::close(file);
    let (mut before, mut gap) = (0, None);
    for line in text[..len].split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        let mut ends = words.next()?.split(|byte| *byte == b'-');
        let (start, end) = (hexadecimal(ends.next()?)?, hexadecimal(ends.next()?)?);
        // The stack grows into its gap.
        if start - before > PAGE_BYTES && start > LOWEST && !line.ends_with(b"[stack]") {
            gap = Some(start);
        }
        before = end;
        if site < end {
            let is_code = start <= site && words.next() == Some(b"r-xp");
            return gap.filter(|gap| is_code && is_near(*gap, site));
        }
    }
    None
}

/// The lowest address that stubs have. Linux: vm.mmap_min_addr.
const LOWEST: usize = 1 << 20;

fn hexadecimal(text: &[u8]) -> Option<usize> {
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    text.iter().try_fold(0, |sum, byte| Some(sum << 4 | digit(byte)? as usize))
}
