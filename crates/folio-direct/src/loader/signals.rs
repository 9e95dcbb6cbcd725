//! Signals: the runtime has SIGSYS, which programs can neither block nor handle.

use crate::client::Slot;
use crate::memory;
use crate::system::{
    EPOLL_PWAIT, EPOLL_PWAIT2, Errno, PPOLL, PSELECT6, RT_SIGACTION, RT_SIGPENDING,
    RT_SIGPROCMASK, RT_SIGSUSPEND, Result, TGKILL, host,
    pid, tid,
};
use crate::trap::{Answer, PASSED, Passed, Trap, folio_restore, folio_trap};
use core::sync::atomic::{AtomicU64, Ordering};

const SIGSYS: usize = 31;
/// A signal's bit in a set.
const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}
const SIGKILL: usize = 9;
const SIGSTOP: usize = 19;
const SET_BYTES: usize = 8;
const SIG_SETMASK: usize = 2;

/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
type Action = [u64; 4];

/// What the program has set for SIGSYS.
static PROGRAM_ACTION: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Installs the handler.
pub(crate) fn install() -> Result<()> {
    const SA_SIGINFO: u64 = 4;
    const SA_RESTORER: u64 = 0x0400_0000;
    const SA_ONSTACK: u64 = 0x0800_0000;
    let action: Action = [
        folio_trap as *const () as u64,
        SA_SIGINFO | SA_RESTORER | SA_ONSTACK,
        folio_restore as *const () as u64,
        // All signals wait until the call has its answer.
        u64::MAX,
    ];
    host!(RT_SIGACTION, SIGSYS, &raw const action, 0, SET_BYTES).map(drop)
}

/// Gives a new program the mask of the one before. Until then all signals wait, but at the start
/// of the first.
pub(crate) fn restore(mask: u64) -> Result<()> {
    let mask = mask & !bit(SIGSYS);
    host!(RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, SET_BYTES).map(drop)
}

/// rt_sigaction(2).
pub(crate) fn action(trap: &Trap) -> Answer {
    let [signal, new, old, size, ..] = trap.arguments;
    if size != SET_BYTES {
        return Answer::Failed(Errno::INVAL);
    }
    if signal == SIGSYS {
        return action_of_trap(new, old).into();
    }
    if new == 0 {
        return Answer::Pass;
    }
    match memory::read::<Action>(new) {
        Ok(action) if action[3] & bit(SIGSYS) == 0 => Answer::Pass,
        Ok(mut action) => {
            action[3] &= !bit(SIGSYS);
            host!(RT_SIGACTION, signal, &raw const action, old, size).into()
        }
        Err(error) => Answer::Failed(error),
    }
}

/// Remembers what the program sets for SIGSYS, without effect.
fn action_of_trap(new: usize, old: usize) -> Result<u64> {
    let before = PROGRAM_ACTION.each_ref().map(|word| word.load(Ordering::Relaxed));
    if new != 0 {
        let action: Action = memory::read(new)?;
        for (place, word) in PROGRAM_ACTION.iter().zip(action) {
            place.store(word, Ordering::Relaxed);
        }
    }
    if old != 0 {
        memory::write(&before, old)?;
    }
    Ok(0)
}

/// SIGSYS that a program sent: it ends the process, unless the program ignores or handles it; its
/// handler is not called.
pub(crate) extern "C" fn sent() {
    const SIG_DFL: u64 = 0;
    if PROGRAM_ACTION[0].load(Ordering::Relaxed) != SIG_DFL {
        return;
    }
    let action: Action = [0; 4];
    let _ = host!(RT_SIGACTION, SIGSYS, &raw const action, 0, SET_BYTES);
    // Pending until the handler returns.
    let _ = host!(TGKILL, pid(), tid(), SIGSYS);
}

/// rt_sigprocmask(2): changes the mask with which the program continues.
pub(crate) fn mask(trap: &Trap, mask: &mut u64) -> Answer {
    const SIG_BLOCK: i32 = 0;
    const SIG_UNBLOCK: i32 = 1;
    let [how, new, old, size, ..] = trap.arguments;
    if size != SET_BYTES {
        return Answer::Failed(Errno::INVAL);
    }
    let before = *mask;
    if new != 0 {
        let set: u64 = match memory::read(new) {
            Ok(set) => set,
            Err(error) => return Answer::Failed(error),
        };
        let after = match how as i32 {
            SIG_BLOCK => before | set,
            SIG_UNBLOCK => before & !set,
            how if how as usize == SIG_SETMASK => set,
            _ => return Answer::Failed(Errno::INVAL),
        };
        *mask = after & !(bit(SIGSYS) | bit(SIGKILL) | bit(SIGSTOP));
    }
    if old != 0
        && let Err(error) = memory::write(&before, old)
    {
        return Answer::Failed(error);
    }
    Answer::Done(0)
}

/// What a pending signal does to a call that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// It fails with EINTR.
    Fails,
    /// It is made again after the handler (SA_RESTART), or after the process was stopped.
    Restarts,
}

/// Returns what the pending signals do to a call of a program that blocks `mask`. Linux: signal(7).
pub(crate) fn interruption(mask: u64) -> Option<Interruption> {
    const SIG_DFL: u64 = 0;
    const SIG_IGN: u64 = 1;
    const SA_RESTART: u64 = 0x1000_0000;
    // SIGCHLD, SIGCONT, SIGURG and SIGWINCH are ignored by default; the stops interrupt nothing.
    const IGNORED: u64 = bit(17) | bit(18) | bit(23) | bit(28);
    const STOPS: u64 = bit(20) | bit(21) | bit(22);
    let mut pending = 0_u64;
    let _ = host!(RT_SIGPENDING, &raw mut pending, SET_BYTES);
    pending &= !mask;
    let mut found = None;
    while pending != 0 {
        let signal = pending.trailing_zeros() as usize + 1;
        pending &= pending - 1;
        let mut action: Action = [0; 4];
        let _ = host!(RT_SIGACTION, signal, 0, &raw mut action, SET_BYTES);
        match action[0] {
            SIG_IGN => {}
            SIG_DFL if IGNORED & bit(signal) != 0 => {}
            SIG_DFL if STOPS & bit(signal) != 0 => found = found.or(Some(Interruption::Restarts)),
            SIG_DFL => return Some(Interruption::Fails),
            _ if action[1] & SA_RESTART != 0 => found = found.or(Some(Interruption::Restarts)),
            _ => return Some(Interruption::Fails),
        }
    }
    found
}

/// A call that waits with another mask of signals: without SIGSYS in it.
pub(crate) fn wait_with_mask(trap: &Trap, slot: Slot) -> Answer {
    let index = match trap.number {
        RT_SIGSUSPEND => 0,
        PPOLL => 3,
        EPOLL_PWAIT | EPOLL_PWAIT2 => 4,
        PSELECT6 => 5,
        _ => return Answer::Pass,
    };
    let address = trap.arguments[index];
    if address == 0 {
        return Answer::Pass;
    }
    // pselect6(2) has a pointer to the address and the size.
    let set = if trap.number == PSELECT6 {
        memory::read::<[usize; 2]>(address).map(|[address, _]| address)
    } else {
        Ok(address)
    };
    let Ok(set) = set else {
        return Answer::Pass;
    };
    match memory::read::<u64>(set) {
        Ok(mask) if set != 0 && mask & bit(SIGSYS) != 0 => {
            let buffer = slot.buffer(PASSED);
            let start = buffer.as_ptr() as usize;
            let words = [start + 16, SET_BYTES, (mask & !bit(SIGSYS)) as usize];
            for (place, word) in buffer.chunks_exact_mut(8).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            let mut arguments = trap.arguments;
            let is_indirect = trap.number == PSELECT6;
            arguments[index] = if is_indirect { start } else { start + 16 };
            Answer::PassWith(Passed { arguments, pointer: is_indirect.then_some(0) })
        }
        _ => Answer::Pass,
    }
}
