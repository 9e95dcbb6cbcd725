//! Processes and threads: each process has a connection of its own to the server, each thread a
//! slot.

use crate::calls::{Call, FOR_CHILD};
use crate::client::{self, Slot};
use crate::state::UMASK;
use crate::system::{
    self, CAPGET, CLONE, Errno, GETGROUPS, Result, SETFSGID, SETFSUID, exit_group, host, raw,
};
use crate::{patch, table_lock};
use crate::trap::{Answer, Context, RSP, Trap, stack_of_thread};
use core::arch::asm;
use core::sync::atomic::Ordering;

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_VFORK: usize = 0x4000;
const CLONE_THREAD: usize = 0x10000;
const SIGCHLD: usize = 17;

/// The arguments of clone(2) for a new process.
#[derive(Clone, Copy)]
pub(crate) struct Fork {
    flags: usize,
    /// The child's stack; 0 for that of the parent.
    stack: usize,
    /// Addresses of thread numbers, and the thread pointer.
    rest: [usize; 3],
}

impl Fork {
    pub(crate) const fn plain() -> Self {
        Self { flags: SIGCHLD, stack: 0, rest: [0; 3] }
    }

    pub(crate) const fn waiting() -> Self {
        Self { flags: SIGCHLD | CLONE_VFORK, stack: 0, rest: [0; 3] }
    }
}

/// clone(2).
pub(crate) fn clone(trap: &Trap, slot: Slot, context: &mut Context) -> Answer {
    let [flags, stack, a, b, c, _] = trap.arguments;
    if flags & (CLONE_VM | CLONE_THREAD) == CLONE_VM | CLONE_THREAD {
        return match stack_of_thread(context, stack) {
            Ok(top) => {
                patch::end();
                Answer::PassThread(top)
            }
            Err(error) => Answer::Failed(error),
        };
    }
    let shares = flags & CLONE_FILES != 0 || flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM;
    if shares {
        return Answer::Failed(Errno::INVAL);
    }
    // A child in the parent's memory becomes one with a copy: it waits for exec all the same.
    fork(slot, context, Fork { flags: flags & !CLONE_VM, stack, rest: [a, b, c] })
}

/// fork(2), and vfork(2) with a copy of the memory. The child continues in this handler.
pub(crate) fn fork(slot: Slot, context: &mut Context, what: Fork) -> Answer {
    let copy = table_lock::copy(slot);
    let token = match slot.request(Call::Prepare, &[FOR_CHILD], 0) {
        Ok(token) => token,
        Err(error) => return Answer::Failed(error),
    };
    let [a, b, c] = what.rest;
    // SAFETY: the memory is copied; the addresses are those of the program.
    let child = unsafe { system::call(CLONE, [what.flags, 0, a, b, c, 0]) };
    match child {
        Ok(0) => {
            // The parent waits for this child, but its other threads need not. Any other parent
            // ends the copy itself: it may have begun another one by now.
            if what.flags & CLONE_VFORK != 0 {
                drop(copy);
            }
            match client::attach(token) {
                // This call still uses the stack of the parent's slot, of which this is a copy.
                Ok(slot) => slot.release(),
                Err(_) => {
                    system::write_error(b"folio: a child process cannot reach the image\n");
                    exit_group(125);
                }
            }
            patch::begin();
            if what.stack != 0 {
                context.registers[RSP] = what.stack;
            }
            Answer::Done(0)
        }
        Ok(child) => Answer::Done(child as u64),
        Err(error) => {
            let _ = slot.request(Call::Forget, &[token], 0);
            Answer::Failed(error)
        }
    }
}

/// exit(2) of a thread: frees the slot, whose stack nothing uses afterwards.
pub(crate) fn exit(trap: &Trap, slot: Slot) -> Answer {
    slot.header().thread.store(0, Ordering::Relaxed);
    let busy = slot.header().is_busy.as_ptr();
    // SAFETY: the thread ends; no memory but the slot's flag is written.
    unsafe {
        asm!(
            "mov dword ptr [{busy}], 0",
            "mov eax, 60",
            "syscall",
            "ud2",
            busy = in(reg) busy,
            in("rdi") trap.arguments[0],
            options(noreturn),
        );
    }
}

/// A call that changes user, groups or capabilities: the host makes it, then the server learns the
/// result.
pub(crate) fn set_credentials(trap: &Trap, slot: Slot) -> Answer {
    // SAFETY: the program's own call, whose pointers the kernel checks.
    let result = unsafe { raw(trap.number, trap.arguments) };
    if result >= 0
        && let Err(error) = send_credentials(slot)
    {
        return Answer::Failed(error);
    }
    Answer::Done(result as u64)
}

/// Sends the identity of this thread to the server.
pub(crate) fn send_credentials(slot: Slot) -> Result<()> {
    const UNCHANGED: usize = u32::MAX as usize;
    const GROUPS_MAX: usize = 65536;
    const CAP_DAC_OVERRIDE: u32 = 1;
    const VERSION_3: u32 = 0x2008_0522;
    let user = host!(SETFSUID, UNCHANGED)?;
    let group = host!(SETFSGID, UNCHANGED)?;
    let groups = host!(GETGROUPS, GROUPS_MAX, slot.data().as_mut_ptr())?;
    let header = [VERSION_3, 0];
    let mut sets = [0_u32; 6];
    host!(CAPGET, &raw const header, &raw mut sets)?;
    let is_capable = u64::from(sets[0] >> CAP_DAC_OVERRIDE & 1);
    slot.request(Call::SetCredentials, &[user as u64, group as u64, is_capable], 4 * groups)
        .map(drop)
}

/// umask(2).
pub(crate) fn umask(trap: &Trap, slot: Slot) -> Answer {
    let mask = trap.arguments[0];
    let before = host!(system::UMASK, mask);
    UMASK.store(mask as u32 & 0o777, Ordering::Relaxed);
    let _ = slot.request(Call::Umask, &[mask as u64], 0);
    before.into()
}
