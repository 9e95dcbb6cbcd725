//! The entry for calls of patched sites: the same answers as those of the trap, without a signal.
//!
//! A thread finds its slot by the base of the segment gs, which C libraries, Go and Rust do not
//! use. Whatever is not as expected there makes the call trap.

use crate::client::Slot;
use crate::layout::{ARENA_BYTES, SlotHeader};
use crate::state::ARENA;
use crate::system::RT_SIGPROCMASK;
use crate::trap::{Answer, Trap, of_files};
use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};

/// The place in a slot's header of what this entry keeps there, after what both sides use.
const KEPT_AT: usize = 1024;
const _: () = assert!(size_of::<SlotHeader>() <= KEPT_AT);

/// What the entry keeps in the slot that it has taken.
#[repr(C, align(16))]
struct Kept {
    /// The program's registers that the runtime changes, without their upper halves.
    vectors: [[u64; 2]; 16],
    /// The program's stack pointer: the address of its [`Frame`].
    rsp: usize,
    /// The end of the slot's own stack.
    stack_top: usize,
}

/// What the entry puts on the program's stack, below the red zone. Until all signals are blocked,
/// everything is there: a handler may make calls, fork, or never return.
#[repr(C)]
struct Frame {
    /// The signals that the program blocks.
    mask: u64,
    rbx: usize,
    /// The number of the call, then its result.
    rax: usize,
    r9: usize,
    r8: usize,
    r10: usize,
    rdx: usize,
    rsi: usize,
    rdi: usize,
    flags: usize,
    /// The address to return to.
    rcx: usize,
}

/// How a call ends: [`Frame::rax`] is its result.
const DONE: usize = 0;
/// The program makes it on the host.
const PASS: usize = 1;
/// It traps.
const TRAP: usize = 2;

/// Whether programs may use the instructions for the base of gs. Linux: `HWCAP2_FSGSBASE`.
pub(crate) static IS_POSSIBLE: AtomicBool = AtomicBool::new(false);

static ALL_SIGNALS: u64 = u64::MAX;

unsafe extern "C" {
    /// Has the registers of a system call, and the address to return to in rcx. The two bytes
    /// before that address are a system call, which is made if this entry cannot answer.
    fn folio_entry();
}

global_asm!(
    ".globl folio_entry",
    "folio_entry:",
    "lea rsp, [rsp - 128]",
    "push rcx",
    "pushfq",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r10",
    "push r8",
    "push r9",
    "push rax",
    "push rbx",
    "push 0",
    "cld",
    "mov edi, 2",
    "lea rsi, [rip + {all_signals}]",
    "mov rdx, rsp",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    // Only now: a child that a handler makes has no slot.
    "rdgsbase rbx",
    "mov rcx, rbx",
    "sub rcx, [rip + {arena}]",
    "mov eax, {trap}",
    "cmp rcx, {arena_bytes}",
    "jae 5f",
    // This thread may be in the handler of a signal that came during a call.
    "lock bts dword ptr [rbx + {is_busy}], 0",
    "jc 5f",
    "mov [rbx + {rsp}], rsp",
    // The runtime has no instructions that change the upper halves.
    "movups [rbx + {vectors} + 0x00], xmm0",
    "movups [rbx + {vectors} + 0x10], xmm1",
    "movups [rbx + {vectors} + 0x20], xmm2",
    "movups [rbx + {vectors} + 0x30], xmm3",
    "movups [rbx + {vectors} + 0x40], xmm4",
    "movups [rbx + {vectors} + 0x50], xmm5",
    "movups [rbx + {vectors} + 0x60], xmm6",
    "movups [rbx + {vectors} + 0x70], xmm7",
    "movups [rbx + {vectors} + 0x80], xmm8",
    "movups [rbx + {vectors} + 0x90], xmm9",
    "movups [rbx + {vectors} + 0xa0], xmm10",
    "movups [rbx + {vectors} + 0xb0], xmm11",
    "movups [rbx + {vectors} + 0xc0], xmm12",
    "movups [rbx + {vectors} + 0xd0], xmm13",
    "movups [rbx + {vectors} + 0xe0], xmm14",
    "movups [rbx + {vectors} + 0xf0], xmm15",
    "mov rdi, rsp",
    "mov rsi, rbx",
    "mov rsp, [rbx + {stack_top}]",
    "call {answer}",
    "movups xmm0, [rbx + {vectors} + 0x00]",
    "movups xmm1, [rbx + {vectors} + 0x10]",
    "movups xmm2, [rbx + {vectors} + 0x20]",
    "movups xmm3, [rbx + {vectors} + 0x30]",
    "movups xmm4, [rbx + {vectors} + 0x40]",
    "movups xmm5, [rbx + {vectors} + 0x50]",
    "movups xmm6, [rbx + {vectors} + 0x60]",
    "movups xmm7, [rbx + {vectors} + 0x70]",
    "movups xmm8, [rbx + {vectors} + 0x80]",
    "movups xmm9, [rbx + {vectors} + 0x90]",
    "movups xmm10, [rbx + {vectors} + 0xa0]",
    "movups xmm11, [rbx + {vectors} + 0xb0]",
    "movups xmm12, [rbx + {vectors} + 0xc0]",
    "movups xmm13, [rbx + {vectors} + 0xd0]",
    "movups xmm14, [rbx + {vectors} + 0xe0]",
    "movups xmm15, [rbx + {vectors} + 0xf0]",
    "mov rsp, [rbx + {rsp}]",
    "mov dword ptr [rbx + {is_busy}], 0",
    "5:",
    "mov ebx, eax",
    "mov edi, 2",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "mov r11d, ebx",
    "add rsp, 8",
    "pop rbx",
    "pop rax",
    "pop r9",
    "pop r8",
    "pop r10",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "cmp r11d, {pass}",
    "je 7f",
    "ja 8f",
    "popfq",
    "pop rcx",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    "7:",
    "popfq",
    "syscall",
    "pop rcx",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    "8:",
    "popfq",
    "pop rcx",
    "lea rsp, [rsp + 128]",
    "lea rcx, [rcx - 2]",
    "jmp rcx",
    arena = sym ARENA,
    arena_bytes = const ARENA_BYTES,
    all_signals = sym ALL_SIGNALS,
    answer = sym answer,
    pass = const PASS,
    trap = const TRAP,
    sigprocmask = const RT_SIGPROCMASK,
    is_busy = const offset_of!(SlotHeader, is_busy),
    vectors = const KEPT_AT + offset_of!(Kept, vectors),
    rsp = const KEPT_AT + offset_of!(Kept, rsp),
    stack_top = const KEPT_AT + offset_of!(Kept, stack_top),
);

/// The address of the entry.
pub(crate) fn address() -> u64 {
    folio_entry as *const () as u64
}

/// Answers a call in the slot of this header; returns how it ends.
extern "C" fn answer(frame: &mut Frame, header: usize) -> usize {
    let slot = Slot::of_header(header);
    let arguments = [frame.rdi, frame.rsi, frame.rdx, frame.r10, frame.r8, frame.r9];
    let trap = Trap { number: frame.rax, arguments, mask: frame.mask };
    match of_files(&trap, slot) {
        Some(Answer::Done(value)) => frame.rax = value as usize,
        Some(Answer::Failed(error)) => frame.rax = -error.0 as usize,
        Some(Answer::Pass) => return PASS,
        // A call that the program makes with other arguments, or again.
        _ => return TRAP,
    }
    DONE
}

/// Finds out from the auxiliary vector whether the entry can be used.
pub(crate) fn prepare(features: usize) {
    const FSGSBASE: usize = 2;
    IS_POSSIBLE.store(features & FSGSBASE != 0, Ordering::Relaxed);
}

/// Lets the calling thread use this slot, which it has now, in further calls by the entry, unless
/// it uses one, or has a use of its own for the base of gs. A child of fork(2) does not have the
/// slot of its parent, in whose call it begins.
pub(crate) fn lend(slot: Slot) {
    if !IS_POSSIBLE.load(Ordering::Relaxed) || !slot.is_served() {
        return;
    }
    let base: usize;
    // SAFETY: the kernel allows the instruction, which reads a register.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    if base == 0 {
        let header = (&raw const *slot.header()) as usize;
        // SAFETY: inside the header, which only the thread of the call uses.
        let kept = unsafe { &mut *((header + KEPT_AT) as *mut Kept) };
        kept.stack_top = slot.stack_top();
        set_base(header);
    }
}

/// Lets the calling thread use no slot in further calls: it is the first one of a new process.
pub(crate) fn forget() {
    if IS_POSSIBLE.load(Ordering::Relaxed) {
        set_base(0);
    }
}

fn set_base(base: usize) {
    // SAFETY: the kernel allows the instruction; nothing addresses memory by gs.
    unsafe { asm!("wrgsbase {}", in(reg) base, options(nomem, nostack, preserves_flags)) };
}
