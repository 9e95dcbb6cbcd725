//! Locks: calls that wait for other processes, and that signals interrupt.

use crate::calls::Call;
use crate::client::Slot;
use crate::memory::{self, Buffer};
use crate::signals::{Interruption, interruption};
use crate::system::{Errno, Result};
use crate::trap::{Answer, Trap};

/// `struct flock` of 64 bits.
const LOCK_BYTES: usize = 32;

/// Commands of fcntl(2) that concern locks.
pub(crate) const fn is_lock_command(command: i32) -> bool {
    matches!(command, 5..=7 | 36..=38)
}

/// flock(2).
pub(crate) fn flock(slot: Slot, trap: &Trap) -> Answer {
    let [fd, operation, ..] = trap.arguments.map(|argument| argument as i32 as u64);
    let is_interrupted = || interruption(trap.mask).is_some();
    let done = slot.request_interruptible(Call::Flock, &[fd, operation], 0, is_interrupted);
    or_restart(trap, done)
}

/// A call that a signal has interrupted is made again after its handler, if that is to restart
/// calls.
fn or_restart(trap: &Trap, done: Result<u64>) -> Answer {
    match done {
        Err(Errno::INTR) if interruption(trap.mask) == Some(Interruption::Restarts) => {
            Answer::Restart
        }
        done => done.into(),
    }
}

/// fcntl(2) with a lock.
pub(crate) fn lock(slot: Slot, trap: &Trap) -> Answer {
    or_restart(trap, try_lock(slot, trap))
}

fn try_lock(slot: Slot, trap: &Trap) -> Result<u64> {
    const F_GETLK: u64 = 5;
    const F_OFD_GETLK: u64 = 36;
    let [fd, command, address, ..] = trap.arguments;
    slot.put(0, Buffer { address, len_bytes: LOCK_BYTES })?;
    let arguments = [fd as i32 as u64, command as i32 as u64];
    let is_interrupted = || interruption(trap.mask).is_some();
    let done = slot.request_interruptible(Call::Lock, &arguments, LOCK_BYTES, is_interrupted)?;
    if matches!(command as u64, F_GETLK | F_OFD_GETLK) {
        let output = slot.output();
        memory::write_from(output.as_ptr(), output.len().min(LOCK_BYTES), address)?;
    }
    Ok(done)
}
