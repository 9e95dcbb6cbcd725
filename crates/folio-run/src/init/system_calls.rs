//! The command's system calls, filtered by the kernel: refused are those that container tools
//! refuse, since they concern the machine, or reach parts of the kernel that were often faulty.
//! Linux: seccomp(2), include/uapi/linux/seccomp.h, bpf(4) of the classic machine.

use crate::sys;
use rustix::io::Errno;
use std::ffi::c_long;

/// An instruction set, as the kernel names it: `AUDIT_ARCH_*` of include/uapi/linux/audit.h.
const NATIVE: u32 = if cfg!(target_arch = "x86_64") {
    0xC000_003E
} else if cfg!(target_arch = "aarch64") {
    0xC000_00B7
} else if cfg!(target_arch = "riscv64") {
    0xC000_00F3
} else {
    0
};
const I386: u32 = 0x4000_0003;

/// Calls of later kernels than the list knows; their numbers are the same everywhere. Those of x32
/// are higher, too.
const FIRST_UNKNOWN: u32 = 470;
/// `CLONE_NEW*` of clone(2), but `CLONE_NEWTIME`, which clone(2) does not have.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

/// When a call is refused, with EPERM.
#[derive(Clone, Copy)]
enum Refusal {
    Always,
    /// If the first argument has one of these bits.
    Bits(u32),
    /// If this is the first argument.
    Value(u32),
    /// With ENOSYS, so that programs use an older call, whose arguments a filter can read.
    AsMissing,
}

/// A call: its number here, and as a program for i386 makes it on x86_64.
type Call = (c_long, u32, Refusal);

const REFUSED: [Call; 27] = [
    (libc::SYS_acct, 51, Refusal::Always),
    (libc::SYS_add_key, 286, Refusal::Always),
    (libc::SYS_bpf, 357, Refusal::Always),
    (libc::SYS_clock_settime, 264, Refusal::Always),
    // clock_settime64.
    (libc::SYS_clock_settime, 404, Refusal::Always),
    (libc::SYS_delete_module, 129, Refusal::Always),
    (libc::SYS_finit_module, 350, Refusal::Always),
    (libc::SYS_init_module, 128, Refusal::Always),
    (libc::SYS_io_uring_enter, 426, Refusal::Always),
    (libc::SYS_io_uring_register, 427, Refusal::Always),
    (libc::SYS_io_uring_setup, 425, Refusal::Always),
    (libc::SYS_kexec_load, 283, Refusal::Always),
    (libc::SYS_keyctl, 288, Refusal::Always),
    (libc::SYS_lookup_dcookie, 253, Refusal::Always),
    (libc::SYS_open_by_handle_at, 342, Refusal::Always),
    (libc::SYS_perf_event_open, 336, Refusal::Always),
    (libc::SYS_quotactl, 131, Refusal::Always),
    (libc::SYS_reboot, 88, Refusal::Always),
    (libc::SYS_request_key, 287, Refusal::Always),
    (libc::SYS_settimeofday, 79, Refusal::Always),
    // These reach the hypervisor whatever the network namespace.
    (libc::SYS_socket, 359, Refusal::Value(libc::AF_VSOCK as u32)),
    (
        libc::SYS_socketpair,
        360,
        Refusal::Value(libc::AF_VSOCK as u32),
    ),
    (libc::SYS_swapoff, 115, Refusal::Always),
    (libc::SYS_swapon, 87, Refusal::Always),
    (libc::SYS_syslog, 103, Refusal::Always),
    (libc::SYS_userfaultfd, 374, Refusal::Always),
    (libc::SYS_vhangup, 111, Refusal::Always),
];

/// Calls that need a namespace of the command's own.
const NAMESPACES: [Call; 15] = [
    (libc::SYS_clone, 120, Refusal::Bits(NEW_NAMESPACES)),
    (libc::SYS_clone3, 435, Refusal::AsMissing),
    (libc::SYS_fsconfig, 431, Refusal::Always),
    (libc::SYS_fsmount, 432, Refusal::Always),
    (libc::SYS_fsopen, 430, Refusal::Always),
    (libc::SYS_fspick, 433, Refusal::Always),
    (libc::SYS_mount, 21, Refusal::Always),
    (libc::SYS_mount_setattr, 442, Refusal::Always),
    (libc::SYS_move_mount, 429, Refusal::Always),
    (libc::SYS_open_tree, 428, Refusal::Always),
    (libc::SYS_pivot_root, 217, Refusal::Always),
    (libc::SYS_setns, 346, Refusal::Always),
    // umount, which takes no flags.
    (libc::SYS_umount2, 22, Refusal::Always),
    (libc::SYS_umount2, 52, Refusal::Always),
    (
        libc::SYS_unshare,
        310,
        Refusal::Bits(NEW_NAMESPACES | libc::CLONE_NEWTIME.cast_unsigned()),
    ),
];

/// Filters the system calls of the calling thread and its children from now on. It needs
/// `CAP_SYS_ADMIN` in its user namespace. Without `allows_namespaces` no namespace can be made.
///
/// # Errors
/// EINVAL from a kernel without filters, else those of seccomp(2).
pub(super) fn filter(allows_namespaces: bool) -> Result<(), Errno> {
    match NATIVE {
        // The numbers of other machines are not known here.
        0 => Ok(()),
        _ => sys::filter_system_calls(&program(allows_namespaces)),
    }
}

/// Returns the filter: one list for each instruction set.
fn program(allows_namespaces: bool) -> Vec<libc::sock_filter> {
    let namespaces = NAMESPACES.iter().filter(|_| !allows_namespaces);
    let calls: Vec<_> = REFUSED.iter().chain(namespaces).collect();
    let native = calls
        .iter()
        .map(|(number, _, refusal)| (*number as u32, *refusal));
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(section(NATIVE, list(native)));
    if cfg!(target_arch = "x86_64") {
        let i386 = calls.iter().map(|(_, number, refusal)| (*number, *refusal));
        program.extend(section(I386, list(i386)));
    }
    // Another instruction set.
    program.push(answer(libc::SECCOMP_RET_ERRNO, libc::ENOSYS));
    program
}

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// The lower half of the first argument; the machines above store it first.
const FIRST_ARGUMENT: u32 = 16;

/// Returns instructions that go on with `list` if the loaded value is `architecture`.
fn section(architecture: u32, list: Vec<libc::sock_filter>) -> Vec<libc::sock_filter> {
    // A conditional jump reaches 255 instructions at most.
    let over = instruction(libc::BPF_JMP | libc::BPF_JA, list.len() as u32, 0, 0);
    let mut section = vec![is_equal(architecture, 1, 0), over];
    section.extend(list);
    section
}

/// Returns instructions that answer a call, whose registers hold anything.
fn list(calls: impl Iterator<Item = (u32, Refusal)>) -> Vec<libc::sock_filter> {
    let refused = answer(libc::SECCOMP_RET_ERRNO, libc::EPERM);
    let missing = answer(libc::SECCOMP_RET_ERRNO, libc::ENOSYS);
    let allowed = answer(libc::SECCOMP_RET_ALLOW, 0);
    let unknown = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    let has_bits = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let mut list = vec![
        load(NUMBER),
        instruction(unknown, FIRST_UNKNOWN, 0, 1),
        missing,
    ];
    for (number, refusal) in calls {
        let answer = match refusal {
            Refusal::Always => vec![refused],
            Refusal::AsMissing => vec![missing],
            Refusal::Bits(bits) => {
                let test = instruction(has_bits, bits, 0, 1);
                vec![load(FIRST_ARGUMENT), test, refused, allowed]
            }
            Refusal::Value(value) => {
                vec![
                    load(FIRST_ARGUMENT),
                    is_equal(value, 0, 1),
                    refused,
                    allowed,
                ]
            }
        };
        // At most four instructions.
        list.push(is_equal(number, 0, answer.len() as u8));
        list.extend(answer);
    }
    list.push(allowed);
    list
}

fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

/// Skips `then` instructions if the loaded value is `value`, and `otherwise` instructions if not.
fn is_equal(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    instruction(equal, value, then, otherwise)
}

fn answer(action: u32, errno: i32) -> libc::sock_filter {
    instruction(
        libc::BPF_RET | libc::BPF_K,
        action | errno.cast_unsigned(),
        0,
        0,
    )
}

fn instruction(code: u32, operand: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter {
        // All codes have 8 bits.
        code: code as u16,
        jt: then,
        jf: otherwise,
        k: operand,
    }
}
