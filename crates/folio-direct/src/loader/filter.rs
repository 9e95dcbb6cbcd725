//! The filter of system calls: calls that may concern the image are trapped, but not those that
//! the runtime makes. Linux: seccomp(2), Documentation/userspace-api/seccomp_filter.rst.

use crate::system::{PRCTL, Result, SECCOMP, SENDTO, host};
use crate::trap::{OF_FILES, OF_PROCESSES};

/// An instruction of the classic BPF machine: `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const TRAP: u32 = 0x0003_0000;
const ALLOW: u32 = 0x7fff_0000;
const FAIL_WITH_ENOSYS: u32 = 0x0005_0000 | 38;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ADDRESS_LOW: u32 = 8;
const ADDRESS_HIGH: u32 = 12;
/// The fifth argument: the address of sendto(2).
const FIFTH_LOW: u32 = 48;
const FIFTH_HIGH: u32 = 52;

const X86_64: u32 = 0xc000_003e;
/// The calls of x32 have this bit.
const X32: u32 = 0x4000_0000;

const fn statement(code: u16, value: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, value }
}

const fn jump(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, value }
}

const BEFORE: usize = 4;
/// The instructions for sendto(2): send(2) is one without an address, and is allowed.
const SEND: usize = 5;
const AFTER: usize = 9 + SEND;
const TRAPPED: usize = OF_FILES.len() + OF_PROCESSES.len();
const LEN: usize = BEFORE + TRAPPED + AFTER;

unsafe extern "C" {
    /// The end of the loader's code.
    static etext: u8;
}

/// The instructions. Calls that are never trapped are allowed by their number alone, which the
/// kernel finds out once and then answers from a bitmap.
fn program() -> [Instruction; LEN] {
    let end = (&raw const etext) as u64;
    let (high, low) = ((end >> 32) as u32, end as u32);
    let mut program = [statement(RETURN, ALLOW); LEN];
    let fail = (LEN - 1) as u8;
    program[0] = statement(LOAD, ARCHITECTURE);
    program[1] = jump(JUMP_IF_EQUAL, X86_64, 0, fail - 2);
    program[2] = statement(LOAD, NUMBER);
    program[3] = jump(JUMP_IF_GREATER_OR_EQUAL, X32, fail - 4, 0);
    for (index, number) in OF_FILES.iter().chain(OF_PROCESSES).enumerate() {
        // To the instructions after the one that allows: those for sendto(2), or after these.
        let skipped = if *number == SENDTO { 0 } else { SEND };
        let distance = (TRAPPED - index + skipped) as u8;
        program[BEFORE + index] = jump(JUMP_IF_EQUAL, *number as u32, distance, 0);
    }
    let after = [
        statement(RETURN, ALLOW),
        statement(LOAD, FIFTH_LOW),
        jump(JUMP_IF_EQUAL, 0, 0, 3),
        statement(LOAD, FIFTH_HIGH),
        jump(JUMP_IF_EQUAL, 0, 0, 1),
        statement(RETURN, ALLOW),
        statement(LOAD, ADDRESS_HIGH),
        jump(JUMP_IF_EQUAL, high, 0, 3),
        statement(LOAD, ADDRESS_LOW),
        jump(JUMP_IF_GREATER_OR_EQUAL, low, 1, 0),
        statement(RETURN, ALLOW),
        statement(RETURN, TRAP),
        statement(RETURN, TRAP),
        statement(RETURN, FAIL_WITH_ENOSYS),
    ];
    program[BEFORE + TRAPPED..].copy_from_slice(&after);
    program
}

const _: () = assert!(LEN < 256, "a jump reaches at most 255 instructions");

/// Installs the filter for this process and all its descendants.
pub(crate) fn install() -> Result<()> {
    #[repr(C)]
    struct Program {
        len: u16,
        instructions: *const Instruction,
    }
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    const SET_MODE_FILTER: usize = 1;
    let instructions = program();
    let program = Program { len: LEN as u16, instructions: instructions.as_ptr() };
    host!(PRCTL, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?;
    host!(SECCOMP, SET_MODE_FILTER, 0, &raw const program).map(drop)
}
